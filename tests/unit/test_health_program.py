# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The program muster-health, with stand-ins for Slurm's commands."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from health_records import QUIET, SHOWN

from ansible_collections.muster.fleet.plugins.module_utils.health import formats, program, settings

DRAIN = settings.DRAIN


def run(tmp_path: Path, *argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = program.main(["--settings", str(tmp_path / "health.json"), "--state", str(tmp_path / "state"), *argv], out, err)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that prints tmp_path/nodes and keeps its arguments, and no second look."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/scontrol"
    tool.write_text(f'#!/bin/sh\ncase $1 in -o) cat {tmp_path}/nodes;; *) echo "$@" >>{tmp_path}/calls;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(program.time, "sleep", lambda _seconds: None)
    (tmp_path / "nodes").write_text(QUIET.format("n1", "IDLE") + "\n")
    (tmp_path / "health.json").write_text(
        json.dumps({"schema": settings.SCHEMA, "container": True, "allow_not_run": ["drift"], "disks": [], "mounts": ["/gone"]})
    )
    return tmp_path


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


def test_a_node_drains_itself_and_comes_back(slurm: Path) -> None:
    argv = ("--level", "periodic", "--slurm", "--name", "n1")
    assert run(slurm, *argv)[0] == 2
    assert [line for line in calls(slurm) if "State=" in line] == [], "one run is not enough for a mount"
    code, out, _err = run(slurm, *argv)
    reason = "muster:mounts: /gone is not mounted; mount it again; look at its server"
    assert f"update NodeName=n1 State=DRAIN Reason={reason}" in calls(slurm)
    assert f"drained: {reason}" in out
    (slurm / "calls").unlink()
    (slurm / "nodes").write_text(SHOWN.format("n1", "HealthCheck:Failed", "IDLE+DRAIN", "", reason, 1764063000) + "\n")
    (slurm / "health.json").write_text(json.dumps({"schema": settings.SCHEMA, "container": True, "allow_not_run": ["drift"], "disks": []}))
    code, out, _err = run(slurm, *argv)
    assert code == 0, out
    assert calls(slurm) == [
        "update NodeName=n1 State=RESUME",
        "update NodeName=n1 AvailableFeatures=HealthCheck:Passed ActiveFeatures=HealthCheck:Passed",
    ]
    assert "resumed, because its checks pass again" in out


def give_jobs(folder: Path) -> None:
    """A squeue with three jobs: one that may be requeued, one that may not, and one that has just ended."""
    (folder / "bin/squeue").write_text(f'#!/bin/sh\necho squeue "$@" >>{folder}/calls\nprintf "7\\n8\\n9_2\\n"\n')
    (folder / "bin/squeue").chmod(0o755)
    (folder / "bin/scontrol").write_text(
        f"""#!/bin/sh
case "$*" in
"-o show nodes") cat {folder}/nodes ;;
"-o show job 7") echo "JobId=7 Requeue=1 Restarts=0 BatchFlag=1" ;;
"-o show job 8") echo "JobId=8 Requeue=0 Restarts=0 BatchFlag=1" ;;
"-o show job 9_2") echo "JobId=11 Requeue=1 Restarts=0 BatchFlag=1" ;;
*AvailableFeatures*) echo "Active features not subset" >&2; exit 1 ;;
"requeue 9_2") echo "Job has already finished" >&2; exit 1 ;;
*) echo "$@" >>{folder}/calls ;;
esac
"""
    )


def test_a_drain_requeues_the_jobs_that_may_start_again(slurm: Path) -> None:
    give_jobs(slurm)
    document = json.loads((slurm / "health.json").read_text())
    for least, wanted in (("drain", ["requeue 7"]), ("reset", [])):
        (slurm / "health.json").write_text(json.dumps({**document, "drain": {"requeue": least}}))
        (slurm / "calls").unlink(missing_ok=True)
        shutil.rmtree(slurm / "state", ignore_errors=True)
        argv = ("--level", "periodic", "--slurm", "--name", "n1")
        run(slurm, *argv)
        assert not [line for line in calls(slurm) if "requeue" in line], "it is not drained yet"
        _code, out, _err = run(slurm, *argv)
        done = calls(slurm)
        assert [line for line in done if line.startswith("requeue")] == wanted
        if wanted:
            assert [line for line in done if line.startswith("squeue")] == [
                "squeue --noheader --states=RUNNING,SUSPENDED --nodelist=n1 --format=%i"
            ]
            drain = next(number for number, line in enumerate(done) if "State=DRAIN" in line)
            assert drain < done.index("requeue 7"), "or Slurm could start it here again"
            assert out.splitlines()[-4:] == [
                "scontrol update failed: Active features not subset; look at scontrol ping.",
                "requeued job 7",
                "job 8 goes on, because it may not be requeued",
                "not every job was requeued: scontrol requeue failed: Job has already finished",
            ]
    run(slurm, "--level", "prolog", "--name", "n1")
    assert not [line for line in calls(slurm) if "queue" in line], "the prolog never does"


def test_a_node_that_is_not_configured_yet_drains_nothing(slurm: Path) -> None:
    """Between the install and the configure phase slurmd may already call it."""
    (slurm / "health.json").unlink()
    for argv in (("--level", "periodic", "--slurm", "--name", "n1"), ("--level", "prolog", "--hook", "prolog")):
        for _time in range(2):
            code, out, _err = run(slurm, *argv)
            assert (code, "does not exist yet, so nothing is drained" in out) == (0, True)
    assert calls(slurm) == []
    assert not (slurm / "state").exists()


def test_slurm_that_does_not_answer_drains_nothing(slurm: Path) -> None:
    (slurm / "bin/scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    for _time in range(2):
        code, out, _err = run(slurm, "--level", "periodic", "--slurm", "--name", "n1")
    assert code == 2
    assert "Slurm did not answer, so nothing was drained or resumed: scontrol -o ended with code 1: Unable to contact" in out


def test_the_prolog_heeds_the_last_verdict(slurm: Path) -> None:
    (slurm / "health.json").write_text(json.dumps({"schema": settings.SCHEMA, "container": True, "verdict_seconds": 900, "disks": []}))
    code, out, _err = run(slurm, "--level", "prolog", "--hook", "prolog")
    assert (code, "no periodic run has ended on this node yet" in out) == (3, True)
    assert (slurm / "state/prolog.failed").exists(), "a later periodic run may end the drain that follows"
    (slurm / "state/state.json").write_text(json.dumps({"verdict": {"at": time.time() - 10, "drains": []}}))
    assert run(slurm, "--level", "prolog")[0] == 0
    (slurm / "state/state.json").write_text(json.dumps({"verdict": {"at": time.time() - 10, "drains": ["gpu_count: the driver lists 7"]}}))
    code, out, _err = run(slurm, "--level", "prolog")
    assert (code, "gpu_count: the driver lists 7" in out) == (2, True)
    (slurm / "state/state.json").write_text(json.dumps({"verdict": {"at": time.time() - 901, "drains": []}}))
    assert "the last periodic run was 901 s ago" in run(slurm, "--level", "prolog")[1]


def test_a_full_folder_of_textfiles_is_one_sentence(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "health.json").write_text(json.dumps({"schema": settings.SCHEMA, "container": True, "allow_not_run": ["drift"], "disks": []}))

    def full(source: str, target: str) -> None:
        if target.endswith(".prom"):
            raise OSError(28, "No space left on device")
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(program.os, "replace", full)
        code, _out, err = run(slurm, "--textfile", str(slurm / "it.prom"))
    assert code == 0
    assert err == f"muster-health: {slurm}/it.prom cannot be written: No space left on device.\n"
    run(slurm, "--textfile", str(slurm / "it.prom"))
    assert 'muster_health_check{check="mounts"' in (slurm / "it.prom").read_text()
    assert [path.name for path in slurm.iterdir() if path.name.startswith("it.prom.")] == []


@pytest.mark.parametrize("umask", [0, 0o077])
def test_a_file_is_written_through_no_link_and_has_its_own_mode(tmp_path: Path, umask: int) -> None:
    victim, textfile = tmp_path / "victim", tmp_path / "folder/it.prom"
    victim.write_text("of root")
    textfile.parent.mkdir()
    textfile.with_name(f"it.prom.{os.getpid()}").symlink_to(victim)
    before = os.umask(umask)
    try:
        program.replace_file(str(textfile), "1")
    finally:
        os.umask(before)
    assert victim.read_text() == "of root"
    assert (textfile.read_text(), stat.S_IMODE(textfile.stat().st_mode)) == ("1", 0o644)


def test_a_link_to_a_device_is_replaced(slurm: Path) -> None:
    (slurm / "it.prom").symlink_to("/dev/null")
    run(slurm, "--check", "swap", "--output", str(slurm / "it.prom"))
    assert not (slurm / "it.prom").is_symlink() and "MUSTER" in (slurm / "it.prom").read_text()


def test_output_to_a_pipe_leaves_the_pipe(slurm: Path) -> None:
    """As root, to replace /dev/null would break the node."""
    pipe = slurm / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    try:
        run(slurm, "--check", "swap", "--output", str(pipe))
        assert b"MUSTER" in os.read(reader, 4096)
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_settings_and_state_that_cannot_be_read(slurm: Path) -> None:
    (slurm / "health.json").write_text("{")
    code, out, err = run(slurm)
    assert (code, out) == (3, "")
    assert err.startswith("muster-health: ") and err.count("\n") == 1
    (slurm / "health.json").write_text("")
    (slurm / "state").mkdir(exist_ok=True)
    (slurm / "state/state.json").write_text("{torn")
    assert run(slurm, "--check", "mounts")[0] == 0


def test_json_is_one_record_a_check(slurm: Path) -> None:
    document = json.loads(run(slurm, "--format", "json", "--check", "mounts", "--check", "swap", "--name", "n1")[1])
    assert (document["schema"], document["verdict"]) == (formats.SCHEMA, "critical")
    swap, mounts = sorted(document["checks"], key=lambda each: each["check"], reverse=True)
    assert mounts["reason"] == "/gone is not mounted" and mounts["host"] == "n1"
    assert swap["reason"] == "in a container it belongs to the host"


def test_the_list_has_every_check(slurm: Path) -> None:
    assert [line.split()[0] for line in run(slurm, "--list")[1].splitlines()[1:]] == settings.NAMES


def test_it_starts_fast(slurm: Path) -> None:
    """Processor time, because other programs may have the machine."""
    code = f"import resource,sys\nfrom {program.__name__} import main\nmain(sys.argv[1:])\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)"
    argv = [sys.executable, "-c", code, "--list"]
    times = [
        float(subprocess.run(argv, capture_output=True, text=True, check=True, env=os.environ).stdout.split()[-1]) for _time in range(3)
    ]
    assert min(times) < 0.3, times
