# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""DCGM of the driver's CUDA, held at the stack's version."""

from __future__ import annotations


def test_the_package_is_the_stacks(host):
    assert host.package("datacenter-gpu-manager-4-cuda13").version == "1:4.7.0-1"
    assert "datacenter-gpu-manager-4-cuda13" in host.check_output("apt-mark showhold").split()
    assert host.check_output("dcgmi --version") == "dcgmi  version: 4.7.0"
