#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: stack_plan
short_description: Say before an install what a stack refuses on a host
version_added: 0.4.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Collects one sentence for each component that cannot be installed on the host. It does not fail, so that a playbook can say all of them.
  - Warns of each component for whose key only HTTPS vouches. Ansible prints a warning once in a run.
  - Runs on the controller and needs no connection.
attributes:
  check_mode:
    description: Changes nothing.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
options:
  stack:
    description: The stack, whole.
    type: dict
    required: true
  components:
    description: Names of the stack's components that the host installs.
    type: list
    elements: str
    required: true
  system:
    description: The host's system as stacks name it, such as V(debian13) or V(ubuntu24.04).
    type: str
    required: true
  arch:
    description: The host's architecture, V(x86_64) or V(arm64).
    type: str
    required: true
  require_signed:
    description: Whether to refuse what only HTTPS vouches for.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Ask the stack
  muster.fleet.stack_plan:
    stack: "{{ lookup('muster.fleet.stack', 'aws-2026.11') }}"
    components: [efa, lustre_client]
    system: ubuntu24.04
    arch: x86_64
"""

RETURN = r"""
refused:
  description: The sentences of this task and of those before it, which the fact C(muster_refused) keeps.
  type: list
  elements: str
  returned: always
"""
