# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The log line, its pattern and its twin as JSON lines; how much of a device is used, and how much of the time counted. Without torch.

The line up to `lr:` is the AWS reference trainer's and never changes; what is new comes after it as `, key: value`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer.config import UsageError

LINE = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) I \[train\.py:\d+\] Batch (?P<step>\d+) Loss: (?P<loss>-?\d+\.\d{5}), "
    r"Speed: (?P<samples_per_s>\d+\.\d\d) samples/sec, lr: (?P<lr>\d+\.\d{6})(?P<more>(?:, [^,:]+: [^,]+)*)$"
)


def batch_line(step: int, loss: float, samples_per_s: float, lr: float, **more: str) -> str:
    """The message of a logged step; `more` follows as further fields in its order."""
    line = f"Batch {step} Loss: {loss:.5f}, Speed: {samples_per_s:.2f} samples/sec, lr: {lr:.6f}"
    return line + "".join(f", {key}: {value}" for key, value in more.items())


def logger() -> logging.Logger:
    """The logger that writes `YYYY-mm-dd HH:MM:SS I [file:line] message` to standard output."""
    log = logging.getLogger("trainer")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s [%(filename)s:%(lineno)d] %(message)s", "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log


class JsonLines:
    """The log for programs. It only grows: after a restart the steps since the checkpoint stand again, and a step's last line counts."""

    def __init__(self, path: Path | None, **common: Any) -> None:
        self.path = path
        self.common = common
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A killed run may have left half a line, which must not swallow the first new one.
            with path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.write(b"\n")

    def write(self, **record: Any) -> None:
        if self.path is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            with self.path.open("a") as file:
                file.write(json.dumps({"time": time} | record | self.common) + "\n")


def device_of(name: str) -> dict[str, Any] | None:
    """What devices.json says about the GPU that calls itself `name`; None for one that it does not know."""
    devices = json.loads(Path(__file__).with_name("devices.json").read_text())["devices"].values()
    # The longest name first: GB200 is no B200.
    known = sorted(((word, device) for device in devices for word in device["names"]), key=lambda entry: -len(entry[0]))
    return next((device for word, device in known if re.search(rf"\b{re.escape(word)}\b", name)), None)


class Utilisation:
    """Model FLOPs utilisation: the share of the device's dense peak that the model's own products took, recomputation not counted.

    Convention (`palm`): 6 for each weight of a product and token, and attention over the whole square of the context. `causal` counts the
    half of attention that a causal mask leaves. An unknown device has no utilisation, because a guessed peak makes a wrong figure.
    """

    def __init__(self, flops_per_token: float, causal: float, device: str, dtype: str) -> None:
        known = device_of(device)
        peak = known["peak_flops"].get(dtype) if known else None
        self.dtype, self.device = dtype, device
        self.peak = peak * 1e12 if peak else None
        self.flops, self.causal = flops_per_token, causal

    def of(self, tokens_per_s: float) -> dict[str, float | None]:
        """The shares at this speed of one device."""
        return {
            "mfu": tokens_per_s * self.flops / self.peak if self.peak else None,
            "mfu_causal": tokens_per_s * self.causal / self.peak if self.peak else None,
        }

    def __str__(self) -> str:
        if self.peak is None:
            return f"mfu n/a: no {self.dtype} peak is known for {self.device}"
        return (
            f"mfu is of {self.peak / 1e12:g} TFLOP/s {self.dtype} ({self.device}), {self.flops / 1e9:.3g} GFLOP a token "
            f"(6 per weight of a product, 12 x layers x width x context; {self.causal / 1e9:.3g} with the causal half)"
        )


class Ledger:
    """Where the time of all starts went, kept beside the checkpoints. Goodput is the time of steps that were never lost, over all of it."""

    PARTS = ("start", "step", "data", "checkpoint", "validation")
    NAME = "goodput.json"

    def __init__(self, text: str | None, step: int, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        try:
            self.starts: list[dict[str, Any]] = json.loads(text)["starts"] if text else []
        except (ValueError, KeyError, TypeError):
            self.starts = []
        now = clock()
        # Steps after the checkpoint that this start goes on from are done again: their time is lost.
        for earlier in self.starts:
            done = earlier["last"] - earlier["first"]
            lost = min(done, max(0, earlier["last"] - step))
            if done and lost > earlier["lost_steps"]:
                earlier["lost"] = lost / done * earlier["step"]
                earlier["lost_steps"] = lost
        self.mine: dict[str, Any] = {"began": now, "seen": now, "first": step, "last": step, "lost": 0.0, "lost_steps": 0}
        self.mine |= dict.fromkeys(self.PARTS, 0.0)
        self.starts.append(self.mine)

    def add(self, part: str, seconds: float) -> None:
        self.mine[part] += seconds

    def text(self, step: int) -> str:
        """The ledger as of now, to be kept."""
        self.mine["seen"], self.mine["last"] = self.clock(), step
        return json.dumps({"schema": "muster.goodput/1", "starts": self.starts, "summary": self.summary()}, indent=1) + "\n"

    def summary(self) -> dict[str, float]:
        wall = self.starts[-1]["seen"] - self.starts[0]["began"]
        total = {part: sum(start[part] for start in self.starts) for part in (*self.PARTS, "lost")}
        gaps = sum(later["began"] - earlier["seen"] for earlier, later in zip(self.starts[:-1], self.starts[1:], strict=True))
        good = total["step"] - total["lost"]
        return {"goodput": good / wall if wall > 0 else 0.0, "wall": wall, "starts": len(self.starts), "gaps": gaps} | total


def open_tracker(name: str, config: dict[str, Any]) -> Callable[[dict[str, float], int], object]:
    """What is called with each record's numbers and its step; raises UsageError. Keys and addresses are the tracker's own variables."""
    try:
        if name == "wandb":
            import wandb

            return wandb.init(config=config, resume="allow").log
        if name == "mlflow":
            import mlflow

            mlflow.log_params(config)
            return lambda record, step: mlflow.log_metrics(record, step=step)
        module, _, function = name.partition(":")
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UsageError(f"--tracker {name} needs the module {error.name}, which is not installed") from None
    except (AttributeError, ValueError):
        raise UsageError(f"--tracker {name} is neither wandb, nor mlflow, nor MODULE:FUNCTION") from None


def open_tensorboard(folder: str) -> Callable[[dict[str, float], int], object]:
    """Writes each number of a record as a curve of TensorBoard; raises UsageError."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise UsageError("--tensorboard_dir needs tensorboard: `pip install muster-trainer[tensorboard]` brings it") from None
    writer = SummaryWriter(folder)

    def log(record: dict[str, float], step: int) -> None:
        for name, value in record.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log
