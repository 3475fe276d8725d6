# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: components
short_description: The components that a host carries
version_added: 0.1.0
author: The Muster developers (@muster-fleet)
description: Membership in groups switches components on; a list of names, when given, is used instead.
options:
  _input:
    description: Names of the host's groups.
    type: list
    elements: str
    required: true
  table:
    description: The entries of C(component_table), see C(playbooks/vars/components.yml).
    type: list
    elements: dict
    required: true
  only:
    description: Exactly these components, for a host, a group or an image that names what it wants.
    type: list
    elements: str
"""

EXAMPLES = r"""
names: "{{ group_names | muster.fleet.components(component_table, muster_components) }}"
"""

RETURN = r"""
_value:
  description: Names of components in the table's order.
  type: list
  elements: str
"""

from ansible.errors import AnsibleFilterError


def components(group_names, table, only=()):
    known = [entry["name"] for entry in table]
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise AnsibleFilterError(f"muster_components names {unknown[0]}, which is not a component; the components are {', '.join(known)}.")

    def carried(entry):
        groups = entry.get("groups", [])
        return entry["name"] in only if only else "all" in groups or set(groups) & set(group_names)

    return [entry["name"] for entry in table if carried(entry) and entry.get("when", True)]


class FilterModule:
    """Filter `components`."""

    def filters(self):
        return {"components": components}
