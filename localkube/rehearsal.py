# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Nodes that rehearse an instance type: what each of them carries, and the stand-in of the type's device plugins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import rehearsed_type
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import node
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import POD_HUGE_PAGES
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.facts import STAND_IN_LABEL, TYPE_LABEL
from localkube import LocalKubeError
from localkube.programs import VERSIONS

PLUGIN = "muster-rehearsal-device-plugin"
IMAGE = f"localhost/{PLUGIN}:{VERSIONS['device-plugin']}"
# Which files of NVIDIA's driver a container gets beside those of its GPUs.
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
# Where the stand-ins and the program muster-health go. A node sees the files of this machine, so they need a layer of its own.
COVERED = ("/etc", "/usr/bin", "/usr/lib", "/usr/local", "/dev")
COVER = """\
set -e
[ ! -e /run/over/rehearsal ] || exit 0
mkdir -p /run/over/rehearsal/dev
mount --rbind /dev /run/over/rehearsal/dev
# Otherwise what is mounted on the one shows in the other.
mount --make-rprivate /run/over/rehearsal/dev
for folder in "$@"; do
  over=/run/over/rehearsal/layers$folder
  mkdir -p "$over/upper" "$over/work"
  mount -t overlay overlay -o "lowerdir=$folder,upperdir=$over/upper,workdir=$over/work" "$folder"
done
for each in pts shm mqueue; do
  [ ! -d "/run/over/rehearsal/dev/$each" ] || mount --rbind "/run/over/rehearsal/dev/$each" "/dev/$each"
done
"""


def cover() -> list[str]:
    """The command that gives a node layers of its own over the folders that a rehearsal changes."""
    return ["sh", "-c", COVER, "cover", *COVERED]


def checked(kind: str) -> str:
    """The type that the nodes can rehearse, "" for none. Raises LocalKubeError."""
    try:
        return rehearsed_type(kind, "node1")
    except NodeContainerError as error:
        raise LocalKubeError(str(error)) from None


def labels(kind: str) -> dict[str, str]:
    """The labels by which EKS says the type of a node, and the one by which Muster knows a stand-in."""
    return {TYPE_LABEL: kind, "beta.kubernetes.io/instance-type": kind, STAND_IN_LABEL: PLUGIN} if kind else {}


def write(kind: str, folder: Path) -> None:
    """What the nodes read at their start."""
    folder.mkdir()
    for name, content in rehearsal.node_files(kind).items():
        (folder / name).write_bytes(content)
    (folder / "device-plugin.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifest(kind)}, indent=1))
    pages = int(POD_HUGE_PAGES.removesuffix("Mi")) // 2 if rehearsal.rehearsal(kind)["efa"] else 0
    (folder / "huge-pages").write_text(f"{pages}\n")
    (folder / "allocatable.json").write_text(json.dumps(allocatable(kind)))


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """{extended resource: its devices} of a type, as localkube/build/device-plugin reads them."""
    have = rehearsal.rehearsal(kind)
    gpus = {f"nvidia{each['index']}": f"/dev/nvidia{each['index']}" for each in have["gpus"]}
    neuron = {f"neuron{each['index']}": f"/dev/neuron{each['index']}" for each in have["neuron"]}
    efa = {each["name"]: f"/dev/infiniband/uverbs{each['index']}" for each in have["efa"]}
    found = {
        "nvidia.com/gpu": {"devices": gpus, "control": [*CONTROL], "variable": "NVIDIA_VISIBLE_DEVICES"},
        "aws.amazon.com/neuron": {"devices": neuron, "control": [], "variable": "AWS_NEURON_VISIBLE_DEVICES"},
        "vpc.amazonaws.com/efa": {"devices": efa, "control": [], "variable": ""},
    }
    return {title: each for title, each in found.items() if each["devices"]}


def allocatable(kind: str) -> dict[str, str]:
    """What a node says of each resource as soon as the kubelet knows all devices."""
    return {title: str(len(each["devices"])) for title, each in resources(kind).items()}


def manifest(kind: str) -> list[dict[str, Any]]:
    """The stand-in as people know a device plugin: a pod on each node."""
    about = {
        "muster/rehearses": kind,
        "muster/rehearsal": f"a stand-in for the device plugins of {kind}; no hardware is behind its devices",
    }
    named = {"name": PLUGIN, "namespace": "kube-system", "annotations": about}
    at = {"plugins": "/var/lib/kubelet/device-plugins", "dev": "/dev", "faults": os.path.dirname(node.FAULTS)}
    seen = {"plugins": at["plugins"], "dev": "/node/dev", "faults": "/node/etc", "devices": "/etc/muster-rehearsal"}
    pod = {
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "stand-in",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "volumeMounts": [{"name": name, "mountPath": path, "readOnly": name != "plugins"} for name, path in seen.items()],
            }
        ],
        "volumes": [
            *({"name": name, "hostPath": {"path": path}} for name, path in at.items()),
            {"name": "devices", "configMap": {"name": PLUGIN}},
        ],
    }
    text = json.dumps({"instance_type": kind, "resources": resources(kind)}, indent=1)
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": {"devices.json": text}},
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": named,
            "spec": {
                "selector": {"matchLabels": {"app": PLUGIN}},
                "template": {"metadata": {"labels": {"app": PLUGIN}, "annotations": about}, "spec": pod},
            },
        },
    ]
