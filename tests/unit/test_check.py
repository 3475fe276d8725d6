# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Probes: what passes, what fails, and what could not run. A probe that could not run never passes."""

from __future__ import annotations

import getpass
import grp
import json
import os
import subprocess
import sys
import time

import pytest

from ansible_collections.muster.fleet.plugins.filter.failed_checks import failed_checks, failed_hosts
from ansible_collections.muster.fleet.plugins.module_utils.node import check as logic
from ansible_collections.muster.fleet.plugins.modules import check as module

# `systemctl show --property=LoadState,SubState,Result,ActiveState,UnitFileState UNIT` of systemd 257 on Debian 13.
UNITS = {
    "munge": "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nUnitFileState=enabled",
    "slurmd": "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nUnitFileState=enabled",
    "sackd": "LoadState=loaded\nActiveState=inactive\nSubState=dead\nResult=success\nUnitFileState=disabled",
    "nothing": "LoadState=not-found\nActiveState=inactive\nSubState=dead\nResult=success\nUnitFileState=",
}


def systemd(argv, **_options):
    return 0, UNITS[argv[-1]], ""


def record(check: dict, **options) -> dict:
    return logic.run_check({"check": "it", "remedy": "Mend it.", **check}, "common", "node", sleep=lambda _seconds: None, **options)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_record_has_the_contracts_keys():
    found = record({"argv": python("print('yes')"), "equals": "yes"})
    keys = ["component", "level", "check", "status", "expected", "found", "reason", "remedy", "seconds"]
    assert list(found) == keys
    assert [found[key] for key in keys[:-1]] == ["common", "node", "it", "passed", "yes", "yes", "", "Mend it."]
    assert 0 < found["seconds"] < 30


@pytest.mark.parametrize(
    ("check", "status", "reason"),
    [
        ({"argv": python("print('yes')"), "equals": "yes"}, "passed", ""),
        ({"argv": python("print('yes indeed')"), "equals": "yes"}, "failed", "printed something else"),
        ({"argv": python("print('a\\nSTATUS: Success')"), "matches": "^STATUS: +Success$"}, "passed", ""),
        ({"argv": python("print('Failure')"), "matches": "Success"}, "failed", "printed something else"),
        ({"argv": python("raise SystemExit(3)")}, "failed", "ended with code 3"),
        ({"argv": python("raise SystemExit(3)"), "rc": 3}, "passed", ""),
        ({"argv": python("pass"), "rc": 3}, "failed", "ended with code 0"),
        ({"argv": python("print(input())"), "stdin": "credential", "equals": "credential"}, "passed", ""),
        # The right text does not make up for the wrong code.
        ({"argv": python("print('yes'); raise SystemExit(1)"), "equals": "yes"}, "failed", "ended with code 1"),
        ({"argv": python("print(0)"), "equals": 0}, "passed", ""),
    ],
)
def test_commands(check, status, reason):
    found = record(check)
    assert found["status"] == status, found
    assert reason in found["reason"]


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("import sys; sys.exit('srun: error: all nodes are busy')", "not_run", "all nodes are busy with jobs"),
        ("import sys; sys.exit('srun: error: invalid account')", "failed", "ended with code 1"),
        # A pipe ends with the code of its last part, so the probe also reads the error of a command that ended with 0.
        ("import sys; print('nodes are busy', file=sys.stderr)", "not_run", "all nodes are busy with jobs"),
        ("import sys; print('compute-1'); print('nodes are busy', file=sys.stderr)", "passed", ""),
    ],
)
def test_what_kept_a_command_from_its_work_is_a_reason_not_to_run(program, status, reason):
    found = record({"argv": python(program), "equals": "compute-1", "not_run_when": {"nodes are busy": "all nodes are busy with jobs"}})
    assert found["status"] == status
    assert reason in found["reason"]


def test_a_command_that_is_not_there_did_not_run():
    found = record({"argv": ["muster-no-such-tool"]})
    assert (found["status"], found["reason"]) == ("not_run", "muster-no-such-tool is not installed")


def test_a_command_that_prints_nothing_shows_nothing():
    found = record({"argv": ["true"], "equals": ""})
    assert (found["status"], found["reason"]) == ("not_run", "it expects that nothing is printed, which proves nothing")
    found = record({"argv": ["true"], "matches": "^(none)?$"})
    assert (found["status"], found["reason"]) == ("failed", "true printed something else: nothing")


