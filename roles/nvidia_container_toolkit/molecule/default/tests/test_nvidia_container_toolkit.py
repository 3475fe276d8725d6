# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role nvidia_container_toolkit installs from a stub of a repository that has a later version too."""

from __future__ import annotations

import json
import re

PACKAGES = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")


def test_all_packages_are_held_at_the_version_of_the_stack(host):
    assert {host.package(name).version for name in PACKAGES} == {"1.20.1-1"}
    assert set(PACKAGES) <= set(host.check_output("apt-mark showhold").split())
    upgrade = host.check_output("apt-get --simulate upgrade")
    assert "Inst nvidia-container-toolkit" not in upgrade


def test_only_its_own_key_signs_the_repository(host):
    [source] = host.check_output("grep -rl libnvidia-container /etc/apt/sources.list.d").split()
    lines = dict(line.split(": ", 1) for line in host.file(source).content_string.splitlines() if ": " in line and line[0] != "#")
    assert lines["Signed-By"].startswith("/usr/share/keyrings/muster-")
    assert lines["Suites"] == "/"
    assert "trusted" not in host.file(source).content_string.lower()


def test_the_node_writes_the_cdi_specification(host):
    assert host.service("nvidia-cdi-refresh.path").is_enabled
    assert host.service("nvidia-cdi-refresh.path").is_running
    assert host.service("nvidia-cdi-refresh.service").is_enabled
    [(read, _flags)] = re.findall(r"EnvironmentFiles=(\S+) (.*)", host.check_output("systemctl show nvidia-cdi-refresh.service"))
    assert host.file(read).content_string.splitlines()[1:] == ["NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS=all"]
    assert not host.file("/etc/cdi").exists
    assert not host.file("/var/run/cdi/nvidia.yaml").exists


def test_manifest_has_the_version(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["nvidia_container_toolkit"]
    assert entry["version"] == "1.20.1"
