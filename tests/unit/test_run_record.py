# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The recorder of a run, without Ansible: what it writes, when, and what it never writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.report.run_record import Recorder, named_hosts, public_argv, role_and_phase


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    made = Recorder(clock=clock, now=lambda: 1795258290 + clock())
    made.start("site.yml", ["ansible-playbook", "site.yml"])
    made.task("t1", "slurm", "install", "Install", "roles/slurm/tasks/install.yml")
    return made


def announced(recorder: Recorder, folder: Path) -> list[dict]:
    recorder.result("t1", "localhost", {"muster_run_dir": str(folder)})
    return written(folder)


def written(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_events_wait_for_the_folder_and_keep_their_order(recorder: Recorder, clock: Clock, tmp_path: Path) -> None:
    clock.seconds = 2
    recorder.result("t1", "a", {"muster_checks": [{"component": "slurm", "check": "ping", "status": "passed", "secret": "x"}]})
    folder = tmp_path / "runs" / "local" / "20261121T105130Z"
    start, check = announced(recorder, folder)
    assert (start["event"], start["time"], start["fleet"]) == ("start", "2026-11-21T10:51:30.000Z", "local")
    assert (check["event"], check["time"], check["host"], check["status"]) == ("check", "2026-11-21T10:51:32.000Z", "a", "passed")
    assert "secret" not in check
    recorder.result("t1", "a", {"muster_run_dir": str(tmp_path / "other")})
    assert recorder.folder == folder


def test_a_rehearsal_and_what_a_check_on_a_stand_in_would_have_said(recorder: Recorder, tmp_path: Path) -> None:
    recorder.result("t1", "localhost", {"muster_run_dir": str(tmp_path), "muster_rehearses": ["p5.48xlarge"]})
    recorder.result("t1", "a", {"muster_checks": [{"check": "gpus", "status": "not_run", "rehearsed": "passed"}]})
    _start, rehearsal, check = written(tmp_path)
    assert (rehearsal["event"], rehearsal["instance_types"]) == ("rehearsal", ["p5.48xlarge"])
    assert check["rehearsed"] == "passed"


@pytest.mark.parametrize("carrier", [lambda d: {"results": [{}, d]}, lambda d: {"ansible_facts": d}])
def test_the_folder_may_come_from_a_loop_or_a_fact(recorder: Recorder, tmp_path: Path, carrier) -> None:
    recorder.result("t1", "a", carrier({"muster_run_dir": str(tmp_path)}))
    assert written(tmp_path)[0]["event"] == "start"


def test_times_add_up_per_role_and_phase(recorder: Recorder, clock: Clock, tmp_path: Path) -> None:
    announced(recorder, tmp_path)
    clock.seconds = 3
    recorder.result("t1", "a", {"changed": True})
    recorder.result("t1", "b", {}, "skipped")
    recorder.task("t2", "slurm", "install", "More", "roles/slurm/tasks/install.yml")
    clock.seconds = 4
    recorder.task("t3", "", "", "Train", "playbooks/train.yml")
    clock.seconds = 9
    recorder.end({"a": {"ok": 3, "changed": 1, "failures": 0, "unreachable": 0}})
    events = written(tmp_path)
    tasks = [(event["task"], event["seconds"], event["changed"], event["hosts"]) for event in events if event["event"] == "task"]
    assert tasks == [("Install", 3, 1, 2), ("More", 1, 0, 0), ("Train", 5, 0, 0)]
    roles = [(e["role"], e["phase"], e["seconds"], e["tasks"], e["changed"]) for e in events if e["event"] == "role"]
    assert roles == [("train.yml", "", 5, 1, 0), ("slurm", "install", 4, 2, 1)]
    assert (events[-1]["event"], events[-1]["seconds"], events[-1]["ok"]) == ("end", 9, True)


ARGS = "Task failed: Finalization of task args for 'ansible.builtin.debug' failed: Error while resolving value for 'msg': "
THEIRS = "The filter plugin 'ansible.builtin.b64decode' failed: Bad."
FILTER = "The filter plugin 'muster.fleet.instance_type' failed: "


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        # As ansible-core 2.19 says it of an argument, a condition, a loop and a lookup.
        (ARGS + FILTER + "The catalogue has no instance type p9.", "The catalogue has no instance type p9."),
        ("Task failed: " + FILTER + "The catalogue has no instance type p9.", "The catalogue has no instance type p9."),
        (FILTER + "The catalogue has no type p9; did you mean p5?", "The catalogue has no type p9; did you mean p5?"),
        (ARGS + "The lookup plugin 'muster.fleet.path' failed: There is no folder x.", "There is no folder x."),
        # Neither a fault inside a plugin nor another collection's plugin has a sentence of ours.
        (ARGS + FILTER + "takes 1 argument but 2 were given", ARGS + FILTER + "takes 1 argument but 2 were given"),
        (ARGS + THEIRS, ARGS + THEIRS),
    ],
)
def test_a_sentence_of_a_plugin_loses_ansibles_frame(recorder: Recorder, tmp_path: Path, said: str, shown: str) -> None:
    announced(recorder, tmp_path)
    recorder.result("t1", "a", {"failed": True, "msg": said}, "failed")
    assert written(tmp_path)[-1]["message"] == shown
    assert said in (tmp_path / "failures.log").read_text()


