# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The program that makes scratch space from instance-store disks: which disks it takes and which it never touches. Its tools are stubs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "roles/local_nvme/files/muster-scratch.py"
SPEC = importlib.util.spec_from_file_location("muster_scratch", PROGRAM)
assert SPEC and SPEC.loader
scratch = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(scratch)
MODEL = "Amazon EC2 NVMe Instance Storage"


def disk(number: int, **fields: object) -> dict:
    blank = {"type": "disk", "model": MODEL + "   ", "fstype": None, "pttype": None, "label": None}
    return {"path": f"/dev/nvme{number}n1", **blank, **fields}


def member(number: int, *children: dict) -> dict:
    return disk(number, fstype="linux_raid_member", label="any:muster-scratch", children=list(children))


ROOT = disk(0, model="Amazon Elastic Block Store", pttype="gpt")
ARRAY = {"path": "/dev/md127", "type": "raid0", "model": None, "fstype": "xfs", "pttype": None, "label": "muster-scratch"}


@pytest.mark.parametrize(
    ("disks", "does"),
    [
        ([], ""),
        ([disk(1)], "make"),
        ([disk(1), disk(2)], "make"),
        ([disk(1, fstype="xfs", label="muster-scratch")], "/dev/nvme1n1"),
        ([member(1, ARRAY), member(2, ARRAY)], "/dev/md127"),
        ([member(1), member(2)], "assemble"),
        ([member(1, {**ARRAY, "fstype": None, "label": None})], "format /dev/md127"),
    ],
)
def test_the_plan_for_disks(disks, does):
    assert scratch.plan(scratch.disks_of([ROOT, *disks], MODEL)) == does


@pytest.mark.parametrize(
    ("disks", "says"),
    [
        ([disk(1, pttype="gpt"), disk(2)], "Disk /dev/nvme1n1 has a partition table (gpt) and is left alone"),
        ([disk(1), disk(2, fstype="ext4", label="data")], "Disk /dev/nvme2n1 has ext4 on it and is left alone"),
        ([disk(1, fstype="LVM2_member")], "Disk /dev/nvme1n1 has LVM2_member on it"),
        ([disk(1, fstype="linux_raid_member", label="db:0")], "Disk /dev/nvme1n1 has linux_raid_member on it"),
        ([disk(1, children=[{**ARRAY, "path": "/dev/dm-0", "type": "crypt"}])], "Disk /dev/nvme1n1 is used by /dev/dm-0"),
        ([member(1), disk(2)], "Disk /dev/nvme2n1 is blank and the others have scratch data"),
    ],
)
def test_disks_that_are_refused(disks, says):
    with pytest.raises(scratch.Refused) as refused:
        scratch.plan(disks)
    assert str(refused.value).startswith(says)


@pytest.fixture
def machine(tmp_path: Path):
    """Runs the program with tools that record their calls: (exit code, output, calls)."""

    def go(devices: list, wipefs: str = "", path: str = "scratch", filesystem: str = "xfs"):
        calls = tmp_path / "calls"
        calls.write_text("")
        (tmp_path / "lsblk.json").write_text(json.dumps({"blockdevices": devices}))
        tools = {"lsblk": f"cat {tmp_path}/lsblk.json", "wipefs": f"printf '{wipefs}'"}
        for name in ("lsblk", "wipefs", "mdadm", "mkfs.xfs", "mkfs.ext4", "mount"):
            log = "" if name in tools else f'echo "{name} $*" >>{calls}\n'
            (tmp_path / name).write_text(f"#!/bin/sh\n{log}{tools.get(name, '')}\n")
            (tmp_path / name).chmod(0o755)
        argv = [
            sys.executable,
            str(PROGRAM),
            f"--path={tmp_path / path}",
            f"--model={MODEL}",
            f"--filesystem={filesystem}",
            "--options=noatime",
        ]
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()

    return go


def test_several_blank_disks_become_one(machine, tmp_path):
    code, said, calls = machine([ROOT, disk(2), disk(1)])
    assert (code, said) == (0, f"{tmp_path}/scratch is on 2 disk(s): /dev/nvme1n1 /dev/nvme2n1\n")
    assert calls == [
        "mdadm --create /dev/md/muster-scratch --run --level=0 --homehost=any --name=muster-scratch --raid-devices=2"
        " /dev/nvme1n1 /dev/nvme2n1",
        "mkfs.xfs -L muster-scratch /dev/md/muster-scratch",
        f"mount -o noatime /dev/md/muster-scratch {tmp_path}/scratch",
    ]
    assert (tmp_path / "scratch").stat().st_mode & 0o7777 == 0o1777


def test_an_existing_file_system_is_mounted_and_not_made_again(machine, tmp_path):
    assert machine([member(1, ARRAY), member(2, ARRAY)])[2] == [f"mount -o noatime /dev/md127 {tmp_path}/scratch"]
    assert machine([member(1), member(2)])[2][0] == "mdadm --assemble /dev/md/muster-scratch /dev/nvme1n1 /dev/nvme2n1"
    # A path that is always mounted stands in for the folder.
    assert machine([member(1, ARRAY)], path="/proc")[2] == []
    assert machine([ROOT]) == (0, f"This machine has no disk of model {MODEL}.\n", [])


def test_a_disk_with_anything_on_it_is_not_written_to(machine):
    code, said, calls = machine([disk(1), disk(2, fstype="ext4")])
    assert (code, calls) == (1, [])
    assert said == "muster-scratch: Disk /dev/nvme2n1 has ext4 on it and is left alone, and so are the others.\n"
    # wipefs finds what lsblk has not seen yet.
    code, said, calls = machine([disk(1), disk(2)], wipefs="0x438 ext4")
    assert (code, calls) == (1, [])
    assert said.startswith("muster-scratch: Disk /dev/nvme1n1 has something on it that lsblk does not know and is left alone")


def test_one_disk_needs_no_array(machine):
    assert [call.split()[0] for call in machine([disk(1)], filesystem="ext4")[2]] == ["mkfs.ext4", "mount"]
