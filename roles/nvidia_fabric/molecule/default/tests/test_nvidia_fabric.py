# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The fabric manager in the driver's version although the repository has a newer one, and what Blackwell needs besides."""

from __future__ import annotations

import json


def test_the_fabric_manager_has_the_drivers_version(host):
    assert host.package("nvidia-fabricmanager").version == "595.112.07-1"
    assert "nvidia-fabricmanager" in host.check_output("apt-mark showhold").split()
    assert host.check_output("nv-fabricmanager --version") == "Fabric Manager version is : 595.112.07"
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    assert manifest["components"]["nvidia_fabric"]["version"] == "595.112.07"


def test_blackwell_has_its_subnet_manager(host):
    assert host.package("nvlsm").is_installed
    assert host.file("/etc/modules-load.d/muster-nvlsm.conf").content_string.splitlines()[-1] == "ib_umad"
    assert not host.package("nvidia-imex").is_installed
