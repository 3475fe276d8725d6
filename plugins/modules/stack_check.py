#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: stack_check
short_description: Say whether a stack can work on an instance type, and why not
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Asks every rule of O(scopes) about each of O(instance_types) and fails with one sentence for each that is broken, with the version that
    would work.
  - A rule whose input is missing has not run and says which it is; it never counts as passed.
  - Looks at its options only, so it runs anywhere, which is mostly the Ansible controller.
extends_documentation_fragment:
  - muster.fleet.rules
options:
  stack:
    description: The stack, whole, as the lookup P(muster.fleet.stack#lookup) gives it.
    type: dict
    required: true
  instance_types:
    description: Types of the catalogue.
    type: list
    elements: str
    required: true
  system:
    description: Operating system as stacks name it; without it the rules about systems do not run.
    type: str
    default: ""
  kernel:
    description: Release of the kernel; without it the oldest that O(system) boots with.
    type: str
    default: ""
  others:
    description: Other stacks; RV(results[].stacks_that_work) names those that are not refused where O(stack) is.
    type: list
    elements: dict
    default: []
  refuse:
    description: Whether the module fails when a rule refuses.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
"""

EXAMPLES = r"""
- name: Refuse what cannot work before anything is downloaded
  muster.fleet.stack_check:
    stack: "{{ lookup('muster.fleet.stack', 'aws-2026.11') }}"
    instance_types: [p5.48xlarge, p6-b200.48xlarge]
    system: ubuntu24.04
  delegate_to: localhost

- name: Look at the environment of a job
  muster.fleet.stack_check:
    stack: "{{ phases_stack }}"
    instance_types: [p5.48xlarge]
    scopes: [env]
    nodes: 2
    env:
      NCCL_NET: Libfabric
      NCCL_PROTO: simple
    refuse: false
  delegate_to: localhost
  register: looked
"""

RETURN = r"""
results:
  description: The verdict on each type.
  returned: always
  type: list
  elements: dict
  contains:
    instance_type:
      description: Name of the type.
      type: str
    stack:
      description: Name of the stack.
      type: str
    system:
      description: The operating system.
      type: str
    verdict:
      description: V(refused), V(warned) or V(passed).
      type: str
    rules:
      description: >-
        What every rule says. C(verdict) may also be V(not_run) or V(not_applicable); C(works) maps components to versions that would do.
      type: list
      elements: dict
    stacks_that_work:
      description: Names of O(others) that are not refused, where this one is.
      type: list
      elements: str
    variables:
      description: What is known of the variables in O(env), worst first.
      type: list
      elements: dict
text:
  description: The same for a person, line by line.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError, instance_type
from ansible_collections.muster.fleet.plugins.module_utils.stack.env_lint import lint
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import SCOPES, Case, explain, judge, sentence, verdict


def result_of(params, name):
    kind = instance_type(name)

    def told(stack):
        inputs = {key: params[key] for key in ("system", "kernel", "launch", "env", "nodes")}
        return judge(Case(stack, kind, **inputs), params["scopes"])

    rules = told(params["stack"])
    result = {
        "instance_type": kind["name"],
        "stack": params["stack"]["name"],
        "system": params["system"],
        "verdict": verdict(rules),
        "rules": rules,
    }
    if result["verdict"] == "refused":
        result["stacks_that_work"] = [
            other["name"]
            for other in params["others"]
            if (not params["system"] or params["system"] in other["systems"]) and verdict(told(other)) != "refused"
        ]
    if params["env"] is not None:
        result["variables"] = lint(params["env"], kind, params["stack"])
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "stack": {"type": "dict", "required": True},
            "instance_types": {"type": "list", "elements": "str", "required": True},
            "system": {"type": "str", "default": ""},
            "scopes": {"type": "list", "elements": "str", "choices": list(SCOPES), "default": ["stack"]},
            "launch": {"type": "dict"},
            "kernel": {"type": "str", "default": ""},
            "env": {"type": "dict"},
            "nodes": {"type": "int", "default": 0},
            "others": {"type": "list", "elements": "dict", "default": []},
            "refuse": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not params["instance_types"]:
        module.fail_json(msg="No instance type is named; give instance_types one of the catalogue at least.")
    try:
        results = [result_of(params, name) for name in params["instance_types"]]
    except CatalogueError as error:
        module.fail_json(msg=str(error))
    text = [line for result in results for line in explain(result)]
    said = [
        "%s with stack %s: %s" % (result["instance_type"], result["stack"], sentence(rule))
        for result in results
        for rule in result["rules"]
        if rule["verdict"] == "refused"
    ]
    if said and params["refuse"]:
        module.fail_json(msg=" ".join(said), results=results, text=text)
    module.exit_json(changed=False, results=results, text=text)


if __name__ == "__main__":
    main()
