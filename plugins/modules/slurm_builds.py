#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_builds
short_description: Check the list of Slurm's builds from source, or make one of them active
version_added: 0.1.0
description:
  - Refuses O(sources) that cannot be built, and returns what is built.
  - O(state=active) turns the link C(current) below O(root) to a version. It is refused while daemons run with another one, because daemons
    have an order in which they are upgraded.
author:
  - The Muster developers (@muster-fleet)
options:
  state:
    description: Whether to check only, or to make a version active.
    type: str
    choices: [checked, active]
    default: checked
  sources:
    description: Versions with C(version), C(url), C(sha256), and perhaps C(configure) (options) and C(packages) (that the build needs).
    type: list
    elements: dict
    required: true
  version:
    description: The active version; it may be left out when there is only one.
    type: str
    default: ""
  mirror:
    description: Address or folder where the files of all URLs lie instead.
    type: str
    default: ""
  root:
    description: Folder of the versions.
    type: path
    default: /opt/slurm
  upgrading:
    description: Whether a version may become active under running daemons, because the caller restarts them in their order.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows the active version before and after.
    support: full
"""

EXAMPLES = r"""
- name: Check the list of builds
  muster.fleet.slurm_builds:
    sources: "{{ slurm_sources }}"
    version: 24.11.5
  register: slurm_built
"""

RETURN = r"""
builds:
  description: What each version is made from.
  returned: success
  type: list
  elements: dict
active:
  description: The version that is active now.
  returned: success
  type: str
wanted:
  description: The version that is to be active.
  returned: success
  type: str
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_attribute
from ansible_collections.muster.fleet.plugins.module_utils.slurm.source import SourceError, builds, switch_fault

DAEMONS = ("slurmdbd", "slurmctld", "slurmd", "sackd")


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["checked", "active"], "default": "checked"},
            "sources": {"type": "list", "elements": "dict", "required": True},
            "version": {"type": "str", "default": ""},
            "mirror": {"type": "str", "default": ""},
            "root": {"type": "path", "default": "/opt/slurm"},
            "upgrading": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    link = os.path.join(params["root"], "current")
    try:
        made, wanted = builds(params["sources"], params["version"], params["mirror"])
    except SourceError as error:
        module.fail_json(msg=str(error))
    now = os.path.basename(os.readlink(link)) if os.path.islink(link) else ""
    running = sorted({read_attribute(path) for path in glob.glob("/proc/[0-9]*/comm")} & set(DAEMONS))
    fault = "" if params["upgrading"] else switch_fault(now, wanted, running)
    if fault:
        module.fail_json(msg=fault)
    turned = params["state"] == "active" and now != wanted
    if turned and not module.check_mode:
        temporary = link + ".new"
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(wanted, temporary)
        os.rename(temporary, link)
    module.exit_json(
        changed=turned,
        builds=made,
        active=now,
        wanted=wanted,
        diff={"before": "active: %s\n" % now, "after": "active: %s\n" % wanted} if turned else {},
    )


if __name__ == "__main__":
    main()
