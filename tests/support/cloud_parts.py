# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fixtures: parts of clusters and stacks on the local cloud's API, whose machines only record their calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from local_cloud_api import AMI

from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load
from ansible_collections.muster.fleet.plugins.modules import cloud_stack, cloud_survey

CLUSTER: dict[str, Any] = {
    "kind": "ec2",
    "name": "mine",
    "region": "us-east-1",
    "zones": ["us-east-1a"],
    "image": AMI,
    "nodes": [{"name": "gpu", "type": "p5.48xlarge", "count": 2}, {"name": "head", "type": "c6i.large", "role": "controller", "count": 1}],
}


@pytest.fixture
def credentials(served, machines, monkeypatch) -> None:
    for key, value in served.env.items():
        monkeypatch.setenv(key, value)


@pytest.fixture
def bring(call, credentials) -> Callable[..., dict[str, Any]]:
    """A part of the cluster brought into a state."""

    def run(part: str, state: str = "present", cluster: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return call(cloud_stack, cluster=load(cluster or CLUSTER), part=part, state=state, **more)

    return run


@pytest.fixture
def look(call, credentials) -> Callable[..., dict[str, Any]]:
    def run(what: str, cluster: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return call(cloud_survey, cluster=load(cluster or CLUSTER), what=what, **more)

    return run


def with_group(**changes: Any) -> dict[str, Any]:
    return {**CLUSTER, "nodes": [{**CLUSTER["nodes"][0], **changes}, CLUSTER["nodes"][1]]}


def running(ec2) -> dict[str, Any]:
    wanted = [{"Name": "instance-state-name", "Values": ["running"]}]
    return {
        each["Tags"] and next(tag["Value"] for tag in each["Tags"] if tag["Key"] == "Name"): each
        for one in ec2.describe_instances(Filters=wanted)["Reservations"]
        for each in one["Instances"]
    }


FOLDER = Path(__file__).parents[2] / "cloudformation"
IAM = {"Capabilities": ["CAPABILITY_NAMED_IAM"]}
BUCKET = {"Type": "AWS::S3::Bucket"}


@pytest.fixture
def stacks(client):
    return client("cloudformation")


def settled(stacks, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = stacks.describe_stacks(StackName=name)["Stacks"][0]
        if "IN_PROGRESS" not in found["StackStatus"]:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{name} is still {found['StackStatus']}")


@pytest.fixture
def create(stacks) -> Callable[..., dict[str, Any]]:
    """create-stack with a committed template, or with a document."""

    def run(name: str, template: str | dict, **parameters: str) -> dict[str, Any]:
        body = json.dumps(template) if isinstance(template, dict) else (FOLDER / template).read_text()
        given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
        stacks.create_stack(StackName=name, TemplateBody=body, Parameters=given, **IAM)
        return settled(stacks, name)

    return run


def outputs(stack: dict[str, Any]) -> dict[str, str]:
    return {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}


def said(call: Callable, **wanted: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**wanted)
    return error.value.response["Error"]["Message"]


def gone(stacks, name: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            found = stacks.describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            assert f"Stack with id {name} does not exist" in str(error)
            return
        assert found["StackStatus"] == "DELETE_IN_PROGRESS", found
        time.sleep(0.02)


def node(kind: str = "c6i.large", **more: Any) -> dict[str, Any]:
    properties = {"ImageId": AMI, "InstanceType": kind, "Tags": [{"Key": "Name", "Value": "n"}]}
    return {"Type": "AWS::EC2::Instance", "Properties": properties, **more}
