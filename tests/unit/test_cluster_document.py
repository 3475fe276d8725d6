# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The cluster document: defaults, and one sentence for each fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import KINDS, ClusterError, load, started_by_slurm
from ansible_collections.muster.fleet.plugins.modules import cluster_document

GROUP: dict[str, Any] = {"name": "gpu", "type": "p5.48xlarge", "count": 2}
CONTROLLER: dict[str, Any] = {"name": "head", "type": "m6i.2xlarge", "count": 1, "role": "controller"}
CLUSTER: dict[str, Any] = {
    "kind": "ec2",
    "name": "mine",
    "region": "us-east-1",
    "zones": ["us-east-1a"],
    "image": "ami-0123456789abcdef0",
    "nodes": [GROUP],
}


def cluster(group: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**CLUSTER, **({"nodes": [{**GROUP, **group}]} if group else {}), **changes}


def test_defaults_follow_from_the_type_and_the_market() -> None:
    found = load(cluster())
    group = found["nodes"][0]
    assert (group["min"], group["max"], group["market"], group["placement_group"], group["role"]) == (2, 2, "on-demand", True, "compute")
    assert (found["vpc"]["cidr"], found["vpc"]["nat"], found["storage"]["lustre"]) == ("10.0.0.0/16", "one", {})
    bought = load(cluster({"market": "capacity-block", "reservation": "cr-0123456789abcdef0"}))["nodes"][0]
    assert bought["placement_group"] is False, "a block has a place of its own"
    scaled = load(cluster(nodes=[CONTROLLER, {**GROUP, "count": 0, "max": 4}]))["nodes"]
    assert [started_by_slurm(found, group) for group in scaled] == [False, True]
    assert load(cluster({"type": "c7i.large"}))["nodes"][0]["placement_group"] is False
    assert load(cluster(storage={"lustre": {"gib": 4800}}))["storage"]["lustre"]["throughput"] == 250


def test_what_was_loaded_loads_again() -> None:
    """The modules load the document that cluster_document returned."""
    once = load(cluster(zones=["us-east-1a", "us-east-1b"], storage={"lustre": {"gib": 1200}, "openzfs": {"gib": 64}}))
    assert load(once) == once


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_the_same_document(kind: str) -> None:
    wanted = cluster(kind=kind, zones=["us-east-1a", "us-east-1b"], storage={"bucket": "my-bucket"}, nodes=[GROUP])
    if kind in ("parallelcluster", "hyperpod-slurm"):
        wanted["nodes"] = [CONTROLLER, GROUP]
    assert load(wanted)["kind"] == kind


