# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""muster-health: its settings, outputs and program, and when a node is drained, kept, resumed, restarted or replaced."""

from __future__ import annotations

import datetime
import io
import json
import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health import formats, policy, program, settings
from ansible_collections.muster.fleet.plugins.module_utils.health.run import confirmed

ROOT = Path(__file__).parents[2]
TODAY = datetime.date(2026, 11, 25)
DRAIN = settings.DRAIN


def record(check: str, status: str = "failed", **more: Any) -> dict[str, Any]:
    known = {each.name: each for each in settings.CHECKS}[check]
    base = {
        "component": "node_health",
        "level": "node",
        "check": check,
        "status": status,
        "expected": "8",
        "found": "7",
        "reason": "the driver lists 7 of 8 GPUs" if status != "passed" else "",
        "remedy": known.remedy,
        "seconds": 0.1,
        "severity": known.severity,
        "allowed": False,
    }
    return {**base, **more}


# The settings


def test_an_override_needs_an_owner_and_ends() -> None:
    row = {"check": "swap", "owner": "alice", "until": "2026-11-25", "reason": "ticket 7"}
    want, notes = settings.read(json.dumps({"schema": settings.SCHEMA, "off": [row]}), TODAY)
    assert (want["off"], notes) == ({"swap": row}, [])
    want, notes = settings.read(json.dumps({"schema": settings.SCHEMA, "off": [{**row, "until": "2026-11-24"}]}), TODAY)
    assert want["off"] == {}
    assert notes == ["the entry of swap in off ended on 2026-11-24 and no longer counts; its owner is alice"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "is not JSON"),
        ({"schema": "muster.health/2"}, "is not of schema muster.health/1"),
        ({"mount": []}, "unknown key mount; did you mean mounts?"),
        ({"mounts": "/fsx"}, "mounts is not of type list"),
        ({"dcgm_level": True}, "dcgm_level is not of type int"),
        ({"dcgm_level": 9}, "dcgm_level 9 is none of 1, 2, 3 and 4"),
        ({"limits": {"disk_procent": 1}}, "limits has the unknown key disk_procent; did you mean disk_percent?"),
        ({"drain": {"part": -1}}, "drain.part is not a number of at least 0"),
        ({"allow_not_run": ["clok"]}, "which does not exist; did you mean clock?"),
        ({"xid_severity": {"94": "kill"}}, "xid_severity has 94: kill"),
        ({"off": [{"check": "swap", "until": "2026-12-01"}]}, "the entry of swap in off has no owner"),
        ({"off": [{"check": "swap", "owner": "a"}]}, "has no until"),
        ({"off": [{"check": "swap", "owner": "a", "until": "soon"}]}, "soon of swap is no day; write until as 2026-12-31"),
        ({"off": [{"check": "swop", "owner": "a", "until": "2026-12-01"}]}, "which does not exist; did you mean swap?"),
        ({"severity": [{"check": "swap", "owner": "a", "until": "2026-12-01"}]}, "has no severity"),
        ({"severity": [{"check": "swap", "owner": "a", "until": "2026-12-01", "severity": "kill"}]}, "kill is no severity of swap"),
    ],
)
def test_settings_that_cannot_be_are_refused(document: Any, words: str) -> None:
    text = document if isinstance(document, str) else json.dumps({"schema": settings.SCHEMA, **document})
    with pytest.raises(settings.SettingsError, match="health") as error:
        settings.read(text, TODAY)
    assert words in str(error.value)
    assert str(error.value).endswith((".", "?"))


def test_the_firmware_names_the_type_of_an_instance() -> None:
    want = settings.read("", TODAY)[0]
    assert settings.with_type(want, "p5.48xlarge")["type"]["gpus"] == 8
    assert settings.with_type(want, "Standard PC (Q35)")["type"] is None
    assert settings.with_type({**want, "instance_type": "c7i.large"}, "")["type"] is None


# The outputs


