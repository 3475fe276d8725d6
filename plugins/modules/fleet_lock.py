#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_lock
short_description: Let one run at a time change a fleet
version_added: 0.4.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Takes the lock of a fleet for the process of C(ansible-playbook). While another process has it, the task fails and says which.
  - The lock ends with its process, also after a kill. It is the file C(run.lock) in the fleet's state folder.
  - Runs on the controller, once for all hosts, and needs no connection.
attributes:
  check_mode:
    support: full
    description: Takes no lock.
  diff_mode:
    support: none
    description: Changes nothing on a node.
options:
  fleet:
    description: The name of the fleet, for the message.
    type: str
    required: true
  folder:
    description: The fleet's state folder.
    type: str
    required: true
  create:
    description: Whether to make a missing folder. Without it a fleet that has none yet has no lock, so that a refused run leaves nothing.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Let no other run change the fleet
  muster.fleet.fleet_lock:
    fleet: "{{ lookup('muster.fleet.path', 'fleet') }}"
    folder: "{{ lookup('muster.fleet.path', 'state') }}"
"""

RETURN = r"""
"""
