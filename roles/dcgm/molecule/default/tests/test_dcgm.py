# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Role dcgm replaces DCGM 3 and holds the stack's version, although the repository has a newer one."""

from __future__ import annotations

import json


def test_the_package_has_the_version_of_the_stack(host):
    assert host.package("datacenter-gpu-manager-4-cuda13").version == "1:4.7.0-1"
    assert "datacenter-gpu-manager-4-cuda13" in host.check_output("apt-mark showhold").split()
    assert host.check_output("dcgmi --version") == "dcgmi  version: 4.7.0"
    assert not host.package("datacenter-gpu-manager").is_installed
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["dcgm"]
    assert entry["packages"] == {"datacenter-gpu-manager-4-cuda13": "1:4.7.0-1"}
    assert entry["artefacts"] == ["/usr/bin/dcgmi"]
