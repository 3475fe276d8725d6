# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Speed of a training step: the share of the peak that published runs reached on such a device, less the communication that does not
hide behind the computation. For a device without a published run the answer is n/a, never a guess."""

from trainer.devices import Machine
from trainer.estimate.memory import BYTES, Plan, weights
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


def gather_seconds(machine: Machine, inner: int, ranks: int, size: float) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all over `ranks` ranks with stride `inner`. An all-reduce takes two."""
    if ranks == 1:
        return 0.0
    nodes = max(1, inner * ranks // machine.devices)
    inside = size * (ranks - 1) / ranks / machine.link if nodes < ranks else 0.0
    # Groups side by side share the network of their nodes.
    sharing = max(1.0, machine.devices * nodes / ranks)
    between = sharing * size * (nodes - 1) / nodes / machine.network
    return max(inside, between)


def reached(machine: Machine, shape: Shape, dtype: str) -> float | None:
    """Operations a second of one device, or None if nobody published a run on it."""
    share = REACHED.get(machine.device, {}).get(dtype)
    if share is None or dtype not in machine.peak:
        return None
    return machine.peak[dtype] * share * shape.hidden_width / (shape.hidden_width + NARROW)


def step_seconds(shape: Shape, plan: Plan, machine: Machine, dtype: str) -> float | None:
    """Seconds of one optimizer step, or None."""
    speed = reached(machine, shape, dtype)
    if speed is None:
        return None
    layout, width = plan.layout, BYTES[dtype]
    tokens = plan.batch * shape.max_context_width
    again = {"none": 1.0, "selective": 1.1, "full": 4 / 3}[plan.recompute]
    head = 6 * shape.vocab_size * shape.hidden_width
    # The fullest stage of a pipeline sets the pace: its blocks and the head.
    stage = (shape.flops_per_token() - head) / layout.pipeline + head
    compute = tokens * stage * again / (layout.tensor * layout.context) / speed
    layers = shape.num_layers / layout.pipeline
    hidden = tokens * shape.hidden_width * width / layout.context
    # Sequence parallelism: four collectives a block in the forward pass, four in the backward pass, and two of those again for weights.
    tensor = layers * 10 * gather_seconds(machine, 1, layout.tensor, hidden)
    keys = tokens * 2 * shape.num_key_value_heads * shape.head_width * width / layout.tensor
    context = layers * 3 * gather_seconds(machine, layout.tensor, layout.context, keys)
    sent = shape.experts_per_token * hidden * layout.expert / layout.tensor
    experts = layers * 4 * gather_seconds(machine, layout.tensor, layout.expert, sent)
    block, ends = weights(shape, layout)
    local = layers * block + ends
    inner = layout.tensor * layout.shard
    micro = compute + tensor + context + experts
    if layout.ddp:
        reduce = 2 * gather_seconds(machine, layout.tensor, layout.shard, 4 * local)
        return micro * plan.accumulation + max(0.0, reduce - OVERLAP * micro * 2 / 3)
    gather = gather_seconds(machine, layout.tensor, layout.shard, width * local)
    scatter = gather_seconds(machine, layout.tensor, layout.shard, 4 * local)
    reduce = 2 * gather_seconds(machine, inner, layout.replicate, 4 * local / layout.shard)
    if layout.pipeline > 1:
        # A stage keeps its weights gathered for the whole step, and idles while the pipeline fills and drains.
        work = micro * (plan.accumulation + (layout.pipeline - 1) / layout.chunks)
        return work + max(0.0, gather + scatter + reduce - OVERLAP * micro)
    each = micro + max(0.0, 2 * gather - OVERLAP * micro)
    last = max(0.0, scatter + reduce - OVERLAP * micro * 2 / 3)
    return each * plan.accumulation + last
