# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The logic behind the templates of role slurm: settings of the site over defaults, and node groups with their hardware."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

# The keys of `slurmd -C` that a node line needs: CPUs follows from them, and UpTime is not hardware.
HARDWARE_KEYS = ("Boards", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore", "RealMemory")
OMIT = "omit"


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
    return {**group, "hardware": group.get("hardware") or hardware, "params": params}


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
