# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the controller, because the stack is there: a module would copy itself to every node."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ansible_collections.muster.fleet.plugins.module_utils.stack.document import notice, refusal


class ActionModule(ActionBase):
    """Collects what a stack refuses on a host, and warns of what only HTTPS vouches for."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        """Return the sentences; Ansible prints a warning once, however many hosts have it."""
        result = super().run(tmp, task_vars)
        arguments = self.validate_argument_spec(
            {
                "stack": {"type": "dict", "required": True},
                "components": {"type": "list", "elements": "str", "required": True},
                "system": {"type": "str", "required": True},
                "arch": {"type": "str", "required": True},
                "require_signed": {"type": "bool", "default": False},
            }
        )[1]
        place = (arguments["system"], arguments["arch"])
        said = [refusal(arguments["stack"], name, *place, arguments["require_signed"]) for name in arguments["components"]]
        told = [] if any(said) else [notice(arguments["stack"], name, *place) for name in arguments["components"]]
        before = (task_vars or {}).get("ansible_facts", {}).get("muster_refused", [])
        refused = list(dict.fromkeys([*before, *filter(None, said)]))
        warnings = {"warnings": list(filter(None, told))} if any(told) else {}
        return {**result, **warnings, "changed": False, "refused": refused, "ansible_facts": {"muster_refused": refused}}
