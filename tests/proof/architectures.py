# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Architectures on the local cloud: the committed templates by the commands of the AWS reference; parts of clusters with their data,
their faults and kills; the policy against the calls that were made. What needs tools of its own is checked by these tools.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import aws_cli
import boto3
import pytest
import yaml
from cloud_parts import (
    CLUSTER,
    FOLDER,
    IAM,
    bring,
    create,
    credentials,
    gone,
    look,
    node,
    outputs,
    running,
    said,
    settled,
    stacks,
    with_group,
)
from local_cloud_api import client, ec2, fault, machines, served
from module_call import call
from playbook import run_playbook

from ansible_collections.muster.fleet.plugins.module_utils.aws import permissions, plan
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load
from ansible_collections.muster.fleet.plugins.module_utils.aws.stacks import Stack
from ansible_collections.muster.fleet.plugins.module_utils.aws.template_batch import PLACEHOLDER
from localcloud.tasks import Ended

__all__ = ["bring", "call", "client", "create", "credentials", "ec2", "fault", "look", "machines", "served", "stacks"]


STORED: dict[str, Any] = {**CLUSTER, "storage": {"bucket": "mine-data", "lustre": {"gib": 1200}}}


def test_data_stay_until_the_cluster_is_named(bring, look, client) -> None:
    for part in ("vpc", "s3", "fsx"):
        assert bring(part, cluster=STORED)["changed"]
        assert not bring(part, cluster=STORED)["changed"]
    client("s3").put_object(Bucket="mine-data", Key="checkpoint", Body=b"1")
    client("s3").put_object(Bucket="mine-data", Key="checkpoint", Body=b"2")
    for part in ("fsx", "s3"):
        assert bring(part, "absent", cluster=STORED)["kept"]
    assert "mine-vpc stays, because its network has file system fs-" in bring("vpc", "absent", cluster=STORED)["stays"]
    assert {each["what"] for each in look("left", cluster=STORED)["left"]} == {"bucket", "file system", "NAT gateway"}
    wrong = bring("s3", "absent", cluster=STORED, delete_data="yours")
    assert wrong["failed"] and "delete_data is yours, and the cluster is called mine; nothing was removed." in wrong["msg"]
    for part in ("vpc", "s3", "fsx"):
        assert not bring(part, cluster=STORED)["changed"], "the next up finds the data"
    for part in ("fsx", "s3", "vpc"):
        assert bring(part, "absent", cluster=STORED, delete_data="mine")["changed"]
    assert look("left", cluster=STORED)["left"] == []
    assert client("s3").list_buckets()["Buckets"] == []


def test_a_bucket_of_somebody_else_is_not_emptied(bring, client) -> None:
    client("s3").create_bucket(Bucket="mine-data")
    client("s3").put_bucket_tagging(Bucket="mine-data", Tagging={"TagSet": [{"Key": "owner", "Value": "ann"}]})
    done = bring("s3", "absent", cluster=STORED, delete_data="mine")
    assert done["failed"] and "Bucket mine-data is not of cluster mine" in done["msg"]
    assert bring("s3", cluster=STORED)["msg"].startswith("Stack mine-s3 was not made: Bucket: mine-data already exists; somebody else has")


BATCH: dict[str, Any] = {**CLUSTER, "kind": "batch", "nodes": CLUSTER["nodes"][:1]}


def test_batch_gets_a_key_once_and_nobody_sees_it(bring, look, client) -> None:
    bring("vpc", cluster=BATCH)
    done = bring("batch", cluster=BATCH)
    [stack] = done["stacks"]
    assert stack["name"] == "mine-batch-gpu"
    key = client("secretsmanager").get_secret_value(SecretId=stack["outputs"]["SSHKeySecretArn"])["SecretString"]
    assert "PRIVATE KEY" in key and key != PLACEHOLDER
    assert key.splitlines()[1] not in json.dumps(done)
    again = bring("batch", cluster=BATCH)
    assert not again["changed"]
    assert client("secretsmanager").get_secret_value(SecretId=stack["outputs"]["SSHKeySecretArn"])["SecretString"] == key
    [kept] = bring("batch", "absent", cluster=BATCH)["kept"]
    assert kept["type"] == "AWS::ECR::Repository"
    assert {"what": "images", "id": kept["id"]} in look("left", cluster=BATCH)["left"], "nobody says that the images stay"
    assert bring("batch", cluster=BATCH)["changed"], "the images that stay are in the way of the next up"


