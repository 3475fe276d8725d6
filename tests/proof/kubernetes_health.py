# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the DaemonSet and the CronJob of muster-health on a real Kubernetes. Each fault taints its node, and the taint ends with it.

The nodes rehearse p5.48xlarge, so GPUs and EFA cards are stand-ins; disks, mounts, memory and files are the node's own. A node here has no
systemd, so a killed daemon is not among the faults, and it has this machine's clock, so a stopped chrony is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_rehearsal import RehearsedNode
from local_kubernetes import NAME, kubectl, localkube, until

from localkube.cluster import Cluster
from localkube.images import trainer_image

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
TYPE = "p5.48xlarge"
DISK, HUNG, TOOL = "/run/scratch", "/run/hung", "/usr/local/bin/site-tool"
MANIFEST = {
    "schema": "muster.manifest/1",
    "stack": None,
    "components": {"site": {"version": "1", "inputs_sha256": "", "artefacts": [TOOL], "packages": {}}},
    "packages": {},
}
SETTINGS: dict[str, Any] = {"disks": ["/run", DISK]}
# The nodes have neither NCCL's plugin nor the module gdrdrv, which only the diagnostics look for.
WITHOUT_PLUGIN = {"check": "efa_plugin", "owner": "proof", "until": "2099-12-31"}
REHEARSES = {**SETTINGS, "instance_type": TYPE, "off": [WITHOUT_PLUGIN]}
TAINT = "gpu-healthcheck.aws-samples.io/unhealthy"
GPUS = "/status/capacity/nvidia.com~1gpu"


class Health:
    """The nodes of the cluster with muster-health, and what Kubernetes knows of them."""

    def __init__(self) -> None:
        self.nodes = {f"node{number}": RehearsedNode(Cluster(NAME), number) for number in (1, 2)}

    @staticmethod
    def manifest(name: str) -> str:
        """A committed manifest for this cluster, with the values put in by the real envsubst."""
        values = {"IMAGE_URI": trainer_image(), "INSTANCE_TYPE": TYPE, "NUM_NODES": "1", "GPU_PER_NODE": "8"}
        argv, text = ["envsubst"], (ROOT / "kubernetes/health" / name).read_text()
        return subprocess.run(argv, input=text, env={**os.environ, **values}, capture_output=True, text=True, check=True).stdout

    def apply(self, name: str) -> None:
        """The agents look every three seconds instead of minutes."""
        kubectl("apply", "-f", "-", input=self.manifest(name).replace("--interval=300", "--interval=3"))

    @staticmethod
    def taints(node: str) -> list[str]:
        """The values of the reference's taint."""
        found = json.loads(kubectl("get", "node", node, "--output", "json"))["spec"].get("taints") or []
        return [f"{each['value']}:{each['effect']}" for each in found if each["key"] == TAINT]

    @staticmethod
    def condition(node: str, kind: str = "MusterHealthy") -> tuple[str, str, str]:
        """(status, reason, message) of a node condition."""
        found = json.loads(kubectl("get", "node", node, "--output", "json"))["status"]["conditions"]
        each = next((each for each in found if each["type"] == kind), {})
        return each.get("status", ""), each.get("reason", ""), each.get("message", "")

    def until(self, node: str, status: str, reason: str, kind: str = "MusterHealthy") -> str:
        """The message of the condition, once it is as wanted."""
        try:
            until(lambda: self.condition(node, kind)[:2] == (status, reason), 60, f"{kind} of {node} {status} {reason}")
        except AssertionError as error:
            logs = localkube("kubectl", NAME, "--namespace=muster-health", "logs", "--selector=app=muster-node-health", "--prefix").stdout
            raise AssertionError(f"{error}; it is {self.condition(node, kind)}\n{logs}") from None
        return self.condition(node, kind)[2]


