# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A cluster comes, changes and goes by the modules that playbooks/cloud.yml calls, and preflight finds what would fail.

tests/proof/architectures.py has the rest: data, Batch, faults, kills, and the policy.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cloud_parts import CLUSTER, bring, credentials, look, running, with_group

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot, permissions, plan, preflight, survey
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load
from ansible_collections.muster.fleet.plugins.modules import aws_secret

__all__ = ["bring", "credentials", "look"]


def test_a_cluster_comes_changes_and_goes(bring, look, ec2, machines) -> None:
    would = bring("vpc", check_mode=True)
    assert would["changed"] and {each["action"] for each in would["stacks"][0]["changes"]} == {"Add"}
    assert look("status")["stacks"][0]["status"] == "missing", "check mode made something"
    assert bring("vpc")["changed"] and not bring("vpc")["changed"]
    made = bring("ec2")
    assert made["changed"] and not bring("ec2")["changed"]
    nodes = running(ec2)
    assert sorted(nodes) == ["mine-gpu-1", "mine-gpu-2", "mine-head-1"]
    gpu = nodes["mine-gpu-1"]
    assert [each["InterfaceType"] for each in gpu["NetworkInterfaces"]].count("efa-only") == 32
    assert gpu["Placement"]["GroupName"].startswith("mine-ec2") and gpu["MetadataOptions"]["HttpTokens"] == "required"
    tags = {each["Key"]: each["Value"] for each in nodes["mine-head-1"]["Tags"]}
    assert (tags["muster:cluster"], tags["muster:role"], tags["muster:fleet"]) == ("mine", "controller", "mine")
    started = [each for each in machines.done if each[0] == "start"]
    assert started[0][3].decode() == boot.script(load(CLUSTER), load(CLUSTER)["nodes"][0])

    larger = with_group(count=3)
    would = bring("ec2", cluster=larger, check_mode=True)
    assert [(each["action"], each["resource"]) for each in would["stacks"][0]["changes"]] == [("Add", "Gpu3")]
    assert len(running(ec2)) == 3, "check mode started something"
    assert bring("ec2", cluster=larger)["changed"] and len(running(ec2)) == 4
    assert bring("ec2")["changed"] and len(running(ec2)) == 3

    bill = look("cost", prices={"p5.48xlarge": 50, "nat-gateway": 0.05})
    assert (bill["bill"]["hourly"], bill["bill"]["unknown"]) == (100.05, ["c6i.large"])
    assert "together $100.05/h" in bill["table"]
    kept = bring("vpc", "absent")
    assert kept["failed"] and "Stack mine-vpc is in use by stack mine-ec2, which imports mine-vpc-" in kept["msg"]
    assert bring("ec2", "absent")["changed"] and running(ec2) == {}
    assert bring("vpc", "absent")["changed"] and not bring("vpc", "absent")["changed"]
    assert look("left")["left"] == []


SCALED: dict[str, Any] = {
    **CLUSTER,
    "nodes": [CLUSTER["nodes"][1], {"name": "gpu", "type": "p5.48xlarge", "market": "spot", "max": 4}],
}


