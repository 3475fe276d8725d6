# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The files of clusters that Muster renders and does not make: current, with the fields of their tools and services, for every type
with EFA on every market; one sentence for what a kind has not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cluster_files
import pytest
import yaml
from cfn_rules import template_faults
from playbook import run_playbook
from service_schemas import BUILD_IMAGE, EKSCTL, PARALLELCLUSTER, model, pcs_requests, request_faults, unknown_fields

from ansible_collections.muster.fleet.plugins.module_utils.aws import hyperpod, plan, render, yaml_text
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import KINDS, ClusterError, load
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.modules import cluster_document

EXAMPLES = cluster_files.examples()
MARKETS = ("on-demand", "spot", "reservation", "capacity-block")
# What stands for the ids that create.sh asks AWS for.
IDS = {
    "ACCOUNT": "123456789012",
    "EXECUTION_ROLE": "arn:aws:iam::123456789012:role/mine",
    "LUSTRE_DNSNAME": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
    "LUSTRE_MOUNTNAME": "abcdefgh",
    "OPENZFS_FILESYSTEMDNSNAME": "fs-0123456789abcdef1.fsx.us-east-1.amazonaws.com",
    "PRIVATE_SUBNET_1": "subnet-0123456789abcdef0",
    "PRIVATE_SUBNET_2": "subnet-0123456789abcdef1",
    "SECURITY_GROUP": "sg-0123456789abcdef0",
}
Files = dict[str, str]


def filled(text: str) -> str:
    return render.VARIABLE.sub(lambda match: IDS.get(match[1], match[1].lower()), text)


def files_of(cluster: dict[str, Any]) -> Files:
    return {name: filled(text) for name, text in render.own_files(load(cluster)).items()}


def faults(kind: str, found: Files, instance_type: str = "") -> list[str]:
    """One sentence for each fault of a cluster's files."""
    if kind == "parallelcluster":
        document = yaml.safe_load(found["parallelcluster.yaml"])
        told = unknown_fields(document, PARALLELCLUSTER) + parallelcluster_faults(document)
        if "build-image.yaml" in found:
            told += unknown_fields(yaml.safe_load(found["build-image.yaml"]), BUILD_IMAGE)
        return told
    if kind == "pcs":
        template = json.loads(found["mine-pcs.template.json"])
        asked = pcs_requests(template)
        return template_faults(template, instance_type) + [said for each in asked for said in request_faults("pcs", *each)]
    if kind not in plan.RENDERED:
        [template] = [json.loads(text) for name, text in found.items() if name.endswith(".template.json")]
        return template_faults(template, instance_type)
    told = []
    if "eksctl.yaml" in found:
        document = yaml.safe_load(found["eksctl.yaml"])
        told += unknown_fields(document, EKSCTL) + eksctl_faults(document)
    if kind.startswith("hyperpod"):
        told += request_faults("sagemaker", "CreateCluster", json.loads(found["create-cluster.json"]))
        told += template_faults(json.loads(found["mine-hyperpod.template.json"]))
    return told


def parallelcluster_faults(document: dict[str, Any]) -> list[str]:
    """What ParallelCluster's validators say beside its schema."""
    found = []
    for queue in document["Scheduling"]["SlurmQueues"]:
        block = queue["CapacityType"] == "CAPACITY_BLOCK"
        if queue["CapacityType"] not in ("ONDEMAND", "SPOT", "CAPACITY_BLOCK"):
            found.append(f"CapacityType {queue['CapacityType']}")
        for nodes in queue["ComputeResources"]:
            efa = "Efa" in nodes
            if efa and not block and "Enabled" not in queue["Networking"].get("PlacementGroup", {}):
                found.append("a queue with EFA must say whether it has a placement group")
            if efa and len(queue["Networking"]["SubnetIds"]) > 1:
                found.append("EFA spans subnets")
            if block and not ("CapacityReservationTarget" in nodes and nodes["MinCount"] == nodes["MaxCount"] > 0):
                found.append("a block needs its reservation, and all of its nodes")
            if block and "PlacementGroup" in queue["Networking"]:
                found.append("a block has a place of its own")
            if nodes["MinCount"] > nodes["MaxCount"]:
                found.append("MinCount is larger than MaxCount")
    return found


