# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A real Kubernetes on this machine: site.yml on it, the faults of jobs, and what a cluster leaves behind."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel_settings import kernel_settings

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir
from localkube.cluster import Cluster
from localkube.images import trainer_image
from localkube.keeper import hierarchies
from localkube.programs import find

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME, OTHER = "kube-proof", "kube-other"
TRAINING = {"steps": 40, "checkpoint_freq": 5, "tokens": 200000}
# torchrun ends with 1 whatever its ranks end with.
RANK_FAILS = ["bash", "-c", '[ "$RANK" != 1 ] || exit 7; sleep 20']
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}}
LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "default": {"memory": "200Mi"}}]},
}


def listening() -> set[str]:
    """What a cluster listens on outside of this machine's loopback. Other proofs may run beside this one."""
    found = set()
    for line in subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines():
        words = [Path(f"/proc/{pid}/cmdline").read_text() for pid in re.findall(r"pid=(\d+)", line) if Path(f"/proc/{pid}").exists()]
        if not re.match(r"(127\.|\[::1\])", line.split()[3]) and any("kube" in each for each in words):
            found.add(line.split()[3])
    return found


def command_lines() -> list[str]:
    """The words of each process of this machine, those in containers among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes().decode(errors="replace").replace("\0", " "))
    return found


def left_by(name: str) -> list[str]:
    """Processes, control groups and mounts of a cluster."""
    cluster = Cluster(name)
    found = [words for words in command_lines() if str(cluster.folder) in words]
    found += [str(root / cluster.cgroup) for root in hierarchies() if (root / cluster.cgroup).exists()]
    return found + [line for line in Path("/proc/mounts").read_text().splitlines() if str(cluster.folder) in line]


def until(done: Callable[[], Any], seconds: float, what: str) -> Any:
    """What `done` returns, as soon as that is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := done():
            return found
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def localkube(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "localkube", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, **more)