def test_a_cluster_whose_nodes_slurm_starts(bring, look, ec2, client) -> None:
    """The stack has what slurmctld needs, and no node; down ends what Slurm started."""
    bring("vpc", cluster=SCALED)
    assert bring("ec2", cluster=SCALED)["changed"] and not bring("ec2", cluster=SCALED)["changed"]
    [head] = running(ec2).values()
    named = {"LaunchTemplateName": "mine-gpu"}
    [version] = ec2.describe_launch_template_versions(**named)["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    profiles = client("iam").list_instance_profiles()["InstanceProfiles"]
    roles = {each["InstanceProfileName"]: each["Roles"][0]["RoleName"] for each in profiles}
    policies = {
        kind: json.dumps(client("iam").get_role_policy(RoleName=roles[name], PolicyName="access")["PolicyDocument"])
        for kind, name in (("node", data["IamInstanceProfile"]["Name"]), ("head", head["IamInstanceProfile"]["Arn"].split("/")[-1]))
    }
    secret = client("secretsmanager").describe_secret(SecretId="mine-slurm")["ARN"]
    assert secret in policies["node"] and "ec2:RunInstances" not in policies["node"], "jobs of a node could start instances"
    assert "ec2:RunInstances" in policies["head"] and secret not in policies["head"]
    tags = [{"Key": "muster:cluster", "Value": "mine"}, {"Key": "muster:slurm_node", "Value": "gpu-1"}, {"Key": "Name", "Value": "gpu-1"}]
    ec2.run_instances(LaunchTemplate=named, MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])
    assert bring("ec2", "absent", cluster=SCALED, check_mode=True)["changed"] and len(running(ec2)) == 2
    assert bring("ec2", "absent", cluster=SCALED)["changed"] and running(ec2) == {}
    assert bring("vpc", "absent", cluster=SCALED)["changed"] and look("left", cluster=SCALED)["left"] == []


def test_a_text_is_stored_once_and_never_shown(call, credentials, client, fault, capsys) -> None:
    wanted = {"region": "us-east-1", "name": "mine-slurm", "text": "key one"}
    assert call(aws_secret, **wanted, check_mode=True)["changed"]
    assert client("secretsmanager").list_secrets()["SecretList"] == [], "check mode stored something"
    first = call(aws_secret, **wanted)
    assert (first["changed"], first["made"]) == (True, True)
    assert not call(aws_secret, **wanted)["changed"]
    second = call(aws_secret, **{**wanted, "text": "key two"})
    assert (second["changed"], second["made"]) == (True, False)
    assert client("secretsmanager").get_secret_value(SecretId="mine-slurm")["SecretString"] == "key two"
    assert "key one" not in json.dumps(first) and "key two" not in json.dumps(second)
    fault(action="GetSecretValue", error="AccessDeniedException")
    assert "AccessDeniedException" in call(aws_secret, **wanted)["msg"]
    large = call(aws_secret, **{**wanted, "text": "x" * 65537})
    assert large["msg"] == "The text for secret mine-slurm has 65537 bytes, and Secrets Manager takes 65536; shorten it."


def facts_of(script: str) -> dict[str, Any]:
    """The variables in a boot script."""
    return json.loads(script.split("<<'MUSTER_NODE'", 1)[1].split("\n", 1)[1].split("MUSTER_NODE", maxsplit=1)[0])


def started(machines) -> str:
    """The user data of the instance that started last."""
    return [each for each in machines.done if each[0] == "start"][-1][3].decode()


STORED: dict[str, Any] = {**CLUSTER, "nodes": [{"name": "gpu", "type": "p5.48xlarge", "count": 1}], "storage": {"lustre": {"gib": 1200}}}


def test_a_cluster_with_lustre_mounts_it_and_keeps_its_network_with_the_data(bring, look, client, machines) -> None:
    done = {part: bring(part, cluster=STORED) for part in ("vpc", "fsx", "ec2")}
    assert all(each["changed"] for each in done.values())
    [stack] = done["fsx"]["stacks"]
    name = stack["outputs"]["FSxLustreFilesystemId"]
    source = f"{name}.fsx.us-east-1.amazonaws.com@tcp:/{stack['outputs']['FSxLustreFilesystemMountname']}"
    assert facts_of(started(machines))["lustre_client_mounts"] == [{"source": source, "path": "/fsx"}]

    assert bring("ec2", "absent", cluster=STORED)["changed"]
    kept = bring("fsx", "absent", cluster=STORED)
    assert (kept["changed"], kept["kept"]) == (False, [{"type": "AWS::FSx::FileSystem", "id": name}])
    network = bring("vpc", "absent", cluster=STORED)
    [gateway] = [each["id"] for each in look("left", cluster=STORED)["left"] if each["what"] == "NAT gateway"]
    said = f"Stack mine-vpc stays, because its network has file system {name}; {name} and NAT gateway {gateway} cost money, and "
    assert (network["changed"], network["stays"]) == (False, said + "verb=down with delete_data=mine removes all of it.")
    assert not bring("vpc", cluster=STORED)["changed"] and not bring("fsx", cluster=STORED)["changed"], "the next up finds the data"
    assert len(client("fsx").describe_file_systems()["FileSystems"]) == 1

    for part in ("fsx", "vpc"):
        done = bring(part, "absent", cluster=STORED, delete_data="mine")
        assert done["changed"] and not done["stays"]
    assert look("left", cluster=STORED)["left"] == []


