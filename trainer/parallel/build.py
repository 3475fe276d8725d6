# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Builds the model over all ranks.

A pipeline splits the model by blocks, and tensor and expert parallelism divide single weights. Then recomputation and compilation are set
for each block, and FSDP2 or DDP is put around the model. Every rank draws or reads its own part of each first weight, so no rank sends any.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from trainer.comm import Groups
from trainer.config import LayoutFlags, TrainConfig
from trainer.fp8 import use_float8
from trainer.initial import initial_value
from trainer.layout import Layout, layout_of
from trainer.llama import Block, Llama
from trainer.models import Shape
from trainer.parallel.engine import Engine, sync
from trainer.parallel.pipeline import Pipeline, link
from trainer.parallel.precision import COMPUTE, LossScale, precision_of

# End of a weight's name → the dimension that tensor ranks divide. Each rank has the other weights whole.
TENSOR_DIMS = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"), 0)
TENSOR_DIMS |= dict.fromkeys(("o_proj", "down_proj"), 1)

Source = Callable[[str, torch.Size], Tensor]


def tensor_dim(name: str, dimensions: int) -> int | None:
    """The dimension of the weight `name` that tensor parallelism divides, or None. Stacked experts have a dimension more."""
    dim = TENSOR_DIMS.get(name.removesuffix(".weight").rsplit(".", 1)[-1])
    return dim if dim is None or dimensions == 2 else dim + 1


