# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: monitoring_files
short_description: The files of a monitoring host
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Gives the configuration of Prometheus with its targets and rules, and that of Alertmanager.
options:
  _input:
    description: C(hostvars).
    type: dict
    required: true
  groups:
    description: The groups of the inventory.
    type: dict
    required: true
  fleet:
    description: Name of the fleet.
    type: str
    required: true
  settings:
    description: The variables of role monitoring without their prefix.
    type: dict
    required: true
"""

EXAMPLES = r"""
files: "{{ hostvars | muster.fleet.monitoring_files(groups, 'local', settings) }}"
"""

RETURN = r"""
_value:
  description: One dictionary with C(dest) and C(content) for each file.
  type: list
  elements: dict
"""

import json

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, alertmanager, scrape


def monitoring_files(hostvars, groups, fleet, settings):
    discovers = settings["discovery"]
    types = {name: catalogue.instance_type(name) for name in catalogue.names()} if discovers else {}
    hosts = scrape.hosts(hostvars, groups, settings["openmetrics"], settings["slurm_nodes"] if discovers else ())
    try:
        rules = alarms.rules_file(settings["alarms"], settings["runbooks"])
        sends = alertmanager.configuration(settings["receivers"], **settings["waits"])
    except (alarms.AlarmError, alertmanager.ReceiverError) as error:
        raise AnsibleFilterError(str(error)) from error
    server = fleet + ".muster.internal"
    reads = scrape.configuration(fleet, server, settings["name"], settings["interval"], settings["remote_write"], discovers=discovers)
    return [
        {
            "dest": "/etc/prometheus/prometheus.yml",
            "content": reads,
            "validate": ["promtool", "check", "config", "--syntax-only", "%s"],
        },
        {"dest": "/etc/prometheus/muster/muster.rules.yml", "content": rules, "validate": ["promtool", "check", "rules", "%s"]},
        {"dest": "/etc/prometheus/alertmanager.yml", "content": sends, "validate": ["amtool", "check-config", "%s"]},
        *scrape.target_files([host for host in hosts if not host["slurm_node"]], fleet),
        *([{"dest": scrape.SETTINGS, "content": json.dumps(scrape.discovery(hosts, fleet, types), indent=1) + "\n"}] if discovers else []),
    ]


class FilterModule:
    """Filter `monitoring_files`."""

    def filters(self):
        return {"monitoring_files": monitoring_files}
