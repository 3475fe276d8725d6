# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Speed of a training step: the share of the peak that published runs reached on such a device, less the communication that does not
hide behind the computation. For a device without a published run the answer is n/a, never a guess."""

from trainer.devices import PCIE, Machine
from trainer.estimate.memory import Plan, moved
from trainer.estimate.traffic import Traffic, traffic
from trainer.models import Shape

# Share of the dense peak that large matrix products of a training step reach without recomputation: published runs with compile
# (docs/trainer.md names them).
REACHED = {
    "A100": {"bf16": 0.68},
    "H100": {"bf16": 0.50, "fp8": 0.30},
    "H200": {"bf16": 0.50, "fp8": 0.345},  # bf16 as the H100, which is the same chip
    "B200": {"bf16": 0.23, "fp8": 0.145},  # cards with a power limit
}
NARROW = 300  # a model of this width reaches half of that share: its products are too small to fill the device
OVERLAP = 0.85  # share of the computation that FSDP's communication hides behind


def seconds_of(machine: Machine, one: Traffic) -> float:
    """Seconds that these collectives take."""
    ranks, size = one.ranks, one.size * (2 if one.kind == "all_reduce" else 1)
    nodes = max(1, one.stride * ranks // machine.devices)
    if one.kind == "send":
        # To the next rank of the pipeline, at the same time as the others of the node.
        return size * machine.devices / machine.network if nodes > 1 else size / machine.link
    inside = size * (ranks - 1) / ranks / machine.link if nodes < ranks else 0.0
    # Groups side by side share the network of their nodes.
    sharing = max(1.0, machine.devices * nodes / ranks)
    between = sharing * size * (nodes - 1) / nodes / machine.network
    return max(inside, between)


def reached(machine: Machine, shape: Shape, dtype: str) -> float | None:
    """Operations a second of one device, or None if nobody published a run on it. No run of a mixture with this layer was published."""
    share = REACHED.get(machine.device, {}).get(dtype)
    if share is None or dtype not in machine.peak or shape.num_experts:
        return None
    return machine.peak[dtype] * share * shape.hidden_width / (shape.hidden_width + NARROW)


def step_seconds(shape: Shape, plan: Plan, machine: Machine, dtype: str) -> float | None:
    """Seconds of one optimizer step, or None."""
    speed = reached(machine, shape, dtype)
    if speed is None:
        return None
    layout = plan.layout
    tokens = plan.batch * shape.max_context_width
    # The first pass is a third of the work. With the attention kept, its products are not computed again.
    products = 2 * shape.flops_per_token(causal=True) / shape.flops_per_token() - 1
    again = {"none": 1.0, "selective": 1.1, "attention": 1 + products / 3, "full": 4 / 3}[plan.recompute]
    head = 6 * shape.vocab_size * shape.hidden_width
    # The fullest stage of a pipeline sets the pace: its blocks and the head.
    stage = (shape.flops_per_token() - head) / layout.pipeline + head
    compute = tokens * stage * again / (layout.tensor * layout.context) / speed
    gather = last = waiting = 0.0
    for one in traffic(shape, plan, dtype):
        seconds = seconds_of(machine, one)
        if one.axis not in ("shard", "replicate"):
            waiting += seconds / plan.accumulation
        elif one.kind == "all_gather":
            gather += seconds
        else:
            last += seconds
    micro = compute + waiting
    # To the device and back, while nothing else happens.
    update = 2 * moved(shape, plan) / PCIE if plan.offload != "none" else 0.0
    if layout.pipeline > 1:
        # A stage keeps its weights gathered for the whole step, and idles while the pipeline fills and drains.
        work = micro * (plan.accumulation + (layout.pipeline - 1) / layout.chunks)
        return update + work + max(0.0, gather + last - OVERLAP * micro)
    each = micro + max(0.0, gather / plan.accumulation - OVERLAP * micro)
    return update + each * plan.accumulation + max(0.0, last - OVERLAP * micro * 2 / 3)
