#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: fetch_ahead
short_description: Begin to fetch what later roles need
version_added: 0.2.0
author:
  - The Muster developers (@muster-fleet)
description:
  - The Ansible controller fetches the files of the stack into its cache, in the background, while nodes install and build what comes first.
  - M(muster.fleet.download) of such a file waits for that one alone. What cannot be fetched is left to it, which says why.
attributes:
  check_mode:
    description: Fetches nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  roles:
    description: Roles that are to be installed; what each needs is asked of the host's stack.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Begin to fetch what the roles need
  muster.fleet.fetch_ahead:
    roles: [gdrcopy, efa, nccl_tests]
"""

RETURN = r"""
begun:
  description: Addresses that are fetched in the background.
  type: list
  elements: str
  returned: success
"""
