# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The type that a run computes in, and the loss scale of fp16."""

from dataclasses import dataclass

import torch

from trainer.cli import UsageError
from trainer.config import LayoutFlags

COMPUTE = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "float8": torch.bfloat16}


def precision_of(flags: LayoutFlags, device: torch.device) -> tuple[str, str]:
    """(precision of the products, the reason if the machine decided it); raises UsageError for one that the device does not have."""
    name = flags.precision or {None: None, 0: "fp32", 1: "bf16"}[flags.bf16]
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if name is None:
        if device.type != "cuda":
            return "fp32", ""
        if capability >= (8, 0):
            return "bf16", ""
        # Tensor cores for fp16 came with 7.0, bf16 with 8.0.
        name = "fp16" if capability >= (7, 0) else "fp32"
        scaled = " with loss scaling" if name == "fp16" else ""
        return name, f"{torch.cuda.get_device_name(device)} has no bf16, so {name}{scaled} is used"
    if name == "float8" and capability < (8, 9):
        raise UsageError("--precision float8 needs a GPU of compute capability 8.9 or later (L4, L40S, H100, H200, B200): use bf16")
    if name == "bf16" and device.type == "cuda" and capability < (8, 0):
        raise UsageError(f"{torch.cuda.get_device_name(device)} has no bf16: use --precision fp16 or leave it out")
    return name, ""


@dataclass
class LossScale:
    """fp16's loss scale, which keeps small gradients from vanishing. An overflow halves it, `patience` good steps double it."""

    value: float = 1.0
    patience: int = 2000
    good: int = 0

    def update(self, finite: bool) -> None:
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value = max(1.0, self.value / 2)
        elif self.good >= self.patience:
            self.value, self.good = self.value * 2, 0
