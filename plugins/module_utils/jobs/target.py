# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a job runs: cluster, queue, namespace, role, region, instance type. It comes from the inventory and never from the document."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import KUBERNETES, JobError, check_kind, check_secrets

# Field -> default; its type is that of the default.
COMMON: dict[str, Any] = {"instance_type": "", "image": "", "stack": {}, "secrets": {}}
KUBERNETES_FIELDS: dict[str, Any] = {
    "kubeconfig": "",
    "context": "",
    "namespace": "default",
    "queue": "",
    "claim": "fsx-claim",
    "service_account": "",
    "rehearsal": False,  # the nodes are of localkube and have the devices of instance_type, with CPUs and memory of this machine
}
TARGETS: dict[str, dict[str, Any]] = {
    "slurm": {},
    "pytorchjob": {**KUBERNETES_FIELDS, "etcd": ""},
    "trainjob": {**KUBERNETES_FIELDS, "runtime": "torch-distributed"},
    "mpijob": KUBERNETES_FIELDS,
    "jobset": KUBERNETES_FIELDS,
    "batch": {"region": "", "queue": "", "job_role": "", "execution_role": "", "checkpoints": "/fsx/muster/checkpoints", "memory_mib": 0},
    "sagemaker": {"region": "", "role": "", "output": "", "checkpoints": "", "subnets": [], "security_groups": [], "volume_gb": 100},
    "torchrun": {"hosts": [], "user": "muster", "folder": "/var/lib/muster/jobs"},
}
# What a launcher cannot do without.
NEEDED = {"batch": ("queue",), "sagemaker": ("role", "output", "instance_type"), "torchrun": ("hosts",)}
# Where a container sees the volume of checkpoints.
CHECKPOINTS_AT = {**dict.fromkeys(KUBERNETES, "/checkpoints"), "batch": "/checkpoints", "sagemaker": "/opt/ml/checkpoints"}
TYPES = {str: "text", bool: "true or false", int: "a whole number", list: "a list", dict: "a mapping"}


def load(kind, data):
    """The complete, checked target of a launcher from the mapping `data`, such as the variable muster_target.

    Beside its fields it has `have`, the catalogue's entry of its instance type or None for a type without accelerators, and
    `checkpoints_at`, the folder of the checkpoints in a container. Raises JobError with one sentence.
    """
    check_kind(kind, "The launcher")
    fields = {**COMMON, **TARGETS[kind]}
    for field in data:
        if field not in fields:
            raise JobError("muster_target has the unknown field %s for %s; %s" % (field, kind, nearest(field, fields)))
    target: dict[str, Any] = {}
    for field, default in fields.items():
        value = data.get(field)
        value = copy.deepcopy(default) if value is None else value
        if not isinstance(value, type(default)) or isinstance(value, bool) != isinstance(default, bool):
            raise JobError("muster_target.%s must be %s, not %r." % (field, TYPES[type(default)], value))
        target[field] = value
    for field in NEEDED.get(kind, ()):
        if not target[field]:
            raise JobError("muster_target has no %s, which %s needs; set it in the inventory." % (field, kind))
    check_secrets(target["secrets"], "muster_target")
    try:
        plain = target["instance_type"].replace("ml.", "", 1)
        target["have"] = catalogue.instance_type(plain) if catalogue.described(plain) else _without_accelerators(plain)
    except catalogue.CatalogueError as error:
        raise JobError(str(error)) from error
    target["checkpoints_at"] = CHECKPOINTS_AT.get(kind, "")
    return target


def _without_accelerators(name):
    """None for a type such as c7i.large; raises CatalogueError for one of a family whose types have accelerators."""
    if name and any(known.split(".")[0] == name.split(".")[0] for known in catalogue.names()):
        catalogue.instance_type(name)


def gpus_of(document, target):
    """How many GPUs or Neuron devices a job gets on each node. Raises JobError when the type has fewer than the document asks for."""
    kind = target["have"]
    have = kind["gpus"] if kind else 0
    wanted = document["gpus_per_node"]
    if kind and kind["accelerator"] == "neuron" and document["procs_per_node"] > kind["neuron_cores"]:
        raise JobError(
            "Job %s wants %d ranks on each node, and %s has %d Neuron cores; lower procs_per_node."
            % (document["name"], document["procs_per_node"], kind["name"], kind["neuron_cores"])
        )
    if wanted == "all":
        return have
    if wanted > have:
        raise JobError(
            "Job %s wants %d GPUs on each node, and %s has %d; lower gpus_per_node or change muster_target.instance_type."
            % (document["name"], wanted, target["instance_type"] or "a target without instance_type", have)
        )
    return wanted


def image_of(document, target):
    """The image of a job that runs in containers: its own, else the target's. Raises JobError without one."""
    image = document["image"] or target["image"]
    if not image:
        kind = document["launcher"]["kind"]
        raise JobError("Job %s has no image, and %s runs containers; give it one, or set muster_target.image." % (document["name"], kind))
    return image


def mounts_of(document):
    """[(path on the node, path in the container, read only)] of the document's mounts, `SOURCE:TARGET` or `SOURCE:TARGET:ro`."""
    out = []
    for text in document["mounts"]:
        parts = str(text).split(":")
        if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]) or parts[2:] not in ([], ["ro"], ["rw"]):
            raise JobError(
                "Job %s: the mount %s must be /PATH/ON/NODE:/PATH/IN/CONTAINER, with :ro when read only." % (document["name"], text)
            )
        out.append((parts[0], parts[1], parts[2:] == ["ro"]))
    return out