def test_the_homes_of_a_cluster_are_on_its_openzfs(bring, machines) -> None:
    homes = {**STORED, "storage": {"openzfs": {"gib": 512}}}
    done = {part: bring(part, cluster=homes) for part in ("vpc", "fsx", "ec2")}
    name = done["fsx"]["stacks"][0]["outputs"]["FSxOpenZFSFilesystemId"]
    facts = facts_of(started(machines))
    assert (facts["storage_source"], facts["storage_path"]) == (f"{name}.fsx.us-east-1.amazonaws.com:/fsx", "/home")


def test_nodes_do_not_start_before_their_collection_is_in_the_bucket(bring, client, ec2) -> None:
    where = "s3://mine-data/muster.tar.gz"
    wanted = {**STORED, "storage": {"bucket": "mine-data"}, "setup": {"collection": where}}
    for part in ("vpc", "s3"):
        bring(part, cluster=wanted)
    done = bring("ec2", cluster=wanted)
    assert done["msg"] == (
        f"{where} is not there, and nodes install it when they boot; run aws s3 cp COLLECTION.tar.gz {where}, then verb=up again."
    )
    assert running(ec2) == {}
    client("s3").put_object(Bucket="mine-data", Key="muster.tar.gz", Body=b"1")
    assert bring("ec2", cluster=wanted)["changed"] and len(running(ec2)) == 1


class Files:
    """A region whose file systems go after some looks, or do not."""

    name = "us-east-1"

    def __init__(self, *looks: dict[str, Any]) -> None:
        self.looks, self.deleted = list(looks), 0

    def every(self, *_asked: str, **_wanted: object) -> list[dict[str, Any]]:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return [{"FileSystemId": "fs-1", "Tags": [{"Key": plan.CLUSTER_TAG, "Value": "mine"}], **found}] if found else []

    def call(self, _service: str, action: str, **_wanted: object) -> dict[str, Any]:
        assert action == "DeleteFileSystem"
        self.deleted += 1
        return {}


def test_a_network_waits_until_its_file_systems_are_gone(monkeypatch) -> None:
    monkeypatch.setattr(survey.time, "sleep", lambda _seconds: None)
    there, going = {"Lifecycle": "AVAILABLE"}, {"Lifecycle": "DELETING"}
    region = Files(there, going, going, {})
    assert (survey.delete_data(region, load(STORED), "fsx"), region.deleted, region.looks) == (["fs-1"], 1, [{}])
    region = Files(going, going, {})
    assert (survey.delete_data(region, load(STORED), "fsx"), region.deleted) == (["fs-1"], 0), "a killed run asked for it"
    with pytest.raises(ValueError, match=r"File system fs-1 is DELETING and not deleted; run verb=down again\."):
        survey.delete_data(Files(going), load(STORED), "fsx", timeout=0)
    failed = {"Lifecycle": "FAILED", "FailureDetails": {"Message": "The association is in use."}}
    with pytest.raises(ValueError, match=r"fs-1 is FAILED and not deleted \(The association is in use\); run"):
        survey.delete_data(Files(there, failed), load(STORED), "fsx")


