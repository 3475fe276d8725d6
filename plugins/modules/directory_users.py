#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: directory_users
short_description: Give the members of a directory's groups a home and an account
version_added: 0.2.0
description:
  - Reads the members of groups from the node, which asks the directory through SSSD.
  - Creates missing homes and leaves the others alone.
  - Adds the associations that Slurm's accounting database lacks, all users of an account in one call. Removes none,
    because the history of jobs belongs to it; who leaves a group can no longer log in.
author:
  - The Muster developers (@muster-fleet)
options:
  groups:
    description: Groups of the directory, and the account that pays for their members' jobs.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the group.
        type: str
        required: true
      account:
        description: Account in the accounting database.
        type: str
        required: true
  home:
    description: The folder of the homes. Without it no home is created.
    type: path
  cluster:
    description: ClusterName in the accounting database. Without it no association is added.
    type: str
attributes:
  check_mode:
    description: Reports the homes and associations that would be created.
    support: full
  diff_mode:
    description: Shows a line for each home and association.
    support: full
"""

EXAMPLES = r"""
- name: accounts | Give each member a home and an account
  muster.fleet.directory_users:
    groups:
      - name: physics
        account: physics
    home: /fsx/home
    cluster: prod
"""

RETURN = r"""
added:
  description: A line for each home and association that was created, or would be in check mode.
  returned: always
  type: list
  elements: str
"""

import grp
import os
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node.users import UsersError, accounts_of, missing_associations


def members_of(module, name):
    try:
        return grp.getgrnam(name).gr_mem
    except KeyError:
        module.fail_json(
            msg="The directory has no group %s (users_groups), or none of its servers answers; correct the name or bring the directory up."
            % name
        )


def sacctmgr(module, *argv):
    rc, out, err = module.run_command(["sacctmgr", *argv])
    if rc != 0:
        module.fail_json(msg="sacctmgr %s failed, start slurmdbd first: %s" % (argv[-1], (err or out).strip()))
    return out


def main():
    module = AnsibleModule(
        argument_spec={
            "groups": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": {"type": "str", "required": True}, "account": {"type": "str", "required": True}},
            },
            "home": {"type": "path"},
            "cluster": {"type": "str"},
        },
        supports_check_mode=True,
    )
    home, cluster = module.params["home"], module.params["cluster"]
    if not module.check_mode:
        # SSSD's cache may lack a member that was added a minute ago. When the directory is down, the cache stays in use.
        module.run_command(["sss_cache", "--everything"])
    members = {group["name"]: members_of(module, group["name"]) for group in module.params["groups"]}
    accounts = accounts_of(module.params["groups"], members)
    try:
        people = {name: pwd.getpwnam(name) for name in sorted(accounts)}
    except KeyError as error:
        module.fail_json(
            msg="A group of users_groups has the member %s, who is no user of the directory; remove it from the group." % error
        )

    homes = [name for name in people if home and not os.path.isdir(os.path.join(home, name))]
    missing = {}
    if cluster:
        shown = sacctmgr(module, "--noheader", "--parsable2", "show", "associations", "cluster=%s" % cluster, "format=account,user")
        try:
            missing = missing_associations(accounts, shown.splitlines())
        except UsersError as error:
            module.fail_json(msg=str(error))
    added = ["home %s" % os.path.join(home, name) for name in homes]
    added += ["user %s in account %s" % (name, account) for account, names in missing.items() for name in names]

    if not module.check_mode:
        for name in homes:
            path = os.path.join(home, name)
            os.makedirs(path, mode=0o755, exist_ok=True)
            # Give the folder to its user before opening it to others, also for a run that is killed in between.
            os.chmod(path, 0o700)
            os.chown(path, people[name].pw_uid, people[name].pw_gid)
        for account, names in missing.items():
            sacctmgr(module, "--immediate", "add", "user", ",".join(names), "account=%s" % account, "cluster=%s" % cluster)
    after = "".join("%s\n" % line for line in added)
    module.exit_json(changed=bool(added), added=added, diff={"before": "", "after": after} if added else {})


if __name__ == "__main__":
    main()
