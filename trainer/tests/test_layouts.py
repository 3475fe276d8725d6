# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Every layout trains the same: 20 steps of each on gloo against one rank, in float64 and float32. Each has the collectives that `estimate`
counts with.

The ranks of one world size start once and run all its layouts, one after the other.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from trainer.tests.ranks import NO_TORCH, PATIENCE, Job, start

pytest.importorskip("torch", reason=NO_TORCH)

import torch
import torch._dynamo
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from trainer import loss, optim
from trainer.config import TrainConfig
from trainer.estimate.memory import plan_of
from trainer.estimate.traffic import traffic
from trainer.launch import join, read_ranks
from trainer.layout import layout_of
from trainer.llama import Block
from trainer.models import shape_of
from trainer.parallel.build import build

STEPS = 20
SAMPLES = 8  # in a step, over all ranks
CONTEXT = 16
LIMITS = {"fp64": 1e-10, "fp32": 1e-5}
DENSE, TIED, SPARSE = "llama-3.1-8b-tiny", "llama-3.2-1b-tiny", "mixtral-8x7b-tiny"
TP, PP, CP, EP = (f"{name}_parallel_degree" for name in ("tensor", "pipeline", "context", "expert"))
ACCUMULATE, HYBRID = "gradient_accumulation_steps", {"sharding_strategy": "hybrid", "hybrid_shard_degree": 2}
INTERLEAVED = {"pipeline_schedule": "interleaved", "num_layers": 4}

# World size → its layouts, each a model and the flags that differ from the defaults. Two blocks, unless the layout needs four.
LAYOUTS: dict[int, dict[str, tuple[str, dict[str, Any]]]] = {
    1: {
        "accumulated": (DENSE, {ACCUMULATE: 4}),
        "full recomputation": (DENSE, {"activation_checkpointing": "full"}),
        "attention kept": (DENSE, {"activation_checkpointing": "attention"}),
        "selective, compiled": (DENSE, {"activation_checkpointing": "selective", "compile": 1}),
        "Mixtral compiled": (SPARSE, {"compile": 1}),
    },
    2: {
        "FSDP 2": (DENSE, {ACCUMULATE: 2, "activation_checkpointing": "selective", "offload": "optimizer"}),
        "DDP 2": (DENSE, {"sharding_strategy": "ddp", ACCUMULATE: 2, "adamw": "foreach"}),
        "TP 2": (TIED, {TP: 2, "activation_checkpointing": "selective"}),
        "TP 2 compiled": (DENSE, {TP: 2, "compile": 1}),
        "CP 2": (DENSE, {CP: 2}),
        "CP 2 compiled": (DENSE, {CP: 2, "compile": 1}),
        "PP 2": (DENSE, {PP: 2, ACCUMULATE: 4}),
        "PP 2 interleaved": (DENSE, {PP: 2, ACCUMULATE: 4, **INTERLEAVED}),
        "EP 2": (SPARSE, {EP: 2}),
        "EP 2 compiled": (SPARSE, {EP: 2, "compile": 1}),
        "Mixtral TP 2": (SPARSE, {TP: 2}),
        "Mixtral CP 2": (SPARSE, {CP: 2, "activation_checkpointing": "full"}),
        "Mixtral PP 2": (SPARSE, {PP: 2, ACCUMULATE: 2}),
    },
    4: {
        "HSDP 2 x 2": (TIED, {**HYBRID, ACCUMULATE: 2}),
        "FSDP 2 x TP 2": (DENSE, {TP: 2}),
        "TP 2 x CP 2": (DENSE, {TP: 2, CP: 2}),
        "DDP 2 x CP 2": (DENSE, {CP: 2, "sharding_strategy": "ddp"}),
        "FSDP 2 x PP 2 interleaved": (DENSE, {PP: 2, ACCUMULATE: 4, **INTERLEAVED}),
        "TP 2 x PP 2": (DENSE, {PP: 2, TP: 2, ACCUMULATE: 2, "activation_checkpointing": "full"}),
        "PP 4": (DENSE, {PP: 4, ACCUMULATE: 4, "num_layers": 4}),
        "FSDP 2 x EP 2": (SPARSE, {EP: 2}),
        "HSDP 2 x EP 2": (SPARSE, {EP: 2, **HYBRID}),
        "EP 2 x CP 2": (SPARSE, {EP: 2, CP: 2}),
    },
}
# To save time, only these layouts of four ranks also run in float32, and no compiled one does.
SINGLE = ("HSDP 2 x 2", "FSDP 2 x TP 2", "FSDP 2 x EP 2")
CASES = [
    (name, precision)
    for size, cases in LAYOUTS.items()
    for name, (_, more) in cases.items()
    for precision in LIMITS
    if precision == "fp64" or name in SINGLE or (size < 4 and "compile" not in more)
]


