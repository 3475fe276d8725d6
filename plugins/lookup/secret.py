# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: secret
short_description: The text of a secret, from a reference to it
version_added: 0.2.0
author: The Muster developers (@muster-fleet)
description:
  - Inventories have references; the secrets are in files on the Ansible controller or in its environment.
  - C(file:PATH) is the only line of a file, C(env:NAME) is the value of an environment variable.
options:
  _terms:
    description: References.
    required: true
  folder:
    description: The folder of a relative PATH. Without it, C(secrets) in the fleet's state folder.
    type: path
"""

EXAMPLES = r"""
password: "{{ lookup('muster.fleet.secret', 'file:users-bind-password') }}"
"""

RETURN = r"""
_raw:
  description: The secrets.
  type: list
  elements: str
"""

import os

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.muster.fleet.plugins.lookup import path
from ansible_collections.muster.fleet.plugins.module_utils.node import users


class LookupModule(LookupBase):
    """Lookup `secret`."""

    def run(self, terms, variables=None, **kwargs):
        folder = kwargs.get("folder")
        if not folder:
            folder = os.path.join(path.LookupModule(self._loader, self._templar).run(["state"], variables)[0], "secrets")
        try:
            return [users.secret(term, folder, os.environ) for term in terms]
        except users.UsersError as error:
            raise AnsibleLookupError(str(error)) from error