def kubectl(*words: str, **more: Any) -> str:
    done = localkube("kubectl", NAME, *words, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Site:
    """The cluster of the proof, and playbooks on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[subprocess.Popen[str]] = []
        self.first = ""  # what site.yml said
        self.mounts = [f"{cache_dir(os.environ)}/shared:/var/cache/muster:ro"]
        self.target: dict[str, Any] = {
            "kubeconfig": str(Cluster(NAME).kubeconfig),
            "context": NAME,
            "image": trainer_image(),
        }

    def begin(self, name: str, *options: str) -> subprocess.Popen[str]:
        argv = [str(ROOT / ".venv/bin/ansible-playbook"), str(ROOT / name), *options]
        env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PWD": str(self.folder), "LC_ALL": "C.UTF-8"}
        process = subprocess.Popen(argv, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.begun.append(process)
        return process

    def options(self, variables: dict[str, Any]) -> list[str]:
        given = {"muster_fleet": NAME, "muster_training": TRAINING, **variables}
        return ["-i", str(ROOT / "inventory/local_kubernetes"), "-e", json.dumps(given)]

    def start(self, name: str, **variables: Any) -> subprocess.Popen[str]:
        return self.begin(name, *self.options(variables))

    def plain(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        process = self.begin(name, *options)
        said, _nothing = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, said)

    def playbook(self, name: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        return self.plain(name, *self.options(variables))

    def report(self) -> dict[str, Any]:
        return json.loads((self.run_folder() / "report.json").read_text())

    def run_folder(self) -> Path:
        return max((self.folder / "runs" / NAME).glob("2*"), key=lambda path: path.name)

    def write(self, name: str, **fields: Any) -> str:
        """A document on this cluster, as job.yml takes it."""
        document = {
            "name": name,
            "image": trainer_image(),
            "mounts": self.mounts,
            "time_limit": 10,
            **fields,
        }
        (self.folder / f"{name}.yml").write_text(yaml.safe_dump(document))
        return f"@{name}.yml"

    def job(self, document: str, verb: str = "run", **target: Any) -> subprocess.CompletedProcess[str]:
        return self.playbook("playbooks/job.yml", job=document, verb=verb, muster_target={**self.target, **target})


def failed(ended: subprocess.CompletedProcess[str]) -> str:
    """The sentence that refused a playbook."""
    assert ended.returncode != 0, ended.stdout[-3000:]
    said = re.findall(r"^FAILED (.*)$", ended.stdout, re.MULTILINE)
    assert said, ended.stdout[-3000:]
    return said[-1]


BEFORE = kernel_settings(), listening()


@contextlib.contextmanager
def site_of(folder: Path, **variables: Any) -> Iterator[Site]:
    """A new cluster on which site.yml has run with these variables; it goes, whatever becomes of the tests."""
    Site(Path("/")).playbook("playbooks/local_kubernetes_down.yml")
    site = Site(folder)
    try:
        began = time.monotonic()
        ended = site.playbook("site.yml", **variables)
        print(f"site.yml on a new cluster: {time.monotonic() - began:.0f} s")
        assert ended.returncode == 0, ended.stdout[-6000:]
        site.first = ended.stdout
        yield site
    finally:
        # A failed test leaves its playbook.
        for process in site.begun:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
        ended = site.playbook("playbooks/local_kubernetes_down.yml")
        assert ended.returncode == 0, ended.stdout[-3000:]
        assert left_by(NAME) == []
        assert not state_dir(NAME, os.environ).exists()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster, up, proved and trained on."""
    with site_of(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_site_proves_the_cluster_and_trains_on_it(site: Site) -> None:
    report = site.report()
    assert report["run"]["verdict"] == "passed"
    assert [host["name"] for host in report["fleet"]["hosts"]] == ["node1", "node2"]
    events = [json.loads(line) for line in (site.run_folder() / "events.jsonl").read_text().splitlines()]
    status = {event["check"]: event["status"] for event in events if event["event"] == "check"}
    names = ("nodes_ready", "dns", "etcd_reachable", "operator_webhook_training_operator", "claim_bound_fsx_claim")
    assert {name: status.get(name) for name in names} == dict.fromkeys(names, "passed")
    assert {entry["collective"] for entry in report["collectives"]} >= {"all_reduce", "alltoall"}
    assert {(entry["verdict"], len(entry["hosts"])) for entry in report["collectives"]} == {("passed", 2)}
    [training] = report["training"]
    assert (training["last_step"], training["world_size"]) == (TRAINING["steps"], 2)
    assert training["last_loss"] < 0.8 * training["first_loss"]


def test_a_second_run_starts_nothing_again(site: Site) -> None:
    pids = Cluster(NAME).pids()
    began = time.monotonic()
    ended = site.playbook("site.yml")
    print(f"site.yml on a cluster that is up: {time.monotonic() - began:.0f} s")
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert Cluster(NAME).pids() == pids
    assert {job["stored"] for job in site.report()["jobs"]} == {True}


def test_a_cluster_that_is_up_keeps_the_number_of_its_nodes(site: Site) -> None:
    said = failed(site.playbook("site.yml", muster_local_compute=3))
    keeps = f"The cluster {NAME} keeps the number of its nodes, which is 2"
    assert f"{keeps}; run make down ON=kubernetes FLEET={NAME} before you start it with 3." in said


def test_the_machine_stays_as_it_was(site: Site) -> None:
    """The fixture has run a whole cluster and two jobs on it."""
    settings, listens = BEFORE
    after = kernel_settings()
    assert {name: (value, after.get(name)) for name, value in settings.items() if after.get(name) != value} == {}
    assert listening() - listens == set()


def test_a_misspelt_field_is_refused_in_the_words_of_the_api(site: Site) -> None:
    # A run that was refused has no jobs.
    found = max((site.folder / "runs" / NAME).glob("2*/jobs/train/manifest.json"))
    manifest = json.loads(found.read_text())
    manifest["metadata"]["name"] = "misspelt"
    manifest["spec"]["runPolicyy"] = {}
    ended = localkube("kubectl", NAME, "create", "--dry-run=server", "-f", "-", input=json.dumps(manifest))
    assert 'unknown field "spec.runPolicyy"' in ended.stderr


def test_an_image_that_is_not_there_ends_the_job_with_the_reason(site: Site) -> None:
    job = {"name": "no-image", "command": ["true"], "image": "localhost/absent:1"}
    options = {"job": job, "target": site.target, "store": str(site.folder / "store"), "pending_timeout": 5}
    argv = [str(ROOT / ".venv/bin/ansible"), "localhost", "--module-name", "muster.fleet.kubernetes_job", "--args", json.dumps(options)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    said = ended.stdout + ended.stderr
    assert re.search(r"cannot start and was cancelled: Kubernetes says no-image\S+ (ErrImagePull|ImagePullBackOff)", said)
    assert "correct the image's name" in said


def test_a_job_that_waits_for_gpus_says_what_the_nodes_have(site: Site) -> None:
    kubectl("label", "node", "--all", "node.kubernetes.io/instance-type=p5.48xlarge", "--overwrite")
    try:
        document = site.write("gpus", command=["true"])
        assert site.job(document, "submit", instance_type="p5.48xlarge").returncode == 0

        def status() -> str:
            said = site.job(document, "status", instance_type="p5.48xlarge").stdout
            return said if "nodes are available" in said else ""

        said = until(status, 90, "the scheduler's reason")
        assert "PENDING" in said
        assert "the job asks each node for 8 nvidia.com/gpu" in said and "node1 has 0 of 0 free nvidia.com/gpu" in said
        assert site.job(document, "stop", instance_type="p5.48xlarge").returncode == 0
    finally:
        kubectl("label", "node", "--all", "node.kubernetes.io/instance-type-")


def test_too_little_memory_ends_a_job_as_such(site: Site) -> None:
    kubectl("create", "namespace", "small")
    kubectl("--namespace", "small", "create", "-f", "-", input=json.dumps(LIMITS))
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "fsx-claim"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "small"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(Cluster(NAME).volumes / "small"), "type": "DirectoryOrCreate"},
            "storageClassName": "",
            "claimRef": {"namespace": "small", "name": "fsx-claim"},
        },
    }
    for each in (volume, claim):
        kubectl("--namespace", "small", "create", "-f", "-", input=json.dumps(each))
    document = site.write("memory", command=["python", "-c", "x = bytearray(1 << 30)"])
    said = failed(site.job(document, namespace="small"))
    assert "OUT_OF_MEMORY" in said
    assert "give it more memory or a smaller batch" in said