def reference(model: str, more: dict[str, Any]) -> str:
    """The name of the run on one rank that a layout is compared with."""
    return f"one {model}, {more.get('num_layers', 2)} blocks"


def trajectory(model: str, more: dict[str, Any], precision: str) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of 20 steps with this layout, on all ranks of the job."""
    more = {"num_layers": 2, **more}
    shape = shape_of(model, None, {"max_context_width": CONTEXT, "num_layers": more["num_layers"]})
    config = TrainConfig(model=model, precision=precision, lr=1e-3, max_steps=STEPS, initializer_range=0.1, **more)
    data_ranks = layout_of(config, shape, dist.get_world_size()).data_ranks
    share = SAMPLES // data_ranks
    config = replace(config, train_batch_size=share // config.gradient_accumulation_steps)
    engine = build(shape, config, torch.device("cpu"))
    optimizer = optim.AdamW(engine.model, config)
    losses, norms = [], []
    for step in range(STEPS):
        whole = torch.randint(0, 256, (SAMPLES, CONTEXT + 1), generator=torch.Generator().manual_seed(step % 4))
        loss = engine.forward_backward(whole[engine.data_rank * share :][:share])
        norms.append(engine.clip(1.0).item())
        dist.all_reduce(loss)
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


KINDS = {"allgather_base": "all_gather", "reduce_scatter_base": "reduce_scatter", "allreduce": "all_reduce", "alltoall_base": "all_to_all"}
KINDS |= {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all"}


class Counting(TorchDispatchMode):
    """Counts the collectives inside: (kind, stride, ranks) → [number, bytes]."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1].strip("_")
        if func.namespace in ("c10d", "_c10d_functional") and name not in ("wait_tensor", "wrap_tensor_autograd", "recv"):
            group = next(
                dist.distributed_c10d._resolve_process_group(arg) if isinstance(arg, str) else dist.ProcessGroup.unbox(arg)
                for arg in args
                if isinstance(arg, torch._C.ScriptObject) or (isinstance(arg, str) and arg not in ("sum", "max"))
            )
            ranks = dist.get_process_group_ranks(group)
            tensors = [
                x for arg in [*args, result] for x in (arg if isinstance(arg, list | tuple) else [arg]) if isinstance(x, torch.Tensor)
            ]
            kind = KINDS.get(name, name)
            sent = args[1] if name == "alltoall_base" else args[0]
            size = max(x.nbytes for x in tensors) if kind != "all_to_all" else sent.nbytes
            entry = self.found.setdefault(f"{kind} of {len(ranks)} ranks {ranks[1] - ranks[0]} apart", [0, 0])
            entry[0] += 1
            entry[1] += size
        return result


def collectives(model: str, more: dict[str, Any]) -> list[dict[str, list[float]]]:
    """The counted collectives of a step in bf16 over all ranks, and the estimated ones. DDP casts only on GPUs, so it has float32 here."""
    more = {"num_layers": 2, **more, "compile": 0}
    shape = shape_of(model, None, {"max_context_width": CONTEXT, "num_layers": more["num_layers"]})
    precision = "fp32" if more.get("sharding_strategy") == "ddp" else "bf16"
    config = TrainConfig(model=model, precision=precision, **more)
    layout = layout_of(config, shape, dist.get_world_size())
    share = SAMPLES // layout.data_ranks
    config = replace(config, train_batch_size=share // config.gradient_accumulation_steps)
    engine = build(shape, config, torch.device("cpu"))
    with Counting() as counting:
        engine.forward_backward(torch.randint(0, 256, (share, CONTEXT + 1)))
    estimated: dict[str, list[float]] = {}
    for one in traffic(shape, plan_of(config, layout), precision, layout.pipeline_rank(dist.get_rank())):
        entry = estimated.setdefault(f"{one.kind} of {one.ranks} ranks {one.stride} apart", [0, 0])
        entry[0] += one.count
        entry[1] += one.size
    totals: list[dict[str, list[float]]] = [{}, {}]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (counting.found, estimated))
    for both in everyone:
        for total, found in zip(totals, both, strict=True):
            for name, values in found.items():
                total[name] = [a + b for a, b in zip(total.get(name, [0, 0]), values, strict=True)]
    return totals


