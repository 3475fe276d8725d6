# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Makes one scratch file system from a machine's instance-store disks and mounts it, at every boot: after a stop the disks are blank.

The program never writes to a disk that has any content except its own array or file system.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

LABEL = "muster-scratch"
ARRAY = "/dev/md/" + LABEL


class Refused(Exception):
    """The program refuses to go on; the text is one sentence for the user."""


def disks_of(devices: list, model: str) -> list:
    """The disks of that model among the devices that lsblk printed. The program ignores all others."""
    return sorted(
        (each for each in devices if each["type"] == "disk" and (each["model"] or "").strip() == model), key=lambda disk: disk["path"]
    )


def plan(disks: list) -> str:
    """`make`, `assemble`, the device that has the file system, or "" without a disk. Raise Refused when something else uses a disk."""
    if not disks:
        return ""
    for disk in disks:
        if disk["pttype"]:
            raise Refused(f"Disk {disk['path']} has a partition table ({disk['pttype']}) and is left alone, and so are the others.")
        mine = (disk["label"] or "").split(":")[-1] == LABEL
        if disk["fstype"] and not mine:
            raise Refused(f"Disk {disk['path']} has {disk['fstype']} on it and is left alone, and so are the others.")
        for child in disk.get("children") or []:
            if not mine or not child["type"].startswith("raid"):
                raise Refused(f"Disk {disk['path']} is used by {child['path']} and is left alone, and so are the others.")
    kinds = {disk["fstype"] or "" for disk in disks}
    if kinds == {""}:
        return "make"
    if len(kinds) > 1:
        blank = ", ".join(disk["path"] for disk in disks if not disk["fstype"])
        raise Refused(f"Disk {blank} is blank and the others have scratch data; stop and start the machine for blank disks.")
    if kinds != {"linux_raid_member"}:
        return disks[0]["path"]
    arrays = [child for disk in disks for child in disk.get("children") or []]
    # An array without a file system was interrupted while it was made.
    return (arrays[0]["path"] if arrays[0]["fstype"] else "format " + arrays[0]["path"]) if arrays else "assemble"


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"`{' '.join(argv)}` failed: {' '.join((done.stderr or done.stdout).split())[-300:]}")
    return done.stdout


def make(paths: list, filesystem: str, array: str = "") -> str:
    """Make the file system, on an array when there are several disks; return its device."""
    device = array
    if not array:
        for path in paths:
            # lsblk may know too little, so look at the disk itself before writing to it.
            if run("wipefs", "--noheadings", path).strip():
                raise Refused(f"Disk {path} has something on it that lsblk does not know and is left alone; look with `wipefs {path}`.")
        device = paths[0]
        if len(paths) > 1:
            run(
                "mdadm",
                "--create",
                ARRAY,
                "--run",
                "--level=0",
                "--homehost=any",
                f"--name={LABEL}",
                f"--raid-devices={len(paths)}",
                *paths,
            )
            device = ARRAY
    options = {"xfs": ["-L", LABEL], "ext4": ["-q", "-L", LABEL, "-E", "lazy_itable_init=1,nodiscard"]}[filesystem]
    run(f"mkfs.{filesystem}", *options, device)
    return device


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--path", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--filesystem", choices=["xfs", "ext4"], required=True)
    parser.add_argument("--options", default="defaults")
    given = parser.parse_args()
    try:
        told = json.loads(run("lsblk", "--json", "--output", "PATH,TYPE,MODEL,FSTYPE,PTTYPE,LABEL"))["blockdevices"]
        disks = disks_of(told, given.model)
        paths = [disk["path"] for disk in disks]
        found = plan(disks)
        if not found:
            print(f"This machine has no disk of model {given.model}.")
            return 0
        if found == "make":
            found = make(paths, given.filesystem)
        elif found == "assemble":
            run("mdadm", "--assemble", ARRAY, *paths)
            found = ARRAY
        elif found.startswith("format "):
            found = make(paths, given.filesystem, found.split()[1])
        if not os.path.ismount(given.path):
            os.makedirs(given.path, exist_ok=True)
            run("mount", "-o", given.options, found, given.path)
            # Like /tmp: everybody writes, and nobody removes another user's files.
            os.chmod(given.path, 0o1777)
        print(f"{given.path} is on {len(paths)} disk(s): {' '.join(paths)}")
        return 0
    except Refused as refused:
        print(f"muster-scratch: {refused}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