def test_a_failed_job_has_the_exit_status_of_its_rank(site: Site) -> None:
    said = failed(site.job(site.write("rank", command=RANK_FAILS, nodes=2)))
    # torchrun on the other node would wait for minutes.
    kubectl("delete", "pytorchjob", "--selector=muster/job=rank")
    assert "ended FAILED" in said and "with exit status 7 of rank 1 on node[1-2]" in said


def test_a_job_that_somebody_deletes_is_an_error(site: Site) -> None:
    document = site.write("deleted", command=["sleep", "300"])
    process = site.start("playbooks/job.yml", job=document, muster_target=site.target)
    name = until(lambda: running("deleted"), 90, "the job")
    kubectl("delete", "pytorchjob", name, "--grace-period=0")
    said, _nothing = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "was deleted in namespace default while it ran; run it again with rerun" in said


def running(job: str) -> str:
    """The name of the PyTorchJob of a job whose pods all run."""
    pods = json.loads(kubectl("get", "pods", "--selector", f"muster/job={job}", "--output", "json"))["items"]
    if not pods or any(pod["status"].get("phase") != "Running" for pod in pods):
        return ""
    return pods[0]["metadata"]["labels"]["training.kubeflow.org/job-name"]


def losses(folder: Path) -> dict[int, float]:
    """{step: loss}; of a step that ran twice the last counts."""
    records = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if record.get("loss") is not None}


