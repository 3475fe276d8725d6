#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Install packages of the distribution
version_added: 0.2.0
description:
  - Installs missing packages with apt-get or dnf, without recommended ones. An installed package stays as it is.
  - Asks only dpkg or rpm what is installed, so a converge that changes nothing opens no package cache and needs no Python bindings on
    the node.
  - Reads package lists again when they are older than O(lists_age) or lack a package.
  - With dnf a package replaces its smaller build, as C(curl) replaces C(curl-minimal), because the two conflict.
author:
  - The Muster developers (@muster-fleet)
options:
  names:
    description:
      - Packages as NAME, or as NAME=VERSION; a version may end in V(*).
      - A version that is named is installed, also when the package is held or a later version is installed.
    type: list
    elements: str
    required: true
  release:
    description: The suite to install from when several have the packages, on systems with apt.
    type: str
    default: ""
  stream:
    description:
      - Module stream to enable before the installation, as NAME:STREAM, on systems with dnf. Another stream of the module is switched off.
    type: str
    default: ""
    version_added: 0.4.0
  lists_age:
    description: The age in seconds up to which package lists are not read again.
    type: int
    default: 3600
  lock_timeout:
    description: Seconds to wait while another process installs packages.
    type: int
    default: 300
  durable:
    description:
      - Whether dpkg syncs each unpacked file to the disk, so that a power cut leaves no half-written file.
      - A container does not need it, because it does not survive a power cut.
    type: bool
    default: true
  services:
    description:
      - Whether packages may start their services.
      - With V(refused) an installation first refuses service starts, as M(muster.fleet.service_guard) does, until that module or
        M(muster.fleet.manifest) allows them again.
    type: str
    choices: [allowed, refused]
    default: allowed
    version_added: 0.3.0
  disabled:
    description:
      - Units to stop and disable after the installation, because the packages' own scripts enable them.
      - A unit that does not exist needs nothing.
    type: list
    elements: str
    default: []
    version_added: 0.3.0
  removed:
    description: Files to remove after the installation, because the packages' own scripts create them.
    type: list
    elements: path
    default: []
    version_added: 0.3.0
attributes:
  check_mode:
    description: Reports what would be installed. Package lists are a cache and are also read in check mode.
    support: full
  diff_mode:
    description: Shows all packages with their versions, including dependencies.
    support: full
"""

EXAMPLES = r"""
- name: install | Install the packages
  muster.fleet.packages:
    names: [munge, slurmd]

- name: install | Install the packages without the key that munge's script creates
  muster.fleet.packages:
    names: [munge, slurmd]
    disabled: [munge, slurmd]
    removed: [/etc/munge/munge.key]
"""

RETURN = r"""
installed:
  description: Version of each package that was installed or would be, as {package, version}. With dnf in check mode the versions are empty.
  returned: always
  type: dict
undone:
  description: The units of O(disabled) that were stopped or disabled, and the files of O(removed) that were removed.
  returned: always
  type: list
  elements: str
  version_added: 0.3.0
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node import packages as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard, units


def undo(module):
    """Undo what the packages' own scripts did, and return it."""
    gone = [path for path in module.params["removed"] if os.path.lexists(path)]
    names = module.params["disabled"]
    commands = units.plan(names, "stopped", units.show(module, names)) if names else []
    if not module.check_mode:
        for path in gone:
            os.unlink(path)
        for command in commands:
            module.run_command(command, check_rc=True, environ_update=units.ENVIRONMENT)
    return gone + [name for name in names if name in sum(commands, [])]


def main():
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "release": {"type": "str", "default": ""},
            "stream": {"type": "str", "default": ""},
            "lists_age": {"type": "int", "default": 3600},
            "lock_timeout": {"type": "int", "default": 300},
            "durable": {"type": "bool", "default": True},
            "services": {"type": "str", "choices": ["allowed", "refused"], "default": "allowed"},
            "disabled": {"type": "list", "elements": "str", "default": []},
            "removed": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    options = {name: params[name] for name in ("release", "lists_age", "lock_timeout", "durable")}
    stream = ""
    try:
        if shutil.which("apt-get"):
            names = logic.lacking(module, params["names"])
            if names and params["services"] == "refused" and not module.check_mode:
                service_guard.refuse()
            done = logic.apt(module, names, **options) if names else {}
        elif shutil.which("dnf"):
            stream = logic.enable_stream(module, params["stream"], params["lock_timeout"])
            done = logic.dnf(module, params["names"], params["lock_timeout"])
        else:
            module.fail_json(msg="This node has neither apt-get nor dnf; Muster installs on Debian, Ubuntu and RPM systems.")
    except logic.PackageError as error:
        module.fail_json(msg=str(error))
    undone = undo(module)
    after = "".join("%s %s\n" % row for row in sorted(done.items())) + ("module stream %s\n" % stream if stream else "")
    before = "".join("%s\n" % name for name in undone)
    changed = bool(done or undone or stream)
    module.exit_json(changed=changed, installed=done, undone=undone, diff={"before": before, "after": after} if changed else {})


if __name__ == "__main__":
    main()
