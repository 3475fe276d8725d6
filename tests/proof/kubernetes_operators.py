# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the operators beside the training operator run jobs on two nodes of a real Kubernetes. A job that says "succeeded" may have had
both ranks on one node, so the nodes of the pods count, and the hosts that the ranks themselves print.

Run by `make proofs`, or `pytest --engine tests/proof/kubernetes_operators.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from local_kubernetes import RANK_FAILS, TRAINING, Site, failed, kubectl, site_of, until

pytestmark = pytest.mark.engine

GIVEN: dict[str, Any] = {"kubernetes_operators": ["jobset", "mpi-operator", "trainer", "kueue"]}
# A queue with CPUs for one node of a job.
QUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: nodes}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: fleet}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu]
      flavors:
        - {name: nodes, resources: [{name: cpu, nominalQuota: %d}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team, namespace: default}
spec: {clusterQueue: fleet}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster with the operators, measured and trained on by JobSets."""
    with site_of(tmp_path_factory.mktemp("operators"), muster_launcher="jobset", **GIVEN) as site:
        yield site


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


@pytest.mark.parametrize("launcher", ["jobset", "trainjob", "mpijob"])
def test_a_failed_job_has_the_exit_status_of_its_rank(site: Site, launcher: str) -> None:
    document = site.write(f"rank-{launcher}", command=RANK_FAILS, nodes=2)
    said = failed(site.playbook("playbooks/job.yml", job=document, muster_launcher=launcher, muster_target=site.target))
    # Of an ended job the JobSet deletes the pod of the other node, and the MPIJob those of all workers.
    assert "with exit status 7 of rank 1 on " + ("node" if launcher != "mpijob" else "") in said


def admitted() -> list[str]:
    """Whether each workload of the queue is admitted: True, False or nothing."""
    items = json.loads(kubectl("get", "workloads", "--output", "json"))["items"]
    conditions = [{each["type"]: each["status"] for each in item.get("status", {}).get("conditions", [])} for item in items]
    return [each.get("Admitted", "") for each in conditions]


def test_a_queue_admits_a_job_of_two_nodes_when_it_has_room(site: Site) -> None:
    kubectl("delete", "jobset,trainjob,mpijob", "--all", "--wait=true")
    kubectl("apply", "-f", "-", input=QUEUE % 1)
    document = site.write("queued", command=["sh", "-c", "echo rank $RANK on $(hostname)"], nodes=2)
    target = {**site.target, "queue": "team"}
    process = site.start("playbooks/job.yml", job=document, muster_launcher="jobset", muster_target=target)
    until(lambda: len(json.loads(kubectl("get", "workloads", "--output", "json"))["items"]) == 1, 90, "the workload of the job")
    time.sleep(5)
    assert admitted() != ["True"] and "queued" not in nodes_of("Job"), "the queue has CPUs for one node alone"
    kubectl("apply", "-f", "-", input=QUEUE % 2)
    said, _nothing = process.communicate(timeout=180)
    assert process.returncode == 0, said[-4000:]
    assert admitted() == ["True"]
    assert nodes_of("Job")["queued"] == {"node1", "node2"}