def training_folders() -> set[Path]:
    return set((Cluster(NAME).volumes / "fsx-claim").glob("train-*"))


def test_a_killed_worker_resumes_with_the_losses_of_an_undisturbed_run(site: Site) -> None:
    [undisturbed] = training_folders()
    process = site.start("playbooks/train.yml", muster_rerun=True)
    [disturbed] = until(lambda: training_folders() - {undisturbed}, 120, "the second training")
    until(lambda: (disturbed / "train.jsonl").exists() and len(losses(disturbed)) >= 8, 120, "some steps")
    kubectl("delete", "pod", "--selector", "muster/job=train,training.kubeflow.org/replica-index=1", "--grace-period=0", "--force")
    said, _nothing = process.communicate(timeout=300)
    assert process.returncode == 0, said[-4000:]
    [training] = site.report()["training"]
    assert training["resumes"] >= 1
    assert losses(disturbed) == pytest.approx(losses(undisturbed), abs=1e-5)


def test_a_sweep_of_a_recipe_has_one_table(site: Site) -> None:
    """Jobs of their own, whose pods wait for a free core and not for a queue. The first rank of each makes the same data."""
    asked = {"muster_sweep": {"--lr": [0.001, 0.003]}, "muster_workload": {"steps": 40}}
    target = {"muster_launcher": "pytorchjob", "muster_target": site.target, "kubernetes_trainer_mounts": site.mounts}
    given = {"recipe": "ddp", "muster_fleet": NAME, **asked, **target}
    ended = site.plain("playbooks/workload.yml", "-e", json.dumps(given))
    assert ended.returncode == 0, ended.stdout[-6000:]
    rows = list(csv.DictReader((site.run_folder() / "sweep.csv").open()))
    assert [(row["lr"], row["job"], row["verdict"]) for row in rows] == [
        ("0.001", "ddp-tiny-1", "passed"),
        ("0.003", "ddp-tiny-2", "passed"),
    ]
    for row in rows:
        assert float(row["last_loss"]) < 0.9 * float(row["first_loss"])
        result = json.loads((site.run_folder() / "jobs" / row["job"] / "result.json").read_text())
        assert result["nodes"] == ["node1", "node2"]


def test_a_secret_is_in_no_manifest_log_or_list_of_processes(site: Site) -> None:
    value = secrets.token_hex(16)
    kubectl("apply", "-f", "-", input=json.dumps({**SECRET, "stringData": {"token": value}}))
    reference = {"TOKEN": {"from": "kubernetes", "secret": "hub", "key": "token"}}
    # The rank says what it has by its sum, and stays for a look at the processes.
    command = ["bash", "-c", 'printf %s "$TOKEN" | sha256sum; sleep 10']
    process = site.start("playbooks/job.yml", job=site.write("hides", command=command, secrets=reference), muster_target=site.target)
    until(lambda: running("hides"), 90, "the job")
    seen = command_lines()
    said, _nothing = process.communicate(timeout=120)
    assert process.returncode == 0, said[-4000:]
    run = site.run_folder()
    assert hashlib.sha256(value.encode()).hexdigest() in (run / "jobs/hides/output.txt").read_text()
    assert any("sha256sum; sleep 10" in each for each in seen) and not any(value in each for each in seen)
    kept = [
        path for folder in (run, site.folder / "hides.yml", Cluster(NAME).folder.parent / "jobs") for path in [folder, *folder.rglob("*")]
    ]
    files = [path for path in kept if path.is_file()]
    assert {"manifest.json", "output.txt", "events.jsonl"} <= {path.name for path in files}
    assert [path for path in files if value.encode() in path.read_bytes()] == []
    assert value not in said
    assert value not in kubectl("get", "pods,pytorchjobs,events", "--output", "yaml")


