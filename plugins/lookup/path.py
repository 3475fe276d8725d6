# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: path
short_description: The fleet's name, and Muster's own folders on the Ansible controller
version_added: 0.1.0
author: The Muster developers (@muster-fleet)
description:
  - V(fleet) is the name of the fleet, the variable C(muster_fleet) or V(local).
  - V(state) is the folder of the fleet that the variable C(muster_fleet) names, with its secrets and its wanted size;
    the variable C(muster_state_dir) overrides it.
  - V(cache) is the folder of all caches; the variable C(muster_cache_dir) overrides it.
options:
  _terms:
    description: V(fleet), V(state) or V(cache).
    required: true
"""

EXAMPLES = r"""
secrets: "{{ lookup('muster.fleet.path', 'state') }}/secrets"
"""

RETURN = r"""
_raw:
  description: The name or path.
  type: list
  elements: str
"""

import os

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.muster.fleet.plugins.module_utils import paths


class LookupModule(LookupBase):
    """Lookup `path`."""

    def run(self, terms, variables=None, **kwargs):
        variables = variables or {}

        def known(name, default):
            return self._templar.template(variables[name]) if name in variables else default

        found = []
        for term in terms:
            fleet = known("muster_fleet", paths.FLEET)
            if term == "fleet":
                found.append(fleet)
            elif term == "state":
                found.append(known("muster_state_dir", None) or str(paths.state_dir(fleet, os.environ)))
            elif term == "cache":
                found.append(known("muster_cache_dir", None) or str(paths.cache_dir(os.environ)))
            else:
                raise AnsibleLookupError(f"The lookup path has no folder {term}; use fleet, state or cache.")
        return found
