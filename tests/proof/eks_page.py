# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the kubectl commands of AWS's sample for EKS with the files of kubernetes/eks, on a real Kubernetes that rehearses its type.

Images of registries are not there, and no pod reaches Lustre: pods that need them have an image of this machine, and an empty folder.
Run by `make proofs`, or `pytest --engine tests/proof/eks_page.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_kubernetes import left_by, localkube, until

from localkube.cluster import Cluster
from localkube.images import trainer_image
from localkube.programs import find, manifest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = "eks-page"


class Shell:
    """Commands as a user types them in kubernetes/eks."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "KUBECONFIG": str(Cluster(NAME).kubeconfig), "PATH": f"{bin_folder}:{os.environ['PATH']}"}

    def typed(self, line: str, code: int = 0) -> str:
        argv = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == code, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def changed(self, name: str, change: Any) -> None:
        """Change the documents of a file."""
        documents = list(yaml.safe_load_all((self.folder / name).read_text()))
        for each in documents:
            change(each)
        (self.folder / name).write_text(yaml.safe_dump_all(documents))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    localkube("down", NAME)
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(ROOT / "kubernetes/eks", folder / "eks")
    (folder / "bin").mkdir()
    (folder / "bin/kubectl").symlink_to(find("kubectl", os.environ))
    done = localkube("up", NAME, "--nodes", "2", "--type", "p4d.24xlarge", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    yield Shell(folder / "eks", folder / "bin")
    assert localkube("down", NAME).returncode == 0
    assert left_by(NAME) == []


def test_the_plugins_and_the_claim(shell: Shell) -> None:
    until(lambda: shell.typed("kubectl get nodes -o json").count('"nvidia.com/gpu": "8"') == 4, 120, "eight GPUs on both nodes")
    assert "service/etcd created" in shell.typed("kubectl apply -f etcd.yaml")
    # Its address on GitHub is not reached from here; this is what `make kubernetes` built of it.
    shell.typed(f"kubectl apply --server-side -f {manifest('training-operator', os.environ).with_suffix('.local.yaml')}")
    shell.typed("kubectl wait --for=condition=Established crd/pytorchjobs.kubeflow.org crd/mpijobs.kubeflow.org --timeout=60s")
    shell.typed("kubectl -n kubeflow rollout status deployment/training-operator --timeout=110s")
    assert "persistentvolumeclaim/fsx-claim created" in shell.typed("kubectl apply -f ./fsx-pvc-static.yaml")
    until(lambda: "Bound" in shell.typed("kubectl get pvc fsx-claim"), 60, "the bound claim")


def test_the_environment_is_validated(shell: Shell) -> None:
    shell.changed("nvidia_smi.yaml", lambda pod: pod["spec"]["containers"][0].update(image=trainer_image()))
    shell.typed("kubectl apply -f nvidia_smi.yaml")
    log = until(lambda: shell.typed("kubectl logs nvidia-smi 2>/dev/null || true"), 60, "the log of nvidia-smi")
    assert "this pod has no nvidia-smi" in log, "the image of the test has none, and the stand-in is on the node alone"
    shell.typed("kubectl delete -f nvidia_smi.yaml")
    shell.typed("kubectl apply -f nccl-tests.yaml")
    pods = until(lambda: shell.typed("kubectl get pods | grep nccl || true"), 60, "pods of nccl-tests")
    until(lambda: "nccl-tests-worker-1" in shell.typed("kubectl get pods | grep nccl"), 60, pods)
    shell.typed("kubectl delete -f nccl-tests.yaml")


def test_the_job_runs(shell: Shell) -> None:
    conf = shell.folder / "fsdp.conf"
    text = conf.read_text().replace("123456789012.dkr.ecr.us-east-1.amazonaws.com/trainer:1", trainer_image())
    conf.write_text(text.replace("SHM_PER_NODE=65536Mi", "SHM_PER_NODE=64Mi").replace("HF_TOKEN=", "HF_TOKEN=hf_secret"))
    shell.typed("bash ./fsdp.sh")
    assert "hf_secret" not in (shell.folder / "fsdp.yaml").read_text()
    assert shell.typed("kubectl get secret hf-token -o jsonpath='{.data.token}' | base64 -d") == "hf_secret"

    def small(job: dict[str, Any]) -> None:
        """This machine has neither the CPUs and the memory, nor a model's weights."""
        pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["volumes"] = [each if each["name"] == "shm" else {"name": each["name"], "emptyDir": {}} for each in pod["volumes"]]
        [box] = pod["containers"]
        box["resources"]["requests"].update(cpu="100m", memory="64Mi")
        box["args"] = ["sh", "-c", "echo $(hostname) of $PET_NNODES $GPU_PER_NODE $FI_PROVIDER ${HF_TOKEN:+has a token}; sleep 8"]

    shell.changed("fsdp.yaml", small)
    shell.typed("kubectl apply -f ./fsdp.yaml")
    until(lambda: shell.typed("kubectl get pods | grep fsdp || true").count("Running") == 2, 100, "two running pods of fsdp")
    assert shell.typed("kubectl logs -f fsdp-worker-0").strip().endswith("fsdp-worker-0 of 2:2 8 efa has a token")
    assert "Name:         fsdp" in shell.typed("kubectl describe -f ./fsdp.yaml")


def test_what_is_asked_when_something_is_wrong(shell: Shell) -> None:
    assert shell.typed("kubectl get nodes -o wide").count(" Ready ") == 2
    if shutil.which("jq"):
        assert shell.typed("""kubectl get nodes -o json | jq '.items[].status.capacity."nvidia.com/gpu"'""") == '"8"\n"8"\n'
    efa = "kubectl get nodes -o=custom-columns=NAME:.metadata.name,EFA:.status.allocatable.vpc\\\\.amazonaws\\\\.com/efa"
    assert [line.split()[1] for line in shell.typed(efa).splitlines()] == ["EFA", "4", "4"]


def test_all_of_it_is_deleted(shell: Shell) -> None:
    shell.typed("kubectl delete -f ./fsdp.yaml")
    shell.typed("kubectl delete -f ./etcd.yaml")
    end = time.monotonic() + 60
    while "No resources" not in (left := shell.typed("kubectl get pods,services -l app 2>&1")) and time.monotonic() < end:
        time.sleep(1)
    assert "fsdp" not in left and "etcd" not in left, left
