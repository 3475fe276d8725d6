# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Tokens per CPU-second of the trainer, of torchtitan and of Composer: one tiny Llama, one batch of random tokens, one rank, one thread.

python tests/bench/trainer_frameworks.py   (in the trainer's environment; about three minutes)

The packages of both frameworks come from their recipes' requirements, into a folder that is removed. Each framework runs three times in
turns. Its best median of the CPU time of a step counts, so that other work on the machine disturbs it little.

torchtitan asks for a GPU; cpu.py of its recipe stands for it. It wraps the model in FSDP2 on one rank too, and computes queries, keys and
values in one product; its attention here is the trainer's. Composer trains the Llama of transformers.
"""

from __future__ import annotations

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.trainer_peers import llama, training
from trainer.models import PRESETS

WARM, STEPS, ROUNDS = 5, 25, 3
BATCH = 8
SHAPE = PRESETS["tiny"]
CONTEXT, VOCABULARY, WIDTH = SHAPE.max_context_width, SHAPE.vocab_size, SHAPE.hidden_width
REQUIREMENTS = {"trainer": None, "torchtitan": "recipe-torchtitan.txt", "composer": "recipe-mosaicml.txt"}


class Clock:
    """CPU-seconds of this process, all threads, from one call to the next, without the first WARM ones."""

    def __init__(self) -> None:
        self.calls = 0
        self.since = 0.0
        self.seconds: list[float] = []

    def __call__(self, *_: Any) -> None:
        now = time.process_time()
        if self.calls > WARM:
            self.seconds.append(now - self.since)
        self.calls, self.since = self.calls + 1, time.process_time()


def trainer(folder: Path, clock: Clock) -> None:
    training(folder, clock, train_batch_size=BATCH, max_steps=WARM + STEPS).train()


def torchtitan(folder: Path, clock: Clock) -> None:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    runpy.run_path(str(ROOT / "recipes/torchtitan/cpu.py"))["stand_in"](folder)
    from dataclasses import dataclass, replace

    import torch
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.models import llama3
    from torchtitan.models.common import attention
    from torchtitan.models.llama3 import config_registry
    from torchtitan.tools.logging import logger

    class Tokens(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, **_others: Any) -> None:
            self.tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))

        def __iter__(self) -> Any:
            while True:
                clock()
                yield {"input": self.tokens[:, :-1].contiguous()}, self.tokens[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    logger.setLevel("WARNING")
    config = config_registry.llama3_cpu()
    rope = llama3.ComplexRoPE.Config(dim=WIDTH // SHAPE.num_heads, max_seq_len=CONTEXT, theta=500000)
    layers = llama3._build_llama3_layers(
        n_layers=SHAPE.num_layers,
        dim=WIDTH,
        n_heads=SHAPE.num_heads,
        n_kv_heads=SHAPE.num_key_value_heads,
        hidden_dim=SHAPE.intermediate_size,
        rope=rope,
        attn_backend="flex",
    )
    for layer in layers:
        # FlexAttention would build a mask for each batch, which CPUs do slowly; this one is causal, as the trainer's.
        layer.attention = replace(layer.attention, inner_attention=attention.ScaledDotProductAttention.Config())
    model = replace(config.model_spec.model, dim=WIDTH, vocab_size=VOCABULARY, layers=layers)
    model.tok_embeddings = replace(model.tok_embeddings, num_embeddings=VOCABULARY, embedding_dim=WIDTH)
    model.norm = replace(model.norm, normalized_shape=WIDTH)
    model.lm_head = replace(model.lm_head, in_features=WIDTH, out_features=VOCABULARY)
    config.model_spec = replace(config.model_spec, model=model)
    config.loss = type(config.loss)(loss_fn=replace(config.loss.loss_fn, global_vocab_size=VOCABULARY))
    config.dataloader, config.activation_checkpoint = Tokens.Config(), None
    config.training = replace(
        config.training, local_batch_size=BATCH, seq_len=CONTEXT, steps=WARM + STEPS, mixed_precision_param="float32", max_norm=1.0
    )
    config.dump_folder = str(folder)
    config.metrics.log_freq = WARM + STEPS
    made = config.build()
    made.train()
    made.close()


def composer(folder: Path, clock: Clock) -> None:
    import torch
    from composer import Callback, ComposerModel, Trainer
    from composer.algorithms import GradientClipping

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama(SHAPE)

        def forward(self, batch: Any) -> Any:
            return self.model(input_ids=batch, labels=batch)

        def loss(self, outputs: Any, batch: Any) -> Any:
            return outputs.loss

    class Ends(Callback):
        def batch_end(self, *_: Any) -> None:
            clock()

    model = Model()
    samples = torch.randint(VOCABULARY, (BATCH, CONTEXT)).repeat(WARM + STEPS, 1)
    Trainer(
        model=model,
        device="cpu",
        train_dataloader=torch.utils.data.DataLoader(samples, BATCH),  # type: ignore[arg-type]
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        algorithms=[GradientClipping(clipping_type="norm", clipping_threshold=1.0)],
        max_duration=f"{WARM + STEPS}ba",
        callbacks=[Ends()],
        progress_bar=False,
        save_folder=None,
    ).fit()


def packages(name: str, folder: Path) -> dict[str, str]:
    """The environment of a process that has the packages of `name` beside torch."""
    wanted = REQUIREMENTS[name]
    if wanted is None:
        return dict(os.environ)
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    subprocess.run([*argv, "--target", str(folder / name), "-r", str(ROOT / "requirements" / wanted)], check=True)
    return os.environ | {"PYTHONPATH": str(folder / name)}


def main() -> None:
    medians: dict[str, list[float]] = {name: [] for name in REQUIREMENTS}
    with tempfile.TemporaryDirectory() as name:
        environments = {framework: packages(framework, Path(name)) for framework in REQUIREMENTS}
        for _round in range(ROUNDS):
            for framework, env in environments.items():
                done = subprocess.run([sys.executable, __file__, framework], env=env, stdout=subprocess.PIPE, text=True, check=True)
                medians[framework].append(statistics.median(json.loads(done.stdout.splitlines()[-1])))
    print(json.dumps({name: round(BATCH * CONTEXT / min(found)) for name, found in medians.items()}))


if __name__ == "__main__":
    if not sys.argv[1:]:
        main()
    else:
        import torch

        torch.set_num_threads(1)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            {"trainer": trainer, "torchtitan": torchtitan, "composer": composer}[sys.argv[1]](Path(folder), clock)
        assert len(clock.seconds) >= STEPS - 2, f"{len(clock.seconds)} steps were timed"
        print(json.dumps(clock.seconds))
