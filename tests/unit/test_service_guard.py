# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The guard that keeps packages from starting services, on a policy-rc.d elsewhere than this machine's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard as logic
from ansible_collections.muster.fleet.plugins.modules import service_guard as module


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(logic, "PATH", str(path))
    monkeypatch.setattr(logic, "LISTS", str(tmp_path / "lists"))
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda folder: folder == "/etc/dpkg" or isdir(folder))
    return path


def test_comes_refuses_and_goes(call, policy):
    result = call(module, state="present")
    assert (result["guarded"], result["changed"]) == (True, False)
    # invoke-rc.d calls it with the service and the action; 101 forbids.
    assert subprocess.run([policy, "slurmd", "start"], check=False).returncode == 101
    assert call(module, state="present")["guarded"]
    assert not call(module, state="absent")["guarded"]
    assert not policy.exists()
    assert not call(module, state="absent")["guarded"]


def test_somebody_elses_is_never_touched(call, policy):
    policy.write_text("#!/bin/sh\nexit 0\n")
    before = policy.stat()
    for state in ("present", "absent"):
        assert call(module, state=state)["guarded"]
        assert (policy.read_text(), policy.stat().st_mtime_ns) == ("#!/bin/sh\nexit 0\n", before.st_mtime_ns)


def test_check_mode_does_nothing(call, policy):
    assert not call(module, check_mode=True, state="present")["guarded"]
    assert not policy.exists()
    call(module, state="present")
    assert call(module, check_mode=True, state="absent")["guarded"]
    assert policy.exists()


def test_an_empty_folder_of_package_lists_is_old(call, policy):
    lists = policy.parent / "lists"
    lists.mkdir()
    young = lists.stat().st_mtime
    call(module, check_mode=True, state="present")
    assert lists.stat().st_mtime == young
    call(module, state="present")
    assert lists.stat().st_mtime == 0


def test_package_lists_that_were_read_keep_their_date(call, policy):
    lists = policy.parent / "lists"
    lists.mkdir()
    (lists / "archive_dists_trixie_main_binary-amd64_Packages.lz4").touch()
    young = lists.stat().st_mtime
    call(module, state="present")
    assert lists.stat().st_mtime == young > 0


def test_a_system_without_dpkg_is_left_alone(call, policy, monkeypatch):
    monkeypatch.setattr(os.path, "isdir", lambda folder: False)
    call(module, state="present")
    assert not policy.exists()
