# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the nodes of a real Kubernetes rehearse p5.48xlarge, and its kubelets give each pod the devices that it asked for and no others.

Run by `make proofs`, or `pytest --engine tests/proof/rehearsed_kubernetes.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_kubernetes import NAME, Site, failed, kubectl, localkube, site_of, until

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from localkube import rehearsal
from localkube.cluster import Cluster
from localkube.images import trainer_image

pytestmark = pytest.mark.engine

TYPE = "p5.48xlarge"
GPUS, EFA = 8, 32
SHORT: dict[str, Any] = {
    "muster_collectives": {"ops": ["all_reduce"], "max_bytes": "1M"},
    "muster_training": {"steps": 20, "checkpoint_freq": 10, "tokens": 100000},
}
# How the device files answer. ENXIO: the container may open it, and no hardware is behind it. ENOENT: it has no such file. EPERM: it made
# the file itself, and may not open it.
LOOK = """
import errno, json, os, stat
def answer(path):
    try:
        return os.close(os.open(path, os.O_RDWR)) or "opened"
    except OSError as error:
        return errno.errorcode[error.errno]
def made(major, minor):
    path = "/tmp/made-%d-%d" % (major, minor)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    return answer(path)
seen = {
    "gpus": [answer("/dev/nvidia%d" % each) for each in range(8)],
    "made gpus": [made(60, each) for each in range(8)],
    "control": answer("/dev/nvidiactl"),
    "efa": [answer("/dev/infiniband/uverbs%d" % each) for each in range(32)],
    "made efa": [made(61, 192 + each) for each in range(32)],
    "environment": {name: os.environ[name] for name in os.environ if name.startswith(("NCCL_", "FI_", "NVIDIA_"))},
}
print("SEEN " + json.dumps(seen), flush=True)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster that rehearses the type, proved and trained on."""
    with site_of(tmp_path_factory.mktemp("rehearsal"), muster_local_type=TYPE, **SHORT) as site:
        yield site
    assert not list(Path("/dev").glob("nvidia[0-9]*")), "device files of a rehearsal are on this machine"


def start(name: str, node: str, gpus: int = 0, efa: int = 0) -> None:
    """A pod on a node that looks at its devices and stays."""
    limits = {title: str(count) for title, count in (("nvidia.com/gpu", gpus), ("vpc.amazonaws.com/efa", efa)) if count}
    command = ["python3", "-c", f"exec({LOOK!r})\nimport time\ntime.sleep(600)"]
    box = {"name": "box", "image": trainer_image(), "command": command, "resources": {"limits": limits}}
    spec = {"terminationGracePeriodSeconds": 0, "nodeSelector": {"kubernetes.io/hostname": node}, "containers": [box]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl("create", "-f", "-", input=json.dumps(pod))


def looks(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in re.findall(r"^SEEN (.*)$", text, re.MULTILINE)]


def seen(name: str) -> dict[str, Any]:
    """What a pod saw."""
    return until(lambda: looks(localkube("kubectl", NAME, "logs", name).stdout), 60, f"the log of {name}")[0]


def given(found: dict[str, Any], kind: str) -> set[int]:
    """The numbers of the devices that may be opened. Any other has no file, and one that the container makes is forbidden."""
    may = {number for number, answer in enumerate(found[kind]) if answer == "ENXIO"}
    for number, (answer, made) in enumerate(zip(found[kind], found[f"made {kind}"], strict=True)):
        assert (answer, made) == (("ENXIO", "ENXIO") if number in may else ("ENOENT", "EPERM")), (kind, number)
    return may


def offers(node: str) -> dict[str, str]:
    """The devices that a node says it has."""
    have = json.loads(kubectl("get", "node", node, "--output", "json"))["status"]["allocatable"]
    return {name: count for name, count in have.items() if "/" in name}


def test_the_whole_way_is_green_and_says_rehearsal(site: Site) -> None:
    assert site.first.split("SUMMARY")[1].strip().splitlines()[1].startswith(f"REHEARSAL of {TYPE}, fleet {NAME}: passed in ")
    report = site.report()
    assert (report["run"]["rehearses"], report["run"]["verdict"]) == ([TYPE], "passed")
    assert f"<p>REHEARSAL of {TYPE} on stand-ins" in (site.run_folder() / "report.html").read_text()
    records = {record["check"]: record for record in report["checks"]["records"]}
    looked = {name for name, record in records.items() if record["status"] == "not_run"}
    assert looked == {"gpu_allocatable", "efa_allocatable"}
    for name in looked:
        assert records[name]["rehearsed"] == "passed"
        assert records[name]["reason"] == f"it looked at a stand-in ({rehearsal.PLUGIN}) and would have passed"
    assert [(host["instance_type"], host["rehearses"]) for host in report["fleet"]["hosts"]] == [(TYPE, TYPE)] * 2
    [training] = report["training"]
    assert (training["last_step"], training["world_size"]) == (20, 2)
    assert {(entry["collective"], entry["verdict"]) for entry in report["collectives"]} == {("all_reduce", "passed")}


def pod_of(path: Path) -> dict[str, Any]:
    """The container of a PyTorchJob's manifest."""
    spec = json.loads(path.read_text())["spec"]
    return spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]


def test_the_jobs_of_the_type_are_kept_beside_those_that_ran(site: Site) -> None:
    jobs = site.run_folder() / "jobs"
    real = json.loads((jobs / "train/real.json").read_text())
    assert (real["procs_per_node"], real["gpus_per_node"]) == (GPUS, GPUS) and "nccl" in real["command"]
    ran, would = pod_of(jobs / "train/manifest.json"), pod_of(jobs / "train/real.manifest.json")
    assert "gloo" in ran["args"] and "nccl" in would["args"]
    assert would["resources"] == catalogue.k8s_resources(TYPE)
    assert ran["resources"] == {"limits": would["resources"]["limits"], "requests": {"cpu": "1"}}
    items = json.loads((jobs / "collectives/real.manifest.json").read_text())["items"]
    assert [each["kind"] for each in items] == ["MPIJob"]


def stand_ins() -> list[dict[str, Any]]:
    """The pods of the stand-in."""
    return json.loads(kubectl("--namespace=kube-system", "get", "pods", f"--selector=app={rehearsal.PLUGIN}", "--output=json"))["items"]


def test_the_stand_in_is_a_labelled_pod_on_each_node(site: Site) -> None:
    pods = stand_ins()
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["node1", "node2"]
    assert {pod["metadata"]["annotations"]["muster/rehearses"] for pod in pods} == {TYPE}
    log = kubectl("--namespace=kube-system", "logs", pods[0]["metadata"]["name"])
    assert f"muster rehearsal: {rehearsal.PLUGIN} is a stand-in for the device plugins of {TYPE}" in log
    labels = json.loads(kubectl("get", "node", "node1", "--output", "json"))["metadata"]["labels"]
    assert rehearsal.labels(TYPE).items() <= labels.items()


def test_a_job_gets_the_devices_that_it_asked_for_and_the_environment_of_its_type(site: Site) -> None:
    document = site.write("looks", command=["python3", "-c", f"exec({LOOK!r})"], nodes=2, gpus_per_node=2)
    ended = site.playbook("playbooks/job.yml", job=document)
    assert ended.returncode == 0, ended.stdout[-4000:]
    outputs = sorted((site.run_folder() / "jobs/looks").glob("output*.txt"))
    found = [each for path in outputs for each in looks(path.read_text())]
    assert len(found) == 2
    wanted = {each["name"]: each["value"] for each in nccl_env(catalogue.instance_type(TYPE), stack_files.load("aws-2026.11"))}
    assert "NCCL_NET" in wanted
    for each in found:
        # A quarter of the GPUs comes with a quarter of the EFA devices.
        mine, cards = given(each, "gpus"), given(each, "efa")
        assert (len(mine), len(cards), each["control"]) == (2, 8, "ENXIO")
        assert each["environment"].pop("NVIDIA_VISIBLE_DEVICES") == ",".join(f"nvidia{number}" for number in sorted(mine))
        assert each["environment"] == wanted


def test_pods_share_no_device_and_one_that_is_too_many_waits(site: Site) -> None:
    start("two", "node1", gpus=2, efa=4)
    start("six", "node1", gpus=6, efa=28)
    start("none", "node1")
    two, six, none = (seen(name) for name in ("two", "six", "none"))
    for kind, total in (("gpus", GPUS), ("efa", EFA)):
        assert given(two, kind) | given(six, kind) == set(range(total))
        assert not given(two, kind) & given(six, kind)
        assert given(none, kind) == set()
    assert (none["control"], none["environment"]) == ("ENOENT", {})
    start("waits", "node1", gpus=1)
    start("nine", "node2", gpus=GPUS + 1)
    document = site.write("all", command=["true"], nodes=2)
    assert site.playbook("playbooks/job.yml", job=document, verb="submit").returncode == 0
    said = until(lambda: waiting(site, document), 60, "the reason why the job waits")
    assert "the job asks each node for 8 nvidia.com/gpu, 32 vpc.amazonaws.com/efa" in said
    assert "node1 has 0 of 8 free nvidia.com/gpu" in said and "node1 has 0 of 32 free vpc.amazonaws.com/efa" in said
    assert re.search(r"node2 has [08] of 8 free nvidia\.com/gpu", said)
    for name in ("waits", "nine"):
        status = json.loads(kubectl("get", "pod", name, "--output", "json"))["status"]
        assert status["phase"] == "Pending" and "Insufficient nvidia.com/gpu" in status["conditions"][0]["message"], name
    kubectl("delete", "pytorchjob", "--selector=muster/job=all")
    kubectl("delete", "pod", "two", "six")
    assert len(given(seen("waits"), "gpus")) == 1
    kubectl("delete", "pod", "none", "waits", "nine")


def waiting(site: Site, document: str) -> str:
    """Why a job waits, once the scheduler has said it."""
    said = " ".join(site.playbook("playbooks/job.yml", job=document, verb="status").stdout.split())
    return said if "nodes are available" in said else ""


def fault(site: Site, node: str, *faults: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Give a node these faults in place of those that it had."""
    return site.playbook("playbooks/local_fault.yml", muster_fault_node=node, muster_faults=faults)


def test_a_lost_gpu_leaves_the_node_s_offer_and_fails_the_check(site: Site) -> None:
    everything = rehearsal.allocatable(TYPE)
    lost = fault(site, "node1", {"fault": "gpu_missing", "index": 3})
    assert lost.returncode == 0, lost.stdout
    until(lambda: offers("node1") == {**everything, "nvidia.com/gpu": "7"}, 60, "the lost GPU")
    ended = site.playbook("playbooks/validate.yml")
    assert "node1 has 7 of 8" in failed(ended)
    record = next(each for each in site.report()["checks"]["records"] if each["check"] == "gpu_allocatable")
    assert (record["status"], record["rehearsed"], record["found"]) == ("not_run", "failed", "node1 has 7 of 8")
    assert fault(site, "node1").returncode == 0
    until(lambda: offers("node1") == everything, 60, "the GPU again")


def test_an_xid_of_the_hardware_takes_the_gpu_from_the_node_s_offer(site: Site) -> None:
    everything = rehearsal.allocatable(TYPE)
    # XID 43 comes from an application.
    lost = fault(
        site, "node2", {"fault": "gpu_lost", "index": 5}, *({"fault": "xid", "index": code % 8, "code": code} for code in (43, 48))
    )
    assert lost.returncode == 0, lost.stdout
    until(lambda: offers("node2") == {**everything, "nvidia.com/gpu": "6"}, 60, "the GPUs with XIDs 79 and 48")
    assert offers("node1") == everything
    start("others", "node2", gpus=6)
    assert given(seen("others"), "gpus") == set(range(GPUS)) - {5, 48 % 8}
    kubectl("delete", "pod", "others")
    assert fault(site, "node2").returncode == 0
    until(lambda: offers("node2") == everything, 60, "the GPUs again")


@pytest.mark.parametrize(
    ("node", "wrong", "sentence"),
    [
        ("node1", {"fault": "slow", "factor": 0.8}, "Fault slow does nothing on a local Kubernetes"),
        ("node1", {"fault": "gpu_lost", "index": 8}, f"Fault gpu_lost cannot have index 8: {TYPE} has 8 GPUs, from 0 to 7."),
        ("node3", {"fault": "gpu_lost", "index": 0}, f"The cluster {NAME} has no node node3; name one of node1, node2."),
    ],
)
def test_a_fault_that_the_node_cannot_have_is_refused(site: Site, node: str, wrong: dict[str, Any], sentence: str) -> None:
    ended = fault(site, node, wrong)
    assert ended.returncode != 0
    assert sentence in " ".join(ended.stdout.split())


def test_a_kubelet_that_starts_anew_learns_its_devices_again(site: Site) -> None:
    def restarts() -> int:
        [pod] = [pod for pod in stand_ins() if pod["spec"]["nodeName"] == "node2"]
        return pod["status"]["containerStatuses"][0]["restartCount"]

    before = restarts()
    hold = Cluster(NAME).folder / "hold" / "kubelet.node2"
    hold.touch()
    time.sleep(2)
    hold.unlink()
    until(lambda: restarts() > before, 60, "the stand-in's next container")
    until(lambda: offers("node2") == rehearsal.allocatable(TYPE), 60, "the devices of node2")
    start("after", "node2", gpus=GPUS)
    assert given(seen("after"), "gpus") == set(range(GPUS))
    kubectl("delete", "pod", "after")


def test_the_type_of_a_cluster_that_runs_cannot_change(site: Site) -> None:
    ended = localkube("up", NAME, "--type", "g5.xlarge")
    remove = f"run make down ON=kubernetes FLEET={NAME}"
    assert ended.returncode == 1
    assert ended.stderr == f"localkube: The cluster {NAME} rehearses {TYPE}; {remove} before you start it with g5.xlarge.\n"
