# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the local cloud's CloudFormation refuses, and its change sets; tests/proof/architectures.py makes the committed templates."""

from __future__ import annotations

import json

import pytest
from cloud_parts import BUCKET, FOLDER, IAM, create, node, outputs, said, settled, stacks

__all__ = ["create", "stacks"]


@pytest.mark.parametrize(
    ("template", "parameters", "expected"),
    [
        ({"Resources": {"A": {"Type": "AWS::EKS::Cluster"}}}, {}, "The local cloud makes no AWS::EKS::Cluster"),
        ({"Resources": {}, "Parameters": {"A": {"Type": "String"}}}, {}, "Parameters: [A] must have values"),
        ({"Resources": {}}, {"B": "1"}, "Parameters: [B] do not exist in the template"),
        ("fsx.yaml", {"VPCStackParameter": "none"}, "No export named none-PrivateSubnet found"),
        ("0.aws-batch-distributed-training.yaml", {"CapacityReservationId": "cr-1", "CapacityBlockId": "cr-2"}, "Give one reservation"),
        ("2.vpc-one-az.yaml", {"SubnetsAZ": "a", "CreateS3Endpoint": "yes"}, "must be one of AllowedValues"),
        ({"Resources": {"A": {**BUCKET, "Properties": {"BucketName": {"Ref": "X"}}}}}, {}, "Unresolved resource dependencies [X]"),
    ],
)
def test_what_cloudformation_refuses(stacks, template, parameters: dict[str, str], expected: str) -> None:
    body = json.dumps(template) if isinstance(template, dict) else (FOLDER / template).read_text()
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
    assert expected in said(stacks.create_stack, StackName="x", TemplateBody=body, Parameters=given, **IAM)


def test_names_of_roles_need_a_capability(stacks) -> None:
    body, given = (FOLDER / "2.vpc-one-az.yaml").read_text(), [{"ParameterKey": "SubnetsAZ", "ParameterValue": "us-east-1a"}]
    assert "Requires capabilities" in said(stacks.create_stack, StackName="x", TemplateBody=body, Parameters=given)


def test_a_change_set_says_what_an_update_does(create, stacks, ec2) -> None:
    before = {"Resources": {"A": node(), "B": node()}}
    create("nodes", before)
    after = {"Resources": {"A": node("c6i.xlarge"), "C": node()}, "Outputs": {"Id": {"Value": {"Ref": "C"}}}}
    wanted = {"StackName": "nodes", "TemplateBody": json.dumps(after)}
    stacks.create_change_set(ChangeSetName="try", **wanted)
    told = stacks.describe_change_set(StackName="nodes", ChangeSetName="try")
    changes = {each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in told["Changes"]}
    assert {name: each["Action"] for name, each in changes.items()} == {"A": "Modify", "C": "Add", "B": "Remove"}
    assert changes["A"]["Replacement"] == "True"
    stacks.execute_change_set(StackName="nodes", ChangeSetName="try")
    done = settled(stacks, "nodes")
    assert done["StackStatus"] == "UPDATE_COMPLETE"
    running = {
        each["InstanceId"]: each["InstanceType"]
        for one in ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["running"]}])["Reservations"]
        for each in one["Instances"]
    }
    assert sorted(running.values()) == ["c6i.large", "c6i.xlarge"] and outputs(done)["Id"] in running
    assert said(stacks.update_stack, **wanted) == "No updates are to be performed."
    stacks.create_change_set(ChangeSetName="again", **wanted)
    assert stacks.describe_change_set(StackName="nodes", ChangeSetName="again")["Status"] == "FAILED"
