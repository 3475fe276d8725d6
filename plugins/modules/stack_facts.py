#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: stack_facts
short_description: Which version of each component of the stack a node really has, and how that differs from its manifest
version_added: 0.2.0
description:
  - Asks the kernel, the tools, the libraries and the package manager of a host, and of a container beside it, by one shell script.
  - Compares the host with its manifest. RV(drift) lists the differences, which do not fail the module; RV(checks) is for the module
    M(muster.fleet.check).
author:
  - The Muster developers (@muster-fleet)
options:
  container:
    description:
      - How a command is run in a container, as a list to which C(sh -c SCRIPT) is added. Without it the host alone is asked.
      - The manifest is of the host; a container may have other versions and is only shown beside it.
    type: list
    elements: str
    default: []
  manifest:
    description: Where the manifest lies.
    type: path
    default: /etc/muster/manifest.json
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: Compare the host with the container of a training
  muster.fleet.stack_facts:
    container: [docker, exec, training]
  register: stack

- name: Show it
  ansible.builtin.debug:
    msg: "{{ stack.text }}"
"""

RETURN = r"""
host:
  description: For each component that is there its C(version), and the command or file that is the C(source) of it.
  returned: success
  type: dict
  sample: {nccl: {version: 2.22.3, source: libraries}}
container:
  description: The same of the container; none when no container was asked.
  returned: success
  type: dict
expected:
  description: Versions that the manifest promises.
  returned: success
  type: dict
drift:
  description: One sentence for each component that the host has in another version than its manifest, or not at all.
  returned: success
  type: list
  elements: str
checks:
  description: The same as probes of the module M(muster.fleet.check), one for each component that the manifest promises.
  returned: success
  type: list
  elements: dict
rehearsed:
  description: For each component of RV(expected) the stand-ins that it consists of; none on a real host.
  returned: success
  type: dict
text:
  description: A table for a person.
  returned: success
  type: str
"""


from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest, rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.stack import facts as stack_facts


def main():
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "list", "elements": "str", "default": []},
            "manifest": {"type": "path", "default": manifest.PATH},
        },
        supports_check_mode=True,
    )
    prefix, path = module.params["container"], module.params["manifest"]
    try:
        known = manifest.parse(read_text(path, ""), path)
    except manifest.ManifestError as error:
        module.fail_json(msg=str(error))
    expected = stack_facts.promised(known)
    rc, out, err = module.run_command(["sh", "-c", stack_facts.SCRIPT])
    host = stack_facts.installed(out)
    rehearsed = stack_facts.rehearsed(known, host, rehearsal.node())
    container = None
    if prefix:
        if not module.get_bin_path(prefix[0]):
            module.fail_json(msg="%s is not on this host; name in container how a command is run in the container." % prefix[0])
        rc, out, err = module.run_command([*prefix, "sh", "-c", stack_facts.SCRIPT])
        # The script may end with any code. A script that never began has printed no section.
        if "## packages" not in out:
            said = " ".join((err or out).split())[:300]
            module.fail_json(msg="No command could be run by `%s` (%s); see that the container runs." % (" ".join(prefix), said))
        container = stack_facts.installed(out)
    module.exit_json(
        changed=False,
        host=host,
        container=container,
        expected=expected,
        drift=stack_facts.sentences(stack_facts.drift(host, expected)),
        checks=stack_facts.checks(host, expected, rehearsed),
        rehearsed=rehearsed,
        text=stack_facts.table(expected, host, container),
    )


if __name__ == "__main__":
    main()