def test_a_run_that_was_killed_goes_on(bring, fault, client) -> None:
    """The first run starts the stack and is gone; the second waits for it and changes nothing."""
    fault(action="CreateNatGateway", delay=1.0)
    [wanted] = plan.stacks(load(CLUSTER), "vpc")
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in wanted["parameters"].items()]
    tags = [{"Key": plan.CLUSTER_TAG, "Value": "mine"}, {"Key": plan.PART_TAG, "Value": "vpc"}]
    body = json.dumps(wanted["template"])
    more = {"TemplateBody": body, "Parameters": given, "Tags": tags, "Capabilities": ["CAPABILITY_NAMED_IAM"]}
    client("cloudformation").create_stack(StackName="mine-vpc", **more)
    assert client("cloudformation").describe_stacks(StackName="mine-vpc")["Stacks"][0]["StackStatus"] == "CREATE_IN_PROGRESS"
    assert bring("vpc")["changed"] is False
    client("cloudformation").delete_stack(StackName="mine-vpc")
    assert bring("vpc")["changed"], "a stack on its way out is made anew"


@pytest.mark.parametrize(
    "failure",
    [
        ("RunInstances", "InsufficientInstanceCapacity", "there is no such capacity now; name another zone or type, or a reservation."),
        ("RunInstances", "VcpuLimitExceeded", "ask for a higher quota of EC2."),
        ("CreateRole", "AccessDenied", "allow the action to this identity"),
        ("RunInstances", "ExpiredToken", "the credentials expired; log in and run again"),
    ],
)
def test_a_resource_that_fails_is_a_sentence(bring, fault, ec2, failure: tuple[str, str, str]) -> None:
    action, error, said = failure
    bring("vpc")
    fault(action=action, error=error)
    done = bring("ec2")
    assert done["failed"] and done["msg"].startswith("Stack mine-ec2 was not made: ") and said in done["msg"] and "\n" not in done["msg"]
    again = bring("ec2")
    assert "Stack mine-ec2 is ROLLBACK_COMPLETE" in again["msg"] and "remove it by verb=down" in again["msg"]
    assert bring("ec2", "absent")["changed"] and bring("ec2")["changed"] and len(running(ec2)) == 3


def test_a_file_system_that_fails_is_a_sentence_and_nothing_stays(bring, look, fault, client) -> None:
    bring("vpc", cluster=STORED)
    fault(action="CreateFileSystem", error="ServiceLimitExceeded")
    done = bring("fsx", cluster=STORED)
    said = "Stack mine-fsx was not made: LustreFileSystem: "
    assert done["failed"] and done["msg"].startswith(said) and done["msg"].endswith("; ask for a higher quota, or remove what is not used.")
    assert client("fsx").describe_file_systems()["FileSystems"] == []
    assert "Then remove it by verb=down, and run verb=up again." in bring("fsx", cluster=STORED)["msg"]
    assert bring("fsx", "absent", cluster=STORED)["changed"] and bring("fsx", cluster=STORED)["changed"]