@pytest.mark.parametrize(
    ("records", "level", "code"),
    [
        ([record("gpu_count", "passed")], "periodic", 0),
        ([record("gpu_count")], "periodic", 2),
        ([record("swap")], "periodic", 1),
        ([record("swap")], "prolog", 0),
        ([record("swap", severity="info")], "periodic", 0),
        ([record("gpu_count", "not_run")], "periodic", 3),
        ([record("gpu_count", "not_run")], "prolog", 3),
        ([record("gpu_count", "not_run", allowed=True)], "periodic", 0),
        ([record("gpu_count", "not_run", rehearsed="passed")], "periodic", 3),
        ([record("gpu_count", "not_run", rehearsed="passed")], "prolog", 0),
        ([record("gpu_count", "not_run", rehearsed="failed")], "prolog", 2),
        ([record("gpu_count", "not_run", stand_in=True)], "prolog", 0),
        ([], "periodic", 3),
        ([], "prolog", 0),
    ],
)
def test_exit_codes_are_those_of_nagios(records: list, level: str, code: int) -> None:
    """For Slurm's prolog, a code other than 0 drains the node."""
    assert formats.code(records, level) == code


def test_the_line_for_nagios() -> None:
    text = formats.nagios([record("gpu_count"), record("swap", "passed")], "periodic", ["a note"])
    first, second, third = text.splitlines()
    assert first == "MUSTER CRITICAL - gpu_count: the driver lists 7 of 8 GPUs | passed=1 failed=1 not_run=0 seconds=0.200s"
    assert second.startswith("[reboot] gpu_count: the driver lists 7 of 8 GPUs. Reset the GPU")
    assert third == "a note"
    assert formats.nagios([], "full").startswith("MUSTER UNKNOWN - no check of level full applies to this node")


def test_the_textfile_for_prometheus() -> None:
    alarm = {"check": "drift", "image": 'ami-"1"', "nodes": 4}
    text = formats.prometheus([record("gpu_count"), record("clock", "not_run"), record("swap", "passed")], "periodic", 1764064000.5, alarm)
    assert 'muster_health_check{check="gpu_count",severity="reboot"} 0\n' in text
    assert 'muster_health_check{check="clock",severity="drain"} -1\n' in text
    assert 'muster_health_check{check="swap",severity="warning"} 1\n' in text
    assert 'muster_health_image_alarm{check="drift",image="ami-\\"1\\""} 4\n' in text
    assert 'muster_health_run_timestamp_seconds{level="periodic"} 1764064000.500\n' in text
    for name in {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}:
        assert f"# TYPE {name} gauge\n" in text


# When a node leaves service

SHOWN = (
    "NodeName={} Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 AvailableFeatures={} ActiveFeatures=p5 Gres=gpu:h100:8 NodeAddr=10.0.0.1"
    " State={} ThreadsPerCore=1 Partitions=main BootTime=1764060000 CfgTRES=cpu=1 Comment={} Reason={} [root@{}]"
)
QUIET = "NodeName={} Arch=x86_64 AvailableFeatures=(null) ActiveFeatures=(null) State={} Partitions=main,gpu BootTime=1764060000"


def test_what_scontrol_says_of_nodes() -> None:
    own = "muster:xid: XID 79; restart it [image ami-1]"
    text = "\n".join([
        SHOWN.format("n1", "p5,HealthCheck:Passed", "IDLE+DRAIN", "a note of mine", own, 1764063000),
        QUIET.format("n2", "MIXED"),
    ])  # fmt: skip
    assert policy.nodes_of(text) == {
        "n1": {
            "state": "IDLE+DRAIN",
            "reason": "muster:xid: XID 79; restart it [image ami-1]",
            "since": 1764063000,
            "comment": "a note of mine",
            "features": ["p5", "HealthCheck:Passed"],
            "partitions": ["main"],
        },
        "n2": {"state": "MIXED", "reason": "", "since": 0, "comment": "", "features": [], "partitions": ["main", "gpu"]},
    }
    for text in ("", "slurm_load_node error: Unable to contact slurm controller", "{"):
        with pytest.raises(ValueError, match="printed no node"):
            policy.nodes_of(text)


def nodes(**states: Any) -> dict[str, dict[str, Any]]:
    """{n1: what is not idle}, in a partition of 40."""
    base = {"state": "IDLE", "reason": "", "since": 0, "comment": "", "features": [], "partitions": ["main"]}
    return {f"n{i}": {**base, **states.get(f"n{i}", {})} for i in range(1, 41)}


