# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Bytes on the fullest device, counted from what the trainer keeps, and the advice for a run that needs more than there is.

It keeps float32 weights, gradients and AdamW's two moments, the weights that FSDP2 has gathered, and the tensors of the backward pass.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config import RECOMPUTE, TrainConfig
from trainer.devices import GIB, usable
from trainer.layout import Layout
from trainer.models import Shape

OPTIMISER = ("adamw", "moments", "offload")  # flags that change the memory
CHUNK = 4096  # tokens that the loss takes at a time, as in loss.py, which needs torch
BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2, "float8": 2}  # of an activation; fp8 multiplies in 8 bits and keeps bf16


@dataclass(frozen=True)
class Plan:
    """A layout and its batches: `batch` samples a data rank at once, `accumulation` times a step."""

    layout: Layout
    batch: int = 1
    accumulation: int = 1
    recompute: str = "none"
    adamw: str = "fused"
    moments: str = "fp32"
    offload: str = "none"

    @property
    def samples(self) -> int:
        """Samples of one optimizer step."""
        return self.layout.data_ranks * self.batch * self.accumulation

    def flags(self) -> str:
        """The flags of `train` for this plan. The estimated speeds are those of compiled blocks."""
        layout = self.layout
        named = {
            "sharding_strategy": "ddp" if layout.ddp else "hybrid" if layout.replicate > 1 else "full",
            "hybrid_shard_degree": layout.shard if layout.replicate > 1 else None,
            "tensor_parallel_degree": layout.tensor,
            "pipeline_parallel_degree": layout.pipeline,
            "context_parallel_degree": layout.context,
            "expert_parallel_degree": layout.expert,
            "gradient_accumulation_steps": self.accumulation,
            "activation_checkpointing": self.recompute,
            "adamw": self.adamw,
            "moments": self.moments,
            "offload": self.offload,
        }
        given = [f"--{name} {value}" for name, value in named.items() if value != getattr(TrainConfig, name)]
        return " ".join([f"--train_batch_size {self.batch}", *given, "--compile 1"])


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device at the fullest moment of a step."""

    state: float  # weights and gradients in float32, AdamW's moments
    gathered: float  # whole weights and gradients of the block that computes, or what AdamW needs for its update
    activations: float
    loss: float  # logits and their gradients

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.activations + self.loss


def block_activations(shape: Shape, recompute: str) -> float:
    """Elements per token that a block keeps for its backward pass."""
    hidden, narrow, inner = shape.hidden_width, shape.num_key_value_heads * shape.head_width, shape.intermediate_size
    if recompute == "full":
        return hidden
    if recompute == "attention":
        return 2 * hidden + shape.num_heads
    if recompute == "selective":
        return 3 * hidden + narrow + (0 if shape.num_experts else inner)
    # Both norms' inputs and outputs, queries, attention's result.
    attention = 6 * hidden + 2 * narrow + shape.num_heads
    # The gate, its activation, the other product and the product of both, for each expert that a token is sent to.
    experts = shape.experts_per_token if shape.num_experts else 1
    return attention + experts * (4 * inner + (3 * hidden if shape.num_experts else 0))


def weights(shape: Shape, layout: Layout) -> tuple[float, float]:
    """(parameters of a block, parameters of embedding and head) on the fullest rank before FSDP divides them."""
    experts = shape.num_experts / layout.expert if shape.num_experts else 0
    block = shape.block_parameters(0) + experts * 3 * shape.hidden_width * shape.intermediate_size
    if not shape.num_experts:
        block = shape.block_parameters(1)
    table = shape.vocab_size * shape.hidden_width
    ends = table if shape.tied or layout.pipeline > 1 else 2 * table
    return block / layout.tensor, ends / layout.tensor


def held(shape: Shape, layout: Layout) -> tuple[int, float, int]:
    """(blocks, parameters) of the fullest rank before FSDP divides them, and by how many ranks it does."""
    block, ends = weights(shape, layout)
    layers = len(max(layout.stages(shape.num_layers), key=len)) * layout.chunks
    return layers, layers * block + ends, 1 if layout.ddp else layout.shard


def moved(shape: Shape, plan: Plan) -> float:
    """Bytes of AdamW's moments on the fullest rank."""
    _, local, shards = held(shape, plan.layout)
    return 2 * BYTES[plan.moments] * local / shards


