# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The manifest: what matches, what does not and why, and what is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.node import manifest as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard
from ansible_collections.muster.fleet.plugins.modules import manifest as module

# `dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n'` on a node of Debian 13; the last three lines are made: on hold, removed
# but for its configuration, half configured.
DPKG = """\
gcc-14-base 14.2.0-19 ii 
libpmix2t64 5.0.7-1 ii 
munge 0.5.16-1.1~deb13u1 ii 
slurmd 24.11.5-4+deb13u1 ii 
linux-image-amd64 6.12.63-1 hi 
exim4-config 4.98.2-1 rc 
slurmdbd 24.11.5-4+deb13u1 iF 
"""
# The form that `rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\n'` is asked for; made by hand.
RPM = "bash 5.1.8-9.el9\ngpg-pubkey 8483c65d-5ccc5b19\nslurm-slurmd 24.11.5-1.el9\n"

ENTRY = {"inputs_sha256": "aa", "artefacts": ["/usr/bin/jq"], "packages": {"jq": "1.7.1-6"}}


def there(_path: str) -> bool:
    return True


def test_packages_of_dpkg():
    assert logic.parse_dpkg(DPKG) == {
        "gcc-14-base": "14.2.0-19",
        "libpmix2t64": "5.0.7-1",
        "munge": "0.5.16-1.1~deb13u1",
        "slurmd": "24.11.5-4+deb13u1",
        "linux-image-amd64": "6.12.63-1",
    }


def test_packages_of_rpm():
    assert logic.parse_rpm(RPM)["slurm-slurmd"] == "24.11.5-1.el9"


@pytest.mark.parametrize(("has", "output", "name"), [("dpkg-query", DPKG, "munge"), ("rpm", RPM, "bash")])
def test_the_node_is_asked_by_its_own_package_manager(has, output, name):
    asked = []

    def run(argv, **_options):
        asked.append(argv[0])
        return subprocess.CompletedProcess(argv, 0, output.encode())

    assert name in logic.installed_packages(lambda program: program == has, run)
    assert asked == [has]


def test_a_node_without_a_known_package_manager():
    with pytest.raises(logic.ManifestError, match="neither dpkg-query nor rpm"):
        logic.installed_packages(lambda _program: None)


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("1:24.11.5-4+deb13u1", "24.11.5"),
        ("0.5.16-1.1~deb13u1", "0.5.16"),
        ("2026f-0+deb13u1", "2026f"),
        ("20250419", "20250419"),
        ("3.0-rc1-2", "3.0-rc1"),
    ],
)
def test_upstream_versions(version, upstream):
    assert logic.upstream_version(version) == upstream


@pytest.mark.parametrize(
    ("entry", "digest", "exists", "versions", "reasons"),
    [
        (None, "aa", there, {}, ["not installed yet"]),
        (ENTRY, "aa", there, {"jq": "1.7.1-6"}, []),
        (ENTRY, None, there, {"jq": "1.7.1-6"}, []),
        (ENTRY, "bb", there, {"jq": "1.7.1-6"}, ["its install variables or files changed"]),
        (ENTRY, "aa", lambda _path: False, {"jq": "1.7.1-6"}, ["/usr/bin/jq is missing"]),
        (ENTRY, "aa", there, {"jq": "1.8-1"}, ["package jq: expected 1.7.1-6, found 1.8-1"]),
        (ENTRY, "aa", there, {}, ["package jq: expected 1.7.1-6, found none"]),
    ],
)
def test_why_a_component_is_installed_again(entry, digest, exists, versions, reasons):
    assert logic.differences(entry, digest, exists, versions) == reasons


def test_an_image_that_has_more_packages_serves_a_node_that_needs_few(call, node):
    write(call, node)
    assert compare(call, node, packages=["slurmd"]) == []
    assert compare(call, node, packages=["slurmd", "sackd"]) == ["package sackd is not part of it yet"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the packages of DPKG, one artefact, and no manifest yet; the manifest's path."""
    monkeypatch.setattr(logic, "installed_packages", lambda _which: logic.parse_dpkg(DPKG))
    monkeypatch.setattr(service_guard, "PATH", str(tmp_path / "policy-rc.d"))
    monkeypatch.setattr(service_guard, "LISTS", str(tmp_path / "lists"))
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda folder: folder == "/etc/dpkg" or isdir(folder))
    (tmp_path / "munged").touch()
    return tmp_path / "etc/muster/manifest.json"


def write(call, node: Path, **options) -> dict:
    artefacts = [str(node.parents[2] / "munged")]
    written = {"component": "slurm", "inputs_sha256": "aa", "packages": ["munge", "slurmd"], "artefacts": artefacts, **options}
    return call(module, path=str(node), state="written", **written)


def compare(call, node: Path, **options) -> list[str]:
    return call(module, path=str(node), state="compare", **{"component": "slurm", "inputs_sha256": "aa", **options})["reasons"]


def test_written_then_the_same(call, node):
    result = write(call, node, seconds=37.54, stack={"name": "debian-13", "sha256": "ff"})
    document = json.loads(node.read_text())
    assert result["changed"]
    assert (node.stat().st_mode & 0o777, document["schema"]) == (0o644, "muster.manifest/1")
    assert document["components"]["slurm"]["version"] == "0.5.16"
    assert document["components"]["slurm"]["packages"] == {"munge": "0.5.16-1.1~deb13u1", "slurmd": "24.11.5-4+deb13u1"}
    assert document["components"]["slurm"]["seconds"] == 37.5
    assert document["packages"] == logic.parse_dpkg(DPKG)
    assert document["stack"] == {"name": "debian-13", "sha256": "ff"}
    assert compare(call, node) == []
    assert compare(call, node, inputs_sha256="bb") == ["its install variables or files changed"]
    assert compare(call, node, component="common") == ["not installed yet"]
    assert compare(call, node, again=True) == ["it is asked for again"]


