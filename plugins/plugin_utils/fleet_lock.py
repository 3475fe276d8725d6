# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One lock for each fleet: the process that changes it, in a file of its state folder. The lock ends with that process, however it ends."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import alive

FILE = "run.lock"


class Held(Exception):
    """Another process changes the fleet; the text is one sentence."""


def born(pid: int) -> str:
    """When a process started, in ticks since the boot, or "" where /proc does not say; another process may get its number later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def take(folder: Path, fleet: str, pid: int, what: str) -> None:
    """Take the lock of a fleet for the process `pid`, which runs `what`; Held when another process has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / FILE
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        holder = known(handle.read())
        here = socket.gethostname()
        mine = {
            "pid": pid,
            "born": born(pid),
            "host": here,
            "user": user(),
            "what": what,
            "since": time.strftime("%H:%M:%S UTC", time.gmtime()),
        }
        if holder and (holder["host"], holder["pid"], holder["born"]) != (here, pid, mine["born"]):
            if holder["host"] != here:
                rest = f"wait for its end, or remove {path} if {holder['host']} no longer runs it."
            elif alive(holder["pid"]) and born(holder["pid"]) == holder["born"]:
                rest = "wait for its end."
            else:
                rest = ""
            if rest:
                who = f"{holder['what']} of {holder['user']} (process {holder['pid']} on {holder['host']}, since {holder['since']})"
                raise Held(f"Fleet {fleet} is being changed by {who}; {rest}")
        handle.seek(0)
        handle.truncate()
        json.dump(mine, handle)


def known(text: str) -> dict[str, Any] | None:
    """The holder that a lock's file names, or None."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"pid", "born", "host", "user", "what", "since"} <= set(found) else None
