# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AdamW, and its learning rate by step."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from trainer.comm import in_host, local
from trainer.config import OptimiserFlags

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """AdamW over the (already sharded) parameters; norms are not decayed. It updates this rank's parts, so that meshes do not matter.

    The moments may be bf16 or lie in host memory. Then a step works on one weight at a time: it brings the moments to the weight's device
    and type, and takes them back.
    """

    def __init__(self, model: nn.Module, config: OptimiserFlags) -> None:
        groups = [
            {
                "params": [weight for weight in model.parameters() if (weight.dim() > 1) == matrix],
                "weight_decay": config.weight_decay * matrix,
            }
            for matrix in (True, False)
        ]
        self.kernel = {"fused": config.adamw == "fused", "foreach": config.adamw == "foreach"}
        super().__init__(groups, lr=config.lr, betas=(config.beta1, config.beta2), **self.kernel)
        self.narrow, self.offloaded = config.moments == "bf16", config.offload == "optimizer"
        for weight in model.parameters():
            self.state[weight] = {name: self._zeros(weight.detach()) for name in MOMENTS}
            self.state[weight]["step"] = torch.zeros((), device=weight.device if self.kernel["fused"] else "cpu")

    def _zeros(self, weight: Tensor) -> Tensor:
        """The first value of a moment, in its type and place."""
        dtype = torch.bfloat16 if self.narrow else weight.dtype
        if not self.offloaded:
            return torch.zeros_like(weight, dtype=dtype)
        part = torch.zeros(local(weight).shape, dtype=dtype, pin_memory=weight.is_cuda)
        return in_host(part, weight) if isinstance(weight, DTensor) else part

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for some in [[weight] for weight in weights] if self.narrow or self.offloaded else [weights]:
                self._update(some, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        states, parts = [self.state[weight] for weight in weights], [local(weight) for weight in weights]
        kept = [local(state[name]) for name in MOMENTS for state in states]
        used = [moment.to(part.device, part.dtype, non_blocking=True) for moment, part in zip(kept, 2 * parts, strict=True)]
        adamw(
            parts,
            [local(weight.grad) for weight in weights if weight.grad is not None],
            used[: len(parts)],
            used[len(parts) :],
            [],
            [state["step"] for state in states],
            **self.kernel,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for moment, value in zip(kept, used, strict=True):
            if moment is not value:
                moment.copy_(value)


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
