# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What services and tools say of a document, without them: the models of botocore, and the fields that ParallelCluster 3.16 and eksctl
0.230 have where Muster writes some.

botocore's own validator takes any text for an enum or a pattern, so they are compared here.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import boto3
from botocore.validate import ParamValidator

ANY: dict[str, Any] = {"*": None}  # names of the user's own
SCRIPT = {"Script": None, "Args": None}
ACTIONS = {"OnNodeStart": SCRIPT, "OnNodeConfigured": SCRIPT}
POLICIES = [{"Policy": None}]
IAM = {"AdditionalIamPolicies": POLICIES, "S3Access": [{"BucketName": None, "KeyName": None, "EnableWriteAccess": None}]}
ROOT_VOLUME = {"Size": None, "VolumeType": None, "Encrypted": None, "Iops": None, "Throughput": None}
GROUPS = {"SecurityGroups": None, "AdditionalSecurityGroups": None}
PLACEMENT = {"Enabled": None, "Id": None, "Name": None}
RESERVATION = {"CapacityReservationId": None, "CapacityReservationResourceGroupArn": None}
GPU_CHECK = {"Gpu": {"Enabled": None}}
TAGS = [{"Key": None, "Value": None}]
# Nested mappings are mappings, a list of one is a list of such, None is a value or a list of values.
PARALLELCLUSTER: dict[str, Any] = {
    "Region": None,
    "Image": {"Os": None, "CustomAmi": None},
    "HeadNode": {
        "InstanceType": None,
        "Networking": {"SubnetId": None, "ElasticIp": None, **GROUPS},
        "Ssh": {"KeyName": None},
        "LocalStorage": {"RootVolume": ROOT_VOLUME},
        "CustomActions": ACTIONS,
        "Iam": IAM,
        "Imds": {"Secured": None},
        "Image": {"CustomAmi": None},
    },
    "LoginNodes": {
        "Pools": [
            {
                "Name": None,
                "Count": None,
                "InstanceType": None,
                "Networking": {"SubnetIds": None, **GROUPS},
                "Ssh": {"KeyName": None},
                "Iam": {"AdditionalIamPolicies": POLICIES},
                "GracetimePeriod": None,
            }
        ]
    },
    "Scheduling": {
        "Scheduler": None,
        "SlurmSettings": {
            "ScaledownIdletime": None,
            "QueueUpdateStrategy": None,
            "Database": {"Uri": None, "UserName": None, "PasswordSecretArn": None, "DatabaseName": None},
        },
        "SlurmQueues": [
            {
                "Name": None,
                "CapacityType": None,
                "Networking": {"SubnetIds": None, "PlacementGroup": PLACEMENT, **GROUPS},
                "CapacityReservationTarget": RESERVATION,
                "ComputeSettings": {"LocalStorage": {"RootVolume": ROOT_VOLUME, "EphemeralVolume": {"MountDir": None}}},
                "CustomActions": ACTIONS,
                "Iam": IAM,
                "HealthChecks": GPU_CHECK,
                "ComputeResources": [
                    {
                        "Name": None,
                        "InstanceType": None,
                        "MinCount": None,
                        "MaxCount": None,
                        "Efa": {"Enabled": None},
                        "CapacityReservationTarget": RESERVATION,
                    }
                ],
            }
        ],
    },
    "SharedStorage": [
        {
            "Name": None,
            "MountDir": None,
            "StorageType": None,
            "FsxLustreSettings": {"FileSystemId": None},
            "FsxOpenZfsSettings": {"VolumeId": None},
        }
    ],
    "Tags": TAGS,
}
BUILD_IMAGE: dict[str, Any] = {
    "Region": None,
    "Image": {"Name": None, "Tags": TAGS, "RootVolume": {"Size": None, "Encrypted": None, "KmsKeyId": None}},
    "Build": {
        "InstanceType": None,
        "ParentImage": None,
        "Components": [{"Type": None, "Value": None}],
        "UpdateOsPackages": {"Enabled": None},
        "Imds": {"ImdsSupport": None},
        "Installation": {"LustreClient": {"Enabled": None}, "NvidiaSoftware": {"Enabled": None}},
        "Iam": {"AdditionalIamPolicies": POLICIES},
    },
}
SHARED_GROUP: dict[str, Any] = {
    **dict.fromkeys(("name", "instanceType", "minSize", "desiredCapacity", "maxSize", "privateNetworking", "amiFamily", "ami")),
    **dict.fromkeys(("volumeSize", "volumeType", "volumeEncrypted", "efaEnabled", "availabilityZones", "overrideBootstrapCommand")),
    "labels": ANY,
    "tags": ANY,
    "taints": [{"key": None, "value": None, "effect": None}],
    "capacityReservation": {"capacityReservationTarget": {"capacityReservationID": None}},
    "instanceMarketOptions": {"marketType": None},
    "propagateASGTags": None,
}
DISTRIBUTION = ("instanceTypes", "onDemandBaseCapacity", "onDemandPercentageAboveBaseCapacity", "spotAllocationStrategy")
EKSCTL: dict[str, Any] = {
    "apiVersion": None,
    "kind": None,
    "metadata": {"name": None, "region": None, "version": None, "tags": ANY},
    "accessConfig": {"authenticationMode": None},
    "iam": {
        "withOIDC": None,
        "serviceAccounts": [{"metadata": {"name": None, "namespace": None}, "wellKnownPolicies": {"autoScaler": None}}],
    },
    "availabilityZones": None,
    "vpc": {
        "id": None,
        "cidr": None,
        "nat": {"gateway": None},
        "subnets": {"private": {"*": {"id": None}}},
        "clusterEndpoints": {"privateAccess": None, "publicAccess": None},
    },
    "addons": [{"name": None, "attachPolicyARNs": None}],
    "managedNodeGroups": [{**SHARED_GROUP, "spot": None, "nodeRepairConfig": {"enabled": None}}],
    "nodeGroups": [{**SHARED_GROUP, "instancesDistribution": dict.fromkeys(DISTRIBUTION)}],
}


