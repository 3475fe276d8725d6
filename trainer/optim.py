# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AdamW, its learning rate by step and the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Fused AdamW over the (already sharded) parameters; norms are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of step `step`, counted from 1: a linear rise over the warm-up, then the decay from lr to min_lr."""
    decay_steps = config.lr_decay_iters or config.max_steps
    warmup = round(config.warmup * decay_steps)
    if step <= warmup:
        return config.lr * step / warmup
    progress = min(1.0, (step - warmup) / max(1, decay_steps - warmup))
    share = {"constant": 1.0, "linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2}[config.lr_decay_style]
    return config.min_lr + (config.lr - config.min_lr) * share


def clip(parameters: Iterable[nn.Parameter], limit: float) -> torch.Tensor:
    """Scale the gradients down to the norm `limit`; the norm over all ranks before that, a scalar tensor."""
    norm = nn.utils.clip_grad_norm_(parameters, limit)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
