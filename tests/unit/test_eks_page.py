# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""kubernetes/eks: the files of AWS's sample for EKS under their names. tests/proof/eks_page.py types the commands that apply them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_schemas import EKSCTL, unknown_fields

from ansible_collections.muster.fleet.plugins.module_utils.aws.template_batch import IMAGE
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

FOLDER = Path(__file__).parents[2] / "kubernetes/eks"
# All files that the page's commands name, and the shell files behind them.
NAMES = (
    "eks-p4d.yaml eks-p4d-odcr.yaml eks-vpc-odcr-p4d.yaml etcd.yaml fsx.conf fsx_create.sh fsx_delete.sh fsx-pvc-static.yaml"
    " nvidia_smi.yaml nccl-tests.yaml fsdp.conf fsdp.sh fsdp.yaml fsdp.yaml-template"
)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def test_every_file_is_there_under_its_name() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(NAMES.split())


@pytest.mark.parametrize("name", [each for each in NAMES.split() if each.startswith("eks-")])
def test_eksctl_knows_all_fields(name: str) -> None:
    [cluster] = documents(name)
    assert unknown_fields(cluster, EKSCTL) == []
    [group] = [each for each in cluster["managedNodeGroups"] if each["name"] == "gpu"]
    assert (group["instanceType"], group["efaEnabled"], "capacityReservation" in group) == ("p4d.24xlarge", True, "odcr" in name)
    assert ("id" in cluster["vpc"]) == ("vpc" in name)


def test_pods_ask_for_what_the_type_has() -> None:
    limits = catalogue.k8s_resources("p4d.24xlarge")["limits"]
    [smi], [mpi] = documents("nvidia_smi.yaml"), documents("nccl-tests.yaml")
    [shown] = smi["spec"]["containers"]
    assert (shown["image"], str(shown["resources"]["limits"]["nvidia.com/gpu"])) == (IMAGE, str(limits["nvidia.com/gpu"]))
    replicas = mpi["spec"]["mpiReplicaSpecs"]
    [worker] = replicas["Worker"]["template"]["spec"]["containers"]
    assert {key: str(value) for key, value in worker["resources"]["limits"].items() if key != "memory"} == {
        key: str(value) for key, value in limits.items()
    }
    assert (worker["image"], mpi["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]) == (IMAGE, limits["nvidia.com/gpu"], 2)


def test_fsdp_sh_writes_the_job_and_keeps_the_token_out_of_it(tmp_path: Path) -> None:
    if not shutil.which("envsubst"):
        pytest.skip("not_run: there is no envsubst; install gettext-base")
    shutil.copytree(FOLDER, tmp_path / "eks")
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/typed\ncat >>{tmp_path}/given\n')
    (tmp_path / "kubectl").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def write() -> str:
        subprocess.run(["bash", "./fsdp.sh"], cwd=tmp_path / "eks", env=env, check=True, capture_output=True)
        return (tmp_path / "eks/fsdp.yaml").read_text()

    assert write() == (FOLDER / "fsdp.yaml").read_text() and not (tmp_path / "typed").exists()
    conf = tmp_path / "eks/fsdp.conf"
    conf.write_text(conf.read_text().replace("HF_TOKEN=", "HF_TOKEN=hf_secret").replace("NUM_NODES=2", "NUM_NODES=4"))
    text = write()
    assert "hf_secret" not in text and yaml.safe_load(text)["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4
    assert "create secret generic hf-token" in (tmp_path / "typed").read_text() and "hf_secret" not in (tmp_path / "typed").read_text()
    assert "hf_secret" in (tmp_path / "given").read_text()


def test_the_scripts_are_clean() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("not_run: there is no shellcheck")
    found = subprocess.run(
        ["shellcheck", "-x", *sorted(map(str, FOLDER.glob("*.sh")))], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout
