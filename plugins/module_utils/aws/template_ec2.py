# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The template of a plain EC2 cluster: a launch template for each node group, and its instances."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import slurm_secret, started_by_slurm
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

# What a secret holds until cloud_nodes.yml writes it.
EMPTY_SECRET = "empty"
LAUNCH_USES = (
    "capacity-reservation",
    "image",
    "key-pair",
    "launch-template",
    "network-interface",
    "placement-group",
    "security-group",
    "snapshot",
    "subnet",
    "volume",
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
    started = [group for group in cluster["nodes"] if started_by_slurm(cluster, group)]
    joining = [allow(["secretsmanager:GetSecretValue"], ref("SlurmSecret"))] if started else []
    resources: dict[str, Any] = {
        "NodeRole": role("ec2.amazonaws.com", [*node_statements(cluster), *joining], managed=["AmazonSSMManagedInstanceCore"]),
        "NodeProfile": resource("AWS::IAM::InstanceProfile", {"Roles": [ref("NodeRole")]}),
    }
    if started:
        resources.update(_for_slurm(cluster))
    for group in cluster["nodes"]:
        profile = "ControllerProfile" if started and group["role"] == "controller" else "NodeProfile"
        resources.update(_group(cluster, group, subnet, groups, profile))
    outputs = {"NodeRoleArn": output(att("NodeRole", "Arn"), "The role of the nodes")}
    for group in started:
        launch = camel(group["name"]) + "Launch"
        outputs[launch + "Template"] = output(ref(launch), "The launch template of node group %s, whose nodes Slurm starts" % group["name"])
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


def controller_statements(cluster):
    """What a controller may do beside what a node may: start and end instances of this cluster for nodes of Slurm."""
    instances = sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*")
    own = {"StringEquals": {"aws:ResourceTag/muster:cluster": cluster["name"]}}
    marked = {"StringEquals": {"aws:RequestTag/muster:cluster": cluster["name"]}}
    launching = {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
    # What a launch takes. Images and snapshots of AWS have no account.
    used = [sub("arn:${AWS::Partition}:ec2:${AWS::Region}:*:%s/*" % each) for each in LAUNCH_USES]
    tag = allow(["ec2:CreateTags"], instances, **own)
    tag["Condition"]["ForAllValues:StringEquals"] = {"aws:TagKeys": ["Name", boot.NODE_TAG]}
    return [
        allow(["ec2:DescribeInstances", "ec2:DescribeLaunchTemplateVersions"], "*"),
        allow(["ec2:RunInstances"], used),
        allow(["ec2:RunInstances"], instances, **marked),
        allow(["ec2:CreateTags"], instances, **launching),
        tag,
        allow(["ec2:TerminateInstances"], instances, **own),
        allow(["iam:PassRole"], att("NodeRole", "Arn"), StringEquals={"iam:PassedToService": "ec2.amazonaws.com"}),
    ]


def _for_slurm(cluster):
    """What a cluster has besides when Slurm starts nodes: a role for its controllers, and the secret by which nodes join."""
    about = "What a node needs to join Slurm; playbooks/cloud_nodes.yml writes it"
    secret = {"Name": slurm_secret(cluster["name"]), "Description": about, "SecretString": EMPTY_SECRET}
    statements = [*node_statements(cluster), *controller_statements(cluster)]
    return {
        "SlurmSecret": resource("AWS::SecretsManager::Secret", secret),
        "ControllerRole": role("ec2.amazonaws.com", statements, managed=["AmazonSSMManagedInstanceCore"]),
        "ControllerProfile": resource("AWS::IAM::InstanceProfile", {"Roles": [ref("ControllerRole")]}),
    }


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


def _group(cluster, group, subnet, groups, profile):
    name, kind = camel(group["name"]), group["type"]
    launch: dict[str, Any] = {
        "ImageId": cluster["image"],
        "InstanceType": kind,
        "NetworkInterfaces": launch_interfaces(kind, groups, subnet),
        "IamInstanceProfile": {"Name": ref(profile)},
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
    named = {"LaunchTemplateName": "%s-%s" % (cluster["name"], group["name"])} if started_by_slurm(cluster, group) else {}
    found[name + "Launch"] = resource("AWS::EC2::LaunchTemplate", {**named, "LaunchTemplateData": launch})
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
