#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Collect the logs and configuration of a failing fleet, without its secrets
version_added: 0.2.0
description:
  - V(collected) writes logs, journals, configuration, versions and Slurm's answers of one node into an archive on it. A command that
    does not answer is cut and says so.
  - V(joined) joins the archives of all nodes and the newest run folder into one, on the Ansible controller. It names the nodes that
    gave none.
  - Collects a fixed list of files and commands. Passwords in configuration are blanked, and the values of the node's and the fleet's keys
    are taken out wherever they stand.
author:
  - The Muster developers (@muster-fleet)
options:
  state:
    description: What to do.
    type: str
    choices: [collected, joined]
    required: true
  path:
    description: The archive to write, with mode 0600.
    type: path
    required: true
  cluster:
    description: Whether to ask Slurm about the whole cluster, once for a fleet.
    type: bool
    default: false
  command_timeout:
    description: Seconds that each command may take.
    type: int
    default: 20
  folder:
    description: Folder with the archives of the nodes, HOST.tar.gz.
    type: path
  hosts:
    description: All hosts of the fleet.
    type: list
    elements: str
    default: []
  unreachable:
    description: Why a host gave nothing, by host name.
    type: dict
    default: {}
  run:
    description: The newest run folder.
    type: path
  secret_files:
    description: Folder with the fleet's secrets.
    type: path
  facts:
    description: Further entries of bundle.json.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Collects nothing and writes nothing.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
"""

EXAMPLES = r"""
- name: Collect
  muster.fleet.bundle:
    state: collected
    path: /run/muster-bundle/node.tar.gz
"""

RETURN = r"""
path:
  description: The archive.
  returned: success
  type: str
nodes:
  description: V(collected) or the reason why nothing was collected, by host name.
  returned: when O(state=joined)
  type: dict
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.report import bundle as logic


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["collected", "joined"], "required": True},
            "path": {"type": "path", "required": True},
            "cluster": {"type": "bool", "default": False},
            "command_timeout": {"type": "int", "default": 20},
            "folder": {"type": "path"},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "unreachable": {"type": "dict", "default": {}},
            "run": {"type": "path"},
            "secret_files": {"type": "path", "no_log": False},
            "facts": {"type": "dict", "default": {}},
        },
        required_if=[("state", "joined", ["folder", "secret_files"])],
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=True, path=params["path"], nodes={})
    result = {"changed": True, "path": params["path"]}
    try:
        if params["state"] == "collected":
            logic.write(params["path"], logic.collect(params["cluster"], params["command_timeout"]))
            # Ansible fetches the file as its remote user, who owns the folder.
            owner = os.stat(os.path.dirname(params["path"]))
            os.chown(params["path"], owner.st_uid, owner.st_gid)
        else:
            run = params["run"] if params["run"] and os.path.isdir(params["run"]) else ""
            contents = logic.join(
                params["folder"],
                params["hosts"],
                params["unreachable"],
                run=os.path.realpath(run) if run else "",
                secrets_dir=params["secret_files"],
                facts=params["facts"],
            )
            os.makedirs(os.path.dirname(params["path"]), exist_ok=True)
            logic.write(params["path"], contents, top=os.path.basename(params["path"]).split(".")[0])
            result["nodes"] = json.loads(contents["bundle.json"])["nodes"]
    except OSError as error:
        module.fail_json(msg="The bundle %s cannot be written: %s; free some disk space." % (params["path"], error.strerror))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