@pytest.mark.parametrize("key", ["failures", "unreachable"])
def test_a_run_with_a_stopped_host_is_not_ok(recorder: Recorder, tmp_path: Path, key: str) -> None:
    announced(recorder, tmp_path)
    recorder.end({"a": {"ok": 1, "changed": 0, "failures": 0, "unreachable": 0, key: 1}})
    assert written(tmp_path)[-1]["ok"] is False


def test_a_long_task_is_told_once_per_patience_with_the_hosts_that_remain(recorder: Recorder, clock: Clock) -> None:
    for host in "abcdef":
        recorder.waiting("t1", "slurm : Install", host)
    clock.seconds = 14.9
    assert recorder.overdue() == []
    clock.seconds = 15.2
    assert recorder.overdue() == ["… still slurm : Install on a, b, c, d and 2 more: 15 s"]
    assert recorder.overdue() == []
    for host in "abde":
        recorder.result("t1", host, {})
    clock.seconds = 31
    assert recorder.overdue() == ["… still slurm : Install on c, f: 30 s"]
    recorder.result("t1", "c", {})
    recorder.result("t1", "f", {}, "unreachable")
    clock.seconds = 100
    assert recorder.overdue() == []


def test_a_failure_writes_the_words_of_the_tool_and_no_arguments(recorder: Recorder, tmp_path: Path) -> None:
    announced(recorder, tmp_path)
    result = {"msg": "non-zero return code", "rc": 3, "stderr": "one\ntwo\n", "cmd": "tool --password p4ss", "invocation": {"a": "p4ss"}}
    recorder.result("t1", "a", result, "failed")
    recorder.result("t1", "b", {"msg": "The job failed.", "remedy": "Read its output."}, "failed")
    recorder.result("t1", "c", {"msg": "later", "results": [{"msg": "fine"}, {"failed": True, "msg": "the second item"}]}, "failed")
    recorder.result("t1", "d", {"censored": "hidden"}, "failed")
    recorder.result("t1", "e", {"msg": "ignored"}, "ignored")
    failures = [event for event in written(tmp_path) if event["event"] == "failure"]
    assert [failure["message"] for failure in failures] == [
        "non-zero return code (rc 3): two",
        "The job failed.",
        "the second item",
        "the result is hidden (no_log)",
    ]
    assert (failures[1]["remedy"], failures[0]["role"], failures[0]["task"]) == ("Read its output.", "slurm", "Install")
    log = (tmp_path / "failures.log").read_text()
    assert "stderr: one\ntwo" in log
    assert "msg: the second item" in log
    assert "p4ss" not in log + (tmp_path / "events.jsonl").read_text()
    assert (tmp_path / "failures.log").stat().st_mode & 0o777 == 0o600


def test_bytes_that_are_no_text_do_not_stop_the_record(recorder: Recorder, tmp_path: Path) -> None:
    announced(recorder, tmp_path)
    recorder.result("t1", "a", {"msg": "odd \udce4", "muster_message": "\udce4"}, "failed")
    assert [event["event"] for event in written(tmp_path)] == ["start", "message", "failure"]


def member(role: str, path: str, **variables: object) -> dict:
    return {"role": role, "path": path, "vars": variables}


@pytest.mark.parametrize(
    ("lineage", "place"),
    [
        ([member("", "site.yml")], ("", "")),
        ([member("", "install.yml")], ("", "")),
        ([member("slurm", "roles/slurm/tasks/verify_fleet.yml")], ("slurm", "verify_fleet")),
        ([member("slurm", "roles/slurm/tasks/compute.yml"), member("slurm", "roles/slurm/tasks/configure.yml")], ("slurm", "configure")),
        ([member("phases", "roles/phases/tasks/install.yml"), member("common", "roles/common/tasks/main.yml")], ("common", "install")),
        (
            [member("phases", "roles/phases/tasks/phase.yml"), member("phases", "roles/phases/tasks/main.yml", phases_phase="configure"),
             member("", "site.yml", phases_component="slurm")],
            ("slurm", "configure"),
        ),
        ([member("phases", "roles/phases/tasks/main.yml"), member("", "site.yml", phases_component="{{ name }}")], ("phases", "")),
    ],
)  # fmt: skip
def test_role_and_phase_of_a_task(lineage: list[dict], place: tuple[str, str]) -> None:
    assert role_and_phase(lineage) == place


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["-e", "token=abc user=me"], ["-e", "token=… user=…"]),
        (["-etoken=abc", "-v"], ["-etoken=…", "-v"]),
        (["--extra-vars={'token': 'abc'}"], ["--extra-vars=…"]),
        (["--extra-vars", "@secrets.yml", "x=1"], ["--extra-vars", "@secrets.yml", "x=1"]),
        (["site.yml", "-i", "inventory/local"], ["site.yml", "-i", "inventory/local"]),
    ],
)
def test_values_of_extra_variables_are_not_written(argv: list[str], shown: list[str]) -> None:
    assert public_argv(argv) == shown


def test_named_hosts() -> None:
    assert named_hosts(["a"]) == "a"
    assert named_hosts(["a", "b", "c"], 2) == "a, b and 1 more"
