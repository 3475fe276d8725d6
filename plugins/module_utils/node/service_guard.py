# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy-rc.d that refuses every start of a service while packages are installed."""

from __future__ import annotations

import glob
import os

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text

PATH = "/usr/sbin/policy-rc.d"
LISTS = "/var/lib/apt/lists"
# 101 is "action forbidden by policy" in Debian's invoke-rc.d policy layer.
SCRIPT = "#!/bin/sh\n# Put here by Muster during an install phase; it is taken out at its end.\nexit 101\n"


def refused():
    """Whether Muster refuses services just now; another's file may refuse some and let others start."""
    return read_text(PATH, "") == SCRIPT


def refuse():
    """Put the file in place, unless there is one already or the system is not of Debian's kind."""
    if not os.path.exists(PATH) and os.path.isdir("/etc/dpkg"):
        with open(PATH, "w", encoding="utf-8") as handle:
            handle.write(SCRIPT)
        os.chmod(PATH, 0o755)
    # In a new image the folder of package lists is recent and empty; cache_valid_time of ansible.builtin.apt takes that for current lists.
    if os.path.isdir(LISTS) and not glob.glob(LISTS + "/*_Packages*"):
        os.utime(LISTS, (0, 0))


def allow():
    """Remove the file again, if it is Muster's."""
    if refused():
        os.unlink(PATH)