def test_a_session_that_expires_in_the_middle_goes_on(bring, look, fault, monkeypatch) -> None:
    settled = Stack.settled

    def expired(self: Stack, found: Any) -> Any:
        fault(action="DescribeStacks", error="ExpiredToken")
        return settled(self, found)

    fault(action="CreateNatGateway", delay=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(Stack, "settled", expired)
        assert bring("vpc")["msg"] == "The AWS credentials have expired (ExpiredToken in region us-east-1); log in again."
    assert look("status")["stacks"][0]["status"] == "CREATE_IN_PROGRESS"
    assert bring("vpc")["changed"] is False and look("status")["stacks"][0]["status"] == "CREATE_COMPLETE"


def test_a_queue_with_jobs_stays(bring, client, machines, monkeypatch) -> None:
    monkeypatch.setattr(machines, "room_mib", lambda: 0, raising=False)  # so that the job waits
    bring("vpc", cluster=BATCH)
    bring("batch", cluster=BATCH)
    batch = client("batch")
    job = batch.submit_job(jobName="long", jobQueue="mine-batch-gpu", jobDefinition="mine-batch-gpu-single")["jobId"]
    done = bring("batch", "absent", cluster=BATCH)
    said = f"Queue mine-batch-gpu has jobs that are not over: 1, first {job}; wait, or stop each by aws batch terminate-job, "
    assert done["failed"] and done["msg"] == said + "then run verb=down."
    batch.terminate_job(jobId=job, reason="enough")
    end = time.monotonic() + 10
    while "stoppedAt" not in batch.describe_jobs(jobs=[job])["jobs"][0] and time.monotonic() < end:
        time.sleep(0.1)
    assert bring("batch", "absent", cluster=BATCH)["changed"]


def test_a_change_that_fails_leaves_the_stack_as_it_was(bring, fault, ec2) -> None:
    bring("vpc")
    bring("ec2")
    fault(action="RunInstances", error="InsufficientInstanceCapacity")
    done = bring("ec2", cluster=with_group(count=3))
    assert done["failed"] and done["msg"].startswith("Stack mine-ec2 was not changed, and is as it was: Gpu3: ")
    assert len(running(ec2)) == 3 and not bring("ec2")["changed"]


def test_a_stack_that_cannot_go_is_a_sentence_and_goes_later(bring, fault) -> None:
    bring("vpc")
    fault(action="DeleteNatGateway", error="AccessDenied")
    done = bring("vpc", "absent")
    assert done["failed"] and "Stack mine-vpc is DELETE_FAILED and not removed: NatGateway: AccessDenied" in done["msg"]
    assert "Stack mine-vpc is DELETE_FAILED" in bring("vpc")["msg"]
    assert bring("vpc", "absent")["changed"]


def test_throttling_is_waited_for(bring, fault, monkeypatch) -> None:
    monkeypatch.setattr("botocore.retryhandler.random", lambda *_: 0, raising=False)
    fault(action="DescribeStacks", error="Throttling", times=2)
    assert bring("vpc")["changed"]


def test_a_vpc_that_does_not_export_is_named(bring, look) -> None:
    lost = {**CLUSTER, "vpc": {"stack": "theirs"}}
    assert "Region us-east-1 has no stack theirs; correct vpc.stack" in look("preflight", cluster=lost)["msg"]
    assert bring("ec2", cluster=lost)["msg"].startswith("Stack mine-ec2 imports what no stack of region us-east-1 exports (")
    bring("s3", cluster={**CLUSTER, "name": "theirs", "storage": {"bucket": "b-1"}})
    assert (
        "Stack theirs-s3 has no export theirs-s3-PrivateSubnet"
        in look("preflight", cluster={**CLUSTER, "vpc": {"stack": "theirs-s3"}})["msg"]
    )


def test_an_existing_vpc_serves(bring, ec2) -> None:
    subnet = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"][0]
    group = ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}])["SecurityGroups"][0]["GroupId"]
    vpc = {"id": subnet["VpcId"], "subnets": [subnet["SubnetId"]], "security_group": group}
    own = {**CLUSTER, "vpc": vpc, "nodes": [CLUSTER["nodes"][1], {"name": "cpu", "type": "c6i.large", "count": 1}]}
    assert plan.parts(load(own)) == ["ec2"]
    assert bring("ec2", cluster=own)["changed"]
    assert running(ec2)["mine-cpu-1"]["SubnetId"] == subnet["SubnetId"]


