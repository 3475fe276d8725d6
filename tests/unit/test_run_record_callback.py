# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The callback run_record in real playbook runs on two local hosts, with the ansible-core of this interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests" / "fixtures" / "playbooks" / "run_record"
HOSTS = "[all]\na\nb\n[all:vars]\nansible_connection=local\nansible_python_interpreter={python}\n"


def prepared(folder: Path, *options: str, hosts: str = HOSTS, patience: int = 15, strategy: str = "linear") -> tuple[list[str], dict, Path]:
    """The command that runs the playbook in FOLDER, the options of its process, and the run folder that it may announce."""
    (folder / "hosts").write_text(hosts.format(python=sys.executable))
    run_dir = folder / "runs" / "local" / "20261121T105130Z"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_") and name != "PYTHONUNBUFFERED"},
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_CALLBACKS_ENABLED": "muster.fleet.run_record",
        "ANSIBLE_ACTION_PLUGINS": str(PROJECT / "action_plugins"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(folder / "tmp"),
        "ANSIBLE_HOME": str(folder),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_STRATEGY": strategy,
        "MUSTER_PATIENCE": str(patience),
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts"), str(PROJECT / "run.yml"), *options]
    return command, {"cwd": folder, "env": environment}, run_dir


def play(folder: Path, *options: str, **more) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the playbook in FOLDER and return what it said and the run folder that it may have announced."""
    command, process, run_dir = prepared(folder, *options, **more)
    done = subprocess.run(command, **process, capture_output=True, text=True, check=False, timeout=120)
    assert "Callback dispatch" not in done.stdout + done.stderr, done.stderr
    return done, run_dir


def events(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]


def of(run_dir: Path, kind: str) -> list[dict]:
    return [event for event in events(run_dir) if event["event"] == kind]


def test_a_run_is_recorded_and_summed_up(tmp_path: Path) -> None:
    extra = ["-e", f"folder={tmp_path}/runs/local/20261121T105130Z stop=never"]
    done, run_dir = play(tmp_path, *extra, patience=1)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = events(run_dir)
    assert recorded[0]["event"] == "start"
    assert recorded[0] == {**recorded[0], "playbook": "run.yml", "fleet": "local"}
    assert recorded[0]["argv"][-2:] == ["-e", "folder=… stop=…"]
    assert recorded[-1] == {**recorded[-1], "event": "end", "ok": True}
    assert sorted(recorded[-1]["hosts"]) == ["a", "b"]
    assert [event["time"] for event in recorded] == sorted(event["time"] for event in recorded)

    assert sorted((check["host"], check["check"]) for check in of(run_dir, "check")) == [(h, c) for h in "ab" for c in ("first", "second")]
    assert "more" not in of(run_dir, "check")[0]
    roles = {(entry["role"], entry["phase"]): entry for entry in of(run_dir, "role")}
    assert roles["demo", "install"]["changed"] == 2
    assert roles["demo", "verify_node"]["tasks"] == 3
    assert ("run.yml", "") in roles
    assert not [name for name, _phase in roles if name == "phases"]
    (part,) = [task for task in of(run_dir, "task") if task["task"] == "part | Change two things"]
    assert (part["role"], part["phase"], part["changed"], part["hosts"]) == ("demo", "install", 2, 2)
    assert part["action"] == "answer"
    assert part["path"].endswith("roles/demo/tasks/part.yml")

    assert "… still Take long on a, b: 1 s" in done.stdout
    assert "… still Take long on a, b: 2 s" in done.stdout
    assert "TIME PER ROLE" in done.stdout
    summary = done.stdout.split("SUMMARY")[1].strip().split("\n")[1:]
    assert summary[0].startswith("fleet local: passed in")
    assert "checks: 4 passed, 0 failed, 0 not run" in summary
    assert summary[-1] == "report: runs/local/20261121T105130Z/report.html"
    report = json.loads((run_dir / "report.json").read_text())
    assert report["failures"] == []
    assert report["run"]["messages"] == ["The rescue worked."]
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("stop", "strategy", "message"),
    [("tool", "free", "non-zero return code (rc 3): the tool refused"), ("secret", "linear", "the result is hidden (no_log)")],
)
def test_a_failed_run_has_a_report_too(tmp_path: Path, stop: str, strategy: str, message: str) -> None:
    done, run_dir = play(tmp_path, "-e", f"folder={tmp_path}/runs/local/20261121T105130Z", f"-estop={stop}", strategy=strategy)
    assert done.returncode == 2
    failure = of(run_dir, "failure")[-1]
    assert (failure["host"], failure["log"]) == ("b", "failures.log")
    # The first words of a command's failure differ between versions of ansible-core.
    assert failure["message"].endswith(message)
    task = {"tool": "Ask a tool", "secret": "Keep a secret"}[stop]
    summary = done.stdout.split("SUMMARY")[1]
    assert f"FAILED b: {task}: {failure['message']}" in summary
    assert "FAILED a" not in summary
    assert "log: runs/local/20261121T105130Z/failures.log" in summary
    report = json.loads((run_dir / "report.json").read_text())
    assert report["run"]["verdict"] == "failed"
    assert [(entry["host"], entry["task"]) for entry in report["failures"]] == [("b", task)]
    log = (run_dir / "failures.log").read_text()
    assert f"b  -: {task} (" in log
    assert ("stderr: the tool refused" in log) == (stop == "tool")
    assert (run_dir / "failures.log").stat().st_mode & 0o777 == 0o600
    for path in run_dir.iterdir():
        assert "a-secret" not in path.read_text()


def test_a_filter_s_sentence_is_shown_without_ansibles_frame(tmp_path: Path) -> None:
    done, run_dir = play(tmp_path, "-e", f"folder={tmp_path}/runs/local/20261121T105130Z", "-estop=filter")
    assert done.returncode == 2
    sentence = "The catalogue has no instance type p9.huge; docs/catalogue.md lists its types."
    assert of(run_dir, "failure")[-1]["message"] == sentence
    assert f"FAILED b: Give a filter what it refuses: {sentence}\n" in done.stdout.split("SUMMARY")[1]
    assert "The filter plugin 'muster.fleet.instance_type' failed: " in (run_dir / "failures.log").read_text()


def test_an_unreachable_host_is_named(tmp_path: Path) -> None:
    hosts = HOSTS.replace("\nb\n", "\nb ansible_connection=ssh ansible_port=1 ansible_host=127.0.0.1\n")
    done, run_dir = play(tmp_path, "-e", f"folder={tmp_path}/runs/local/20261121T105130Z", "-e", "stop=tool", hosts=hosts)
    assert done.returncode == 4
    assert [event["host"] for event in of(run_dir, "unreachable")] == ["b"]
    assert "FAILED b: unreachable: " in done.stdout.split("SUMMARY")[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_a_signal_ends_has_a_report(tmp_path: Path, number: signal.Signals) -> None:
    command, options, run_dir = prepared(tmp_path, "-e", f"folder={tmp_path}/runs/local/20261121T105130Z stop=never", patience=1)
    # A caller such as a test in the background may ignore them.
    heard = {"preexec_fn": lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)]}
    with subprocess.Popen(command, **options, **heard, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = [next(line for line in process.stdout if "still Take long" in line)]
        process.send_signal(number)
        said += list(process.stdout)
        assert process.wait(60) == 99
    summary = "".join(said).split("SUMMARY")[1]
    assert "fleet local: unfinished in " in summary
    assert "report: runs/local/20261121T105130Z/report.html" in summary
    last = events(run_dir)[-1]
    assert (last["event"], last["ok"], last["interrupted"]) == ("end", False, number.name)
    report = json.loads((run_dir / "report.json").read_text())
    assert report["run"]["verdict"] == "unfinished"
    assert report["run"]["messages"][-1] == f"{number.name} ended the run."
    assert report["checks"]["counts"]["passed"] > 0


def test_a_run_that_an_error_in_a_file_ends_names_no_signal(tmp_path: Path) -> None:
    done, run_dir = play(tmp_path, "-e", f"folder={tmp_path}/runs/local/20261121T105130Z stop=unreadable")
    assert done.returncode == 4
    assert "unreadable.yml" in done.stdout + done.stderr
    assert of(run_dir, "end")[0]["interrupted"] == "An error that Ansible printed"
    assert "An error that Ansible printed ended the run" in done.stdout.split("SUMMARY")[1]


def test_nothing_is_written_where_no_folder_is_announced(tmp_path: Path) -> None:
    done, run_dir = play(tmp_path, "-e", "stop=no")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not run_dir.exists()
    assert "SUMMARY" not in done.stdout
    assert "TIME PER ROLE" not in done.stdout
