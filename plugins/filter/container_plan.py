# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: container_plan
short_description: What is to be installed over the base of a container image
version_added: 0.2.0
author: The Muster developers (@muster-fleet)
description:
  - What the base has in the stack's version or a newer one is kept, everything else is installed.
  - NCCL and its plugin are never replaced by older ones.
options:
  _input:
    description: Components that the image is to carry.
    type: list
    elements: str
    required: true
  stack:
    description: The stack document.
    type: dict
    required: true
  found:
    description: What the base has, as M(muster.fleet.stack_facts) returns it in RV(muster.fleet.stack_facts#module:host).
    type: dict
    required: true
  base:
    description: Name of the base.
    type: str
    required: true
"""

EXAMPLES = r"""
install: "{{ (['cuda', 'nccl'] | muster.fleet.container_plan(stack, facts.host, 'nvcr.io/nvidia/pytorch:26.10-py3')).install }}"
"""

RETURN = r"""
_value:
  description: The lists C(install) and C(refused), the latter of sentences, and the mapping C(kept) of components to versions.
  type: dict
"""

from ansible_collections.muster.fleet.plugins.module_utils.stack.container_plan import plan


class FilterModule:
    """The plan of a container image."""

    def filters(self):
        return {"container_plan": plan}
