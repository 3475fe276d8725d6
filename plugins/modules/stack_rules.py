#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: stack_rules
short_description: Refuse stacks that cannot work on their hosts
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Judges the stack of each host (C(muster_stack), C(muster_stack_name), or that of its system) on its C(instance_type) and fails with
    one sentence for each rule that refuses.
  - Hosts that are alike are judged once. A host that is in V(muster_gpu) or V(muster_neuron) and has no C(instance_type) must work as one
    type of the catalogue at least.
  - A host's C(muster_rule_overrides), a mapping of rules to reasons, lets its stack pass in spite of these rules. An unknown rule and an
    empty reason are refused. An override that is in force is in the report and in the manifest.
  - Without O(launch) counts what C(muster.fleet.aws_fleet) says of live instances (C(muster_launch)); where nothing is said, the rules of
    launches have not run. O(env) is laid over the variables that the nodes set for their type and stack.
  - Runs on the controller and needs no connection. M(muster.fleet.stack_check) explains a stack that no host has.
extends_documentation_fragment:
  - muster.fleet.rules
options:
  hosts:
    description: The hosts. Without it all hosts of the play.
    type: list
    elements: str
  types:
    description: Instance types that count instead of those of the hosts, such as those that an image is for.
    type: list
    elements: str
    default: []
  instance_type:
    description: An instance type that counts instead of those of the hosts. One that the catalogue does not have has no accelerator.
    type: str
  stack:
    description: A stack, by its name or whole, that counts instead of those of the hosts.
    type: raw
  system:
    description: An operating system, as stacks name it, that counts instead of those of the hosts.
    type: str
  container:
    description: Whether the stack is that of a container, which has the driver of its host.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
"""

EXAMPLES = r"""
- name: Refuse stacks that cannot work on their hosts
  muster.fleet.stack_rules:
    hosts: "{{ groups['all'] }}"

- name: Refuse an image that cannot work on the types that it is for
  muster.fleet.stack_rules:
    types: [p5.48xlarge, p5en.48xlarge]
"""

RETURN = r"""
refused:
  description: One sentence for each type, stack and rule.
  returned: always
  type: list
  elements: str
overridden:
  description: The overrides that are in force, each with its reason.
  returned: always
  type: list
  elements: str
warned:
  description: Rules that warn.
  returned: always
  type: list
  elements: str
unfit:
  description: The types as which a host without a type does not work.
  returned: always
  type: list
  elements: str
not_run:
  description: Rules that lack an input.
  returned: always
  type: list
  elements: str
judged:
  description: What was judged.
  returned: always
  type: list
  elements: str
"""
