# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The layers of a block: linear, norm, embedding, attention with the rotary embedding, and the dense feed-forward layer.

Under tensor parallelism the ranks divide the tokens between the layers (sequence parallel). Attention and feed-forward layers gather the
tokens, work on their heads and columns, and divide the tokens again while they add up. Under context parallelism a rank has a piece of each
sample. For attention the ranks exchange tokens for heads: each has some heads of all tokens, so all have the same work, and attention is
causal as on one rank, without a mask in memory.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.comm import Group, Groups, exchange, gather, local, rank_and_size, scatter_sum, sum_gradient
from trainer.loss import wide
from trainer.models import Shape


def rope_tables(shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Cosine and sine by position, each (max_context_width, head_width)."""
    exponents = torch.arange(0, shape.head_width, 2, device=device, dtype=dtype) / shape.head_width
    turns = shape.rope_theta**-exponents
    if shape.rope_factor != 1:
        # Llama 3.1 divides slow rotations by the factor, keeps fast ones and blends those between.
        cycles = shape.rope_original * turns / (2 * math.pi)
        blend = ((cycles - shape.rope_low) / (shape.rope_high - shape.rope_low)).clamp(0, 1)
        turns = turns * blend + turns / shape.rope_factor * (1 - blend)
    positions = torch.arange(shape.max_context_width, device=device, dtype=dtype)
    angles = torch.outer(positions, turns).repeat(1, 2)
    return angles.cos(), angles.sin()


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        half, exact = x.shape[-1] // 2, wide(x)
        turned = exact * cos
        turned[..., :half].addcmul_(exact[..., half:], sin[..., :half], value=-1)
        turned[..., half:].addcmul_(exact[..., :half], sin[..., half:])
        return turned.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(gradient, cos, -sin), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, heads, tokens, head_width) rotated by its position, computed in at least float32. Nothing of x is kept for the backward
    pass, which turns the gradient back."""
    # A compiler fuses the plain formula by itself, and that of torch 2.11 takes wrong gradients from the other one.
    if torch.compiler.is_compiling():
        left, right = wide(x).chunk(2, dim=-1)
        return (wide(x) * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)
    result: Tensor = _Rotation.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return result


class _Normed(torch.autograd.Function):
    """RMSNorm for CPUs, for which torch has no kernel of its own: it would make twice as many passes over x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / x.shape[-1] + eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, weight, scale)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, weight, scale = ctx.saved_tensors
        by_weight = gradient * normed
        along = (by_weight @ weight).unsqueeze(-1) / len(weight)
        return (gradient * weight).addcmul_(normed, along, value=-1).mul_(scale), by_weight.flatten(0, -2).sum(0), None


def attend(q: Tensor, k: Tensor, v: Tensor, group: Group) -> Tensor:
    """Causal attention of q, k and v (batch, heads, tokens, head_width), of which each rank of `group` has a piece of the tokens."""
    ranks = rank_and_size(group)[1]
    if ranks > 1:
        # With fewer key heads than ranks, several ranks need the same one.
        k, v = (x.repeat_interleave(max(1, ranks // x.shape[1]), dim=1) for x in (k, v))
        heads = [x.unflatten(1, (ranks, -1)).movedim(1, 0) for x in (q, k, v)]
        whole = exchange(torch.cat(heads, dim=2), group).movedim(0, 2).flatten(2, 3)
        q, k, v = whole.split([x.shape[2] for x in heads], dim=1)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if ranks > 1:
        mixed = exchange(mixed.unflatten(2, (ranks, -1)).movedim(2, 0), group).movedim(0, 1).flatten(1, 2)
    return mixed


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x times the transpose of weight, in the type of x. Without FSDP nothing has cast the weight before."""
    return F.linear(x, weight.to(x.dtype))


class Linear(nn.Linear):
    """A linear layer without bias. `product` computes x times the weight; fp8.py replaces it."""

    product: Callable[[Tensor, Tensor], Tensor] = staticmethod(linear)

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, local(self.weight))


class Norm(nn.Module):
    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.hidden_width))
        self.eps = shape.norm_eps
        self.group = groups.tensor

    def forward(self, x: Tensor) -> Tensor:
        weight = sum_gradient(local(self.weight, x), self.group)
        if x.is_cuda or x.itemsize < 4 or torch.compiler.is_compiling():
            return F.rms_norm(x, x.shape[-1:], weight, self.eps)
        result: Tensor = _Normed.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return result


class Embedding(nn.Embedding):
    """Under tensor parallelism each rank has a part of the vocabulary, and its output is its part of the tokens."""

    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__(shape.vocab_size, shape.hidden_width)
        self.group = groups.tensor

    def forward(self, tokens: Tensor) -> Tensor:
        weight = local(self.weight)
        if self.group is None:
            return F.embedding(tokens, weight)
        row = tokens - rank_and_size(self.group)[0] * len(weight)
        mine = (row >= 0) & (row < len(weight))
        return scatter_sum(F.embedding(row.clamp(0, len(weight) - 1), weight) * mine.unsqueeze(-1), 1, self.group)


class Attention(nn.Module):
    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.groups = groups
        key_value_width = shape.num_key_value_heads * shape.head_width
        self.q_proj = Linear(shape.hidden_width, shape.hidden_width)
        self.k_proj = Linear(shape.hidden_width, key_value_width)
        self.v_proj = Linear(shape.hidden_width, key_value_width)
        self.o_proj = Linear(shape.hidden_width, shape.hidden_width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = gather(x, 1, self.groups.tensor)
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = attend(q, k, v, self.groups.context)
        return scatter_sum(self.o_proj(mixed.transpose(1, 2).flatten(-2)), 1, self.groups.tensor)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.group = groups.tensor
        self.gate_proj = Linear(shape.hidden_width, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_width, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_width)

    def forward(self, x: Tensor) -> Tensor:
        x = gather(x, 1, self.group)
        return scatter_sum(self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)), 1, self.group)
