# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Packages: what is missing, what apt-get said, and that it does not run when nothing is missing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.node import packages as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard
from ansible_collections.muster.fleet.plugins.modules import packages as module

# `apt-get install munge slurmd` of apt 3.0.3 on Debian 13, shortened to some of its lines.
INSTALLED = """\
Selecting previously unselected package libmunge2:amd64.
Unpacking libmunge2:amd64 (0.5.16-1) ...
Setting up libmunge2:amd64 (0.5.16-1) ...
Setting up munge (0.5.16-1) ...
Created symlink '/etc/systemd/system/multi-user.target.wants/munge.service' -> '/usr/lib/systemd/system/munge.service'.
Setting up slurmd (24.11.5-4+deb13u1) ...
Processing triggers for libc-bin (2.41-12) ...
"""
# `apt-get --simulate install munge` where an older version was installed.
SIMULATED = """\
Inst libmunge2 (0.5.16-1 Debian:13.2/stable [amd64])
Inst munge [0.5.15-1] (0.5.16-1 Debian:13.2/stable [amd64])
Conf libmunge2 (0.5.16-1 Debian:13.2/stable [amd64])
Conf munge (0.5.16-1 Debian:13.2/stable [amd64])
"""
UNKNOWN = "E: Unable to locate package muster-no-such-package\n"
LOCKED = (
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 71 (apt-get)\nE: Unable to lock directory /var/lib/apt/lists/\n"
)


def test_what_is_missing():
    have = {"jq": "1.7.1-6", "munge": "0.5.16-1"}
    assert logic.missing(["jq", "slurmd", "munge=0.5.16-1"], have) == ["slurmd"]
    assert logic.missing(["munge=0.5.15-1"], have) == ["munge=0.5.15-1"]
    assert logic.missing(["munge=0.5.16*", "jq=1.6*"], have) == ["jq=1.6*"]


def test_the_command():
    command = logic.apt_install(["jq"], release="testing", lock_timeout=7, durable=False, simulate=True)
    assert command[-2:] == ["install", "jq"]
    for part in ("--no-install-recommends", "DPkg::Lock::Timeout=7", "Dpkg::Options::=--force-unsafe-io", "--simulate", "testing"):
        assert part in command
    assert not {"--simulate", "--target-release", "Dpkg::Options::=--force-unsafe-io"} & set(logic.apt_install(["jq"]))


def test_a_version_that_is_named_may_go_back_and_be_held():
    assert "--allow-downgrades" in logic.apt_install(["jq=1.6*"]) and "--allow-change-held-packages" in logic.apt_install(["jq=1.6*"])
    assert "--allow-downgrades" not in logic.apt_install(["jq"])


def test_what_apt_said():
    assert logic.apt_installed(INSTALLED) == {"libmunge2": "0.5.16-1", "munge": "0.5.16-1", "slurmd": "24.11.5-4+deb13u1"}
    assert logic.apt_installed(SIMULATED) == {"libmunge2": "0.5.16-1", "munge": "0.5.16-1"}
    assert logic.apt_installed("jq is already the newest version (1.7.1-6).\n") == {}


def test_reasons():
    assert logic.apt_reason("", UNKNOWN) == "Unable to locate package muster-no-such-package"
    assert logic.apt_reason("first\nlast\n", "") == "last"
    assert logic.stale(logic.apt_reason("", UNKNOWN)) and not logic.stale("No space left on device")
    assert logic.busy(logic.apt_reason("", LOCKED)) and not logic.busy("Unable to locate package jq")


