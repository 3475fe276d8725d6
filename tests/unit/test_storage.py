# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Names of mount units, clients of an export, and invalid settings of a shared file system."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from ansible_collections.muster.fleet.plugins.filter.storage import storage_faults
from ansible_collections.muster.fleet.plugins.module_utils.node.storage import export_clients, mount_unit

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
        ({"storage_nconnect": 17}, ["a"], "Variable storage_nconnect is 17; a client opens at most 16 connections"),
    ],
)
def test_what_cannot_be(variables: dict, servers: list[str], sentence: str) -> None:
    [said] = storage_faults(variables, servers)
    assert said.startswith(sentence)


def test_what_can_be() -> None:
    assert storage_faults({"storage_path": "/fsx", "storage_nconnect": 16}, ["a"]) == []
    assert storage_faults({"storage_path": "nonsense"}, []) == []