def test_a_lost_node_is_drift(bring, look, ec2) -> None:
    bring("vpc")
    bring("ec2")
    ec2.terminate_instances(InstanceIds=[running(ec2)["mine-gpu-2"]["InstanceId"]])
    [row] = [each for each in look("status")["stacks"] if each["part"] == "ec2"]
    assert row["reason"].startswith("drifted: Gpu2 is gone")


def test_a_reservation_of_the_account_is_found(look, ec2, bring) -> None:
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    reserved = with_group(market="reservation", reservation=made)
    assert "failed" not in look("preflight", cluster=reserved)
    lost = with_group(market="reservation", reservation="cr-00000000000000000")
    assert "has no reservation cr-00000000000000000" in look("preflight", cluster=lost)["msg"]
    bring("vpc", cluster=reserved)
    bring("ec2", cluster=reserved)
    assert running(ec2)["mine-gpu-1"]["CapacityReservationId"] == made and not running(ec2)["mine-gpu-1"]["Placement"].get("GroupName")


def test_the_policy_names_what_was_called_and_nothing_else(bring, look, fault, monkeypatch) -> None:
    """Every call of a cluster's life, of ours and of CloudFormation's for us, against the policy that we ship."""
    seen: set[str] = set()
    lock = threading.Lock()
    import botocore.client

    former = botocore.client.BaseClient._make_api_call

    def recorded(self, operation: str, given: Any) -> Any:
        with lock:
            seen.add(f"{PREFIX.get(self.meta.service_model.service_name, self.meta.service_model.service_name)}:{operation}")
        return former(self, operation, given)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", recorded)
    with_collection = {**STORED, "setup": {"collection": "s3://mine-data/muster.tar.gz"}}
    for part in ("vpc", "s3", "fsx"):
        bring(part, cluster=STORED)
    assert "s3://mine-data/muster.tar.gz is not there" in bring("ec2", cluster=with_collection)["msg"]
    for key in ("checkpoint", "muster.tar.gz"):
        boto3.client("s3").put_object(Bucket="mine-data", Key=key, Body=b"1")
    bring("ec2", cluster=with_collection)
    bring("batch", cluster=BATCH)
    fault(action="RunInstances", error="InsufficientInstanceCapacity")
    assert bring("ec2", cluster={**STORED, "nodes": [{**CLUSTER["nodes"][0], "count": 3}]})["failed"]
    changed = {**STORED, "nodes": [{**CLUSTER["nodes"][0], "count": 1, "disk": 300}]}
    for what in ("preflight", "status", "cost", "left"):
        look(what, cluster={**STORED, "key_pair": ""})
    look("left", cluster=BATCH)
    bring("ec2", cluster=changed, check_mode=True)
    bring("ec2", cluster=changed)
    for cluster, part in ((BATCH, "batch"), (STORED, "ec2"), (STORED, "fsx"), (STORED, "s3"), (STORED, "vpc")):
        bring(part, "absent", cluster=cluster, delete_data="mine")
    ours = {IAM_NAME.get(each, each) for each in seen if each not in LOCAL_ONLY}
    allowed = set(permissions.actions(["vpc", "s3", "fsx", "ec2", "batch"]))
    assert sorted(ours - allowed) == [], "the policy lacks what was called"
    assert sorted(allowed - ours - OF_SERVICES) == [], "nothing calls what the policy allows"


