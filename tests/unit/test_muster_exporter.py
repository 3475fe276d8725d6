# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The exporter of Slurm's JSON and of the trainer's logs."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.observe import muster_endpoint

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures"
TRAIN = FIXTURES / "run/local/20261121T105130Z/jobs/train/train.jsonl"
NOW = 1795260480.0


@pytest.fixture(scope="module")
def exporter() -> ModuleType:
    sys.modules.setdefault("muster_endpoint", muster_endpoint)
    spec = importlib.util.spec_from_file_location("muster_exporter", ROOT / "roles/monitoring/files/muster-exporter.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def samples(families: Any) -> dict[str, float]:
    """{metric{labels}: value}, as Prometheus reads them."""
    lines = [line for line in muster_endpoint.render(families).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def answering(**answers: Any):
    """A subprocess.run that knows Slurm's answers by the program's name: a document, an exit code or an exception."""

    def run(argv: list[str], **_options: Any) -> Any:
        answer = answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return SimpleNamespace(returncode=answer, stdout=b"")
        return SimpleNamespace(returncode=0, stdout=answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())

    return run


def node(name: str, *states: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": list(states),
        "cpus": 192,
        "alloc_cpus": 96,
        "gres": "gpu:h100:8(S:0-1)",
        "gres_used": "gpu:h100:4(IDX:0-3)",
        **more,
    }


STATISTICS = {
    "server_thread_count": 2,
    "agent_queue_size": 0,
    "dbd_agent_queue_size": 3,
    "schedule_cycle_last": 120,
    "bf_cycle_last": 90,
    "jobs_started": 7,
}
JOBS = [
    {
        "job_id": 7,
        "job_state": ["RUNNING"],
        "partition": "main",
        "name": "train",
        "user_name": "muster",
        "nodes": "compute-[1-2]",
        "start_time": {"set": True, "infinite": False, "number": 1795260000},
    },
    {"job_id": 8, "job_state": ["PENDING"], "partition": "main", "submit_time": {"set": True, "infinite": False, "number": NOW - 60}},
    {"job_id": 9, "job_state": ["PENDING"], "partition": "main", "submit_time": {"set": True, "infinite": False, "number": NOW - 5}},
]


def slurm(exporter: ModuleType, nodes: Any = (), jobs: Any = (), statistics: Any = STATISTICS) -> Any:
    run = answering(
        scontrol=nodes if isinstance(nodes, (Exception, int, str)) else {"nodes": list(nodes)},
        squeue={"jobs": list(jobs)},
        sdiag={"statistics": statistics},
    )
    return exporter.Slurm(run, lambda: NOW)


def test_nodes_jobs_and_scheduler(exporter: ModuleType) -> None:
    nodes = [
        node("compute-1", "ALLOCATED"),
        node("compute-2", "DOWN", "NOT_RESPONDING", reason="Not responding [slurm@2026]"),
        node("compute-3", "IDLE", "DRAIN", reason='gpu "3" lost'),
        node("compute-4", "IDLE", "POWERED_DOWN", gres="", gres_used=""),
    ]
    found = samples(slurm(exporter, nodes, JOBS).collect())
    assert found["muster_slurm_up"] == 1
    assert (found['muster_slurm_nodes{state="idle"}'], found['muster_slurm_nodes{state="down"}']) == (2, 1)
    assert found['muster_slurm_node_down{node="compute-2",reason="Not responding [slurm@2026]"}'] == 1
    assert found['muster_slurm_node_drained{node="compute-3",reason="gpu \\"3\\" lost"}'] == 1
    assert found['muster_slurm_node_down{node="compute-4",reason=""}'] == 0, "a node that sleeps is not down"
    assert (found['muster_slurm_node_gpus{node="compute-1"}'], found['muster_slurm_node_gpus_allocated{node="compute-1"}']) == (8, 4)
    assert (found['muster_slurm_node_cpus{node="compute-1"}'], found['muster_slurm_node_gpus{node="compute-4"}']) == (192, 0)
    assert found['muster_slurm_jobs{state="pending",partition="main"}'] == 2
    assert found['muster_slurm_job_info{job_id="7",name="train",user="muster",nodes="compute-[1-2]",partition="main"}'] == 1
    assert found['muster_slurm_job_start_time_seconds{job_id="7"}'] == 1795260000
    assert found["muster_slurm_oldest_pending_seconds"] == 60
    assert (found["muster_slurm_dbd_queue_size"], found["muster_slurm_jobs_started_total"]) == (3, 7)


def test_what_slurm_24_11_really_says(exporter: ModuleType) -> None:
    read = {name: json.loads((FIXTURES / "slurm" / f"{name}.json").read_text()) for name in ("scontrol_nodes", "sdiag")}
    run = answering(scontrol=read["scontrol_nodes"], squeue={"jobs": []}, sdiag=read["sdiag"])
    found = samples(exporter.Slurm(run, lambda: NOW).collect())
    assert (found["muster_slurm_up"], found['muster_slurm_nodes{state="idle"}'], found['muster_slurm_node_gpus{node="compute-1"}']) == (
        1,
        2,
        8,
    )
    assert {"muster_slurm_server_threads", "muster_slurm_dbd_queue_size", "muster_slurm_backfill_cycle_microseconds"} <= set(found)


@pytest.mark.parametrize(
    "answer",
    [1, "no JSON", "[]", subprocess.TimeoutExpired("scontrol", 8), FileNotFoundError("scontrol")],
    ids=["code", "text", "list", "time", "missing"],
)
def test_a_controller_that_does_not_answer_is_down(exporter: ModuleType, answer: Any) -> None:
    found = samples(slurm(exporter, answer, JOBS).collect())
    assert found["muster_slurm_up"] == 0
    assert not [name for name in found if name.startswith("muster_slurm_node")]


def test_slurm_is_asked_once_for_many_scrapes(exporter: ModuleType) -> None:
    asked = []
    run = answering(scontrol={"nodes": []}, squeue={"jobs": []}, sdiag={"statistics": {}})
    time = [NOW]
    one = exporter.Slurm(lambda argv, **options: asked.append(argv[0]) or run(argv, **options), lambda: time[0])
    for _each in range(3):
        samples(one.collect())
    assert len(asked) == 3
    time[0] += exporter.KEEP
    samples(one.collect())
    assert len(asked) == 6


@pytest.mark.parametrize(
    ("text", "count"), [("gpu:h100:8(S:0-1)", 8), ("gpu:2", 2), ("gpu:a100:4,gpu:t4:1", 5), ("", 0), (None, 0), ("nic:4", 0)]
)
def test_gpus_of_a_node(exporter: ModuleType, text: str | None, count: int) -> None:
    assert exporter.gpus(text) == count


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "training/checkpoints-7/train.jsonl"
    path.parent.mkdir(parents=True)
    return path


def trainings(exporter: ModuleType, log: Path, jobs: dict[str, str] | None = None, now: float | None = None) -> Any:
    pattern = str(log.parents[2] / "*/checkpoints-*/train.jsonl")
    return exporter.Trainings([pattern], lambda: jobs, lambda: now or log.stat().st_mtime)


OF = '{job_id="7",run="training"}'


def test_a_training_s_last_step(exporter: ModuleType, log: Path) -> None:
    log.write_text(TRAIN.read_text())
    (log.parent / "goodput.json").write_text(json.dumps({"schema": "muster.goodput/1", "summary": {"goodput": 0.9, "wall": 120.0}}))
    found = samples(trainings(exporter, log, {"7": "RUNNING"}).collect())
    records = [json.loads(line) for line in TRAIN.read_text().splitlines()]
    last = [record for record in records if "loss" in record][-1]
    assert found["muster_training_step" + OF] == max(record["step"] for record in records)
    assert found["muster_training_loss" + OF] == last["loss"] and found["muster_training_loss_finite" + OF] == 1
    assert found["muster_training_tokens_per_second" + OF] == last["tokens_per_s"]
    assert (found["muster_training_goodput" + OF], found["muster_training_wall_seconds" + OF]) == (0.9, 120)
    assert (found["muster_training_running" + OF], found["muster_training_world_size" + OF]) == (1, 2)
    assert found["muster_training_resumes" + OF] == sum(record.get("event") == "resume" for record in records)


def test_times_are_those_of_the_log(exporter: ModuleType, log: Path) -> None:
    lines = [
        {"time": "2026-11-21T11:00:00.500Z", "event": "start", "step": 0},
        {"time": "2026-11-21T11:01:00.000Z", "step": 1, "loss": 2.5},
        {"time": "2026-11-21T11:02:00.000Z", "event": "checkpoint", "step": 1, "seconds": 3.5},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    one = trainings(exporter, log, {})
    began = 1795258800.5
    found = samples(one.collect())
    assert found["muster_training_last_checkpoint_time_seconds" + OF] == found["muster_training_start_time_seconds" + OF] == began
    assert found["muster_training_last_record_time_seconds" + OF] == began + 59.5
    assert found["muster_training_running" + OF] == 0
    with log.open("a") as file:
        file.write(json.dumps(lines[2]) + "\n")
    found = samples(one.collect())
    assert (found["muster_training_last_checkpoint_time_seconds" + OF], found["muster_training_checkpoint_seconds" + OF]) == (
        began + 119.5,
        3.5,
    )


def test_a_loss_that_is_no_number(exporter: ModuleType, log: Path) -> None:
    log.write_text('{"time": "2026-11-21T11:00:00Z", "step": 4, "loss": null}\n')
    found = samples(trainings(exporter, log).collect())
    assert found["muster_training_loss_finite" + OF] == 0
    assert "muster_training_running" + OF not in found, "without Slurm nobody knows"


def test_half_a_line_is_read_when_it_is_whole_and_a_new_file_from_its_beginning(exporter: ModuleType, log: Path) -> None:
    whole = '{"time": "2026-11-21T11:00:00Z", "step": %d, "loss": 1.0}\n'
    log.write_text(whole % 1 + (whole % 2)[:20])
    one = trainings(exporter, log)
    assert samples(one.collect())["muster_training_step" + OF] == 1
    with log.open("a") as file:
        file.write((whole % 2)[20:] + "no JSON\n")
    assert samples(one.collect())["muster_training_step" + OF] == 2
    log.unlink()
    log.write_text(whole % 0)
    assert samples(one.collect())["muster_training_step" + OF] == 0


def test_old_logs_are_history_unless_their_job_runs(exporter: ModuleType, log: Path) -> None:
    log.write_text(TRAIN.read_text())
    later = log.stat().st_mtime + 2 * 86400
    assert samples(trainings(exporter, log, {}, later).collect())["muster_training_logs"] == 0
    assert samples(trainings(exporter, log, {"7": "RUNNING"}, later).collect())["muster_training_logs"] == 1


STEP = '{"time": "2026-11-21T11:00:00Z", "step": %d, "loss": 1.0}\n'


def in_time(collect: Any) -> dict[str, float]:
    """The samples of a look that must not wait for anybody."""
    found: list[dict[str, float]] = []
    thread = threading.Thread(target=lambda: found.append(samples(collect())), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the exporter waits, or failed"
    return found[0]


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_only_the_user_s_own_file_is_read(exporter: ModuleType, log: Path, kind: str) -> None:
    other = log.parents[1] / "checkpoints-8/train.jsonl"
    other.parent.mkdir()
    other.write_text(STEP % 3)
    secret = log.parents[2] / "goodput.json"
    secret.write_text('{"summary": {"goodput": 0.5, "wall": 1}}')
    if kind == "fifo":
        os.mkfifo(log)
        os.mkfifo(other.with_name("goodput.json"))
    elif kind == "link":
        log.symlink_to(other)
        other.with_name("goodput.json").symlink_to(secret)
    else:
        log.mkdir()
    found = in_time(trainings(exporter, other).collect)
    assert found["muster_training_read_errors_total"] == 1 and "muster_training_step" + OF not in found
    eighth = OF.replace("7", "8")
    assert found["muster_training_step" + eighth] == 3 and "muster_training_goodput" + eighth not in found


def test_a_look_reads_a_part_of_a_long_log(exporter: ModuleType, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < exporter.LONGEST < exporter.MOST_OF_LOG < exporter.MOST_OF_ALL < 64 << 20, "the unit has 256 MiB"
    line = STEP % 1
    monkeypatch.setattr(exporter, "MOST_OF_LOG", 3 * len(line))
    monkeypatch.setattr(exporter, "MOST_OF_ALL", 4 * len(line))
    monkeypatch.setattr(exporter, "LONGEST", len(line))
    other = log.parents[1] / "checkpoints-8/train.jsonl"
    other.parent.mkdir()
    for path in (other, log):  # the newer one is read first
        path.write_text("".join(STEP % number for number in range(1, 6)))
        os.utime(path, (NOW, NOW + (path == log)))
    one = trainings(exporter, log, now=NOW)
    found, eighth = samples(one.collect()), OF.replace("7", "8")
    assert (found["muster_training_step" + OF], found["muster_training_step" + eighth]) == (3, 1)
    found = samples(one.collect())
    assert (found["muster_training_step" + OF], found["muster_training_step" + eighth]) == (5, 3)
    log.write_text('{"step": ' + "9" * 40 * len(line))
    for _look in range(20):
        samples(one.collect())
    assert len(one.logs[str(log)].rest) <= len(line)
    with log.open("a") as file:
        file.write("9}\n" + STEP % 6)
    assert samples(one.collect())["muster_training_step" + OF] == 6


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"time": 5, "step": 1}',
        '{"time": "2026-13-99T11:00:00Z", "step": 1}',
        '{"step": 1, "mfu": "x", "grad_norm": [1], "loss": {"a": 1}}',
        '{"step": 1%s, "loss": 1%s}' % ("0" * 400, "0" * 400),
        '{"event": "checkpoint", "seconds": "x"}',
        '{"event": ["start"], "world_size": true}',
    ],
    ids=range(7),
)
def test_what_a_user_writes_leaves_the_metrics_of_others(exporter: ModuleType, log: Path, line: str) -> None:
    log.write_text(line + "\n" + STEP % 2)
    (log.parent / "goodput.json").write_text(line)
    bad = Path(os.fsdecode(os.fsencode(log.parents[2]) + b"/\xff")) / "checkpoints-9"
    bad.mkdir(parents=True)
    (bad / "train.jsonl").write_text(STEP % 4)
    found = samples(trainings(exporter, log).collect())
    assert found["muster_training_step" + OF] == 2 and found['muster_training_step{job_id="9",run="?"}'] == 4


def test_a_log_that_vanishes_is_counted(exporter: ModuleType, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text(TRAIN.read_text())

    def gone(_log: Any, _most: int) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(exporter.Log, "look", gone)
    assert samples(trainings(exporter, log).collect())["muster_training_read_errors_total"] == 1


def test_seconds(exporter: ModuleType) -> None:
    assert exporter.seconds("2026-11-21T11:27:28.754Z") == pytest.approx(1795260448.754)
    assert exporter.seconds("yesterday") is None and exporter.seconds(None) is None
    assert not math.isnan(exporter.seconds("2026-11-21T11:27:28Z"))
    assert re.fullmatch(r"\d+\.\d", str(exporter.seconds("2026-11-21T11:27:28Z")))
