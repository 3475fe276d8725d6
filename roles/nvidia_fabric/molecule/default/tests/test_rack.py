# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A node of a rack has IMEX in the driver's version, and knows the other nodes."""

from __future__ import annotations

import json

NODE = "compute-2"


def test_imex_has_the_drivers_version(host):
    assert host.package("nvidia-imex").version == "595.112.07-1"
    assert "nvidia-imex" in host.check_output("apt-mark showhold").split()
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    assert manifest["components"]["nvidia_fabric"]["version"] == "595.112.07"


def test_imex_has_the_nodes_of_the_rack(host):
    assert host.file("/etc/nvidia-imex/nodes_config.cfg").content_string == "10.0.0.1\n10.0.0.2\n"


def test_systemd_starts_imex_where_its_gpus_are(host):
    assert host.check_output("systemctl is-enabled nvidia-imex") == "enabled"
    assert "ExecCondition=/usr/lib/muster/on-pci-bus 2941" in host.check_output("systemctl cat nvidia-imex").splitlines()


def test_it_has_no_fabric_manager(host):
    assert not host.package("nvidia-fabricmanager").is_installed
    assert not host.file("/etc/modules-load.d/muster-nvlsm.conf").exists
    assert not host.package("infiniband-diags").is_installed
