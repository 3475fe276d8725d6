# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: storage_verdicts
short_description: Whether a shared file system is as fast as it is rated
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Adds up what the nodes measured at the same time (P(muster.fleet.storage_speed#module)).
options:
  _input:
    description: The result of each host.
    type: dict
    required: true
  rated:
    description: What the file system is rated for, in MB/s.
    type: float
    required: true
  share:
    description: The share of it that must be there.
    type: float
    required: true
"""

EXAMPLES = r"""
found: "{{ dict(hosts | zip(results)) | muster.fleet.storage_verdicts(1000, 0.8) }}"
"""

RETURN = r"""
_value:
  description: For C(write) and C(read) the C(value), what is C(expected), and the reason why nothing is known (C(not_run)).
  type: dict
"""

from ansible_collections.muster.fleet.plugins.module_utils.node.storage_speed import verdicts


def storage_verdicts(measured, rated, share):
    return verdicts(measured, float(rated), float(share))


class FilterModule:
    """Filter `storage_verdicts`."""

    def filters(self):
        return {"storage_verdicts": storage_verdicts}
