# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm's ResumeProgram and SuspendProgram over the local cloud's API; slurmctld itself is not here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.client
import cluster_files
import pytest
from local_cloud_api import AMI

from ansible_collections.muster.fleet.plugins.module_utils.aws import template_ec2
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load as load_cluster
from ansible_collections.muster.fleet.plugins.module_utils.slurm import cloud_nodes as logic

PROGRAM = Path(__file__).parents[2] / "playbooks" / "files" / "cloud_nodes.py"
GROUP = {
    "nodes": ["gpu-1", "gpu-2", "gpu-3"],
    "attempts": [{"template": "lt-1", "about": "p5 in a"}, {"template": "lt-2", "about": "p5 in b"}],
}
SETTINGS: dict[str, Any] = {"region": "us-east-1", "cluster": "mine", "groups": {"gpu": GROUP}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"region": ""}, "muster_cloud_nodes has no region; add it."),
        ({"groups": {"gpu": {**GROUP, "attempts": []}}}, "Group gpu of muster_cloud_nodes has no attempts; add some."),
        ({"groups": {"gpu": {**GROUP, "attempts": [{"template": "lt-1"}]}}}, "An attempt of group gpu has no template or no about;"),
        ({"groups": {"gpu": GROUP, "cpu": GROUP}}, "Node gpu-1 is in the groups gpu and cpu; remove it from one."),
    ],
)
def test_settings_are_checked(tmp_path: Path, capsys, monkeypatch, changes: dict[str, Any], said: str) -> None:
    (tmp_path / "new.json").write_text(json.dumps({**SETTINGS, **changes}))
    program = load(monkeypatch)
    assert program.main(["check", str(tmp_path / "new.json")]) == bool(said)
    assert said in capsys.readouterr().err


def test_nodes_of_a_job_start_together() -> None:
    settings = {**SETTINGS, "groups": {"gpu": GROUP, "cpu": {"nodes": ["cpu-1"], "attempts": GROUP["attempts"]}}}
    nodes = ["gpu-1", "gpu-2", "gpu-3", "cpu-1", "lost"]
    assert logic.batches(settings, nodes, [["gpu-1", "gpu-3"], ["cpu-1", "gpu-2", "gpu-9"]]) == [
        *(("gpu", ["gpu-1", "gpu-3"]), ("cpu", ["cpu-1"]), ("gpu", ["gpu-2"]), ("", ["lost"]))
    ]
    assert logic.batches(settings, ["gpu-1", "gpu-2"]) == [("gpu", ["gpu-1"]), ("gpu", ["gpu-2"])]


def test_no_room_is_tried_elsewhere_and_other_errors_are_not() -> None:
    tried: list[str] = []
    codes: list[str] = []

    def launch(attempt: dict[str, str], nodes: list[str]) -> dict[str, str]:
        tried.append(attempt["about"])
        if code := codes[len(tried) - 1]:
            raise logic.LaunchError(f"{code}: no\nway", code)
        return dict.fromkeys(nodes, "i-1")

    for answers, count, made, why in (
        (["", ""], 1, {"gpu-1": "i-1"}, ""),
        (["InsufficientInstanceCapacity", ""], 2, {"gpu-1": "i-1"}, ""),
        (
            ["InsufficientInstanceCapacity", "VcpuLimitExceeded"],
            2,
            {},
            "muster:cloud: no room for 1 nodes: p5 in a (InsufficientInstanceCapacity), p5 in b (VcpuLimitExceeded)",
        ),
        (["UnauthorizedOperation", ""], 1, {}, "muster:cloud: p5 in a cannot start: UnauthorizedOperation: no way"),
    ):
        tried.clear()
        codes[:] = answers
        assert logic.start(GROUP["attempts"], ["gpu-1"], launch) == (made, why)
        assert len(tried) == count


def load(monkeypatch) -> Any:
    monkeypatch.setitem(sys.modules, "slurm_cloud_nodes", logic)
    spec = importlib.util.spec_from_file_location("cloud_nodes", PROGRAM)
    assert spec and spec.loader
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


@pytest.fixture
def slurm(served, machines, ec2, tmp_path, monkeypatch) -> SimpleNamespace:
    """Launch templates in two zones, and the program with a scontrol that records its arguments."""
    for key, value in served.env.items():
        monkeypatch.setenv(key, value)
    program, told = load(monkeypatch), []
    data = {"ImageId": AMI, "InstanceType": "c6i.large", "InstanceMarketOptions": {"MarketType": "spot"}}
    zones = ("us-east-1a", "us-east-1b")
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in ec2.describe_subnets()["Subnets"]}
    card = {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface", "SubnetId": subnets[zones[0]]}
    made = ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData={**data, "NetworkInterfaces": [card]})
    template = made["LaunchTemplate"]["LaunchTemplateId"]
    attempts = [
        {"template": template, "about": "c6i.large in a"},
        {"template": "gpu", "subnet": subnets[zones[1]], "about": "c6i.large in b"},
    ]
    (tmp_path / "cloud_nodes.json").write_text(json.dumps({**SETTINGS, "groups": {"gpu": {**GROUP, "attempts": attempts}}}))
    monkeypatch.setattr(program, "SETTINGS", str(tmp_path / "cloud_nodes.json"))

    def scontrol(*argv: str) -> str:
        if argv[1] == "hostnames":
            return "\n".join(argv[2].split(","))
        assert argv[0] == "update"
        told.append(argv[1:])
        return ""

    monkeypatch.setattr(program, "scontrol", scontrol)

    def run(verb: str, nodes: str, jobs: list[str] | None = None) -> int:
        told.clear()
        (tmp_path / "resume.json").write_text(json.dumps({"jobs": [{"nodes_resume": each} for each in jobs or []]}))
        monkeypatch.setenv("SLURM_RESUME_FILE", str(tmp_path / "resume.json"))
        return program.main([verb, nodes])

    def nodes() -> dict[str, str]:
        """{node: its zone} of what runs."""
        wanted = [{"Name": "instance-state-name", "Values": ["pending", "running"]}, {"Name": "tag-key", "Values": ["muster:slurm_node"]}]
        every = [each for one in ec2.describe_instances(Filters=wanted)["Reservations"] for each in one["Instances"]]
        named = [({tag["Key"]: tag["Value"] for tag in each["Tags"]}, each) for each in every]
        assert all(tags["Name"] == tags["muster:slurm_node"] and tags["muster:cluster"] == "mine" for tags, _ in named)
        return {tags["Name"]: each["Placement"]["AvailabilityZone"] for tags, each in named}

    return SimpleNamespace(run=run, told=told, nodes=nodes, tries=program.TRIES)