def eksctl_faults(document: dict[str, Any]) -> list[str]:
    """What eksctl's own code says beside its schema."""
    found = []
    for group in [*document.get("managedNodeGroups", []), *document.get("nodeGroups", [])]:
        if group.get("efaEnabled") and len(group["availabilityZones"]) != 1:
            found.append("a group with EFA must be in one zone")
        market = group.get("instanceMarketOptions", {}).get("marketType")
        if market not in (None, "capacity-block") or (market and "capacityReservation" not in group):
            found.append(f"marketType {market}")
        if not group["minSize"] <= group["desiredCapacity"] <= group["maxSize"] or group["maxSize"] < 1:
            found.append("sizes out of order")
        if ("instanceType" in group) == ("instancesDistribution" in group):
            found.append("one of instanceType and instancesDistribution")
        if "ami" in group and "amiFamily" not in group:
            found.append("ami without amiFamily")
    return found


def test_the_golden_files_are_current(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster_files.py", "--check"])
    assert (cluster_files.main(), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_golden_file_has_no_faults(name: str) -> None:
    cluster = EXAMPLES[name]
    assert faults(cluster["kind"], files_of(cluster), cluster["nodes"][-1]["type"]) == []


@pytest.mark.parametrize("market", MARKETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_with_efa_is_rendered_or_refused_with_a_sentence(kind: str, market: str) -> None:
    refused = {}
    for name in catalogue.names():
        if not catalogue.instance_type(name)["efa"]:
            continue
        cluster = cluster_files.document(kind, market, {"type": name})
        if kind == "parallelcluster" and catalogue.instance_type(name)["arch"] == "arm64":
            cluster["nodes"][0]["type"] = "m7g.2xlarge"
        try:
            found = files_of(cluster)
        except ClusterError as error:
            refused[name] = str(error)
            continue
        assert faults(kind, found, name) == [], name
        assert name in "".join(found.values())
    for name, said in refused.items():
        assert said.startswith("Cluster mine") and said[-1] == "." and "\n" not in said, name
    sold = {name for name in catalogue.names() if market == "reservation" or market in catalogue.instance_type(name)["markets"]}
    allowed = market in cluster_files.MARKETS[kind]
    others = {name for name in refused if allowed and name in sold}
    not_offered = {each for each in hyperpod.NOT_OFFERED if catalogue.instance_type(each)["efa"]}
    eks = {"p6-b300.48xlarge", "p6e-gb200.36xlarge"}
    expected = not_offered if kind.startswith("hyperpod") else {"eks": eks, "pcs": {"p6e-gb200.36xlarge"}}.get(kind, set())
    assert others == (expected & sold if allowed else set())


@pytest.mark.parametrize(
    ("kind", "name", "change", "said"),
    [
        (
            "parallelcluster",
            "parallelcluster.yaml",
            lambda t: t.replace("ScaledownIdletime", "ScaleDownIdletime"),
            "no field ScaleDownIdle",
        ),
        (
            "parallelcluster",
            "parallelcluster.yaml",
            lambda t: t.replace("Enabled: true\n    ComputeS", "Id: pg\n    ComputeS"),
            "must say whether",
        ),
        ("parallelcluster", "build-image.yaml", lambda t: t.replace("ParentImage", "Parent"), "no field Parent"),
        ("pcs", "mine-pcs.template.json", lambda t: t.replace('"ONDEMAND"', '"ON_DEMAND"'), "ON_DEMAND is none of its values"),
        ("pcs", "mine-pcs.template.json", lambda t: t.replace("ScalingConfiguration", "Scaling"), "scalingConfiguration"),
        ("pcs", "mine-pcs.template.json", lambda t: t.replace('"efa"', '"efaa"', 1), "unknown type efaa"),
        ("eks", "eksctl.yaml", lambda t: t.replace("efaEnabled", "efaEnabledd"), "no field efaEnabledd"),
        ("eks", "eksctl.yaml", lambda t: t.replace("  - us-east-1a\n", "  - us-east-1a\n  - us-east-1b\n"), "in one zone"),
        ("hyperpod-slurm", "create-cluster.json", lambda t: t.replace('"Automatic"', '"Sometimes"'), "Sometimes is none of its values"),
        ("hyperpod-slurm", "create-cluster.json", lambda t: t.replace("ExecutionRole", "Role"), "ExecutionRole"),
        ("hyperpod-eks", "create-cluster.json", lambda t: t.replace("cluster/mine", "cluster"), "does not match"),
    ],
)
def test_the_checks_see_a_broken_file(kind: str, name: str, change: Any, said: str) -> None:
    found = files_of(cluster_files.document(kind))
    broken = change(found[name])
    assert broken != found[name]
    assert said in " ".join(faults(kind, {**found, name: broken}, "p5.48xlarge"))


@pytest.mark.parametrize(
    "value",
    [
        "true",
        "No",
        "1.33",
        "1e3",
        "~",
        "",
        "a: b",
        "a #b",
        "a:",
        "- a",
        "${VPC}",
        "{a}",
        "x\ny\n",
        "x\n",
        "\n",
        " x\n",
        "x\n\n",
        'say "hi"',
        "é",
    ],
)
def test_yaml_of_a_text_is_read_back(value: str) -> None:
    for document in ({"a": value}, {"a": [value]}, {"a": [{"b": value, "c": 1}]}, {"a": {"b": {value: value}}, "d": True}):
        assert yaml.safe_load(yaml_text.dump(document)) == document
    assert list(yaml.safe_load_all(yaml_text.dump([{"a": []}, {"b": {}}]))) == [{"a": []}, {"b": {}}]


def test_hyperpod_s_types_are_those_of_its_api() -> None:
    offered = model("sagemaker").shape_for("ClusterInstanceType").enum
    assert sorted(hyperpod.NOT_OFFERED) == sorted(name for name in catalogue.names() if "ml." + name not in offered)


def test_pcs_s_markets_are_those_of_its_api() -> None:
    for market, option in (("on-demand", "ONDEMAND"), ("spot", "SPOT"), ("reservation", "ONDEMAND"), ("capacity-block", "CAPACITY_BLOCK")):
        template = json.loads(files_of(cluster_files.document("pcs", market))["mine-pcs.template.json"])
        launch = template["Resources"]["GpuLaunch"]["Properties"]["LaunchTemplateData"]
        assert template["Resources"]["GpuNodes"]["Properties"]["PurchaseOption"] == option
        assert ("SpotOptions" in template["Resources"]["GpuNodes"]["Properties"]) == (market == "spot")
        target = {"CapacityReservationTarget": {"CapacityReservationId": cluster_files.RESERVATION}}
        assert launch.get("CapacityReservationSpecification") == (target if market in ("reservation", "capacity-block") else None)
        assert launch.get("InstanceMarketOptions") == ({"MarketType": "capacity-block"} if market == "capacity-block" else None)
        assert ("Placement" in launch) == (market in ("on-demand", "spot"))


def group_of(kind: str, market: str = "on-demand", **group: Any) -> dict[str, Any]:
    """The one node group of eksctl's file, or of HyperPod's request."""
    found = files_of(cluster_files.document(kind, market, group))
    if kind == "eks":
        return yaml.safe_load(found["eksctl.yaml"])["managedNodeGroups"][-1]
    return json.loads(found["create-cluster.json"])["InstanceGroups"][-1]


def test_a_group_of_eks_scales_from_zero() -> None:
    group = group_of("eks", "spot", count=0, max=4)
    assert (group["minSize"], group["desiredCapacity"], group["maxSize"], group["spot"]) == (0, 0, 4, True)
    tags = {name.rpartition("resources/")[2]: value for name, value in group["tags"].items()}
    assert tags == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"} and group["propagateASGTags"]
    assert group["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]


def test_an_autoscaler_comes_with_groups_that_grow() -> None:
    """It finds the groups by the tags that EKS gives to managed ones and that others must have, by the identity that eksctl makes."""
    assert "autoscaler.yaml" not in files_of(cluster_files.document("eks"))
    versions = {"kubernetes": "1.34"}
    found = files_of(cluster_files.document("eks", "spot", {"managed": False, "count": 0, "max": 4}, versions=versions))
    every = list(yaml.safe_load_all(found["autoscaler.yaml"]))
    by_kind = {each["kind"]: each for each in every}
    assert sorted(by_kind) == ["ClusterRole", "ClusterRoleBinding", "Deployment", "Role", "RoleBinding"]
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"].endswith(":v1.34.0")
    [discovery] = [each for each in container["command"] if "auto-discovery" in each]
    eksctl = yaml.safe_load(found["eksctl.yaml"])
    wanted = discovery.partition("asg:tag=")[2].split(",")
    assert set(wanted) <= set(eksctl["nodeGroups"][0]["tags"]) and "k8s.io/cluster-autoscaler/mine" in wanted
    [account] = eksctl["iam"]["serviceAccounts"]
    assert account["metadata"] == {"name": pod["serviceAccountName"], "namespace": by_kind["Deployment"]["metadata"]["namespace"]}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert by_kind[kind]["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]
        assert by_kind[kind]["roleRef"]["name"] == by_kind[kind.removesuffix("Binding")]["metadata"]["name"]
    assert "nvidia.com/gpu" not in json.dumps(pod), "it runs on the group of the system"


def test_pods_of_the_system_have_a_group() -> None:
    alone = yaml.safe_load(files_of(cluster_files.document("eks"))["eksctl.yaml"])["managedNodeGroups"]
    assert [each["name"] for each in alone] == ["system", "gpu"]
    nodes = [*cluster_files.document("eks")["nodes"], {"name": "cpu", "type": "m6i.xlarge", "count": 2}]
    both = yaml.safe_load(files_of(cluster_files.document("eks", nodes=nodes))["eksctl.yaml"])["managedNodeGroups"]
    assert [(each["name"], "taints" in each) for each in both] == [("gpu", True), ("cpu", False)]


def test_claims_follow_the_network() -> None:
    """eksctl's own VPC has no file system before it, so that the driver makes one; in a VPC that is there the stack does."""
    assert "claim-static.yaml" not in files_of(cluster_files.document("eks"))
    found = files_of(cluster_files.document("eks", vpc=cluster_files.EXISTING_VPC))
    volume, claim = yaml.safe_load_all(found["claim-static.yaml"])
    assert volume["spec"]["csi"]["volumeAttributes"] == {"dnsname": IDS["LUSTRE_DNSNAME"], "mountname": IDS["LUSTRE_MOUNTNAME"]}
    assert (claim["metadata"]["name"], claim["spec"]["volumeName"]) == ("fsx-claim", volume["metadata"]["name"])
    kind, _claim = yaml.safe_load_all(found["claim-dynamic.yaml"])
    assert kind["parameters"]["subnetId"] == cluster_files.EXISTING_VPC["subnets"][0]


def test_hyperpod_takes_training_plans_and_spot() -> None:
    assert group_of("hyperpod-eks", "reservation")["TrainingPlanArn"] == cluster_files.PLAN
    assert group_of("hyperpod-eks", "spot")["CapacityRequirements"] == {"Spot": {}}
    assert "NodeProvisioningMode" not in files_of(cluster_files.document("hyperpod-eks"))["create-cluster.json"]
    assert (
        json.loads(files_of(cluster_files.document("hyperpod-eks", "spot"))["create-cluster.json"])["NodeProvisioningMode"] == "Continuous"
    )
    off = cluster_files.document("hyperpod-slurm", setup={"repair": False})
    assert json.loads(files_of(off)["create-cluster.json"])["NodeRecovery"] == "None"


def test_slurm_of_hyperpod_reads_its_groups() -> None:
    found = json.loads(files_of(cluster_files.document("hyperpod-slurm"))["provisioning_parameters.json"])
    assert (found["controller_group"], found["workload_manager"]) == ("head", "slurm")
    assert found["worker_groups"] == [{"instance_group_name": "gpu", "partition_name": "gpu"}]
    assert (found["fsx_dns_name"], found["fsx_mountname"]) == (IDS["LUSTRE_DNSNAME"], IDS["LUSTRE_MOUNTNAME"])


HEAD: dict[str, Any] = {"name": "head", "type": "m6i.2xlarge", "role": "controller", "count": 1}
GPU: dict[str, Any] = {"name": "gpu", "type": "p5.48xlarge", "count": 2}
BLOCK = {"market": "capacity-block", "reservation": cluster_files.RESERVATION}
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("parallelcluster", {"storage": {}}, "has no storage.bucket, from which ParallelCluster's nodes take their scripts"),
    ("parallelcluster", {"nodes": [{**HEAD, "count": 2}, GPU]}, "must be one node of the market on-demand"),
    (
        "parallelcluster",
        {"nodes": [HEAD, {**GPU, "type": "g5g.16xlarge"}]},
        "g5g.16xlarge is arm64 and the controller's m6i.2xlarge is x86_64",
    ),
    ("parallelcluster", {"nodes": [HEAD, {**GPU, **BLOCK, "max": 4}]}, "keeps all nodes of a capacity block up"),
    ("parallelcluster", {"nodes": [HEAD, {**GPU, "name": "in", "role": "login", "max": 4}, GPU]}, "login nodes are a fixed number"),
    ("parallelcluster", {"versions": {"parallelcluster": "3.15"}}, "versions.parallelcluster is 3.15, and Muster renders files of 3.16"),
    ("parallelcluster", {"os": "ubuntu2204x"}, "os ubuntu2204x is unknown; did you mean ubuntu2204?"),
    (
        "parallelcluster",
        {
            "os": "rhel9",
            "nodes": [{**HEAD, "type": "m7g.2xlarge"}, {**GPU, **BLOCK, "type": "p6e-gb200.36xlarge"}],
        },
        "ParallelCluster has no rhel9 for p6e-gb200.36xlarge",
    ),
    ("parallelcluster", {"accounting": {"managed": True}}, "needs uri, user and secret of a MySQL database in accounting; add uri"),
    ("parallelcluster", {"accounting": {"uri": "a", "user": "b", "secret": "c"}}, "accounting.secret must be the ARN of a secret, not c"),
    ("parallelcluster", {"nodes": [HEAD, *({**GPU, "name": f"g{number}"} for number in range(51))]}, "takes 50 queues"),
    ("pcs", {"os": "rhel9"}, "os is for parallelcluster, and this is pcs"),
    ("pcs", {"accounting": {"uri": "a"}}, "PCS keeps the accounting database itself"),
    ("pcs", {"image": ""}, "has no image; give an AMI that has PCS's agent and Slurm"),
    ("pcs", {"nodes": [{**GPU, "name": "p5"}]}, "node group p5: PCS takes names of 3 letters or more"),
    ("pcs", {"name": "my"}, "PCS takes names of 3 letters or more"),
    ("pcs", {"versions": {"slurm": "23.11"}}, "versions.slurm 23.11 is not one of PCS; take 24.11, 25.05, 25.11"),
    ("pcs", {"nodes": [{**GPU, "count": 3000}]}, "has 3000 nodes, and PCS takes 2048"),
    (
        "pcs",
        {"nodes": [{**GPU, "name": f"gp{number}"} for number in range(9)], "storage": {}},
        "goes by way of a bucket; add storage.bucket",
    ),
    ("pcs", {"nodes": [{**GPU, **BLOCK, "type": "p6e-gb200.36xlarge"}]}, "PCS hands on no interface of the type efa-only"),
    ("pcs", {"nodes": [{**GPU, "market": "capacity-block"}]}, "market capacity-block needs the id of its reservation"),
    ("eks", {"accounting": {"managed": True}}, "accounting is for parallelcluster and pcs, and this is eks"),
    ("eks", {"versions": {"kubernetes": "1.12"}}, "versions.kubernetes 1.12 is not one of EKS"),
    ("eks", {"nodes": [{**GPU, "type": "p6-b300.48xlarge"}]}, "eksctl puts EFA on card 0 of p6-b300.48xlarge, which carries ENA only"),
    ("eks", {"nodes": [{**GPU, "name": "system"}]}, "this is the name of the group for pods of the system"),
    ("eks", {"nodes": [{**GPU, "market": "reservation"}]}, "market reservation needs the id of its reservation"),
    ("eks", {"storage": {"openzfs": {"gib": 512}}}, "storage.openzfs is for home folders"),
    ("eks", {"storage": {"lustre": {"repository": "s3://a-bucket/"}}}, "give vpc.stack or vpc.id"),
    ("eks", {"vpc": {"nat": "none", "endpoints": True}}, "nodes in the VPC that eksctl makes need NAT"),
    ("eks", {"vpc": {"endpoints": True}}, "eksctl makes no interface endpoints"),
    ("eks", {"zones": ["us-east-1a"]}, "needs subnets in two zones"),
    ("pcs", {"nodes": [{**GPU, "managed": False}]}, "node group gpu has managed, which only eks takes"),
    ("hyperpod-slurm", {"nodes": [HEAD, {**GPU, "market": "spot"}]}, "HyperPod has spot nodes with EKS only"),
    ("hyperpod-slurm", {"nodes": [HEAD, {**GPU, "type": "trn2u.48xlarge"}]}, "HyperPod does not offer trn2u.48xlarge"),
    ("hyperpod-slurm", {"nodes": [HEAD, {**GPU, **BLOCK}]}, "give the ARN of a training plan"),
    ("hyperpod-slurm", {"nodes": [HEAD, {**GPU, "min": 1}]}, "has min 1, and HyperPod with Slurm has count nodes"),
    ("hyperpod-slurm", {"nodes": [HEAD, {**GPU, "max": 4}]}, "has max 4, and HyperPod has count nodes"),
    ("hyperpod-slurm", {"nodes": [{**HEAD, "count": 2}, GPU]}, "HyperPod takes one controller"),
    ("hyperpod-slurm", {"nodes": [HEAD, *({**GPU, "name": each, "role": "login"} for each in "ab"), GPU]}, "has the login groups a and b"),
    ("hyperpod-eks", {"storage": {}}, "has no storage.bucket, from which HyperPod's nodes take their scripts"),
    ("hyperpod-eks", {"nodes": [{**GPU, "count": 7000}]}, "a group of HyperPod takes 6758"),
]


@pytest.mark.parametrize(("kind", "changes", "said"), FAULTS, ids=[f"{kind}: {said[:40]}" for kind, _, said in FAULTS])
def test_a_fault_is_one_sentence(kind: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ClusterError) as error:
        render.files(load(cluster_files.document(kind, **changes)))
    assert said in str(error.value)
    assert "\n" not in str(error.value) and str(error.value)[-1] in ".?"


@pytest.mark.parametrize("kind", plan.RENDERED)
def test_the_module_renders_and_makes_nothing(call, tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine.yml").write_text(json.dumps(cluster_files.document(kind)))
    done = call(cluster_document, path=str(tmp_path / "mine.yml"), verb="render")
    file, command = plan.tool(load(cluster_files.document(kind)))
    assert {file, "create.sh"} <= set(done["rendered"]) and done["state"] == ""
    assert command in done["rendered"]["create.sh"]
    for verb in plan.VERBS:
        if verb != "render":
            told = call(cluster_document, path=str(tmp_path / "mine.yml"), verb=verb)
            assert told["failed"] and file in told["msg"] and f"`{command}`" in told["msg"]


def test_a_user_learns_where_the_rendered_files_are(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(json.dumps(cluster_files.document("hyperpod-slurm")))
    done = run_playbook(tmp_path, "playbooks/cloud.yml", "-e", "cluster=@mine.yml", "-e", "verb=render")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs/cloud/mine"
    told = " ".join(done.stdout.split())
    assert f"'files: {folder}'" in told and f"next: read {folder}/create.sh, then run it" in told
    assert (folder / "create.sh").is_file()


@pytest.mark.parametrize(
    ("kind", "scripts"),
    [
        ("batch", set()),
        ("eks", set()),
        ("ec2", {"boot-gpu.sh"}),
        ("hyperpod-slurm", {"boot-head.sh", "boot-gpu.sh"}),
        ("parallelcluster", {"boot-head.sh", "boot-gpu.sh"}),
    ],
)
def test_a_boot_script_is_rendered_for_nodes_that_run_it(kind: str, scripts: set[str]) -> None:
    """Login nodes of ParallelCluster run none."""
    document = cluster_files.document(kind)
    if kind == "parallelcluster":
        document["nodes"].append({**HEAD, "name": "login", "role": "login"})
    found = render.files(load(document))
    assert {name for name in found if name.startswith("boot-")} == scripts
    assert "boot-login.sh" not in found.get("create.sh", "")


SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
# A stand-in for each tool: aws answers with ids, the others say what they were given.
AWS = """#!/bin/bash
echo "aws $*" >>"$SEEN"
case "$*" in
  *describe-stacks*PrivateSubnets*|*SubnetsPrivate*) echo subnet-a,subnet-b ;;
  *describe-stacks*) echo "id-of-$6" ;;
  *get-caller-identity*) echo 123456789012 ;;
esac
"""
TOOL = '#!/bin/bash\necho "${0##*/} $*" >>"$SEEN"\n'
ENVSUBST = """#!/usr/bin/env python3
import os, re, sys
names = re.findall(r"\\$\\{(\\w+)\\}", sys.argv[1])
sys.stdout.write(re.sub(r"\\$\\{(\\w+)\\}", lambda m: os.environ[m[1]] if m[1] in names else m[0], sys.stdin.read()))
"""


def stand_ins(folder: Path, **scripts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


# One market of each kind, and the examples with another network, type or market.
TYPED = [name for name in EXAMPLES if "create.sh" in render.files(load(EXAMPLES[name])) and not name.endswith(MARKETS[1:])]


@pytest.mark.parametrize("name", TYPED)
def test_create_sh_asks_for_ids_and_runs_the_tool(tmp_path: Path, name: str) -> None:
    loaded = load(EXAMPLES[name])
    found = render.files(loaded)
    for each, text in found.items():
        (tmp_path / each).write_text(text)
    stand_ins(tmp_path / "bin", aws=AWS, envsubst=ENVSUBST, **dict.fromkeys(("pcluster", "eksctl", "kubectl"), TOOL))
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    done = subprocess.run(["bash", "create.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = (tmp_path / "seen").read_text()
    assert plan.tool(loaded)[1] in seen
    for path in (tmp_path / "filled").iterdir():
        assert not render.VARIABLE.search(path.read_text()), path.name
    for path in re.findall(r"s3 cp --only-show-errors (\S+)", seen):
        assert (tmp_path / path).is_file()
    linted = [SHELLCHECK, "create.sh", *(["on_create.sh"] if "on_create.sh" in found else [])]
    assert subprocess.run(linted, cwd=tmp_path, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("answer", ["", "None"])
def test_create_sh_stops_at_an_output_that_is_not_there(tmp_path: Path, answer: str) -> None:
    """The AWS CLI prints None for a stack without any outputs."""
    for name, text in render.files(load(cluster_files.document("parallelcluster"))).items():
        (tmp_path / name).write_text(text)
    stand_ins(tmp_path / "bin", aws=f"#!/bin/bash\necho {answer}\n", envsubst=ENVSUBST, pcluster=TOOL)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    done = subprocess.run(["bash", "create.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "stack mine-fsx has no output FSxLustreFilesystemId" in done.stderr
    assert not (tmp_path / "seen").exists(), "pcluster did not run"


# An account without the bucket until its stack is deployed. The collection is there when the file `collection` is.
BUCKETLESS = """#!/bin/bash
echo "aws $*" >>"$SEEN"
case "$*" in
  *"deploy --stack-name mine-s3 "*) touch bucket ;;
  *s3-bucket*|"s3 cp"*|*create-cluster*) [ -e bucket ] || { echo NoSuchBucket >&2; exit 1; } ;;
  *head-object*) [ -e bucket ] && [ -e collection ] || { echo NotFound >&2; exit 254; } ;;
  *describe-stacks*PrivateSubnets*) echo subnet-a,subnet-b ;;
  *describe-stacks*) echo "id-of-$6" ;;
esac
"""


@pytest.mark.parametrize("kind", ["hyperpod-slurm", "hyperpod-eks", "parallelcluster", "pcs"])
def test_the_bucket_and_what_is_in_it_come_before_the_nodes(tmp_path: Path, kind: str) -> None:
    """create.sh stops with what to type when the collection is not in the bucket, which it has just made; a second run goes on."""
    where = "s3://my-bucket/muster-fleet.tar.gz"
    for name, text in render.files(load(cluster_files.document(kind, setup={"collection": where}))).items():
        (tmp_path / name).write_text(text)
    tools = dict.fromkeys(("pcluster", "eksctl", "kubectl"), TOOL)
    stand_ins(tmp_path / "bin", aws=BUCKETLESS, envsubst=ENVSUBST, **tools)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    for there in (False, True):
        if there:
            (tmp_path / "collection").touch()
        done = subprocess.run(["bash", "create.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode == 0) == there, done.stderr
        made = [name for name in ("pcluster create-cluster", "sagemaker create-cluster", "mine-pcs.template") if name in read(tmp_path)]
        assert bool(made) == there
        copy = f"run aws s3 cp COLLECTION.tar.gz {where}, then create.sh again."
        assert (f"{where} cannot be read, and nodes install it when they boot; {copy}" in done.stderr) != there
    assert subprocess.run([SHELLCHECK, "create.sh"], cwd=tmp_path, capture_output=True, text=True, check=False).stdout == ""


def read(folder: Path) -> str:
    return (folder / "seen").read_text()


RESOURCES: dict[str, Any] = {
    "ClusterConfig": {"ClusterName": "mine", "ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/0123456789ab"},
    "InstanceGroups": [
        {
            "Name": name,
            "InstanceType": "ml." + kind,
            "Instances": [{"InstanceName": name + "-1", "AgentIpAddress": "172.16.0.1", "CustomerIpAddress": address, "InstanceId": "i-0"}],
        }
        for name, kind, address in (("head", "m6i.2xlarge", "10.0.0.10"), ("gpu", "p5.48xlarge", "10.0.0.11"))
    ],
}


@pytest.mark.parametrize(
    ("address", "code", "said", "started"),
    [
        ("10.0.0.10", 0, "muster: group head", "systemctl enable --now slurmctld"),
        ("10.0.0.11", 0, "muster: group gpu, controller 10.0.0.10", "systemctl enable --now slurmd"),
        ("10.0.0.12", 1, "has one of the addresses 10.0.0.12", ""),
        ("10.0.0.11", 7, "boot-gpu.sh ended with 7", ""),
    ],
)
def test_a_node_of_hyperpod_finds_its_group(tmp_path: Path, address: str, code: int, said: str, started: str) -> None:
    (tmp_path / "on_create.sh").write_text(files_of(cluster_files.document("hyperpod-slurm"))["on_create.sh"])
    for name in ("head", "gpu"):
        (tmp_path / f"boot-{name}.sh").write_text(f"echo booted {name}\nexit {code}\n")
    (tmp_path / "resource_config.json").write_text(json.dumps(RESOURCES))
    (tmp_path / "slurmd.service").write_text("ExecStart=/opt/slurm/sbin/slurmd -D $SLURMD_OPTIONS\n")
    stand_ins(tmp_path / "bin", systemctl=TOOL)
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SEEN": str(tmp_path / "seen"),
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(tmp_path / "resource_config.json"),
        "MUSTER_PROVISIONING_LOG": str(tmp_path / "log/provisioning.log"),
        "MUSTER_ADDRESSES": address,
        "MUSTER_SLURMD_UNIT": str(tmp_path / "slurmd.service"),
    }
    for _ in range(2):  # HyperPod runs it again on a node that it replaced
        done = subprocess.run(["bash", "on_create.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr
    seen = (tmp_path / "seen").read_text() if (tmp_path / "seen").exists() else ""
    assert (started in seen) if started else not seen
    if "slurmd" in started and "slurmctld" not in started:
        assert (tmp_path / "slurmd.service").read_text().strip().endswith("slurmd -D --conf-server 10.0.0.10")


@pytest.mark.parametrize(
    ("resources", "unit", "broken", "said"),
    [
        (RESOURCES, "ExecStart=/opt/slurm/sbin/slurmd -D\n", "", "does not start slurmd with the controllers '10.0.0.10' of "),
        ({"InstanceGroups": RESOURCES["InstanceGroups"][1:]}, "ExecStart=slurmd $SLURMD_OPTIONS\n", "", "with the controllers '' of "),
        (RESOURCES, "ExecStart=slurmd $SLURMD_OPTIONS\n", "enable", "slurmd could not be started"),
        (RESOURCES, "ExecStart=slurmd --conf-server 10.0.0.9\n", "", ""),
        ({}, "", "", "resources.json could not be read"),
    ],
)
def test_a_node_of_hyperpod_says_why_slurm_did_not_start(tmp_path: Path, resources: Any, unit: str, broken: str, said: str) -> None:
    (tmp_path / "on_create.sh").write_text(files_of(cluster_files.document("hyperpod-slurm"))["on_create.sh"])
    (tmp_path / "boot-gpu.sh").write_text("exit 0\n")
    (tmp_path / "resources.json").write_text(json.dumps(resources))
    (tmp_path / "slurmd.service").write_text(unit)
    stand_ins(tmp_path / "bin", systemctl=TOOL + f'[ "$1" != "{broken}" ]\n')
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SEEN": str(tmp_path / "seen"),
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(tmp_path / "resources.json"),
        "MUSTER_PROVISIONING_LOG": str(tmp_path / "provisioning.log"),
        "MUSTER_ADDRESSES": "10.0.0.11",
        "MUSTER_SLURMD_UNIT": str(tmp_path / "slurmd.service"),
    }
    done = subprocess.run(["bash", "on_create.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 1, "muster: ready" in done.stdout) == (bool(said), not said), done.stdout + done.stderr
    assert said in done.stdout
    if not said:  # a controller that HyperPod replaced
        assert (tmp_path / "slurmd.service").read_text() == "ExecStart=slurmd --conf-server 10.0.0.10\n"