def run(argv: Sequence[str]) -> int:
    """Run the named layouts, JSON of name: (model, flags, precisions); rank 0 prints each one's trajectory."""
    ranks = read_ranks(os.environ)
    # Compile without generating code, which takes half a minute a block.
    Block.compile = lambda self, **options: torch.nn.Module.compile(self, backend="aot_eager", **options)  # type: ignore[method-assign]
    loss.fused_loss = lambda: torch.compile(loss.plain_loss, backend="aot_eager", fullgraph=True)  # type: ignore[assignment]
    # Each step sends other numbers of tokens to an expert, which must compile nothing again.
    torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit = 2, True
    join(ranks, "gloo", PATIENCE)
    for name, (model, more, precisions) in json.loads(argv[0]).items():
        if ranks.world_size > 1:
            counted = collectives(model, more)
            if ranks.rank == 0:
                print(json.dumps({f"{name} collectives": counted}), flush=True)
        for precision in precisions:
            torch._dynamo.reset()
            made = trajectory(model, more, precision)
            if ranks.rank == 0:
                print(json.dumps({f"{name} {precision}": made}), flush=True)
    dist.barrier()
    return 0


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Job]]:
    """The ranks of each world size at work on the layouts that are asked for."""
    chosen = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    wanted = [(spec.params["name"], spec.params.get("precision")) for spec in chosen if spec]
    asked: dict[int, dict[str, Any]] = {}
    for size, cases in LAYOUTS.items():
        for name, (model, more) in cases.items():
            if any(other == name for other, _ in wanted):
                precisions = [precision for precision in LIMITS if (name, precision) in wanted]
                asked.setdefault(size, {})[name] = (model, more, precisions)
                one = {"num_layers": more.get("num_layers", 2)}
                asked.setdefault(1, {})[reference(model, more)] = (model, one, list(LIMITS))
    started = {
        size: start(size, tmp_path_factory.mktemp(f"ranks-{size}"), f"{__name__}:run", [json.dumps(cases)]) for size, cases in asked.items()
    }
    yield started
    for job in started.values():
        for process in job.processes:
            process.kill()


@pytest.fixture(scope="module")
def found(jobs: dict[int, Job]) -> dict[str, tuple[list[float], list[float]]]:
    result: dict[str, tuple[list[float], list[float]]] = {}
    for size, job in jobs.items():
        assert job.end(2 * PATIENCE) == [0] * size, "\n".join(job.output(rank)[-3000:] for rank in range(size))
        for line in job.output().splitlines():
            if line.startswith("{"):
                result |= json.loads(line)
    return result


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_a_layout_trains_as_one_rank_does(found: dict[str, tuple[list[float], list[float]]], name: str, precision: str) -> None:
    model, more = next(cases[name] for cases in LAYOUTS.values() if name in cases)
    (losses, norms), (one, one_norms) = found[f"{name} {precision}"], found[f"{reference(model, more)} {precision}"]
    assert one[-1] < one[0] - 0.5, "nothing was learned, so nothing is compared"
    assert losses == pytest.approx(one, rel=LIMITS[precision])
    assert norms == pytest.approx(one_norms, rel=100 * LIMITS[precision])


@pytest.mark.parametrize("name", [name for size, cases in LAYOUTS.items() if size > 1 for name in cases])
def test_the_collectives_of_a_step_are_the_estimated_ones(found: dict[str, Any], name: str) -> None:
    """Also: a pipeline gathers its weights once a step and not for each micro-batch."""
    counted, estimated = found[f"{name} collectives"]
    assert {key: count for key, (count, _) in counted.items()} == {key: count for key, (count, _) in estimated.items()}
    for key, (_, size) in counted.items():
        assert estimated[key][1] == pytest.approx(size, rel=0.1), key
