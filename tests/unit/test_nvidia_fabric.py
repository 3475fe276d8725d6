# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Which daemons NVSwitch needs by instance type, from which packages, and in no version but the driver's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.nvidia_fabric import (
    nvidia_fabric,
    nvidia_fabric_chosen,
    nvidia_fabric_devices,
    nvidia_fabric_packages,
)
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
STACK = stack_files.load("aws-2026.11")
LTS = stack_files.load("aws-2026.11-580")


@pytest.mark.parametrize(
    ("instance_type", "components"),
    [
        ("", ["all"]),
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
        (STACK, "amzn2023", "x86_64", ["fabricmanager"], [(["nvidia-fabricmanager"], "595.112.07*")]),
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


@pytest.mark.parametrize(
    ("asked", "stack", "system", "arch", "components"),
    [
        (["all"], "aws-2026.11", "ubuntu24.04", "x86_64", ["fabricmanager", "nvlsm"]),
        (["all"], "aws-2026.11", "amzn2023", "arm64", ["imex"]),
        (["all"], "debian-13", "debian13", "x86_64", []),
        (["imex"], "debian-13", "debian13", "x86_64", ["imex"]),
        ([], "aws-2026.11", "ubuntu24.04", "x86_64", []),
    ],
)
def test_an_image_gets_what_any_type_of_its_architecture_needs(asked, stack, system, arch, components):
    """What the stack lacks is left out only where nobody named it."""
    assert nvidia_fabric_chosen(asked, stack_files.load(stack), system, arch) == components


def test_the_devices_that_decide_at_boot_come_from_the_catalogue():
    assert nvidia_fabric_devices("fabricmanager") == ["1af1", "22a3", "2901", "2909", "3182"]
    assert nvidia_fabric_devices("imex") == ["2941"]


@pytest.mark.parametrize(
    ("devices", "code"),
    [
        ([("0x10de", "0x2330"), ("0x10de", "0x22a3")], 0),
        ([("0x10de", "0x2330"), ("0x1d0f", "0x22a3")], 1),  # another vendor's device of the same number
        ([], 1),
    ],
)
def test_the_condition_of_the_units_looks_at_the_pci_bus(tmp_path: Path, devices, code):
    for number, (vendor, device) in enumerate(devices):
        folder = tmp_path / f"0000:00:{number:02x}.0"
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    text = (ROOT / "roles/nvidia_fabric/files/on-pci-bus.sh").read_text().replace("/sys/bus/pci/devices", str(tmp_path))
    assert subprocess.run(["sh", "-c", text, "on-pci-bus", "1af1", "22a3"], check=False).returncode == code
