#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: packages_ahead
short_description: Begin to install the packages that later roles need
version_added: 0.3.0
author:
  - The Muster developers (@muster-fleet)
description:
  - A node that has none of these roles in its manifest reads its package lists and installs their packages in the background, while Ansible
    goes on; role after role, in the order of O(roles).
  - M(muster.fleet.packages) waits for what was begun, and installs what was not. What goes wrong is left to it, which says why.
  - Until it is over no package starts its service, as M(muster.fleet.service_guard) describes it.
  - Nothing is begun where apt-get is not, where the disk has too little room for all, and for roles that have no C(vars/ahead.yml).
attributes:
  check_mode:
    description: Begins nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  roles:
    description: Roles that the node carries. The controller makes O(steps) of them.
    type: list
    elements: str
  steps:
    description: What is installed together, as component and names; from the roles' own C(vars/ahead.yml) where not given.
    type: list
    elements: dict
    default: []
    suboptions:
      component:
        description: Name in the manifest.
        type: str
        required: true
      names:
        description: Packages.
        type: list
        elements: str
        required: true
  space:
    description: MiB that components of this node need on /; from the roles where not given.
    type: dict
    default: {}
  durable:
    description: Whether each unpacked file is on the disk before the next step; not in a container, where not given.
    type: bool
    default: true
  manifest:
    description: Manifest of the node.
    type: path
    default: /etc/muster/manifest.json
"""

EXAMPLES = r"""
- name: Begin to install what the roles need
  muster.fleet.packages_ahead:
    roles: [common, slurm]
"""

RETURN = r"""
begun:
  description: Packages that are installed in the background.
  returned: success
  type: list
  elements: str
new:
  description: Components that the manifest has not and that the node has room for, so that nobody need compare them.
  returned: success
  type: list
  elements: str
"""

import os
import shutil
from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils import manifest, packages, service_guard


def in_background(module, steps):
    """Install step after step in a process of its own; the lock, which it alone holds, says that it is at work."""
    lock = service_guard.begin_ahead()
    if lock is None or os.fork():
        return
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        for names, lacking in steps:
            with suppress(packages.PackageError):  # the role that needs them tries again and says why
                if lacking:
                    packages.apt(module, lacking, durable=module.params["durable"])
            # With what came along, which a later role may name as its own need.
            lock.write(" ".join([*names, *packages.installed(module)]) + "\n")
            lock.flush()
    finally:
        service_guard.end_ahead(lock)
        os._exit(0)  # whatever happened: Ansible has had its answer


def main():
    module = AnsibleModule(
        argument_spec={
            "roles": {"type": "list", "elements": "str"},
            "steps": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"component": {"type": "str", "required": True}, "names": {"type": "list", "elements": "str", "required": True}},
            },
            "space": {"type": "dict", "default": {}},
            "durable": {"type": "bool", "default": True},
            "manifest": {"type": "path", "default": manifest.PATH},
        },
        supports_check_mode=True,
    )
    path, text = module.params["manifest"], ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
    try:
        known = manifest.parse(text, path)["components"]
    except manifest.ManifestError:  # told by the first role that compares it
        module.exit_json(changed=False, begun=[], new=[])
    disk = os.statvfs("/")
    new = [step for step in module.params["steps"] if step["component"] not in known]
    if not shutil.which("apt-get") or manifest.space_problem(module.params["space"], known, disk.f_bavail * disk.f_frsize >> 20):
        new = []
    # What is there already is done first.
    steps = sorted(((names, packages.lacking(module, names)) for names in [step["names"] for step in new]), key=lambda step: bool(step[1]))
    begun = [name for _names, lacking in steps for name in lacking]
    if begun and not module.check_mode:
        in_background(module, steps)
    module.exit_json(changed=bool(begun), begun=begun, new=[] if module.check_mode else [step["component"] for step in new])


if __name__ == "__main__":
    main()
