# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The model: a Llama with the parameter names and the half-split rotary embedding of the Hugging Face checkpoints.

A module holds the whole model or one part of a pipeline. Under tensor parallelism the tokens between the layers are divided among the ranks
(sequence parallel); attention and feed-forward layers gather them, work on their heads and columns, and add up as they divide again. Under
context parallelism a rank has two pieces of each sample, one from the front and one from the back, so that all have the same work.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.comm import Group, gather, local, scatter_sum, sum_gradient
from trainer.loss import summed_cross_entropy, wide
from trainer.models import Shape


@dataclass(frozen=True)
class Groups:
    """The ranks that one part of the model talks to; None where it is alone."""

    tensor: Group = None
    context: Group = None
    expert: Group = None


def rank_and_size(group: Group) -> tuple[int, int]:
    return (dist.get_rank(group), dist.get_world_size(group)) if group else (0, 1)


def rope_tables(shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Cosine and sine by position, each (max_context_width, head_width)."""
    exponents = torch.arange(0, shape.head_width, 2, device=device, dtype=dtype) / shape.head_width
    turns = shape.rope_theta**-exponents
    if shape.rope_factor != 1:
        # Llama 3.1: slow rotations are slowed further by the factor, fast ones stay, and those between are blended.
        cycles = shape.rope_original * turns / (2 * math.pi)
        blend = ((cycles - shape.rope_low) / (shape.rope_high - shape.rope_low)).clamp(0, 1)
        turns = turns * blend + turns / shape.rope_factor * (1 - blend)
    positions = torch.arange(shape.max_context_width, device=device, dtype=dtype)
    angles = torch.outer(positions, turns).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, heads, tokens, head_width) turned by its position; computed in at least float32."""
    left, right = wide(x).chunk(2, dim=-1)
    return (wide(x) * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


def context_pieces(length: int, rank: int, ranks: int) -> list[slice]:
    """The tokens of a sample that a rank of a context group has."""
    if ranks == 1:
        return [slice(0, length)]
    size = length // (2 * ranks)
    return [slice(piece * size, (piece + 1) * size) for piece in (rank, 2 * ranks - 1 - rank)]


def in_order(x: Tensor, ranks: int) -> Tensor:
    """The gathered pieces of all ranks of a context group as they stand in the sample; tokens are dimension 2."""
    pieces = x.chunk(2 * ranks, dim=2)
    return torch.cat([pieces[2 * index] for index in range(ranks)] + [pieces[2 * index + 1] for index in reversed(range(ranks))], dim=2)


def attend_pieces(q: Tensor, k: Tensor, v: Tensor, group: Group) -> Tensor:
    """Causal attention of this rank's two pieces to all tokens before them. Keys and values are gathered: they are few."""
    rank, ranks = rank_and_size(group)
    k, v = (in_order(gather(x, 2, group), ranks) for x in (k, v))
    mixed = []
    for piece, own in zip(context_pieces(k.shape[2], rank, ranks), q.chunk(2, dim=2), strict=True):
        seen = torch.ones(own.shape[2], piece.stop, dtype=torch.bool, device=q.device).tril(piece.start)
        past = (x[:, :, : piece.stop] for x in (k, v))
        mixed.append(F.scaled_dot_product_attention(own, *past, attn_mask=seen, enable_gqa=True))
    return torch.cat(mixed, dim=2)


class Linear(nn.Linear):
    """No bias. `product` computes x times the weight; float8 puts its own in that place."""

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
    """Under tensor parallelism each rank has a part of the vocabulary and leaves with its part of the tokens."""

    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__(shape.vocab_size, shape.hidden_width)
        self.group = groups.tensor

    def forward(self, tokens: Tensor) -> Tensor:
        weight = local(self.weight)
        if self.group is None:
            return F.embedding(tokens, weight)
        place = tokens - rank_and_size(self.group)[0] * len(weight)
        mine = (place >= 0) & (place < len(weight))
        return scatter_sum(F.embedding(place.clamp(0, len(weight) - 1), weight) * mine.unsqueeze(-1), 1, self.group)


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


# What selective recomputation keeps: attention, which is dear, and every second matrix product.
ATTENTION = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
)

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default)


