# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's configuration files from data: merged keys, node lines from groups and hardware, partitions."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils import catalogue

# What `slurmd -C` prints and a node line needs; CPUs follows from the others, and UpTime is not hardware.
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


def merge(defaults, own):
    """Defaults overlaid by the site's keys; the value `omit` takes a default away. Keys compare without case, as Slurm reads them."""
    spelled = {key.lower(): key for key in defaults}
    merged = dict(defaults)
    for key, value in own.items():
        merged.pop(spelled.get(key.lower(), key), None)
        if value != OMIT:
            merged[key] = value
    return merged


def lines(config):
    """{key: value} -> `Key=Value` lines; a list becomes one line each, a boolean yes or no."""
    out = []
    for key, value in config.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            out.append("%s=%s" % (key, ("yes" if item else "no") if isinstance(item, bool) else item))
    return out


def on_a_line(keys):
    """{key: value} -> `Key=Value Key=Value`; a list becomes one value with commas."""
    return " ".join(lines({key: ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value for key, value in keys.items()}))


def own_gres(group):
    """Whether the site says what gres the nodes have."""
    return any(key.lower() == "gres" for key in group.get("params") or {})


def with_type(group):
    """The node group with what the catalogue knows of its instance type; what the group says itself goes before that."""
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


def gres_of_types(devices, groups):
    """Lines as in slurm_gres for the GPUs of instance types, where no line of the site's is for them."""
    out = []
    for group in groups:
        # An unknown type is refused here as it is for the node line.
        typed = with_type(group) is not group and not own_gres(group)
        line = catalogue.slurm_gres_line(group["instance_type"]) if typed else None
        if line and not any(group["name"] in (device.get("nodegroups") or [group["name"]]) for device in devices):
            out.append({"nodegroups": [group["name"]], "params": line})
    return out


def node_line(hosts, instance_type, memory_fraction=0.95):
    """The NodeName line of these hosts if they are of this instance type."""
    catalogue.instance_type(instance_type)
    group = {"name": "these", "hosts": [hosts] if isinstance(hosts, str) else list(hosts), "instance_type": instance_type}
    return node_lines([group], {}, memory_fraction)[0]


def node_lines(groups, hardware, memory_fraction, own=None):
    """NodeName lines and one NodeSet line a node group; nodes that are alike share a line.

    groups: [{name, hosts, instance_type?, hardware?, features?, params?}]. hardware: {group: {key: value}} as asked from a member.
    own: {host: further keys of that node}.
    RealMemory of a member is scaled by memory_fraction, for what the system itself needs; a value in params stands as it is.
    """
    out: list = []
    owner: dict = {}
    for group in map(with_type, groups):
        name = group["name"]
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
        # In one order, whether it was asked from a member just now or read from what the controller kept.
        have = dict(sorted(have.items()))
        have["RealMemory"] = int(int(have["RealMemory"]) * memory_fraction)
        if group.get("features"):
            have["Features"] = group["features"]
        have = merge(have, group.get("params") or {})
        alike: dict = {}
        for host in group["hosts"]:
            keys = on_a_line(merge(have, (own or {}).get(host) or {}))
            alike.setdefault(keys, []).append(host.split(".")[0])
        out += ["NodeName=%s %s" % (",".join(nodes), keys) for keys, nodes in alike.items()]
        out.append("NodeSet=%s Nodes=%s" % (name, ",".join(host.split(".")[0] for host in group["hosts"])))
    if not owner:
        raise SlurmConfError("The fleet has no compute nodes; put at least one host into the group muster_compute.")
    return out


def partition_lines(partitions, groups):
    """One PartitionName line a partition; raises SlurmConfError for a node group that does not exist."""
    known = [group["name"] for group in groups]
    filled = [group["name"] for group in groups if group["hosts"]]
    out = []
    for partition in partitions:
        for name in partition["nodegroups"]:
            if name not in known:
                message = "The partition %s names the node group %s, but slurm_nodegroups has only %s."
                raise SlurmConfError(message % (partition["name"], name, ", ".join(known)))
        nodes = [name for name in partition["nodegroups"] if name in filled]
        if nodes:
            out.append(
                " ".join(
                    ["PartitionName=%s" % partition["name"], "Nodes=%s" % ",".join(nodes), on_a_line(partition.get("params") or {})]
                ).strip()
            )
    return out


def members(groups, names=None):
    """NodeNames of these node groups, of all of them without names."""
    return [host.split(".")[0] for group in groups if names is None or group["name"] in names for host in group["hosts"]]


def gres_conf(devices, groups):
    """gres.conf as text, empty when it has no line. devices: [{nodegroups?, params}]; a line without node groups is for every node."""
    out = ["# Written by Muster (role slurm); change slurm_gres or the instance_type in slurm_nodegroups instead."]
    for line in [*devices, *gres_of_types(devices, groups)]:
        nodes = members(groups, line.get("nodegroups"))
        if nodes:
            where = {"NodeName": nodes} if line.get("nodegroups") else {}
            # YAML reads a bare off as false.
            params = {key: "off" if value is False else value for key, value in (line.get("params") or {}).items()}
            out.append(on_a_line({**where, **params}))
    return "\n".join(out) + "\n" if len(out) > 1 else ""


