# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""How a job's ranks divide the work: the degrees, whether they fit, and the part of each rank. Without torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from trainer.cli import UsageError
from trainer.config import LayoutFlags
from trainer.models import Shape


@dataclass(frozen=True)
class Layout:
    """Degrees of a job. Ranks count through (pipeline, replicate, shard, tensor), tensor fastest: the ranks that talk most are neighbours.

    `shard` ranks hold one copy of a stage's weights. shard = data · context (context fastest), and experts divide the same ranks.
    With `ddp` nothing is sharded and `shard` counts the copies.
    """

    shard: int = 1
    replicate: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    ddp: bool = False
    chunks: int = 1  # parts of the model on each pipeline rank; more than 1 is the interleaved schedule

    @property
    def world_size(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def data_ranks(self) -> int:
        """The number of ranks, or groups of ranks, that read different samples."""
        return self.replicate * self.shard // self.context

    def data_rank(self, rank: int) -> int:
        """The data rank that this rank belongs to."""
        return rank // self.tensor % (self.replicate * self.shard) // self.context

    def tensor_rank(self, rank: int) -> int:
        return rank % self.tensor

    def pipeline_rank(self, rank: int) -> int:
        return rank // (self.tensor * self.shard * self.replicate)

    def stages(self, layers: int) -> list[range]:
        """The blocks of each part of the model in order, as even as possible; the first parts take the remainder."""
        parts = self.pipeline * self.chunks
        ends = [sum(layers // parts + (index < layers % parts) for index in range(end)) for end in range(parts + 1)]
        return [range(first, last) for first, last in pairwise(ends)]

    def __str__(self) -> str:
        parts = {"DDP" if self.ddp else "FSDP": self.shard // self.context, "HSDP": self.replicate, "TP": self.tensor}
        parts |= {"PP": self.pipeline, "CP": self.context, "EP": self.expert}
        named = [f"{name} {degree}" for name, degree in parts.items() if degree > 1]
        if self.chunks > 1:
            named.append(f"{self.chunks} parts a stage")
        return " x ".join(named) or "undivided"


def divides(what: str, count: int, flag: str, degree: int) -> None:
    """Raise UsageError unless `degree` divides `count`."""
    if count % degree:
        raise UsageError(f"{what} {count} cannot be divided by --{flag} {degree}: change one of them")


def resolve(shape: Shape, world_size: int, flags: LayoutFlags) -> Layout:
    """The layout of `world_size` ranks; raises UsageError if something does not divide."""
    strategy, hybrid, micro_batches = flags.sharding_strategy, flags.hybrid_shard_degree, flags.gradient_accumulation_steps
    tensor, pipeline = flags.tensor_parallel_degree, flags.pipeline_parallel_degree
    context, expert = flags.context_parallel_degree, flags.expert_parallel_degree
    fixed = tensor * pipeline * context
    if world_size % fixed:
        raise UsageError(
            f"{world_size} ranks cannot be divided by {fixed} (--tensor_parallel_degree {tensor} x --pipeline_parallel_degree {pipeline} x "
            f"--context_parallel_degree {context}): start a multiple of {fixed} ranks"
        )
    spread = world_size // (tensor * pipeline)
    replicate = 1
    if strategy == "hybrid":
        if not hybrid:
            raise UsageError("--sharding_strategy hybrid does not know how many ranks a host has: give --hybrid_shard_degree")
        divides("the number of ranks that share the weights", spread, "hybrid_shard_degree", hybrid)
        divides("--hybrid_shard_degree", hybrid, "context_parallel_degree", context)
        replicate = spread // hybrid
    elif hybrid:
        raise UsageError("--hybrid_shard_degree needs --sharding_strategy hybrid: give both or neither")
    ddp = strategy == "ddp"
    if ddp and (tensor > 1 or pipeline > 1 or expert > 1):
        raise UsageError("--sharding_strategy ddp cannot be joined with tensor, pipeline or expert parallelism: use full or hybrid")
    chunks = 2 if flags.pipeline_schedule == "interleaved" else 1
    layout = Layout(spread // replicate, replicate, tensor, pipeline, context, expert, ddp, chunks)

    if tensor > 1:
        for name in ("num_key_value_heads", "intermediate_size", "vocab_size"):
            divides(name, getattr(shape, name), "tensor_parallel_degree", tensor)
    if context > 1:
        divides("the number of heads of a tensor rank", shape.num_heads // tensor, "context_parallel_degree", context)
        keys = shape.num_key_value_heads // tensor
        if keys % context and context % keys:
            raise UsageError(
                f"the {keys} key heads of a tensor rank and --context_parallel_degree {context} do not divide: change one of them"
            )
    if shape.max_context_width % (context * tensor):
        raise UsageError(f"max_context_width {shape.max_context_width} cannot be divided among {tensor} x {context} ranks: change it")
    if expert > 1:
        if not shape.num_experts:
            raise UsageError("--expert_parallel_degree needs a model with experts, such as mixtral-8x7b")
        if tensor > 1:
            raise UsageError("--expert_parallel_degree cannot be joined with --tensor_parallel_degree: choose one")
        divides("num_experts", shape.num_experts, "expert_parallel_degree", expert)
        divides("the number of ranks that share the weights", layout.shard, "expert_parallel_degree", expert)
    if pipeline > 1:
        if shape.tied:
            raise UsageError(
                "this model's head is its embedding, which cannot lie on two pipeline stages: use --pipeline_parallel_degree 1"
            )
        if shape.num_layers < pipeline * chunks:
            raise UsageError(f"num_layers {shape.num_layers} is below the {pipeline * chunks} parts of the pipeline: use fewer stages")
        if chunks > 1:
            divides("--gradient_accumulation_steps", micro_batches, "pipeline_parallel_degree", pipeline)
        if micro_batches < pipeline:
            raise UsageError(f"--gradient_accumulation_steps {micro_batches} is below --pipeline_parallel_degree {pipeline}: raise it")
    elif chunks > 1:
        raise UsageError("--pipeline_schedule interleaved needs --pipeline_parallel_degree 2 or more")
    return layout


def layout_of(flags: LayoutFlags, shape: Shape, world_size: int, env: Mapping[str, str] = os.environ) -> Layout:
    """The layout that the flags ask for; raises UsageError if it does not fit."""
    hybrid = flags.hybrid_shard_degree
    if flags.sharding_strategy == "hybrid" and hybrid is None:
        per_host = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or 0)
        hybrid = per_host // (flags.tensor_parallel_degree * flags.pipeline_parallel_degree) or per_host
    return resolve(shape, world_size, replace(flags, hybrid_shard_degree=hybrid))
