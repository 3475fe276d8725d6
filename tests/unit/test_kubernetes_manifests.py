# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The committed manifests: current, filled by envsubst with the values of a type, and refusing empty ones."""

from __future__ import annotations

import os
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path

import kubernetes_manifests
import pytest
import yaml
from commands import flags_in, module_help

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.module_utils.jobs import kubernetes, target
from ansible_collections.muster.fleet.plugins.module_utils.jobs.launchers import files
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "kubernetes").glob("*.yaml"))
STACK = stack_files.load("aws-2026.11")
TOKEN = "hf_0123456789secret"
# The environment of the AWS reference's README. EFA_PER_NODE and the rest come from env_vars of `render`.
REFERENCE = {
    "IMAGE_URI": "123456789012.dkr.ecr.us-west-1.amazonaws.com/fsdp:pytorch2.7.1",
    "INSTANCE_TYPE": "p5.48xlarge",
    "NUM_NODES": "4",
    "GPU_PER_NODE": "8",
    "EFA_PER_NODE": "32",
    "FI_PROVIDER": "efa",
    "HF_TOKEN": TOKEN,
}


def env_vars(kind: str = "p5.48xlarge") -> dict[str, str]:
    """What `source env_vars` sets, by the file that render writes."""
    document = job.load({"name": "t", "command": ["x"], "image": REFERENCE["IMAGE_URI"], "nodes": 4}, "pytorchjob")
    text = files(document, job.identity(document), target.load("pytorchjob", {"instance_type": kind, "stack": STACK}))["env_vars"]
    done = subprocess.run(["bash", "-c", f"{text}\nenv -0"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


def filled(path: Path, values: dict[str, str]) -> str:
    """The manifest after envsubst: the real one where it is installed, else Python's templates, which know $NAME and ${NAME} too."""
    if shutil.which("envsubst"):
        environment = {**values, "PATH": os.environ["PATH"]}
        return subprocess.run(["envsubst"], input=path.read_text(), env=environment, capture_output=True, text=True, check=True).stdout
    return string.Template(path.read_text()).substitute(dict.fromkeys(re.findall(r"\$\{(\w+)\}", path.read_text()), ""), **values)


def pod(text: str) -> dict:
    return yaml.safe_load(text)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def test_there_are_nine_and_they_are_current(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kubernetes_manifests.py", "--check"])
    assert (kubernetes_manifests.main(), capsys.readouterr().out, len(PATHS)) == (0, "", 9)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_manifest_is_filled_with_the_reference_s_names(path: Path) -> None:
    text = filled(path, {**env_vars(), **REFERENCE})
    assert "$" not in text and TOKEN not in text
    job_spec, spec = yaml.safe_load(text)["spec"], pod(text)
    assert (job_spec["pytorchReplicaSpecs"]["Worker"]["replicas"], job_spec["elasticPolicy"]["maxReplicas"]) == (4, 4)
    [container] = spec["containers"]
    assert container["image"] == REFERENCE["IMAGE_URI"]
    devices = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"}
    assert container["resources"]["limits"] == devices
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    assert {"name": "checkpoints", "mountPath": "/checkpoints"} in container["volumeMounts"]
    assert {"name": "NCCL_NET_PLUGIN", "value": "ofi"} in container["env"]
    assert [each["valueFrom"] for each in container["env"] if each["name"] == "HF_TOKEN"]
    known = flags_in(module_help("trainer", "train"))
    own = container["args"][container["args"].index("train") + 1 :]
    assert {word.split("=")[0] for word in own} <= known
    assert own[0].removeprefix("--model=") in module_help("trainer", "train")


@pytest.mark.parametrize("kind", [name for name in catalogue.names() if catalogue.instance_type(name)["accelerator"] == "nvidia"])
def test_env_vars_has_a_value_for_every_variable_that_a_manifest_needs(kind: str) -> None:
    values = env_vars(kind)
    have = catalogue.instance_type(kind)
    assert (values["GPU_PER_NODE"], values["EFA_PER_NODE"], values["INSTANCE_TYPE"]) == (str(have["gpus"]), str(have["efa_cards"]), kind)
    assert all(values.get(name) for name in kubernetes.MANIFEST_NEEDED)
    text = PATHS[0].read_text()
    assert set(re.findall(r"\$\{?(\w+)\}?", text)) == {*kubernetes.MANIFEST_NEEDED, *kubernetes.MANIFEST_OPTIONAL}


def test_the_manifests_have_every_variable_that_a_type_and_a_stack_can_give() -> None:
    stacks = [STACK, {}, {"aws_ofi_nccl": {"version": "1.5.0"}, "efa": {"version": "1.20.0"}, "nccl": {"version": "2.19.0"}}]
    kinds = [catalogue.instance_type(name) for name in catalogue.names()]
    given = {each["name"] for kind in kinds if kind["accelerator"] == "nvidia" for stack in stacks for each in nccl_env(kind, stack)}
    assert given <= {*kubernetes.MANIFEST_NEEDED, *kubernetes.MANIFEST_OPTIONAL}


@pytest.mark.parametrize("missing", ["NUM_NODES", "GPU_PER_NODE", "HUGEPAGES_PER_NODE", "FI_PROVIDER"])
def test_the_first_container_refuses_an_empty_value(missing: str) -> None:
    values = {**env_vars(), **REFERENCE, missing: ""}
    [check] = pod(filled(PATHS[0], values))["initContainers"]
    environment = {each["name"]: each["value"] for each in check["env"] if "value" in each} | {"PATH": os.environ["PATH"]}
    done = subprocess.run(check["command"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1, f"muster: these variables are empty in the manifest: {missing}; source env_vars before envsubst\n"
    )  # fmt: skip
    done = subprocess.run(check["command"], env={**environment, missing: "1"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_variable_that_the_type_does_not_have_is_not_set_for_the_ranks(tmp_path: Path) -> None:
    [container] = pod(filled(PATHS[0], {**REFERENCE, **env_vars("g5.xlarge")}))["containers"]
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert environment["NCCL_NET"] == ""
    (tmp_path / "torchrun").write_text('#!/bin/sh\nenv\necho "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([*container["command"], *container["args"]], env=environment, capture_output=True, text=True, check=True)
    assert "NCCL_NET=" not in done.stdout and "NCCL_DEBUG=WARN\n" in done.stdout
    assert "--nproc-per-node=1 --nnodes=4 -m trainer train --model=llama-2-13b" in done.stdout
