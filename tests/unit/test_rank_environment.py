# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The environment that a rank really has: the batch script runs under bash, and srun, torchrun and pyxis are programs that start ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import instance_type
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document, sbatch
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
# What an image of its own has in its environment. pyxis lets it win over the job's, unless --container-env names a variable.
IMAGE = {"NCCL_NET": "Socket", "NCCL_DEBUG": "VERSION", "IN_CONTAINER": "yes"}
# Each starts two ranks and drops its own options. srun starts one torchrun instead, whose task has no local number yet.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
options = [words.pop(0) for word in list(words) if words[0].startswith("--")]
environment, image = dict(os.environ), {IMAGE!r}
if any(option.startswith("--container-image=") for option in options):
    [names] = [option.split("=", 1)[1].split(",") for option in options if option.startswith("--container-env=")]
    environment |= {{name: value for name, value in image.items() if name not in names}}
for rank in range(1 if words[0] == "torchrun" else 2):
    local = {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": "2"}}
    subprocess.run(words, env=environment | local, check=True)
"""
TORCHRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[sys.argv.index("--") + 1 :]
for rank in range(2):
    subprocess.run(words, env=os.environ | {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}}, check=True)
"""


def profile(kind: str, stack: dict) -> str:
    """What role nccl writes into /etc/profile.d for a type and a stack."""
    tasks = yaml.safe_load((ROOT / "roles/nccl/tasks/configure.yml").read_text())
    [file] = [each for each in tasks[0]["muster.fleet.config_files"]["files"] if each["dest"] == "/etc/profile.d/muster-nccl.sh"]
    values = {each["name"]: each["value"] for each in nccl_env(instance_type(kind), stack)}
    return Templar(DataLoader(), variables={"__nccl_environment": values}).template(trust_as_template(file["content"]))


@pytest.mark.parametrize("start", ["srun", "torchrun", "pyxis", "pyxis and torchrun"])
@pytest.mark.parametrize("login", [False, True], ids=["rank", "rank that is a login shell"])
def test_each_rank_has_the_variables_of_its_type_and_stack_once(tmp_path: Path, start: str, login: bool) -> None:
    stack = stack_files.load("aws-2026.11")
    (tmp_path / "muster-nccl.sh").write_text(profile("p5.48xlarge", stack))
    for name, text in {"scontrol": "#!/bin/sh\necho node-1\n", "srun": SRUN, "torchrun": TORCHRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    rank = "env -0 | tr '\\0\\n' '\\n ' | grep -E '^(NCCL_|FI_|RANK=|IN_CONTAINER)' | sort; echo end"
    change = {"launcher": {"launch": "torchrun" if "torchrun" in start else "srun"}, "image": "a/b:1" if "pyxis" in start else None}
    wanted = {
        "name": "t",
        "nodes": 1,
        "procs_per_node": 2,
        "command": ["bash", "-c", f". {tmp_path}/muster-nccl.sh; {rank}" if login else rank],
        "env": {"NCCL_DEBUG": "TRACE"},
        **{key: value for key, value in change.items() if value},
    }
    loaded = document.load(wanted)
    script = sbatch.render_sbatch(loaded, document.identity(loaded), "/fsx/muster/jobs/t", gpus=2).replace("/etc/profile.d", str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node-1"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    values = {each["name"]: each["value"] for each in nccl_env(instance_type("p5.48xlarge"), stack)}
    assert {"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG"} <= set(values)
    common = [f"{name}={value}" for name, value in {**values, "NCCL_DEBUG": "TRACE"}.items()]
    common += ["IN_CONTAINER=yes"] if "pyxis" in start else []
    ranks = done.stdout.split("end\n")[:-1]
    assert [each.splitlines() for each in ranks] == [sorted([*common, f"RANK={number}"]) for number in range(2)]
