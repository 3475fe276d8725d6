# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer estimate`: memory, speed, hours and money of a training run, before anything is rented. Without torch.

Memory is counted from what the trainer keeps (float32 weights, gradients and AdamW's two moments, the gathered weights of FSDP2, the
tensors that the backward pass needs). Speed is the share of the peak that published runs reached on such a device, less the
communication that does not hide behind it; where nobody published a figure for the device the answer is n/a, never a guess.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config import POSITIVE, Parser, TrainConfig, UsageError, nearest, number
from trainer.layout import Layout, resolve
from trainer.models import PRESETS, ROPE_THETA, Shape, shape_of

GIB = 2**30
RECOMPUTE = ("none", "selective", "full")
CHUNK = 4096  # tokens that the loss takes at a time
STEP_TOKENS = 4_194_304  # of an optimizer step, where the user names none
DEVICES = json.loads((Path(__file__).parent / "devices.json").read_text())

# Share of the dense peak that large matrix products of a training step reach without recomputation: published runs with compile
# (docs/trainer.md names them). A device that is not here has no published run.
REACHED = {
    "A100": {"bf16": 0.68},
    "H100": {"bf16": 0.50, "fp8": 0.30},
    "H200": {"bf16": 0.50, "fp8": 0.345},  # bf16 as the H100, which is the same chip
    "B200": {"bf16": 0.23, "fp8": 0.145},  # cards with a power limit
}
NARROW = 300  # a model of this width reaches half of that: its products are too small to fill the device
LINK_REACHED = 0.8  # of NVLink's rate in one direction, and of the network's, in large messages
PCIE = 10e9  # bytes a second between devices of a node without NVLink
OVERLAP = 0.85  # of the computation, under which FSDP's communication hides
RESERVE, FRAGMENTED = 1.5 * GIB, 0.05  # context and NCCL's buffers; what the allocator cannot use
BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2, "float8": 2}  # of an activation; fp8 multiplies in 8 bits and keeps bf16


@dataclass(frozen=True)
class Plan:
    """A layout and what it is given: `batch` samples a data rank at once, `accumulation` times a step."""

    layout: Layout
    batch: int = 1
    accumulation: int = 1
    recompute: str = "none"

    @property
    def samples(self) -> int:
        """Samples of one optimizer step."""
        return self.layout.data_ranks * self.batch * self.accumulation

    def flags(self) -> str:
        """The flags of `train` that ask for it. The speeds are those of compiled blocks."""
        layout = self.layout
        named = {
            "sharding_strategy": "ddp" if layout.ddp else "hybrid" if layout.replicate > 1 else "full",
            "hybrid_shard_degree": layout.shard if layout.replicate > 1 else 1,
            "tensor_parallel_degree": layout.tensor,
            "pipeline_parallel_degree": layout.pipeline,
            "context_parallel_degree": layout.context,
            "expert_parallel_degree": layout.expert,
            "gradient_accumulation_steps": self.accumulation,
            "activation_checkpointing": self.recompute,
        }
        given = [
            f"--{name} {value}" for name, value in named.items() if value not in (1, "full" if name == "sharding_strategy" else "none")
        ]
        return " ".join([f"--train_batch_size {self.batch}", *given, "--compile 1"])


def usable(device_bytes: float) -> float:
    """What a run can fill of a device's memory."""
    return (device_bytes - RESERVE) * (1 - FRAGMENTED)


@dataclass(frozen=True)
class Machine:
    """One instance type of devices.json. Rates in bytes a second and floating point operations a second."""

    name: str
    device: str
    devices: int
    memory: float
    link: float
    network: float
    peak: dict[str, float]

    @property
    def usable(self) -> float:
        return usable(self.memory)

    def dtype(self, fp8: bool = False) -> str:
        """What the trainer computes in here: a device without bf16 (T4, V100) gets fp16 with loss scaling."""
        if fp8 and "fp8" not in self.peak:
            raise UsageError(f"{self.device} of {self.name} has no fp8: leave --fp8 out")
        return "fp8" if fp8 else next((dtype for dtype in ("bf16", "fp16") if dtype in self.peak), "fp32")


