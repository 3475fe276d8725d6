# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy-rc.d that refuses every start of a service while packages are installed."""

from __future__ import annotations

import fcntl
import glob
import os
from contextlib import contextmanager

PATH = "/usr/sbin/policy-rc.d"
LISTS = "/var/lib/apt/lists"
# Who refuses: a role that installs leaves this file, what installs ahead holds a lock, and the last of them takes the refusal back.
INSTALLING = "/run/muster-installing"
AHEAD = "/run/muster-packages-ahead.lock"
# 101 is "action forbidden by policy" in Debian's invoke-rc.d policy layer.
SCRIPT = "#!/bin/sh\n# Put here by Muster during an install phase; it is taken out at its end.\nexit 101\n"


@contextmanager
def alone():
    """Let nobody else of Muster touch the refusal meanwhile."""
    with open(INSTALLING + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def refused():
    """Whether Muster refuses services just now; another's file may refuse some and let others start."""
    if not os.path.exists(PATH):
        return False
    with open(PATH, encoding="utf-8", errors="replace") as handle:
        return handle.read() == SCRIPT


def put():
    """Put the file in place, unless there is one already or the system is not of Debian's kind."""
    if not os.path.exists(PATH) and os.path.isdir("/etc/dpkg"):
        with open(PATH, "w", encoding="utf-8") as handle:
            handle.write(SCRIPT)
        os.chmod(PATH, 0o755)
    # A new image has a young and empty folder, which cache_valid_time of ansible.builtin.apt alone would take for just read.
    if os.path.isdir(LISTS) and not glob.glob(LISTS + "/*_Packages*"):
        os.utime(LISTS, (0, 0))


def take_out():
    """Take the file out again, if it is Muster's."""
    if refused():
        os.unlink(PATH)


def refuse():
    """Refuse services while a role installs."""
    with alone():
        with open(INSTALLING, "w", encoding="utf-8"):
            pass
        put()


def allow():
    """The role has installed: allow services again, unless packages are still installed ahead."""
    with alone():
        if os.path.exists(INSTALLING):
            os.unlink(INSTALLING)
        if not ahead_runs():
            take_out()


def ahead_runs():
    """Whether packages are installed ahead just now."""
    if not os.path.exists(AHEAD):
        return False
    with open(AHEAD, encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def ahead_done():
    """The packages whose step is over, and with it apt's own work after it; also those that came along or were there."""
    if not os.path.exists(AHEAD):
        return set()
    with open(AHEAD, encoding="utf-8") as lock:
        return set(lock.read().split())


def begin_ahead():
    """Refuse services while packages are installed ahead: the lock that says so, for end_ahead(), or None where somebody has it."""
    lock = open(AHEAD, "a", encoding="utf-8")  # noqa: SIM115 # end_ahead() closes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    lock.truncate(0)
    with alone():
        put()
    return lock


def end_ahead(lock):
    """Allow services again, unless a role installs just now."""
    with alone():
        lock.close()
        if not os.path.exists(INSTALLING):
            take_out()
