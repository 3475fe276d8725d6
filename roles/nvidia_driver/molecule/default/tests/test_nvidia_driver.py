# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The driver's packages have the stack's version, and nouveau is off. The stub archive has no module to build."""

from __future__ import annotations


def test_the_driver_is_held_at_its_version(host):
    assert host.package("nvidia-open").version == "595.112.07-1"
    assert host.package("nvidia-driver-pinning-595.112.07").is_installed
    assert "nvidia-open" in host.check_output("apt-mark showhold").split()


def test_nouveau_is_off(host):
    lines = host.file("/etc/modprobe.d/muster-nvidia.conf").content_string.splitlines()
    assert lines[1:] == ["blacklist nouveau", "options nouveau modeset=0"]


def test_the_drop_in_turns_persistence_on(host):
    drop_in = host.file("/etc/systemd/system/nvidia-persistenced.service.d/muster.conf").content_string
    assert "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --verbose --persistence-mode\n" in drop_in
