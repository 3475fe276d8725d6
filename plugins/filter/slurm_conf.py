# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils import slurm_conf as logic
from ansible_collections.muster.fleet.plugins.module_utils import slurm_services as services
from ansible_collections.muster.fleet.plugins.module_utils.slurm_problems import problems


def clear(function):
    """Turn the logic's one sentence into the error that Ansible shows."""

    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except logic.SlurmConfError as error:
            raise AnsibleFilterError(str(error)) from error

    return wrapped


class FilterModule:
    """Filters that make Slurm's configuration files."""

    def filters(self):
        return {
            "slurm_conf": clear(logic.slurm_conf),
            "slurm_merge": logic.merge,
            "slurm_lines": lambda config: "\n".join(logic.lines(config)) + "\n",
            "slurm_script_files": logic.script_files,
            "slurm_hooks": clear(logic.hooks),
            "slurm_gres": clear(logic.gres_conf),
            "slurm_topology": lambda topology, groups, form: {"conf": logic.topology_conf, "yaml": logic.topology_yaml}[form](
                topology, groups
            ),
            "slurm_topology_refusal": logic.topology_refusal,
            "slurm_problems": problems,
            "slurm_hardware": clear(logic.parse_hardware),
            "slurm_database_keys": clear(lambda database, secrets: services.database_keys(database, secrets, os.environ)),
            "slurm_refusals": lambda controllers, config, database, rest, secrets: services.refusals(
                controllers, config, database, rest, secrets=secrets, environ=os.environ
            ),
        }
