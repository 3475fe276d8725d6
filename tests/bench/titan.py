# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""torchtitan's side of the GPU rows of docs/performance.md, which has the commands.

Written against pytorch/torchtitan b5bcd76c6 of 2026-08-21 and never run, because no GPU was at hand. The tokens are those of its test set;
the models and their vocabularies are the published ones."""

from __future__ import annotations

from typing import Any

from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_8b, llama3_debugmodel

STEPS = 30


def config(flavor: str, context: int, batch: int, recompute: Any, converters: Any = None) -> Any:
    """`batch` samples of `context` tokens on one GPU, compiled; no checkpoints, no validation."""
    small, made = llama3_debugmodel(), llama3_8b()
    made.model_spec = model_registry(flavor, converters=converters)
    made.hf_assets_path, made.dataloader, made.metrics = small.hf_assets_path, small.dataloader, small.metrics
    made.profiler.enable_profiling = False
    made.compile = CompileConfig(enable=True)
    made.activation_checkpoint = recompute
    made.training = TrainingConfig(num_tokens_per_microbatch_per_dp_rank=batch * context, max_context_length=context, steps=STEPS)
    return made


def llama_1b() -> Any:
    return config("1B", 4096, 4, None)


def llama_3b() -> Any:
    return config("3B", 4096, 2, SelectiveAC.Config())


def llama_8b() -> Any:
    return config("8B", 8192, 1, FullAC.Config())


def llama_8b_float8() -> Any:
    return config("8B", 8192, 1, FullAC.Config(), [Float8LinearConverter.Config(model_compile_enabled=True)])
