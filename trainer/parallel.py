# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The model over all ranks: who has which part of it, and one step of it, whatever the layout.

A pipeline splits the model by blocks, tensor and expert parallelism divide single weights, then each block is set to recompute and is
compiled, and FSDP2 or DDP is put around. Every rank draws each weight whole and keeps its part: all layouts start equal, nothing is sent.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from trainer.config import TrainConfig, UsageError
from trainer.fp8 import use_float8
from trainer.layout import Layout, resolve
from trainer.llama import Block, Groups, Llama, context_pieces, initial_value
from trainer.loss import IGNORED
from trainer.models import Shape
from trainer.pipeline import Pipeline, link

# On which dimension tensor ranks divide a weight, by the end of its name; the others are whole on each. Three dimensions: experts.
TENSOR_DIMS = {
    "q_proj": 0,
    "k_proj": 0,
    "v_proj": 0,
    "o_proj": 1,
    "gate_proj": 0,
    "up_proj": 0,
    "down_proj": 1,
    "embed_tokens": 0,
    "lm_head": 0,
}

Source = Callable[[str, torch.Size], Tensor]


def tensor_dim(name: str, dimensions: int) -> int | None:
    """The dimension that tensor parallelism divides of the weight `name`, or None."""
    dim = TENSOR_DIMS.get(name.removesuffix(".weight").rsplit(".", 1)[-1])
    return dim if dim is None or dimensions == 2 else dim + 1


def layout_of(config: TrainConfig, shape: Shape, world_size: int, env: Mapping[str, str] = os.environ) -> Layout:
    """The layout that the flags ask for; raises UsageError where it does not fit."""
    hybrid = config.hybrid_shard_degree
    if config.sharding_strategy == "hybrid" and hybrid is None:
        per_host = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or 0)
        hybrid = per_host // (config.tensor_parallel_degree * config.pipeline_parallel_degree) or per_host
    try:
        return resolve(
            shape,
            world_size,
            strategy=config.sharding_strategy,
            hybrid=hybrid,
            tensor=config.tensor_parallel_degree,
            pipeline=config.pipeline_parallel_degree,
            schedule=config.pipeline_schedule,
            context=config.context_parallel_degree,
            expert=config.expert_parallel_degree,
            micro_batches=config.gradient_accumulation_steps,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def precision_of(config: TrainConfig, device: torch.device) -> tuple[str, str]:
    """(what the products are computed in, why, where the machine decided it); raises UsageError for what it cannot do."""
    name = config.precision or {None: None, 0: "fp32", 1: "bf16"}[config.bf16]
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if name is None:
        if device.type != "cuda":
            return "fp32", ""
        if capability >= (8, 0):
            return "bf16", ""
        # Tensor cores for fp16 came with 7.0. Older cards and these have no bf16.
        name = "fp16" if capability >= (7, 0) else "fp32"
        scaled = " with loss scaling" if name == "fp16" else ""
        return name, f"{torch.cuda.get_device_name(device)} has no bf16, so {name}{scaled} is used"
    if name == "float8" and capability < (8, 9):
        raise UsageError("--precision float8 needs a GPU of compute capability 8.9 or later (L4, L40S, H100, H200, B200): use bf16")
    if name == "bf16" and device.type == "cuda" and capability < (8, 0):
        raise UsageError(f"{torch.cuda.get_device_name(device)} has no bf16: use --precision fp16 or leave it out")
    return name, ""


COMPUTE = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "float8": torch.bfloat16}


@dataclass
class LossScale:
    """fp16's: it makes gradients larger, so that small ones do not vanish. It halves with an overflow and doubles after good steps."""

    value: float = 1.0
    patience: int = 2000
    good: int = 0

    def update(self, finite: bool) -> None:
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value = max(1.0, self.value / 2)
        elif self.good >= self.patience:
            self.value, self.good = self.value * 2, 0


