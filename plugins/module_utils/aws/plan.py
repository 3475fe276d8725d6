# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a cluster, in the order in which they are made, and the stacks of each."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws import template_batch, template_ec2, template_storage, template_vpc
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import KINDS, ClusterError
from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

CLUSTER_TAG, PART_TAG = "muster:cluster", "muster:part"
# The parts that roles make, each as stacks of CloudFormation.
MADE_HERE = ("vpc", "s3", "fsx", "batch", "ec2")
# Those whose stacks are nothing but data and what belongs to it.
DATA = ("s3", "fsx")
# The verb of a user -> the state to which roles bring their parts; "" for verbs that change nothing.
VERBS = {"preflight": "", "up": "present", "status": "", "cost": "", "down": "absent", "render": ""}
# The kinds whose files are rendered and never run -> the main file, and what the user types with it.
RENDERED = {
    "parallelcluster": ("parallelcluster.yaml", "pcluster create-cluster --cluster-name {name} --cluster-configuration {file}"),
    "pcs": ("{name}-pcs.template.json", "aws cloudformation deploy --stack-name {name}-pcs --template-file {file}"),
    "eks": ("eksctl.yaml", "eksctl create cluster -f {file}"),
    "hyperpod-slurm": ("create-cluster.json", "aws sagemaker create-cluster --region {region} --cli-input-json file://{file}"),
    "hyperpod-eks": ("create-cluster.json", "aws sagemaker create-cluster --region {region} --cli-input-json file://{file}"),
}


def state_of(verb):
    """The state for a verb; raises ClusterError that names the nearest."""
    if verb not in VERBS:
        raise ClusterError("The verb %s is unknown; %s" % (verb, nearest(verb, VERBS)))
    return VERBS[verb]


def own_network(cluster):
    """Whether the cluster's own tool makes its VPC, as eksctl does unless the document names one."""
    return cluster["kind"] == "eks" and not cluster["vpc"]["stack"] and not cluster["vpc"]["id"]


def before(cluster):
    """The names of the parts that come before the one with the nodes."""
    found = [] if cluster["vpc"]["stack"] or cluster["vpc"]["id"] or own_network(cluster) else ["vpc"]
    if cluster["storage"]["bucket"]:
        found.append("s3")
    if (cluster["storage"]["lustre"] or cluster["storage"]["openzfs"]) and not own_network(cluster):
        found.append("fsx")
    return found


def tool(cluster):
    """(file, command) by which a user makes a cluster whose files are rendered only. create.sh writes filled/, where ids are filled in."""
    file, command = RENDERED[cluster["kind"]]
    file = file.format(name=cluster["name"])
    path = file if cluster["kind"] == "pcs" else "filled/" + file
    return file, command.format(name=cluster["name"], region=cluster["region"], file=path)


def parts(cluster):
    """The names of a cluster's parts in order; role aws_NAME makes each. Raises ClusterError for a kind that no role makes."""
    if cluster["kind"] in RENDERED:
        file, command = tool(cluster)
        message = (
            "Muster renders the files of cluster %s, of kind %s, and never runs them: -e verb=render writes %s and create.sh into "
            "runs/cloud/%s, and create.sh fills in ids and runs `%s`."
        )
        raise ClusterError(message % (cluster["name"], cluster["kind"], file, cluster["name"], command))
    return [*before(cluster), KINDS[cluster["kind"]]]


def stack_name(cluster, part, group=""):
    return "-".join(each for each in (cluster["name"], part, group) if each)


def network_of(cluster):
    """Parameters by which a stack finds its network: the VPC stack, or the ids of a VPC that somebody else made."""
    vpc = cluster["vpc"]
    if vpc["id"]:
        return {"VPCStackParameter": "none", "SubnetId": vpc["subnets"][0], "SecurityGroupId": vpc["security_group"]}
    return {"VPCStackParameter": vpc["stack"] or stack_name(cluster, "vpc")}


def stacks(cluster, part):
    """[{name, part, template, parameters}] of a part; several for a part that has one for each node group."""
    found = {"vpc": _vpc, "s3": _s3, "fsx": _fsx, "batch": _batch, "ec2": _ec2}[part](cluster)
    return [{"part": part, **each} for each in found]