PREFIX = {"service-quotas": "servicequotas"}
# Operations whose permission has another name.
IAM_NAME = {
    "s3:HeadObject": "s3:GetObject",
    "s3:ListBuckets": "s3:ListAllMyBuckets",
    "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:ListObjectVersions": "s3:ListBucketVersions",
    "s3:DeleteObjects": "s3:DeleteObjectVersion",
}
# The test's own call, and the local cloud's.
LOCAL_ONLY = {"s3:PutObject", "iam:ListRoles"}
# What AWS's CloudFormation and services call for us, by their documentation; the local cloud needs less.
OF_SERVICES = {
    "batch:DescribeComputeEnvironments",
    "batch:DescribeJobDefinitions",
    "batch:DescribeJobQueues",
    "batch:TagResource",
    "cloudformation:ListExports",
    "ec2:CreateTags",
    "ec2:DescribeAddresses",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeFlowLogs",
    "ec2:DescribeInternetGateways",
    "ec2:DescribeKeyPairs",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcEndpoints",
    "ec2:DescribeVpcs",
    "ecr:TagResource",
    "fsx:CreateDataRepositoryAssociation",
    "fsx:DeleteDataRepositoryAssociation",
    "fsx:DescribeDataRepositoryAssociations",
    "fsx:TagResource",
    "fsx:UpdateFileSystem",
    "iam:AttachRolePolicy",
    "iam:DetachRolePolicy",
    "iam:GetRole",
    "iam:PassRole",
    "iam:TagRole",
    "kms:DescribeKey",
    "kms:EnableKeyRotation",
    "kms:TagResource",
    "logs:DescribeLogGroups",
    "s3:DeleteBucketPolicy",
    "s3:DeleteObject",
    "s3:ListBucket",
    "s3:PutBucketPolicy",
    "s3:PutBucketOwnershipControls",
    "s3:PutLifecycleConfiguration",
    "secretsmanager:TagResource",
}


# What the Batch page of the reference has a user type, in its order, by the AWS CLI itself. Its P5 example deploys the template for P4.
BATCH_PAGE = r"""
made() { # `aws cloudformation wait` looks only every 30 seconds
  until aws cloudformation describe-stacks --stack-name $1 --query 'Stacks[0].StackStatus' | grep -v PROGRESS; do sleep 0.2; done
}
aws cloudformation create-stack --stack-name your-vpc-stack-name --template-body file://2.vpc-one-az.yaml \
  --parameters ParameterKey=SubnetsAZ,ParameterValue=us-east-1a --capabilities CAPABILITY_NAMED_IAM
made your-vpc-stack-name
aws cloudformation create-stack \
  --stack-name aws-batch-distributed-training \
  --template-body file://0.aws-batch-distributed-training.yaml \
  --parameters \
    ParameterKey=VPCStackParameter,ParameterValue="your-vpc-stack-name" \
    ParameterKey=CapacityReservationId,ParameterValue="$OTHER" \
  --capabilities CAPABILITY_NAMED_IAM
aws cloudformation create-stack \
  --stack-name batch-p6 \
  --template-body file://aws-batch-distributed-training-p6.yaml \
  --parameters \
    ParameterKey=VPCStackParameter,ParameterValue="your-vpc-stack-name" \
    ParameterKey=CapacityReservationId,ParameterValue="$RESERVATION" \
  --capabilities CAPABILITY_NAMED_IAM
made aws-batch-distributed-training
made batch-p6
ssh-keygen -q -t rsa -b 2048 -N '' -f "$FOLDER/batch_key"
aws secretsmanager put-secret-value \
  --secret-id batch-p6-ssh-key \
  --secret-string file://$FOLDER/batch_key
rm "$FOLDER/batch_key" "$FOLDER/batch_key.pub"
JOB_DEFINITION=$(aws cloudformation describe-stacks \
  --stack-name batch-p6 \
  --query 'Stacks[0].Outputs[?OutputKey==`JobDefinitionMultiInstance`].OutputValue' \
  --output text)
JOB_QUEUE=$(aws cloudformation describe-stacks \
  --stack-name batch-p6 \
  --query 'Stacks[0].Outputs[?OutputKey==`DistributedDeepLearningJQ`].OutputValue' \
  --output text)
job=$(aws batch submit-job \
  --job-name nccl-test-2node \
  --job-queue ${JOB_QUEUE} \
  --job-definition ${JOB_DEFINITION} \
  --node-overrides numNodes=2 --query jobId --output text)
until aws batch describe-jobs --jobs $job | grep -q stoppedAt; do sleep 0.2; done
aws batch describe-jobs --jobs $job
timeout 6 aws logs tail /aws/batch/job --follow || [ $? = 124 ]
"""


