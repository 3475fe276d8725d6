#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: units
short_description: Keep a list of systemd units enabled and running in one call
version_added: 0.1.0
description:
  - Enables and starts units in the given order, unless they are enabled and running.
  - Reloads systemd when unit files changed.
  - Asks systemd about all units in one call, which is all that a converge without changes costs.
author:
  - The Muster developers (@muster-fleet)
options:
  names:
    description: Units in the order in which they are started. Either these or O(units).
    type: list
    elements: str
  units:
    description: Units in the order in which they are started, each with its own options.
    type: list
    elements: dict
    version_added: 0.3.0
    suboptions:
      name:
        description: As in O(names).
        type: str
        required: true
      restart_after:
        description: As O(restart_after), for this unit only.
        type: list
        elements: path
        default: []
  state:
    description:
      - V(started) starts units that are not active.
      - V(restarted) restarts all of them.
      - V(stopped) stops and disables them.
    type: str
    choices: [started, restarted, stopped]
    default: started
  unwanted:
    description: Units to stop and disable first. A unit that does not exist needs nothing.
    type: list
    elements: str
    default: []
    version_added: 0.2.0
  restart_after:
    description:
      - Files that the units read when they start. A unit that started before one of them was last written is restarted.
      - The module compares times, so that no restart is lost when a run is killed after it wrote a file.
    type: list
    elements: path
    default: []
  executables:
    description:
      - Files that the units fetch and execute. A running unit is restarted when one of the files exists and is not executable.
      - slurmctld 24.11 pushes its scripts without the executable bit to a slurmd that is new to it. A slurmd that starts fetches them
        with it.
    type: list
    elements: path
    default: []
    version_added: 0.2.0
attributes:
  check_mode:
    description: Reports the commands that would run.
    support: full
  diff_mode:
    description: Shows the state of each unit before and after.
    support: full
"""

EXAMPLES = r"""
- name: configure | Start the daemons
  muster.fleet.units:
    names: [munge, slurmctld]
    restart_after: [/etc/munge/munge.key]

- name: configure | Start the database and the daemon that needs it
  muster.fleet.units:
    units:
      - name: mariadb
        restart_after: [/etc/mysql/mariadb.conf.d/60-site.cnf]
      - name: slurmdbd
        restart_after: [/etc/slurm/slurmdbd.conf]
"""

RETURN = r"""
commands:
  description: The systemctl commands that were run, or would be in check mode.
  returned: always
  type: list
  elements: list
started:
  description: Units that were started or restarted, or would be in check mode.
  returned: always
  type: list
  elements: str
  version_added: 0.3.0
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.node.units import ENVIRONMENT, plan, show, started_at


def written(paths):
    """When the newest of the files was written, 0 when none exists."""
    return max([os.stat(path).st_mtime for path in paths if os.path.exists(path)], default=0)


def main():
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str"},
            "units": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "name": {"type": "str", "required": True},
                    "restart_after": {"type": "list", "elements": "path", "default": []},
                },
            },
            "state": {"type": "str", "choices": ["started", "restarted", "stopped"], "default": "started"},
            "unwanted": {"type": "list", "elements": "str", "default": []},
            "restart_after": {"type": "list", "elements": "path", "default": []},
            "executables": {"type": "list", "elements": "path", "default": []},
        },
        required_one_of=[("names", "units")],
        mutually_exclusive=[("names", "units")],
        supports_check_mode=True,
    )
    module.run_command_environ_update = ENVIRONMENT
    state, unwanted = module.params["state"], module.params["unwanted"]
    units = module.params["units"] or [{"name": name, "restart_after": []} for name in module.params["names"]]
    names = [unit["name"] for unit in units]
    before = show(module, [*names, *unwanted])
    missing = [name for name in names if before[name]["LoadState"] == "not-found"]
    if missing and not module.check_mode:
        module.fail_json(msg="The systemd unit %s does not exist on this node; install its package first." % missing[0])
    if any(unit["NeedDaemonReload"] == "yes" for unit in before.values()) and not module.check_mode:
        module.run_command(["systemctl", "daemon-reload"], check_rc=True)
    now, monotonic = time.time(), time.monotonic()
    newest = {unit["name"]: written(unit["restart_after"] + module.params["restart_after"]) for unit in units}
    broken = any(os.path.exists(path) and not os.access(path, os.X_OK) for path in module.params["executables"])
    stale = [name for name in names if broken or started_at(before[name], now, monotonic) < newest[name]]
    commands = plan(unwanted, "stopped", before) + plan(names, state, before, stale)
    ends = {name: "stopped" for name in unwanted}
    if not module.check_mode:
        for command in commands:
            rc, _out, err = module.run_command(command)
            if rc != 0:
                unit = command[-1]
                journal = module.run_command(["journalctl", "-u", unit, "-n", "15", "--no-pager", "-o", "cat"])[1]
                lines = " | ".join(journal.splitlines())
                module.fail_json(msg="%s failed: %s The unit's last lines: %s" % (" ".join(command), err.strip(), lines))
    module.exit_json(
        changed=bool(commands),
        commands=commands,
        started=[command[-1] for command in commands if {"start", "restart", "--now"} & set(command) and "disable" not in command],
        diff={
            "before": "".join("%s: %s, %s\n" % (name, before[name]["ActiveState"], before[name]["UnitFileState"]) for name in before),
            "after": "".join("%s: %s\n" % (name, ends.get(name, state)) for name in before),
        }
        if commands
        else {},
    )


if __name__ == "__main__":
    main()
