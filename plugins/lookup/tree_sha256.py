# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: tree_sha256
short_description: The SHA-256 of the files of a folder on the controller
version_added: 0.1.0
author: The Muster developers (@muster-fleet)
description:
  - Hashes names and contents of all files below a folder, in a fixed order; caches and tests are left out.
  - A relative path begins at the collection's folder, so that any inventory can name files of a role.
options:
  _terms:
    description: Path of the folder.
    required: true
"""

EXAMPLES = r"""
digest: "{{ lookup('muster.fleet.tree_sha256', 'roles/trainer/files') }}"
"""

RETURN = r"""
_raw:
  description: The digest in hexadecimal.
  type: list
  elements: str
"""

import hashlib
import os

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

LEFT_OUT = ("__pycache__", "tests", "dist", "build")


# Resolve the links that make a checkout a collection.
COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def digest(folder):
    folder = os.path.join(COLLECTION, folder)
    if not os.path.isdir(folder):
        raise AnsibleLookupError(f"The folder {folder} does not exist; give a folder on this machine or in the collection.")
    total = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(root, name)
            total.update(os.path.relpath(path, folder).encode() + b"\0")
            with open(path, "rb") as handle:
                total.update(hashlib.sha256(handle.read()).digest())
    return total.hexdigest()


class LookupModule(LookupBase):
    """Lookup `tree_sha256`."""

    def run(self, terms, variables=None, **kwargs):
        return [digest(term) for term in terms]