def decide(fleet: dict[str, dict[str, Any]], *checks: str, **more: Any) -> dict[str, Any]:
    drains = [record(check) for check in checks]
    given = {"now": 10000, "todo": ("restart it (1 of 2)", True), "image": "ami-1", "settings": DRAIN, **more}
    return policy.decide("n1", fleet, drains, given.pop("settings"), **given)


def test_a_node_is_drained_for_its_worst_check() -> None:
    found = decide(nodes(), "gpu_count")
    assert found["action"] == "drain"
    assert found["reason"] == "muster:gpu_count: the driver lists 7 of 8 GPUs; restart it (1 of 2) [image ami-1]"
    assert policy.commands("n1", nodes()["n1"], found, False) == [
        ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=" + found["reason"]],
        ["scontrol", "update", "NodeName=n1", "AvailableFeatures=HealthCheck:Failed"],
    ]


def drained(reason: str, state: str = "IDLE+DRAIN", since: int = 9000) -> dict[str, Any]:
    return {"state": state, "reason": reason, "since": since}


@pytest.mark.parametrize(
    ("reason", "checks", "hooks", "action"),
    [
        ("muster:gpu_count: it; restart it (1 of 2)", (), (), "resume"),
        ("muster:gpu_count: it; restart it (1 of 2)", ("clock",), (), "update"),
        ("Prolog error", (), ("prolog",), "resume"),
        ("Epilog error", ("xid",), ("epilog",), "update"),
        # Whoever else drained the node decides.
        ("Prolog error", (), (), "none"),
        ("bad disk, ticket 4711", (), ("prolog",), "none"),
        ("bad disk, ticket 4711", ("gpu_count",), (), "none"),
        ("muster:nccl: busbw 80 GB/s", (), (), "none"),
        ("muster:diagnose: slow", ("gpu_count",), (), "none"),
        ("", (), (), "none"),
        ("Kill task failed", ("gpu_count",), (), "none"),
    ],
)
def test_only_own_drains_are_undone(reason: str, checks: tuple, hooks: tuple, action: str) -> None:
    found = decide(nodes(n1=drained(reason)), *checks, hooks=hooks)
    assert found["action"] == action
    if action == "none":
        assert found["note"].startswith("n1 stays IDLE+DRAIN: ")
        assert not [argv for argv in policy.commands("n1", nodes()["n1"], found, True) if any("State=" in word for word in argv)]


def test_a_reason_that_says_the_same_keeps_its_time() -> None:
    first = decide(nodes(), "gpu_count")["reason"]
    assert decide(nodes(n1=drained(first)), "gpu_count")["action"] == "none"
    assert decide(nodes(n1=drained(first)), "gpu_count", todo=("replace it, 2 restarts did not help", False))["action"] == "update"


def test_the_budget_of_a_cause() -> None:
    """5 % of 40 nodes are 2 in an hour."""
    one, two = drained("muster:clock: it; x"), drained("muster:clock: it; x")
    assert decide(nodes(n2=one), "clock")["action"] == "drain"
    found = decide(nodes(n2=one, n3=two), "clock")
    assert found["action"] == "hold"
    assert found["note"].startswith("n1 is not drained for clock: 2 of 40 nodes were within 3600 s, which is the budget")
    assert found["comment"].startswith("muster:clock: ")
    assert decide(nodes(n2=one, n3=two), "gpu_count")["action"] == "drain", "another cause"
    assert decide(nodes(n2=one, n3={**two, "since": 6000}), "clock")["action"] == "drain", "more than an hour ago"
    assert decide(nodes(n2=one, n3={**two, "state": "IDLE"}), "clock")["action"] == "drain", "it came back"
    assert decide(nodes(), "clock", settings={**DRAIN, "part": 0})["action"] == "hold"


def test_many_nodes_of_one_image_are_a_fault_of_the_image() -> None:
    alike = {f"n{i}": {"comment": "muster:drift: it; x [image ami-1]"} for i in range(3, 6)}
    found = decide(nodes(n2=drained("muster:drift: it; x [image ami-1]", since=0), **alike), "drift")
    assert found["action"] == "hold", "10 % of 40 nodes, and this is one more"
    assert found["alarm"] == {"check": "drift", "image": "ami-1", "nodes": 5}
    assert found["note"].startswith("5 nodes of image ami-1 fail drift: this is a fault of the image, so n1 is not drained")
    assert (
        decide(nodes(**{name: {"comment": node["comment"].replace("ami-1", "ami-0")} for name, node in alike.items()}), "drift")["alarm"]
        is None
    )


