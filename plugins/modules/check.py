#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: check
short_description: Run a list of probes on a node and record what they found
version_added: 0.1.0
description:
  - Records each probe as a check with status C(passed), C(failed) or C(not_run) and a remedy.
  - Runs and records all probes. A failed probe never fails the module. The role C(phases) gives one verdict on all components, so
    that one bad component does not hide another.
  - The records are returned as C(muster_checks), which the callback P(muster.fleet.run_record#callback) writes to C(events.jsonl),
    and those that did not pass as the fact C(muster_checks_<component>_<level>).
author:
  - The Muster developers (@muster-fleet)
options:
  component:
    description: Component that the probes belong to.
    type: str
    required: true
  level:
    description: What the probes need. V(image) needs no daemon and no peer, V(node) only this booted host, V(fleet) several hosts.
    type: str
    required: true
    choices: [image, node, fleet]
  checks:
    description:
      - List of probes. Each has C(check) (its name), C(remedy) and exactly one of C(argv), C(file), C(manifest), C(unit),
        C(value).
      - Optionally it has C(expected) (text for a person), C(not_run) (a reason to skip it; empty text runs it) and C(needs) (the
        name of a check before it, or several; when one did not pass, this one is C(not_run)).
      - C(argv) takes C(stdin), C(user), C(timeout) in seconds, C(rc), C(equals) or C(matches) on standard output,
        C(retries) (seconds to wait for success), and C(not_run_when), a mapping of regular expressions to reasons - a probe that
        does not pass is C(not_run) for the reason of the first expression that its output or error output has.
      - C(file) takes C(mode), C(owner), C(group), C(matches) or C(absent).
      - C(manifest) is a component whose files and packages are compared with the manifest of the node. It has a remedy of its own.
      - C(unit) takes C(active), C(enabled) and C(retries).
      - C(value) takes C(equals), C(matches) or C(empty), and C(rehearsed), the stand-ins that the value comes from. The modules that gather
        facts return them. An empty value fails, except with C(empty), the words for what an empty value means, such as V(no fault); with
        it every other value fails.
      - A probe that looked at a stand-in of a rehearsal is C(not_run); C(rehearsed) of its record is what it would have been. On a host
        that rehearses, this also goes for a C(value) without C(rehearsed).
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    description: Runs the same probes, because they change nothing.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: verify_node | Check munge
  muster.fleet.check:
    component: slurm
    level: node
    checks:
      - check: munge_active
        unit: munge
        enabled: true
        remedy: Read journalctl -u munge on the node.
      - check: memlock
        argv: [bash, -c, ulimit -l]
        equals: unlimited
        remedy: Set LimitMEMLOCK=infinity for the service.
"""

RETURN = r"""
muster_checks:
  description: One record for each probe.
  returned: always
  type: list
  elements: dict
  sample:
    - check: munge_active
      component: slurm
      expected: active, enabled
      found: active, enabled
      level: node
      reason: ""
      remedy: Read journalctl -u munge on the node.
      seconds: 0.012
      status: passed
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.node.check import LEVELS, CheckError, run_checks, validate


def main():
    module = AnsibleModule(
        argument_spec={
            "component": {"type": "str", "required": True},
            "level": {"type": "str", "required": True, "choices": list(LEVELS)},
            "checks": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    component, level = module.params["component"], module.params["level"]
    try:
        for check in module.params["checks"]:
            validate(check)
        records = run_checks(module.params["checks"], component, level, rehearsed=rehearsal.node())
    except CheckError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        muster_checks=records,
        # Ansible forks its process for each task of each host, and the process keeps these facts of all hosts. The verdict reads no more.
        ansible_facts={"muster_checks_%s_%s" % (component, level): [record for record in records if record["status"] != "passed"]},
    )


if __name__ == "__main__":
    main()
