#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_upgrade_plan
short_description: Plan an upgrade of Slurm, or say why it is impossible
version_added: 0.1.0
description:
  - Compares the versions of all hosts with the one asked for and returns the hosts of each step in Slurm's order.
  - A downgrade, a step over more releases than Slurm understands, and a version that no source offers are each refused with one sentence.
  - Reads only its arguments.
author:
  - The Muster developers (@muster-fleet)
options:
  hosts:
    description:
      - Host to C(version) (what a Slurm command says of itself), C(functions) (as in the role C(slurm)) and C(unfinished) (steps that an
        earlier upgrade began there and did not end, as C(VERSION/STEP)).
    type: dict
    required: true
  offered:
    description: Versions that the sources of O(source_host) have.
    type: list
    elements: str
    required: true
  wanted:
    description: The version asked for or its first numbers; without it the newest on offer.
    type: str
    default: ""
  source_host:
    description: The host whose sources were asked.
    type: str
    required: true
attributes:
  check_mode:
    description: Changes nothing at all.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Plan
  muster.fleet.slurm_upgrade_plan:
    hosts:
      controller-1: {version: slurm-wlm 24.11.5, functions: [controller, database], unfinished: []}
      compute-1: {version: slurm-wlm 24.11.5, functions: [compute], unfinished: []}
    offered: [24.11.5-4, 26.05.5-1]
    wanted: "26.05"
    source_host: controller-1
"""

RETURN = r"""
from:
  description: The oldest version of a host.
  returned: success
  type: str
to:
  description: The version that all hosts are to have.
  returned: success
  type: str
steps:
  description: The hosts of the steps database, controller, compute and login, without those that have done it.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.slurm.upgrade import UpgradeError, plan


def main():
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "dict", "required": True},
            "offered": {"type": "list", "elements": "str", "required": True},
            "wanted": {"type": "str", "default": ""},
            "source_host": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        found = plan(module.params["hosts"], module.params["offered"], module.params["wanted"], module.params["source_host"])
    except UpgradeError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
