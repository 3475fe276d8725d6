# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: recipes train on two nodes through Slurm. Each is killed between two checkpoints, resumes, and its loss falls.

Run by `make proofs`, or `pytest --engine tests/proof/recipes.py`.
"""

from __future__ import annotations

import csv
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
# JAX's own requirements as well, because pip resolves none for the nodes' Python.
JAX = ("jax==0.12.0.1", "jaxlib==0.12.0.1", "ml_dtypes==0.6.0", "numpy==2.5.5", "opt_einsum==3.4.0", "scipy==1.18.1")
PLATFORMS = ("any", "manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")


def kept(fleet: Fleet) -> tuple[Path, dict]:
    """The job's folder in the newest run, and its workload.json."""
    [path] = fleet.latest.glob("jobs/*/workload.json")
    return path.parent, json.loads(path.read_text())


def steps(folder: Path) -> list[int]:
    """The steps in the order in which the ranks trained them."""
    return [int(number) for number in re.findall(r"Batch (\d+) Loss: ", (folder / "output.txt").read_text())]


def running(fleet: Fleet) -> str:
    """The number of the job that runs, "" without one."""
    return fleet.ansible("controller-1", "squeue", "--noheader", "--states=running", "--format=%i").strip()


def killed(fleet: Fleet, recipe: str, checkpoints: str, last: int, asked: dict) -> tuple[Path, dict]:
    """A run of a recipe whose ranks get SIGKILL on one node after the first checkpoint, to its good end."""
    run = fleet.begin(PLAYBOOK, "-e", f"recipe={recipe}", "-e", json.dumps({"muster_workload": {"steps": last, **asked}}))
    number = fleet.wait_for("the job", lambda: running(fleet), 120)
    fsx = fleet.state_dir / "fsx"
    fleet.wait_for("a checkpoint", lambda: [path for path in fsx.rglob(checkpoints) if number in str(path)], 120)
    fleet.ansible("compute-2", "pkill", "-KILL", "--full", "--uid", "muster", "python")
    done = fleet.finish(run, 400)
    assert done.returncode == 0, done.stdout[-3000:]
    folder, result = kept(fleet)
    assert (result["verdict"], result["nodes"]) == ("passed", 2)
    assert json.loads((folder / "result.json").read_text())["restarts"] == 1
    return folder, result


def test_ddp_trains_and_its_second_run_is_the_stored_one(fleet: Fleet) -> None:
    done = fleet.run(PLAYBOOK, "-e", "recipe=ddp")
    assert done.returncode == 0, done.stdout[-3000:]
    folder, result = kept(fleet)
    assert (result["verdict"], result["nodes"], steps(folder)[-1]) == ("passed", 2, 60)
    assert result["samples_per_s"] > 0 and result["tokens_per_s"] > 0
    again = fleet.run(PLAYBOOK, "-e", "recipe=ddp")
    assert again.returncode == 0, again.stdout[-3000:]
    assert kept(fleet)[1]["job_id"] == result["job_id"]


def test_a_sweep_runs_every_combination_and_names_the_one_that_fails(fleet: Fleet) -> None:
    asked = {"muster_sweep": {"--lr": [0.001, 0.003, "fast"]}, "muster_workload": {"steps": 40}}
    done = fleet.run(PLAYBOOK, "-e", "recipe=ddp", "-e", json.dumps(asked))
    assert "1 of 3 combinations failed: ddp-tiny-3; sweep.csv in the run folder says why." in one_sentence(done)
    rows = list(csv.DictReader((fleet.latest / "sweep.csv").open()))
    assert [(row["lr"], row["job"], row["verdict"]) for row in rows] == [
        ("0.001", "ddp-tiny-1", "passed"),
        ("0.003", "ddp-tiny-2", "passed"),
        ("fast", "ddp-tiny-3", "failed"),
    ]
    assert "ddp-tiny-3" in rows[2]["reason"]
    # All were submitted before the first had ended.
    times = [json.loads((fleet.latest / f"jobs/ddp-tiny-{number}/result.json").read_text()) for number in (1, 2, 3)]
    assert max(each["submitted"] for each in times) < min(each["ended"] for each in times)


def test_fsdp_is_killed_and_resumes(fleet: Fleet) -> None:
    folder, _result = killed(fleet, "fsdp", "step-*/.metadata", 100, {})
    resumed = [int(number) for number in re.findall(r"Resumed from step (\d+) ", (folder / "output.txt").read_text())]
    assert len(resumed) == 1 and 20 <= resumed[0] < 100
    assert steps(folder)[-1] == 100


@pytest.fixture(scope="module")
def jax_venv(fleet: Fleet) -> Path:
    """An environment with JAX beside the trainer's torch, whose launcher starts the ranks; its path on the nodes."""
    folder = cache_dir(fleet.env) / "shared" / "recipe-jax"
    wheels = folder / "wheels"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.13"]
    subprocess.run([*argv, *(f"--platform={each}" for each in PLATFORMS), "--dest", str(wheels), *JAX], check=True, cwd=ROOT)
    here, torch = SHARED / "recipe-jax", SHARED / venv_name()
    install = f"{torch}/bin/python -m pip --python {here}/venv/bin/python install --quiet --no-index --find-links {here}/wheels"
    script = f"""
      python3 -m venv --clear --without-pip {here}/venv
      site=$(echo {here}/venv/lib/python3.*/site-packages)
      echo {torch}/lib/${{site#{here}/venv/lib/}} > $site/torch.pth
      {install} {" ".join(JAX)}
    """
    fleet.ansible("controller-1", "sh", "-ec", script, timeout=300)
    return here / "venv"


def test_jax_is_killed_and_resumes(fleet: Fleet, jax_venv: Path) -> None:
    folder, _result = killed(fleet, "jax", "step-*.npz", 200, {"venv": str(jax_venv)})
    output = (folder / "output.txt").read_text()
    begun = [int(number) for number in re.findall(r"2 processes, 2 devices, begins after step (\d+)", output)]
    assert begun[0] == 0 and begun[1] >= 20 and begun[1] % 20 == 0
    assert steps(folder)[-1] == 200


def test_a_recipe_that_has_no_size_for_the_nodes_is_refused(fleet: Fleet) -> None:
    said = one_sentence(fleet.run(PLAYBOOK, "-e", "recipe=picotron"))
    assert "Recipe picotron has no sizes for CPUs, but for p4d.24xlarge, p5.48xlarge; choose one of them" in said
