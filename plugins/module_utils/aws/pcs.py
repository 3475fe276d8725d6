# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stack of a cluster of AWS Parallel Computing Service: cluster, node groups with their launch templates, a queue for each."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot, plan
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError
from ansible_collections.muster.fleet.plugins.module_utils.aws.template import (
    allow,
    att,
    given,
    imported,
    launch_interfaces,
    metadata,
    output,
    ref,
    resource,
    role,
    root_disk,
    tags,
    template,
    text,
    when,
)
from ansible_collections.muster.fleet.plugins.module_utils.aws.template_ec2 import camel, market_of, node_statements

SLURM = "25.11"
VERSIONS = ("24.11", "25.05", "25.11")
# Nodes that a cluster takes -> its size.
SIZES = {32: "SMALL", 512: "MEDIUM", 2048: "LARGE"}
PURCHASE = {"on-demand": "ONDEMAND", "reservation": "ONDEMAND", "spot": "SPOT", "capacity-block": "CAPACITY_BLOCK"}
# PCS asks for user data of several parts.
USER_DATA = """MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="==muster=="

--==muster==
Content-Type: text/x-shellscript; charset="us-ascii"
MIME-Version: 1.0

%s
--==muster==--
"""


def stack(cluster):
    """{name, template, parameters} of the cluster."""
    _check(cluster)
    parameters = {
        "VPCStackParameter": text("Name of the stack of the VPC, whose subnet and security group are imported", ""),
        "SubnetId": text("Subnet instead of the VPC stack's", ""),
        "SecurityGroupId": text("Security group instead of the VPC stack's", ""),
        "RootDevice": text("Name of the AMI's root device", "/dev/xvda"),
    }
    conditions: dict[str, Any] = {"HasSubnet": given("SubnetId"), "HasGroup": given("SecurityGroupId")}
    subnet = when("HasSubnet", ref("SubnetId"), imported("VPCStackParameter", "PrivateSubnet"))
    groups = [when("HasGroup", ref("SecurityGroupId"), imported("VPCStackParameter", "SecurityGroup"))]
    # PCS takes roles and profiles below this path alone.
    node_role = role(
        "ec2.amazonaws.com",
        [allow(["pcs:RegisterComputeNodeGroupInstance"], "*"), *node_statements(cluster)],
        managed=["AmazonSSMManagedInstanceCore"],
    )
    node_role["Properties"]["Path"] = "/aws-pcs/"
    resources: dict[str, Any] = {
        "NodeRole": node_role,
        "NodeProfile": resource("AWS::IAM::InstanceProfile", {"Path": "/aws-pcs/", "Roles": [ref("NodeRole")]}),
        "Cluster": resource("AWS::PCS::Cluster", _cluster(cluster, subnet, groups)),
    }
    for group in cluster["nodes"]:
        resources.update(_group(cluster, group, subnet, groups))
    outputs = {"ClusterId": output(ref("Cluster"), "The cluster"), "NodeRoleArn": output(att("NodeRole", "Arn"), "The role of the nodes")}
    about = "Muster cluster %s on PCS: " % cluster["name"]
    about += ", ".join("%d %s" % (each["max"], each["type"]) for each in cluster["nodes"])
    made = template(about, parameters, resources, outputs, conditions=conditions)
    return {"name": plan.stack_name(cluster, "pcs"), "template": made, "parameters": plan.network_of(cluster)}


def _check(cluster):
    where = "Cluster %s" % cluster["name"]
    if not cluster["image"]:
        raise ClusterError("%s has no image; give an AMI that has PCS's agent and Slurm." % where)
    if len(cluster["name"]) < 3:
        raise ClusterError("%s: PCS takes names of 3 letters or more; rename it." % where)
    for group in cluster["nodes"]:
        if len(group["name"]) < 3:
            raise ClusterError("%s: node group %s: PCS takes names of 3 letters or more; rename it." % (where, group["name"]))
        if group["type"].startswith("p6e-gb200."):
            message = "%s: node group %s: PCS hands on no interface of the type efa-only, which %s needs; take parallelcluster."
            raise ClusterError(message % (where, group["name"], group["type"]))
    version = cluster["versions"].get("slurm", SLURM)
    if version not in VERSIONS:
        raise ClusterError("%s: versions.slurm %s is not one of PCS; take %s." % (where, version, ", ".join(VERSIONS)))
    most = sum(each["max"] for each in cluster["nodes"])
    if most > max(SIZES):
        raise ClusterError("%s has %d nodes, and PCS takes %d; make two clusters." % (where, most, max(SIZES)))