def _topology_nodes(each, groups):
    return ",".join((each.get("nodes") or []) + members(groups, each.get("nodegroups") or []))


def topologies(topology):
    """The topologies of slurm_topology, each with its name; the first is the cluster's."""
    return topology.get("topologies") or [{"name": "default", **topology}]


def topology_refusal(said, topology, partitions):
    """The sentence about what a Slurm before 25.05 has no words for, empty when there is nothing. said: what `slurmctld -V` printed."""
    version = re.search(r"(\d+)\.(\d+)", said)
    wants = ["slurm_topology.topologies"] if topology.get("topologies") else []
    for partition in partitions:
        if any(key.lower() == "topology" for key in partition.get("params") or {}):
            wants.append("The Topology of partition %s (slurm_partitions)" % partition["name"])
    if not wants or not version or (int(version[1]), int(version[2])) >= (25, 5):
        return ""
    message = "%s needs Slurm 25.05 or newer and this controller has %s; give one topology for all, or upgrade Slurm first."
    return message % (wants[0], version[0])


def topology_conf(topology, groups):
    """topology.conf as text, for Slurm before 25.05."""
    out = ["# Written by Muster (role slurm); change slurm_topology instead."]
    for switch in topology.get("switches") or []:
        keys = {"SwitchName": switch["name"], "Nodes": _topology_nodes(switch, groups), "Switches": switch.get("switches") or []}
        out.append(on_a_line({key: value for key, value in keys.items() if value}))
    for block in topology.get("blocks") or []:
        out.append(on_a_line({"BlockName": block["name"], "Nodes": _topology_nodes(block, groups)}))
    if topology.get("block_sizes"):
        out.append(on_a_line({"BlockSizes": topology["block_sizes"]}))
    return "\n".join(out) + "\n"


def topology_yaml(topology, groups):
    """topology.yaml as text, for Slurm from 25.05, as lines because PyYAML is not on every controller."""
    out = ["# Written by Muster (role slurm); change slurm_topology instead."]
    for number, named in enumerate(topologies(topology)):
        out += ['- topology: "%s"' % named["name"], "  cluster_default: %s" % ("false" if number else "true")]
        kind = topology_kind(named)
        if not kind:
            out.append("  flat: true")
            continue
        out.append("  %s:" % kind)
        if kind == "block":
            out.append("    block_sizes: [%s]" % ", ".join(map(str, named.get("block_sizes") or [])))
        out.append("    blocks:" if kind == "block" else "    switches:")
        for each in named.get("blocks") or named["switches"]:
            out.append('      - %s: "%s"' % ("block" if kind == "block" else "switch", each["name"]))
            keys = {"children": ",".join(each.get("switches") or []), "nodes": _topology_nodes(each, groups)}
            out += ['        %s: "%s"' % item for item in keys.items() if item[1]]
    return "\n".join(out) + "\n"


def topology_kind(topology):
    """tree or block, or empty text when there is no topology."""
    return "block" if topology.get("blocks") else "tree" if topology.get("switches") else ""


def hooks(scripts, defaults, prefix):
    """Keys of slurm.conf for a site's scripts. The role's prolog and epilog stay and come first.

    prefix: empty when Slurm ships scripts that are named without a path, which also is since when a key may stand several times (23.11).
    """
    keys: dict = {}
    for script in scripts:
        hook = script["hook"]
        if hook in ("Prolog", "Epilog"):
            if prefix:
                message = (
                    "This Slurm knows one %s only, and the role has it; %s needs Slurm 23.11 or newer, or slurm_config with a %s of yours."
                )
                raise SlurmConfError(message % (hook, script["path"], hook))
            keys.setdefault(hook, [defaults[hook]]).append(script_name(script))
        elif hook in keys:
            raise SlurmConfError("slurm_scripts has two scripts for %s, and Slurm runs one; leave one of them." % hook)
        else:
            keys[hook] = "/etc/slurm/" + script_name(script)
    return keys


def script_name(script):
    return "site-" + script["path"].rsplit("/", 1)[-1]


def script_files(scripts, contents):
    """Entries of config_files for a site's scripts and what is in them."""
    return [{"dest": "/etc/slurm/" + script_name(script), "content": content, "mode": "0755"} for script, content in zip(scripts, contents)]


def slurm_conf(config, *, groups, partitions, hardware, memory_fraction, own=None):
    """The whole slurm.conf as text."""
    return (
        "\n".join(
            ["# Written by Muster (role slurm); change slurm_config, slurm_nodegroups or slurm_partitions instead."]
            + lines(config)
            + node_lines(groups, hardware, memory_fraction, own)
            + partition_lines(partitions, groups)
        )
        + "\n"
    )
