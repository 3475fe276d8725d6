# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Cross entropy of the head's logits in chunks, so that the logits of a whole batch never exist at once.

With Llama 3's vocabulary the logits of one sample of 8192 tokens take 3.9 GiB in float32. Each chunk computes its gradient with its
loss, so only the gradients of the two inputs are kept for the backward pass, and no product is computed twice.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.comm import Group

IGNORED = -100  # a label that does not count, as in torch and in transformers
CHUNK = 4096  # tokens


def wide(x: Tensor) -> Tensor:
    """x in the type of the sums: at least float32, and float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def chunk_loss(logits: Tensor, labels: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """(summed loss, its gradient by the logits) of logits (tokens, part of the vocabulary). The ranks of `group` have one part each."""
    counts = labels != IGNORED
    size = logits.shape[1]
    column = labels - (dist.get_rank(group) * size if group else 0)
    mine = counts & (column >= 0) & (column < size)
    column = column.clamp(0, size - 1).unsqueeze(1)
    highest = logits.amax(1, keepdim=True)
    if group:
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    logits = logits - highest
    wanted = torch.where(mine, logits.gather(1, column).squeeze(1), 0.0)
    exp = logits.exp_()
    total = exp.sum(1)
    if group:
        both = torch.stack([total, wanted])
        dist.all_reduce(both, group=group)
        total, wanted = both[0], both[1]
    loss = torch.where(counts, total.log() - wanted, 0.0).sum()
    gradient = exp.div_(total.unsqueeze(1))
    gradient.scatter_add_(1, column, -mine.to(gradient.dtype).unsqueeze(1))
    return loss, gradient.mul_(counts.unsqueeze(1))


def plain_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As chunk_loss on one rank, for a compiler: it reads the logits a few times and writes nothing but the gradient, in their type."""
    column = labels.unsqueeze(1)
    counts = column != IGNORED
    exact = wide(logits)
    total = exact.logsumexp(1, keepdim=True)
    loss = torch.where(counts, total - exact.gather(1, column.clamp(min=0)), 0.0).sum()
    wanted = torch.arange(logits.shape[1], device=logits.device) == column
    return loss, torch.where(counts, (exact - total).exp() - wanted.to(exact.dtype), 0.0).to(logits.dtype)


@functools.cache
def fused_loss() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return torch.compile(plain_loss, fullgraph=True)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, group: Group, training: bool, fused: bool
    ) -> Tensor:
        loss = wide(x).new_zeros(())
        by_x = torch.empty_like(x) if training else None
        by_weight = wide(weight).new_zeros(weight.shape) if training else None
        narrow = weight.to(x.dtype)
        for start in range(0, len(x), CHUNK):
            part = slice(start, start + CHUNK)
            logits = x[part] @ narrow.t()
            one, gradient = fused_loss()(logits, labels[part]) if fused else chunk_loss(wide(logits), labels[part], group)
            loss += one
            if by_x is not None and by_weight is not None:
                gradient = gradient.to(x.dtype)
                by_x[part] = gradient @ narrow
                by_weight += gradient.t() @ x[part]
        if by_x is not None and by_weight is not None:
            ctx.save_for_backward(by_x, by_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_weight = ctx.saved_tensors
        return by_x * scale.to(by_x.dtype), by_weight * scale.to(by_weight.dtype), None, None, None, None


def summed_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor, group: Group = None, fused: bool = False) -> Tensor:
    """Cross entropy in nats of x (tokens, width) times a head's `weight` (vocabulary, width), summed over the tokens whose label counts.

    Each rank of `group` has a part of the vocabulary. Every rank gets the whole loss, and its own summand of the gradient by x.
    With `fused` a compiler makes one kernel of the passes over the logits, if `group` is one rank.
    """
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, labels, group, torch.is_grad_enabled(), fused and not group)  # type: ignore[no-untyped-call]
    return loss
