#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: manifest
short_description: Read, compare and write the manifest of a node's components
version_added: 0.1.0
description:
  - Keeps V(/etc/muster/manifest.json) (schema C(muster.manifest/1)), one entry for each component.
  - With O(state=compare) reports whether a component must be installed again, and why.
  - An install begins with a compare and ends with V(written) or V(left); between the two no package starts its service, as
    M(muster.fleet.service_guard) describes it. So a component costs two calls.
author:
  - The Muster developers (@muster-fleet)
options:
  state:
    description:
      - V(read) returns the manifest.
      - V(compare) compares one component's entry with O(inputs_sha256), its artefacts and its packages on this node. When it must be
        installed, no service may start from then on.
      - V(written) records a component after its install, and allows services to start again.
      - V(left) only allows services to start again, after an install that failed.
    type: str
    choices: [read, compare, written, left]
    default: read
  component:
    description: Component to compare or write.
    type: str
  inputs_sha256:
    description: The SHA-256 of everything on which the install depends, as the lookup P(muster.fleet.role_inputs#lookup) gives it.
    type: str
  artefacts:
    description: Paths that exist as long as the component is installed.
    type: list
    elements: path
    default: []
  packages:
    description:
      - Packages that the component installed, or with O(state=compare) must have installed. Additional packages are not a difference.
      - The upstream version of the first one is the component's version, unless O(version) is set.
    type: list
    elements: str
    default: []
  version:
    description: The component's version.
    type: str
  seconds:
    description: The seconds that the install took.
    type: float
  again:
    description: With O(state=compare), whether to install the component again in any case.
    type: bool
    default: false
  stack:
    description: Name and sha256 of the stack document.
    type: dict
  rule_overrides:
    description:
      - Rules of stacks that the site overrides for this node, with the reasons. With O(state=compare) the manifest records them as
        C(rule_overrides), without a change of any component.
    type: dict
    default: {}
  verified:
    description: How the component's downloads were verified, as the filter P(muster.fleet.stack_verified#filter) says it.
    type: str
    default: ""
  refused:
    description: Reasons why the component cannot be installed on this node. With O(state=compare) the module fails with the first one.
    type: list
    elements: str
    default: []
  space:
    description:
      - MiB that components need on C(/). With O(state=compare), before the first of them that is not in the manifest is installed,
        the node must have room for all that are not.
    type: dict
    default: {}
  path:
    description: The path of the manifest.
    type: path
    default: /etc/muster/manifest.json
attributes:
  check_mode:
    description: Reports the entry that would be written.
    support: full
  diff_mode:
    description: Shows the manifest before and after.
    support: full
"""

EXAMPLES = r"""
- name: See whether Slurm must be installed
  muster.fleet.manifest:
    state: compare
    component: slurm
    inputs_sha256: "{{ lookup('muster.fleet.role_inputs', 'slurm') }}"
  register: slurm_manifest

- name: Record it
  muster.fleet.manifest:
    state: written
    component: slurm
    inputs_sha256: "{{ lookup('muster.fleet.role_inputs', 'slurm') }}"
    packages: [slurmd]
    artefacts: [/usr/sbin/slurmd]
    seconds: 37.5
"""

RETURN = r"""
matches:
  description: Whether the entry describes this node.
  returned: O(state=compare)
  type: bool
reasons:
  description: Why it does not.
  returned: O(state=compare)
  type: list
  elements: str
manifest:
  description: The manifest, without its package inventory.
  returned: always
  type: dict
"""

import os
import shutil
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import service_guard


def write(module, path, text):
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = os.path.join(module.tmpdir, "manifest.json")
    with open(temporary, "w", encoding="utf-8") as handle:
        handle.write(text)
    module.atomic_move(temporary, path)
    os.chmod(path, 0o644)


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["read", "compare", "written", "left"], "default": "read"},
            "component": {"type": "str"},
            "inputs_sha256": {"type": "str"},
            "artefacts": {"type": "list", "elements": "path", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "version": {"type": "str"},
            "seconds": {"type": "float"},
            "again": {"type": "bool", "default": False},
            "stack": {"type": "dict"},
            "rule_overrides": {"type": "dict", "default": {}},
            "verified": {"type": "str", "default": ""},
            "refused": {"type": "list", "elements": "str", "default": []},
            "space": {"type": "dict", "default": {}},
            "path": {"type": "path", "default": logic.PATH},
        },
        required_if=[("state", "compare", ["component"]), ("state", "written", ["component", "inputs_sha256"])],
        supports_check_mode=True,
    )
    params = module.params
    path, component = params["path"], params["component"]
    try:
        before = read_text(path, "")
        document = logic.parse(before, path)
        result = {"changed": False}
        if params["state"] == "compare":
            if params["refused"]:
                raise logic.ManifestError(params["refused"][0])
            known = document["components"].get(component)
            # Listing packages takes most of the time, so skip it for a component that is not in the manifest.
            installed = logic.installed_packages(shutil.which) if known and known["packages"] else {}
            result["reasons"] = logic.differences(known, params["inputs_sha256"], os.path.exists, installed, params["packages"])
            result["reasons"] += ["it is asked for again"] if params["again"] else []
            result["matches"] = not result["reasons"]
            if known is None:
                disk = os.statvfs("/")
                fault = logic.space_fault(params["space"], document["components"], disk.f_bavail * disk.f_frsize >> 20)
                if fault:
                    raise logic.ManifestError(fault)
            if document.get("rule_overrides", {}) != params["rule_overrides"]:
                document["rule_overrides"] = params["rule_overrides"]
                if not module.check_mode:
                    write(module, path, logic.render(document))
                result["changed"] = True
                result["diff"] = {"before": before, "after": logic.render(document), "before_header": path, "after_header": path}
            if result["reasons"] and not module.check_mode:
                service_guard.refuse()
        elif params["state"] in ("written", "left") and not module.check_mode:
            service_guard.allow()
        if params["state"] == "written":
            installed = logic.installed_packages(shutil.which)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            seconds = None if params["seconds"] is None else round(params["seconds"], 1)
            if not module.check_mode:
                document["components"][component] = logic.entry(
                    inputs_sha256=params["inputs_sha256"],
                    artefacts=params["artefacts"],
                    packages=params["packages"],
                    installed=installed,
                    version=params["version"],
                    seconds=seconds,
                    now=stamp,
                    verified=params["verified"],
                )
                document["packages"] = installed
                document["stack"] = params["stack"] or document["stack"]
                write(module, path, logic.render(document))
            result["changed"] = True
            result["diff"] = {"before": before, "after": logic.render(document), "before_header": path, "after_header": path}
    except logic.ManifestError as error:
        module.fail_json(msg=str(error))
    result["manifest"] = {key: value for key, value in document.items() if key != "packages"}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
