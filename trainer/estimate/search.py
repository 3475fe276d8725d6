# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The fastest layout of a model on some machines."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.cli import UsageError
from trainer.config import RECOMPUTE, LayoutFlags
from trainer.devices import Machine
from trainer.estimate.memory import OPTIMISER, Memory, Plan, memory
from trainer.estimate.speed import step_seconds
from trainer.layout import resolve
from trainer.models import Shape

STEP_TOKENS = 4_194_304  # of an optimizer step, if the user names no number


@dataclass(frozen=True)
class Estimate:
    """The answer for one plan; rates are None if the device has no published run."""

    plan: Plan
    memory: Memory
    dtype: str
    fits: bool
    samples_per_s: float | None
    tokens_per_s: float | None
    mfu: float | None


def evaluate(shape: Shape, plan: Plan, machine: Machine, dtype: str) -> Estimate:
    """Memory and speed of this plan."""
    need = memory(shape, plan, dtype)
    seconds = step_seconds(shape, plan, machine, dtype)
    samples = plan.samples / seconds if seconds else None
    tokens = samples * shape.max_context_width if samples else None
    mfu = tokens * shape.flops_per_token() / (plan.layout.world_size * machine.peak[dtype]) if tokens else None
    return Estimate(plan, need, dtype, need.total <= machine.usable, samples, tokens, mfu)


def divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def plans(shape: Shape, machine: Machine, nodes: int, wanted: dict[str, Any], step_tokens: int) -> Iterator[Plan]:
    """Every plan for all devices that `train` accepts and that keeps the `wanted` flags (name → value). Simple ones come first."""
    world = machine.devices * nodes

    def free(name: str, values: Sequence[Any]) -> Sequence[Any]:
        return [wanted[name]] if wanted.get(name) is not None else values

    adamw = {name: wanted[name] for name in OPTIMISER if wanted.get(name)}
    degrees = itertools.product(
        free("pipeline_parallel_degree", [stages for stages in divisors(shape.num_layers) if world % stages == 0]),
        free("tensor_parallel_degree", divisors(machine.devices)),
        free("context_parallel_degree", [1]),
        free("expert_parallel_degree", [1]),
        free("sharding_strategy", ["full", "hybrid"] if nodes > 1 else ["full"]),
        free("activation_checkpointing", RECOMPUTE),
        free("train_batch_size", [1, 2, 4, 8, 16]),
    )
    for pipeline, tensor, context, expert, strategy, recompute, batch in degrees:
        spread = world // (pipeline * tensor)
        if batch > 1 and wanted.get("train_batch_size") is None and spread * batch * shape.max_context_width > step_tokens * context:
            continue
        most = step_tokens * context // max(1, spread * batch * shape.max_context_width)
        for accumulation in free("gradient_accumulation_steps", sorted({1, max(1, most)}) if pipeline == 1 else [max(1, most)]):
            hybrid = wanted.get("hybrid_shard_degree") or max(1, machine.devices // tensor)
            flags = LayoutFlags(
                sharding_strategy=strategy,
                hybrid_shard_degree=hybrid if strategy == "hybrid" else None,
                tensor_parallel_degree=tensor,
                pipeline_parallel_degree=pipeline,
                context_parallel_degree=context,
                expert_parallel_degree=expert,
                gradient_accumulation_steps=accumulation,
            )
            with contextlib.suppress(UsageError):
                yield Plan(resolve(shape, world, flags), batch, accumulation, recompute, **adamw)


def best(
    shape: Shape, machine: Machine, nodes: int, wanted: dict[str, Any], *, float8: bool = False, step_tokens: int = STEP_TOKENS
) -> Estimate:
    """The fastest plan that fits, or the one that needs least memory if none fits. Raises UsageError if nothing divides."""
    dtype = machine.dtype(float8)
    found = [evaluate(shape, plan, machine, dtype) for plan in plans(shape, machine, nodes, wanted, step_tokens)]
    if not found:
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items() if value is not None)
        raise UsageError(f"{asked} does not divide {machine.devices * nodes} devices and this model: change one of them")
    fitting = [one for one in found if one.fits]
    if not fitting:
        return min(found, key=lambda one: one.memory.total)
    top = max(one.samples_per_s or 0.0 for one in fitting)
    # The first, which is the simplest, of those within 2 % of the highest speed; without speeds the first that fits.
    return next(one for one in fitting if (one.samples_per_s or 0.0) >= 0.98 * top)