def machine_of(name: str) -> Machine:
    """The instance type `name`, with or without SageMaker's `ml.`; raises UsageError."""
    types = DEVICES["types"]
    bare = name.removeprefix("ml.")
    if bare not in types:
        hint = nearest(bare, types)
        raise UsageError(f"unknown instance type '{name}'{': ' + hint if hint else ''} (docs/instance_types.md lists them)")
    facts = types[bare]
    peaks = DEVICES["devices"][facts["device"]]["peak_flops"]
    return Machine(
        name=bare,
        device=facts["device"],
        devices=facts["devices"],
        memory=facts["memory_gib"] * GIB,
        link=facts["nvlink_gbytes"] * 1e9 / 2 * LINK_REACHED or PCIE,
        network=facts["network_gbits"] * 1e9 / 8 * LINK_REACHED,
        peak={dtype: value * 1e12 for dtype, value in peaks.items()},
    )


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device at the fullest moment of a step."""

    state: float  # weights, gradients, AdamW's moments, all float32
    gathered: float  # whole weights and gradients of what is at work
    activations: float
    loss: float  # logits and their gradients

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.activations + self.loss


def block_activations(shape: Shape, recompute: str, cpu: bool) -> float:
    """Elements per token that a block keeps for its backward pass."""
    hidden, narrow, inner = shape.hidden_width, shape.num_key_value_heads * shape.head_width, shape.intermediate_size
    if recompute == "full":
        return hidden
    if recompute == "selective":
        return 3 * hidden + narrow + (0 if shape.num_experts else inner)
    # Both norms' inputs and outputs, queries, attention's result; on a CPU the norms keep what they divided as well.
    attention = (8 if cpu else 6) * hidden + 2 * narrow + shape.num_heads
    # The gate, its activation, the other product and the product of both, for each expert that a token meets.
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


def memory(shape: Shape, plan: Plan, dtype: str, *, cpu: bool = False) -> Memory:
    """What the fullest rank holds. Moments compete: the loss (all activations), the last block's backward pass, and the end, when the
    gradients of embedding and head are reduced."""
    layout, width = plan.layout, BYTES[dtype]
    block, ends = weights(shape, layout)
    layers = len(max(layout.stages(shape.num_layers), key=len)) * layout.chunks
    local = layers * block + ends
    shards = 1 if layout.ddp else layout.shard
    plain = layout.ddp or (layout.world_size == 1 and width == 4)  # without FSDP2, which one rank needs for its casts alone
    rest, gradients = 12 * local / shards, 4 * local / shards
    # Between micro-batches FSDP2 keeps whole gradients in float32; a pipeline keeps whole weights too.
    held = 0.0 if plan.accumulation == 1 else 4 * local
    whole = 0.0 if plain else width * (local if layout.pipeline > 1 else ends)
    cast = width * block if width < 4 or not plain else 0.0
    # A block's whole gradients, and in float32 what is handed to the reduction; a rank alone reduces nothing.
    reduced = 0.0 if plain else width + (4 if shards > 1 or width < 4 else 0)
    copied, copied_ends = reduced * block, reduced * ends
    tokens = plan.batch * shape.max_context_width / layout.context
    in_flight = min(layout.pipeline * layout.chunks, plan.accumulation)
    one = width * tokens / layout.tensor * block_activations(shape, "none", cpu)
    kept = width * tokens / layout.tensor * block_activations(shape, plan.recompute, cpu) * layers * in_flight / layout.chunks
    again = 0.0 if plan.recompute == "none" else one
    table = shape.vocab_size / layout.tensor
    chunk = min(tokens, CHUNK)
    product = width * table * shape.hidden_width
    logits = max(8 * table * chunk, (4 + (width if width < 4 else 0)) * table * chunk + product) + 4 * table * shape.hidden_width
    outside = 3 * width * tokens * shape.hidden_width
    moments = [
        Memory(rest + held, whole + cast, kept + outside, logits),
        Memory(rest + max(held, gradients - 4 * ends / shards), whole + 2 * cast + copied + product, again or one, 0.0),
        Memory(rest + max(held, gradients), whole + copied_ends, 0.0, 0.0),
    ]
    return max(moments, key=lambda moment: moment.total)


def gather_seconds(machine: Machine, inner: int, ranks: int, size: float) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all over `ranks` ranks with stride `inner`; an all-reduce is two."""
    if ranks == 1:
        return 0.0
    nodes = max(1, inner * ranks // machine.devices)
    inside = size * (ranks - 1) / ranks / machine.link if nodes < ranks else 0.0
    # Groups side by side share the network of their nodes.
    sharing = max(1.0, machine.devices * nodes / ranks)
    between = sharing * size * (nodes - 1) / nodes / machine.network
    return max(inside, between)


def reached(machine: Machine, shape: Shape, dtype: str) -> float | None:
    """Operations a second of one device, or None where no run on it was published."""
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
    # Sequence parallelism: four collectives a block in the forward pass, four in the backward pass, two of them once more for weights.
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


@dataclass(frozen=True)
class Estimate:
    """The answer for one plan; rates are None where the device has no published run."""

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
    """Every plan for all devices that `train` would take and that has what is wanted (flag → value). Simple ones come first."""
    world = machine.devices * nodes

    def free(name: str, values: Sequence[Any]) -> Sequence[Any]:
        return [wanted[name]] if wanted.get(name) is not None else values

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
            try:
                layout = resolve(
                    shape,
                    world,
                    strategy=strategy,
                    hybrid=hybrid if strategy == "hybrid" else None,
                    tensor=tensor,
                    pipeline=pipeline,
                    context=context,
                    expert=expert,
                    micro_batches=accumulation,
                )
            except ValueError:
                continue
            yield Plan(layout, batch, accumulation, recompute)


def best(
    shape: Shape, machine: Machine, nodes: int, wanted: dict[str, Any], *, float8: bool = False, step_tokens: int = STEP_TOKENS
) -> Estimate:
    """The fastest plan that fits; where none does, the one that needs least memory. Raises UsageError where nothing divides."""
    dtype = machine.dtype(float8)
    found = [evaluate(shape, plan, machine, dtype) for plan in plans(shape, machine, nodes, wanted, step_tokens)]
    if not found:
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items() if value is not None)
        raise UsageError(f"{asked} does not divide {machine.devices * nodes} devices and this model: change one of them")
    fitting = [one for one in found if one.fits]
    if not fitting:
        return min(found, key=lambda one: one.memory.total)
    top = max(one.samples_per_s or 0.0 for one in fitting)
    # The first, so simplest, of those within 2 % of the highest speed; without speeds the first that fits.
    return next(one for one in fitting if (one.samples_per_s or 0.0) >= 0.98 * top)


