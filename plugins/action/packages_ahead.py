# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the roles which packages they will install, as each would say it for this host, and has the node begin."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

ROLES = Path(__file__).resolve().parents[2] / "roles"
AHEAD = "vars/ahead.yml"


class ActionModule(ActionBase):
    """Makes steps of roles."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Return what the module on the node returns."""
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("roles"):
            arguments = self.answers(arguments.pop("roles"), task_vars) | arguments
        return {**result, **self._execute_module("muster.fleet.packages_ahead", arguments, task_vars=task_vars)}

    def file(self, path):
        return self._loader.load_from_file(str(path), trusted_as_template=True) or {} if path.exists() else {}

    def phases(self):
        return {**self.file(ROLES / "phases/defaults/main.yml"), **self.file(ROLES / "phases/vars/main.yml")}

    def variables(self, role, task_vars):
        """The variables that the role sees on this host, by Ansible's own precedence."""
        facts = task_vars["ansible_facts"]
        name, family = facts["distribution"], facts["os_family"]
        known = {**self.phases(), **self.file(ROLES / role / "defaults/main.yml"), **task_vars, "phases_component": role}
        for each in ("main", family, name, "%s_%s" % (name, facts["distribution_major_version"])):
            known.update(self.file(ROLES / role / ("vars/%s.yml" % each)))
        return {**known, **self.file(ROLES / role / AHEAD)}

    def answers(self, roles, task_vars):
        """Steps of the roles, the room that all of them need, and whether a power cut matters."""
        known = {**self.phases(), **task_vars}
        templar = self._templar.copy_with_new_env(available_variables=known)
        space, in_container = templar.template(known["__phases_space"]), templar.template(known["phases_in_container"])
        steps = []
        for role in roles:
            if (ROLES / role / AHEAD).exists():
                known = self.variables(role, task_vars)
                names = self._templar.copy_with_new_env(available_variables=known).template(known["__%s_packages_ahead" % role])
                steps.append({"component": role, "names": names})
        return {"steps": steps, "space": {name: space[name] for name in roles if name in space}, "durable": not in_container}
