# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A node with its own NVSwitches has their managers in the driver's version, although the repository has a newer one."""

from __future__ import annotations

import json

NODE = "compute-1"


def test_the_managers_have_the_drivers_version(host):
    assert host.package("nvidia-fabricmanager").version == "595.112.07-1"
    assert host.check_output("nv-fabricmanager --version") == "Fabric Manager version is : 595.112.07"
    assert host.package("nvlsm").is_installed
    assert {"nvidia-fabricmanager", "nvlsm"} <= set(host.check_output("apt-mark showhold").split())
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    entry = manifest["components"]["nvidia_fabric"]
    assert entry["version"] == "595.112.07"
    assert entry["packages"] == {"nvidia-fabricmanager": "595.112.07-1", "nvlsm": host.package("nvlsm").version}


def test_the_node_loads_the_module_of_the_subnet_manager(host):
    assert host.file("/etc/modules-load.d/muster-nvlsm.conf").content_string.splitlines()[-1] == "ib_umad"
    assert host.package("infiniband-diags").is_installed


def test_systemd_starts_fabric_manager_where_the_switches_are(host):
    """A container has none, and that is no failure."""
    assert host.check_output("systemctl is-enabled nvidia-fabricmanager") == "enabled"
    assert "ExecCondition=/usr/lib/muster/on-pci-bus 1af1 22a3 " in host.check_output("systemctl cat nvidia-fabricmanager")
    host.run_expect([0], "systemctl start nvidia-fabricmanager")
    assert set(host.check_output("systemctl show -P ActiveState -P Result nvidia-fabricmanager").split()) == {"inactive", "exec-condition"}


def test_it_has_no_imex(host):
    assert not host.package("nvidia-imex").is_installed
    assert not host.file("/etc/nvidia-imex").exists