def plan_of(config: TrainConfig, layout: Layout) -> Plan:
    """What a run of `train` was asked for."""
    return Plan(layout, config.train_batch_size, config.gradient_accumulation_steps, config.activation_checkpointing)


def memory_here(device: Any, sharing: int) -> float:
    """Bytes of this torch.device; of the host's free memory the share of one of its `sharing` ranks."""
    if device.type == "cuda":
        import torch

        return float(torch.cuda.get_device_properties(device).total_memory)
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024 / sharing


def advice(shape: Shape, plan: Plan, dtype: str, device_bytes: float, *, cpu: bool = False) -> str:
    """What to change after a rank ran out of memory: the first remedy that is estimated to fit."""
    need = memory(shape, plan, dtype, cpu=cpu).total
    kept = RECOMPUTE.index(plan.recompute)
    remedies: list[tuple[str, Plan]] = [
        (f"--activation_checkpointing {word}", replace(plan, recompute=word)) for word in RECOMPUTE[kept + 1 :]
    ]
    for batch in sorted({plan.batch // 2**power for power in range(1, plan.batch.bit_length())}, reverse=True):
        remedies.append((f"--activation_checkpointing full --train_batch_size {batch}", replace(plan, recompute="full", batch=batch)))
    smallest = replace(plan, recompute="full", batch=1)
    for factor in (2, 4, 8, 16, 32, 64):
        layout = replace(plan.layout, shard=plan.layout.shard * factor, ddp=False)
        remedies.append(
            (
                f"{factor} times as many ranks, --sharding_strategy full, --activation_checkpointing full and --train_batch_size 1",
                replace(smallest, layout=layout),
            )
        )
    said = f"estimated were {need / GIB:.1f} GiB of {device_bytes / GIB:.1f}"
    for words, changed in remedies:
        if (other := memory(shape, changed, dtype, cpu=cpu).total) <= usable(device_bytes) and other < 0.95 * need:
            return f"{said}; use {words} ({other / GIB:.1f} GiB)"
    return f"{said}; use a device with more memory or a smaller model"


def prices_of(path: Path, machine: Machine) -> float:
    """Dollars an hour of one instance, from the user's file {"p5.48xlarge": 55.04, …}; raises UsageError."""
    try:
        prices = json.loads(path.read_text())
        price = float(prices[machine.name] if machine.name in prices else prices[f"ml.{machine.name}"])
    except OSError as error:
        raise UsageError(f"--prices {path} cannot be read: {error.strerror}") from None
    except KeyError:
        raise UsageError(f"--prices {path} has no {machine.name}: add its dollars an hour") from None
    except (TypeError, ValueError):
        raise UsageError(f'--prices {path} is not JSON such as {{"{machine.name}": 12.5}}, dollars an hour of an instance') from None
    return price


def parser() -> Parser:
    made = Parser(
        prog="python -m trainer estimate",
        description="Memory, speed, hours and money of a run. Layout flags that are not given are chosen; exit code 1: it does not fit.",
    )
    made.add_argument("--instance_type", required=True, help="such as p5.48xlarge or ml.g4dn.12xlarge")
    made.add_argument("--nodes", type=POSITIVE, default=1, help="instances")
    made.add_argument("--model", default="reference", choices=sorted(PRESETS), help="preset that fills the shape flags that are not given")
    made.add_argument("--model_type", choices=sorted(ROPE_THETA), help="as in train")
    for name in SHAPE:
        made.add_argument(f"--{name}", type=POSITIVE, help="of the model, instead of the preset's")
    for name, choices in {"sharding_strategy": ("full", "hybrid", "ddp"), "activation_checkpointing": RECOMPUTE}.items():
        made.add_argument(f"--{name}", choices=choices, help="as in train")
    for name in DEGREES:
        made.add_argument(f"--{name}", type=POSITIVE, help="as in train")
    made.add_argument("--precision", choices=("float8",), help="products in 8 bits on devices that have them")
    made.add_argument("--step_tokens", type=POSITIVE, default=STEP_TOKENS, help="tokens of a step, from which accumulation is chosen")
    made.add_argument("--tokens", type=number(float, 1), help="tokens to train on, such as 15e9, for hours and money")
    made.add_argument("--max_steps", type=POSITIVE, help="steps to train, for hours and money")
    made.add_argument("--prices", type=Path, help='JSON file of dollars an hour by instance type, such as {"p5.48xlarge": 55.04}')
    made.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return made


SHAPE = ("hidden_width", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "max_context_width")
DEGREES = (
    "hybrid_shard_degree",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "train_batch_size",
    "gradient_accumulation_steps",
)


def main(argv: Sequence[str]) -> int:
    asked = parser().parse(argv)
    machine = machine_of(asked.instance_type)
    try:
        shape = shape_of(asked.model, asked.model_type, {name: getattr(asked, name) for name in SHAPE})
    except ValueError as error:
        raise UsageError(str(error)) from None
    if asked.tokens and asked.max_steps:
        raise UsageError("--tokens and --max_steps both say how long: give one of them")
    price = prices_of(asked.prices, machine) if asked.prices else None
    wanted = {name: getattr(asked, name) for name in (*DEGREES, "sharding_strategy", "activation_checkpointing")}
    if wanted["hybrid_shard_degree"] and wanted["sharding_strategy"] != "hybrid":
        raise UsageError("--hybrid_shard_degree needs --sharding_strategy hybrid: give both or neither")
    found = best(shape, machine, asked.nodes, wanted, float8=asked.precision == "float8", step_tokens=asked.step_tokens)
    tokens = asked.tokens or (asked.max_steps * found.plan.samples * shape.max_context_width if asked.max_steps else None)
    hours = tokens / found.tokens_per_s / 3600 if tokens and found.tokens_per_s and found.fits else None
    answer = {
        "schema": "muster.estimate/1",
        "model": "a model of this shape" if any(getattr(asked, name) for name in SHAPE[:-1]) else asked.model,
        "parameters": shape.parameters(),
        "instance_type": machine.name,
        "nodes": asked.nodes,
        "device": machine.device,
        "ranks": found.plan.layout.world_size,
        "layout": str(found.plan.layout),
        "flags": found.plan.flags(),
        "step_samples": found.plan.samples,
        "dtype": found.dtype,
        "fits": found.fits,
        "memory_gib": {name: round(value / GIB, 2) for name, value in asdict(found.memory).items()}
        | {"total": round(found.memory.total / GIB, 2)},
        "usable_gib": round(machine.usable / GIB, 2),
        "samples_per_s": found.samples_per_s,
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "tokens": tokens,
        "hours": hours,
        "dollars": hours * asked.nodes * price if hours and price is not None else None,
    }
    print(json.dumps(answer, indent=1) if asked.json else text(answer, shape.max_context_width))
    return 0 if found.fits else 1


def text(answer: dict[str, Any], context: int) -> str:
    """The answer for people."""
    memory = answer["memory_gib"]
    parts = ", ".join(f"{name} {memory[name]:.1f}" for name in ("state", "gathered", "activations", "loss"))
    verdict = "fits" if answer["fits"] else "does not fit: take more nodes or another instance type"
    lines = [
        f"{answer['model']}, {answer['parameters']:,} parameters, on {answer['nodes']} x {answer['instance_type']} "
        f"({answer['ranks']} x {answer['device']}), {answer['dtype']}",
        f"Layout: {answer['layout']}; train with {answer['flags']}",
        f"Memory of the fullest device: {memory['total']:.1f} of {answer['usable_gib']:.1f} GiB ({parts}): {verdict}",
    ]
    if not answer["fits"]:
        return "\n".join(lines)
    if answer["tokens_per_s"] is None:
        lines.append(f"Speed: n/a, because no run on {answer['device']} in {answer['dtype']} is published to go by")
        return "\n".join(lines)
    lines.append(
        f"Speed: {answer['tokens_per_s']:,.0f} tokens/s ({answer['tokens_per_s'] / answer['ranks']:,.0f} a device), "
        f"{answer['samples_per_s']:.1f} samples/s of {context} tokens, {answer['step_samples']} samples a step, "
        f"MFU {100 * answer['mfu']:.1f} % (6 N + 12 L d s, without recomputation)"
    )
    if answer["hours"] is not None:
        money = f", {answer['dollars']:,.0f} dollars" if answer["dollars"] is not None else ""
        lines.append(f"{answer['tokens']:,.0f} tokens: {answer['hours']:,.1f} hours without interruption{money}")
    return "\n".join(lines)
