# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster has and lets one do, for the checks of role kubernetes."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import ApiError, said, waits_for

TYPE_LABEL = "node.kubernetes.io/instance-type"
STAND_IN_LABEL = "muster/stand-in"
LOG_SECONDS = 5
DEVICES = {"gpu": ("nvidia.com/gpu", "aws.amazon.com/neuron"), "efa": ("vpc.amazonaws.com/efa",)}
# Operator -> a job that its webhook must refuse, and a word of its own reason.
WRONG = {
    "training-operator": (
        "/apis/kubeflow.org/v1/namespaces/%s/pytorchjobs",
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "muster-probe"},
            "spec": {
                "pytorchReplicaSpecs": {
                    "Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "other", "image": "none"}]}}}
                }
            },
        },
    ),
    "jobset": (
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/%s/jobsets",
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "muster-probe"},
            "spec": {
                "successPolicy": {"operator": "All", "targetReplicatedJobs": ["absent"]},
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": "none"}]}}}
                        },
                    }
                ],
            },
        },
    ),
    "trainer": (
        "/apis/trainer.kubeflow.org/v1alpha1/namespaces/%s/trainjobs",
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "muster-probe"},
            "spec": {"runtimeRef": {"name": "muster-absent"}},
        },
    ),
}


def nodes(items):
    """[{name, type, ready, address, os, kernel, arch, cpus, memory_mib, gpu, efa, stand_in}] of the API's nodes, by name."""
    return sorted(map(node, items), key=lambda each: each["name"])


def node(found):
    status, labels = found["status"], found["metadata"].get("labels", {})
    info, allocatable = status.get("nodeInfo", {}), status.get("allocatable", {})
    counts = {title: sum(int(allocatable.get(name, 0)) for name in names) for title, names in DEVICES.items()}
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    kind = labels.get(TYPE_LABEL, "")
    addresses = [each["address"] for each in status.get("addresses", []) if each["type"] == "InternalIP"]
    return {
        "name": found["metadata"]["name"],
        # k3s and its like write their own name there.
        "type": kind if "." in kind else "",
        "ready": conditions.get("Ready") == "True" and not found.get("spec", {}).get("unschedulable", False),
        "address": addresses[0] if addresses else "",
        "os": info.get("osImage", ""),
        "kernel": info.get("kernelVersion", ""),
        "arch": info.get("architecture", ""),
        "cpus": int(float(quantity(allocatable.get("cpu", "0")))),
        "memory_mib": int(quantity(allocatable.get("memory", "0"))) >> 20,
        **counts,
        "stand_in": labels.get(STAND_IN_LABEL, ""),
    }


UNITS = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def quantity(text):
    """A quantity of Kubernetes as a number: 2, 500m, 8Gi."""
    found = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(text))
    if not found or found[2] not in UNITS:
        raise ApiError("The API server says the quantity %s, which Muster cannot read." % text)
    return float(found[1]) * UNITS[found[2]]


def lacking(found, device):
    """What is wrong with the devices of nodes, one sentence; "" when each has as many as its type. device: gpu or efa."""
    wrong = []
    for each in found:
        if not each["type"] or not catalogue.described(each["type"]):
            continue
        have = catalogue.instance_type(each["type"])
        wanted = have["gpus"] if device == "gpu" else have["efa_cards"]
        if each[device] != wanted:
            wrong.append("%s has %d of %d" % (each["name"], each[device], wanted))
    return "; ".join(wrong)


def expects(found, device):
    """Whether some node's type has such devices."""
    types = [catalogue.instance_type(each["type"]) for each in found if each["type"] and catalogue.described(each["type"])]
    return any(each["gpus"] if device == "gpu" else each["efa_cards"] for each in types)


def webhook(objects, operator, namespace):
    """What an operator's webhook says of a wrong job: `refused`, or why it did not refuse it."""
    path, wrong = WRONG[operator]
    status, answer = objects.ask("POST", path % namespace, {"dryRun": "All"}, wrong)
    if status < 300:
        return "it took a wrong job"
    text = said(status, answer)
    return "refused" if "admission webhook" in text and "denied" in text else text


def claim(objects, namespace, name, seconds):
    """The phase of a claim. A new one is Pending until a controller has bound it, so wait up to `seconds` for that.

    "WaitForFirstConsumer" when its storage class binds it only for a pod, "it is not there" for none.
    """
    until = objects.clock() + seconds
    while True:
        found = objects.get("/api/v1/namespaces/%s/persistentvolumeclaims/%s" % (namespace, name))
        if not found:
            return "it is not there"
        phase = found.get("status", {}).get("phase", "Pending")
        if phase != "Pending":
            return phase
        kind = found.get("spec", {}).get("storageClassName")
        if (
            kind
            and (objects.get("/apis/storage.k8s.io/v1/storageclasses/%s" % kind) or {}).get("volumeBindingMode") == "WaitForFirstConsumer"
        ):
            return "WaitForFirstConsumer"
        if objects.clock() >= until:
            return phase
        objects.sleep(0.5)


def output_of(objects, pod, seconds, most=1 << 20):
    """(whether a pod succeeded, the first `most` bytes of its log or why there is none); the pod is gone afterwards.

    The end of a pod may be known before its log can be read, so an empty log is read again for some seconds.
    """
    path = objects.path(pod)
    objects.remove([pod])
    until = objects.clock() + seconds
    while objects.get(path):
        if objects.clock() >= until:
            return False, "the pod of an earlier call does not end"
        objects.sleep(0.5)
    objects.apply([pod])
    try:
        while True:
            found = objects.get(path)
            phase = (found or {}).get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                return phase == "Succeeded", log_of(objects, path, most)
            if objects.clock() >= until:
                return False, "its pod does not run: %s" % (waits_for(found) if found else "it was deleted")
            objects.sleep(0.5)
    finally:
        objects.remove([pod])


def log_of(objects, path, most):
    """The first `most` bytes of an ended pod's log; "" when it stays empty for LOG_SECONDS."""
    until = objects.clock() + LOG_SECONDS
    while True:
        _status, text = objects.ask("GET", path + "/log", {"limitBytes": most})
        if (isinstance(text, str) and text) or objects.clock() >= until:
            return text if isinstance(text, str) else ""
        objects.sleep(0.5)


def resolved(objects, namespace, image, name, seconds=60):
    """What a pod finds for a name of the cluster: its address, or why there is none."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "muster-probe-dns", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "probe", "image": image, "command": ["getent", "hosts", name]}],
        },
    }
    succeeded, text = output_of(objects, pod, seconds)
    words = text.split() if succeeded else []
    return words[0] if words else "a pod does not find %s%s" % (name, ": " + text.strip() if text.strip() else "")