def test_everybody_may_read_it_whatever_the_umask(call, node):
    before = os.umask(0o077)
    try:
        write(call, node)
    finally:
        os.umask(before)
    assert node.stat().st_mode & 0o777 == 0o644


def test_a_second_component_leaves_the_first(call, node):
    write(call, node, stack={"name": "debian-13", "sha256": "ff"})
    write(call, node, component="common", packages=[], version="2")
    document = json.loads(node.read_text())
    assert list(document["components"]) == ["common", "slurm"]
    assert document["components"]["common"]["version"] == "2"
    assert document["stack"]["name"] == "debian-13"


def test_what_went_is_seen(call, node, monkeypatch):
    write(call, node)
    (node.parents[2] / "munged").unlink()
    assert compare(call, node) == [f"{node.parents[2]}/munged is missing"]
    monkeypatch.setattr(logic, "installed_packages", lambda _which: {"slurmd": "25.05.1-1"})
    assert compare(call, node)[1:] == [
        "package munge: expected 0.5.16-1.1~deb13u1, found none",
        "package slurmd: expected 24.11.5-4+deb13u1, found 25.05.1-1",
    ]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [("packages", "gone", "The package gone is not installed"), ("artefacts", "/gone", "The artefact /gone is missing")],
)
def test_what_an_install_did_not_bring_is_not_recorded(call, node, option, value, says):
    result = write(call, node, **{option: [value]})
    assert result["failed"]
    assert result["msg"].startswith(says)
    assert not node.exists()


def test_check_mode_writes_nothing(call, node):
    assert write(call, node, check_mode=True)["changed"]
    assert not node.parent.exists()


def test_diff_shows_the_entry(call, node):
    before = write(call, node)["diff"]
    assert (before["before"], '"slurm"' in before["after"], before["after_header"]) == ("", True, str(node))
    again = write(call, node, inputs_sha256="bb")["diff"]
    assert ('"aa"' in again["before"], '"bb"' in again["after"]) == (True, True)


def test_read_leaves_the_inventory_of_packages_out(call, node):
    write(call, node)
    result = call(module, path=str(node), state="read")
    assert list(result["manifest"]["components"]) == ["slurm"]
    assert "packages" not in result["manifest"]
    assert not result["changed"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "muster.mani', "is not JSON"),
        ("[]", "is not of schema muster.manifest/1"),
        ('{"schema": "muster.manifest/2"}', "is not of schema muster.manifest/1"),
    ],
)
@pytest.mark.parametrize("state", ["read", "compare", "written"])
def test_a_damaged_manifest_is_one_sentence_and_stays(call, node, text, says, state):
    node.parent.mkdir(parents=True)
    node.write_text(text)
    result = call(module, path=str(node), state=state, component="slurm", inputs_sha256="aa")
    assert result["failed"]
    assert says in result["msg"]
    assert result["msg"].endswith("remove it and install again.")
    assert node.read_text() == text


def test_an_empty_manifest_is_a_new_one(call, node):
    node.parent.mkdir(parents=True)
    node.touch()
    assert compare(call, node) == ["not installed yet"]


@pytest.mark.parametrize("end", ["written", "left"])
def test_no_service_starts_between_compare_and_end(call, node, end):
    policy = Path(service_guard.PATH)
    call(module, check_mode=True, path=str(node), state="compare", component="slurm", inputs_sha256="aa")
    assert not policy.exists()
    assert compare(call, node) == ["not installed yet"]
    assert policy.read_text() == service_guard.SCRIPT
    result = write(call, node) if end == "written" else call(module, path=str(node), state="left")
    assert not policy.exists()
    assert result["changed"] == node.exists() == (end == "written")
    if end == "written":
        assert compare(call, node) == []
        assert not policy.exists(), "what is installed refuses nothing"


def test_what_the_stack_refuses_is_refused_before_anything(call, node):
    result = call(
        module, path=str(node), state="compare", component="slurm", refused=["efa 1.51.0 is refused on debian13: no reason.", "x"]
    )
    assert result["msg"] == "efa 1.51.0 is refused on debian13: no reason."
    assert not (node.parents[2] / "policy-rc.d").exists()


def test_room_is_asked_for_all_that_is_not_installed_yet(call, node):
    def said(**space: int) -> str:
        return call(module, path=str(node), state="compare", component="cuda", space=space).get("msg", "")

    assert said(cuda=1, nccl=1) == ""
    assert re.fullmatch(
        r"cuda, nccl together need 1000000001 MiB on / and \d+ MiB are free; give the node a larger disk or free some\.",
        said(cuda=10**9, nccl=1),
    )
    write(call, node)
    assert said(slurm=10**9) == "", "what is there already needs no more room"


@pytest.mark.parametrize(("free", "ok"), [(700, True), (699, False)])
def test_the_sum_counts(free, ok):
    assert (logic.space_fault({"cuda": 600, "nccl": 100, "slurm": 5}, {"slurm": {}}, free) == "") == ok
