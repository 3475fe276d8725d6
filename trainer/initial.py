# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The first weights. Each element depends only on the seed, the weight's name and the element's place, so every rank draws only its own
part, and all layouts and devices start with the same weights."""

import functools
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

BITS = 20  # of a drawn number: the normal numbers come from a table of as many quantiles, the same on every device
ROWS = 1 << 22  # elements at a time


@functools.cache
def quantiles(device: torch.device) -> Tensor:
    """The middles of 2**BITS equally likely parts of the normal distribution."""
    return torch.special.ndtri((torch.arange(1 << BITS, dtype=torch.float64) + 0.5) / (1 << BITS)).float().to(device)


def mixed(x: Tensor) -> Tensor:
    """The int64 counters x with all their bits mixed: the generator splitmix64."""
    x = x * (0x9E3779B97F4A7C15 - (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * (factor - (1 << 64))
    return x ^ (x >> 31 & (1 << 33) - 1)


def initial_value(name: str, size: Sequence[int], part: Sequence[range], *, seed: int, std: float, device: torch.device) -> Tensor:
    """The `part` (a range for each dimension) of the first value of a weight of `size`: ones for a norm, else normal numbers in float32."""
    if len(size) == 1:
        return torch.ones(len(part[0]), device=device)
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big", signed=True)
    along = [torch.arange(span.start, span.stop, device=device) for span in part]
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    for length, places in zip(size[:-1], along[:-1], strict=True):
        rows = (rows.unsqueeze(1) * length + places).flatten()
    result = torch.empty(len(rows), len(along[-1]), device=device)
    for first in range(0, len(rows), step := max(1, ROWS // max(1, len(along[-1])))):
        places = rows[first : first + step].unsqueeze(1) * size[-1] + along[-1]
        result[first : first + step] = quantiles(device)[mixed(places + key) >> 64 - BITS & (1 << BITS) - 1] * std
    return result.view([len(span) for span in part])
