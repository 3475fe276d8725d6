# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: place
short_description: A folder of Muster's own on the Ansible controller
version_added: 0.1.0
author: The Muster developers (@muster-fleet)
description:
  - V(state) is the folder of the fleet that the variable C(muster_fleet) names, with its secrets and desired size;
    the variable C(muster_state_dir) replaces it.
  - V(cache) is the folder for what can be made again; the variable C(muster_cache_dir) replaces it.
options:
  _terms:
    description: V(state) or V(cache).
    required: true
"""

EXAMPLES = r"""
secrets: "{{ lookup('muster.fleet.place', 'state') }}/secrets"
"""

RETURN = r"""
_raw:
  description: The path.
  type: list
  elements: str
"""

import os

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.muster.fleet.plugins.module_utils import places


class LookupModule(LookupBase):
    """Lookup `place`."""

    def run(self, terms, variables=None, **kwargs):
        variables = variables or {}

        def known(name, default):
            return self._templar.template(variables[name]) if name in variables else default

        found = []
        for term in terms:
            if term == "state":
                found.append(known("muster_state_dir", None) or str(places.state_dir(known("muster_fleet", "fleet"), os.environ)))
            elif term == "cache":
                found.append(known("muster_cache_dir", None) or str(places.cache_dir(os.environ)))
            else:
                raise AnsibleLookupError(f"The lookup place knows state and cache, not {term}.")
        return found
