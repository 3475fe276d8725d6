# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The addresses of a local fleet: its network, one address for each node, and the hosts file by which nodes find each other."""

from __future__ import annotations

import ipaddress
import sys
import zlib
from collections.abc import Iterable, Mapping

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import Node

# Each fleet gets a /24 of this range that no route and no other network uses.
SUBNET_RANGE = ipaddress.ip_network("10.213.0.0/16")


def assign_addresses(nodes: list[Node], record: Mapping | None, subnet: str) -> dict[str, str]:
    """An address for each node: the one in the record, else the lowest free one."""
    network = ipaddress.ip_network(subnet)
    known = {node["name"]: node["address"] for node in (record or {}).get("nodes", ()) if ipaddress.ip_address(node["address"]) in network}
    taken = set(known.values())
    # The first host address is the engine's gateway.
    free = (str(address) for address in list(network.hosts())[1:] if str(address) not in taken)
    return {node.name: known.get(node.name) or next(free) for node in nodes}


def host_routes(table: str) -> list[ipaddress.IPv4Network]:
    """The networks of the text of /proc/net/route, without the default route."""
    rows = [line.split() for line in table.splitlines()[1:]]
    words = [(int(row[1], 16), int(row[7], 16)) for row in rows if len(row) > 7]
    # The kernel prints addresses in the byte order of the machine; of a mask only the number of ones matters.
    return [ipaddress.IPv4Network((address.to_bytes(4, sys.byteorder), bin(mask).count("1"))) for address, mask in words if mask]


def subnets_in(networks: object) -> list[ipaddress.IPv4Network]:
    """All IPv4 subnets in the answer of `network inspect`; podman, its CNI and docker nest them differently."""
    if isinstance(networks, list):
        return [subnet for each in networks for subnet in subnets_in(each)]
    if not isinstance(networks, dict):
        return []
    own = [value for key, value in networks.items() if key.lower() == "subnet" and isinstance(value, str) and ":" not in value]
    return [ipaddress.IPv4Network(value, strict=False) for value in own if value] + subnets_in(list(networks.values()))


def choose_subnet(fleet: str, used: Iterable[ipaddress.IPv4Network]) -> str:
    """A free /24 of the range. The search begins at a hash of the fleet's name, so that a fleet usually gets the same subnet again."""
    taken = list(used)
    candidates = [ipaddress.IPv4Network(each) for each in SUBNET_RANGE.subnets(new_prefix=24)]
    first = zlib.crc32(fleet.encode()) % len(candidates)
    for candidate in candidates[first:] + candidates[:first]:
        if not any(candidate.overlaps(other) for other in taken):
            return str(candidate)
    raise NodeContainerError(f"No free network for fleet {fleet}: routes or container networks use all of {SUBNET_RANGE}.")


def network_name(fleet: str, subnet: str) -> str:
    """The name of a fleet's network: muster-FLEET-N, where N is the third number of its subnet.

    netavark names a network's chain in the packet filter by the network's name, and the rules stay there when podman is killed.
    A new network of the same name and another subnet would put its rules behind the old `MASQUERADE`. Packets between nodes would
    then come from the address of the bridge, and srun would wait in vain for a node's answer.
    """
    return f"muster-{fleet}-{subnet.split('.')[2]}"


def mac_address(address: str) -> str:
    """A locally administered hardware address that belongs to an IP address."""
    return "02:6d:" + ":".join(f"{part:02x}" for part in ipaddress.ip_address(address).packed)


def hosts_text(nodes: Iterable[Mapping]) -> str:
    """/etc/hosts of every node."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "\n".join(lines + [f"{node['address']} {node['name']}" for node in nodes]) + "\n"
