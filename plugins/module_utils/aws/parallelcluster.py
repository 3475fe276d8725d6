# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of AWS ParallelCluster 3.16: the configuration of a cluster, and of an image."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError, accelerated
from ansible_collections.muster.fleet.plugins.module_utils.aws.values import partition

SYSTEM = "ubuntu2404"
# System -> the image of EC2 Image Builder that build-image begins with.
PARENTS = {"alinux2023": "amazon-linux-2023", "ubuntu2204": "ubuntu-server-22-lts", "ubuntu2404": "ubuntu-server-24-lts"}
CAPACITY = {"on-demand": "ONDEMAND", "reservation": "ONDEMAND", "spot": "SPOT", "capacity-block": "CAPACITY_BLOCK"}
# ParallelCluster has no driver for an UltraServer's nodes on these.
NOT_GB200 = ("rhel8", "rhel9", "rocky8")
MOST = 50  # queues


def files(cluster, values):
    """{file name: document} for `pcluster create-cluster` and `pcluster build-image`."""
    _check(cluster)
    found = {"parallelcluster.yaml": configuration(cluster, values)}
    if _system(cluster) in PARENTS:
        found["build-image.yaml"] = build_image(cluster)
    return found


def configuration(cluster, values):
    """The configuration of the cluster."""
    groups = {role: [each for each in cluster["nodes"] if each["role"] == role] for role in ("controller", "login", "compute")}
    found: dict[str, Any] = {
        "Region": cluster["region"],
        "Image": {"Os": _system(cluster), **_image(cluster)},
        "HeadNode": _head(cluster, groups["controller"][0], values),
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmSettings": _slurm(cluster),
            "SlurmQueues": [_queue(cluster, each, values) for each in groups["compute"]],
        },
    }
    if groups["login"]:
        found["LoginNodes"] = {"Pools": [_login(cluster, each, values) for each in groups["login"]]}
    storage = _storage(cluster, values)
    if storage:
        found["SharedStorage"] = storage
    found["Tags"] = [{"Key": "muster:cluster", "Value": cluster["name"]}]
    return found


def build_image(cluster):
    """The configuration of an image. With setup.collection it installs Muster's components by install-image.sh from the bucket."""
    arch = architecture(_controller(cluster)["type"])
    parent = "arn:%s:imagebuilder:%s:aws:image/%s-%s/x.x.x"
    suffix = {"x86_64": "x86", "arm64": "arm64"}[arch]
    build: dict[str, Any] = {
        "InstanceType": {"x86_64": "m6i.4xlarge", "arm64": "m7g.4xlarge"}[arch],
        "ParentImage": parent % (partition(cluster["region"]), cluster["region"], PARENTS[_system(cluster)], suffix),
        "UpdateOsPackages": {"Enabled": False},
        "Imds": {"ImdsSupport": "v2.0"},
        "Installation": {"NvidiaSoftware": {"Enabled": _nvidia(cluster)}, "LustreClient": {"Enabled": True}},
    }
    if cluster["setup"]["collection"]:
        build["Components"] = [{"Type": "script", "Value": script(cluster, "install-image.sh")}]
        build["Iam"] = {"AdditionalIamPolicies": [{"Policy": _policy(cluster, "AmazonS3ReadOnlyAccess")}]}
    return {"Region": cluster["region"], "Image": {"RootVolume": {"Size": 200, "Encrypted": True}}, "Build": build}


def script(cluster, name):
    """Where create.sh copies a script, and nodes find it."""
    return "s3://%s/muster/%s/%s" % (cluster["storage"]["bucket"], cluster["name"], name)


def architecture(kind):
    """x86_64 or arm64. Types without accelerators follow EC2's names, where a g after the generation is Graviton."""
    have = accelerated(kind)
    if have:
        return have["arch"]
    return "arm64" if re.match(r"[a-z]+\d+[a-z]*g[a-z]*\.", kind) else "x86_64"


def _check(cluster):
    where = "Cluster %s" % cluster["name"]
    controller = _controller(cluster)
    if not cluster["storage"]["bucket"]:
        raise ClusterError("%s has no storage.bucket, from which ParallelCluster's nodes take their scripts; add one." % where)
    if controller["max"] != 1 or controller["market"] != "on-demand":
        message = "%s: node group %s must be one node of the market on-demand, as ParallelCluster has one head node."
        raise ClusterError(message % (where, controller["name"]))
    version = cluster["versions"].get("parallelcluster", "3.16")
    if not re.match(r"3\.16(\.|$)", version):
        raise ClusterError("%s: versions.parallelcluster is %s, and Muster renders files of 3.16; write '3.16'." % (where, version))
    queues = [each for each in cluster["nodes"] if each["role"] == "compute"]
    if len(queues) > MOST:
        raise ClusterError("%s has %d node groups of the role compute, and ParallelCluster takes %d queues." % (where, len(queues), MOST))
    for group in cluster["nodes"]:
        _check_group(cluster, group, "%s: node group %s" % (where, group["name"]))