def test_a_job_makes_nodes_appear_and_they_go(slurm, ec2) -> None:
    ec2.run_instances(ImageId=AMI, InstanceType="c6i.large", MinCount=1, MaxCount=1)
    assert slurm.run("resume", "gpu-1,gpu-2", ["gpu-1,gpu-2"]) == 0
    assert slurm.nodes() == {"gpu-1": "us-east-1a", "gpu-2": "us-east-1a"}
    assert [each[0] for each in slurm.told] == ["NodeName=gpu-1", "NodeName=gpu-2"]
    assert all(each[1].startswith("NodeAddr=") for each in slurm.told)
    assert slurm.run("resume", "gpu-1,gpu-3") == 0
    assert len(slurm.nodes()) == 3, "gpu-1 got a second instance"
    assert slurm.run("suspend", "gpu-1,gpu-2") == 0 and slurm.nodes() == {"gpu-3": "us-east-1a"}
    assert slurm.run("suspend", "gpu-1,gpu-2,gpu-3") == 0 and slurm.nodes() == {}
    running = ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["running"]}])["Reservations"]
    assert len(running) == 1, "an instance of somebody else was ended"


def test_no_capacity_is_the_next_zone_and_then_the_cloud_with_the_reason(slurm, fault) -> None:
    fault(action="RunInstances", error="InsufficientInstanceCapacity", times=slurm.tries)
    assert slurm.run("resume", "gpu-1,gpu-2", ["gpu-1,gpu-2"]) == 0
    assert slurm.nodes() == {"gpu-1": "us-east-1b", "gpu-2": "us-east-1b"}, "nodes of one job are in two zones"
    slurm.run("suspend", "gpu-1,gpu-2")
    fault(action="RunInstances", error="InsufficientInstanceCapacity", times=2 * slurm.tries)
    assert slurm.run("resume", "gpu-1,lost", ["gpu-1"]) == 1
    full = "(InsufficientInstanceCapacity)"
    why = f"Reason=muster:cloud: no room for 1 nodes: c6i.large in a {full}, c6i.large in b {full}"
    lost = "Reason=muster:cloud: no group of muster_cloud_nodes has this node; add it"
    assert slurm.told == [
        ("NodeName=gpu-1", "State=POWER_DOWN_FORCE", why),
        ("NodeName=lost", "State=POWER_DOWN_FORCE", lost),
    ]
    assert slurm.nodes() == {}


def test_an_account_that_cannot_be_asked_gives_the_nodes_back(slurm, fault) -> None:
    fault(action="DescribeInstances", error="UnauthorizedOperation")
    assert slurm.run("resume", "gpu-1") == 1
    [told] = slurm.told
    assert told[:2] == ("NodeName=gpu-1", "State=POWER_DOWN_FORCE")
    assert told[2].startswith("Reason=muster:cloud: EC2 cannot be asked: ") and "UnauthorizedOperation" in told[2]
    fault(action="DescribeInstances", error="UnauthorizedOperation")
    assert slurm.run("suspend", "gpu-1") == 1 and slurm.told == []


def test_instances_that_cannot_be_named_are_ended(slurm, fault, ec2) -> None:
    fault(action="CreateTags", error="UnauthorizedOperation")
    assert slurm.run("resume", "gpu-1") == 1
    assert "its instances could not be named, and were ended" in slurm.told[0][2]
    assert ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}])["Reservations"] == []


def test_the_role_of_the_controllers_allows_what_the_programs_call_and_nothing_else(slurm, fault, monkeypatch) -> None:
    seen: set[str] = set()
    former = botocore.client.BaseClient._make_api_call

    def recorded(self: Any, operation: str, given: Any) -> Any:
        seen.add(f"{self.meta.service_model.service_name}:{operation}")
        return former(self, operation, given)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", recorded)
    fault(action="RunInstances", error="InsufficientInstanceCapacity", times=slurm.tries)
    assert slurm.run("resume", "gpu-1,gpu-2", ["gpu-1,gpu-2"]) == 0 and slurm.run("suspend", "gpu-1,gpu-2") == 0
    cluster = load_cluster(cluster_files.examples()["ec2-slurm"])
    allowed = {action for each in template_ec2.controller_statements(cluster) for action in each["Action"]}
    # EC2 asks for the last when a launch template names a role.
    assert seen == allowed - {"iam:PassRole"}
