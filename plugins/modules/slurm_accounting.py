#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_accounting
short_description: Write QOS, accounts, users and their limits into Slurm's accounting
version_added: 0.1.0
description:
  - Reads the content of C(sacctmgr) once and runs only the commands for the difference.
  - Compares values and not their spelling, so V(1-00:00:00) is V(1440) and V(mem=1G,cpu=4) is V(cpu=4,mem=1024M).
  - Only what an entry names is looked at. Entries that are not named are left alone and told in RV(left_alone);
    remove them with C(sacctmgr).
author:
  - The Muster developers (@muster-fleet)
options:
  cluster:
    description: Name of the cluster. The module adds it when accounting does not have it.
    type: str
    required: true
  qos:
    description: Qualities of service, each with C(name) and C(params), the options of C(sacctmgr modify qos).
    type: list
    elements: dict
    default: []
  accounts:
    description:
      - Accounts, each with C(name) and perhaps C(parent), C(description), C(organization) and C(params), the options of
        C(sacctmgr modify account).
    type: list
    elements: dict
    default: []
  users:
    description:
      - Users, each with C(name) and C(account) (the default account), and perhaps C(admin_level), C(params) (the options of
        C(sacctmgr modify user)) and C(associations), a list of C(account), C(partition) and C(params).
    type: list
    elements: dict
    default: []
  wait:
    description: Seconds to wait until slurmdbd answers.
    type: int
    default: 30
attributes:
  check_mode:
    description: Says what would be changed.
    support: full
  diff_mode:
    description: Shows the options that change.
    support: full
"""

EXAMPLES = r"""
- name: accounting | Write accounts and limits into accounting
  muster.fleet.slurm_accounting:
    cluster: fleet
    qos:
      - name: high
        params: {Priority: 100, MaxTRESPerUser: {gres/gpu: 16}, Flags: [DenyOnLimit]}
    accounts:
      - name: research
        params: {GrpTRES: {gres/gpu: 64}}
      - name: vision
        parent: research
        params: {QOS: [normal, high]}
    users:
      - name: ada
        account: vision
        params: {MaxJobs: 20}
"""

RETURN = r"""
commands:
  description: The commands that were run, or would be in check mode.
  returned: success
  type: list
  elements: list
left_alone:
  description: What accounting has and no option names.
  returned: success
  type: list
  elements: str
  sample: ["qos low", "user eve"]
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm
from ansible_collections.muster.fleet.plugins.module_utils.slurm.accounting import (
    SlurmAccountingError,
    associations,
    keys,
    left_alone,
    plan,
    rows,
)


def main():
    lists = {name: {"type": "list", "elements": "dict", "default": []} for name in ("qos", "accounts", "users")}
    module = AnsibleModule(
        argument_spec={"cluster": {"type": "str", "required": True}, **lists, "wait": {"type": "int", "default": 30}},
        supports_check_mode=True,
    )
    cluster, qos, accounts, users = (module.params[name] for name in ("cluster", "qos", "accounts", "users"))
    deadline = time.monotonic() + module.params["wait"]

    # A dry run on a node without Slurm has nothing to compare.
    bare = module.check_mode and module.get_bin_path("sacctmgr") is None

    def show(what, fields, *where):
        if bare:
            return []
        argv = ["sacctmgr", "--noheader", "--parsable2", "show", what, *where, "format=" + ",".join(fields)]
        while True:
            rc, out, err = module.run_command(argv, environ_update=slurm.ENVIRONMENT)
            if rc == 0:
                return rows(out, fields)
            if "Unknown field" in err + out:
                module.fail_json(
                    msg="The accounting of this Slurm does not have an option of %s: %s." % (what, " ".join((err + out).split()))
                )
            if time.monotonic() > deadline:
                module.fail_json(msg="sacctmgr failed: %s; look at slurmdbd: systemctl status slurmdbd" % (err.strip() or out.strip()))
            time.sleep(1)

    links = [link for user in users for link in associations(user)]
    try:
        have = {
            "clusters": [row["cluster"] for row in show("cluster", ["cluster"])],
            "qos": show("qos", ["name", *keys(qos)]),
            "accounts": show("account", ["account", "description", "organization"]),
            "associations": show(
                "associations",
                ["account", "parentname", "user", "partition", *keys(accounts + links)],
                "wopl",
                "cluster=" + cluster,
            ),
            "users": show("user", ["user", "defaultaccount", "adminlevel"]),
        }
        todo = plan(cluster, qos, accounts, users, have)
    except SlurmAccountingError as error:
        module.fail_json(msg=str(error))
    for argv in [] if module.check_mode else todo.commands:
        rc, out, err = module.run_command(argv, environ_update=slurm.ENVIRONMENT)
        said = " ".join((err + " " + out).split())
        # slurmctld registers its cluster at about the same time; the second of both gets this answer.
        if rc != 0 and not (argv[3] == "cluster" and "already exists" in said):
            module.fail_json(msg="%s was refused: %s" % (" ".join(argv), said))
    alone = left_alone(qos, accounts, users, have)
    module.exit_json(
        changed=bool(todo.commands),
        commands=todo.commands,
        left_alone=alone,
        msg="Not in the inventory and left alone: %s" % ", ".join(alone) if alone else "",
        diff={"before": "\n".join([*todo.before, ""]), "after": "\n".join([*todo.after, ""])} if todo.commands else {},
    )


if __name__ == "__main__":
    main()
