# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: run_charts
short_description: What the report of a run asks the fleet's Prometheus for
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Returns the charts of the report's section on metrics and the time that they cover, from the beginning of the run.
options:
  _input:
    description: The run folder, whose name is the time at which the run began.
    type: path
    required: true
  fleet:
    description: Name of the fleet.
    type: str
    required: true
  now:
    description: The time until which it asks, in seconds since 1970.
    type: float
    required: true
"""

EXAMPLES = r"""
asked: "{{ muster_run_dir | muster.fleet.run_charts('local', now().timestamp()) }}"
"""

RETURN = r"""
_value:
  description: Start, end, step and the charts with their queries.
  type: dict
"""

import os

from ansible_collections.muster.fleet.plugins.module_utils.observe.dashboards import run_charts


class FilterModule:
    """Filter `run_charts`."""

    def filters(self):
        return {"run_charts": lambda folder, fleet, now: run_charts(os.path.basename(os.path.realpath(folder)), fleet, now)}