def test_a_document_is_read_from_its_file(call, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(json.dumps(cluster(storage={"bucket": "my-bucket"})))
    done = call(cluster_document, path=str(tmp_path / "mine.yml"), verb="render")
    assert done["parts"] == ["vpc", "s3", "ec2"] and done["launches"][0]["launch"]["placement_group"] is True
    assert {"mine-vpc.template.json", "mine-ec2.parameters.json", "boot-gpu.sh"} <= set(done["rendered"])
    unknown = "The verb upp is unknown; did you mean up?"
    for text, verb, said in (
        ("a: [", "up", "is not YAML"),
        ("{}", "up", "has no kind"),
        ("{}", "upp", unknown),
    ):
        (tmp_path / "mine.yml").write_text(text)
        assert said in call(cluster_document, path=str(tmp_path / "mine.yml"), verb=verb)["msg"]
    assert "cannot be read" in call(cluster_document, path=str(tmp_path / "none.yml"))["msg"]


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "parallelclutser"}, "kind parallelclutser is unknown; did you mean parallelcluster?"),
    ({"zone": "a"}, "Cluster mine has the unknown field zone; did you mean zones?"),
    ({"zones": ["us-west-2a"]}, "zone us-west-2a is not one of region us-east-1"),
    ({"zones": ["use1-az1"]}, "zone use1-az1 is not one of region us-east-1"),
    ({"zones": ["us-east-1a", "us-east-1a"]}, "names a zone twice"),
    ({"region": "here"}, "'here' is not a region"),
    ({"name": "Mine!"}, "the name must be 1 to 20 lower-case letters"),
    ({"schema": "muster.cluster/9"}, "has the schema muster.cluster/9; this version of Muster reads muster.cluster/1"),
    ({"image": "ami-x"}, "image must be the id of an AMI"),
    ({"image": ""}, "has no image"),
    ({"account": 123}, "account must be text, not 123"),
    ({"account": "123"}, "account must be the 12 digits"),
    ({"nodes": []}, "has no node groups"),
    ({"nodes": [GROUP, GROUP]}, "has two node groups gpu"),
    ({"nodes": [CONTROLLER]}, "no node group of the role compute"),
    ({"vpc": {"cidr": "10.0.0.0/24"}}, "vpc.cidr 10.0.0.0/24 must be a private IPv4 network of /16 to /20"),
    ({"vpc": {"cidr": "8.8.0.0/16"}}, "vpc.cidr 8.8.0.0/16 must be a private"),
    ({"vpc": {"cidr": "10.0.0.1/16"}}, "vpc.cidr 10.0.0.1/16 is not a network"),
    ({"vpc": {"nat": "none"}}, "neither nat nor endpoints"),
    ({"vpc": {"nat": "noen"}}, "vpc.nat noen is unknown; did you mean none?"),
    ({"vpc": {"stack": "a", "id": "vpc-01234567"}}, "vpc has both stack and id"),
    ({"vpc": {"subnets": ["subnet-01234567"]}}, "are of an existing VPC"),
    ({"vpc": {"id": "vpc-01234567"}}, "vpc.security_group must be an id such as sg-"),
    ({"vpc": {"id": "vpc-01234567", "security_group": "sg-01234567"}}, "one private subnet for each of the 1 zones"),
    ({"storage": {"bucket": "My_Bucket"}}, "is no name of a bucket"),
    ({"storage": {"lustre": {"gib": 1300}}}, "must be 1200 or a multiple of 2400, not 1300"),
    ({"storage": {"lustre": {"throughput": 251}}}, "throughput must be one of 125, 250, 500, 1000, not 251"),
    ({"storage": {"lustre": {"gibs": 1}}}, "unknown field gibs; did you mean gib?"),
    ({"storage": {"openzfs": {"gib": 1}}}, "openzfs.gib must be at least 64"),
    ({"storage": {"lustre": {"repository": "bucket"}}}, "must be s3://BUCKET/PREFIX"),
    ({"users": ["ann"]}, "users are not made with a cluster; remove users, and name them in slurm_users or users_servers"),
    ({"vpc": {"stack": "a", "nat": "zone"}}, "vpc.nat is of a new VPC, and vpc.stack names one; remove one."),
    (
        {"kind": "eks", "zones": ["us-east-1a", "us-east-1b"], "key_pair": "ada"},
        "key_pair is for ec2, batch, parallelcluster, pcs, and this is eks",
    ),
    ({"kind": "batch", "setup": {"collection": "s3://mine/a.tar.gz"}}, "setup.collection is for ec2, parallelcluster, pcs, hyperpod-slurm"),
    ({"kind": "batch", "setup": {"variables": {"a": 1}}}, "setup.variables is for ec2, "),
    ({"setup": {"repair": False}}, "setup.repair: false is for eks, hyperpod-slurm, hyperpod-eks, and this is ec2"),
    ({"kind": "batch", "storage": {"openzfs": {"gib": 512}}}, "storage.openzfs is for home folders, which jobs of Batch have not"),
    ({"versions": {"kubernetes": "1.33"}}, "versions.kubernetes is for eks and hyperpod-eks, and this is ec2"),
    ({"kind": "eks", "versions": {"kubernetes": 1.33}}, "versions.kubernetes must be text such as '1.33', not 1.33; quote it"),
    ({"kind": "eks"}, "needs subnets in two zones"),
    ({"kind": "parallelcluster"}, "needs one node group of the role controller and has 0"),
    ({"kind": "hyperpod-slurm", "nodes": [CONTROLLER, GROUP]}, "has no storage.bucket"),
    ({"kind": "eks", "zones": ["us-east-1a", "us-east-1b"], "nodes": [CONTROLLER, GROUP]}, "role controller, which eks does not take"),
]
GROUP_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "p5.49xlarge"}, "ec2", "The catalogue has no instance type p5.49xlarge; the nearest are p5.4"),
    ({"type": "ml.p5.48xlarge"}, "ec2", "type ml.p5.48xlarge is SageMaker's name; write p5.48xlarge"),
    ({"type": "large"}, "ec2", "type 'large' is not an instance type"),
    ({"market": "spott"}, "ec2", "market spott is unknown; did you mean spot?"),
    ({"market": "reservation"}, "ec2", "market reservation needs the id of its reservation such as cr-"),
    ({"market": "capacity-block", "reservation": "cr-x"}, "ec2", "needs the id of its reservation"),
    ({"reservation": "cr-0123456789abcdef0"}, "ec2", "has a reservation and the market on-demand"),
    ({"type": "g5.48xlarge", "market": "capacity-block", "reservation": "cr-01234567"}, "ec2", "g5.48xlarge is not sold as capacity-block"),
    ({"type": "p6e-gb200.36xlarge"}, "ec2", "p6e-gb200.36xlarge is not sold as on-demand; its markets are capacity-block"),
    ({"market": "spot"}, "batch", "is spot, and Batch runs multi-node jobs on other markets only"),
    ({"market": "reservation", "reservation": "cr-01234567"}, "hyperpod-eks", "give the ARN of a training plan"),
    ({"count": 3, "max": 2}, "eks", "min 3, count 3 and max 2 must be in this order"),
    ({"count": 0}, "eks", "has no nodes; set count or max"),
    ({"count": 0, "max": 4}, "ec2", "has max 4, with which Slurm starts its nodes; that takes count 0, the role compute and a group"),
    ({"max": 4}, "ec2", "has max 4, with which Slurm starts its nodes"),
    ({"min": 1}, "ec2", "has min 1, and plain EC2 has count nodes"),
    ({"min": 1}, "batch", "has min 1, and Batch begins with none"),
    ({"placement_group": False}, "eks", "has placement_group, which eks decides itself"),
    ({"disk": 4}, "ec2", "disk must be 8 to 16384 GiB"),
    ({"count": True}, "ec2", "count must be a whole number, not True"),
    ({"role": "head"}, "ec2", "role head is unknown"),
]


@pytest.mark.parametrize(("changes", "said"), FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_a_fault_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ClusterError) as error:
        load(cluster(**changes))
    text = str(error.value)
    assert said in text
    assert "\n" not in text and text[-1] in ".?"


@pytest.mark.parametrize(("group", "kind", "said"), GROUP_FAULTS, ids=[said[:40] for _, _, said in GROUP_FAULTS])
def test_a_fault_of_a_node_group_is_one_sentence(group: dict[str, Any], kind: str, said: str) -> None:
    with pytest.raises(ClusterError) as error:
        load(cluster(group, kind=kind, zones=["us-east-1a", "us-east-1b"]))
    assert said in str(error.value)


@pytest.mark.parametrize("data", [None, [], "mine.yml"])
def test_a_document_is_a_mapping(data: Any) -> None:
    with pytest.raises(ClusterError, match="A cluster document is a mapping"):
        load(data)
