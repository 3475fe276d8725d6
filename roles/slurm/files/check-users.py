# SPDX-License-Identifier: Apache-2.0
"""Refuse a file of sysusers.d whose users or groups conflict with those of this node: `check-users.py FILE`.

systemd-sysusers leaves a name with another number as it is, and gives a user whose number is taken the next free one: either way the
user would have two numbers in one fleet, and own files of somebody else on the shared file system.
"""

import grp
import pwd
import sys


def find(lookup, key):
    try:
        return lookup(key)
    except KeyError:
        return None


def faults(text):
    """{user: a sentence}; a fault of the user replaces the fault of its group, which comes first in the file and says less."""
    found = {}
    for line in text.splitlines():
        kind, name, number = [*line.split(), "", "", ""][:3]
        if kind == "u":
            what = "UID"
            by_number, by_name = find(pwd.getpwuid, int(number.split(":")[0])), find(pwd.getpwnam, name)
        elif kind == "g":
            what = "GID"
            by_number, by_name = find(grp.getgrgid, int(number)), find(grp.getgrnam, name)
        else:
            continue
        number = number.split(":", maxsplit=1)[0]
        if by_number and by_number[0] != name:
            other = by_number[0]
            found[name] = (
                f"{what} {number} of {name} (slurm_users) is taken on this node by {other}; give {name} another, or remove {other}"
            )
        elif by_name and str(by_name[2]) != number:
            have = by_name[2]
            found[name] = f"{name} has the {what} {have} on this node and {number} in slurm_users; give it {have} there, or change the node"
    return found


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as handle:
        found = faults(handle.read())
    if found:
        sys.exit("; ".join(found.values()) + ".")
