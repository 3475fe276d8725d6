# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the controller, because the lock belongs to the process of ansible-playbook."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.muster.fleet.plugins.plugin_utils.fleet_lock import Held, take


class ActionModule(ActionBase):
    """Takes the lock of a fleet, or fails with one sentence."""

    BYPASS_HOST_LOOP = True
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        """Fail while another process has the lock. Check mode takes none."""
        result = super().run(tmp, task_vars)
        spec = {
            "fleet": {"type": "str", "required": True},
            "folder": {"type": "str", "required": True},
            "create": {"type": "bool", "default": False},
        }
        arguments = self.validate_argument_spec(spec)[1]
        folder = Path(arguments["folder"])
        if self._task.check_mode or not (arguments["create"] or folder.is_dir()):
            return {**result, "changed": False}
        what = " ".join(os.path.basename(each) if number == 0 else each for number, each in enumerate(playbooks(sys.argv)))
        try:
            # This is a worker of Ansible, which ends with its task.
            take(folder, arguments["fleet"], os.getppid(), what)
        except Held as error:
            return {**result, "failed": True, "msg": str(error)}
        except OSError as error:
            return {**result, "failed": True, "msg": f"The lock of fleet {arguments['fleet']} cannot be written: {error}."}
        return {**result, "changed": False}


def playbooks(argv):
    """The program and the playbooks of a command line, without options, which may hold secrets."""
    return [
        argv[0],
        *(each for each in argv[1:] if each.endswith((".yml", ".yaml")) and not each.startswith(("-", "@")) and "=" not in each),
    ]
