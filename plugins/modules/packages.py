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
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node import packages as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard, units
from ansible_collections.muster.fleet.plugins.module_utils.node.manifest import parse_rpm

# dnf(8), exit codes: another process has the lock.
DNF_LOCKED = 200


def dnf(module, names):
    """Install with dnf and return {package: version}."""
    wanted = [name.replace("=", "-", 1) for name in names]
    if not module.check_mode:
        until = time.monotonic() + module.params["lock_timeout"]
        # dnf itself would wait for another process without end.
        command = ["dnf", "--quiet", "--assumeyes", "--setopt=install_weak_deps=False", "--setopt=exit_on_lock=1", "install", *wanted]
        while True:
            rc, out, err = module.run_command(command)
            if rc != DNF_LOCKED or time.monotonic() > until:
                break
            time.sleep(2)
        if rc != 0:
            module.fail_json(msg="dnf cannot install %s: %s." % (", ".join(wanted), (err or out).strip().replace("\n", "; ")))
    have = installed_rpm(module, names)
    return {name.partition("=")[0]: have.get(name.partition("=")[0], "") for name in names}


def installed_rpm(module, names):
    shown = [name.partition("=")[0] for name in names]
    return parse_rpm(module.run_command(["rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n", *shown])[1])


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
    if shutil.which("apt-get"):
        names = logic.lacking(module, params["names"])
        if names and params["services"] == "refused" and not module.check_mode:
            service_guard.refuse()
        try:
            done = logic.apt(module, names, **options) if names else {}
        except logic.PackageError as error:
            module.fail_json(msg=str(error))
    elif shutil.which("dnf"):
        names = logic.missing(params["names"], installed_rpm(module, params["names"]))
        done = dnf(module, names) if names else {}
    else:
        module.fail_json(msg="This node has neither apt-get nor dnf; Muster installs on Debian, Ubuntu and RPM systems.")
    undone = undo(module)
    after = "".join("%s %s\n" % row for row in sorted(done.items()))
    before = "".join("%s\n" % name for name in undone)
    diff = {"before": before, "after": after} if done or undone else {}
    module.exit_json(changed=bool(done or undone), installed=done, undone=undone, diff=diff)


if __name__ == "__main__":
    main()
