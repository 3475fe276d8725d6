# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the controller, because it reads variables only."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ansible.errors import AnsibleError, AnsibleUndefinedVariable, AnsibleValueOmittedError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import ArgumentTypeError
from ansible.plugins.action import ActionBase
from ansible.template import Templar

from ansible_collections.muster.fleet.plugins.plugin_utils.check_vars import (
    FLEET,
    find_unknown,
    known_options,
    other_shape,
    owner,
    sentence,
)

COLLECTION = Path(__file__).parents[2]


class ActionModule(ActionBase):
    """Refuses defined variables that no role knows or that have another type than the role's option."""

    BYPASS_HOST_LOOP = True
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        """Return the number of checked variables, or fail with one sentence."""
        result = super().run(tmp, task_vars)
        spec = {"roles_path": {"type": "path", "default": str(COLLECTION / "roles")}, "roles": {"type": "dict"}}
        arguments = self.validate_argument_spec(spec)[1]
        known = known_options(self._read_specs(Path(arguments["roles_path"])))

        if arguments["roles"] is None:
            result["checked"], said = self._check_names_and_values(known, task_vars)
        else:
            result["checked"], said = self._check_values(known, task_vars, arguments["roles"])
        if said:
            result.update(failed=True, msg=" ".join(said), remedy="Correct or remove it; the READMEs of the roles list every variable.")
        return result

    def _check_names_and_values(self, known, task_vars):
        """Return the number of Muster's variables and a sentence for each fault, over all hosts of the inventory."""
        hosts = defaultdict(list)  # variable -> hosts that have it
        wrong = defaultdict(list)  # (variable, fault of its value) -> hosts that have it
        checked = {}
        hostvars = task_vars["hostvars"]
        own_name = task_vars["inventory_hostname"]
        own_vars = {own_name: {name: value for name, value in task_vars.items() if name not in ("hostvars", "vars")}}
        all_hosts = {*hostvars, own_name}
        for host in sorted(all_hosts):
            for name, value in (own_vars.get(host) or hostvars.raw_get(host)).items():
                role = owner(name, known)
                if role is None:
                    continue
                hosts[name].append(host)
                if name in known[role] and (fault := self._fault_once(checked, name, value, known[role][name])):
                    wrong[name, fault].append(host)

        said = [sentence(name, hosts[name], len(all_hosts), what) for name, what in find_unknown(hosts, known).items()]
        return len(hosts), said + [sentence(name, on, len(all_hosts), what) for (name, what), on in sorted(wrong.items())]

    def _check_values(self, known, task_vars, roles_of):
        """Return the number of options with a value and a sentence for each fault, for each host's roles and with templates."""
        names = set()
        wrong = defaultdict(list)
        checked = {}
        for host, roles in sorted(roles_of.items()):
            options = {name: option for role in roles for name, option in known.get(role, {}).items()}
            host_vars = task_vars["hostvars"].raw_get(host)
            for name in options.keys() & host_vars.keys():
                names.add(name)
                value = host_vars[name]
                if self._templar.is_template(value):
                    fault = self._computed_fault(name, options[name], {**task_vars, **host_vars})
                else:
                    fault = self._fault_once(checked, name, value, options[name])
                if fault:
                    wrong[name, fault].append(host)
        return len(names), [sentence(name, on, len(roles_of), what) for (name, what), on in sorted(wrong.items())]

    def _fault_once(self, checked, name, value, option):
        """Return the fault of a value. Hosts of a group share values; `checked` keeps these alive, so that an identity stays one."""
        if (name, id(value)) not in checked:
            checked[name, id(value)] = value, self._fault(name, value, option)
        return checked[name, id(value)][1]

    def _read_specs(self, roles):
        files = {path.parents[1].name: path for path in roles.glob("*/meta/argument_specs.yml")}
        files[FLEET] = COLLECTION / "playbooks/meta/argument_specs.yml"
        return {name: self._loader.load_from_file(str(path)) for name, path in files.items()}

    def _computed_fault(self, name, option, variables):
        """Return the fault of what a template gives, or "" when it has none or needs what is unknown so far."""
        try:
            return self._fault(name, Templar(loader=self._loader, variables=variables).template(variables[name]), option)
        except (AnsibleUndefinedVariable, AnsibleValueOmittedError):
            return ""
        except AnsibleError as error:
            return "is secret and cannot be computed" if option.get("no_log") else f"cannot be computed: {str(error).rstrip('.')}"

    def _fault(self, name, value, option):
        """Return the fault of a value, or "" when it has none or is a template."""
        if self._templar.is_template(value):
            return ""
        if shape := other_shape(value, option):
            return f"is refused: {shape}"
        errors = ArgumentSpecValidator({name: {**option, "required": False}}).validate({name: value}).errors.errors
        if not errors:
            return ""
        if "options" not in option and any(isinstance(error, ArgumentTypeError) for error in errors):
            return f"must be of type {option.get('type', 'str')}"
        if option.get("no_log"):
            return "is secret and not what its role asks for"
        return f"is refused: {'; '.join(error.msg.rstrip('.') for error in errors)}"
