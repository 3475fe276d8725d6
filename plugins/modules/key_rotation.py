#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: key_rotation
short_description: Replace the original of a key in steps that survive an interruption
version_added: 0.2.0
description:
  - Runs where the original lies, the Ansible controller. V(begun) makes the new key beside the old one, V(switched) gives it the name of
    the original and keeps the old one, V(finished) removes the old one.
  - A finished step is not repeated, so an interrupted rotation continues where it stopped.
author:
  - The Muster developers (@muster-fleet)
options:
  path:
    description: The original.
    type: path
    required: true
  state:
    description: How far to go.
    type: str
    choices: [begun, switched, finished]
    required: true
attributes:
  check_mode:
    description: Says whether something would be done.
    support: full
  diff_mode:
    description: Never shows a key.
    support: none
"""

EXAMPLES = r"""
- name: Create the next key
  muster.fleet.key_rotation:
    path: "{{ slurm_secrets_dir }}/munge.key"
    state: begun
"""

RETURN = r"""
stage:
  description: How far the rotation is now, V(none), V(begun) or V(switched).
  returned: success
  type: str
"""

import secrets
import string

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.slurm import key_rotation as logic


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["begun", "switched", "finished"], "required": True},
        },
        supports_check_mode=True,
    )
    path, state = module.params["path"], module.params["state"]
    # The same format as the first key, which role slurm creates.
    content = "".join(secrets.choice(string.ascii_letters + string.digits) for _index in range(1024)) + "\n"
    try:
        todo = logic.steps(state, logic.stage(logic.present(path)), content)
        if todo and not module.check_mode:
            logic.apply(path, todo)
        stage = logic.stage(logic.present(path))
    except logic.KeyRotationError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="The key %s cannot be rotated: %s." % (path, error.strerror))
    module.exit_json(changed=bool(todo), stage=stage)


if __name__ == "__main__":
    main()
