#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_facts
short_description: The kernel that a node will run, its headers, and the modules that DKMS made for it
version_added: 0.2.0
description:
  - The target is the newest installed kernel. While an image is built, another kernel runs.
  - Without a kernel, as in a container, the target is the newest release with headers, or empty.
author:
  - The Muster developers (@muster-fleet)
options:
  release:
    description: The release that the node will run, as C(uname -r) prints it, instead of the newest.
    type: str
    default: ""
  dkms:
    description: Modules that DKMS must have built for the target, as regular expressions of their names.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: Check that the driver was built for the kernel that boots next
  muster.fleet.kernel_facts:
    dkms: [nvidia]
  register: kernel
  failed_when: kernel.faults | length > 0
"""

RETURN = r"""
target:
  description: Release that the node will run after its next start.
  returned: success
  type: str
running:
  description: The running release.
  returned: success
  type: str
headers:
  description: Whether the headers of the target are installed.
  returned: success
  type: bool
header_packages:
  description: Packages with the headers of the target.
  returned: success
  type: list
  elements: str
extra_packages:
  description: Packages with the modules of the target that its main package leaves out; none where it leaves out none.
  returned: success
  type: list
  elements: str
  version_added: 0.4.0
packages:
  description: Installed packages that would bring another kernel.
  returned: success
  type: list
  elements: str
held:
  description: The packages among them that are held.
  returned: success
  type: list
  elements: str
busy:
  description: Whether a Slurm job runs on the node.
  returned: success
  type: bool
faults:
  description: A sentence for each module of O(dkms) that the target lacks, with the compiler's error.
  returned: success
  type: list
  elements: str
"""

import glob
import os
import re
import shutil

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_attribute, read_text
from ansible_collections.muster.fleet.plugins.module_utils.hardware import kernel
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest


def held(module, packages):
    """The packages that the package manager holds."""
    if shutil.which("apt-mark"):
        out = module.run_command(["apt-mark", "showhold"])[1]
        return sorted(set(out.split()) & set(packages))
    text = "".join(read_text("/etc/dnf/plugins/versionlock." + kind, "") for kind in ("list", "toml"))
    return [name for name in packages if re.search(r"(?m)\b%s-[\d:]" % re.escape(name), text)]


def main():
    module = AnsibleModule(
        argument_spec={"release": {"type": "str", "default": ""}, "dkms": {"type": "list", "elements": "str", "default": []}},
        supports_check_mode=True,
    )
    try:
        target = kernel.target(kernel.releases(), module.params["release"])
        packages = kernel.of_the_kernel(manifest.installed_packages(shutil.which))
    except (kernel.KernelError, manifest.ManifestError) as error:
        module.fail_json(msg=str(error))
    found = re.search(r"(?m)^ID=\"?([a-z]+)", read_text("/etc/os-release", ""))
    system = found.group(1) if found else ""
    faults = []
    if module.params["dkms"] and target:
        tool = module.get_bin_path("dkms")
        said = module.run_command([tool, "status"])[1] if tool else ""
        for name in module.params["dkms"]:
            status = kernel.parse_dkms(said)
            paths = glob.glob("/var/lib/dkms/*/*/build/make.log") + glob.glob("/var/lib/dkms/*/*/%s/*/log/make.log" % target)
            logs = {path: read_text(path, "") for path in paths if re.match(name, path.split("/")[4])}
            faults.append(kernel.dkms_fault(name, target, status, logs))
    module.exit_json(
        changed=False,
        target=target,
        running=os.uname().release,
        headers=bool(target) and kernel.has_headers(target),
        header_packages=kernel.header_packages(target, system) if target else [],
        extra_packages=kernel.extra_packages(target, system) if target else [],
        packages=packages,
        held=held(module, packages),
        busy=any(read_attribute(path).startswith("slurmstepd") for path in glob.glob("/proc/[0-9]*/comm")),
        faults=[fault for fault in faults if fault],
    )


if __name__ == "__main__":
    main()