def _vpc(cluster):
    vpc, zones = cluster["vpc"], cluster["zones"]
    given: dict[str, Any] = {
        "VPCName": cluster["name"],
        "VPCCidr": vpc["cidr"],
        "CreateNatGateway": _yes(vpc["nat"] != "none"),
        "CreateInterfaceEndpoints": _yes(vpc["endpoints"]),
    }
    if len(zones) == 1:
        return [{"name": stack_name(cluster, "vpc"), "template": template_vpc.one_zone(), "parameters": {**given, "SubnetsAZ": zones[0]}}]
    given.update({"AvailabilityZones": ",".join(zones), "NumberOfAZs": str(len(zones)), "NatGatewayPerAZ": _yes(vpc["nat"] == "zone")})
    return [{"name": stack_name(cluster, "vpc"), "template": template_vpc.several_zones(), "parameters": given}]


def _s3(cluster):
    given = {"S3BucketName": cluster["storage"]["bucket"]}
    return [{"name": stack_name(cluster, "s3"), "template": template_storage.bucket(), "parameters": given}]


def _fsx(cluster):
    lustre, home, given = cluster["storage"]["lustre"], cluster["storage"]["openzfs"], network_of(cluster)
    if "SecurityGroupId" in given:
        given["ClientSecurityGroupId"] = given["SecurityGroupId"]
        given["SecurityGroupId"] = cluster["vpc"]["storage_security_group"]
    given.update({"CreateLustre": _yes(lustre), "CreateOpenZFS": _yes(home)})
    if lustre:
        given.update({"Capacity": str(lustre["gib"]), "PerUnitStorageThroughput": str(lustre["throughput"])})
        given.update({"EfaEnabled": _yes(lustre["efa"]), "DataRepository": lustre["repository"]})
    if home:
        given.update({"HomeCapacity": str(home["gib"]), "HomeThroughput": str(home["throughput"])})
    return [{"name": stack_name(cluster, "fsx"), "template": template_storage.file_systems(), "parameters": given}]


def _batch(cluster):
    found = []
    for group in cluster["nodes"]:
        given = {
            **network_of(cluster),
            "AMI": cluster["image"],
            "EC2KeyPair": cluster["key_pair"],
            "CreatePlacementGroup": _yes(group["placement_group"]),
            "S3BucketName": cluster["storage"]["bucket"],
            "CapacityReservationId": group["reservation"] if group["market"] == "reservation" else "",
            "CapacityBlockId": group["reservation"] if group["market"] == "capacity-block" else "",
        }
        made = template_batch.build(group["type"], count=max(group["count"], 1), group=group)
        if cluster["storage"]["lustre"]:
            launch = made["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
            launch["UserData"] = template_storage.mount_lustre(stack_name(cluster, "fsx"))
        found.append({"name": stack_name(cluster, "batch", group["name"]), "template": made, "parameters": given})
    return found


def _ec2(cluster):
    total = sum(each["count"] for each in cluster["nodes"])
    if total > template_ec2.MOST_INSTANCES:
        message = "Cluster %s has %d instances, and a stack of plain EC2 takes %d; make two clusters, or take parallelcluster."
        raise ClusterError(message % (cluster["name"], total, template_ec2.MOST_INSTANCES))
    return [{"name": stack_name(cluster, "ec2"), "template": template_ec2.build(cluster), "parameters": network_of(cluster)}]


def _yes(value):
    return "true" if value else "false"


def launches(cluster):
    """[{type, launch}] of the node groups with accelerators, for the rules of launches (stack/rules_launch.py)."""
    found = []
    for group in cluster["nodes"]:
        if not catalogue.described(group["type"]):
            continue
        layout = "efa" if cluster["kind"] == "pcs" else "efa-only"
        zones = cluster["zones"][:1]
        interfaces = catalogue.ec2_interfaces(group["type"], "subnet", ["group"], layout)
        launch = {
            "market": {"reservation": "on-demand"}.get(group["market"], group["market"]),
            "platform": "batch-mnp" if cluster["kind"] == "batch" else "ec2",
            "managed": True,
            "availability_zones": zones,
            "subnets": zones,
            # A reservation and a block have a place of their own.
            "placement_group": group["placement_group"] or bool(group["reservation"]),
            "public_ip": False,
            "interfaces": [
                {"card": each["NetworkCardIndex"], "device": each["DeviceIndex"], "type": each["InterfaceType"]} for each in interfaces
            ],
            "security_group": {"from_self": True, "to_self": True},
        }
        found.append({"type": group["type"], "launch": launch})
    return found
