# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Names of mount units, clients of an export, and invalid settings of a shared file system."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.filter.storage import storage_faults
from ansible_collections.muster.fleet.plugins.module_utils.node.storage import export_clients, mount_unit

CONFIGURE = Path(__file__).parents[2] / "roles/storage/tasks/configure.yml"
UNITS = {
    "/fsx": "fsx.mount",
    "/fsx/home/": "fsx-home.mount",
    "/srv/shared-fs": r"srv-shared\x2dfs.mount",
    "/.hidden/a.b": r"\x2ehidden-a.b.mount",
    "/ä_:": r"\xc3\xa4_:.mount",
}


@pytest.mark.parametrize("path", UNITS)
def test_mount_unit(path: str) -> None:
    assert mount_unit(path) == UNITS[path]


@pytest.mark.skipif(
    shutil.which("systemd-escape") is None and "CI" not in os.environ, reason="needs systemd-escape: install the package systemd"
)
@pytest.mark.parametrize("path", UNITS)
def test_mount_unit_is_that_of_systemd(path: str) -> None:
    done = subprocess.run(["systemd-escape", "--path", "--suffix=mount", path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == UNITS[path]


def test_clients_of_an_export() -> None:
    clients = export_clients(["controller-1", "10.0.0.0/16"], ["controller-1"], ["rw", "sync"])
    assert clients == "controller-1(rw,sync,no_root_squash) 10.0.0.0/16(rw,sync,root_squash)"


@pytest.mark.parametrize(
    ("variables", "servers", "sentence"),
    [
        ({}, ["a", "b", "c"], "The group muster_storage has 3 hosts, a and b first; only one host may serve the shared file system"),
        ({"storage_path": "fsx"}, ["a"], "The shared file system cannot be mounted at 'fsx' (storage_path)"),
        ({"storage_path": "/"}, ["a"], "The shared file system cannot be mounted at '/' (storage_path)"),
        ({"storage_path": "/my data"}, ["a"], "The shared file system cannot be mounted at '/my data' (storage_path)"),
        (
            {"storage_source": "fs-1:/fsx"},
            ["a"],
            "The file system of storage_source (fs-1:/fsx) and that of the group muster_storage (a) have",
        ),
        ({"storage_source": "fs-1/fsx"}, [], "Variable storage_source is 'fs-1/fsx'; give HOST:/PATH, such as fs-"),
        ({"storage_nconnect": 17}, ["a"], "Variable storage_nconnect is 17; a client opens at most 16 connections"),
    ],
)
def test_what_cannot_be(variables: dict, servers: list[str], sentence: str) -> None:
    [said] = storage_faults(variables, servers)
    assert said.startswith(sentence)


def test_what_can_be() -> None:
    assert storage_faults({"storage_path": "/fsx", "storage_nconnect": 16}, ["a"]) == []
    assert storage_faults({"storage_path": "nonsense"}, []) == []
    assert storage_faults({"storage_path": "/home", "storage_source": "fs-1:/fsx"}, []) == []


@pytest.mark.parametrize("mounted", [True, False])
def test_homes_of_the_image_are_copied_before_a_file_system_hides_them(tmp_path: Path, mounted: bool) -> None:
    """The script of the role with stand-ins for mount: a link to the folder that is the file system."""
    [task] = [each for each in yaml.safe_load(CONFIGURE.read_text()) if "__storage_copy" in each.get("vars", {})]
    tools = {
        "mountpoint": f"exit {int(not mounted)}",
        "mount": 'test "$1 $2" = "-t nfs4" && rmdir "$4" && ln -s "$3" "$4"',
        "umount": 'rm "$1" && mkdir "$1"',
    }
    for name, text in tools.items():
        tmp_path.joinpath(name).write_text(f"#!/bin/sh\n{text}\n")
        tmp_path.joinpath(name).chmod(0o755)
    home, shared = tmp_path / "home", tmp_path / "shared"
    (home / "admin/.ssh").mkdir(parents=True, mode=0o700)
    (home / "admin/.ssh/authorized_keys").write_text("of the image")
    (home / "ada").mkdir()
    (shared / "ada").mkdir(parents=True)
    (shared / "ada/kept").touch()
    (home / "ada/kept").write_text("older")
    argv = ["sh", "-ec", task["vars"]["__storage_copy"], "sh", str(shared), str(home)]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "" if mounted else "copied\n", "")
    assert (shared / "admin/.ssh/authorized_keys").exists() != mounted and (shared / "ada/kept").read_text() == ""
    assert mounted or (shared / "admin/.ssh").stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.glob("tmp.*"))
