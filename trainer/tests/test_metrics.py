# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The log line, whose form never changes, and the JSON lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trainer.metrics import LINE, JsonLines, batch_line, logger

# Spelled out here a second time on purpose: this is the contract, LINE is an implementation of it.
CONTRACT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d I \[train\.py:\d+\] Batch 7 Loss: 2\.50000, Speed: 12\.34 samples/sec, lr: 0\.000300"


def test_the_log_line() -> None:
    log = logger()
    record = log.makeRecord("trainer", 20, "/somewhere/train.py", 63, batch_line(7, 2.5, 12.341, 3e-4, grad_norm="1.2"), (), None)
    line = log.handlers[0].format(record)
    assert re.fullmatch(CONTRACT + ", grad_norm: 1.2", line)
    match = LINE.match(line)
    assert match
    assert (match["step"], match["loss"], match["samples_per_s"], match["lr"]) == ("7", "2.50000", "12.34", "0.000300")


def test_json_lines_go_on_after_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "train.jsonl"
    JsonLines(path, restart=0).write(step=1, loss=2.5)
    with path.open("a") as file:
        file.write('{"time": "20')
    JsonLines(path, restart=1).write(step=1, loss=2.5)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert [json.loads(lines[number])["restart"] for number in (0, 2)] == [0, 1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", json.loads(lines[2])["time"])
