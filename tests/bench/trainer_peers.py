# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Tokens per CPU-second of the trainer beside those of a bare loop around transformers' Llama of the same shape. Prints one JSON object.

python tests/bench/trainer_peers.py   (in an environment with torch and transformers; about two minutes on two busy cores)

Each rank makes a step of the trainer and a step of the bare loop in turns. The process's CPU time counts, of all its threads, so that other
work on the machine disturbs neither side.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.trainer_ranks import start

WARM, PAIRS, BATCH = 5, 60, 8  # steps before the clock starts, steps of each side, samples a rank
# Ranks, and how both sides divide the weights.
CASES = {"1 rank": (1, "full"), "2 ranks, DDP": (2, "ddp"), "2 ranks, FSDP2": (2, "full")}


def llama(shape: Any) -> Any:
    """transformers' model of a shape of the trainer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=shape.hidden_width,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_key_value_heads,
            intermediate_size=shape.intermediate_size,
            vocab_size=shape.vocab_size,
            max_position_embeddings=shape.max_context_width,
            use_cache=False,
        )
    )


def training(folder: Path, tracker: Any, **flags: Any) -> Any:
    """A run of the trainer with model tiny on one thread, which calls `tracker` after each step."""
    import torch

    from trainer import metrics
    from trainer.config import TrainConfig
    from trainer.launch import StopFlag, join, read_ranks
    from trainer.train import Run, read_shape
    from trainer.watch import Watch

    torch.set_num_threads(1)
    metrics.logger().handlers[0].setLevel("ERROR")
    ranks = read_ranks(os.environ)
    config = TrainConfig(model="tiny", dataset="synthetic", straggler_freq=0, jsonl=str(folder / "train.jsonl"), **flags)
    device, backend = join(ranks, "gloo", 300)
    watch = Watch(folder / "hang", 0)
    run = Run(config, ranks, read_shape(config), device=device, backend=backend, stop=StopFlag(), watch=watch)
    run.observer.trackers.append(tracker)
    return run


class Bare:
    """The shortest loop that trains transformers' model as the trainer trains ours: fused AdamW, clipping, no log."""

    def __init__(self, shape: Any, ranks: int, strategy: str) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        self.model: Any = llama(shape)
        if strategy == "ddp":
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        elif ranks > 1:
            for layer in self.model.model.layers:
                fully_shard(layer)
            fully_shard(self.model, reshard_after_forward=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.samples = torch.randint(0, shape.vocab_size, (BATCH, shape.max_context_width))

    def step(self) -> None:
        import torch

        self.model(input_ids=self.samples, labels=self.samples).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Pairs:
    """A tracker that makes a bare step after each step of the trainer, with the CPU-seconds of both."""

    bare: Bare

    def __init__(self) -> None:
        self.since = 0.0
        self.seconds: list[tuple[float, float]] = []

    def __call__(self, record: dict[str, float], step: int) -> None:
        ended = time.process_time()
        self.bare.step()
        began, self.since = self.since, time.process_time()
        if step > WARM:
            self.seconds.append((ended - began, self.since - ended))


def rank_main(strategy: str, folder: Path) -> None:
    import torch.distributed as dist

    from trainer.launch import leave

    pairs = Pairs()
    run = training(folder, pairs, train_batch_size=BATCH, max_steps=WARM + PAIRS, sharding_strategy=strategy)
    ranks, shape = run.ranks, run.shape
    pairs.bare = Bare(shape, ranks.world_size, strategy)
    run.train()
    found: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(found, pairs.seconds)
    if ranks.rank == 0:
        steps = [[sum(side) for side in zip(*pair, strict=True)] for pair in zip(*found, strict=True)]
        tokens = BATCH * ranks.world_size * shape.max_context_width
        ours, bare = (tokens / statistics.median(column) for column in zip(*steps, strict=True))
        ratio = statistics.median(other / one for one, other in steps)
        print(json.dumps({"tokens_per_cpu_s": round(ours), "bare_tokens_per_cpu_s": round(bare), "ratio": round(ratio, 3)}))
    leave(0)


def main() -> None:
    found = {}
    for name, (ranks, strategy) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = json.loads(start(ranks, [__file__, strategy, folder])[0].splitlines()[-1])
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:]:
        rank_main(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
