# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the controller, once for all hosts, because it reads their variables only."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.muster.fleet.plugins.module_utils.aws.instances import Ec2Error
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import SCOPES
from ansible_collections.muster.fleet.plugins.plugin_utils.stack_hosts import WANTED, Host, host_of, judge_fleet

REMEDY = "Change the stack or the instance type, or override a rule with a reason: muster_rule_overrides: {RULE: reason}."
OPTIONS = {
    "hosts": {"type": "list", "elements": "str"},
    "types": {"type": "list", "elements": "str", "default": []},
    "scopes": {"type": "list", "elements": "str", "choices": list(SCOPES), "default": ["stack"]},
    "instance_type": {"type": "str"},
    "stack": {"type": "raw"},
    "system": {"type": "str"},
    "launch": {"type": "dict"},
    "env": {"type": "dict"},
    "nodes": {"type": "int", "default": 0},
    "container": {"type": "bool", "default": False},
}
# These count instead of what the hosts' own variables say.
GIVEN = ("instance_type", "stack", "system")
INPUTS = ("launch", "env", "nodes", "container")


class ActionModule(ActionBase):
    """Refuses stacks, launches and environments that the rules refuse."""

    BYPASS_HOST_LOOP = True
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        """Return what the rules say, or fail with one sentence for each that refuses."""
        result = super().run(tmp, task_vars)
        asked = self.validate_argument_spec(OPTIONS)[1]
        names = asked["hosts"] if asked["hosts"] is not None else task_vars["ansible_play_hosts_all"]
        try:
            hosts = [self._host(name, asked, task_vars["hostvars"][name]) for name in names]
        except Ec2Error as error:
            raise AnsibleActionFail(str(error)) from error
        told = judge_fleet(hosts, asked["types"], asked["scopes"], **{key: asked[key] for key in INPUTS})
        if told["refused"]:
            return {**result, "failed": True, "msg": " ".join(told["refused"]), "refused": told["refused"], "remedy": REMEDY}
        result.update(told)
        if told["warned"]:
            result["warnings"] = told["warned"]
        if told["overridden"]:
            result["muster_message"] = " ".join(told["overridden"])
        return result

    def _host(self, name: str, asked: dict, variables) -> Host:
        host = host_of(
            name,
            variables.get("group_names", []),
            {key: variables[key] for key in WANTED if key in variables},
            variables.get("ansible_facts") or {},
        )
        return host._replace(**{key: asked[key] for key in GIVEN if asked[key]})
