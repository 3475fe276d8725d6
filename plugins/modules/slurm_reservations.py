#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_reservations
short_description: Create and change Slurm's reservations
version_added: 0.1.0
description:
  - Reads the reservations once, creates those that are missing and changes those that differ.
  - Does not create a reservation again that is over, and leaves reservations alone that are not named.
author:
  - The Muster developers (@muster-fleet)
options:
  reservations:
    description:
      - Reservations, each with C(name) and C(params), the options of C(scontrol create reservation).
      - A time such as C(now+1hour) is used to make the reservation and not compared later.
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    description: Says what would be changed.
    support: full
  diff_mode:
    description: Shows the commands.
    support: full
"""

EXAMPLES = r"""
- name: reservations | Keep the nodes free for the service
  muster.fleet.slurm_reservations:
    reservations:
      - name: service
        params: {StartTime: "2027-01-10T08:00:00", Duration: "4:00:00", Nodes: ALL, Users: [root], Flags: [MAINT, IGNORE_JOBS]}
"""

RETURN = r"""
commands:
  description: The commands that were run, or would be in check mode.
  returned: success
  type: list
  elements: list
msg:
  description: What was left out, and why.
  returned: success
  type: str
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm
from ansible_collections.muster.fleet.plugins.module_utils.slurm.reservations import plan, refusal, reservations


def main():
    module = AnsibleModule(argument_spec={"reservations": {"type": "list", "elements": "dict", "required": True}}, supports_check_mode=True)

    def ask(*argv):
        rc, out, err = module.run_command(list(argv), environ_update=slurm.ENVIRONMENT)
        if rc != 0:
            module.fail_json(msg="%s was refused: %s." % (" ".join(argv), refusal(err or out)))
        return out

    commands, notes = plan(module.params["reservations"], reservations(ask("scontrol", "-o", "show", "reservation")), time.time())
    if not module.check_mode:
        for command in commands:
            ask(*command)
    after = "".join(" ".join(command) + "\n" for command in commands)
    module.exit_json(
        changed=bool(commands), commands=commands, msg=" ".join(notes), diff={"before": "", "after": after} if commands else {}
    )


if __name__ == "__main__":
    main()