def keep_half() -> Any:
    """The two contexts of a selective recomputation, one for the first pass and one for the second."""
    products = {False: 0, True: 0}

    def policy(context: Any, op: Any, *_args: Any, **_options: Any) -> CheckpointPolicy:
        if op in PRODUCTS:
            products[context.is_recompute] += 1
            return CheckpointPolicy.PREFER_RECOMPUTE if products[context.is_recompute] % 2 else CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_SAVE if op in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Block(nn.Module):
    """`recompute` says what the backward pass makes again: none, selective or full."""

    def __init__(self, shape: Shape, groups: Groups) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape, groups)
        self.self_attn = Attention(shape, groups)
        self.post_attention_layernorm = Norm(shape, groups)
        if shape.num_experts:
            from trainer.moe import Experts

            self.mlp: nn.Module = Experts(shape, groups)
        else:
            self.mlp = FeedForward(shape, groups)
        self.recompute = "none"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """The tokens after this block; with experts a pair of them and the balance loss."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self.work(x, cos, sin)
        more: dict[str, Any] = {"context_fn": keep_half} if self.recompute == "selective" else {}
        return checkpoint(self.work, x, cos, sin, use_reentrant=False, preserve_rng_state=False, **more)

    def work(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        made = self.mlp(self.post_attention_layernorm(x))
        return (x + made[0], made[1]) if isinstance(made, tuple) else x + made


class Decoder(nn.Module):
    def __init__(self, shape: Shape, groups: Groups, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        if first or (last and shape.tied):
            self.embed_tokens = Embedding(shape, groups)
        # Names, not a list: a part of a pipeline calls its blocks as the whole model does.
        self.layers = nn.ModuleDict({str(index): Block(shape, groups) for index in layers})
        if last:
            self.norm = Norm(shape, groups)


class Llama(nn.Module):
    """The whole model, or its blocks `layers` with the embedding where it is the first part and the head where it is the last."""

    def __init__(
        self, shape: Shape, groups: Groups | None = None, layers: range | None = None, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.shape = shape
        self.groups = groups or Groups()
        self.first = first
        self.last = last
        self.model = Decoder(shape, self.groups, range(shape.num_layers) if layers is None else layers, first, last)
        if last and not shape.tied:
            self.lm_head = Linear(shape.hidden_width, shape.vocab_size)
        self.rope: tuple[Tensor, Tensor] | None = None

    def tables(self, length: int, device: torch.device) -> list[Tensor]:
        """The rotary tables of this rank's tokens in a sample of `length`."""
        # Not a buffer: a buffer of a model that is built without storage would come up empty.
        if self.rope is None:
            dtype = torch.float64 if next(self.parameters()).dtype == torch.float64 else torch.float32
            self.rope = rope_tables(self.shape, device, dtype)
        pieces = context_pieces(length, *rank_and_size(self.groups.context))
        return [table[:length] if len(pieces) == 1 else torch.cat([table[piece] for piece in pieces]) for table in self.rope]

    def forward(self, x: Tensor, balance: Tensor | None = None, labels: Tensor | None = None) -> Any:
        """Of the first part's tokens (batch, tokens) or the output of the part before it.

        The last part gives the logits, or with `labels` (loss, balance): the summed cross entropy and what uneven use of the experts adds.
        Other parts give what the next one takes: the tokens' vectors, with experts followed by the balance.
        """
        tensor = rank_and_size(self.groups.tensor)[1]
        length = x.shape[1] * rank_and_size(self.groups.context)[1] * (1 if self.first else tensor)
        cos, sin = self.tables(length, x.device)
        if self.first:
            x = self.model.embed_tokens(x)
        for block in self.model.layers.values():
            x = block(x, cos, sin)
            if self.shape.num_experts:
                x, more = x
                balance = more if balance is None else balance + more
        if not self.last:
            return (x, balance) if self.shape.num_experts else x
        x = gather(self.model.norm(x), 1, self.groups.tensor)
        head = local((self.model.embed_tokens if self.shape.tied else self.lm_head).weight)
        if labels is None:
            return gather(F.linear(x, head), 2, self.groups.tensor)
        loss = summed_cross_entropy(x.flatten(0, 1), head, labels.flatten(), self.groups.tensor)
        return torch.stack([loss, loss.new_zeros(()) if balance is None else balance.sum()])


def initial_value(name: str, size: torch.Size, seed: int, std: float) -> Tensor:
    """The first value of one parameter: a function of the seed and its name, whatever the layout."""
    if len(size) == 1:
        return torch.ones(size)
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big", signed=True)
    return torch.empty(size).normal_(0, std, generator=torch.Generator().manual_seed(number))
