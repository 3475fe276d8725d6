# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The committed templates: current, whole, with the names that people who come from the AWS reference know, and with its faults mended."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cfn_rules import parts, template_faults

import cloudformation
from ansible_collections.muster.fleet.plugins.module_utils.aws import template_batch
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cloudformation"
BATCH = {
    "0.aws-batch-distributed-training.yaml": ("p4d.24xlarge", 4),
    "0.aws-batch-distributed-training-p5.yaml": ("p5.48xlarge", 32),
    "aws-batch-distributed-training-p6.yaml": ("p6-b200.48xlarge", 8),
    "aws-batch-distributed-training-trn.yaml": ("trn2.48xlarge", 16),
}


def read(name: str) -> dict[str, Any]:
    return yaml.load((FOLDER / name).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def of_kind(template: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each["Properties"] for each in template["Resources"].values() if each["Type"] == kind]


def test_the_templates_are_current(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["cloudformation.py", "--check"])
    assert (cloudformation.main(), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize("name", sorted(cloudformation.FILES))
def test_a_template_is_whole(name: str) -> None:
    assert template_faults(read(name), BATCH.get(name, ("", 0))[0]) == []
    assert (FOLDER / name).stat().st_size < 51_200, "as the commands of the reference send it"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["Resources"]["JobQueue"].update(Condition="None"), "there is no condition None"),
        (lambda t: t["Outputs"]["ECRRepository"].update(Value={"Ref": "Image"}), "nothing is called Image"),
        (lambda t: t["Parameters"].update(More={"Type": "String"}), "nothing uses the parameter More"),
        (lambda t: interfaces(t)[0].update(InterfaceType="efa-onlyy"), "unknown type efa-onlyy"),
        (lambda t: interfaces(t)[3].update(DeviceIndex=3), "device index of network card"),
        (lambda t: interfaces(t).pop(), "must have 32 EFA interfaces and has 31"),
        (lambda t: interfaces(t)[0].update(AssociatePublicIpAddress=True), "no public address"),
        (lambda t: environment(t).update(InstanceTypes=["p5.49xlarge"]), "p5.49xlarge is not an instance type"),
        (lambda t: t.update(Description="x" * 60_000), "larger than"),
    ],
)
def test_the_rules_see_a_broken_template(change, said: str) -> None:
    broken = copy.deepcopy(template_batch.build("p5.48xlarge"))
    change(broken)
    assert said in " ".join(template_faults(broken, "p5.48xlarge"))


def interfaces(template: dict[str, Any]) -> list[dict[str, Any]]:
    return of_kind(template, "AWS::EC2::LaunchTemplate")[0]["LaunchTemplateData"]["NetworkInterfaces"]


def environment(template: dict[str, Any]) -> dict[str, Any]:
    return of_kind(template, "AWS::Batch::ComputeEnvironment")[0]["ComputeResources"]


def exports(template: dict[str, Any]) -> set[str]:
    return {
        each["Export"]["Name"]["Fn::Sub"].removeprefix("${AWS::StackName}-") for each in template["Outputs"].values() if "Export" in each
    }


def test_networks_export_the_names_of_the_reference() -> None:
    one = {"VPC", "PublicSubnet", "PrivateSubnet", "SecurityGroup", "FSXSecurityGroup"}
    assert exports(read("2.vpc-one-az.yaml")) == one
    assert exports(read("1.vpc-multi-az.yaml")) == {*one, "PrivateSubnets"}


@pytest.mark.parametrize("name", ["1.vpc-multi-az.yaml", "2.vpc-one-az.yaml"])
def test_the_faults_of_the_reference_s_networks_are_mended(name: str) -> None:
    template = read(name)
    [log] = of_kind(template, "AWS::EC2::FlowLog")
    assert log["LogGroupName"] == {"Ref": "FlowLogsGroup"}
    assert template["Resources"]["VPC"]["Properties"]["CidrBlock"] == {"Ref": "VPCCidr"}
    both = [template["Resources"][each]["Properties"] for each in ("EFAIngress", "EFAEgress")]
    assert [each["GroupId"] for each in both] == [{"Ref": "SecurityGroup"}] * 2
    assert (both[0]["SourceSecurityGroupId"], both[1]["DestinationSecurityGroupId"]) == ({"Ref": "SecurityGroup"},) * 2
    for endpoint in of_kind(template, "AWS::EC2::VPCEndpoint"):
        open_to_all = [each for each in endpoint["PolicyDocument"]["Statement"] if each["Action"] == "*" and "Condition" not in each]
        assert open_to_all == []
    assert not any(each.get("MapPublicIpOnLaunch") for each in of_kind(template, "AWS::EC2::Subnet"))


def test_data_outlives_its_stack() -> None:
    for name, kinds in (("0.private-bucket.yaml", ["AWS::S3::Bucket"]), ("fsx.yaml", ["AWS::FSx::FileSystem"])):
        data = [each for each in read(name)["Resources"].values() if each["Type"] in kinds]
        assert data and all(each["DeletionPolicy"] == each["UpdateReplacePolicy"] == "Retain" for each in data)


