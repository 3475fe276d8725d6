#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: check_vars
short_description: Refuse variables that no role knows
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Checks the variables of all hosts of the inventory and refuses those that begin with the name of a role, or with C(muster_),
    and are not an option of it. The message names the nearest option.
  - A variable belongs to the role with the longest name that it begins with.
  - Also refuses values of a wrong type, before any role runs. Values that have templates are checked with O(roles).
  - Runs on the controller and needs no connection. It checks all hosts at once, so one host of a play is enough (C(run_once)).
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
options:
  roles_path:
    description: Folder of the roles whose C(meta/argument_specs.yml) count. Without it, the roles of this collection.
    type: path
  roles:
    description:
      - For each host the roles that it carries. Then only the values of their options are checked, and templates are computed.
      - A template that needs what is unknown so far is left to the role.
    type: dict
"""

EXAMPLES = r"""
- name: Refuse variables that no role knows
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Check the variables of all hosts
      muster.fleet.check_vars:
"""

RETURN = r"""
checked:
  description: Number of variables that begin with the name of a role or with C(muster_). With O(roles), of options.
  type: int
  returned: always
"""
