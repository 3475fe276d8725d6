# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Units: what systemd reports, which commands follow from it, and that the module runs no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.node import units as logic
from ansible_collections.muster.fleet.plugins.modules import units as module

# `systemctl show --property=Id,… munge mariadb slurmd sackd` of systemd 257 on a node of Debian 13.
SHOW = """\
Id=munge.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
InactiveExitTimestampMonotonic=5236280382
NeedDaemonReload=no

Id=mariadb.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
InactiveExitTimestampMonotonic=5242695486
NeedDaemonReload=no

Id=slurmd.service
LoadState=loaded
ActiveState=inactive
UnitFileState=disabled
InactiveExitTimestampMonotonic=0
NeedDaemonReload=yes

Id=sackd.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
InactiveExitTimestampMonotonic=0
NeedDaemonReload=no
"""
NAMES = ["munge", "mariadb", "slurmd", "sackd"]
SYSTEMCTL = """\
cd "${0%/*}"
if [ "$1" = show ]; then shift 2; for unit; do cat $unit.show; echo; done; exit; fi
echo "$@" >>told
echo "$SYSTEMCTL_SKIP_SYSV" >sysv
if [ "$*" = "enable --now slurmd" ] && [ -e broken ]; then echo "Job for slurmd failed." >&2; exit 1; fi
"""
BEFORE = logic.parse_show(SHOW, NAMES)


def test_the_answer_belongs_to_the_names_as_asked():
    assert list(BEFORE) == NAMES
    assert (BEFORE["slurmd"]["Id"], BEFORE["slurmd"]["UnitFileState"]) == ("slurmd.service", "disabled")
    assert BEFORE["sackd"]["LoadState"] == "not-found"


def test_start_times():
    # Started 100 s before a boot clock of 5336.280382 s.
    assert logic.started_at(BEFORE["munge"], now=1795263000.0, monotonic=5336.280382) == pytest.approx(1795262900.0)
    assert logic.started_at(BEFORE["slurmd"], now=1795263000.0, monotonic=5336.0) == 0


@pytest.mark.parametrize(
    ("names", "state", "stale", "commands"),
    [
        (["munge", "mariadb"], "started", (), []),
        (["munge", "slurmd"], "started", (), ["enable --now slurmd"]),
        (["munge", "mariadb"], "started", ("mariadb",), ["restart mariadb"]),
        # A unit that starts now reads the newest files.
        (["slurmd"], "started", ("slurmd",), ["enable --now slurmd"]),
        (["slurmd", "munge"], "restarted", (), ["restart slurmd", "restart munge"]),
        (["munge", "slurmd", "sackd"], "stopped", (), ["disable --now munge"]),
    ],
)
def test_plans(names, state, stale, commands):
    assert logic.plan(names, state, BEFORE, stale) == [["systemctl", *command.split()] for command in commands]


def test_an_enabled_unit_that_does_not_run_is_disabled():
    before = {"slurmd": {"ActiveState": "failed", "UnitFileState": "enabled"}}
    assert logic.plan(["slurmd"], "stopped", before) == [["systemctl", "disable", "--now", "slurmd"]]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A systemctl that answers SHOW and records its other commands, which this returns."""
    for name, block in zip(NAMES, SHOW.split("\n\n"), strict=True):
        (tmp_path / f"{name}.show").write_text(block.strip() + "\n")
    for name, body in {
        "systemctl": SYSTEMCTL,
        "journalctl": "echo 'error: cannot find the controller'; echo 'fatal: giving up'",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # The boot clock of the recording.
    monkeypatch.setattr("time.monotonic", lambda: 5336.280382)
    return lambda: (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []


def test_nothing_to_do(call, systemd):
    result = call(module, names=["munge", "mariadb"])
    assert (result["changed"], result["commands"], systemd()) == (False, [], [])


def test_start_what_is_not_started(call, systemd):
    result = call(module, names=["munge", "mariadb", "slurmd"])
    assert result["changed"]
    assert systemd() == ["daemon-reload", "enable --now slurmd"]
    assert "slurmd: inactive, disabled" in result["diff"]["before"]


def test_each_unit_has_files_of_its_own(call, systemd, tmp_path):
    """munge has run since 100 s and mariadb since 94."""
    fresh = tmp_path / "fresh"
    fresh.touch()
    result = call(module, units=[{"name": "munge"}, {"name": "mariadb", "restart_after": [str(fresh)]}, {"name": "slurmd"}])
    assert systemd() == ["daemon-reload", "restart mariadb", "enable --now slurmd"]
    assert result["started"] == ["mariadb", "slurmd"]


def test_what_is_stopped_or_only_enabled_was_not_started(call, systemd, tmp_path):
    show = (tmp_path / "munge.show").read_text().replace("UnitFileState=enabled", "UnitFileState=disabled")
    (tmp_path / "munge.show").write_text(show)
    result = call(module, names=["munge"], unwanted=["mariadb"])
    assert (systemd(), result["started"]) == (["disable --now mariadb", "enable munge"], [])


def test_names_or_units(call, systemd):
    assert "mutually exclusive" in call(module, names=["munge"], units=[{"name": "munge"}])["msg"]
    assert "one of the following is required: names, units" in call(module)["msg"]


def test_scripts_of_sysv_are_left_alone(call, systemd, tmp_path):
    call(module, names=["slurmd"])
    assert (tmp_path / "sysv").read_text() == "1\n"


def test_what_is_not_wanted_is_stopped_and_need_not_be_there(call, systemd):
    result = call(module, names=["munge"], unwanted=["mariadb", "slurmd", "sackd"])
    assert result["changed"]
    assert systemd() == ["daemon-reload", "disable --now mariadb"]
    assert "mariadb: active, enabled" in result["diff"]["before"]
    assert "mariadb: stopped" in result["diff"]["after"]
    assert "munge: started" in result["diff"]["after"]


def test_check_mode_tells_and_does_nothing(call, systemd):
    result = call(module, check_mode=True, names=["slurmd"])
    assert (result["changed"], len(result["commands"]), systemd()) == (True, 1, [])


@pytest.mark.parametrize(("age", "commands"), [(50, ["restart munge"]), (150, []), (None, [])])
def test_a_unit_older_than_its_file_is_restarted(call, systemd, tmp_path, age, commands):
    """munge has run since 100 s; its key was written `age` seconds ago, or not at all."""
    import time

    key = tmp_path / "munge.key"
    if age:
        key.touch()
        os.utime(key, (0, time.time() - age))
    result = call(module, names=["munge"], restart_after=[str(key)])
    assert (result["changed"], systemd()) == (bool(commands), commands)


def test_a_unit_that_is_not_there(call, systemd, tmp_path):
    result = call(module, names=["munge", "sackd"])
    assert result["msg"] == "The systemd unit sackd does not exist on this node; install its package first."
    # In check mode the package may not be installed yet.
    assert call(module, check_mode=True, names=["munge", "sackd"])["changed"]


def test_a_unit_that_does_not_start_shows_its_journal(call, systemd, tmp_path):
    (tmp_path / "broken").touch()
    result = call(module, names=["slurmd"])
    assert result["msg"] == (
        "systemctl enable --now slurmd failed: Job for slurmd failed. "
        "The unit's last lines: error: cannot find the controller | fatal: giving up"
    )