def memory(shape: Shape, plan: Plan, dtype: str) -> Memory:
    """The bytes of the fullest rank at the largest of four times: the loss (all activations are there), the backward pass of the last
    block, the end of that pass, when the gradients of embedding and head are reduced, and the update."""
    layout, width = plan.layout, BYTES[dtype]
    block, ends = weights(shape, layout)
    layers, local, shards = held(shape, layout)
    plain = layout.ddp or layout.world_size == 1  # without FSDP2: the layers cast what they use
    rest, gradients = 4 * local / shards + (moved(shape, plan) if plan.offload == "none" else 0), 4 * local / shards
    # Between micro-batches FSDP2 keeps whole float32 gradients; a pipeline keeps whole weights too.
    summed = 0.0 if plan.accumulation == 1 else 4 * local
    whole = 0.0 if plain else width * (local if layout.pipeline > 1 else ends)
    # Layers that cast keep the cast weights for the backward pass, unless it computes them again.
    cast = width * block * (layers if plain and plan.recompute == "none" else 1) if width < 4 or not plain else 0.0
    # A block's whole gradients, and their float32 copy for the reduction; a single rank reduces nothing.
    reduced = 0.0 if plain else width + (4 if shards > 1 or width < 4 else 0)
    copied, copied_ends = reduced * block, reduced * ends
    tokens = plan.batch * shape.max_context_width / layout.context
    in_flight = min(layout.pipeline * layout.chunks, plan.accumulation)
    one = width * tokens / layout.tensor * block_activations(shape, "none")
    kept = width * tokens / layout.tensor * block_activations(shape, plan.recompute) * layers * in_flight / layout.chunks
    again = 0.0 if plan.recompute == "none" else one
    table = shape.vocab_size / layout.tensor
    chunk = min(tokens, CHUNK)
    product = width * table * shape.hidden_width
    logits = max(8 * table * chunk, (4 + (width if width < 4 else 0)) * table * chunk + product) + 4 * table * shape.hidden_width
    # A pipeline also keeps the gradients that it sends.
    sent = min(layout.pipeline, plan.accumulation) * layout.chunks if layout.pipeline > 1 else 0
    outside = (3 + sent / layout.tensor) * width * tokens * shape.hidden_width
    # Moments in bf16 or in host memory are float32 on the device for one weight at a time. foreach has the roots of the second moments.
    largest = (
        max(shape.vocab_size, shape.intermediate_size * max(1, shape.num_experts)) * shape.hidden_width / layout.tensor / layout.expert
    )
    update = (8 * largest if plan.offload != "none" or plan.moments != "fp32" else 4 * local * (plan.adamw == "foreach")) / shards
    times = [
        Memory(rest + summed, whole + cast, kept + outside, logits),
        Memory(rest + max(summed, gradients - 4 * ends / shards), whole + 2 * cast + copied + product, again or one, 0.0),
        Memory(rest + max(summed, gradients), whole + copied_ends, 0.0, 0.0),
        Memory(rest + gradients, update, 0.0, 0.0),
    ]
    return max(times, key=lambda time: time.total)


def plan_of(config: TrainConfig, layout: Layout) -> Plan:
    """The plan of a run of `train`."""
    optimiser = {name: getattr(config, name) for name in OPTIMISER}
    return Plan(layout, config.train_batch_size, config.gradient_accumulation_steps, config.activation_checkpointing, **optimiser)


def memory_here(device: Any, sharing: int) -> float:
    """Bytes of this torch.device; on a CPU one rank's share of the host's free memory, which `sharing` ranks divide."""
    if device.type == "cuda":
        import torch

        return float(torch.cuda.get_device_properties(device).total_memory)
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024 / sharing


def advice(shape: Shape, plan: Plan, dtype: str, device_bytes: float) -> str:
    """The first remedy that is estimated to fit after a rank ran out of memory."""
    need = memory(shape, plan, dtype).total
    kept = RECOMPUTE.index(plan.recompute)
    remedies: list[tuple[str, Plan]] = [
        (f"--activation_checkpointing {word}", replace(plan, recompute=word)) for word in RECOMPUTE[kept + 1 :]
    ]
    for batch in sorted({plan.batch // 2**power for power in range(1, plan.batch.bit_length())}, reverse=True):
        remedies.append((f"--activation_checkpointing full --train_batch_size {batch}", replace(plan, recompute="full", batch=batch)))
    smallest = replace(plan, recompute="full", batch=1)
    least = "--activation_checkpointing full --train_batch_size 1"
    remedies += [(f"{least} --moments bf16", replace(smallest, moments="bf16"))]
    remedies += [(f"{least} --offload optimizer", replace(smallest, offload="optimizer"))]
    for factor in (2, 4, 8, 16, 32, 64):
        layout = replace(plan.layout, shard=plan.layout.shard * factor, ddp=False)
        remedies += [(f"{factor} times as many ranks, --sharding_strategy full {least}", replace(smallest, layout=layout))]
    said = f"the estimate is {need / GIB:.1f} GiB of {device_bytes / GIB:.1f}"
    for words, changed in remedies:
        if (other := memory(shape, changed, dtype).total) <= usable(device_bytes) and other < 0.95 * need:
            return f"{said}; use {words} ({other / GIB:.1f} GiB)"
    return f"{said}; use a device with more memory or a smaller model"
