# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils.slurm import conf, faults, topology


def clear(function):
    """Turn the logic's one sentence into the error that Ansible shows."""

    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except conf.SlurmConfError as error:
            raise AnsibleFilterError(str(error)) from error

    return wrapped


class FilterModule:
    """Filters of role slurm."""

    def filters(self):
        return {
            "slurm_conf": conf.slurm_conf,
            "slurm_settings": conf.settings,
            "slurm_nodes": clear(conf.node_groups),
            "slurm_compute_groups": conf.compute_groups,
            "slurm_compute_partitions": conf.compute_partitions,
            "slurm_network": clear(topology.network),
            "slurm_hardware": clear(conf.parse_hardware),
            "slurm_faults": lambda config, **data: faults.faults(config, **data, environ=os.environ),
        }
