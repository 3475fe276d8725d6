# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Which daemons NVSwitch needs by instance type, from which packages, and in no version but the driver's."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.nvidia_fabric import nvidia_fabric, nvidia_fabric_packages
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

STACK = stack_files.load("aws-2026.11")
LTS = stack_files.load("aws-2026.11-580")


@pytest.mark.parametrize(
    ("instance_type", "components"),
    [
        ("", []),
        ("g5.xlarge", []),
        ("p5.4xlarge", []),
        ("p4d.24xlarge", ["fabricmanager"]),
        ("p5.48xlarge", ["fabricmanager"]),
        ("p6-b200.48xlarge", ["fabricmanager", "nvlsm"]),
        ("p6e-gb200.36xlarge", ["imex"]),
    ],
)
def test_what_a_type_needs(instance_type, components):
    assert nvidia_fabric(instance_type) == components


@pytest.mark.parametrize(
    ("stack", "system", "arch", "components", "wanted"),
    [
        (STACK, "ubuntu24.04", "x86_64", ["fabricmanager"], [(["nvidia-fabricmanager"], "595.112.07*")]),
        (STACK, "amzn2023", "x86_64", ["fabricmanager"], [(["nvidia-fabricmanager-595.112.07"], "")]),
        (LTS, "ubuntu22.04", "x86_64", ["fabricmanager"], [(["nvidia-fabricmanager-580"], "580.178.04*")]),
        (LTS, "ubuntu24.04", "arm64", ["imex"], [(["nvidia-imex-580"], "580.178.04*")]),
        (STACK, "ubuntu24.04", "arm64", ["imex"], [(["nvidia-imex"], "595.112.07*")]),
        (STACK, "ubuntu24.04", "x86_64", ["fabricmanager", "nvlsm"], [(["nvidia-fabricmanager"], "595.112.07*"), (["nvlsm"], "")]),
    ],
)
def test_packages_follow_system_and_branch(stack, system, arch, components, wanted):
    found = nvidia_fabric_packages(components, stack, stack["nvidia_driver"]["version"], system, arch)
    assert [(each["names"], each["pin"]) for each in found] == wanted


def test_another_version_than_the_drivers_is_refused():
    with pytest.raises(AnsibleFilterError) as refused:
        nvidia_fabric_packages(["fabricmanager"], STACK, "595.91.07", "ubuntu24.04", "x86_64")
    assert str(refused.value) == (
        "fabricmanager 595.112.07 and driver 595.91.07 differ and do not work together; give both the same version in the stack."
    )
    with pytest.raises(AnsibleFilterError, match=r"^Stack debian-12 has no fabricmanager\.$"):
        nvidia_fabric_packages(["fabricmanager"], stack_files.load("debian-12"), "535.261.03", "debian12", "x86_64")
