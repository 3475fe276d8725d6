#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: aws_secret
short_description: Store a text in AWS Secrets Manager
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Creates the secret when the region has none of this name, and gives it a new version when its text is another one.
  - The text is in no output and no log.
extends_documentation_fragment:
  - muster.fleet.aws
options:
  name:
    description: The secret's name.
    type: str
    required: true
  text:
    description: What the secret holds.
    type: str
    required: true
  description:
    description: What the secret is for. Only a new secret gets it.
    type: str
    default: ""
attributes:
  check_mode:
    description: Compares, and stores nothing.
    support: full
  diff_mode:
    description: Shows no text.
    support: none
"""

EXAMPLES = r"""
- name: Store what a node needs to join Slurm
  muster.fleet.aws_secret:
    region: us-east-1
    name: mine-slurm
    text: "{{ {'munge_key': lookup('ansible.builtin.file', 'munge.key'), 'variables': {}} | to_json }}"
"""

RETURN = r"""
made:
  description: Whether the region had no such secret.
  type: bool
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import ARGUMENTS, Accounts, AwsError, Region
from ansible_collections.muster.fleet.plugins.module_utils.aws.secret import store


def main():
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "name": {"type": "str", "required": True},
            "text": {"type": "str", "required": True, "no_log": True},
            "description": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    try:
        region = Region(Accounts(wanted, who="aws_secret"))
        done = store(region, wanted["name"], wanted["text"], wanted["description"], module.check_mode)
    except AwsError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(done), made=done == "made")


if __name__ == "__main__":
    main()
