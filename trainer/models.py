# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Shapes of models, and how many parameters and operations they have. Without torch."""

from dataclasses import dataclass, fields
from typing import Any

from trainer.cli import UsageError

# Base of the rotary embedding by --model_type, as the official configurations have it.
ROPE_THETA = {"llama_v2": 10_000.0, "llama_v3": 500_000.0, "mistral": 1_000_000.0, "mixtral": 1_000_000.0}


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama family: grouped-query attention, SwiGLU, RMSNorm. Widths and counts as in the flags of the same names."""

    hidden_width: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_context_width: int  # tokens in a sample
    rope_theta: float
    context_limit: int = 0  # the longest sample of the model; 0 for the user's own shape
    tied: bool = False  # the head is the embedding
    norm_eps: float = 1e-5
    rope_factor: float = 1.0  # Llama 3.1's stretching of the slow rotations; 1 is none
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_original: int = 8192
    num_experts: int = 0  # 0 is a dense feed-forward layer
    experts_per_token: int = 2
    aux_loss: float = 0.02  # weight of the experts' balance in the loss

    def __post_init__(self) -> None:
        if self.hidden_width % (2 * self.num_heads):
            raise UsageError(f"hidden_width {self.hidden_width} is not an even multiple of num_heads {self.num_heads}: change one of them")
        if self.num_heads % self.num_key_value_heads:
            raise UsageError(
                f"num_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_key_value_heads}: change one of them"
            )
        if 0 < self.context_limit < self.max_context_width:
            raise UsageError(
                f"--max_context_width {self.max_context_width} is above the {self.context_limit} tokens that "
                "the model is made for: lower it"
            )

    @property
    def head_width(self) -> int:
        return self.hidden_width // self.num_heads

    def block_parameters(self, experts: int) -> int:
        """Trained values of one block, counting `experts` experts; a dense block ignores that number."""
        attention = 2 * self.hidden_width * (self.hidden_width + self.num_key_value_heads * self.head_width)
        expert = 3 * self.hidden_width * self.intermediate_size
        feed_forward = experts * expert + self.num_experts * self.hidden_width if self.num_experts else expert
        return attention + feed_forward + 2 * self.hidden_width

    def _count(self, experts: int) -> int:
        ends = (1 if self.tied else 2) * self.vocab_size * self.hidden_width
        return self.num_layers * self.block_parameters(experts) + ends + self.hidden_width

    def parameters(self) -> int:
        """Number of trained values, embedding and head included."""
        return self._count(self.num_experts)

    def active_parameters(self) -> int:
        """Trained values that one token uses: of the experts only those that it is sent to."""
        return self._count(self.experts_per_token)

    def flops_per_token(self, context: int | None = None, causal: bool = False) -> float:
        """Operations of a token's forward and backward pass in a sample of `context` tokens: 6 for each active weight of a matrix product
        (with the head, without the embedding), and 12 · layers · width · context for attention, of which a causal mask needs half."""
        norms = (2 * self.num_layers + 1) * self.hidden_width
        products = self.active_parameters() - norms - (0 if self.tied else self.vocab_size * self.hidden_width)
        attention = 12 * self.num_layers * self.hidden_width * (context or self.max_context_width)
        return 6 * products + (attention / 2 if causal else attention)


LLAMA_3_ROPE: dict[str, Any] = {"rope_theta": 500_000.0, "rope_low": 1.0, "rope_high": 4.0, "rope_original": 8192}


def _llama_2(hidden: int, layers: int, heads: int, kv: int, inner: int) -> Shape:
    return Shape(hidden, layers, heads, kv, inner, 32_000, 4096, 10_000.0, 4096)


def _llama_3(hidden: int, layers: int, heads: int, inner: int, **more: Any) -> Shape:
    return Shape(hidden, layers, heads, 8, inner, 128_256, 8192, context_limit=131_072, **LLAMA_3_ROPE, **more)


# The published configurations. A sample is as long as in the model's first training, at most 8192; --max_context_width may be larger.
PUBLISHED: dict[str, Shape] = {
    "llama-2-7b": _llama_2(4096, 32, 32, 32, 11_008),
    "llama-2-13b": _llama_2(5120, 40, 40, 40, 13_824),
    "llama-2-70b": _llama_2(8192, 80, 64, 8, 28_672),
    "llama-3.1-8b": _llama_3(4096, 32, 32, 14_336, rope_factor=8.0),
    "llama-3.1-70b": _llama_3(8192, 80, 64, 28_672, rope_factor=8.0),
    "llama-3.2-1b": _llama_3(2048, 16, 32, 8192, rope_factor=32.0, tied=True),
    "llama-3.2-3b": _llama_3(3072, 28, 24, 8192, rope_factor=32.0, tied=True),
    "mixtral-8x7b": Shape(4096, 32, 32, 8, 14_336, 32_000, 8192, 1_000_000.0, 32_768, num_experts=8),
    "mathstral-7b": Shape(4096, 32, 32, 8, 14_336, 32_768, 8192, 1_000_000.0, 32_768),
}


def twin(shape: Shape) -> Shape:
    """The same kind of model (heads per key, tied or not, rotary scaling, experts) in a size for tests: 4 blocks of width 64."""
    return Shape(
        hidden_width=64,
        num_layers=4,
        num_heads=8,
        num_key_value_heads=8 if shape.num_heads == shape.num_key_value_heads else 2,
        intermediate_size=128,
        vocab_size=256,
        max_context_width=64,
        # The short original context makes the stretched rotations differ inside a sample.
        **{entry.name: getattr(shape, entry.name) for entry in fields(Shape) if entry.name in TWIN_KEEPS},
        rope_original=8192 if shape.rope_factor == 1 else 32,
        context_limit=128,
    )


TWIN_KEEPS = ("rope_theta", "tied", "norm_eps", "rope_factor", "rope_low", "rope_high", "num_experts", "experts_per_token", "aux_loss")

# The presets of --model. `reference` has the defaults of the AWS reference trainer; `tiny` learns in a minute on two CPU cores; NAME-tiny
# is the small twin of a published model. The first two have no rotary base of their own: --model_type decides it.
PRESETS: dict[str, Shape] = {
    "reference": Shape(768, 12, 12, 12, 11_008, 50_432, 2048, 0.0),
    "tiny": Shape(192, 4, 6, 2, 512, 256, 128, 0.0),
    **PUBLISHED,
    **{f"{name}-tiny": twin(shape) for name, shape in PUBLISHED.items()},
}


def shape_of(preset: str, model_type: str | None, given: dict[str, Any]) -> Shape:
    """The preset's shape with the `given` values that are not None; raises UsageError if they do not fit together."""
    base = PRESETS[preset]
    parts = {entry.name: getattr(base, entry.name) for entry in fields(Shape)} | {k: v for k, v in given.items() if v is not None}
    if model_type or not base.rope_theta:
        parts["rope_theta"] = ROPE_THETA[model_type or "llama_v3"]
    if model_type == "mixtral" and not parts["num_experts"]:
        parts["num_experts"] = 8
    return Shape(**parts)
