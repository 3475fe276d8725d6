#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: run_folder
short_description: Create the folder for all results of one run
version_added: 0.1.0
description:
  - Creates C(runs/FLEET/UTC) and points the link C(runs/FLEET/latest) to it.
  - The callback P(muster.fleet.run_record#callback) writes its events there as soon as it sees RV(muster_run_dir).
author:
  - The Muster developers (@muster-fleet)
options:
  fleet:
    description: The name of the fleet.
    type: str
    required: true
  runs:
    description: Folder of all runs.
    type: path
    required: true
  rehearses:
    description: The instance types that nodes of the fleet rehearse. The report names them in its first line.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Creates the folder in check mode too, because a run in check mode is recorded as well.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: Open the run folder
  muster.fleet.run_folder:
    fleet: local
    runs: runs
"""

RETURN = r"""
muster_run_dir:
  description: Path of the folder, also set as the fact C(muster_run_dir).
  returned: always
  type: str
muster_rehearses:
  description: The instance types of O(rehearses), for the callback.
  returned: always
  type: list
  elements: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.paths import check_fleet_name


def open_folder(fleet_dir, now):
    """Create a folder named after the time, with a counter for runs in the same second, and return its path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    for suffix in [""] + ["-%d" % number for number in range(2, 100)]:
        path = os.path.join(fleet_dir, stamp + suffix)
        try:
            os.makedirs(path)
        except FileExistsError:
            continue
        return path
    raise OSError("all folder names of this second are in use")


def point_latest(fleet_dir, path):
    # Replace the link in one step, so that it always exists for readers.
    temporary = os.path.join(fleet_dir, ".latest-%d" % os.getpid())
    os.symlink(os.path.basename(path), temporary)
    os.replace(temporary, os.path.join(fleet_dir, "latest"))


def main():
    module = AnsibleModule(
        argument_spec={
            "fleet": {"type": "str", "required": True},
            "runs": {"type": "path", "required": True},
            "rehearses": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        fleet_dir = os.path.join(os.path.abspath(module.params["runs"]), check_fleet_name(module.params["fleet"]))
    except ValueError as error:
        module.fail_json(msg=str(error))
    try:
        path = open_folder(fleet_dir, time.time())
        point_latest(fleet_dir, path)
    except OSError as error:
        module.fail_json(msg="The run folder in %s cannot be created: %s" % (fleet_dir, error))
    rehearses = module.params["rehearses"]
    module.exit_json(changed=False, muster_run_dir=path, muster_rehearses=rehearses, ansible_facts={"muster_run_dir": path})


if __name__ == "__main__":
    main()
