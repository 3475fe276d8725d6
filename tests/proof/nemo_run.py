# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: NeMo-run submits a training of two nodes to Slurm. A rank is killed, NeMo-run requeues the job, and the training resumes.

Run by `make proofs`, or `pytest --engine tests/proof/nemo_run.py`. The job is that of train.yml, with torchrun as its launcher. launch.py
of recipe nemo-run submits it as a normal user, without a container. Another job says which of torchrun's ranks failed.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml
from e2e_fleet import ROOT, Fleet, one_sentence
from frameworks import environment, running

from ansible_collections.muster.fleet.plugins.module_utils.jobs import recipe, workload

pytestmark = pytest.mark.engine

STEPS = 60
COMPONENTS = json.dumps({"muster_components": ["common", "slurm", "trainer"]})


@pytest.fixture(scope="module")
def fleet(artifacts, request: pytest.FixtureRequest) -> Fleet:
    """A controller and two compute nodes that have trained once."""
    made = Fleet(artifacts.folder("nemo-run"), "nemo-run", ROOT / "inventory/local")
    artifacts.leave("fleet nemo-run", lambda: made.run("playbooks/local_down.yml").check_returncode())
    request.addfinalizer(made.end)
    for playbook in ("local_up", "provision", "train"):
        done = made.run(f"playbooks/{playbook}.yml", "-e", COMPONENTS)
        assert done.returncode == 0, done.stdout[-4000:]
    made.first_run = made.latest
    return made


def test_nemo_run_submits_a_training_that_is_killed_and_resumes(fleet: Fleet) -> None:
    venv, fsx = environment(fleet, "nemo-run"), fleet.state_dir / "fsx"
    document = json.loads((fleet.first_run / "jobs/train/job.json").read_text())
    words = document["command"]
    words[words.index("--max_steps") + 1] = str(STEPS)
    document.update(name="nemo", gpus_per_node=0, retries=1)
    document["launcher"]["launch"] = "torchrun"
    (fsx / "nemo.json").write_text(json.dumps(document))
    shutil.copy(ROOT / "recipes/nemo-run/launch.py", fsx)
    folder = "/fsx/home/muster/nemo"
    submit = [f"{venv}/bin/python", "/fsx/launch.py", "/fsx/nemo.json", "--account", "muster", "--folder", folder]
    said = fleet.ansible("controller-1", *submit, user="muster", timeout=240)
    [number] = re.findall(r"Launched app: slurm_tunnel://nemo_run/(\d+)", said)

    begun = fleet.wait_for("the job", lambda: running(fleet), 120)
    assert begun == number, said
    checkpoints = fsx / f"home/muster/training/checkpoints-{number}"
    fleet.wait_for("a checkpoint", lambda: list(checkpoints.glob("step-*/.metadata")), 240)
    # The rank alone: its torchrun sees it end.
    fleet.ansible("compute-2", "pkill", "-KILL", "--full", "--uid", "muster", "^python -m trainer train")

    def rows() -> list[str]:
        asked = ["--duplicates", "--noheader", "--parsable2", "--allocations", "-j", number, "--format=state,exitcode,nodelist"]
        return fleet.ansible("controller-1", "sacct", *asked).split()

    # Slurm begins a requeued job after one to two minutes.
    fleet.wait_for("the end of the job", lambda: len(rows()) == 2 and not rows()[1].startswith(("PENDING", "RUNNING")), 400)
    before, after = [path.read_text() for path in sorted((fsx / "home/muster/nemo").rglob(f"log-*_{number}_*.out"))]
    assert rows() == ["REQUEUED|0:0|compute-[1-2]", "COMPLETED|0:0|compute-[1-2]"], after[-3000:]
    assert re.findall(r"rank      : 1 \(local_rank: 0\)\n  exitcode  : -9 ", before), "the rank was killed, not its torchrun"

    [begun_at] = re.findall(r"Resumed from step (\d+) \(.* 2 ranks by torchrun, .* restart 1;", after)
    assert 10 <= int(begun_at) < STEPS and int(begun_at) % 10 == 0
    assert [int(step) for step in re.findall(r"Batch (\d+) Loss: ", after)] == list(range(int(begun_at) + 1, STEPS + 1))
    fsdp = recipe.load(yaml.safe_load((ROOT / "recipes/fsdp/recipe.yml").read_text()), "fsdp")
    result = workload.judge(fsdp, before + after, model="tiny", ranks=2, asked_steps=STEPS)
    assert (result["verdict"], result["first"]["step"], result["last"]["step"]) == ("passed", 1, STEPS), result["reason"]
    assert result["samples_per_s"] > 0 and result["tokens_per_s"] > 0
    print(workload.summary(result), f"resumed after step {begun_at}")


def test_a_job_under_torchrun_says_which_rank_failed(fleet: Fleet) -> None:
    """torchrun ends with 1 on both nodes, and Slurm has one output for them."""
    command = ["bash", "-c", '[ "$RANK" != 1 ] || exit 7; sleep 100']
    launcher = {"kind": "slurm", "launch": "torchrun", "mpi": "none"}
    (fleet.folder / "fails.json").write_text(
        json.dumps({"name": "fails", "command": command, "nodes": 2, "gpus_per_node": 0, "launcher": launcher})
    )
    said = one_sentence(fleet.run("playbooks/job.yml", "-e", COMPONENTS, "-e", "job=@fails.json"))
    assert "ended FAILED (NonZeroExitCode) with exit status 7 of rank 1 on compute-[1-2]" in said
    result = json.loads((fleet.latest / "jobs/fails/result.json").read_text())
    assert (result["exit_code"], result["failed_rank"]) == (7, 1)
