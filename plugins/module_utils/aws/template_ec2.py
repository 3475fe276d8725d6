# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The template of a plain EC2 cluster: a launch template for each node group, and its instances."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot
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
    sub,
    tags,
    template,
    text,
    when,
)

MOST_INSTANCES = 400  # CloudFormation takes 500 resources in a stack


def build(cluster):
    """The template of a checked cluster document."""
    parameters = {
        "VPCStackParameter": text("Name of the stack of the VPC, whose subnet and security group are imported", ""),
        "SubnetId": text("Subnet instead of the VPC stack's", ""),
        "SecurityGroupId": text("Security group instead of the VPC stack's", ""),
        "RootDevice": text("Name of the AMI's root device", "/dev/xvda"),
    }
    conditions: dict[str, Any] = {"HasSubnet": given("SubnetId"), "HasGroup": given("SecurityGroupId")}
    subnet = when("HasSubnet", ref("SubnetId"), imported("VPCStackParameter", "PrivateSubnet"))
    groups = [when("HasGroup", ref("SecurityGroupId"), imported("VPCStackParameter", "SecurityGroup"))]
    resources: dict[str, Any] = {
        "NodeRole": role("ec2.amazonaws.com", node_statements(cluster), managed=["AmazonSSMManagedInstanceCore"]),
        "NodeProfile": resource("AWS::IAM::InstanceProfile", {"Roles": [ref("NodeRole")]}),
    }
    for group in cluster["nodes"]:
        resources.update(_group(cluster, group, subnet, groups))
    outputs = {"NodeRoleArn": output(att("NodeRole", "Arn"), "The role of the nodes")}
    about = "Muster cluster %s: %s" % (cluster["name"], ", ".join("%d %s" % (each["count"], each["type"]) for each in cluster["nodes"]))
    return template(about, parameters, resources, outputs, conditions=conditions)


def node_statements(cluster):
    """What a node may do beside what Systems Manager needs: say how its checks went, and read its bucket."""
    own = {"StringEquals": {"aws:ResourceTag/muster:cluster": cluster["name"]}}
    tag = allow(["ec2:CreateTags"], sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*"), **own)
    tag["Condition"]["ForAllValues:StringEquals"] = {"aws:TagKeys": [boot.STATE_TAG, boot.REASON_TAG]}
    statements = [tag]
    if cluster["storage"]["bucket"]:
        name = "arn:${AWS::Partition}:s3:::%s" % cluster["storage"]["bucket"]
        statements.append(allow(["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"], [sub(name), sub(name + "/*")]))
    return statements


def camel(name):
    """The name of a group as CloudFormation takes it."""
    return "".join(part.capitalize() for part in name.split("-"))


def market_of(group):
    """The part of a launch template that says how capacity is bought."""
    found: dict[str, Any] = {}
    if group["market"] == "spot":
        found["InstanceMarketOptions"] = {"MarketType": "spot"}
    elif group["market"] == "capacity-block":
        found["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if group["reservation"]:
        found["CapacityReservationSpecification"] = {"CapacityReservationTarget": {"CapacityReservationId": group["reservation"]}}
    return found


def _group(cluster, group, subnet, groups):
    name, kind = camel(group["name"]), group["type"]
    launch: dict[str, Any] = {
        "ImageId": cluster["image"],
        "InstanceType": kind,
        "NetworkInterfaces": launch_interfaces(kind, groups, subnet),
        "IamInstanceProfile": {"Name": ref("NodeProfile")},
        "MetadataOptions": metadata(1),
        "BlockDeviceMappings": [root_disk(ref("RootDevice"), group["disk"])],
        "UserData": {"Fn::Base64": boot.user_data(cluster, group)},
        **market_of(group),
    }
    if cluster["key_pair"]:
        launch["KeyName"] = cluster["key_pair"]
    found = {}
    if group["placement_group"]:
        found[name + "Place"] = resource("AWS::EC2::PlacementGroup", {"Strategy": "cluster"})
        launch["Placement"] = {"GroupName": ref(name + "Place")}
    found[name + "Launch"] = resource("AWS::EC2::LaunchTemplate", {"LaunchTemplateData": launch})
    for index in range(group["count"]):
        node = "%s-%s-%d" % (cluster["name"], group["name"], index + 1)
        marks = {"muster:fleet": cluster["name"], "muster:role": group["role"], "muster:group": group["name"]}
        properties: dict[str, Any] = {
            "LaunchTemplate": {
                "LaunchTemplateId": ref(name + "Launch"),
                "Version": {"Fn::GetAtt": [name + "Launch", "LatestVersionNumber"]},
            },
            "Tags": tags(node, **marks),
        }
        found["%s%d" % (name, index + 1)] = resource("AWS::EC2::Instance", properties)
    return found