# kubernetes/eks/etcd.yaml runs the same server from its image. The programs are in the cache that the nodes see.
ETCD = """
apiVersion: v1
kind: Service
metadata: {name: etcd}
spec: {selector: {app: etcd}, ports: [{port: 2379}]}
---
apiVersion: v1
kind: Pod
metadata: {name: etcd, labels: {app: etcd}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: etcd
      image: %(image)s
      command: [/programs/etcd, --enable-v2, --data-dir=/tmp/etcd, "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://etcd:2379"]
      volumeMounts: [{name: programs, mountPath: /programs}]
  volumes: [{name: programs, hostPath: {path: %(programs)s}}]
"""


STEPS = "exec python -m trainer train --model tiny --dataset synthetic --train_batch_size 2 --max_steps 5 --backend gloo"


def test_ranks_that_meet_through_etcd_train(site: Site) -> None:
    programs = cache_dir(os.environ) / "shared/etcd-v2"
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(programs / "python"), "python-etcd==0.4.5"]
    subprocess.run(argv, check=True)
    shutil.copy(find("etcd", os.environ), programs / "etcd")
    kubectl("apply", "-f", "-", input=ETCD % {"image": trainer_image(), "programs": programs})
    try:
        fields = {
            "nodes": 2,
            "env": {"PYTHONPATH": "/opt/muster/trainer:/var/cache/muster/etcd-v2/python"},
            "launcher": {"kind": "pytorchjob", "rendezvous": "etcd-v2"},
            "command": ["bash", "-c", STEPS],
        }
        ended = site.job(site.write("meets", **fields), etcd="etcd:2379")
        assert ended.returncode == 0, ended.stdout[-4000:]
        assert (site.run_folder() / "jobs/meets/output.txt").read_text().count(" Loss: ") == 5
        manifest = json.loads((site.run_folder() / "jobs/meets/manifest.json").read_text())
        assert manifest["spec"]["elasticPolicy"]["rdzvBackend"] == "etcd-v2"
        result = json.loads((site.run_folder() / "jobs/meets/result.json").read_text())
        assert (result["state"], result["nodes"]) == ("COMPLETED", ["node1", "node2"])
    finally:
        kubectl("delete", "pod,service", "etcd")


# What a person could write: neither launcher nor environment is named. The first rank makes the data.
SAME = {
    "nodes": 2,
    "time_limit": 10,
    "command": [
        "bash",
        "-c",
        'data=$MUSTER_JOB_DIR/data; if [ "$RANK" = 0 ]; then python -m trainer prepare-data --out "$data" --tokens 100000; fi; '
        'until [ -e "$data/index.json" ]; do sleep 1; done; exec "$@" --dataset_path "$data" --checkpoint_dir "$MUSTER_JOB_DIR/ck"',
        "same",
        *["python", "-m", "trainer", "train", "--model", "tiny", "--train_batch_size", "2", "--max_steps", "20", "--backend", "gloo"],
    ],
}
BOTH = """\
- import_playbook: %(root)s/playbooks/job.yml
  vars: {job: same-slurm.yml}
- import_playbook: %(root)s/playbooks/job.yml
  vars: {job: same-kubernetes.yml, muster_launcher: pytorchjob, muster_target: %(target)s, kubernetes_trainer_mounts: %(mounts)s}
"""


@pytest.fixture
def slurm(site: Site) -> Iterator[list[str]]:
    """The options of ansible-playbook for a local fleet with Slurm beside the cluster."""
    given = {"muster_fleet": "kube-slurm", "muster_components": ["common", "slurm", "trainer"], "common_ca_certificates": []}
    options = ["-i", str(ROOT / "inventory/local"), "-e", json.dumps(given)]
    try:
        for playbook in ("local_up", "provision"):
            ended = site.plain(f"playbooks/{playbook}.yml", *options)
            assert ended.returncode == 0, ended.stdout[-4000:]
        yield options
    finally:
        ended = site.plain("playbooks/local_down.yml", *options)
        assert ended.returncode == 0, ended.stdout[-4000:]


