#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_builds
short_description: Compare Slurm's own builds on a node with the list of them, or make one of them active
version_added: 0.1.0
description:
  - Says which versions of O(sources) are not below O(root) on this node as they should be.
  - O(state=active) turns the link C(current) below O(root) to a version. It is refused while daemons run with another one, because daemons
    have an order in which they are upgraded.
author:
  - The Muster developers (@muster-fleet)
options:
  state:
    description: Whether to compare only, or to make a version active.
    type: str
    choices: [compared, active]
    default: compared
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
  system:
    description: Names that say for which system it is built, such as the distribution and the architecture.
    type: list
    elements: str
    required: true
  recipe:
    description: SHA-256 of the way it is built.
    type: str
    required: true
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
- name: See what the node lacks
  muster.fleet.slurm_builds:
    sources: "{{ slurm_sources }}"
    version: 24.11.5
    system: [debian13, x86_64]
    recipe: "{{ lookup('ansible.builtin.file', 'build-slurm.sh') | hash('sha256') }}"
  register: slurm_built
"""

RETURN = r"""
builds:
  description: What each version is made from, and the name of its archive.
  returned: success
  type: list
  elements: dict
missing:
  description: Those of them that are not on this node.
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

from ansible_collections.muster.fleet.plugins.module_utils.slurm_source import SourceError, builds, switch_problem

DAEMONS = ("slurmdbd", "slurmctld", "slurmd", "sackd")


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["compared", "active"], "default": "compared"},
            "sources": {"type": "list", "elements": "dict", "required": True},
            "version": {"type": "str", "default": ""},
            "mirror": {"type": "str", "default": ""},
            "system": {"type": "list", "elements": "str", "required": True},
            "recipe": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/opt/slurm"},
            "upgrading": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    root, link = params["root"], os.path.join(params["root"], "current")
    try:
        made, wanted = builds(params["sources"], params["version"], params["mirror"], params["system"], params["recipe"])
    except SourceError as error:
        module.fail_json(msg=str(error))
    now = os.path.basename(os.readlink(link)) if os.path.islink(link) else ""
    running = sorted({read(path) for path in glob.glob("/proc/[0-9]*/comm")} & set(DAEMONS))
    problem = "" if params["upgrading"] else switch_problem(now, wanted, running)
    if problem:
        module.fail_json(msg=problem)
    missing = [build for build in made if read(os.path.join(root, build["version"], ".muster-build")) != build["archive"]]
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
        missing=missing,
        active=now,
        wanted=wanted,
        diff={"before": "active: %s\n" % now, "after": "active: %s\n" % wanted} if turned else {},
    )


if __name__ == "__main__":
    main()
