# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts: which can be a node's, and the faults of an inventory's names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# With these Ansible means other hosts; names of Muster's groups begin with muster_.
RESERVED_NAMES = frozenset(["all", "ungrouped", "localhost"])


def usable_name(name: str) -> bool:
    """Whether a name can be a host's: ssh would read others as an option, a shell as a command, and Ansible as a pattern or a group."""
    return bool(HOST_NAME.fullmatch(name)) and name.lower() not in RESERVED_NAMES and not name.startswith("muster_")


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def started_by_slurm(nodegroups: Iterable[Mapping]) -> bool:
    """Whether Slurm starts nodes of slurm_nodegroups itself, so that they are no hosts of the inventory."""
    states = [str((each.get("params") or {}).get("State", "")) for each in nodegroups if each.get("hosts")]
    return any(each.lower() == "cloud" for each in states)


def inventory_faults(groups: Mapping[str, Iterable[str]], slurm: bool = True, nodegroups: Iterable[Mapping] = ()) -> list[str]:
    """A sentence for each fault of an inventory, {group: its hosts}, that a fleet cannot have; without Slurm it needs no certain groups.

    nodegroups: the fleet's slurm_nodegroups.
    """
    nodes = {host for group, hosts in groups.items() if group.startswith("muster_") for host in hosts}
    faults = []
    if slurm and not groups.get("muster_compute") and not started_by_slurm(nodegroups):
        faults.append("The fleet has no compute nodes; put at least one host into the group muster_compute of the inventory.")
    if slurm and not groups.get("muster_controller"):
        faults.append("The fleet has no controller; put a host into the group muster_controller of the inventory.")
    # The controller of Ansible itself may be in the inventory, but not as a node.
    for name in sorted({*nodes, *groups.get("all", ())} - ({"localhost"} - nodes)):
        if is_address(name):
            if name in nodes:
                faults.append("Host %s is named by its address; give it a name and set ansible_host to the address." % name)
        elif not usable_name(name):
            faults.append(
                "Host %r cannot be the name of a node; take letters, digits, '.', '_' and '-', a letter or digit first, and not "
                "localhost, all, ungrouped or muster_…." % name
            )
        elif name in groups:
            faults.append("Host %s has the name of a group, and Ansible would run on the group's hosts instead; rename one of them." % name)
    alike: dict[str, list[str]] = {}
    for name in groups.get("muster_compute") or ():
        alike.setdefault(name.split(".")[0], []).append(name)
    for names in alike.values():
        if len(names) > 1 and not any(map(is_address, names)):
            faults.append(
                "Compute nodes %s have the same NodeName, which is the inventory name up to its first dot; rename one of them."
                % " and ".join(names)
            )
    return faults