def make_meshes(layout: Layout, device: torch.device) -> dict[str, DeviceMesh]:
    """The mesh `ranks`; `experts` and `context` are the same ranks with the shard dimension divided once more."""

    def mesh(**shard: int) -> DeviceMesh:
        sizes = {"pipeline": layout.pipeline, "replicate": layout.replicate, **shard, "tensor": layout.tensor}
        return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    meshes = {"ranks": mesh(shard=layout.shard)}
    if layout.expert > 1:
        meshes["experts"] = mesh(shard=layout.shard // layout.expert, expert=layout.expert)
    if layout.context > 1:
        meshes["context"] = mesh(data=layout.shard // layout.context, context=layout.context)
    return meshes


def divide(module: nn.Module, dims: dict[str, int], mesh: DeviceMesh) -> None:
    """Make DTensors over `mesh` of the weights of `module`: divided by the dimension in `dims`, or whole. They have no storage yet."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for name, parameter in list(module.named_parameters()):
        owner, _, last = name.rpartition(".")
        dim = dims.get(name)
        part = parameter.data if dim is None else parameter.data.chunk(ranks, dim)[rank].contiguous()
        placement = Replicate() if dim is None else Shard(dim)
        setattr(module.get_submodule(owner), last, nn.Parameter(DTensor.from_local(part, mesh, [placement], run_check=False)))


def divide_model(model: Llama, layout: Layout, meshes: dict[str, DeviceMesh]) -> dict[str, int]:
    """Apply tensor or expert parallelism; the dimension that it divides, by parameter."""
    taken: dict[str, int] = {}
    if layout.tensor > 1:
        named = ((name, tensor_dim(name, parameter.dim())) for name, parameter in model.named_parameters())
        taken = {name: dim for name, dim in named if dim is not None}
        divide(model, taken, meshes["ranks"]["tensor"])
    if layout.expert > 1:
        for prefix, block in model.model.layers.items():
            experts = block.get_submodule("mlp.experts")
            stacked = {name: 0 for name, _ in experts.named_parameters()}
            divide(experts, stacked, meshes["experts"]["expert"])
            taken |= {f"model.layers.{prefix}.mlp.experts.{name}": 0 for name in stacked}
    return taken


def shard_dim(size: torch.Size, taken: int | None, ranks: int) -> int:
    """The dimension that FSDP divides: neither a divided one nor that of the experts, and one that `ranks` divides evenly if possible."""
    wanted = [dim for dim in ((1, 2) if len(size) == 3 else range(len(size))) if dim != taken]
    return next((dim for dim in wanted if size[dim] % ranks == 0), 0)


@dataclass(frozen=True)
class Part:
    """This rank's part of a weight: cut by each (dimension, rank, ranks) in order. `copies` is how many ranks have the same part."""

    cuts: list[tuple[int, int, int]]
    copies: int

    def spans(self, size: torch.Size) -> list[range]:
        """The places of this part in each dimension of a weight of `size`."""
        found = [range(length) for length in size]
        for dim, rank, ranks in self.cuts:
            step = -(-len(found[dim]) // ranks)
            found[dim] = found[dim][rank * step : (rank + 1) * step]
        return found


def parts_of(model: Llama, layout: Layout, meshes: dict[str, DeviceMesh], taken: dict[str, int]) -> dict[str, Part]:
    """This rank's part of every weight of a model that is divided but not sharded yet."""
    found = {}
    for name, parameter in model.named_parameters():
        expert = layout.expert > 1 and ".experts." in name
        cuts = []
        if name in taken:
            axis = meshes["experts"]["expert"] if expert else meshes["ranks"]["tensor"]
            cuts.append((taken[name], axis.get_local_rank(), axis.size()))
        if not layout.ddp:
            axis = meshes["experts"]["shard"] if expert else meshes["ranks"]["shard"]
            size = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
            cuts.append((shard_dim(size, taken.get(name), axis.size()), axis.get_local_rank(), axis.size()))
        whole = 1 if name in taken else layout.tensor
        found[name] = Part(cuts, whole * layout.replicate * (layout.shard if layout.ddp else 1))
    return found


def build(shape: Shape, config: TrainConfig, device: torch.device, source: Source | None = None, *, empty: bool = False) -> Engine:
    """The model over all ranks of the process group. Its first weights come from `source`, or are drawn by name; with `empty` they are
    left to a checkpoint. Raises UsageError."""
    layout = layout_of(config, shape, dist.get_world_size())
    precision, remark = precision_of(config, device)
    compute = COMPUTE[precision]
    kept = torch.float64 if compute == torch.float64 else torch.float32
    meshes = make_meshes(layout, device)
    ranks = meshes["ranks"]
    groups = Groups(
        tensor=ranks["tensor"].get_group() if layout.tensor > 1 else None,
        context=meshes["context"]["context"].get_group() if layout.context > 1 else None,
        expert=meshes["experts"]["expert"].get_group() if layout.expert > 1 else None,
    )
    stages = layout.stages(shape.num_layers)
    models: list[Llama] = []
    wrapped: list[nn.Module] = []
    copies: dict[str, int] = {}
    for chunk in range(layout.chunks):
        index = layout.pipeline * chunk + layout.pipeline_rank(dist.get_rank())
        with torch.device("meta"):
            model = Llama(shape, groups, stages[index], index == 0, index == len(stages) - 1).to(kept)
        parts = parts_of(model, layout, meshes, divide_model(model, layout, meshes))
        prepare(model, config, precision)
        # On a single rank FSDP2 would only copy each weight. Without it the layers cast what they use.
        if layout.ddp or layout.world_size == 1:
            model.compute = compute
        else:
            dims = {id(parameter): parts[name].cuts[-1][0] for name, parameter in model.named_parameters()}
            shard(model, layout, meshes, compute if compute != kept else None, dims)
        model.to_empty(device=device)
        if not empty:
            fill(model, parts, source, config.seed, config.initializer_range)
        models.append(model)
        options = {"gradient_as_bucket_view": True, "init_sync": False}
        wrapped.append(DistributedDataParallel(model, process_group=ranks["shard"].get_group(), **options) if layout.ddp else model)
        copies |= {name: part.copies for name, part in parts.items()}
    pipeline = None
    if layout.pipeline > 1:
        columns = ranks.mesh.reshape(layout.pipeline, -1).t().tolist()
        length = shape.max_context_width // layout.context // layout.tensor

        def carried(samples: int) -> tuple[Tensor, ...]:
            x = torch.empty(samples, length, shape.hidden_width, dtype=compute, device=device)
            return (x, torch.empty(1, dtype=kept, device=device)) if shape.num_experts else (x,)

        pipeline = Pipeline(wrapped, link(columns, layout.chunks), carried, partial(sync, whole=True))
    return Engine(
        config=config,
        layout=layout,
        device=device,
        precision=precision,
        remark=remark,
        parts=wrapped,
        model=joined(models),
        context_group=groups.context,
        pipeline=pipeline,
        copies=copies,
        scale=LossScale(65536.0) if precision == "fp16" else None,
    )


def prepare(model: Llama, config: LayoutFlags, precision: str) -> None:
    """Set up the blocks before they are sharded: float8, recomputation, and then compilation."""
    for block in model.model.layers.values():
        assert isinstance(block, Block)
        block.recompute = config.activation_checkpointing
        if precision == "float8":
            use_float8(block)
        if config.compile:
            # A mixture reads how many rows an expert has, which breaks the graph.
            block.compile(fullgraph=not model.shape.num_experts)
    model.fused = bool(config.compile)


def shard(model: Llama, layout: Layout, meshes: dict[str, DeviceMesh], compute: torch.dtype | None, dims: dict[int, int]) -> None:
    """Put FSDP2 around each block and the model. Weights and optimizer keep their type; `compute` is the type of the products."""
    names = ("replicate", "shard") if layout.replicate > 1 else ("shard",)
    # Do not cast inputs: the rotary tables and the experts' balance must stay float32.
    policy = MixedPrecisionPolicy(compute, torch.float32 if compute else None, cast_forward_inputs=False)

    def placement(parameter: nn.Parameter) -> Shard:
        return Shard(dims[id(parameter)])

    # A pipeline uses its blocks again for the next micro-batch, so it keeps their whole weights.
    options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": layout.pipeline == 1, "shard_placement_fn": placement}
    for block in model.model.layers.values():
        if layout.expert > 1:
            fully_shard(block.get_submodule("mlp.experts"), mesh=meshes["experts"][names], **options)
        fully_shard(block, mesh=meshes["ranks"][names], **options)
    # The backward pass begins with the remaining weights, so they stay gathered.
    fully_shard(model, mesh=meshes["ranks"][names], **options | {"reshard_after_forward": False})
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by the tokens of all ranks, so gradients are summed; gloo cannot divide inside the sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def fill(model: nn.Module, parts: dict[str, Part], source: Source | None, seed: int, std: float) -> None:
    """Give this rank's part of each weight its first value: that of `source`, which knows the whole weights, or a drawn one."""
    for name, parameter in model.named_parameters():
        target = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
        spans = parts[name].spans(parameter.shape)
        if source:
            target.copy_(source(name, parameter.shape)[tuple(slice(span.start, span.stop) for span in spans)])
        else:
            target.copy_(initial_value(name, parameter.shape, spans, seed=seed, std=std, device=target.device))


def joined(models: list[Llama]) -> nn.Module:
    """One module with all parts of this rank."""
    if len(models) == 1:
        return models[0]
    whole, whole.model = nn.Module(), nn.Module()
    whole.model.layers = nn.ModuleDict({name: block for model in models for name, block in model.model.layers.items()})
    for model in models:
        for name in ("embed_tokens", "norm"):
            if hasattr(model.model, name):
                setattr(whole.model, name, getattr(model.model, name))
        if hasattr(model, "lm_head"):
            whole.lm_head = model.lm_head
    return whole