def test_a_mark_goes_when_the_node_is_well() -> None:
    well = decide(nodes(n1={"comment": "muster:clock: it; x"}))
    assert (well["action"], well["comment"]) == ("none", "")
    assert decide(nodes(n1={"comment": "rack 7"}))["comment"] is None


def test_two_restarts_and_then_another_machine() -> None:
    state: dict[str, Any] = {}
    lost = record("gpu_count")
    said = [policy.advice(lost, policy.boots_with(state, "gpu_count", f"boot-{i}", 1000 * i), 2) for i in (0, 0, 1, 2)]
    assert said == [
        ("restart it (1 of 2)", True),
        ("restart it (1 of 2)", True),
        ("restart it (2 of 2)", True),
        ("replace it, 2 restarts did not help", False),
    ]
    assert policy.boots_with(state, "gpu_count", "boot-9", 2000 + policy.WEEK) == 1, "a week later the node starts again"
    assert policy.advice(record("gpu_bus"), 1, 2) == ("replace it", False)


def test_a_restart_waits_until_no_job_runs_and_somebody_allowed_it() -> None:
    own = "muster:gpu_count: it; restart it (1 of 2)"
    allowed = {**DRAIN, "reboot": True}
    assert not decide(nodes(n1=drained(own)), "gpu_count")["reboot"]
    assert decide(nodes(n1=drained(own)), "gpu_count", settings=allowed)["reboot"]
    for state in ("ALLOCATED+DRAIN", "MIXED+DRAIN", "IDLE+DRAIN+REBOOT_ISSUED", "IDLE+COMPLETING+DRAIN"):
        assert not decide(nodes(n1=drained(own, state)), "gpu_count", settings=allowed)["reboot"], state
    found = decide(nodes(n1=drained(own)), "gpu_count", settings=allowed)
    assert policy.commands("n1", nodes()["n1"], found, False)[-1][:4] == ["scontrol", "reboot", "ASAP", "nextstate=RESUME"]


def test_an_unknown_name_drains_nothing() -> None:
    found = policy.decide("other", nodes(), [record("gpu_count")], DRAIN, now=1)
    assert (found["action"], found["note"]) == ("none", "Slurm has no node other; compare the node's name with slurm.conf.")


def test_what_flickers_needs_two_runs() -> None:
    state: dict[str, Any] = {}
    assert [each["check"] for each in confirmed([record("clock"), record("gpu_count"), record("gpu_ecc", "not_run")], state)] == [
        "gpu_count"
    ]
    assert [each["check"] for each in confirmed([record("clock"), record("gpu_ecc", "not_run")], state)] == ["gpu_ecc", "clock"]
    assert confirmed([record("clock", "passed"), record("gpu_ecc", "passed")], state) == []
    assert confirmed([record("clock")], state) == [], "it was well in between"
    assert confirmed([record("swap"), record("gpu_count", "not_run", allowed=True)], {}) == []


def test_a_day_of_noise_drains_no_node() -> None:
    """1,000 nodes, a run each five minutes: a check in 10,000 is wrong for one run, and a tool in 1,000 does not answer in time once."""
    dice = random.Random(7)
    flickering = ["clock", "gpu_temperature", "gpu_throttle", "efa_counters", "memory_available", "mounts"]
    noisy, drains = 0, 0
    for _node in range(1000):
        state: dict[str, Any] = {}
        for _run in range(288):
            wrong = [record(name) for name in flickering if dice.random() < 1e-4]
            # A tool that is late twice within a second has failed its run (run_checks looks again).
            wrong += [record("gpu_ecc", "not_run")] if dice.random() < 1e-3 * 1e-3 * 40 else []
            noisy += bool(wrong)
            drains += len(confirmed(wrong, state)) if wrong or state.get("strikes") else 0
    assert noisy > 100
    assert drains == 0


# The program


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
    assert calls(slurm) == ["update NodeName=n1 State=RESUME", "update NodeName=n1 AvailableFeatures=HealthCheck:Passed"]
    assert "resumed, because its checks pass again" in out


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
