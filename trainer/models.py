# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Shapes of models, and how many parameters they have."""

from __future__ import annotations

from dataclasses import dataclass

# Base of the rotary embedding by --model_type, as the official configurations have it.
ROPE_THETA = {"llama_v2": 10_000.0, "llama_v3": 500_000.0}

# What --model fills in. `reference` is the AWS reference trainer's set of defaults; `tiny` learns in a minute on two CPU cores.
PRESETS: dict[str, dict[str, int]] = {
    "reference": {
        "hidden_width": 768,
        "num_layers": 12,
        "num_heads": 12,
        "num_key_value_heads": 12,
        "intermediate_size": 11008,
        "vocab_size": 50432,
        "max_context_width": 2048,
    },
    "tiny": {
        "hidden_width": 192,
        "num_layers": 4,
        "num_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 256,
        "max_context_width": 128,
    },
}


@dataclass(frozen=True)
class Shape:
    """A Llama: untied head, grouped-query attention, SwiGLU. Widths and counts as in the flags of the same names."""

    hidden_width: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_context_width: int
    rope_theta: float

    def __post_init__(self) -> None:
        if self.hidden_width % (2 * self.num_heads):
            raise ValueError(f"hidden_width {self.hidden_width} is not an even multiple of num_heads {self.num_heads}: change one of them")
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_key_value_heads}: change one of them"
            )

    @property
    def head_width(self) -> int:
        return self.hidden_width // self.num_heads

    def parameters(self) -> int:
        """Number of trained values, embedding and head included."""
        attention = 2 * self.hidden_width * (self.hidden_width + self.num_key_value_heads * self.head_width)
        block = attention + 3 * self.hidden_width * self.intermediate_size + 2 * self.hidden_width
        return self.num_layers * block + 2 * self.vocab_size * self.hidden_width + self.hidden_width


def shape_of(preset: str, model_type: str, given: dict[str, int | None]) -> Shape:
    """The preset's shape with what is given (not None) in its place; raises ValueError where the parts do not fit."""
    parts = PRESETS[preset] | {name: value for name, value in given.items() if value is not None}
    return Shape(**parts, rope_theta=ROPE_THETA[model_type])
