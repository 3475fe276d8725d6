# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""torchtitan's side of the GPU rows of docs/performance.md: torchtitan 0.2.2, the newest release that runs on torch 2.11, on one GPU.

    python tests/bench/titan.py llama_1b amp

needs torch 2.11, torchtitan 0.2.2 with its requirements and, for float8, torchao 0.17.0. `amp` is the release as it is, which computes in
bf16 through autocast on one GPU. `fsdp` uses fully_shard on one GPU with bf16 parameters instead, as torchtitan 0.3.0 does. More
arguments go to torchtitan. Its log says tps in each step; compare the mean from step 10 on.

The models, their vocabularies and the random tokens are those of the trainer's `bench`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

STEPS = 20
# flavor, context, batch, recomputation
ROWS = {
    "llama_1b": ("1B", 4096, 4, "none"),
    "llama_3b": ("3B", 4096, 2, "selective"),
    "llama_8b": ("8B", 8192, 1, "full"),
    "llama_8b_float8": ("8B", 8192, 1, "full"),
    # For a test of this file.
    "tiny": ("tiny", 128, 2, "selective"),
    "tiny_float8": ("tiny", 128, 2, "full"),
}


def flags(row: str) -> list[str]:
    flavor, context, batch, recompute = ROWS[row]
    values = {
        "job.dump_folder": os.environ.get("TITAN_FOLDER", "/tmp/titan"),
        "model.name": "llama3_muster",
        "model.flavor": flavor,
        "optimizer.lr": "3e-4",
        "lr_scheduler.warmup_steps": 2,
        "training.local_batch_size": batch,
        "training.seq_len": context,
        "training.steps": STEPS,
        "activation_checkpoint.mode": recompute,
        "activation_checkpoint.selective_ac_option": "op",
        "metrics.log_freq": 1,
    }
    made = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    if row.endswith("float8"):
        # One scale a tensor and a head in bf16, as the trainer has.
        made += ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.filter_fqns", "output"]
    return [*made, "--compile.enable", "--metrics.disable_color_printing"]


ROW, MIX, *MORE = sys.argv[1:]
if MIX not in ("amp", "fsdp"):
    sys.exit(f"{MIX}: give amp or fsdp")
sys.argv = [sys.argv[0], *flags(ROW), *MORE]  # before the import, because torchtitan reads the arguments of that moment
for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}.items():
    os.environ.setdefault(name, value)

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchtitan import train
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.distributed import utils
from torchtitan.models import llama3
from torchtitan.models.llama3.infra.parallelize import parallelize_llama
from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.tools.utils import device_type


@dataclass
class Args(TransformerModelArgs):
    tied: bool = False

    def get_nparams_and_flops(self, model: Any, seq_len: int) -> tuple[int, int]:
        if not self.tied:
            return super().get_nparams_and_flops(model, seq_len)
        # torchtitan's own function leaves out the head of a tied model.
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return parameters, 6 * parameters + 12 * self.n_layers * self.dim * seq_len


class Tied(Transformer):
    """A Llama whose head is its embedding if the arguments say so, as torchtitan's qwen3 does it."""

    def __init__(self, args: Args) -> None:
        super().__init__(args)
        if args.tied:
            self.tok_embeddings.weight = self.output.weight

    def init_weights(self, buffer_device: Any = None) -> None:
        if self.model_args.tied:
            self.tok_embeddings.weight = self.output.weight  # leaving the meta device made two of it
        super().init_weights(buffer_device=buffer_device)


class RandomTokens(BaseDataLoader):
    def __init__(self, batch: int, context: int, vocabulary: int) -> None:
        self.shape, self.vocabulary = (batch, context + 1), vocabulary
        self.draw = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[Any]:
        while True:
            tokens = torch.randint(self.vocabulary, self.shape, generator=self.draw)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


# The published 1B and 3B models are tied, have a feed forward of 8192 and scale the rotary embedding by 32; the 8B model is torchtitan's.
NEW: dict[str, Any] = {
    "n_kv_heads": 8,
    "rope_theta": 500000,
    "rope_scaling_args": RoPEScalingArgs(scaling_factor=32.0),
    "multiple_of": 256,
    "tied": True,
}
FLAVORS = {
    "1B": Args(dim=2048, n_layers=16, n_heads=32, ffn_dim_multiplier=1.5, **NEW),
    "3B": Args(dim=3072, n_layers=28, n_heads=24, **NEW),
    "8B": Args(**{field.name: getattr(llama3.llama3_args["8B"], field.name) for field in fields(TransformerModelArgs)}),
    "tiny": Args(dim=256, n_layers=2, n_heads=16, vocab_size=2048, **NEW),
}


def loader(*, job_config: Any, **_others: Any) -> RandomTokens:
    training = job_config.training
    return RandomTokens(training.local_batch_size, training.seq_len, FLAVORS[job_config.model.flavor].vocab_size)


def parallelize(model: Any, parallel_dims: Any, job_config: Any) -> Any:
    model = parallelize_llama(model, parallel_dims, job_config)  # on one GPU: recomputation and compilation
    if MIX == "amp":
        return model
    mesh, policy = init_device_mesh(device_type, (1,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.layers.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    last = [model.norm, model.output]
    if model.model_args.tied:
        last.append(model.tok_embeddings)
    else:
        fully_shard(model.tok_embeddings, mesh=mesh, mp_policy=policy)
    fully_shard(last, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def spec() -> Any:
    made = replace(llama3.get_train_spec(), model_cls=Tied, model_args=FLAVORS, parallelize_fn=parallelize)
    return replace(made, build_dataloader_fn=loader, build_tokenizer_fn=None, state_dict_adapter=None)


if __name__ == "__main__":
    register_train_spec("llama3_muster", spec())
    if MIX == "fsdp":
        utils.maybe_enable_amp = lambda *_others: contextlib.nullcontext()
    train.main(train.Trainer)
