# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer estimate`: its flags, and the answer as text or JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cli import POSITIVE, Parser, UsageError, number
from trainer.config import ADAMW, LAYOUTS, MOMENTS, OFFLOAD, RECOMPUTE
from trainer.devices import GIB, Machine, machine_of
from trainer.estimate.search import STEP_TOKENS, best
from trainer.models import PRESETS, ROPE_THETA, shape_of


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
        description="Memory, speed, hours and money of a run. It chooses layout flags that are not given. Exit code 1: it does not fit.",
    )
    made.add_argument("--instance_type", required=True, help="such as p5.48xlarge or ml.g4dn.12xlarge")
    made.add_argument("--nodes", type=POSITIVE, default=1, help="instances")
    made.add_argument("--model", default="reference", choices=sorted(PRESETS), help="preset that fills the shape flags that are not given")
    made.add_argument("--model_type", choices=sorted(ROPE_THETA), help="as in train")
    for name in SHAPE:
        made.add_argument(f"--{name}", type=POSITIVE, help="instead of the preset's")
    for name, choices in CHOICES.items():
        made.add_argument(f"--{name}", choices=choices, help="as in train")
    for name in DEGREES:
        made.add_argument(f"--{name}", type=POSITIVE, help="as in train")
    made.add_argument("--precision", choices=("float8",), help="compute products in 8 bits, on devices that can")
    made.add_argument("--step_tokens", type=POSITIVE, default=STEP_TOKENS, help="tokens of a step, which decide the accumulation")
    made.add_argument("--tokens", type=number(float, 1), help="tokens to train on, such as 15e9, for hours and money")
    made.add_argument("--max_steps", type=POSITIVE, help="steps to train, for hours and money")
    made.add_argument("--prices", type=Path, help='JSON file of dollars an hour by instance type, such as {"p5.48xlarge": 55.04}')
    made.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return made


SHAPE = ("hidden_width", "num_layers", "num_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "max_context_width")
CHOICES = {"sharding_strategy": LAYOUTS, "activation_checkpointing": RECOMPUTE, "adamw": ADAMW, "moments": MOMENTS, "offload": OFFLOAD}
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
    shape = shape_of(asked.model, asked.model_type, {name: getattr(asked, name) for name in SHAPE})
    if asked.tokens and asked.max_steps:
        raise UsageError("--tokens and --max_steps both set the length of the run: give one of them")
    price = prices_of(asked.prices, machine) if asked.prices else None
    wanted = {name: getattr(asked, name) for name in (*DEGREES, *CHOICES)}
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
    """The answer as text."""
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
        lines.append(f"Speed: n/a, because nobody published a run of such a model on {answer['device']} in {answer['dtype']}")
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
