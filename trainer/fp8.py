# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Products in float8 with one scale a tensor, computed anew each time: e4m3 for tokens and weights, e5m2 for gradients.

Only the inputs of the tensor cores are float8; weights and sums keep their type. Head, embedding, router and experts stay in bf16.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trainer.layers import Linear, linear

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def to_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x in float8, its scale): x is divided by the scale, so that its largest value becomes the largest of the type."""
    scale = (x.abs().amax().float() / torch.finfo(dtype).max).clamp(min=1e-12)
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def product(a: Tensor, b: Tensor, scales: tuple[Tensor, Tensor], dtype: torch.dtype, fast: bool) -> Tensor:
    """a (m, k) times the transpose of b (n, k)."""
    if a.is_cuda:
        result: Tensor = torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=dtype, use_fast_accum=fast)
        return result
    return ((a.float() @ b.float().t()) * (scales[0] * scales[1])).to(dtype)  # for tests; nobody trains so on a CPU


class _Float8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (x8, by_x), (weight8, by_weight) = to_float8(x, E4M3), to_float8(weight, E4M3)
        ctx.save_for_backward(x8, by_x, weight8, by_weight)
        ctx.dtypes = x.dtype, weight.dtype
        return product(x8, weight8, (by_x, by_weight), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x8, by_x, weight8, by_weight = ctx.saved_tensors
        g8, by_g = to_float8(gradient, E5M2)
        # The second factor must be stored by columns.
        x = product(g8, weight8.t().contiguous(), (by_g, by_weight), ctx.dtypes[0], fast=False)
        weight = product(g8.t().contiguous(), x8.t().contiguous(), (by_g, by_x), ctx.dtypes[1], fast=False)
        return x, weight


def float8_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x times the transpose of weight, in float8 if the tensor cores accept the sizes."""
    rows = x.flatten(0, -2)
    if any(size % 16 for size in (*rows.shape, *weight.shape)):
        return linear(x, weight)
    result: Tensor = _Float8.apply(rows, weight)  # type: ignore[no-untyped-call]
    return result.unflatten(0, x.shape[:-1])


def use_float8(block: nn.Module) -> None:
    """Make the linear layers of a block compute in float8."""
    for name, module in block.named_modules():
        if isinstance(module, Linear) and not name.endswith("mlp.gate"):
            module.product = float8_linear
