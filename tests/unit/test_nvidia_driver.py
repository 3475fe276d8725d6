# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Open or proprietary, names of packages by branch and system, and the module's options."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.nvidia_driver import nvidia_driver

REPOSITORY = {"kind": "repository"}


def asked(version="595.112.07", modules="open", *, system="ubuntu24.04", instance_type="p5.48xlarge", options=(), source=None):
    return nvidia_driver(source or REPOSITORY, version, modules, system, instance_type=instance_type, options=options)


@pytest.mark.parametrize(
    ("version", "system", "modules", "first", "packages"),
    [
        ("595.112.07", "ubuntu24.04", "open", ["nvidia-driver-pinning-595.112.07"], ["nvidia-open"]),
        ("580.178.04", "ubuntu22.04", "open", ["nvidia-driver-pinning-580.178.04"], ["nvidia-open-580"]),
        ("580.178.04", "debian12", "proprietary", ["nvidia-driver-pinning-580.178.04"], ["cuda-drivers-580"]),
        ("580.178.04", "debian13", "open", ["nvidia-driver-pinning-580.178.04"], ["nvidia-open"]),
    ],
)
def test_names_follow_branch_and_system(version, system, modules, first, packages):
    found = asked(version, modules, system=system, instance_type="g5.xlarge")
    assert (found["first"], found["packages"], found["pin"], found["stream"]) == (first, packages, "", "")


@pytest.mark.parametrize(
    ("version", "modules", "kmod", "stream"),
    [
        ("595.112.07", "open", "kmod-nvidia-open-dkms", "nvidia-driver:595-open"),
        ("580.178.04", "proprietary", "kmod-nvidia-latest-dkms", "nvidia-driver:580-dkms"),
    ],
)
def test_dnf_gets_a_stream_and_the_version_of_every_package(version, modules, kmod, stream):
    found = asked(version, modules, system="amzn2023", instance_type="g5.xlarge")
    assert (found["first"], found["packages"]) == ([], [kmod, "nvidia-driver-cuda", "nvidia-persistenced"])
    assert (found["pin"], found["stream"]) == (f"{version}*", stream)


def test_what_the_distribution_has_is_named_by_the_stack():
    source = {"kind": "distro", "distro": ["nvidia-open-kernel-dkms"]}
    found = asked("535.261.03", system="debian12", source=source)
    assert (found["packages"], found["pin"], found["stream"]) == (["nvidia-open-kernel-dkms"], "535.261.03*", "")
    assert asked(source={"kind": "url"})["packages"] == []


@pytest.mark.parametrize(
    ("instance_type", "modules"),
    [("p3dn.24xlarge", "proprietary"), ("g4dn.xlarge", "open"), ("p6-b200.48xlarge", "open"), ("", "open")],
)
def test_modules_by_gpu(instance_type, modules):
    assert asked("580.178.04", "by_gpu", instance_type=instance_type)["modules"] == modules


@pytest.mark.parametrize(
    ("modules", "version", "instance_type", "says"),
    [
        (
            "open",
            "580.178.04",
            "p3dn.24xlarge",
            "The open kernel modules do not support the volta GPUs of p3dn.24xlarge; set nvidia_driver_modules",
        ),
        (
            "proprietary",
            "595.112.07",
            "p6-b200.48xlarge",
            "Only the open kernel modules support the blackwell GPUs of p6-b200.48xlarge; set",
        ),
        ("proprietary", "620.10", "p5.48xlarge", "Driver 620.10 has only open kernel modules; set nvidia_driver_modules to open, or"),
        ("closed", "595.112.07", "p5.48xlarge", "nvidia_driver_modules is closed and must be open, proprietary or by_gpu."),
        ("open", "595.112.07", "p5.48xlage", "The catalogue has no instance type p5.48xlage; the nearest are p5.48xlarge"),
    ],
)
def test_what_cannot_be(modules, version, instance_type, says):
    with pytest.raises(AnsibleFilterError) as refused:
        asked(version, modules, instance_type=instance_type)
    assert str(refused.value).startswith(says)


def test_options_by_gpu():
    assert asked()["options"] == []
    assert asked(modules="proprietary", instance_type="g5.xlarge")["options"] == ["NVreg_EnableGpuFirmware=0"]
    assert asked(instance_type="g5.xlarge")["options"] == []
    assert asked(instance_type="p6e-gb200.36xlarge", options=["NVreg_X=1"])["options"] == [
        "NVreg_CoherentGPUMemoryMode=driver",
        "NVreg_X=1",
    ]
    with pytest.raises(AnsibleFilterError, match=r"^NVreg_EnableGpuFirmware=0 works only with proprietary kernel modules"):
        asked(options=["NVreg_EnableGpuFirmware=0"])
