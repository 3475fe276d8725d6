# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The model: a Llama with the parameter names and the half-split rotary embedding of the Hugging Face checkpoints."""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models import Shape

NORM_EPS = 1e-5


def rope_tables(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine by position, each (max_context_width, head_width), float32."""
    exponents = torch.arange(0, shape.head_width, 2, device=device, dtype=torch.float32) / shape.head_width
    positions = torch.arange(shape.max_context_width, device=device, dtype=torch.float32)
    angles = torch.outer(positions, shape.rope_theta**-exponents).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (batch, heads, tokens, head_width) turned by its position; computed in float32."""
    left, right = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        key_value_width = shape.num_key_value_heads * shape.head_width
        self.q_proj = nn.Linear(shape.hidden_width, shape.hidden_width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_width, key_value_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_width, key_value_width, bias=False)
        self.o_proj = nn.Linear(shape.hidden_width, shape.hidden_width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_width, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_width, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_width, NORM_EPS)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_width, NORM_EPS)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_width, NORM_EPS)


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden_width, shape.vocab_size, bias=False)
        self.rope: tuple[Tensor, Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, tokens, vocab_size) of the token ids (batch, tokens)."""
        # Not a buffer: a buffer of a model that is built without storage would come up empty.
        if self.rope is None:
            self.rope = rope_tables(self.shape, tokens.device)
        cos, sin = (table[: tokens.shape[1]] for table in self.rope)
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x, cos, sin)
        return self.lm_head(self.model.norm(x))


def summed_loss(model: nn.Module, samples: Tensor) -> Tensor:
    """Cross entropy in nats, summed over all tokens of samples (batch, context + 1)."""
    logits = model(samples[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), samples[:, 1:].flatten(), reduction="sum")


def initial_value(name: str, size: torch.Size, seed: int, std: float) -> Tensor:
    """The first value of one parameter: a function of the seed and its name, whatever the number of ranks."""
    if len(size) == 1:
        return torch.ones(size)
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big", signed=True)
    return torch.empty(size).normal_(0, std, generator=torch.Generator().manual_seed(number))