class Container:
    """Stands for the container of a node of a job, which prints what it was told, and runs until all nodes have printed."""

    nodes = 0

    def __init__(self, task: Any) -> None:
        self.address = "10.0.0.1"
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.lines.put(
            f"node {task.env['AWS_BATCH_JOB_NODE_INDEX']} of {task.env['AWS_BATCH_JOB_NUM_NODES']}: {task.env['MUSTER_COMMAND']}"
        )
        assert "PRIVATE KEY" in task.env["MUSTER_SSH_KEY"]
        Container.nodes += 1

    def running(self) -> bool:
        return True

    def ended(self) -> Ended | None:
        return Ended(0) if Container.nodes == 2 else None

    def stop(self, _patience: int) -> None:
        return


def test_the_commands_of_the_batch_page(client, served, machines, monkeypatch, tmp_path: Path) -> None:
    ec2 = client("ec2")
    for name, what in {"run_task": Container, "end_task": lambda _task: None, "room_mib": lambda: 64000}.items():
        monkeypatch.setattr(machines, name, what, raising=False)
    place = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a", "InstanceCount": 2}
    other, reservation = (
        ec2.create_capacity_reservation(InstanceType=kind, **place)["CapacityReservation"]["CapacityReservationId"]
        for kind in ("p4d.24xlarge", "p6-b200.48xlarge")
    )
    more = {"RESERVATION": reservation, "OTHER": other, "FOLDER": str(tmp_path), "HOME": str(tmp_path), "AWS_PAGER": ""}
    more["PATH"] = f"{aws_cli.folder()}:{os.environ['PATH']}"
    typed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", BATCH_PAGE],
        cwd=FOLDER,
        env={**os.environ, **served.env, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert typed.returncode == 0, typed.stdout + typed.stderr
    assert typed.stdout.count('"CREATE_COMPLETE"') == 3, typed.stdout
    assert '"status": "SUCCEEDED"' in typed.stdout and '"numNodes": 2' in typed.stdout
    for index in (0, 1):
        assert f"node {index} of 2: /opt/nccl-tests/build/all_reduce_perf" in typed.stdout, "what a node printed is not in its log"

    stacks = client("cloudformation")
    found = outputs(stacks.describe_stacks(StackName="batch-p6")["Stacks"][0])
    network = outputs(stacks.describe_stacks(StackName="your-vpc-stack-name")["Stacks"][0])
    queue_of = client("batch").describe_job_queues(jobQueues=[found["DistributedDeepLearningJQ"]])["jobQueues"][0]
    assert (queue_of["jobQueueName"], queue_of["state"]) == ("batch-p6", "ENABLED")
    [environment] = [
        each for each in client("batch").describe_compute_environments()["computeEnvironments"] if "p6-b200.48xlarge" in str(each)
    ]
    template = environment["computeResources"]["launchTemplate"]["launchTemplateId"]
    data = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert [each["InterfaceType"] for each in data["NetworkInterfaces"]] == ["interface", *["efa-only"] * 8]
    assert data["CapacityReservationSpecification"]["CapacityReservationTarget"] == {"CapacityReservationId": reservation}
    assert {each["Groups"][0] for each in data["NetworkInterfaces"]} == {network["SecurityGroup"]}
    [definition] = client("batch").describe_job_definitions(jobDefinitions=[found["JobDefinitionMultiInstance"]])["jobDefinitions"]
    assert definition["type"] == "multinode"


def test_the_storage_of_the_eks_page(create, client, served, tmp_path: Path) -> None:
    """fsx_create.sh and fsx_delete.sh in the network that eksctl made."""
    network = outputs(create("net", "2.vpc-one-az.yaml", SubnetsAZ="us-east-1a"))
    values = {"SubnetsPrivate": network["PrivateSubnet"] + ",subnet-other", "SharedNodeSecurityGroup": network["SecurityGroup"]}
    made = {"Resources": {"Logs": {"Type": "AWS::Logs::LogGroup"}}, "Outputs": {name: {"Value": each} for name, each in values.items()}}
    create("eksctl-eks-p4d-cluster", made)
    page = tmp_path / "kubernetes/eks"
    shutil.copytree(FOLDER.parent / "kubernetes/eks", page)
    (tmp_path / "cloudformation").symlink_to(FOLDER)
    env = {**os.environ, **served.env, "PATH": f"{aws_cli.folder()}:{os.environ['PATH']}", "HOME": str(tmp_path), "AWS_PAGER": ""}

    def typed(name: str) -> str:
        done = subprocess.run(["bash", f"./{name}"], cwd=page, env=env, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    typed("fsx_create.sh")
    [found] = client("fsx").describe_file_systems()["FileSystems"]
    assert (found["StorageCapacity"], found["SubnetIds"]) == (1200, [network["PrivateSubnet"]])
    volume, claim = yaml.safe_load_all((page / "fsx-pvc-static.yaml").read_text())
    assert volume["spec"]["csi"]["volumeHandle"] == found["FileSystemId"]
    assert volume["spec"]["csi"]["volumeAttributes"] == {
        "dnsname": f"{found['FileSystemId']}.fsx.us-east-1.amazonaws.com",
        "mountname": outputs(client("cloudformation").describe_stacks(StackName="eks-p4d-fsx")["Stacks"][0])[
            "FSxLustreFilesystemMountname"
        ],
    }
    assert claim["spec"]["resources"]["requests"]["storage"] == "1200Gi"
    typed("fsx_delete.sh")
    assert client("fsx").describe_file_systems()["FileSystems"] == []


def test_a_network_in_several_zones(create, stacks, ec2) -> None:
    zones = "us-east-1a,us-east-1b,us-east-1c"
    network = create("wide", "1.vpc-multi-az.yaml", AvailabilityZones=zones, NumberOfAZs="3", NatGatewayPerAZ="true")
    assert network["StackStatus"] == "CREATE_COMPLETE", network
    subnets = ec2.describe_subnets(SubnetIds=outputs(network)["PrivateSubnets"].split(","))["Subnets"]
    assert [each["AvailabilityZone"] for each in subnets] == zones.split(",")
    assert len(ec2.describe_nat_gateways()["NatGateways"]) == 3
    group = ec2.describe_security_groups(GroupIds=[outputs(network)["SecurityGroup"]])["SecurityGroups"][0]
    for way in ("IpPermissions", "IpPermissionsEgress"):
        own = [pair["GroupId"] for each in group[way] for pair in each["UserIdGroupPairs"] if each["IpProtocol"] == "-1"]
        assert own == [group["GroupId"]]
    stacks.delete_stack(StackName="wide")
    gone(stacks, "wide")
    assert ec2.describe_vpcs(VpcIds=[], Filters=[{"Name": "cidr", "Values": ["10.0.0.0/16"]}])["Vpcs"] == []


def test_storage_stays_when_its_stack_goes(create, stacks, client) -> None:
    create("net", "2.vpc-one-az.yaml", SubnetsAZ="us-east-1a")
    assert create("data", "0.private-bucket.yaml", S3BucketName="my-data")["StackStatus"] == "CREATE_COMPLETE"
    disks = create("disks", "fsx.yaml", VPCStackParameter="net", CreateOpenZFS="true")
    assert disks["StackStatus"] == "CREATE_COMPLETE", disks
    names = {each["ExportName"] for each in disks["Outputs"]}
    assert {"disks-FSxLustreFilesystemId", "disks-FSxLustreFilesystemMountname", "disks-FSxOpenZFSFilesystemId"} <= names
    for name in ("data", "disks"):
        stacks.delete_stack(StackName=name)
        gone(stacks, name)
    assert [each["Name"] for each in client("s3").list_buckets()["Buckets"]] == ["my-data"]
    assert len(client("fsx").describe_file_systems()["FileSystems"]) == 2


def test_an_export_in_use_keeps_its_stack(create, stacks) -> None:
    create("net", "2.vpc-one-az.yaml", SubnetsAZ="us-east-1a")
    create("disks", "fsx.yaml", VPCStackParameter="net")
    stacks.delete_stack(StackName="net")
    kept = settled(stacks, "net")
    assert (kept["StackStatus"], "in use by disks" in kept["StackStatusReason"]) == ("CREATE_COMPLETE", True)
    assert stacks.list_imports(ExportName="net-PrivateSubnet")["Imports"] == ["disks"]


def test_a_failed_resource_rolls_the_stack_back(create, stacks, client, fault) -> None:
    fault(action="CreateNatGateway", error="NatGatewayLimitExceeded")
    failed = create("net", "2.vpc-one-az.yaml", SubnetsAZ="us-east-1a")
    assert (failed["StackStatus"], "NatGatewayLimitExceeded" in failed["StackStatusReason"]) == ("ROLLBACK_COMPLETE", True)
    assert client("logs").describe_log_groups()["logGroups"] == []
    events = stacks.describe_stack_events(StackName="net")["StackEvents"]
    assert "CREATE_FAILED" in {each["ResourceStatus"] for each in events}
    assert "can not be updated" in said(stacks.update_stack, StackName="net", UsePreviousTemplate=True, **IAM)


def test_a_failed_update_goes_back(create, stacks, ec2, fault) -> None:
    create("nodes", {"Resources": {"A": node()}})
    first = stacks.describe_stack_resources(StackName="nodes")["StackResources"][0]["PhysicalResourceId"]
    fault(action="RunInstances", error="InsufficientInstanceCapacity")
    after = {"Resources": {"A": node(), "B": node()}}
    stacks.update_stack(StackName="nodes", TemplateBody=json.dumps(after))
    done = settled(stacks, "nodes")
    assert (done["StackStatus"], "InsufficientInstanceCapacity" in done["StackStatusReason"]) == ("UPDATE_ROLLBACK_COMPLETE", True)
    assert [each["PhysicalResourceId"] for each in stacks.describe_stack_resources(StackName="nodes")["StackResources"]] == [first]
    assert "B" not in stacks.get_template(StackName="nodes")["TemplateBody"]["Resources"]


def test_one_playbook_brings_a_cluster_up_and_down(credentials, ec2, tmp_path: Path) -> None:
    """By the commands of docs/architectures.md: check mode makes nothing, a second run changes nothing, down removes what up made."""
    (tmp_path / "mine.yml").write_text(json.dumps(STORED))
    (tmp_path / "prices.yml").write_text("p5.48xlarge: 50\n")

    def cloud(verb: str, *more: str) -> str:
        done = run_playbook(tmp_path, "playbooks/cloud.yml", "-e", "cluster=@mine.yml", "-e", f"verb={verb}", *more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    start = time.monotonic()
    cloud("up", "--check")
    print(f"check mode: {time.monotonic() - start:.1f} s")
    assert running(ec2) == {}
    assert "mine-ec2  CREATE_COMPLETE" in cloud("up")
    assert "changed=0" in cloud("up")
    assert "tag:muster:cluster: mine" in (tmp_path / "runs/cloud/mine/aws_fleet.yml").read_text()
    assert "together $100.00/h" in cloud("cost", "-e", "prices=@prices.yml")
    told = cloud("down")
    assert "bucket       mine-data" in told and "stay and cost money" in told and running(ec2) == {}
    assert "Stack mine-vpc stays, because its network has file system fs-" in told
    assert "nothing is left" in cloud("down", "-e", "delete_data=mine")
