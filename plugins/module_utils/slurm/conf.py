# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The logic behind the templates of role slurm: settings of the site over defaults, and node groups with their hardware."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

# The keys of `slurmd -C` that a node line needs: CPUs follows from them, and UpTime is not hardware.
HARDWARE_KEYS = ("Boards", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore", "RealMemory")
OMIT = "omit"
# The inventories put each host of an instance type into such a group, and each host of an UltraServer into one of its own.
TYPE_GROUP, NVLINK_GROUP = "muster_type_", "muster_ultraserver_"


class SlurmConfError(ValueError):
    """The data cannot make a configuration; the text is one sentence for the user."""


def parse_hardware(text):
    """The first line of `slurmd -C` -> {key: value as text}; raises SlurmConfError on anything else."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    pairs = dict(part.split("=", 1) for part in line.split() if "=" in part)
    if "NodeName" not in pairs or "RealMemory" not in pairs:
        raise SlurmConfError("slurmd -C printed no node line but %r; give its hardware in slurm_nodegroups." % line[:80])
    return {key: pairs[key] for key in HARDWARE_KEYS if key in pairs}


def settings(defaults, site):
    """Defaults overlaid by the site's keys; the value `omit` removes a default. Keys compare without case, as Slurm reads them."""
    spelled = {key.lower(): key for key in defaults}
    merged = {**defaults, **{spelled.get(key.lower(), key): value for key, value in site.items()}}
    return {key: value for key, value in merged.items() if value != OMIT}


def slurm_conf(text, *overlays):
    """`Key=Value` lines, without the keys that an overlay {key: value} sets; these follow at the end, unless their value is `omit`."""
    lines = text.splitlines()
    for overlay in overlays:
        keys = {key.lower() for key in overlay}
        lines = [line for line in lines if line.partition("=")[0].strip().lower() not in keys]
        for key, value in overlay.items():
            # Each item of a list has a line of its own.
            values = value if isinstance(value, (list, tuple)) else [value]
            lines += ["%s=%s" % (key, plain(item)) for item in values if item != OMIT]
    return "\n".join(lines) + "\n"


def plain(value):
    """A value as Slurm writes it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def on_a_line(keys):
    """{key: value} -> `Key=Value Key=Value`; a list becomes one value with commas."""
    return " ".join("%s=%s" % (key, plain(value)) for key, value in keys.items())


def own_gres(group):
    """Whether the site says what gres the nodes have."""
    return any(key.lower() == "gres" for key in group.get("params") or {})


def with_type(group):
    """The node group with what the catalogue knows of its instance type; the group's own values override it."""
    name = group.get("instance_type")
    if not name:
        return group
    try:
        hardware, gres = catalogue.slurm_hardware(name), catalogue.slurm_gres(name)
    except catalogue.CatalogueError as error:
        message = "The node group %s (slurm_nodegroups) has an unknown instance_type. %s"
        raise SlurmConfError(message % (group["name"], error)) from error
    params = group.get("params") or {}
    if gres and not own_gres(group):
        params = {**params, "Gres": gres}
    hardware = group.get("hardware") or (None if group.get("measured") else hardware)
    # The discovery of role monitoring reads the type there, too.
    return {**group, "hardware": hardware, "features": list(dict.fromkeys([name, *(group.get("features") or [])])), "params": params}


def kinds_of(hosts, groups):
    """{instance type: its hosts} in the order of the hosts; "" is for hosts without one.

    groups: {inventory group: hosts}. A type that the catalogue does not have, one without accelerators, keeps the name of its group.
    """
    known = {re.sub(r"\W", "_", name): name for name in catalogue.names()}
    kinds: dict = {}
    for group, members in groups.items():
        if group.startswith(TYPE_GROUP):
            name = group[len(TYPE_GROUP) :]
            kinds.update(dict.fromkeys(members, known.get(name, name)))
    found: dict = {}
    for host in hosts:
        found.setdefault(kinds.get(host, ""), []).append(host)
    return found


def compute_groups(hosts, groups):
    """The default of slurm_nodegroups: the group `compute`, or a group for each instance type when there are several.

    Nodes of a type have its GPUs, and its name as a feature. Their CPUs and memory are measured, as on every other node.
    """
    kinds, out = kinds_of(hosts, groups), []
    for kind, members in kinds.items():
        group = {"name": kind if kind and len(kinds) > 1 else "compute", "hosts": members}
        if kind:
            group["features"] = [kind]
        if kind in catalogue.names():
            group.update(instance_type=kind, measured=True)
        out.append(group)
    return out or [{"name": "compute", "hosts": []}]


def compute_partitions(groups, params=None):
    """The default of slurm_partitions: `main` with all nodes, and beside it a partition for each node group when there are several."""
    more = params or {}
    names = [group["name"] for group in groups]
    own = [{"name": name, "nodegroups": [name], "params": dict(more)} for name in names if len(names) > 1]
    return [{"name": "main", "nodegroups": names, "params": {"Default": "YES", **more}}, *own]


def nvlink_blocks(hosts, groups):
    """The default of slurm_topology: a block for each NVLink domain where every host shares NVLink with others; otherwise {}.

    The inventory knows which hosts are one UltraServer. Hosts of which it does not are taken in its order, as many as a domain has.
    """
    kinds = kinds_of(hosts, groups)
    sizes = [catalogue.nodes_of_nvlink(kind) if kind in catalogue.names() else 1 for kind in kinds]
    if not sizes or min(sizes) == 1:
        return {}
    domains = {group[len(NVLINK_GROUP) :]: members for group, members in groups.items() if group.startswith(NVLINK_GROUP)}
    domain_of = {host: name for name, members in sorted(domains.items()) for host in members}
    blocks: dict = {}
    for (_kind, members), size in zip(kinds.items(), sizes):
        unknown = [host for host in members if host not in domain_of]
        for host in members:
            name = domain_of.get(host) or "nvlink-%d" % (unknown.index(host) // size + 1)
            blocks.setdefault(name, []).append(host.split(".")[0])
    return {
        "blocks": [{"name": name, "nodes": members} for name, members in blocks.items()],
        "block_sizes": [min(map(len, blocks.values()))],
    }


def gres_of_type(group, devices):
    """Keys of the gres.conf line for the GPUs of the group's instance type; {} when the site has a line for the group (slurm_gres)."""
    described = any(group["name"] in (device.get("nodegroups") or [group["name"]]) for device in devices)
    if described or not group.get("instance_type") or own_gres(group):
        return {}
    return catalogue.slurm_gres_line(group["instance_type"]) or {}


def node_groups(groups, hardware, memory_fraction, own=None, devices=()):
    """What the templates loop over: [{name, nodes, lines: [{nodes, keys}], gres}] of the groups that have members.

    groups: [{name, hosts, instance_type?, hardware?, features?, params?}]. hardware: {group: {key: value}} as a member reported it.
    own: {host: further keys of that node}. devices: slurm_gres. Nodes that are alike share a line; gres is a line of gres.conf.
    memory_fraction reduces RealMemory, to leave room for the system; a value in params is not reduced.
    """
    out: list = []
    owner: dict = {}
    for given in groups:
        group, name = with_type(given), given["name"]
        for host in group["hosts"]:
            node = host.split(".")[0]
            if node in owner:
                message = "Two nodes have the NodeName %s (node groups %s and %s); give every compute node a name of its own."
                raise SlurmConfError(message % (node, owner[node], name))
            owner[node] = name
        if not group["hosts"]:
            continue
        have = group.get("hardware") or hardware.get(name)
        if not have:
            message = "The node group %s has no hardware: none of its members answered slurmd -C and slurm_nodegroups gives none."
            raise SlurmConfError(message % name)
        # Sort the keys: a member's answer and the copy that the controller keeps may differ in order.
        have = dict(sorted(have.items()))
        have["RealMemory"] = int(int(have["RealMemory"]) * memory_fraction)
        if group.get("features"):
            have["Features"] = group["features"]
        have = settings(have, group.get("params") or {})
        alike: dict = {}
        for host in group["hosts"]:
            alike.setdefault(on_a_line(settings(have, (own or {}).get(host) or {})), []).append(host.split(".")[0])
        out.append(
            {
                "name": name,
                "nodes": [host.split(".")[0] for host in group["hosts"]],
                "lines": [{"nodes": nodes, "keys": keys} for keys, nodes in alike.items()],
                "gres": gres_of_type(given, devices),
            }
        )
    if not owner:
        raise SlurmConfError("The fleet has no compute nodes; put at least one host into the group muster_compute.")
    return out


def topologies(topology):
    """The topologies of slurm_topology, each with its name; the first is the cluster's."""
    return topology.get("topologies") or [{"name": "default", **topology}]
