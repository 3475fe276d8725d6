# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Module node_health installs a program that needs Python alone, and returns check records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health import program, settings
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest
from ansible_collections.muster.fleet.plugins.module_utils.node.check import failing
from ansible_collections.muster.fleet.plugins.modules import node_health

SETTINGS = {"schema": settings.SCHEMA, "container": True, "disks": [], "allow_not_run": ["drift"]}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node_health, "HOME", str(tmp_path / "lib"))
    monkeypatch.setattr(node_health, "PROGRAM", str(tmp_path / "muster-health"))
    for module in (node_health, program):
        monkeypatch.setattr(module, "PATH", str(tmp_path / "health.json"))
    monkeypatch.setattr(program.the_node, "__defaults__", (str(tmp_path / "health.json"), None))
    monkeypatch.setattr(program, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(manifest, "PATH", str(tmp_path / "manifest.json"))  # this machine may have one
    monkeypatch.setattr(sys.modules[node_health.run_checks.__module__].time, "sleep", lambda _seconds: None)
    return tmp_path


def test_the_program_needs_python_alone(node: Path, call) -> None:
    assert call(node_health, state="installed", settings=SETTINGS, check_mode=True)["changed"]
    assert list(node.iterdir()) == [], "check mode writes nothing"
    done = call(node_health, state="installed", settings=SETTINGS)
    assert done["changed"] and '"schema": "muster.health/1"' in done["diff"]["after"]
    assert not call(node_health, state="installed", settings=SETTINGS)["changed"]
    argv = [sys.executable, "-I", str(node / "muster-health"), "--settings", str(node / "health.json"), "--state", str(node / "state")]
    ran = subprocess.run([*argv, "--format", "json"], capture_output=True, text=True, check=False, env={})
    assert ran.stderr == ""
    document = json.loads(ran.stdout)
    assert {each["check"] for each in document["checks"]} >= {"mounts", "drift", "clock"}
    # Its modules lie below the folder, and it knows the instance types without a controller.
    assert "catalogue_data.py" in {path.name for path in (node / "lib").rglob("*.py")}
    assert not list((node / "lib").rglob("containers"))


def test_a_node_has_a_verdict_before_slurm_asks_for_one(node: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings in place and no verdict, the prolog would drain the node and requeue a job that starts in that moment."""
    written = program.replace_file

    def replace_file(path: str, text: str, mode: int = 0o644) -> None:
        if path == str(node / "health.json"):
            assert json.loads((node / "state/state.json").read_text())["verdict"]["level"] == "periodic"
        written(path, text, mode)

    monkeypatch.setattr(program, "replace_file", replace_file)
    assert "failed" not in call(node_health, state="installed", settings=SETTINGS)
    assert not list(node.glob("health.json.*"))
    argv = [sys.executable, "-I", str(node / "muster-health"), "--settings", str(node / "health.json"), "--state", str(node / "state")]
    prolog = subprocess.run([*argv, "--level", "prolog", "--hook", "prolog"], capture_output=True, text=True, check=False, env={})
    assert "no periodic run has ended" not in prolog.stdout
    before = (node / "state/state.json").read_text()
    call(node_health, state="installed", settings={**SETTINGS, "mounts": ["/gone"]})
    assert (node / "state/state.json").read_text() == before, "only the first verdict is the module's"


def test_settings_wait_for_a_program_that_ends(node: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_health, "START", "#!/bin/sh\n# %s %s\necho no such thing >&2\nexit 9\n")
    done = call(node_health, state="installed", settings=SETTINGS)
    assert done["failed"] and done["msg"].endswith("so no settings were written: no such thing")
    assert not list(node.glob("health.json*"))


def test_settings_that_the_program_would_refuse_are_not_written(node: Path, call) -> None:
    done = call(node_health, state="installed", settings={**SETTINGS, "allow_not_run": ["dirft"]})
    assert done["failed"]
    assert done["msg"].startswith("The health checks cannot have these settings, so nothing was changed: ")
    assert "did you mean drift?" in done["msg"]
    assert list(node.iterdir()) == []


def test_the_verdict_sees_what_keeps_a_node_from_training(node: Path, call) -> None:
    call(node_health, state="installed", settings={**SETTINGS, "mounts": ["/gone"], "allow_not_run": []})
    done = call(node_health, state="checked")
    records = {each["check"]: each for each in done["muster_checks"]}
    assert records["mounts"]["status"] == "failed"
    judged = done["ansible_facts"]["muster_checks_node_health_node"]
    assert {each["check"] for each in failing(judged)} >= {"mounts", "drift"}
    severity = [{"check": "mounts", "severity": "warning", "owner": "alice", "until": "2999-01-01"}]
    call(node_health, state="installed", settings={**SETTINGS, "mounts": ["/gone"], "severity": severity})
    done = call(node_health, state="checked")
    assert "mounts" not in {each["check"] for each in done["ansible_facts"]["muster_checks_node_health_node"]}
