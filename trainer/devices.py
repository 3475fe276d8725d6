# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Instance types and GPUs as devices.json lists them. Without torch."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cli import UsageError, nearest

GIB = 2**30
DEVICES = json.loads(Path(__file__).with_name("devices.json").read_text())
LINK_REACHED = 0.8  # share that large messages reach of NVLink's rate in one direction, and of the network's rate
PCIE = 10e9  # bytes a second to the host's memory, and between devices of a node without NVLink
RESERVE, FRAGMENTED = 1.5 * GIB, 0.05  # CUDA's context and NCCL's buffers; the share that the allocator cannot use, with segments that grow


def usable(device_bytes: float) -> float:
    """The bytes of a device's memory that a run can fill."""
    return (device_bytes - RESERVE) * (1 - FRAGMENTED)


@dataclass(frozen=True)
class Machine:
    """One instance type. Rates are bytes a second and floating point operations a second."""

    name: str
    device: str
    devices: int
    memory: float
    link: float
    network: float
    peak: dict[str, float]

    @property
    def usable(self) -> float:
        return usable(self.memory)

    def dtype(self, fp8: bool = False) -> str:
        """The type that the trainer computes in here: a device without bf16 (T4, V100) gets fp16 with loss scaling."""
        if fp8 and "fp8" not in self.peak:
            raise UsageError(f"{self.device} of {self.name} has no fp8: leave --precision float8 out")
        return "fp8" if fp8 else next((dtype for dtype in ("bf16", "fp16") if dtype in self.peak), "fp32")


def machine_of(name: str) -> Machine:
    """The instance type `name`, with or without SageMaker's `ml.`; raises UsageError."""
    types = DEVICES["types"]
    bare = name.removeprefix("ml.")
    if bare not in types:
        hint = nearest(bare, types)
        raise UsageError(f"unknown instance type '{name}'{': ' + hint if hint else ''} (docs/instance_types.md lists them)")
    facts = types[bare]
    peaks = DEVICES["devices"][facts["device"]]["peak_flops"]
    return Machine(
        name=bare,
        device=facts["device"],
        devices=facts["devices"],
        memory=facts["memory_gib"] * GIB,
        link=facts["nvlink_gbytes"] * 1e9 / 2 * LINK_REACHED or PCIE,
        network=facts["network_gbits"] * 1e9 / 8 * LINK_REACHED,
        peak={dtype: value * 1e12 for dtype, value in peaks.items()},
    )


def device_of(name: str) -> dict[str, Any] | None:
    """The entry of the GPU that calls itself `name`; None for an unknown one."""
    # The longest name first: GB200 is no B200.
    known = sorted(((word, device) for device in DEVICES["devices"].values() for word in device["names"]), key=lambda entry: -len(entry[0]))
    return next((device for word, device in known if re.search(rf"\b{re.escape(word)}\b", name)), None)