def test_what_cannot_be_looked_at_did_not_run(tmp_path):
    (tmp_path / "tool").write_text("no program")
    found = record({"argv": [str(tmp_path / "tool")]})
    assert (found["status"], found["reason"]) == ("not_run", f"{tmp_path}/tool cannot be read or run: Permission denied")
    assert record({"file": str(tmp_path), "matches": "x"})["status"] == "not_run"


def test_a_command_that_does_not_end_failed():
    started = time.monotonic()
    found = record({"argv": python("import time; time.sleep(60)"), "timeout": 0.3})
    assert time.monotonic() - started < 20
    assert (found["status"], found["found"]) == ("failed", "no answer in 0.3 s")
    assert found["reason"].endswith("did not end within 0.3 s")


def test_another_user_is_reached_by_runuser(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def run(argv, **_options):
        seen.append(argv)
        return subprocess.CompletedProcess(argv, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    record({"argv": ["srun", "hostname"], "user": "muster"})
    assert seen == [["runuser", "-u", "muster", "--", "srun", "hostname"]]


def test_retries_end_at_the_first_success():
    answers = iter([(1, "", "down"), (1, "", "down"), (0, "UP", ""), (1, "", "down")])
    waited = []
    check = {"check": "it", "remedy": "Wait.", "argv": ["ping"], "retries": 9}
    found = logic.run_check(check, "slurm", "fleet", run=lambda *_a, **_k: next(answers), sleep=waited.append)
    assert (found["status"], waited) == ("passed", [1, 1])


def test_retries_are_used_up():
    waited = []
    check = {"check": "it", "remedy": "Wait.", "argv": ["ping"], "retries": 3}
    found = logic.run_check(check, "slurm", "fleet", run=lambda *_a, **_k: (1, "", "down"), sleep=waited.append)
    assert (found["status"], len(waited)) == ("failed", 3)


def test_long_output_is_cut():
    found = record({"argv": python("print('x' * 5000)"), "equals": "y"})
    assert len(found["found"]) == 400


def test_files(tmp_path):
    path = tmp_path / "limits.conf"
    path.write_text("* - memlock unlimited\n")
    path.chmod(0o640)
    owner = {"owner": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}
    for wanted, status, found in [
        ({}, "passed", "present"),
        ({"mode": "0640", **owner}, "passed", None),
        ({"mode": "0600"}, "failed", "mode 0640"),
        ({"owner": "nobody"}, "failed", f"owner {owner['owner']}"),
        ({"matches": "memlock unlimited$"}, "passed", None),
        ({"matches": "memlock 64"}, "failed", "no such text"),
        ({"absent": True}, "failed", "present"),
    ]:
        result = record({"file": str(path), **wanted})
        assert result["status"] == status, wanted
        assert found is None or result["found"] == found
    path.unlink()
    assert record({"file": str(path)})["reason"] == f"{path} does not exist"
    assert record({"file": str(path), "absent": True})["status"] == "passed"
    path.symlink_to("nowhere")
    assert record({"file": str(path), "absent": True})["status"] == "failed"


@pytest.mark.parametrize("wanted", [{}, {"mode": "0600"}, {"matches": "x"}])
def test_a_link_to_nowhere_is_no_file(tmp_path, wanted):
    path = tmp_path / "key"
    path.symlink_to("nowhere")
    assert record({"file": str(path), **wanted})["status"] == "failed"


@pytest.mark.parametrize(
    ("check", "status", "found"),
    [
        ({"unit": "munge"}, "passed", "active"),
        ({"unit": "munge", "enabled": True}, "passed", "active, enabled"),
        ({"unit": "munge", "enabled": False}, "failed", "active, enabled (running, result success)"),
        ({"unit": "munge", "active": False}, "failed", "active (running, result success)"),
        ({"unit": "slurmd"}, "failed", "failed (failed, result exit-code)"),
        ({"unit": "sackd", "active": False, "enabled": False}, "passed", "inactive, disabled"),
        ({"unit": "nothing"}, "failed", "not found"),
        ({"unit": "nothing", "active": False}, "failed", "not found"),
    ],
)
def test_units(check, status, found):
    result = record(check, run=systemd)
    assert (result["status"], result["found"]) == (status, found)


def test_without_systemd_a_unit_is_not_run():
    def no_program(argv, **_options):
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    assert record({"unit": "munge"}, run=no_program)["status"] == "not_run"
    bus = "System has not been booted with systemd as init system (PID 1). Can't operate."
    found = record({"unit": "munge"}, run=lambda *_a, **_k: (1, "", bus))
    assert (found["status"], found["found"], found["reason"]) == ("not_run", bus, "systemd does not answer")


def test_a_unit_that_gives_no_answer_failed():
    def hangs(argv, timeout, **_options):
        raise subprocess.TimeoutExpired(argv, timeout)

    assert record({"unit": "munge"}, run=hangs)["status"] == "failed"


def test_values():
    assert record({"value": " as it was\n", "equals": "as it was"})["status"] == "passed"
    assert record({"value": "jq is missing", "equals": "as it was"})["found"] == "jq is missing"
    assert record({"value": "16", "matches": "^1[0-9]$"})["status"] == "passed"


@pytest.mark.parametrize("wanted", [{"equals": ""}, {"matches": "^a*$"}, {"matches": "^$"}, {}])
def test_an_empty_value_shows_nothing(wanted):
    found = record({"value": " \n", **wanted})
    assert (found["status"], found["reason"]) == ("failed", "the value is empty")


def test_a_check_may_ask_for_an_empty_value_by_name():
    found = record({"value": "", "empty": "no fault"})
    assert (found["status"], found["found"], found["expected"]) == ("passed", "no fault", "no fault")
    found = record({"value": "libfabric is missing.", "empty": "no fault"})
    assert (found["status"], found["found"], found["expected"]) == ("failed", "libfabric is missing.", "no fault")


def test_the_node_is_compared_with_its_manifest(tmp_path, monkeypatch):
    path, artefact = tmp_path / "manifest.json", tmp_path / "jq"
    monkeypatch.setattr(logic.manifest, "PATH", str(path))
    check = {"manifest": "common", "remedy": ""}
    assert (record(check)["status"], record(check)["found"]) == ("failed", "not installed yet")
    entry = {"version": "1", "inputs_sha256": "x", "artefacts": [str(artefact)], "packages": {}}
    path.write_text(json.dumps({"schema": "muster.manifest/1", "components": {"common": entry}}))
    assert record(check)["found"] == f"{artefact} is missing"
    assert record(check)["remedy"].startswith("Run the install phase of role common again; ")
    artefact.touch()
    assert (record(check)["status"], record(check)["found"]) == ("passed", "as recorded")
    path.write_text("{")
    assert (record(check)["status"], "is not JSON" in record(check)["reason"]) == ("not_run", True)


def test_a_reason_not_to_run_is_kept():
    found = record({"argv": python("raise SystemExit(1)"), "not_run": "no GPU here"})
    assert (found["status"], found["reason"]) == ("not_run", "no GPU here")
    assert record({"argv": python("raise SystemExit(1)"), "not_run": ""})["status"] == "failed"


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ({"remedy": "x", "argv": ["true"]}, "no name"),
        ({"check": "Not A Name", "remedy": "x", "argv": ["true"]}, "no name"),
        ({"check": "it", "argv": ["true"]}, "Check it has no remedy"),
        ({"check": "it", "remedy": "x"}, "exactly one of argv, file, manifest, unit, value, it has none"),
        ({"check": "it", "remedy": "x", "argv": ["true"], "unit": "munge"}, "it has argv, unit"),
        ({"check": "it", "remedy": "x", "file": "/x", "owned": "root"}, "unknown field owned for a probe of kind file"),
        ({"check": "it", "remedy": "x", "value": "x", "retries": 3}, "unknown field retries for a probe of kind value"),
        ({"check": "it", "remedy": "x", "value": "x", "empty": ""}, "needs a text in empty"),
        ({"check": "it", "remedy": "x", "value": "x", "empty": "no fault", "equals": ""}, "no equals or matches beside it"),
        ({"check": "it", "remedy": "x", "argv": ["true"], "not_run_when": "busy"}, "a not_run_when that is not a mapping"),
        ({"check": "it", "remedy": "x", "argv": ["true"], "not_run_when": {"busy": ""}}, "a not_run_when that is not a mapping"),
    ],
)
def test_a_check_that_is_not_well_formed(check, says):
    with pytest.raises(logic.CheckError, match=says):
        logic.validate(check)


