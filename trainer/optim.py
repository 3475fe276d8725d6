# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AdamW, and its learning rate by step."""

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.config import OptimiserFlags


def adamw(model: nn.Module, config: OptimiserFlags) -> torch.optim.AdamW:
    """Fused AdamW over the (already sharded) parameters; norms are not decayed. One parameter group has tensors of one mesh only."""
    groups: dict[tuple[bool, Any], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((parameter.dim() > 1, mesh), []).append(parameter)
    settings = [{"params": members, "weight_decay": config.weight_decay * decayed} for (decayed, _), members in groups.items()]
    return torch.optim.AdamW(settings, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(config: OptimiserFlags, step: int) -> float:
    """The rate of step `step`, counted from 1: it rises linearly in the warm-up, stays for the plateau, then decays from lr to min_lr."""
    decay_steps = config.lr_decay_iters or config.max_steps
    warmup = round(config.warmup * decay_steps)
    if step <= warmup:
        return config.lr * step / warmup
    held = warmup + round(config.plateau * decay_steps)
    progress = min(1.0, max(0, step - held) / max(1, decay_steps - held))
    if config.lr_decay_style == "exponential":
        # The same factor each step, which never reaches a rate of 0.
        return config.lr * (max(config.min_lr, 1e-3 * config.lr) / config.lr) ** progress
    share = {"linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2}.get(config.lr_decay_style, 1.0)
    return config.min_lr + (config.lr - config.min_lr) * share
