# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a cluster on EKS: the ClusterConfig of eksctl, the claims of FSx for Lustre, and the autoscaler."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws import autoscaler, plan
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError, accelerated
from ansible_collections.muster.fleet.plugins.module_utils.aws.values import partition
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

VERSION = "1.33"
VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
SYSTEM: dict[str, Any] = {"name": "system", "type": "m6i.xlarge", "count": 2}
NAT = {"one": "Single", "zone": "HighlyAvailable", "none": "Disable"}
RESOURCE = {"nvidia": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}
CLAIM = "fsx-claim"  # which kubernetes/ and the launchers mount
TEMPLATE_TAG = "k8s.io/cluster-autoscaler/node-template/"
# The instance stores of a node become one disk for containers and empty volumes.
NODE_CONFIG = """apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""


def files(cluster, values):
    """{file name: document} for `eksctl create cluster` and, with Lustre, `kubectl apply`."""
    check(cluster)
    groups = [_managed(cluster, each) if each["managed"] else _unmanaged(cluster, each) for each in cluster["nodes"]]
    found = {"eksctl.yaml": configuration(cluster, values, list(zip(cluster["nodes"], groups))), **claims(cluster, values)}
    if autoscaler.needed(cluster["nodes"]):
        found["eksctl.yaml"]["iam"]["serviceAccounts"] = [autoscaler.service_account()]
        found["autoscaler.yaml"] = autoscaler.manifests(cluster["name"], cluster["region"], version_of(cluster))
    return found


def version_of(cluster):
    """The version of Kubernetes."""
    return cluster["versions"].get("kubernetes", VERSION)


def configuration(cluster, values, groups=()):
    """The ClusterConfig. groups: pairs of a node group of the document and its form for eksctl."""
    found: dict[str, Any] = {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": cluster["name"],
            "region": cluster["region"],
            "version": version_of(cluster),
            "tags": {"muster:cluster": cluster["name"]},
        },
        # HyperPod asks for one of the two modes with API.
        "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"},
        "iam": {"withOIDC": True},
    }
    if plan.own_network(cluster):
        found["availabilityZones"] = list(cluster["zones"])
        found["vpc"] = {"cidr": cluster["vpc"]["cidr"], "nat": {"gateway": NAT[cluster["vpc"]["nat"]]}}
    else:
        subnets = dict(zip(cluster["zones"], values.subnets()))
        found["vpc"] = {"id": values.vpc(), "subnets": {"private": {zone: {"id": each} for zone, each in subnets.items()}}}
    found["vpc"]["clusterEndpoints"] = {"privateAccess": True, "publicAccess": True}
    found["addons"] = _addons(cluster)
    managed = [each for group, each in groups if group["managed"]]
    # Pods of the system run on nodes without accelerators, because those with some are tainted.
    if all(accelerated(each["type"]) for each in cluster["nodes"]) or not groups:
        managed.insert(0, _system())
    found["managedNodeGroups"] = managed
    unmanaged = [each for group, each in groups if not group["managed"]]
    if unmanaged:
        found["nodeGroups"] = unmanaged
    return {key: value for key, value in found.items() if value}


def claims(cluster, values):
    """{file name: [manifests]} of the claim fsx-claim: on the file system that the fsx stack makes, or on one that the driver makes."""
    lustre = cluster["storage"]["lustre"]
    if not lustre:
        return {}
    found = {"claim-dynamic.yaml": [_storage_class(cluster, values), _claim(lustre["gib"], "fsx-lustre")]}
    if not plan.own_network(cluster):
        found["claim-static.yaml"] = [_volume(values, lustre["gib"]), _claim(lustre["gib"], "", volumeName="fsx-lustre")]
    return found


def check(cluster):
    """Refuse what EKS or eksctl cannot do."""
    where = "Cluster %s" % cluster["name"]
    version = version_of(cluster)
    if version not in VERSIONS:
        raise ClusterError("%s: versions.kubernetes %s is not one of EKS; take %s." % (where, version, ", ".join(VERSIONS)))
    if cluster["storage"]["openzfs"]:
        raise ClusterError("%s: storage.openzfs is for home folders, which Kubernetes has not; remove it, or take lustre." % where)
    if plan.own_network(cluster) and cluster["storage"]["lustre"] and cluster["storage"]["lustre"]["repository"]:
        message = "%s: storage.lustre.repository needs a file system of a stack, in a VPC that is there; give vpc.stack or vpc.id."
        raise ClusterError(message % where)
    if plan.own_network(cluster) and cluster["vpc"]["nat"] == "none":
        raise ClusterError("%s: nodes in the VPC that eksctl makes need NAT; set vpc.nat to one or zone, or give vpc.stack." % where)
    if plan.own_network(cluster) and cluster["vpc"]["endpoints"]:
        raise ClusterError("%s: eksctl makes no interface endpoints; remove vpc.endpoints, or give vpc.stack." % where)
    if cluster["kind"] == "eks":
        for group in cluster["nodes"]:
            _check_group(group, "%s: node group %s" % (where, group["name"]))


def _check_group(group, what):
    have = accelerated(group["type"])
    if have and group["name"] == SYSTEM["name"]:
        raise ClusterError("%s: this is the name of the group for pods of the system; rename it." % what)
    # eksctl makes an interface of EFA on each network card, the first one included.
    if have and have["efa"] and not all(each["efa"] for each in have["network_cards"]):
        raise ClusterError("%s: eksctl puts EFA on card 0 of %s, which carries ENA only; take hyperpod-eks or pcs." % (what, group["type"]))


def _system():
    return {
        "name": SYSTEM["name"],
        "instanceType": SYSTEM["type"],
        "minSize": 1,
        "desiredCapacity": SYSTEM["count"],
        "maxSize": SYSTEM["count"] + 1,
        "privateNetworking": True,
        "volumeSize": 100,
        "volumeEncrypted": True,
        "labels": {"muster.fleet/group": SYSTEM["name"]},
    }


def _addons(cluster):
    names = ["vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "eks-node-monitoring-agent"]
    found: list[dict[str, Any]] = [{"name": each} for each in names]
    if cluster["storage"]["lustre"]:
        policy = "arn:%s:iam::aws:policy/AmazonFSxFullAccess" % partition(cluster["region"])
        found.append({"name": "aws-fsx-csi-driver", "attachPolicyARNs": [policy]})
    return found


def _group(cluster, group):
    """What managed and unmanaged groups share."""
    have = accelerated(group["type"])
    found: dict[str, Any] = {"name": group["name"]}
    found.update({"minSize": group["min"], "desiredCapacity": group["count"], "maxSize": group["max"]})
    found.update({"privateNetworking": True, "amiFamily": "AmazonLinux2023"})
    if have and cluster["image"]:
        found["ami"] = cluster["image"]
    found.update({"volumeSize": group["disk"], "volumeType": "gp3", "volumeEncrypted": True})
    found["labels"] = {"muster.fleet/group": group["name"]}
    if have and have["efa"]:
        found["efaEnabled"] = True
    if (have and have["efa"]) or group["reservation"]:
        # Nodes with EFA are in one zone, and so is a reservation.
        found["availabilityZones"] = [cluster["zones"][0]]
    if have and have["nvme"]["count"]:
        found["overrideBootstrapCommand"] = NODE_CONFIG
    if group["reservation"]:
        found["capacityReservation"] = {"capacityReservationTarget": {"capacityReservationID": group["reservation"]}}
    if group["market"] == "capacity-block":
        found["instanceMarketOptions"] = {"marketType": "capacity-block"}
    if have:
        limits = catalogue.k8s_resources(group["type"])["limits"]
        found["taints"] = [{"key": RESOURCE[have["accelerator"]], "value": "true", "effect": "NoSchedule"}]
        # The autoscaler learns from these what a node has while the group has none.
        devices = {name: str(number) for name, number in limits.items() if name in (*RESOURCE.values(), "vpc.amazonaws.com/efa")}
        found["tags"] = {TEMPLATE_TAG + "resources/" + name: number for name, number in devices.items()}
    found["propagateASGTags"] = True
    return found


def _managed(cluster, group):
    found = {**_group(cluster, group), "instanceType": group["type"], "nodeRepairConfig": {"enabled": cluster["setup"]["repair"]}}
    if group["market"] == "spot":
        found["spot"] = True
    return found


def _unmanaged(cluster, group):
    found = _group(cluster, group)
    if autoscaler.needed([group]):
        found["tags"] = {**found.get("tags", {}), **autoscaler.discovery_tags(cluster["name"])}
    if group["market"] == "spot":
        return {
            **found,
            "instancesDistribution": {
                "instanceTypes": [group["type"]],
                "onDemandBaseCapacity": 0,
                "onDemandPercentageAboveBaseCapacity": 0,
                "spotAllocationStrategy": "capacity-optimized",
            },
        }
    return {**found, "instanceType": group["type"]}


def _storage_class(cluster, values):
    lustre = cluster["storage"]["lustre"]
    if plan.own_network(cluster):
        stack = "eksctl-%s-cluster" % cluster["name"]
        subnet = values.output("EKSCTL_SUBNET", stack, "SubnetsPrivate", 1)
        group = values.output("EKSCTL_SECURITY_GROUP", stack, "SharedNodeSecurityGroup")
    else:
        subnet, group = values.subnets()[0], values.security_group()
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "fsx-lustre"},
        "provisioner": "fsx.csi.aws.com",
        "parameters": {
            "subnetId": subnet,
            "securityGroupIds": group,
            "deploymentType": "PERSISTENT_2",
            "perUnitStorageThroughput": str(lustre["throughput"]),
            "dataCompressionType": "LZ4",
            "fileSystemTypeVersion": "2.15",
            **({"efaEnabled": "true", "metadataConfigurationMode": "AUTOMATIC"} if lustre["efa"] else {}),
        },
        "reclaimPolicy": "Retain",
        "mountOptions": ["flock"],
    }


def _claim(gib, storage_class, **more):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "%dGi" % gib}},
            **more,
        },
    }


def _volume(values, gib):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "fsx-lustre"},
        "spec": {
            "capacity": {"storage": "%dGi" % gib},
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": ["flock"],
            "csi": {
                "driver": "fsx.csi.aws.com",
                "volumeHandle": values.lustre("Id"),
                "volumeAttributes": {"dnsname": values.lustre("DNSname"), "mountname": values.lustre("Mountname")},
            },
        },
    }
