# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: inventory_faults
short_description: The faults of an inventory's groups and names
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Checks that a fleet has a controller and compute nodes, and that Ansible, SSH and Slurm read each host's name as a name.
options:
  _input:
    description: The variable C(groups), that is the hosts of each group.
    type: dict
    required: true
  slurm:
    description: Whether the fleet needs a controller and compute nodes.
    type: bool
    default: true
"""

EXAMPLES = r"""
sentences: "{{ groups | muster.fleet.inventory_faults }}"
"""

RETURN = r"""
_value:
  description: One sentence for each fault.
  type: list
  elements: str
"""

from ansible_collections.muster.fleet.plugins.module_utils.node.names import inventory_faults


class FilterModule:
    """Filter `inventory_faults`."""

    def filters(self):
        return {"inventory_faults": inventory_faults}