def _check_group(cluster, group, what):
    if group["role"] == "login" and (group["market"] != "on-demand" or group["min"] != group["max"]):
        raise ClusterError("%s: ParallelCluster's login nodes are a fixed number on the market on-demand; give count alone." % what)
    arch, head = architecture(group["type"]), architecture(_controller(cluster)["type"])
    if arch != head:
        message = "%s: %s is %s and the controller's %s is %s, and ParallelCluster has one architecture; change a type."
        raise ClusterError(message % (what, group["type"], arch, _controller(cluster)["type"], head))
    if group["market"] == "capacity-block" and group["min"] != group["max"]:
        raise ClusterError("%s: ParallelCluster keeps all nodes of a capacity block up; set min and max to one number." % what)
    if group["type"].startswith("p6e-gb200.") and _system(cluster) in NOT_GB200:
        raise ClusterError("%s: ParallelCluster has no %s for %s; take another os." % (what, _system(cluster), group["type"]))


def _controller(cluster):
    return next(each for each in cluster["nodes"] if each["role"] == "controller")


def _system(cluster):
    return cluster["os"] or SYSTEM


def _nvidia(cluster):
    return any((accelerated(each["type"]) or {}).get("accelerator") == "nvidia" for each in cluster["nodes"])


def _image(cluster):
    return {"CustomAmi": cluster["image"]} if cluster["image"] else {}


def _policy(cluster, name):
    return "arn:%s:iam::aws:policy/%s" % (partition(cluster["region"]), name)


def _ssh(cluster):
    return {"Ssh": {"KeyName": cluster["key_pair"]}} if cluster["key_pair"] else {}


def _iam(cluster, bucket=True):
    """Session Manager, and the scripts and data of the bucket."""
    found: dict[str, Any] = {"AdditionalIamPolicies": [{"Policy": _policy(cluster, "AmazonSSMManagedInstanceCore")}]}
    if bucket:
        found["S3Access"] = [{"BucketName": cluster["storage"]["bucket"], "EnableWriteAccess": True}]
    return found


def _actions(cluster, group):
    return {"OnNodeConfigured": {"Script": script(cluster, "boot-%s.sh" % group["name"])}}


def _head(cluster, group, values):
    subnet = cluster["vpc"]["public_subnet"] or values.subnets()[0]
    return {
        "InstanceType": group["type"],
        "Networking": {"SubnetId": subnet, "AdditionalSecurityGroups": [values.security_group()]},
        **_ssh(cluster),
        "LocalStorage": {"RootVolume": {"Size": group["disk"], "VolumeType": "gp3", "Encrypted": True}},
        "CustomActions": _actions(cluster, group),
        "Iam": _iam(cluster),
        "Imds": {"Secured": True},
    }


def _login(cluster, group, values):
    # The role of login nodes has no S3Access, so that they run no script of the bucket.
    return {
        "Name": group["name"],
        "Count": group["count"],
        "InstanceType": group["type"],
        "Networking": {"SubnetIds": values.subnets()[:1], "AdditionalSecurityGroups": [values.security_group()]},
        **_ssh(cluster),
        "Iam": _iam(cluster, bucket=False),
    }


def _slurm(cluster):
    found: dict[str, Any] = {"ScaledownIdletime": 10, "QueueUpdateStrategy": "DRAIN"}
    accounting = cluster["accounting"]
    if accounting:
        database = {"Uri": accounting["uri"], "UserName": accounting["user"], "PasswordSecretArn": accounting["secret"]}
        found["Database"] = {**database, **({"DatabaseName": accounting["database"]} if accounting["database"] else {})}
    return found


def _queue(cluster, group, values):
    have = accelerated(group["type"])
    efa = bool(have and have["efa"])
    block = group["market"] == "capacity-block"
    # Nodes with EFA are in one zone. All nodes of a reservation or block are in its zone, the first.
    one = efa or bool(group["reservation"])
    network: dict[str, Any] = {
        "SubnetIds": values.subnets()[: 1 if one else None],
        "AdditionalSecurityGroups": [values.security_group()],
    }
    # A queue with EFA must say whether it has a placement group; beside a block one is refused.
    if not block and (efa or group["placement_group"]):
        network["PlacementGroup"] = {"Enabled": group["placement_group"]}
    nodes: dict[str, Any] = {
        "Name": group["name"],
        "InstanceType": group["type"],
        "MinCount": group["min"],
        "MaxCount": group["max"],
    }
    if efa:
        nodes["Efa"] = {"Enabled": True}
    if group["reservation"]:
        nodes["CapacityReservationTarget"] = {"CapacityReservationId": group["reservation"]}
    found = {
        "Name": group["name"],
        "CapacityType": CAPACITY[group["market"]],
        "Networking": network,
        "ComputeSettings": {"LocalStorage": {"RootVolume": {"Size": group["disk"], "VolumeType": "gp3", "Encrypted": True}}},
        "CustomActions": _actions(cluster, group),
        "Iam": _iam(cluster),
        "ComputeResources": [nodes],
    }
    if have and have["accelerator"] == "nvidia":
        found["HealthChecks"] = {"Gpu": {"Enabled": True}}
    return found


def _storage(cluster, values):
    found = []
    if cluster["storage"]["openzfs"]:
        volume = {"VolumeId": values.openzfs("FSxOpenZFSRootVolumeId")}
        found.append({"Name": "home", "MountDir": "/home", "StorageType": "FsxOpenZfs", "FsxOpenZfsSettings": volume})
    if cluster["storage"]["lustre"]:
        file_system = {"FileSystemId": values.lustre("Id")}
        found.append({"Name": "fsx", "MountDir": "/fsx", "StorageType": "FsxLustre", "FsxLustreSettings": file_system})
    return found
