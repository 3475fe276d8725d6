# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: user_faults
short_description: The faults of a fleet's users
version_added: 0.2.0
author: The Muster developers (@muster-fleet)
description:
  - Checks C(slurm_users) and the directory that C(users_*) describe, before anything changes on a node.
  - Reads the CA's file and the reference to the secret on the Ansible controller.
options:
  _input:
    description: The variables of a host.
    type: dict
    required: true
  secrets:
    description: The folder of relative references to secrets.
    type: path
    required: true
"""

EXAMPLES = r"""
sentences: "{{ hostvars['controller-1'] | muster.fleet.user_faults('/srv/fleet/secrets') }}"
"""

RETURN = r"""
_value:
  description: One sentence for each fault.
  type: list
  elements: str
"""

import os

from ansible_collections.muster.fleet.plugins.module_utils.node.users import directory_faults, list_faults

DIRECTORY = ("servers", "base", "ca", "bind_dn", "bind_secret", "groups")


def user_faults(variables, secrets):
    options = {name: variables.get(f"users_{name}") for name in DIRECTORY}
    folder = variables.get("users_secrets_dir") or secrets
    return list_faults(variables.get("slurm_users") or []) + directory_faults(options, folder, os.environ)


class FilterModule:
    """Filter `user_faults`."""

    def filters(self):
        return {"user_faults": user_faults}