def test_what_is_not_ours_is_left_alone(bring, look, client) -> None:
    body = json.dumps({"Resources": {"Logs": {"Type": "AWS::Logs::LogGroup"}}})
    client("cloudformation").create_stack(StackName="mine-vpc", TemplateBody=body)
    time.sleep(0.2)
    for state in ("present", "absent"):
        done = bring("vpc", state)
        assert (
            done["failed"]
            and "Region us-east-1 has a stack mine-vpc that is not made by Muster; give this cluster another name." in done["msg"]
        )
    assert "has a stack mine-vpc that is not of this cluster" in look("preflight")["msg"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("AccessDenied", "DescribeStacks is denied in region us-east-1"),
        ("ExpiredToken", "The AWS credentials have expired (ExpiredToken in region us-east-1); log in again."),
    ],
)
def test_a_call_that_is_refused_is_a_sentence(bring, fault, error: str, said: str) -> None:
    fault(action="DescribeStacks", error=error)
    assert said in bring("vpc")["msg"]


def test_another_account_is_refused_by_each_verb(bring, look, ec2) -> None:
    wrong = {**CLUSTER, "account": "999999999999"}
    told = [bring("vpc", cluster=wrong), bring("vpc", "absent", cluster=wrong)]
    told += [look(what, cluster=wrong) for what in ("preflight", "status", "cost", "left")]
    said = "The credentials are of account 123456789012, and the cluster is for 999999999999; take another profile."
    assert [each.get("msg") for each in told] == [said] * 6


PREFLIGHTS: list[tuple[dict[str, Any], str]] = [
    (
        {"account": "999999999999"},
        "The credentials are of account 123456789012, and the cluster is for 999999999999; take another profile.",
    ),
    ({"image": "ami-00000000000000000"}, "Region us-east-1 has no AMI ami-00000000000000000"),
    ({"key_pair": "nobody"}, "Region us-east-1 has no key pair nobody; correct key_pair, or leave it out."),
    ({"zones": ["us-east-1z"]}, "Region us-east-1 has no zone us-east-1z; it has us-east-1a"),
    (
        {"nodes": [{"name": "b", "type": "p6-b200.48xlarge", "count": 1}], "zones": ["us-east-1a"]},
        "Zone us-east-1a does not offer p6-b200.48xlarge;",
    ),
    ({"nodes": [{"name": "c", "type": "c6i.lorge", "count": 1}]}, "EC2 does not know one of the types c6i.lorge"),
    (
        {"nodes": [{"name": "g", "type": "p5.48xlarge", "count": 13}]},
        "is 2304, and the cluster needs 2496; ask for an increase of ec2 to 2496.",
    ),
]


@pytest.mark.parametrize(("changes", "said"), PREFLIGHTS, ids=[said[:40] for _, said in PREFLIGHTS])
def test_preflight_finds_it_before_anything_is_made(look, changes: dict[str, Any], said: str) -> None:
    done = look("preflight", cluster={**CLUSTER, **changes})
    assert done["failed"] and said in done["msg"], done


def test_preflight_passes_and_says_what_it_saw(look) -> None:
    done = look("preflight")
    assert {each["status"] for each in done["checks"]} == {"passed"} and done["not_run"] == []
    assert {"account", "image", "offer p5.48xlarge", "stack mine-vpc", "permissions"} <= {each["check"] for each in done["checks"]}


def test_a_look_that_is_denied_is_not_run(look, fault) -> None:
    fault(action="DescribeInstanceTypeOfferings", error="UnauthorizedOperation", times=9)
    done = look("preflight")
    assert "failed" not in done and len(done["not_run"]) == 1 and "DescribeInstanceTypeOfferings is denied" in done["not_run"][0]


