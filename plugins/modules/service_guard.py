#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: service_guard
short_description: Keep packages from starting their services while they are installed
version_added: 0.1.0
description:
  - Debian's packages start their services from their postinst scripts unless C(/usr/sbin/policy-rc.d) forbids it.
    O(state=present) puts such a file in place, O(state=absent) takes it out again.
  - A C(policy-rc.d) that is not Muster's (container images have one) is never changed.
  - Does nothing on systems without that mechanism, whose packages start no services.
  - With O(state=present) an empty folder of package lists also gets an old date. A new image has a young and empty one,
    which C(cache_valid_time) of M(ansible.builtin.apt) alone would take for just read.
  - The files exist only during an install, so the module never reports a change.
author:
  - The Muster developers (@muster-fleet)
options:
  state:
    description: Whether services may not start.
    type: str
    choices: [present, absent]
    required: true
attributes:
  check_mode:
    description: Changes nothing in check mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Keep services from starting
  muster.fleet.service_guard:
    state: present
"""

RETURN = r"""
guarded:
  description: Whether services may not start now.
  returned: always
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard as logic


def main():
    module = AnsibleModule(
        argument_spec={"state": {"type": "str", "choices": ["present", "absent"], "required": True}},
        supports_check_mode=True,
    )
    if not module.check_mode:
        logic.refuse() if module.params["state"] == "present" else logic.allow()
    module.exit_json(changed=False, guarded=os.path.exists(logic.PATH))


if __name__ == "__main__":
    main()
