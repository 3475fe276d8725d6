# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The log line, its pattern and its twin as JSON lines, without torch.

The line up to `lr:` is the AWS reference trainer's and never changes; what is new comes after it as `, key: value`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