class Iam:
    """A region that answers the simulation of policies."""

    name = "us-east-1"

    def __init__(self, *told: tuple[str, str]) -> None:
        self.told = [{"EvalActionName": action, "EvalDecision": decision} for action, decision in told]

    def every(self, *_asked: str, **_wanted: object) -> list[dict[str, str]]:
        return self.told

    def call(self, *_asked: str, **_wanted: object) -> dict[str, Any]:
        return {}


def test_permissions_pass_only_with_an_answer_for_each_action() -> None:
    cluster, arn = load(CLUSTER), "arn:aws:iam::123456789012:user/ada"
    first, *rest = permissions.actions(plan.parts(cluster))
    for told, status, text in (
        ([], "not_run", f"IAM did not say whether {arn} may {first}, {rest[0]}"),
        ([(each, "allowed") for each in rest], "not_run", f"IAM did not say whether {arn} may {first}; run preflight again."),
        ([(first, "implicitDeny")], "failed", f"{arn} may not {first}; allow it"),
        ([(each, "allowed") for each in (first, *rest)], "passed", f"{len(rest) + 1} actions"),
    ):
        found = preflight._permissions(Iam(*told), cluster, arn)
        assert found["status"] == status and found["said"].startswith(text), found


def test_a_key_pair_that_aws_does_not_show_is_missing() -> None:
    assert preflight._key_pair(Iam(), {"key_pair": "ada"})["status"] == "failed"


BLOCK = {"name": "gpu", "type": "p5.48xlarge", "count": 2, "market": "capacity-block"}
HAVE = {
    "CapacityReservationId": "cr-1",
    "State": "active",
    "InstanceType": "p5.48xlarge",
    "AvailabilityZone": "us-east-1a",
    "TotalInstanceCount": 2,
    "ReservationType": "capacity-block",
}


@pytest.mark.parametrize(
    ("have", "group", "said"),
    [
        ({}, {}, ""),
        ({"State": "expired"}, {}, "Reservation cr-1 is expired; name one that is active."),
        ({"State": "scheduled", "StartDate": "2026-12-01"}, {}, "is scheduled and begins at 2026-12-01; run again then."),
        ({"InstanceType": "p4d.24xlarge"}, {}, "is of p4d.24xlarge, and node group gpu of p5.48xlarge; correct one."),
        ({"AvailabilityZone": "us-east-1b"}, {}, "is in zone us-east-1b, and the cluster in us-east-1a; correct zones."),
        ({"ReservationType": "default"}, {}, "is no capacity block; set market to reservation."),
        ({}, {"market": "reservation"}, "is a capacity block; set market to capacity-block."),
        ({}, {"count": 3}, "has 2 instances, and node group gpu wants 3; lower count."),
    ],
)
def test_a_reservation_must_serve_its_group(have: dict[str, Any], group: dict[str, Any], said: str) -> None:
    found = preflight.reservation_fault({**HAVE, **have}, {**BLOCK, **group}, ["us-east-1a"])
    assert said in found if said else found == ""


@pytest.mark.parametrize(
    ("kind", "market", "hyperpod", "name"),
    [
        ("p5.48xlarge", "on-demand", False, "Running On-Demand P instances"),
        ("p5.48xlarge", "spot", False, "All P Spot Instance Requests"),
        ("p5.48xlarge", "capacity-block", False, None),
        ("trn2.48xlarge", "on-demand", False, "Running On-Demand Trn instances"),
        ("gr6.4xlarge", "on-demand", False, "Running On-Demand G and VT instances"),
        ("c7i.large", "on-demand", False, "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
        ("p5.48xlarge", "on-demand", True, "ml.p5.48xlarge for cluster usage"),
    ],
)
def test_the_quota_of_a_type(kind: str, market: str, hyperpod: bool, name: str | None) -> None:
    assert preflight.quota_name(kind, market, hyperpod) == name


def test_prices_are_numbers() -> None:
    with pytest.raises(ValueError, match="is 'much'; give dollars an hour"):
        survey.priced({"p5.48xlarge": 1}, {"p5.48xlarge": "much"})