def _cluster(cluster, subnet, groups):
    most = sum(each["max"] for each in cluster["nodes"])
    slurm: dict[str, Any] = {"ScaleDownIdleTimeInSeconds": 600}
    if cluster["accounting"]:
        slurm["Accounting"] = {"Mode": "STANDARD"}
    return {
        "Name": cluster["name"],
        "Size": SIZES[min(limit for limit in SIZES if limit >= most)],
        "Scheduler": {"Type": "SLURM", "Version": cluster["versions"].get("slurm", SLURM)},
        "Networking": {"SubnetIds": [subnet], "SecurityGroupIds": groups},
        "SlurmConfiguration": slurm,
        "Tags": {"muster:cluster": cluster["name"]},
    }


def _group(cluster, group, subnet, groups):
    name = camel(group["name"])
    launch: dict[str, Any] = {
        # PCS gives the subnet, and hands on no interface of the type efa-only.
        "NetworkInterfaces": launch_interfaces(group["type"], groups, None, "efa"),
        "MetadataOptions": metadata(4),
        "BlockDeviceMappings": [root_disk(ref("RootDevice"), group["disk"])],
        "UserData": {"Fn::Base64": boot.user_data(cluster, group, USER_DATA)},
        "TagSpecifications": [
            {
                "ResourceType": "instance",
                "Tags": tags(
                    "%s-%s" % (cluster["name"], group["name"]),
                    **{
                        "muster:cluster": cluster["name"],
                        "muster:fleet": cluster["name"],
                        "muster:role": group["role"],
                        "muster:group": group["name"],
                    },
                ),
            }
        ],
        # PCS sets the market of spot nodes itself.
        **(market_of(group) if group["market"] != "spot" else {}),
    }
    if group["market"] == "capacity-block":
        launch["InstanceType"] = group["type"]
    if cluster["key_pair"]:
        launch["KeyName"] = cluster["key_pair"]
    found = {}
    if group["placement_group"]:
        found[name + "Place"] = resource("AWS::EC2::PlacementGroup", {"Strategy": "cluster"})
        launch["Placement"] = {"GroupName": ref(name + "Place")}
    found[name + "Launch"] = resource("AWS::EC2::LaunchTemplate", {"LaunchTemplateData": launch})
    nodes: dict[str, Any] = {
        "ClusterId": att("Cluster", "Id"),
        "Name": group["name"],
        "AmiId": cluster["image"],
        "CustomLaunchTemplate": {"TemplateId": ref(name + "Launch"), "Version": att(name + "Launch", "LatestVersionNumber")},
        "IamInstanceProfileArn": att("NodeProfile", "Arn"),
        "InstanceConfigs": [{"InstanceType": group["type"]}],
        "PurchaseOption": PURCHASE[group["market"]],
        "ScalingConfiguration": {"MinInstanceCount": group["min"], "MaxInstanceCount": group["max"]},
        "SubnetIds": [subnet],
    }
    if group["market"] == "spot":
        nodes["SpotOptions"] = {"AllocationStrategy": "capacity-optimized"}
    found[name + "Nodes"] = resource("AWS::PCS::ComputeNodeGroup", nodes)
    if group["role"] == "compute":
        queue = {
            "ClusterId": att("Cluster", "Id"),
            "Name": group["name"],
            "ComputeNodeGroupConfigurations": [{"ComputeNodeGroupId": att(name + "Nodes", "Id")}],
        }
        found[name + "Queue"] = resource("AWS::PCS::Queue", queue)
    return found
