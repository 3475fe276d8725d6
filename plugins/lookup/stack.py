# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: stack
short_description: A stack document, whole and checked
version_added: 0.2.0
author: The Muster developers (@muster-fleet)
description:
  - Reads a document V(muster.stack/1), lays it over what it extends and refuses what cannot be, with one sentence.
  - The result has its C(sha256) beside its components.
options:
  _terms:
    description: Name of one of Muster's own stacks, or the path of a file that ends in C(.yml).
    required: true
"""

EXAMPLES = r"""
version: "{{ lookup('muster.fleet.stack', 'aws-2026.11').efa.version }}"
"""

RETURN = r"""
_raw:
  description: The documents.
  type: list
  elements: dict
"""

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.muster.fleet.plugins.module_utils.stack.document import StackError
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files


class LookupModule(LookupBase):
    """Lookup `stack`."""

    def run(self, terms, variables=None, **kwargs):
        try:
            return [stack_files.load(term) for term in terms]
        except StackError as error:
            raise AnsibleLookupError(str(error)) from error