PASSED = {"component": "common", "check": "limits", "status": "passed", "expected": "", "found": "", "reason": "", "remedy": "-"}
FAILED = {
    **PASSED,
    "check": "nofile",
    "status": "failed",
    "expected": "5",
    "found": "4",
    "reason": "the value differs",
    "remedy": "Raise it.",
}
NOT_RUN = {**PASSED, "check": "clock", "status": "not_run", "reason": "in a container", "remedy": "Use a machine."}


def test_what_fails_a_host():
    assert logic.failing([PASSED]) == []
    assert logic.failing([PASSED, FAILED, NOT_RUN]) == [FAILED, NOT_RUN]
    assert logic.failing([FAILED, NOT_RUN], ["common.clock"]) == [FAILED]
    # allow_not_run does not allow a failure, and it covers only the component that it names.
    assert logic.failing([FAILED, NOT_RUN], ["common.nofile", "slurm.clock"]) == [FAILED, NOT_RUN]


def test_what_may_not_run_takes_along_what_needs_it():
    needs = {**NOT_RUN, "check": "drift", "reason": "it needs clock, which could not run"}
    assert logic.failing([NOT_RUN, needs], ["common.clock"]) == []
    assert logic.failing([NOT_RUN, needs], ["common.drift"]) == [NOT_RUN]
    assert logic.failing([{**needs, "reason": "it needs clock, which failed"}], ["common.clock"]) != []


