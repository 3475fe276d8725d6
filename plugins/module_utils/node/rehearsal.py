# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recognises stand-ins on a node that rehearses an instance type: programs, devices, packages and files that are not the vendors'.

Every stand-in names itself with the words of SAYS: a program on stderr, a file or library in its content. A package has a file in PACKAGES.
"""

from __future__ import annotations

import json
import os
import re
import shutil

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text

PATH = "/etc/muster/rehearsal.json"
PACKAGES = "/usr/share/muster/rehearsal"
UNITS = "/usr/lib/systemd/system/"
SAYS = "muster rehearsal: %s is a stand-in"
NAMES = re.compile(re.escape(SAYS) % "([^;\n]{1,80}?)")
# What the kernel itself has in its file systems: whatever lies on another one was laid over them.
KERNEL_S = {"sys": "/sys/kernel", "proc": "/proc/version"}
# The kernel mounts file systems of its own there, such as that of control groups.
KERNEL_MOUNTS = ("/sys/fs/", "/sys/kernel/", "/proc/sys/fs/")
# The words are in the first bytes of a script, and anywhere in a small library.
MOST_BYTES = 65536


def node(path=PATH):
    """What the node rehearses ({instance_type, stand_ins, devices}), or {} on a real node."""
    text = read_text(path, "")
    return json.loads(text) if text.strip() else {}


def of_facts(rehearsed, said=""):
    """The stand-ins that facts about hardware come from: devices that the node was given, and programs that name themselves in `said`."""
    return (["devices of " + rehearsed["instance_type"]] if rehearsed else []) + named(said)


def named(text):
    """The stand-ins that name themselves in a text."""
    return list(dict.fromkeys(NAMES.findall(text)))


def in_file(path):
    """The stand-ins that name themselves in a file, or in the files of a folder that a role built from source."""
    if os.path.basename(path) == ".muster-build":
        path = os.path.dirname(path)
    if os.path.isdir(path):
        built = os.path.exists(os.path.join(path, ".muster-build"))
        files = sorted(os.path.join(at, name) for at, _folders, names in os.walk(path) for name in names) if built else []
        return list(dict.fromkeys(name for each in files[:50] if os.path.basename(each) != ".muster-build" for name in in_file(each)))
    if not os.path.isfile(path):
        return []
    try:
        with open(path, "rb") as file:
            return named(file.read(MOST_BYTES).decode(errors="replace"))
    except OSError:
        return []


def of_packages(names, folder=PACKAGES):
    """Those of the packages that are stand-ins."""
    return [name for name in names if os.path.exists(os.path.join(folder, name))]


def of_entry(entry):
    """The stand-ins among the packages and artefacts of a manifest's entry."""
    artefacts = [name for path in entry.get("artefacts", ()) for name in in_file(path)]
    return list(dict.fromkeys(of_packages(sorted(entry.get("packages", ()))) + artefacts))


def is_device(path, rehearsed):
    """Whether a path is, or begins as, a device that the node was given, or lies in what was laid over the kernel's /sys and /proc."""
    if path.startswith("/dev/") and path != "/dev/null":
        return any(device.startswith(path) for device in rehearsed.get("devices", ()))
    if path.startswith(KERNEL_MOUNTS):
        return False
    kernel_s = KERNEL_S.get(path.split("/")[1], "") if path.startswith("/") and rehearsed else ""
    return bool(kernel_s) and os.path.exists(path) and os.stat(path).st_dev != os.stat(kernel_s).st_dev


def in_command(words, rehearsed, which=shutil.which):
    """The stand-ins among the programs, files and devices that a command line names, also inside a script of `sh -c`."""
    found: list = []
    for token in dict.fromkeys(token for word in words for token in re.findall(r"[\w./+-]+", word)):
        path = token if os.path.isabs(token) else "" if token.startswith("-") else which(token)
        path = UNITS + token if token.endswith((".service", ".path")) else path
        name = os.path.basename(token)
        if (path and not os.path.isabs(token) and name in rehearsed.get("stand_ins", ())) or is_device(token, rehearsed):
            found.append(name)
        elif path:
            names = in_file(path)
            found += [name] if names and name in rehearsed.get("stand_ins", ()) else names
    return list(dict.fromkeys(found))
