# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy-rc.d that refuses every start of a service while packages are installed."""

from __future__ import annotations

import glob
import os

PATH = "/usr/sbin/policy-rc.d"
LISTS = "/var/lib/apt/lists"
# 101 is "action forbidden by policy" in Debian's invoke-rc.d policy layer.
SCRIPT = "#!/bin/sh\n# Put here by Muster during an install phase; it is taken out at its end.\nexit 101\n"


def refuse():
    """Put the file in place, unless there is one already or the system is not of Debian's kind."""
    if not os.path.exists(PATH) and os.path.isdir("/etc/dpkg"):
        with open(PATH, "w", encoding="utf-8") as handle:
            handle.write(SCRIPT)
        os.chmod(PATH, 0o755)
    # A new image has a young and empty folder, which cache_valid_time of ansible.builtin.apt alone would take for just read.
    if os.path.isdir(LISTS) and not glob.glob(LISTS + "/*_Packages*"):
        os.utime(LISTS, (0, 0))


def allow():
    """Take the file out again, if it is Muster's."""
    if not os.path.exists(PATH):
        return
    with open(PATH, encoding="utf-8", errors="replace") as handle:
        ours = handle.read() == SCRIPT
    if ours:
        os.unlink(PATH)
