# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the operators beside the training operator run jobs on two nodes of a real Kubernetes. A job that says "succeeded" may have had
both ranks on one node, so the nodes of the pods count, and the hosts that the ranks themselves print.

Run by `make proofs`, or `pytest --engine tests/proof/kubernetes_operators.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_kubernetes import NAME, TRAINING, Site, kubectl, left_by

pytestmark = pytest.mark.engine

GIVEN: dict[str, Any] = {"kubernetes_operators": ["jobset", "mpi-operator", "trainer"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster with the operators, measured and trained on by JobSets."""
    Site(Path("/")).playbook("playbooks/local_kubernetes_down.yml")
    site = Site(tmp_path_factory.mktemp("operators"))
    ended = site.playbook("site.yml", muster_launcher="jobset", **GIVEN)
    assert ended.returncode == 0, ended.stdout[-6000:]
    yield site
    for process in site.begun:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    ended = site.playbook("playbooks/local_kubernetes_down.yml")
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert left_by(NAME) == []


def nodes_of(kind: str) -> dict[str, set[str]]:
    """{job: the nodes on which its ranks ran} of the jobs of a kind."""
    found: dict[str, set[str]] = {}
    for pod in json.loads(kubectl("get", "pods", "--selector", "muster/role=node", "--output", "json"))["items"]:
        if any(owner["kind"] in kind for owner in pod["metadata"]["ownerReferences"]):
            found.setdefault(pod["metadata"]["labels"]["muster/job"], set()).add(pod["spec"]["nodeName"])
    return found


def proved(site: Site) -> None:
    """The newest runs measured and trained across two nodes."""
    report = site.report()
    assert report["run"]["verdict"] == "passed"
    for entry in report["collectives"]:
        assert (entry["verdict"], len(set(entry["hosts"]))) == ("passed", 2)
    for training in report["training"]:
        assert (training["last_step"], training["world_size"]) == (TRAINING["steps"], 2)
        assert training["last_loss"] < 0.8 * training["first_loss"]
    assert {job["stored"] for job in report["jobs"]} == {False}


def test_jobsets_measure_and_train_on_two_nodes(site: Site) -> None:
    proved(site)
    assert {entry["collective"] for entry in site.report()["collectives"]} >= {"all_reduce", "alltoall"}
    assert len(site.report()["training"]) == 1
    found = nodes_of("Job")
    assert found["train"] == {"node1", "node2"}


@pytest.mark.parametrize(("launcher", "owner"), [("trainjob", "Job"), ("mpijob", "MPIJob")])
def test_another_operator_measures_and_trains_on_two_nodes(site: Site, launcher: str, owner: str) -> None:
    kubectl("delete", "jobset,trainjob,mpijob", "--all", "--wait=true")
    ended = site.playbook("playbooks/nccl_tests.yml", muster_launcher=launcher, **GIVEN)
    assert ended.returncode == 0, ended.stdout[-6000:]
    proved(site)
    assert {entry["collective"] for entry in site.report()["collectives"]} >= {"all_reduce", "alltoall"}
    ended = site.playbook("playbooks/train.yml", muster_launcher=launcher, **GIVEN)
    assert ended.returncode == 0, ended.stdout[-6000:]
    proved(site)
    assert len(site.report()["training"]) == 1
    assert nodes_of(owner)["train"] == {"node1", "node2"}
