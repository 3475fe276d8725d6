# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: monitoring_faults
short_description: The faults of the settings of monitoring
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Checks C(monitoring_alarms) and C(monitoring_receivers) before anything changes on a node.
options:
  _input:
    description: The variables of the monitoring host.
    type: dict
    required: true
"""

EXAMPLES = r"""
sentences: "{{ hostvars['controller-1'] | muster.fleet.monitoring_faults }}"
"""

RETURN = r"""
_value:
  description: One sentence for each fault.
  type: list
  elements: str
"""

from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, alertmanager


def monitoring_faults(variables):
    faults = []
    try:
        alarms.chosen(variables.get("monitoring_alarms"))
    except alarms.AlarmError as error:
        faults.append(str(error))
    for receiver in variables.get("monitoring_receivers") or []:
        try:
            alertmanager.check(receiver)
        except alertmanager.ReceiverError as error:
            faults.append(str(error))
    return faults


class FilterModule:
    """Filter `monitoring_faults`."""

    def filters(self):
        return {"monitoring_faults": monitoring_faults}