def start_pod(name: str, gpus: int = 0, node: str = "") -> None:
    """A pod that sleeps, with so many GPUs, on any node or on that one alone."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    box = {"name": "box", "image": trainer_image(), "command": ["sleep", "600"], "resources": limits}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [box]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl("create", "-f", "-", input=json.dumps(pod))


def where(name: str) -> tuple[str, str]:
    """(node, phase) of a pod."""
    pod = json.loads(kubectl("get", "pod", name, "--output", "json"))
    return pod["spec"].get("nodeName", ""), pod["status"]["phase"]


@pytest.fixture(scope="module")
def health() -> Iterator[Health]:
    """A cluster of two nodes with the DaemonSet."""
    localkube("down", NAME)
    up = localkube("up", NAME)
    assert up.returncode == 0, up.stderr
    try:
        made = Health()
        for node in made.nodes.values():
            node.install_health()
            node.run("sh", "-c", f"mkdir -p {DISK} && mount -t tmpfs -o size=16m scratch {DISK} && touch {TOOL}")
            node.run("sh", "-c", "mkdir -p /etc/muster && cat >/etc/muster/manifest.json", input=json.dumps(MANIFEST))
            node.health_settings(**SETTINGS)
        made.apply("node-health.yaml")
        yield made
    finally:
        localkube("down", NAME)


def test_the_daemonset_taints_a_node_until_its_fault_is_gone(health: Health) -> None:
    for node in health.nodes:
        assert health.until(node, "True", "ChecksPassed").endswith("checks passed.")
    for node in health.nodes.values():
        node.rehearse(TYPE)
        node.health_settings(**REHEARSES)
    for name in health.nodes:
        health.until(name, "Unknown", "Rehearsal")  # stand-ins cannot pass
        assert health.taints(name) == []
    health.nodes["node2"].faults({"fault": "gpu_lost", "index": 3})
    said = health.until("node2", "False", "GpuCount")
    assert "gpu_count: " in said and "7 of 8" in said
    until(lambda: health.taints("node2") == ["muster.gpu_count:NoSchedule"], 30, "the taint")
    # No pod comes to the node, and one that has no other place waits.
    start_pod("stays-away", node="node2")
    start_pod("goes-on")
    until(lambda: where("goes-on") == ("node1", "Running"), 30, "a pod on the other node")
    assert where("stays-away") == ("", "Pending")
    # The budget is one node of two.
    health.nodes["node1"].faults({"fault": "efa_missing", "index": 5})
    health.until("node1", "False", "EfaCount")
    agents = ("--namespace=muster-health", "logs", "--selector=app=muster-node-health", "--tail=-1")
    until(lambda: "Node node1 is not tainted for efa_count, because the budget" in kubectl(*agents), 30, "the budget")
    assert health.taints("node1") == []
    for name, node in health.nodes.items():
        node.faults()
        health.until(name, "Unknown", "Rehearsal")
    until(lambda: health.taints("node2") == [], 30, "the end of the taint")
    until(lambda: where("stays-away") == ("node2", "Running"), 30, "the pod that waited")
    kubectl("delete", "pod", "stays-away", "goes-on")


@contextlib.contextmanager
def rehearsed(node: RehearsedNode, **fault: object) -> Iterator[None]:
    """A fault of a stand-in."""
    node.faults(fault)
    try:
        yield
    finally:
        node.faults()


@contextlib.contextmanager
def retransmits(node: RehearsedNode) -> Iterator[None]:
    """The counter of one card rises by 5,000 a second."""
    counter = "/run/muster-rehearsal/sys/class/infiniband/*/ports/1/hw_counters/retrans_pkts"
    rise = f"file=$(ls {counter} | head -n 1); n=$(cat $file); while [ -e /run/rises ]; do n=$((n + 5000)); echo $n >$file; sleep 1; done"
    node.run("touch", "/run/rises")
    riser = subprocess.Popen(node.cluster.argv(node.name, "sh", "-c", rise))
    try:
        yield
    finally:
        node.run("rm", "/run/rises")
        assert riser.wait(30) == 0


@contextlib.contextmanager
def full_disk(node: RehearsedNode) -> Iterator[None]:
    node.run("dd", "if=/dev/zero", f"of={DISK}/fill", "bs=1M", "count=15", "status=none")
    try:
        yield
    finally:
        node.run("rm", f"{DISK}/fill")


@contextlib.contextmanager
def hung_mount(node: RehearsedNode) -> Iterator[None]:
    """A file system whose server never answers: nobody reads the FUSE requests."""
    node.run("mkdir", "-p", HUNG)
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    node.run("mount", "-i", "-t", "fuse", "-o", options, "hung", HUNG, pass_fds=[server])
    try:
        yield
    finally:
        os.close(server)
        node.run("umount", "--lazy", "--no-canonicalize", HUNG)


@contextlib.contextmanager
def no_memory(node: RehearsedNode) -> Iterator[None]:
    """The node has as much memory as this machine, so the limit is a little less than what is available, and more is taken."""
    known = {line.split()[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    percent = 100 * known["MemAvailable:"] // known["MemTotal:"]
    node.health_settings(**REHEARSES, limits={"memory_available_percent": percent - 8})
    size = known["MemTotal:"] * 1024 * 14 // 100
    taker = subprocess.Popen(
        node.cluster.argv(node.name, sys.executable, "-c", f"import sys; taken = b'x' * {size}; sys.stdin.read()"), stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        taker.communicate()


@contextlib.contextmanager
def drift(node: RehearsedNode) -> Iterator[None]:
    """A file that the manifest names is gone."""
    node.run("rm", TOOL)
    try:
        yield
    finally:
        node.run("touch", TOOL)


FAULTS: dict[str, tuple[Callable[[RehearsedNode], Any], str]] = {
    "gpu_remapped_rows": (lambda node: rehearsed(node, fault="remapped_rows", index=0, failure=True), "remap"),
    "xid": (lambda node: rehearsed(node, fault="xid", index=2, code=79), "79"),
    "efa_counters": (retransmits, "retrans_pkts"),
    "disk_space": (full_disk, f"{DISK} is 9"),
    "mounts": (hung_mount, f"{HUNG} does not answer within 2 s"),
    "memory_available": (no_memory, "of the memory is available"),
    "drift": (drift, f"{TOOL} is missing"),
}


@pytest.mark.parametrize("check", FAULTS)
def test_each_fault_keeps_pods_away_until_it_is_gone(health: Health, check: str) -> None:
    fault, words = FAULTS[check]
    for name, node in health.nodes.items():
        node.health_settings(**REHEARSES)
        health.until(name, "Unknown", "Rehearsal")
    with fault(health.nodes["node2"]):
        said = health.until("node2", "False", "".join(word.capitalize() for word in check.split("_")))
        assert said.startswith(f"{check}: ") and words in said
        until(lambda: health.taints("node2") == [f"muster.{check}:NoSchedule"], 30, "the taint")
        start_pod("stays-away", node="node2")
        until(lambda: "untolerated taint" in kubectl("get", "pod", "stays-away", "--output", "json"), 30, "the scheduler's reason")
        assert where("stays-away") == ("", "Pending")
        assert health.condition("node1")[:2] == ("Unknown", "Rehearsal") and health.taints("node1") == []
    health.until("node2", "Unknown", "Rehearsal")
    until(lambda: where("stays-away") == ("node2", "Running"), 60, "the pod that waited")
    assert health.taints("node2") == []
    kubectl("delete", "pod", "stays-away")


def test_a_full_look_takes_an_idle_node_alone(health: Health) -> None:
    """The CronJob, started by hand. The nodes advertise GPUs by their status, because no device plugin runs."""
    patch = json.dumps([{"op": "add", "path": GPUS, "value": "8"}])
    for node in health.nodes:
        kubectl("label", "node", node, f"node.kubernetes.io/instance-type={TYPE}", "--overwrite")
        kubectl("patch", "node", node, "--subresource=status", "--type=json", f"--patch={patch}")
        start_pod(f"busy-{node}", gpus=1, node=node)
    for node in health.nodes:
        until(lambda pod=f"busy-{node}": where(pod)[1] == "Running", 60, "the workload of a node")
    health.apply("node-health-full.yaml")
    own = "--namespace=muster-health"

    def pods(job: str) -> list[dict[str, Any]]:
        return json.loads(kubectl(own, "get", "pods", f"--selector=job-name={job}", "--output", "json"))["items"]

    def says(job: str) -> str:
        """What the one pod of a job says, which must have run on the idle node."""
        kubectl(own, "wait", "--for=condition=complete", f"job/{job}", "--timeout=120s")
        assert [(pod["spec"]["nodeName"], pod["status"]["phase"]) for pod in pods(job)] == [("node2", "Succeeded")]
        return kubectl(own, "logs", f"job/{job}")

    kubectl(own, "create", "job", "by-hand", "--from=cronjob/node-health-full")
    waits = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"
    until(lambda: any(waits in str(pod["status"].get("conditions")) for pod in pods("by-hand")), 30, "a pod that waits for an idle node")
    kubectl("delete", "pod", "busy-node2")
    assert says("by-hand") == "Node node2 is tainted for gdrcopy.\n"
    status, reason, said = health.condition("node2", "MusterHealthyFull")
    assert (status, reason) == ("False", "Gdrcopy") and said.startswith("gdrcopy: the module gdrdrv is not loaded")
    assert health.condition("node1", "MusterHealthyFull") == ("", "", "")
    # The periodic looks go on, and only a later full look may end the taint.
    health.until("node2", "Unknown", "Rehearsal")
    kubectl(own, "create", "job", "again", "--from=cronjob/node-health-full")
    assert says("again") == "Node node2 had a full look less than 518400 s ago.\n"
    assert health.taints("node2") == ["muster-full.gdrcopy:NoSchedule"]
    kubectl("delete", "pod", "busy-node1")