def unknown_fields(value: Any, known: Any, where: str = "") -> list[str]:
    """Fields of a document that its tool does not have, and values of another form."""
    if known is None:
        return [f"{where} is a mapping"] if isinstance(value, dict) else []
    if isinstance(known, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [said for each in value for said in unknown_fields(each, known[0], where + "[]")]
    if not isinstance(value, dict):
        return [f"{where} is no mapping"]
    found = []
    for name, each in value.items():
        if name not in known and "*" not in known:
            found.append(f"{where} has no field {name}")
        else:
            found += unknown_fields(each, known.get(name, known.get("*")), f"{where}.{name}")
    return found


@functools.cache
def model(service: str) -> Any:
    return boto3.client(service, region_name="us-east-1").meta.service_model


def request_faults(service: str, operation: str, request: dict[str, Any]) -> list[str]:
    """What botocore's model of a service says of a request, with its enums, patterns and lengths."""
    shape = model(service).operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape).generate_report()
    return ([report] if report else []) + list(_texts(shape, request, operation))


def _texts(shape: Any, value: Any, where: str) -> Any:
    if shape.type_name == "structure" and isinstance(value, dict):
        for name, each in value.items():
            if name in shape.members:
                yield from _texts(shape.members[name], each, f"{where}.{name}")
    elif shape.type_name in ("list", "map") and value:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(shape.member if shape.type_name == "list" else shape.value, each, where)
    elif shape.type_name == "string" and isinstance(value, str):
        if shape.enum and value not in shape.enum:
            yield f"{where}: {value} is none of its values"
        pattern = shape.metadata.get("pattern", "").replace(r"\p{L}", "A-Za-z").replace(r"\p{Z}", " ").replace(r"\p{N}", "0-9")
        if pattern and not re.fullmatch(pattern, value):
            yield f"{where}: {value} does not match {pattern}"
    most = shape.metadata.get("max")
    if most is not None and isinstance(value, (str, list)) and len(value) > most:
        yield f"{where} is longer than {most}"


PCS_NAMES = {
    "AWS::PCS::Cluster": ("CreateCluster", {"Name": "clusterName"}),
    "AWS::PCS::ComputeNodeGroup": ("CreateComputeNodeGroup", {"Name": "computeNodeGroupName", "ClusterId": "clusterIdentifier"}),
    "AWS::PCS::Queue": ("CreateQueue", {"Name": "queueName", "ClusterId": "clusterIdentifier"}),
}
# What stands for a function of CloudFormation in a field.
VALUES = {
    "ClusterId": "pcs_0123456789",
    "IamInstanceProfileArn": "arn:aws:iam::123456789012:instance-profile/aws-pcs/mine",
    "SubnetIds": "subnet-0123456789abcdef0",
    "SecurityGroupIds": "sg-0123456789abcdef0",
}


def pcs_requests(template: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """[(operation, request)] that CloudFormation would send to PCS for a template; its functions have become values."""
    found = []
    for each in template["Resources"].values():
        if each["Type"] in PCS_NAMES:
            operation, names = PCS_NAMES[each["Type"]]
            request = {names.get(name, name[0].lower() + name[1:]): _api(name, value) for name, value in each["Properties"].items()}
            found.append((operation, request))
    return found


def _api(name: str, value: Any) -> Any:
    if name == "Tags":
        return value
    if isinstance(value, list):
        return [_api(name, each) for each in value]
    if isinstance(value, dict):
        if set(value) & {"Ref", "Fn::GetAtt", "Fn::If", "Fn::Sub"}:
            return VALUES.get(name, "lt-0123456789abcdef0")
        inner = {"TemplateId": "id"}
        return {inner.get(key, key[0].lower() + key[1:]): _api(key, each) for key, each in value.items()}
    return value