@dataclass
class Engine:
    """A model over the ranks of the job. Every rank makes the same calls in the same order."""

    shape: Shape
    config: TrainConfig
    layout: Layout
    device: torch.device
    precision: str
    remark: str
    parts: list[nn.Module]
    model: nn.Module  # all parts of this rank under the names of the whole model, for checkpoints
    meshes: dict[str, DeviceMesh]
    context_group: dist.ProcessGroup | None
    pipeline: Pipeline | None
    copies: dict[str, int]  # how many ranks have the same part of a parameter
    scale: LossScale | None = None
    skipped: int = 0
    weights: Tensor | None = None  # of the gradients' norms in the whole norm: parts that several ranks have count once

    @property
    def data_rank(self) -> int:
        return self.layout.data_rank(dist.get_rank())

    @property
    def data_ranks(self) -> int:
        return self.layout.data_ranks

    @property
    def samples(self) -> int:
        """Samples that this rank gives to one step."""
        return self.config.train_batch_size * self.config.gradient_accumulation_steps

    @property
    def speaks(self) -> bool:
        """Whether this rank's loss counts; others have the same one or none."""
        last = self.layout.pipeline_rank(dist.get_rank()) == self.layout.pipeline - 1
        return last and self.layout.tensor_rank(dist.get_rank()) == 0

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def _cut(self, batch: Tensor, labels: Tensor | None, micro: int) -> tuple[list[Tensor], list[Tensor]]:
        """Tokens and labels of the micro-batches, each this rank's pieces of its samples."""
        tokens, labels = (batch[:, :-1], batch[:, 1:]) if labels is None else (batch, labels)
        if self.context_group:
            pieces = context_pieces(tokens.shape[1], dist.get_rank(self.context_group), self.layout.context)
            tokens, labels = (torch.cat([x[:, piece] for piece in pieces], dim=1) for x in (tokens, labels))
        return list(tokens.split(micro)), list(labels.split(micro))

    def _around(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        stack = contextlib.ExitStack()
        stack.enter_context(sdpa_kernel(order, set_priority=True))
        if self.layout.ddp and COMPUTE[self.precision] != torch.float32:
            stack.enter_context(torch.autocast("cuda", COMPUTE[self.precision]))
        return stack

    def _counted(self, batch: Tensor, labels: Tensor | None) -> Tensor:
        """How many tokens of all ranks the loss counts, a scalar on the device."""
        if labels is None:
            return torch.full((), batch.shape[0] * (batch.shape[1] - 1) * self.data_ranks, dtype=torch.float64, device=self.device)
        counted = (labels != IGNORED).sum().double()
        dist.all_reduce(counted)
        # Ranks of one pipeline, tensor or context group have the same samples.
        return (counted / (self.layout.world_size // self.data_ranks)).clamp(min=1)

    def forward_backward(self, batch: Tensor, labels: Tensor | None = None) -> Tensor:
        """Add the gradients of one step's samples of this rank: `batch` (samples, context + 1), or tokens and `labels` of the same size
        with -100 where nothing counts. Gives this rank's share of the loss: all shares add up to the mean over all counted tokens."""
        tokens, wanted = self._cut(batch, labels, self.config.train_batch_size)
        counted = self._counted(batch, labels)
        scale = (self.scale.value if self.scale else 1.0) / counted
        with self._around():
            if self.pipeline:
                results = self.pipeline.run(tokens, wanted, scale)
            else:
                results = []
                part = self.parts[0]
                for number, (x, y) in enumerate(zip(tokens, wanted, strict=True)):
                    sync(part, number == len(tokens) - 1)
                    result = part(x, labels=y)
                    (result.sum() * scale.to(result.dtype)).backward()
                    results.append(result.detach())
        return self._share(results, counted)

    @torch.no_grad()
    def evaluate(self, batch: Tensor, labels: Tensor | None = None) -> Tensor:
        """This rank's share of the mean loss of a validation batch, as of forward_backward, without gradients."""
        tokens, wanted = self._cut(batch, labels, self.config.train_batch_size)
        with self._around():
            if self.pipeline:
                results = self.pipeline.run(tokens, wanted, None)
            else:
                results = [self.parts[0](x, labels=y) for x, y in zip(tokens, wanted, strict=True)]
        return self._share(results, self._counted(batch, labels))

    def _share(self, results: list[Tensor], counted: Tensor) -> Tensor:
        dtype = torch.float64 if self.precision == "fp64" else torch.float32
        if not self.speaks:
            return torch.zeros((), dtype=dtype, device=self.device)
        return torch.stack(results)[:, 0].sum() / counted.to(dtype)

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients down to the norm `limit`; the norm of all ranks' gradients before that."""
        found = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        gradients = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for _, gradient in found]
        if self.weights is None:
            self.weights = torch.tensor([1 / self.copies[name] for name, _ in found], dtype=torch.float64, device=self.device)
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        squares = (norms**2 * self.weights).sum()
        dist.all_reduce(squares)
        scale = self.scale.value if self.scale else 1.0
        norm = squares.sqrt() / scale
        torch._foreach_mul_(gradients, ((limit / (norm + 1e-6)).clamp(max=1.0) / scale).to(gradients[0].dtype))
        return norm

    def keeps(self, norm: float) -> bool:
        """Whether the optimizer may use the gradients whose norm `clip` gave. With fp16 an overflow is expected now and then: then not, and
        the next step is scaled less."""
        if self.scale is None:
            return True
        finite = math.isfinite(norm)
        self.scale.update(finite)
        self.skipped += not finite
        return finite


def sync(part: nn.Module, last: bool) -> None:
    """Gradients go over the ranks only with a step's last micro-batch. To be called before that one's forward pass."""
    if isinstance(part, DistributedDataParallel):
        part.require_backward_grad_sync = last
    elif isinstance(part, FSDPModule):
        part.set_requires_gradient_sync(last)
        part.set_is_last_backward(last)


def make_meshes(layout: Layout, device: torch.device) -> dict[str, DeviceMesh]:
    """`ranks` over all; `experts` the same with the shard dimension divided among the experts' ranks."""
    kind = device.type
    names = ("pipeline", "replicate", "shard", "tensor")
    meshes = {"ranks": init_device_mesh(kind, tuple(getattr(layout, name) for name in names), mesh_dim_names=names)}
    if layout.expert > 1:
        sizes = (layout.pipeline, layout.replicate, layout.shard // layout.expert, layout.expert, layout.tensor)
        meshes["experts"] = init_device_mesh(kind, sizes, mesh_dim_names=("pipeline", "replicate", "shard", "expert", "tensor"))
    if layout.context > 1:
        sizes = (layout.pipeline, layout.replicate, layout.shard // layout.context, layout.context, layout.tensor)
        meshes["context"] = init_device_mesh(kind, sizes, mesh_dim_names=("pipeline", "replicate", "data", "context", "tensor"))
    return meshes


def divide(module: nn.Module, dims: dict[str, int], mesh: DeviceMesh) -> None:
    """Make the weights that `dims` names DTensors divided over `mesh`, the others of `module` whole ones. They have no storage yet."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for name, parameter in list(module.named_parameters()):
        owner, _, last = name.rpartition(".")
        dim = dims.get(name)
        part = parameter.data if dim is None else parameter.data.chunk(ranks, dim)[rank].contiguous()
        placement = Replicate() if dim is None else Shard(dim)
        setattr(module.get_submodule(owner), last, nn.Parameter(DTensor.from_local(part, mesh, [placement], run_check=False)))


def divide_model(model: Llama, layout: Layout, meshes: dict[str, DeviceMesh]) -> dict[str, int]:
    """Tensor or expert parallelism; the dimensions that it has divided."""
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
    """The dimension that FSDP divides: not the one that is divided already, not that of the experts, and one without a rest."""
    wanted = [dim for dim in ((1, 2) if len(size) == 3 else range(len(size))) if dim != taken]
    return next((dim for dim in wanted if size[dim] % ranks == 0), 0)


@dataclass(frozen=True)
class Part:
    """What this rank has of a weight: cut by each (dimension, rank, ranks) in order. `copies` is how many ranks have the same."""

    cuts: list[tuple[int, int, int]]
    copies: int


def parts_of(model: Llama, layout: Layout, meshes: dict[str, DeviceMesh], taken: dict[str, int]) -> dict[str, Part]:
    """This rank's part of every weight of a model that is divided and not sharded yet."""
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


def build(shape: Shape, config: TrainConfig, device: torch.device, source: Source | None = None) -> Engine:
    """The model over all ranks of the process group with its first weights: `source`'s, or drawn by name. Raises UsageError."""
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
    source = source or (lambda name, size: initial_value(name, size, config.seed, config.initializer_range))
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
        # One rank has nobody to share with: there FSDP2 would only copy each weight, but it is what casts them.
        if not layout.ddp and (layout.world_size > 1 or compute != kept):
            dims = {id(parameter): parts[name].cuts[-1][0] for name, parameter in model.named_parameters()}
            shard(model, layout, meshes, compute if compute != kept else None, dims)
        model.to_empty(device=device)
        fill(model, parts, source)
        models.append(model)
        wrapped.append(replicate(model, ranks["shard"].get_group()) if layout.ddp else model)
        copies |= {name: part.copies for name, part in parts.items()}
    pipeline = None
    if layout.pipeline > 1:
        columns = ranks.mesh.reshape(layout.pipeline, -1).t().tolist()
        length = shape.max_context_width // layout.context // layout.tensor

        def carried(samples: int) -> tuple[Tensor, ...]:
            x = torch.empty(samples, length, shape.hidden_width, dtype=compute, device=device)
            return (x, torch.empty(1, dtype=kept, device=device)) if shape.num_experts else (x,)

        pipeline = Pipeline(wrapped, link(columns, layout.chunks), carried, sync)
    return Engine(
        shape=shape,
        config=config,
        layout=layout,
        device=device,
        precision=precision,
        remark=remark,
        parts=wrapped,
        model=joined(models),
        meshes=meshes,
        context_group=groups.context,
        pipeline=pipeline,
        copies=copies,
        scale=LossScale(65536.0) if precision == "fp16" else None,
    )


def prepare(model: Llama, config: TrainConfig, precision: str) -> None:
    """What goes inside the sharding: float8, recomputation, and then compilation."""
    for block in model.model.layers.values():
        assert isinstance(block, Block)
        block.recompute = config.activation_checkpointing
        if precision == "float8":
            use_float8(block)
        if config.compile:
            # A mixture asks how many rows an expert has, which breaks a graph.
            block.compile(fullgraph=not model.shape.num_experts)


def shard(model: Llama, layout: Layout, meshes: dict[str, DeviceMesh], compute: torch.dtype | None, dims: dict[int, int]) -> None:
    """FSDP2 around each block and the rest of the model. Weights and optimizer stay as they are; `compute` is what products are made in."""
    names = ("replicate", "shard") if layout.replicate > 1 else ("shard",)
    # Nothing is cast on the way in: the rotary tables and the experts' balance have to stay float32.
    policy = MixedPrecisionPolicy(compute, torch.float32 if compute else None, cast_forward_inputs=False)

    def placement(parameter: nn.Parameter) -> Shard:
        return Shard(dims[id(parameter)])

    # A pipeline comes back to its blocks with the next micro-batch, so their weights stay.
    options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": layout.pipeline == 1, "shard_placement_fn": placement}
    for block in model.model.layers.values():
        if layout.expert > 1:
            fully_shard(block.get_submodule("mlp.experts"), mesh=meshes["experts"][names], **options)
        fully_shard(block, mesh=meshes["ranks"][names], **options)
    # What is left is needed again at once by the backward pass, or at both ends of the model.
    fully_shard(model, mesh=meshes["ranks"][names], **options | {"reshard_after_forward": False})
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by the tokens of all ranks, so gradients are summed; gloo cannot divide inside the sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def replicate(model: Llama, group: dist.ProcessGroup) -> DistributedDataParallel:
    """DDP around the model, its gradients summed and not averaged."""
    made = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True, init_sync=False)

    # Without annotations: DDP refuses those that are strings, as all are in this file.
    def summed(_state, bucket):  # type: ignore[no-untyped-def]
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    made.register_comm_hook(None, summed)
    return made


@torch.no_grad()
def fill(model: nn.Module, parts: dict[str, Part], source: Source) -> None:
    """Every rank takes its part of each whole weight from `source`."""
    for name, parameter in model.named_parameters():
        value = source(name, parameter.shape)
        target = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
        for dim, rank, ranks in parts[name].cuts:
            pieces = value.chunk(ranks, dim)
            value = pieces[rank] if rank < len(pieces) else value.narrow(dim, 0, 0)
        target.copy_(value)


def joined(models: list[Llama]) -> nn.Module:
    """One module with all parts of this rank; a single part is its own."""
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
