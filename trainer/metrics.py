# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The log line and the same as JSON lines; utilisation of a device, goodput of the time, trackers. Without torch.

The log line up to `lr:` is the AWS reference trainer's and never changes; new fields come after it as `, key: value`.
"""

import importlib
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer.cli import UsageError
from trainer.devices import device_of

LINE = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) I \[train\.py:\d+\] Batch (?P<step>\d+) Loss: (?P<loss>-?\d+\.\d{5}), "
    r"Speed: (?P<samples_per_s>\d+\.\d\d) samples/sec, lr: (?P<lr>\d+\.\d{6})(?P<more>(?:, [^,:]+: [^,]+)*)$"
)


def batch_line(step: int, loss: float, samples_per_s: float, lr: float, **more: str) -> str:
    """The message of a logged step; `more` are further fields in order."""
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
    """The log for programs. It only grows: a restart writes the steps since the checkpoint again, and the last line of a step counts."""

    def __init__(self, path: Path | None, **common: Any) -> None:
        self.path = path
        self.common = common
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A killed run may have left half a line: end it, so that the first new line stands alone.
            with path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.write(b"\n")

    def write(self, **record: Any) -> None:
        if self.path is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            # JSON has no NaN and no infinity.
            known = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()}
            with self.path.open("a") as file:
                file.write(json.dumps({"time": time} | known | self.common, allow_nan=False) + "\n")


class Utilisation:
    """Model FLOPs utilisation: the share of the device's dense peak that the model's own products take, without recomputation.

    Convention (`palm`): 6 operations for each weight of a product and token, and attention over the whole square of the context. `causal`
    counts only the half of attention that a causal mask leaves. An unknown device has no utilisation: a guessed peak gives a wrong figure.
    """

    def __init__(self, flops_per_token: float, causal: float, device: str, dtype: str) -> None:
        known = device_of(device)
        peak = known["peak_flops"].get(dtype) if known else None
        self.dtype, self.device = dtype, device
        self.peak = peak * 1e12 if peak else None
        self.flops, self.causal = flops_per_token, causal

    def of(self, tokens_per_s: float) -> dict[str, float | None]:
        """Both shares at this speed of one device."""
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
    """The time of all starts by its parts, kept beside the checkpoints. Goodput is the share of steps that were not lost."""

    PARTS = ("start", "step", "data", "checkpoint", "validation")
    NAME = "goodput.json"

    def __init__(self, text: str | None, step: int, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        try:
            self.starts: list[dict[str, Any]] = json.loads(text)["starts"] if text else []
        except (ValueError, KeyError, TypeError):
            self.starts = []
        now = clock()
        # Steps after the checkpoint that this start resumes from are done again: their time is lost.
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
        """The ledger as of now, to be stored."""
        self.mine["seen"], self.mine["last"] = self.clock(), step
        return json.dumps({"schema": "muster.goodput/1", "starts": self.starts, "summary": self.summary()}, indent=1) + "\n"

    def summary(self) -> dict[str, float]:
        wall = self.starts[-1]["seen"] - self.starts[0]["began"]
        total = {part: sum(start[part] for start in self.starts) for part in (*self.PARTS, "lost")}
        gaps = sum(later["began"] - earlier["seen"] for earlier, later in zip(self.starts[:-1], self.starts[1:], strict=True))
        good = total["step"] - total["lost"]
        return {"goodput": good / wall if wall > 0 else 0.0, "wall": wall, "starts": len(self.starts), "gaps": gaps} | total

    def sentence(self, step: int) -> str:
        """The summary after `step`, for the log."""
        self.text(step)
        part = self.summary()
        return (
            f"Goodput {100 * part['goodput']:.1f}% of {part['wall']:.0f} s over {part['starts']} starts: "
            f"{part['lost']:.1f} s of steps done again, {part['gaps']:.1f} s between starts, {part['start']:.1f} s starting, "
            f"{part['data']:.1f} s waiting for data, {part['checkpoint']:.1f} s for checkpoints, {part['validation']:.1f} s validating"
        )


def open_tracker(name: str, config: dict[str, Any]) -> Callable[[dict[str, float], int], object]:
    """The function that takes each record and its step; raises UsageError. The tracker reads keys and addresses from its own variables."""
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
        raise UsageError(f"--tracker {name} needs the module {error.name}, which is not installed: pip install it") from None
    except (AttributeError, ValueError):
        raise UsageError(f"--tracker {name} is neither wandb, nor mlflow, nor MODULE:FUNCTION: correct it") from None


def open_tensorboard(folder: str) -> Callable[[dict[str, float], int], object]:
    """A function that writes each number of a record as a curve of TensorBoard; raises UsageError."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise UsageError("--tensorboard_dir needs tensorboard: `pip install muster-trainer[tensorboard]` installs it") from None
    writer = SummaryWriter(folder)

    def log(record: dict[str, float], step: int) -> None:
        for name, value in record.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log
