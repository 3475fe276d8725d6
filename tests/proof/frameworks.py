# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: recipes torchtitan, mosaicml and megatron-core train on two nodes through Slurm. Each is killed, resumes, and its loss falls.

Run by `make proofs`, or `pytest --engine tests/proof/frameworks.py`. The nodes have no GPU: for torchtitan and megatron-core a program
beside the recipe stands for it, and says so in the output.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_fleet import ROOT, Fleet, one_sentence

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from localkube.images import venv_name

pytestmark = pytest.mark.engine

PLAYBOOK = "playbooks/workload.yml"
# On the nodes, the cache's folder `shared` has this name.
SHARED = Path("/var/cache/muster")
PLATFORMS = (
    "any",
    *(f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 27, 28, 31)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
)


def environment(fleet: Fleet, recipe: str) -> str:
    """The path on the nodes of an environment with the framework beside the trainer's torch."""
    folder, wanted = f"recipe-{recipe}", ROOT / f"requirements/recipe-{recipe}.txt"
    wheels = cache_dir(fleet.env) / "shared" / folder / "wheels"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.13"]
    argv += [*(f"--platform={each}" for each in PLATFORMS), "--dest", str(wheels), "--require-hashes", "-r", str(wanted)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.exit(f"The packages of recipe {recipe} cannot be had: {done.stderr.strip().splitlines()[-1:]}", returncode=75)
    (wheels.parent / "requirements.txt").write_text(wanted.read_text())
    here, torch = SHARED / folder, SHARED / venv_name()
    script = f"""
      python3 -m venv --clear --without-pip {here}/venv
      site=$(echo {here}/venv/lib/python3.*/site-packages)
      echo {torch}/lib/${{site#{here}/venv/lib/}} > $site/torch.pth
      {torch}/bin/python -m pip --python {here}/venv/bin/python install --quiet --ignore-installed --no-deps \
        --no-index --find-links {here}/wheels --require-hashes -r {here}/requirements.txt
    """
    fleet.ansible("controller-1", "sh", "-ec", script, timeout=300)
    return f"{here}/venv"


def running(fleet: Fleet) -> str:
    """The number of the job that runs, "" without one."""
    return fleet.ansible("controller-1", "squeue", "--noheader", "--states=running", "--format=%i").strip()


def killed(fleet: Fleet, recipe: str, complete: str, steps: int, *args: str) -> tuple[str, dict]:
    """(output, workload.json) of a run whose rank on one node gets SIGKILL after the first checkpoint.

    complete: what a checkpoint has when it is complete, as a glob below the folder of the checkpoints.
    """
    asked = {"steps": steps, "venv": environment(fleet, recipe), "args": args}
    run = fleet.begin(PLAYBOOK, "-e", f"recipe={recipe}", "-e", json.dumps({"muster_workload": asked}))
    number = str(fleet.wait_for("the job", lambda: running(fleet), 120))
    fsx = fleet.state_dir / "fsx"
    fleet.wait_for("a checkpoint", lambda: run.poll() is not None or list(fsx.glob(f"**/checkpoints-{number}/{complete}")), 240)
    assert run.poll() is None, run.log.read_text()[-3000:]
    fleet.ansible("compute-2", "pkill", "-KILL", "--full", "--uid", "muster", "python")
    done = fleet.finish(run, 500)
    assert done.returncode == 0, done.stdout[-3000:]
    [path] = fleet.latest.glob("jobs/*/workload.json")
    result = json.loads(path.read_text())
    assert (result["verdict"], result["nodes"], result["ranks"]) == ("passed", 2, 2)
    assert json.loads(path.with_name("result.json").read_text())["restarts"] == 1
    assert result["tokens_per_s"] > 0 and result["samples_per_s"] > 0
    nodes = set(
        fleet.ansible("controller-1", "sacct", "--noheader", "--parsable2", "--allocations", "-j", number, "--format=nodelist").split()
    )
    assert nodes == {"compute-[1-2]"}
    return path.with_name("output.txt").read_text(), result


def test_torchtitan_is_killed_and_resumes(fleet: Fleet) -> None:
    output, result = killed(fleet, "torchtitan", "step-*/.metadata", 30)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert output.count("cpu.py of recipe torchtitan stands for the GPU") == 2 * result["ranks"]
    # Both ranks say it, and the first start has nothing to load.
    [begun] = {int(number) for number in re.findall(r"Loading the checkpoint from \S+/step-(\d+)", plain)}
    assert begun >= 10 and begun % 10 == 0
    seen = [int(number) for number in re.findall(r"step:\s+(\d+)\s+loss:", plain)]
    assert seen[0] == 1 and seen[-1] == 30 and result["first"]["step"] == 1


def test_composer_is_killed_and_resumes(fleet: Fleet) -> None:
    output, result = killed(fleet, "mosaicml", "latest-rank0.pt", 100)
    begun = [int(number) for number in re.findall(r"2 processes, begins after step (\d+)", output)]
    assert begun[0] == 0 and begun[1] >= 20 and begun[1] % 20 == 0 and len(begun) == 2
    # Composer counts from 0.
    assert result["steps"][-1]["step"] == 99


def test_megatron_core_is_killed_and_resumes(fleet: Fleet) -> None:
    output, result = killed(fleet, "megatron-core", "latest_checkpointed_iteration.txt", 150)
    assert output.count("train.py stands for the GPU") == 2
    # Each rank has half of the 256 tokens of the output layer.
    layout = r"2 processes, tensor parallel 2, data parallel 1, \(128, 128\) of the output layer on a rank, begins after step (\d+)"
    begun = [int(number) for number in re.findall(layout, output)]
    assert begun[0] == 0 and begun[1] >= 20 and begun[1] % 20 == 0 and len(begun) == 2
    assert result["steps"][-1]["step"] == 150


def test_a_training_whose_loss_does_not_fall_fails(fleet: Fleet) -> None:
    """The verdict is of the loss: without a learning rate the same program fails."""
    asked = {"steps": 20, "venv": f"{SHARED}/recipe-megatron-core/venv", "args": ["--lr", "0"], "suffix": "-still"}
    said = one_sentence(fleet.run(PLAYBOOK, "-e", "recipe=megatron-core", "-e", json.dumps({"muster_workload": asked})))
    assert "Recipe megatron-core: the loss did not fall enough" in said
