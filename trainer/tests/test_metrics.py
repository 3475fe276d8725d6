# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The log line, whose format never changes, and the JSON lines."""

import json
import re
import sys
import types
from pathlib import Path

import pytest

from trainer.cli import UsageError
from trainer.devices import device_of
from trainer.metrics import LINE, JsonLines, Ledger, Utilisation, batch_line, logger, open_tracker

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


def test_json_lines_are_json_whatever_the_values(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    JsonLines(path).write(step=1, loss=float("nan"), grad_norm=float("inf"), lr=0.5)
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["loss"], found["grad_norm"], found["lr"]) == (None, None, 0.5)


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989.4), ("NVIDIA GB200", 2500), ("NVIDIA B200", 2250), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA L40S", 362)],
)
def test_a_device_is_found_by_its_longest_name(name: str, peak: float) -> None:
    found = device_of(name)
    assert found
    assert found["peak_flops"]["bf16"] == peak


def test_utilisation_says_its_convention_and_never_guesses() -> None:
    # Llama 3.1 8B at 8192: 57.9 GFLOP a token in the palm convention, 51.5 with the causal half.
    used = Utilisation(57.9e9, 51.5e9, "NVIDIA H200", "bf16")
    assert used.of(8500)["mfu"] == pytest.approx(8500 * 57.9e9 / 989.4e12)
    assert used.of(8500)["mfu_causal"] == pytest.approx(0.4425, abs=1e-3)
    assert str(used) == (
        "mfu is of 989.4 TFLOP/s bf16 (NVIDIA H200), 57.9 GFLOP a token (6 per weight of a product, 12 x layers x width x context; "
        "51.5 with the causal half)"
    )
    for unknown in (Utilisation(1e9, 1e9, "NVIDIA H20", "bf16"), Utilisation(1e9, 1e9, "cpu", "fp32"), Utilisation(1e9, 1e9, "T4", "bf16")):
        assert unknown.of(1000) == {"mfu": None, "mfu_causal": None}
        assert str(unknown).startswith("mfu n/a: no ")


def test_the_ledger_counts_lost_steps_and_gaps_over_all_starts() -> None:
    clock = iter([0.0, 100.0, 150.0, 250.0])
    first = Ledger(None, 0, lambda: next(clock))
    first.add("start", 20)
    first.add("step", 60)
    first.add("data", 10)
    text = first.text(12)
    # Killed after step 12, resumed from step 10: a sixth of the 60 s was lost.
    second = Ledger(text, 10, lambda: next(clock))
    second.add("step", 80)
    second.text(20)
    found = second.summary()
    assert found["lost"] == pytest.approx(10)
    assert (found["starts"], found["gaps"], found["wall"]) == (2, 50, 250)
    assert found["goodput"] == pytest.approx((60 - 10 + 80) / 250)
    assert Ledger("half a fi", 0).summary()["starts"] == 1


def test_a_tracker_gets_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins with the calls of wandb and mlflow: neither package is installed here."""
    seen: list = []
    run = types.SimpleNamespace(log=lambda record, step: seen.append((record, step)))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda config, resume: run))
    mlflow = types.SimpleNamespace(log_params=seen.append, log_metrics=lambda record, step: seen.append((record, step)))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mine", types.SimpleNamespace(put=lambda record, step: seen.append((record, step))))
    for name in ("wandb", "mlflow", "mine:put"):
        open_tracker(name, {"lr": 1})({"loss": 2.0}, 3)
    assert seen == [({"loss": 2.0}, 3), {"lr": 1}, ({"loss": 2.0}, 3), ({"loss": 2.0}, 3)]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:put", "needs the module nowhere, which is not installed"),
        ("json:putt", "is neither wandb, nor mlflow, nor MODULE:FUNCTION"),
    ],
)
def test_a_tracker_that_is_none(name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        open_tracker(name, {})
