#!/usr/bin/python

# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: slurm_node
short_description: Drain Slurm nodes, and undo only own drains
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Drains nodes with a Reason that names the check which asked for it, and waits until their jobs have ended.
  - Resumes a node only when its Reason is from the same check. What a human, Slurm or another check took out of service stays so,
    and is named in the result.
  - Runs on a host with Slurm's commands, as root or Slurm's own user.
attributes:
  check_mode:
    support: full
    description: Says what would change.
  diff_mode:
    support: full
    description: Shows state and Reason of each changed node.
options:
  names:
    description: Nodes, as names or host lists such as V(compute-[1-8]), at least one. One of O(names) and O(all_but) is needed.
    type: list
    elements: str
  all_but:
    description:
      - Every node of Slurm's configuration but these, for nodes that are to leave it. Dynamic nodes are none of them.
      - Without V(/etc/slurm/slurm.conf) there are none. While slurmctld does not answer, the module fails if that file names such a node,
        because nobody can wait for the jobs that may run there.
    type: list
    elements: str
    version_added: 0.2.0
  state:
    description: V(drained) takes nodes out of service, V(resumed) gives them back.
    type: str
    choices: [drained, resumed]
    required: true
  check:
    description: The check that asks. The Reason is C(muster:<check>:) and the O(reason).
    type: str
    required: true
  reason:
    description: The reason in a few words. Required to drain.
    type: str
    default: ""
  update_reason:
    description: Whether a node that the same check has drained gets the new O(reason).
    type: bool
    default: false
    version_added: 0.2.0
  wait:
    description: Whether to wait until no job runs on a node being drained.
    type: bool
    default: true
  timeout:
    description: Seconds after which the module gives up waiting. The nodes stay drained.
    type: int
    default: 3600
  poll:
    description: Seconds between two queries.
    type: int
    default: 5
"""

EXAMPLES = r"""
- name: Take a slow node out of service
  muster.fleet.slurm_node:
    names: [compute-2]
    state: drained
    check: nccl
    reason: busbw 80 GB/s, floor 320 GB/s

- name: Give back what the same check took
  muster.fleet.slurm_node:
    names: ["compute-[1-8]"]
    state: resumed
    check: nccl
"""

RETURN = r"""
nodes:
  description: State and Reason of each node afterwards.
  returned: success
  type: dict
  sample: {compute-2: {state: drained, reason: "muster:nccl: busbw 80 GB/s, floor 320 GB/s"}}
msg:
  description: The nodes that were left alone although they are out of service, and why.
  returned: always
  type: str
  sample: "compute-3 stays drained: bad disk, ticket 4711"
commands:
  description: What was run, or would be.
  returned: success
  type: list
  elements: list
  sample: [[scontrol, update, NodeName=compute-2, State=RESUME]]
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.slurm import node as slurm_node
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

CONFIGURATION = "/etc/slurm/slurm.conf"


def leaving(module, staying):
    """The nodes that are to leave Slurm's configuration."""
    written = slurm_node.configured(read_text(CONFIGURATION, ""))
    if not written:
        return []
    rc, out, err = module.run_command(["scontrol", "-o", "show", "nodes"], environ_update=slurm.ENVIRONMENT)
    if rc == 0:
        return slurm_node.leaving(out, staying)
    gone = sorted(set(written) - set(staying))
    if gone:
        reason = (err.strip() or out.strip() or "no reason given").splitlines()[-1]
        module.fail_json(
            msg="%s left the inventory, and whether jobs run there is unknown because slurmctld does not answer: %s. Start slurmctld, or "
            "name the nodes in the inventory again." % (slurm.compress(gone), reason)
        )
    return []


def main():
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str"},
            "all_but": {"type": "list", "elements": "str"},
            "state": {"type": "str", "choices": ["drained", "resumed"], "required": True},
            "check": {"type": "str", "required": True},
            "reason": {"type": "str", "default": ""},
            "update_reason": {"type": "bool", "default": False},
            "wait": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 3600},
            "poll": {"type": "int", "default": 5},
        },
        required_if=[("state", "drained", ["reason"])],
        required_one_of=[("names", "all_but")],
        mutually_exclusive=[("names", "all_but")],
        supports_check_mode=True,
    )
    params = module.params
    deadline = time.monotonic() + params["timeout"]

    def ask(*argv):
        rc, out, err = module.run_command(list(argv), environ_update=slurm.ENVIRONMENT)
        if rc != 0:
            module.fail_json(msg="%s failed: %s; look at the controller: scontrol ping" % (" ".join(argv[:2]), err.strip() or out.strip()))
        return out

    def records():
        return slurm.node_records(ask("sinfo", "-N", "-h", "-a", "-o", slurm.SINFO_FORMAT))

    def shown(nodes, names):
        return {name: {"state": nodes[name]["state"], "reason": nodes[name]["reason"]} for name in names}

    wanted = params["names"]
    # A variable that came out empty must not look like nodes that were drained.
    if wanted is not None and not any(name.strip() for name in wanted):
        module.fail_json(msg="names has no node to be %s; name one, or skip the task when there is none." % params["state"])
    if wanted is None:
        wanted = leaving(module, params["all_but"])
        if not wanted:
            module.exit_json(changed=False, nodes={}, commands=[], msg="", diff={"before": {}, "after": {}})

    nodes = records()
    try:
        changes, notes = slurm_node.plan(
            nodes, wanted, params["state"], params["check"], params["reason"], update_reason=params["update_reason"]
        )
        names = sorted({host for text in wanted for host in slurm.expand(text)})
    except (slurm_node.SlurmNodeError, ValueError) as error:
        module.fail_json(msg=str(error))
    before, commands = shown(nodes, changes), []
    after = {name: {"state": params["state"], "reason": reason} for name, reason in changes.items()}
    if changes:
        commands.append(slurm_node.command(changes, params["state"]))
        if not module.check_mode:
            ask(*commands[0])
            nodes = records()
    if params["state"] == "drained" and params["wait"] and not module.check_mode:
        while slurm_node.busy(nodes, names):
            if time.monotonic() > deadline:
                left = slurm.compress(slurm_node.busy(nodes, names))
                jobs = ", ".join(ask("squeue", "-h", "-a", "-w", left, "-o", "%i").split())
                module.fail_json(
                    msg="%s is draining, and after %d s jobs still run there (%s); raise timeout or cancel them."
                    % (left, params["timeout"], jobs)
                )
            time.sleep(params["poll"])
            nodes = records()
    if not module.check_mode:
        after = shown(nodes, changes)
    module.exit_json(
        changed=bool(changes),
        nodes={**shown(nodes, names), **after},
        commands=commands,
        msg="; ".join(notes),
        diff={"before": before, "after": after},
    )


if __name__ == "__main__":
    main()
