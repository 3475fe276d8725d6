# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The collectives of a training step in every layout. A test counts the real ones and compares."""

from dataclasses import dataclass

from trainer.estimate.memory import BYTES, CHUNK, Plan, weights
from trainer.models import Shape

DDP_FIRST, DDP_BUCKET = 1 << 20, 25 << 20  # bytes of gradients that DDP sends at once


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind that a rank takes part in: `count` of them, over `ranks` ranks that lie `stride` apart, of `size` bytes in
    all. A gather or scatter counts the whole tensor, an exchange and a send what this rank has."""

    axis: str
    kind: str
    stride: int
    ranks: int
    count: float
    size: float


def traffic(shape: Shape, plan: Plan, dtype: str, stage: int | None = None) -> list[Traffic]:
    """The collectives of one optimizer step on a rank of the pipeline's `stage` (the last if not given), without those of a few bytes."""
    layout, width, micro = plan.layout, BYTES[dtype], plan.accumulation
    kept = max(4, width)  # bytes of a gradient when ranks add it up
    tensor, context, expert, shard = layout.tensor, layout.context, layout.expert, layout.shard
    stage = layout.pipeline - 1 if stage is None else stage
    chunks = layout.stages(shape.num_layers)[stage :: layout.pipeline]
    layers, first, last = sum(map(len, chunks)), stage == 0, stage == layout.pipeline - 1
    tokens = plan.batch * shape.max_context_width / context
    hidden = tokens * shape.hidden_width * width
    found: list[Traffic] = []

    def add(axis: str, kind: str, stride: int, ranks: int, count: float, each: float) -> None:  # noqa: PLR0917
        if ranks > 1 and count:
            found.append(Traffic(axis, kind, stride, ranks, count, count * each))

    # Recomputation repeats the collectives of the forward pass up to the last one, whose result no gradient needs.
    again = plan.recompute != "none"
    add("tensor", "all_gather", 1, tensor, micro * (layers * (4 + 2 * again) + first + last), hidden)
    add("tensor", "reduce_scatter", 1, tensor, micro * (layers * (4 + again) + first + last), hidden)
    add("tensor", "all_reduce", 1, tensor, micro * (2 * layers + last), shape.hidden_width * width)  # gradients of the norms
    if shape.num_experts:
        add("tensor", "all_reduce", 1, tensor, micro * layers, shape.num_experts * shape.hidden_width * width)
    if last:
        # The largest logit of each token, and the sums over the vocabulary.
        add("tensor", "all_reduce", 1, tensor, micro * -(-tokens // CHUNK), tokens / -(-tokens // CHUNK) * kept)
        add("tensor", "all_reduce", 1, tensor, micro * -(-tokens // CHUNK), 2 * tokens / -(-tokens // CHUNK) * kept)
    heads, keys = shape.num_heads / tensor, max(shape.num_key_value_heads / tensor, context)
    one = tokens * shape.head_width * width
    add("context", "all_to_all", tensor, context, micro * layers * (2 + again), one * (heads + 2 * keys))
    add("context", "all_to_all", tensor, context, micro * layers * (2 + again), one * heads)
    if shape.num_experts:
        add("context", "all_reduce", tensor, context, micro * layers * (1 + again), plan.batch * shape.num_experts * kept)
        add("expert", "all_to_all", tensor, expert, micro * layers * (1 + again), 8 * shape.num_experts)
        add("expert", "all_to_all", tensor, expert, micro * layers * (4 + 2 * again), hidden / tensor * shape.experts_per_token)
    block, ends = weights(shape, layout)
    table = ends if shape.tied or layout.pipeline > 1 else ends / 2
    ends = table * (1 if shape.tied else first + last)
    experts = 3 * shape.hidden_width * shape.intermediate_size * shape.num_experts / expert if expert > 1 else 0.0
    if layout.ddp:
        size = kept * (layers * block + ends)
        buckets = 1 + -(-max(0.0, size - DDP_FIRST) // DDP_BUCKET)
        add("shard", "all_reduce", tensor, shard, buckets, size / buckets)
    # A pipeline gathers once a step. Otherwise both passes of each micro-batch gather a block, but embedding and head only once.
    twice, once = (1, 1) if layout.pipeline > 1 else (2 * micro, micro)
    units = [(layers, twice, block - experts, tensor, shard), (int(first or last), once, ends, tensor, shard)]
    if expert > 1:
        units.append((layers, twice, experts, tensor * expert, shard // expert))
    for number, gathers, parameters, stride, ranks in [] if layout.ddp else units:
        add("shard", "all_gather", stride, ranks, number * gathers, width * parameters)
        add("shard", "reduce_scatter", stride, ranks, number, kept * parameters)
        add("replicate", "all_reduce", tensor * shard, layout.replicate, number, kept * parameters / ranks)
    sends = sum(not (last and chunk == layout.chunks - 1) for chunk in range(layout.chunks))
    sends += sum(not (first and chunk == 0) for chunk in range(layout.chunks))
    for size in (hidden / tensor, *((kept,) if shape.num_experts else ())):  # with experts their balance, too
        add("pipeline", "send", tensor * shard * layout.replicate, layout.pipeline, micro * sends, size)
    return found
