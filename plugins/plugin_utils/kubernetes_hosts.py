# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes' nodes as hosts of Ansible, from `kubectl get nodes --output json`: {name, variables, groups}."""

from __future__ import annotations

import json
import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import known_type, type_groups

TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE = "topology.kubernetes.io/zone"
LAYER = "topology.k8s.aws/network-node-layer-%d"
ULTRASERVER = "topology.k8s.aws/ultraserver-id"  # HyperPod sets it
DEVICES = {"nvidia.com/gpu": "gpus", "aws.amazon.com/neuron": "neuron_devices", "vpc.amazonaws.com/efa": "efa_devices"}


class KubernetesError(ValueError):
    """The cluster's answer cannot be read; the text is one sentence for the user."""


def nodes_of(text):
    """The items of a node list."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise KubernetesError("kubectl printed no JSON (%s) but %r; look at the kubeconfig." % (error, text.strip()[:80])) from error
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise KubernetesError("kubectl printed JSON without a list of nodes; does the context lead to a cluster?")
    return items


def host_of(node):
    """One node."""
    labels = node["metadata"].get("labels") or {}
    status = node.get("status") or {}
    addresses = {each["type"]: each["address"] for each in status.get("addresses") or []}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
    kind = next((labels[key] for key in TYPE if labels.get(key)), "")
    plain = kind[3:] if kind.startswith("ml.") else kind
    have = known_type(plain) or {}
    able = status.get("allocatable") or {}
    counts = {ours: int(able.get(theirs, 0)) if re.fullmatch(r"\d+", str(able.get(theirs, 0))) else 0 for theirs, ours in DEVICES.items()}
    layers = [labels[LAYER % layer] for layer in (1, 2, 3, 4) if labels.get(LAYER % layer)]
    ready = conditions.get("Ready") == "True"
    spec = node.get("spec") or {}
    variables = {
        "ansible_host": addresses.get("InternalIP") or node["metadata"]["name"],
        "instance_type": plain,
        "kubernetes_ready": ready,
        "kubernetes_schedulable": not spec.get("unschedulable", False),
        "kubernetes_conditions": conditions,
        "kubernetes_labels": labels,
        "kubernetes_taints": ["%s=%s:%s" % (each["key"], each.get("value", ""), each["effect"]) for each in spec.get("taints") or []],
        "kubernetes_version": (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
        **{"kubernetes_" + key: value for key, value in counts.items()},
    }
    instance = re.search(r"/(i-[0-9a-f]+)$", spec.get("providerID", ""))
    if instance:
        variables["instance_id"] = instance[1]
    if layers:
        variables["muster_network_nodes"] = layers
    if labels.get(ULTRASERVER):
        variables["muster_ultraserver"] = labels[ULTRASERVER]
    groups = ["kubernetes_ready" if ready else "kubernetes_not_ready"] + (
        [] if variables["kubernetes_schedulable"] else ["kubernetes_cordoned"]
    )
    groups += type_groups(plain, have.get("accelerator"), bool(have.get("efa") and counts["efa_devices"])) if plain else []
    groups += ["muster_gpu"] if counts["gpus"] and "muster_gpu" not in groups else []
    groups += ["muster_az_" + labels[ZONE]] if labels.get(ZONE) else []
    groups += ["muster_layer%d_%s" % item for item in enumerate(layers, 1)]
    groups += ["muster_ultraserver_" + labels[ULTRASERVER]] if labels.get(ULTRASERVER) else []
    # A condition that is true and is not Ready says that something is wrong.
    groups += ["kubernetes_condition_" + key for key, value in sorted(conditions.items()) if key != "Ready" and value == "True"]
    return {"name": node["metadata"]["name"], "variables": variables, "groups": groups}


def hosts_of(text):
    return [host_of(node) for node in nodes_of(text)]
