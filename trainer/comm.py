# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The collectives inside a model, each with its gradient. A group of None is a single rank, for which they do nothing."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

Group: TypeAlias = dist.ProcessGroup | None
Made = TypeVar("Made")


@dataclass(frozen=True)
class Groups:
    """The ranks that one part of the model talks to, or None for a single rank."""

    tensor: Group = None
    context: Group = None
    expert: Group = None


def rank_and_size(group: Group) -> tuple[int, int]:
    return (dist.get_rank(group), dist.get_world_size(group)) if group else (0, 1)


# torch 2.15 renamed them.
all_gather = getattr(funcol, "all_gather_single_autograd", None) or funcol.all_gather_tensor_autograd
reduce_scatter = getattr(funcol, "reduce_scatter_single_autograd", None) or funcol.reduce_scatter_tensor_autograd


def local(weight: nn.Parameter | Tensor, like: Tensor | None = None) -> Tensor:
    """This rank's part of a weight, in the type of `like`; its gradient is whole for that part."""
    part = weight.to_local() if isinstance(weight, DTensor) else weight
    return part if like is None else part.to(like.dtype)


def wait_for_all(device: torch.device) -> None:
    """Return when all ranks have called this."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


@functools.cache
def on_cpu(mesh: DeviceMesh) -> DeviceMesh:
    """The same ranks and groups for tensors in host memory."""
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return DeviceMesh.from_group(groups, "cpu", mesh=mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)


def in_host(part: Tensor, like: DTensor) -> DTensor:
    """`part`, which lies in host memory, as this rank's part of a tensor like `like`. On the mesh of `like` it would move to its device."""
    mesh = on_cpu(like.device_mesh)
    return DTensor.from_local(part, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """The parts of all ranks in a row. Backward adds up the gradients of all ranks and divides them again."""
    return x if group is None else funcol.wait_tensor(all_gather(x.contiguous(), dim, group))


def scatter_sum(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's part of the sum over the ranks. Backward gathers the gradient."""
    return x if group is None else funcol.wait_tensor(reduce_scatter(x.contiguous(), "sum", dim, group))


def exchange(x: Tensor, group: Group, received: list[int] | None = None, sent: list[int] | None = None) -> Tensor:
    """`sent[r]` rows of x go to rank r in order, and `received[r]` rows of the result come from it; equal parts if not given.
    Backward sends the gradients back."""
    return x if group is None else funcol.wait_tensor(funcol.all_to_all_single_autograd(x.contiguous(), received, sent, group))


def total(x: Tensor, group: Group) -> Tensor:
    """The sum of all ranks' x, which needs no gradient."""
    return x if group is None else funcol.wait_tensor(funcol.all_reduce(x.contiguous(), "sum", group))


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return total(gradient, ctx.group), None


def sum_gradient(x: Tensor, group: Group) -> Tensor:
    """x itself; backward sums its gradient over the ranks. For weights that every rank has whole and uses on its part of the tokens."""
    result: Tensor = x if group is None else _SumGradient.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def told_by_all(mine: Any, group: Group = None) -> list[Any]:
    """What each rank tells the others, in their order."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def first_does(work: Callable[[], Made], group: Group = None) -> Made:
    """Rank 0 does `work` while the others wait. Every rank gets its result, or raises its error."""
    made: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            made[0] = work()
        except Exception as error:
            made[1] = error
    dist.broadcast_object_list(made, src=0, group=group)
    if made[1] is not None:
        raise made[1]
    result: Made = made[0]
    return result
