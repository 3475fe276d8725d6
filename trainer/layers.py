# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The layers of a block: linear, norm, embedding, attention with the rotary embedding, and the dense feed-forward layer.

Under tensor parallelism the ranks divide the tokens between the layers (sequence parallel). Attention and feed-forward layers gather the
tokens, work on their heads and columns, and divide the tokens again while they add up. Under context parallelism a rank has two pieces of
each sample, one from the front and one from the back, so that all ranks have the same work.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.comm import Group, Groups, gather, local, rank_and_size, scatter_sum, sum_gradient
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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, heads, tokens, head_width) rotated by its position, computed in at least float32."""
    left, right = wide(x).chunk(2, dim=-1)
    return (wide(x) * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


def context_pieces(length: int, rank: int, ranks: int) -> list[slice]:
    """The pieces of a sample that a rank of a context group has."""
    if ranks == 1:
        return [slice(0, length)]
    size = length // (2 * ranks)
    return [slice(piece * size, (piece + 1) * size) for piece in (rank, 2 * ranks - 1 - rank)]


def in_order(x: Tensor, ranks: int) -> Tensor:
    """The gathered pieces of all ranks of a context group in the order of the sample; tokens are dimension 2."""
    pieces = x.chunk(2 * ranks, dim=2)
    return torch.cat([pieces[2 * index] for index in range(ranks)] + [pieces[2 * index + 1] for index in reversed(range(ranks))], dim=2)


def attend_pieces(q: Tensor, k: Tensor, v: Tensor, group: Group) -> Tensor:
    """Causal attention of this rank's two pieces to all tokens before them. Keys and values are small, so they are gathered."""
    rank, ranks = rank_and_size(group)
    k, v = (in_order(gather(x, 2, group), ranks) for x in (k, v))
    mixed = []
    for piece, own in zip(context_pieces(k.shape[2], rank, ranks), q.chunk(2, dim=2), strict=True):
        seen = torch.ones(own.shape[2], piece.stop, dtype=torch.bool, device=q.device).tril(piece.start)
        past = (x[:, :, : piece.stop] for x in (k, v))
        mixed.append(F.scaled_dot_product_attention(own, *past, attn_mask=seen, enable_gqa=True))
    return torch.cat(mixed, dim=2)


class Linear(nn.Linear):
    """A linear layer without bias. `product` computes x times the weight; fp8.py replaces it."""

    product: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)

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
        return F.rms_norm(x, x.shape[-1:], sum_gradient(local(self.weight), self.group), self.eps)


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
        if self.groups.context is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            mixed = attend_pieces(q, k, v, self.groups.context)
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
