# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's nodes as hosts of Ansible, from the JSON of `scontrol show nodes --json` or of slurmrestd, and from `scontrol show topology`.

A host is {name, variables, groups}; groups are names not yet made safe.
"""

from __future__ import annotations

import json
import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import known_type, type_groups
from ansible_collections.muster.fleet.plugins.module_utils.slurm.text import SlurmError, expand


def listed(value):
    """A list that some data_parsers print as text with commas."""
    if isinstance(value, str):
        return [each for each in value.split(",") if each]
    return [str(each) for each in value or []]


def number(value):
    """A number that some data_parsers wrap: {"set": true, "infinite": false, "number": 7}."""
    if isinstance(value, dict):
        return value.get("number") if value.get("set") else None
    return value


def nodes_of(text, source):
    """The node records of a JSON text. SlurmError when it has none."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SlurmError("%s printed no JSON (%s) but %r; Slurm needs its JSON plugin." % (source, error, text.strip()[:80])) from error
    errors = document.get("errors") if isinstance(document, dict) else None
    if errors:
        first = errors[0] if isinstance(errors[0], dict) else {"description": str(errors[0])}
        raise SlurmError("%s says: %s." % (source, str(first.get("description") or first.get("error") or first).rstrip(".")))
    found = document.get("nodes") if isinstance(document, dict) else None
    if isinstance(found, dict):
        found = found.get("nodes")
    if not isinstance(found, list) or not all(isinstance(each, dict) and each.get("name") for each in found):
        raise SlurmError("%s printed JSON without a list of nodes; its Slurm is older than 22.05, or another program answered." % source)
    return found


def switches(text):
    """{node: [switches above it, the top one first]} of `scontrol show topology`, for a tree; blocks give their one name."""
    rows = []
    for line in text.splitlines():
        name = re.search(r"(?:SwitchName|BlockName)=(\S+)", line)
        nodes = re.search(r"\bNodes=(\S+)", line)
        level = re.search(r"\bLevel=(\d+)", line)
        if name and nodes:
            rows.append((int(level[1]) if level else 0, name[1], nodes[1]))
    above: dict = {}
    for _level, switch, members in sorted(rows, key=lambda row: -row[0]):
        for node in expand(members):
            above.setdefault(node, []).append(switch)
    return above


def gres_of(text):
    """`gpu:h100:8(S:0-1),nvme:2` -> {gpu: 8, nvme: 2} and the types of GPUs."""
    counts: dict = {}
    kinds: list = []
    for name, kind, count in re.findall(r"([a-z_]\w*):(?:([A-Za-z]\w*):)?(\d+)", text or ""):
        counts[name] = counts.get(name, 0) + int(count)
        kinds += [kind] if name == "gpu" and kind and kind not in kinds else []
    return counts, kinds


def host_of(node, above=()):
    """One node as a host."""
    states = [each.lower() for each in listed(node.get("state"))]
    features = listed(node.get("active_features") or node.get("features"))
    partitions = listed(node.get("partitions"))
    counts, kinds = gres_of(node.get("gres"))
    kind = next((each for each in features if known_type(each)), "")
    have = known_type(kind) or {}
    variables = {
        "ansible_host": node.get("address") or node["name"],
        "slurm_state": states,
        "slurm_partitions_of": partitions,
        "slurm_features": features,
        "slurm_reason": node.get("reason") or "",
        "slurm_gres_of": counts,
        "slurm_cpus": number(node.get("cpus")),
        "slurm_memory_mib": number(node.get("real_memory")),
    }
    groups = ["muster_compute"]
    groups += ["slurm_state_" + each for each in states] + ["slurm_partition_" + each for each in partitions]
    groups += ["slurm_feature_" + each for each in features] + ["slurm_gpu_" + each for each in kinds]
    if kind:
        variables["instance_type"] = kind
        groups += type_groups(kind, have.get("accelerator"), bool(have.get("efa")))
    elif counts.get("gpu"):
        groups.append("muster_gpu")
    if above:
        variables["muster_network_nodes"] = list(above)
        groups += ["muster_layer%d_%s" % item for item in enumerate(above, 1)]
    return {"name": node["name"], "variables": variables, "groups": groups}


def hosts_of(text, topology="", source="scontrol", partitions=(), states=()):
    """The hosts of all nodes, or of those in some of the partitions and states."""
    above = switches(topology)
    out = []
    for node in nodes_of(text, source):
        host = host_of(node, above.get(node["name"], ()))
        if partitions and not set(partitions) & set(host["variables"]["slurm_partitions_of"]):
            continue
        if states and not set(states) & set(host["variables"]["slurm_state"]):
            continue
        out.append(host)
    return out
