# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The collectives inside a model, each with its gradient. A group of None is a single rank and nothing happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Group: TypeAlias = dist.ProcessGroup | None

# torch 2.15 has renamed them.
all_gather = getattr(funcol, "all_gather_single_autograd", None) or funcol.all_gather_tensor_autograd
reduce_scatter = getattr(funcol, "reduce_scatter_single_autograd", None) or funcol.reduce_scatter_tensor_autograd


def local(weight: nn.Parameter | Tensor) -> Tensor:
    """This rank's part of a weight; its gradient is whole for that part."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """The parts of all ranks in a row; the gradients of all ranks are added up and divided again."""
    return x if group is None else funcol.wait_tensor(all_gather(x.contiguous(), dim, group))


def scatter_sum(x: Tensor, dim: int, group: Group) -> Tensor:
    """The sum over the ranks, of which each keeps its part; the gradient is gathered."""
    return x if group is None else funcol.wait_tensor(reduce_scatter(x.contiguous(), "sum", dim, group))


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return funcol.wait_tensor(funcol.all_reduce(gradient.contiguous(), "sum", ctx.group)), None


def sum_gradient(x: Tensor, group: Group) -> Tensor:
    """x itself; its gradient is summed over the ranks. For weights that every rank has whole and uses on its part of the tokens."""
    result: Tensor = x if group is None else _SumGradient.apply(x, group)  # type: ignore[no-untyped-call]
    return result


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, out: list[int], into: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = (into, out), group
        result = x.new_empty(sum(out), *x.shape[1:])
        dist.all_to_all_single(result, x.contiguous(), out, into, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _AllToAll.apply(gradient, *ctx.sizes, ctx.group), None, None, None  # type: ignore[no-untyped-call]


def all_to_all(x: Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Rows of x to the other ranks: `sent[r]` to rank r in order, `received[r]` from it."""
    result: Tensor = _AllToAll.apply(x, list(received), list(sent), group)  # type: ignore[no-untyped-call]
    return result