class Node:
    """What dpkg-query and apt-get of a node answer, and the apt-get commands that came."""

    def __init__(self, lists: Path) -> None:
        self.lists, self.installed, self.asked = lists, "", []
        self.answers: dict[str, list[tuple[int, str, str]]] = {"update": [(0, "", "")], "install": [(0, INSTALLED, "")]}

    def run_command(self, argv, **_options):
        if argv[0] == "dpkg-query":
            return 1, self.installed, "dpkg-query: no packages found"
        word = "update" if "update" in argv else "install"
        self.asked.append(word)
        answers = self.answers[word]
        if word == "update":
            (self.lists / "deb_dists_trixie_main_binary-amd64_Packages").touch()
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(logic, "LISTS", str(tmp_path))
    monkeypatch.setattr(service_guard, "PATH", str(tmp_path / "policy-rc.d"))
    monkeypatch.setattr(service_guard, "LISTS", str(tmp_path / "lists"))
    monkeypatch.setattr(logic, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(module.AnsibleModule, "run_command", made.run_command)
    monkeypatch.setattr(logic.time, "sleep", lambda _seconds: None)
    return made


def test_nothing_missing_asks_nothing(call, node):
    node.installed = "munge 0.5.16-1 ii \n"
    result = call(module, names=["munge"])
    assert (result["changed"], node.asked) == (False, [])


def test_installs_after_reading_the_lists(call, node):
    result = call(module, names=["munge"])
    assert result["changed"] and result["installed"]["slurmd"] == "24.11.5-4+deb13u1"
    assert node.asked == ["update", "install"]
    assert result["diff"]["after"].splitlines() == ["libmunge2 0.5.16-1", "munge 0.5.16-1", "slurmd 24.11.5-4+deb13u1"]
    node.asked.clear()
    call(module, names=["munge"])
    assert node.asked == ["install"], "young lists are not read again"
    os.utime(node.lists, (0, 0))
    call(module, names=["munge"], lists_age=int(time.time()) - 60)
    assert node.asked == ["install", "update", "install"]


@pytest.mark.parametrize("code", [0, 100])
def test_systemd_reads_its_unit_files_once_where_nothing_may_start(call, node, tmp_path, monkeypatch, code):
    """A daemon-reload after each package is a fifth of the CPU-seconds of installing Slurm's controller."""
    ran = []

    def run_command(_module, argv, environ_update=None, **_options):
        ran.append((argv[0], "update" in argv, (environ_update or {}).get("SYSTEMD_OFFLINE")))
        return (code, INSTALLED, "E: no") if "install" in argv else (0, "", "")

    monkeypatch.setattr(module.AnsibleModule, "run_command", run_command)
    policy = Path(service_guard.PATH)
    apt, reload = ("apt-get", False, "1"), ("systemctl", False, None)
    for text, expected in ((service_guard.SCRIPT, [apt, reload]), ("#!/bin/sh\n# a site's own\n", [("apt-get", False, None)])):
        policy.write_text(text)
        node.lists.joinpath("x_Packages").touch()
        ran.clear()
        call(module, names=["munge"])
        assert ran[1:] == expected
    policy.write_text(service_guard.SCRIPT)
    ran.clear()
    call(module, check_mode=True, names=["munge"])
    monkeypatch.setattr(logic, "SYSTEMD", str(tmp_path / "none"))
    call(module, names=["munge"])
    assert {each for each in ran if each[0] != "dpkg-query"} == {("apt-get", False, None)}


def test_lists_that_do_not_know_it_are_read_again(call, node):
    call(module, names=["jq"])
    node.asked.clear()
    node.answers["install"] = [(100, "", UNKNOWN), (0, INSTALLED, "")]
    assert call(module, names=["munge"])["changed"]
    assert node.asked == ["install", "update", "install"]


def test_what_nobody_knows_is_one_sentence(call, node):
    node.answers["install"] = [(100, "", UNKNOWN)]
    result = call(module, names=["muster-no-such-package"])
    assert result["failed"]
    assert result["msg"] == "apt-get cannot install muster-no-such-package: Unable to locate package muster-no-such-package."


def test_waits_for_somebody_who_reads_lists(call, node):
    node.answers["update"] = [(100, "", LOCKED), (100, "", LOCKED), (0, "", "")]
    assert call(module, names=["munge"])["changed"]
    assert node.asked == ["update", "update", "update", "install"]
    os.utime(node.lists, (0, 0))
    node.answers["update"] = [(100, "", LOCKED)]
    result = call(module, names=["munge"], lock_timeout=0)
    assert result["msg"].startswith("The package lists could not be read: Could not get lock /var/lib/apt/lists/lock.")


def test_services_are_refused_where_that_is_asked(call, node):
    policy = Path(service_guard.PATH)
    call(module, names=["munge"], services="refused", check_mode=True)
    node.installed = "munge 0.5.16-1 ii \n"
    call(module, names=["munge"], services="refused")
    assert not policy.exists(), "nothing is installed"
    node.installed = ""
    call(module, names=["munge"])
    assert not policy.exists(), "they are allowed otherwise"
    call(module, names=["munge"], services="refused")
    assert policy.exists(), "until the install is recorded"


def test_check_mode_simulates(call, node):
    node.answers["install"] = [(0, SIMULATED, "")]
    result = call(module, check_mode=True, names=["munge"])
    assert result["changed"] and result["installed"] == {"libmunge2": "0.5.16-1", "munge": "0.5.16-1"}


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_the_packages_do_by_themselves_is_undone(call, node, tmp_path, monkeypatch, check_mode):
    node.installed = "munge 0.5.16-1 ii \n"
    key, told = tmp_path / "munge.key", []
    key.touch()
    answer = "LoadState=loaded\nActiveState=inactive\nUnitFileState=enabled\n\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n"

    def systemctl(argv, **options):
        if argv[0] != "systemctl":
            return node.run_command(argv)
        if argv[1] != "show":
            told.append((argv[1:], options["environ_update"]))
        return 0, answer, ""

    monkeypatch.setattr(module.AnsibleModule, "run_command", staticmethod(systemctl))
    asked = {"names": ["munge"], "disabled": ["munge", "sackd"], "removed": [str(key), str(tmp_path / "none")]}
    result = call(module, check_mode=check_mode, **asked)
    assert (result["changed"], result["undone"], result["installed"]) == (True, [str(key), "munge"], {})
    assert result["diff"]["before"].split() == [str(key), "munge"]
    assert key.exists() == check_mode
    assert told == ([] if check_mode else [(["disable", "--now", "munge"], {"SYSTEMCTL_SKIP_SYSV": "1"})])
    answer = answer.replace("enabled", "disabled")
    key.unlink(missing_ok=True)
    assert not call(module, **asked)["changed"]


def test_rpm_systems(call, node, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/dnf" if name == "dnf" else None)
    asked = []

    def run_command(_module, argv, **_options):
        asked.append(argv)
        return (0, "munge 0.5.15-1.el9\n", "") if argv[0] == "rpm" and len(asked) > 1 else (0, "", "")

    monkeypatch.setattr(module.AnsibleModule, "run_command", run_command)
    assert call(module, names=["munge"])["installed"] == {"munge": "0.5.15-1.el9"}
    assert asked[1][0] == "dnf" and asked[1][-1] == "munge"


@pytest.fixture
def rpm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A node with dnf: `rpm.have` is what rpm answers, `rpm.asked` the dnf commands without their common options."""

    class Rpm:
        def __init__(self) -> None:
            self.have: list[str] = []
            self.asked: list[list[str]] = []

        def run_command(self, argv, **_options):
            if argv[0] == "rpm":
                return 1, "".join(f"{line}\n" for line in self.have if line.split()[0] in argv), ""
            self.asked.append(argv[5:])
            return 0, "", ""

    made = Rpm()
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/dnf" if name == "dnf" else None)
    monkeypatch.setattr(module.AnsibleModule, "run_command", made.run_command)
    monkeypatch.setattr(logic, "DNF_MODULES", str(tmp_path))
    return made


def test_dnf_replaces_a_smaller_build_of_what_is_missing(call, rpm):
    rpm.have = ["curl-minimal 8.0.1-1", "jq 1.6-10", "jq-minimal 1"]
    assert call(module, names=["curl", "jq", "tar"])["changed"]
    assert rpm.asked == [["swap", "curl-minimal", "curl"], ["install", "curl", "tar"]]


@pytest.mark.parametrize(
    ("have", "asked"),
    [
        (["kernel-devel 6.1.5-1", "kernel-devel 6.1.4-1"], []),
        (["kernel-devel 6.1.5-1"], [["--disableplugin=versionlock", "install", "kernel-devel-6.1.4-*"]]),
    ],
)
def test_dnf_installs_a_version_beside_others_and_although_it_is_held(call, rpm, have, asked):
    rpm.have = have
    assert call(module, names=["kernel-devel=6.1.4-*"])["changed"] == bool(asked)
    assert rpm.asked == asked


@pytest.mark.parametrize(
    ("text", "changed"), [("stream=595-open\nstate=enabled\n", False), ("stream=580-open\nstate=enabled\n", True), ("", True)]
)
def test_dnf_enables_a_module_stream_once(call, rpm, tmp_path, text, changed):
    rpm.have = ["nvidia 595.1-1"]
    (tmp_path / "nvidia-driver.module").write_text(text)
    for check_mode in (True, False):
        assert call(module, names=["nvidia"], stream="nvidia-driver:595-open", check_mode=check_mode)["changed"] == changed
    assert rpm.asked == ([["module", "reset", "nvidia-driver"], ["module", "enable", "nvidia-driver:595-open"]] if changed else [])


def test_dnf_waits_for_another_process_no_longer_than_asked(call, node, monkeypatch):
    """Code 200 and the words are those of dnf 4.23 with the process of another dnf in its lock."""
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/dnf" if name == "dnf" else None)
    clock, asked = [0.0], []
    monkeypatch.setattr(logic.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(logic.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    def run_command(_module, argv, **_options):
        if argv[0] == "rpm":
            return 0, "munge 0.5.15-1.el9\n" if len(asked) == 3 else "", ""
        asked.append(argv)
        return (200, "", "metadata already locked by 26854\n") if len(asked) != 3 else (0, "", "")

    monkeypatch.setattr(module.AnsibleModule, "run_command", run_command)
    assert call(module, names=["munge"], lock_timeout=60)["installed"] == {"munge": "0.5.15-1.el9"}
    assert "--setopt=exit_on_lock=1" in asked[0]
    assert (len(asked), clock[0]) == (3, 4)
    asked += [[]]
    said = call(module, names=["munge"], lock_timeout=60)
    assert said["msg"] == "dnf cannot install munge: metadata already locked by 26854."
    assert 64 < clock[0] < 70


def test_neither_apt_nor_dnf(call, node, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert call(module, names=["munge"])["msg"].startswith("This node has neither apt-get nor dnf")
