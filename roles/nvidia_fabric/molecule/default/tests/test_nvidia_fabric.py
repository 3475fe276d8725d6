# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Each daemon in the driver's version although the repository has a newer one: what NVSwitches in the node need, and what a rack's do."""

from __future__ import annotations

import json

import pytest


def held(host) -> set[str]:
    return set(host.check_output("apt-mark showhold").split())


def version_in_manifest(host) -> str:
    return json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["nvidia_fabric"]["version"]


@pytest.mark.testinfra_hosts("ansible://compute-1")
def test_a_node_with_switches_has_their_managers(host):
    assert host.package("nvidia-fabricmanager").version == "595.112.07-1"
    assert host.check_output("nv-fabricmanager --version") == "Fabric Manager version is : 595.112.07"
    assert host.package("nvlsm").is_installed
    assert host.file("/etc/modules-load.d/muster-nvlsm.conf").content_string.splitlines()[-1] == "ib_umad"
    assert not host.package("nvidia-imex").is_installed
    assert not host.file("/etc/nvidia-imex").exists
    assert {"nvidia-fabricmanager", "nvlsm"} <= held(host)
    assert version_in_manifest(host) == "595.112.07"


@pytest.mark.testinfra_hosts("ansible://compute-2")
def test_a_node_of_a_rack_knows_the_others(host):
    assert host.package("nvidia-imex").version == "595.112.07-1"
    assert host.file("/etc/nvidia-imex/nodes_config.cfg").content_string == "10.0.0.1\n10.0.0.2\n"
    assert not host.package("nvidia-fabricmanager").is_installed
    assert not host.file("/etc/modules-load.d/muster-nvlsm.conf").exists
    assert "nvidia-imex" in held(host)
    assert version_in_manifest(host) == "595.112.07"
