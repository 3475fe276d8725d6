# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The default of slurm_topology: blocks of NVLink domains, or a tree of the network nodes that the inventory knows."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.slurm.conf import SlurmConfError, nvlink_blocks

# The inventories put each host into such a group for each network node above it. Layer 1 is the top.
LAYER_GROUP = re.compile(r"muster_layer(\d+)_(.+)")
# Network nodes of the inventories never have these names, because a group has no hyphen.
TOP, UNKNOWN, DIRECT = "muster-top", "muster-unknown", "-nodes"
REMEDY = "correct the groups muster_layer..., or set slurm_topology ({} for a flat network)."


def layers_of(hosts, groups):
    """{host: [network nodes above it, from the top layer down]} of the hosts that are in groups of layers.

    groups: {inventory group: hosts}. They are read instead of variables, because Ansible collects a host's variables anew at each access.
    """
    wanted = set(hosts)
    found: dict = {}
    named = [(int(match[1]), match[2], group) for match, group in ((LAYER_GROUP.fullmatch(name), name) for name in groups) if match]
    for layer, node, group in sorted(named):
        for host in [each for each in groups[group] if each in wanted]:
            mine = found.setdefault(host, {})
            if layer in mine:
                message = "Host %s is below two network nodes of layer %d, %s and %s; %s"
                raise SlurmConfError(message % (host, layer, mine[layer], node, REMEDY))
            mine[layer] = node
    return {host: [mine[layer] for layer in sorted(mine)] for host, mine in found.items()}


def switches(hosts, layers):
    """The switches of a tree, each above those below it: [{name, switches}] and, for leaves, [{name, nodes}].

    layers: {host: network nodes above it, from the top layer down}. Slurm gives no job a node that no switch reaches, nor
    nodes of two trees. So hosts without layers have a leaf of their own, and one switch stands above all.
    """
    parents: dict = {}
    below: dict = {}
    members: dict = {}
    for host in hosts:
        above = ""
        for node in dict.fromkeys(safe(each) for each in layers.get(host) or ()):
            if parents.setdefault(node, above) != above:
                message = "The network node %s is below %s and, for host %s, below %s; %s"
                raise SlurmConfError(message % (node, parents[node] or "no other", host, above or "no other", REMEDY))
            below.setdefault(above, {})[node] = None
            above = node
        if not above:
            below.setdefault("", {})[UNKNOWN] = None
        members.setdefault(above or UNKNOWN, []).append(host.split(".")[0])
    # Slurm refuses a switch with switches and nodes below it. Types with four layers and with three may share one.
    for node in [each for each in members if each in below]:
        below[node][node + DIRECT] = None
        members[node + DIRECT] = members.pop(node)
    roots = sorted(below.get("", ()))
    if len(roots) > 1:
        below[TOP], roots = dict.fromkeys(roots), [TOP]
    out, waiting = [], roots
    while waiting:
        name = waiting.pop(0)
        inner = sorted(below.get(name, ()))
        out.append({"name": name, "switches": inner} if inner else {"name": name, "nodes": members[name]})
        waiting = inner + waiting
    return out


def safe(name):
    """A network node's name as Slurm takes it: a bracket or comma would make several of it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", str(name))


def network(nodegroups, groups):
    """The default of slurm_topology; {} for a network of which nothing is known.

    nodegroups: slurm_nodegroups; groups: {inventory group: hosts}. Blocks come first: NVLink is faster than any network.
    """
    hosts = list(dict.fromkeys(host for group in nodegroups for host in group.get("hosts") or ()))
    blocks = nvlink_blocks(hosts, groups)
    if blocks:
        return blocks
    layers = layers_of(hosts, groups)
    return {"switches": switches(hosts, layers)} if layers else {}