@pytest.mark.parametrize(("name", "kind", "efa"), [(name, *each) for name, each in BATCH.items()])
def test_batch_has_the_parameters_and_outputs_of_the_reference(name: str, kind: str, efa: int) -> None:
    template = read(name)
    asked = {"VPCStackParameter", "AMI", "CapacityReservationId", "CapacityReservationResourceGroup", "CapacityBlockId", "EC2KeyPair"}
    assert asked | {"CreatePlacementGroup"} <= set(template["Parameters"])
    assert all("Default" in template["Parameters"][each] for each in asked)
    outputs = {"ECRRepository", "ECRRepositoryUrl", "JobDefinitionMultiInstance", "JobDefinitionSingleInstance"}
    assert outputs | {"DistributedDeepLearningJQ", "SSHKeySecretArn"} <= set(template["Outputs"])
    assert environment(template)["InstanceTypes"] == [kind]
    assert sum(each["InterfaceType"].startswith("efa") for each in interfaces(template)) == efa
    imports = {each["Fn::ImportValue"]["Fn::Sub"] for each in parts(template) if "Fn::ImportValue" in each}
    assert imports == {"${VPCStackParameter}-PrivateSubnet", "${VPCStackParameter}-SecurityGroup"}
    launch = of_kind(template, "AWS::EC2::LaunchTemplate")[0]["LaunchTemplateData"]
    assert launch["MetadataOptions"]["HttpTokens"] == "required" and launch["BlockDeviceMappings"][0]["Ebs"]["Encrypted"]
    assert environment(template)["PlacementGroup"]["Fn::If"][:2] == ["Placed", {"Ref": "PlacementGroup"}]
    assert template["Conditions"]["Placed"] == {"Fn::Equals": [{"Ref": "CreatePlacementGroup"}, "true"]}
    [secret] = of_kind(template, "AWS::SecretsManager::Secret")
    assert secret["Name"] == {"Fn::Sub": "${AWS::StackName}-ssh-key"}


@pytest.mark.parametrize("kind", [name for name in catalogue.names() if catalogue.instance_type(name)["efa"]])
def test_batch_for_every_type_with_efa(kind: str) -> None:
    """The number of ranks follows from the job's nodes, and nothing of a multi-node job is a constant for two."""
    template = template_batch.build(kind)
    assert template_faults(template, kind) == []
    have = catalogue.instance_type(kind)
    [multi] = [each for each in of_kind(template, "AWS::Batch::JobDefinition") if each["Type"] == "multinode"]
    [only] = multi["NodeProperties"]["NodeRangeProperties"]
    assert only["TargetNodes"] == "0:"
    devices = [each["HostPath"] for each in only["Container"]["LinuxParameters"]["Devices"]]
    assert sum("uverbs" in each for each in devices) == have["efa_cards"]
    assert {"Name": "MUSTER_PROCS_PER_NODE", "Value": str(have["gpus"])} in only["Container"]["Environment"]


def test_every_policy_names_its_actions() -> None:
    """Only the key policy of KMS has a star, for the account itself, and a gateway's for the account's own identities."""
    for name in cloudformation.FILES:
        for role in of_kind(read(name), "AWS::IAM::Role"):
            for each in parts(role.get("Policies", [])):
                actions = each.get("Action", []) if each.get("Effect") == "Allow" else []
                assert not any(re.fullmatch(r"\*|\w+:\*", action) for action in ([actions] if isinstance(actions, str) else actions))


def test_the_start_script_is_clean() -> None:
    done = subprocess.run(
        [shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck")), "-s", "bash", "-"],
        input=template_batch.START_MPI,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (template_batch.PLACEHOLDER, "the secret of the stack holds no private key"),
        ("", "the secret of the stack holds no private key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nbroken", "the key in the secret of the stack"),
    ],
)
def test_a_node_without_a_key_says_so(tmp_path: Path, key: str, said: str) -> None:
    (tmp_path / "getent").write_text(f"#!/bin/sh\necho x:x:0:0:x:{tmp_path}:/bin/sh\n")
    (tmp_path / "getent").chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin",
        "AWS_BATCH_JOB_NUM_NODES": "2",
        "AWS_BATCH_JOB_NODE_INDEX": "1",
        "MUSTER_PROCS_PER_NODE": "8",
        "MUSTER_COMMAND": "true",
        "MUSTER_SSH_KEY": key,
    }
    done = subprocess.run(["bash", "-c", template_batch.START_MPI], env=env, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, said in done.stderr) == (69, True), done.stderr
    assert "broken" not in done.stderr


def test_templates_are_published_with_their_links(client, served, monkeypatch, capsys) -> None:
    for key, value in served.env.items():
        monkeypatch.setenv(key, value)
    client("s3").create_bucket(Bucket="templates")
    monkeypatch.setattr(sys, "argv", ["cloudformation.py", "--publish", "s3://templates/muster"])
    assert cloudformation.main() == 0
    told = capsys.readouterr().out
    keys = {each["Key"] for each in client("s3").list_objects_v2(Bucket="templates")["Contents"]}
    assert keys == {f"muster/{name}" for name in cloudformation.FILES}
    assert "templateURL=https%3A%2F%2Ftemplates.s3.us-east-1.amazonaws.com%2Fmuster%2F2.vpc-one-az.yaml&stackName=vpc-one-az" in told
