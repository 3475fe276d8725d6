# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: failed_checks
short_description: The check records of a host that fail it
version_added: 0.1.0
author: The Muster developers (@muster-fleet)
description:
  - Takes the facts of a host and returns, as sentences with their remedies, the failed checks
    and the ones that could not run without being allowed to.
options:
  _input:
    description: The host's C(ansible_facts).
    type: dict
    required: true
  allow_not_run:
    description: Names C(component.check) that may be C(not_run).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
sentences: "{{ ansible_facts | muster.fleet.failed_checks(muster_allow_not_run) }}"
"""

RETURN = r"""
_value:
  description: One sentence for each failing check.
  type: list
  elements: str
"""

from ansible_collections.muster.fleet.plugins.module_utils.node.check import failing, sentence


def failed_checks(facts, allow_not_run=()):
    records = [record for name in sorted(facts) if name.startswith("muster_checks_") for record in facts[name]]
    return [sentence(record) for record in failing(records, allow_not_run)]


def failed_hosts(hosts, hostvars):
    known = ((host, hostvars[host]) for host in hosts if host in hostvars)
    return [host for host, have in known if failed_checks(have.get("ansible_facts") or {}, have.get("muster_allow_not_run") or ())]


class FilterModule:
    """Filters over check records."""

    def filters(self):
        return {"failed_checks": failed_checks, "failed_hosts": failed_hosts}