def test_a_document_trains_alike_under_slurm_and_on_kubernetes(site: Site, slurm: list[str]) -> None:
    for where in ("slurm", "kubernetes"):
        (site.folder / f"same-{where}.yml").write_text(yaml.safe_dump({"name": f"same-{where}", **SAME}))
    both = site.folder / "both.yml"
    both.write_text(BOTH % {"root": ROOT, "target": json.dumps(site.target), "mounts": json.dumps(site.mounts)})
    ended = site.plain(str(both), *slurm)
    assert ended.returncode == 0, ended.stdout[-6000:]
    run = max((site.folder / "runs/kube-slurm").glob("2*"), key=lambda path: path.name)
    jobs = {job["name"]: job for job in json.loads((run / "report.json").read_text())["jobs"]}
    ended = {name: (job["state"], job["nodes"]) for name, job in jobs.items()}
    where = {"same-slurm": ["compute-1", "compute-2"], "same-kubernetes": ["node1", "node2"]}
    assert ended == {name: ("COMPLETED", nodes) for name, nodes in where.items()}
    found = {name: re.findall(r"Batch (\d+) Loss: ([\d.]+)", (run / "jobs" / name / "output.txt").read_text()) for name in jobs}
    assert [step for step, _loss in found["same-slurm"]] == [str(step) for step in range(1, 21)]
    assert [float(loss) for _step, loss in found["same-slurm"]] == pytest.approx(
        [float(loss) for _step, loss in found["same-kubernetes"]], abs=1e-5
    )


@pytest.mark.parametrize("program", ["kube-apiserver.node1", "kubelet.node2"])
def test_a_program_may_be_gone_for_half_a_minute(site: Site, program: str) -> None:
    """The job ends in that time, and nobody could say so."""
    name = f"patient-{program.partition('.')[0]}"
    document = site.write(name, nodes=2, command=["sleep", "20"])
    process = site.start("playbooks/job.yml", job=document, muster_target=site.target)
    until(lambda: running(name), 90, "the job")
    hold = Cluster(NAME).folder / "hold" / program
    hold.touch()
    time.sleep(30)
    hold.unlink()
    said, _nothing = process.communicate(timeout=180)
    assert process.returncode == 0, said[-4000:]


def test_the_committed_manifests_are_taken_by_the_api(site: Site) -> None:
    """With the values that the render of a job for their type writes, put in by the real envsubst."""
    rendered = site.playbook(
        "playbooks/job.yml",
        job=site.write("values", command=["true"], nodes=2),
        verb="render",
        muster_target={**site.target, "instance_type": "p5.48xlarge"},
        muster_stack_name="aws-2026.11",
    )
    assert rendered.returncode == 0, rendered.stdout[-3000:]
    values = next((site.run_folder() / "jobs").glob("values/env_vars"))
    manifests = sorted((ROOT / "kubernetes").glob("*.yaml"))
    assert len(manifests) == 9
    for manifest in manifests:
        script = f". {values}; envsubst < {manifest}"
        text = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True).stdout
        said = kubectl("apply", "--dry-run=server", "-f", "-", input=text)
        assert "created (server dry run)" in said, manifest


def test_two_clusters_run_side_by_side_and_a_kill_leaves_nothing(site: Site) -> None:
    done = localkube("up", OTHER, "--nodes", "3", "--without-trainer")
    try:
        assert done.returncode == 0, done.stderr
        assert localkube("kubectl", OTHER, "get", "nodes", "--output=name").stdout.split() == ["node/node1", "node/node2", "node/node3"]
        assert "was up, with 3 nodes" in localkube("up", OTHER, "--without-trainer").stdout
        assert localkube("run", "--node", "node3", OTHER, "hostname").stdout == "node3\n"
        assert kubectl("get", "nodes", "--output=name").split() == ["node/node1", "node/node2"]
        os.kill(Cluster(OTHER).pids()[0], signal.SIGKILL)
        until(lambda: not left_by(OTHER), 20, "the end of all that the cluster started")
        assert "does not run" in localkube("kubectl", OTHER, "get", "nodes").stderr
        assert kubectl("get", "--raw", "/readyz") == "ok"
    finally:
        localkube("down", OTHER)
