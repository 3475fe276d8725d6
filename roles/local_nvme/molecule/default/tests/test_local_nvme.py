# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role local_nvme installs in a container: a program and a unit that touch no disk of the host."""

from __future__ import annotations

import re


def test_the_program_finds_no_disk_of_the_model(host):
    said = host.run("muster-scratch --path=/scratch '--model=Amazon EC2 NVMe Instance Storage' --filesystem=xfs")
    assert (said.rc, said.stdout) == (0, "This machine has no disk of model Amazon EC2 NVMe Instance Storage.\n")
    assert not host.file("/scratch").exists


def test_systemd_understands_the_unit_and_skips_it_in_a_container(host):
    assert host.run("systemd-analyze verify /etc/systemd/system/muster-scratch.service").stderr == ""
    shown = host.check_output("systemctl cat muster-scratch")
    # Docker and Slurm start after the file system is mounted; the model of its disks contains spaces.
    wanted = {"Before=docker.service containerd.service slurmd.service", "RemainAfterExit=yes", "WantedBy=multi-user.target"}
    assert wanted <= set(shown.splitlines())
    [words] = re.findall(r"argv\[\]=(.*?) ;", host.check_output("systemctl show --property=ExecStart muster-scratch"))
    assert words.split(" --")[1:] == ["path=/scratch", "model=Amazon EC2 NVMe Instance Storage", "filesystem=xfs", "options=noatime"]
    assert '"--model=Amazon EC2 NVMe Instance Storage"' in shown
    started = host.run("systemctl start muster-scratch; systemctl show --property=ConditionResult,ActiveState muster-scratch")
    assert sorted(started.stdout.split()) == ["ActiveState=inactive", "ConditionResult=no"]


def test_the_tools_are_installed(host):
    assert host.check_output("command -v mdadm mkfs.xfs wipefs lsblk").count("\n") == 3