def test_sentences_name_check_reason_and_remedy():
    assert logic.sentence(FAILED) == "common.nofile failed: the value differs (expected 5, found 4). Remedy: Raise it."
    wanted = "Remedy: Use a machine. To go on without it, name common.clock in muster_allow_not_run."
    assert logic.sentence(NOT_RUN) == f"common.clock could not run: in a container. {wanted}"


def test_the_filter_reads_every_components_records():
    facts = {
        "muster_checks_common_node": [PASSED, NOT_RUN],
        "muster_checks_slurm_fleet": [{**FAILED, "component": "slurm"}],
        "os_family": "x",
    }
    assert [text.split()[0] for text in failed_checks(facts)] == ["common.clock", "slurm.nofile"]
    assert [text.split()[0] for text in failed_checks(facts, ["common.clock"])] == ["slurm.nofile"]


def test_the_module_records_all_and_fails_for_none(call):
    checks = [
        {"check": "one", "remedy": "x", "argv": ["false"]},
        {"check": "two", "remedy": "x", "argv": ["muster-no-such-tool"]},
        {"check": "three", "remedy": "x", "argv": ["true"]},
    ]
    result = call(module, component="common", level="node", checks=checks)
    assert [each["status"] for each in result["muster_checks"]] == ["failed", "not_run", "passed"]
    # Passed ones stay out of the facts, which Ansible keeps for all hosts.
    assert result["ansible_facts"] == {"muster_checks_common_node": result["muster_checks"][:2]}
    assert not result["changed"]
    assert call(module, check_mode=True, component="common", level="node", checks=checks)["muster_checks"][0]["status"] == "failed"


def test_the_module_runs_nothing_when_one_check_is_damaged(call, tmp_path):
    checks = [{"check": "one", "remedy": "x", "argv": ["touch", str(tmp_path / "ran")]}, {"check": "two", "argv": ["true"]}]
    result = call(module, component="common", level="node", checks=checks)
    assert result["failed"]
    assert result["msg"] == "Check two has no remedy: say what a person should do when it fails."
    assert not (tmp_path / "ran").exists()


def test_what_needs_a_check_that_did_not_pass_is_not_run() -> None:
    ran = []

    def run(argv, **_options):
        ran.append(argv[0])
        return (1 if argv[0] == "b" else 0), "", ""

    checks = [{"check": name, "argv": [name], "remedy": "-"} for name in "abcdef"]
    for check, needs in zip(checks[1:], ["a", "b", "c", "a", ["a", "b"]], strict=True):
        check["needs"] = needs
    records = logic.run_checks(checks, "slurm", "fleet", run=run)
    assert [record["status"] for record in records] == ["passed", "failed", "not_run", "not_run", "passed", "not_run"]
    assert [record["reason"] for record in records[2:4]] == ["it needs b, which failed", "it needs c, which could not run"]
    assert records[5]["reason"] == "it needs b, which failed"
    assert ran == ["a", "b", "e"]
    with pytest.raises(logic.CheckError, match="needs z, which is not a check before it"):
        logic.run_checks([{**checks[0], "needs": "z"}], "slurm", "fleet", run=run)


def test_hosts_that_a_check_has_failed_in_this_run():
    hostvars = {
        "good": {"ansible_facts": {"muster_checks_common_node": [PASSED]}},
        "bad": {"ansible_facts": {"muster_checks_common_node": [PASSED, FAILED]}},
        "unseen": {"ansible_facts": {"muster_checks_common_node": [NOT_RUN]}},
        "allowed": {"ansible_facts": {"muster_checks_common_node": [NOT_RUN]}, "muster_allow_not_run": ["common.clock"]},
        "silent": {},
    }
    assert failed_hosts([*hostvars, "unknown"], hostvars) == ["bad", "unseen"]
