# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: foreign_secrets
short_description: Secrets of live nodes that this machine does not have
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Compares checksums of the secrets on nodes with those on this machine, so that no run replaces what the nodes of a cluster share.
  - A host without the file can get it. Where a controller has the secret of this machine, so can a host that has another one.
options:
  _input:
    description: For each host, lines of a checksum and the path of its file on the host.
    type: dict
    required: true
  secrets:
    description:
      - The secrets. Each has C(name), C(paths) (its files on a host), C(here) (its file on this machine), C(known) (the checksums that
        a host may have), and C(users), who would use the file on a host.
    type: list
    elements: dict
    required: true
  controllers:
    description: The hosts that decide.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
sentences: "{{ sums | muster.fleet.foreign_secrets(secrets, groups['muster_controller']) }}"
"""

RETURN = r"""
_value:
  description: One sentence for each secret that differs.
  type: list
  elements: str
"""


def foreign_secrets(sums, secrets, controllers):
    read = {host: dict(reversed(line.split(None, 1)) for line in text.splitlines() if " " in line) for host, text in sums.items()}
    said = []
    for secret in secrets:
        others, path = [], ""
        for host, files in read.items():
            found = {each: files[each] for each in secret["paths"] if each in files}
            wrong = [each for each, digest in found.items() if digest not in secret["known"]]
            if wrong:
                others.append(host)
                path = path or wrong[0]
            elif found and host in controllers:
                others = []
                break
        if others:
            said.append(
                "%s %s another %s than %s, so another machine provisions this cluster. Share that machine's secrets as docs/usage.md says "
                '("Several operators"), or remove %s there if no %s uses it.'
                % (", ".join(others), "has" if len(others) == 1 else "have", secret["name"], secret["here"], path, secret["users"])
            )
    return said


class FilterModule:
    """Filter `foreign_secrets`."""

    def filters(self):
        return {"foreign_secrets": foreign_secrets}
