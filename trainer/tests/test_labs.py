# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The labs: every cell of the notebooks runs, and the SageMaker job starts the right command."""

import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from trainer.labs import sagemaker
from trainer.labs.notebooks import LABS, LESSONS, cells, execute
from trainer.launch import answer
from trainer.tests.ranks import NO_TORCH


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_notebook_is_the_text_executed(lesson: str) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    text = (LABS / f"{lesson}.md").read_text()
    stored = json.loads((LABS / f"{lesson}.ipynb").read_text())
    remake = "make it again: python -m trainer.labs.notebooks"
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in stored["cells"]] == cells(text), remake
    made = execute(text)

    def said(notebook: dict) -> list[str]:
        """What the cells printed, without numbers: times and roundings differ."""
        outputs = [line for cell in notebook["cells"] for output in cell.get("outputs", []) for line in output["text"]]
        return [re.sub(r"\d[\d.]*(e[+-]\d+)?", "#", line) for line in outputs if not line.startswith("[W")]

    assert said(made) == said(stored), remake


def test_the_pipelines_timetable() -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from trainer.labs.model_parallel import FORWARD, timetable

    assert timetable(2, 4) == ["01.a2b3c.d", ".0a1b2c3d."]
    for stages, micro_batches in ((1, 3), (4, 4), (4, 8), (4, 16)):
        rows = timetable(stages, micro_batches)
        # All work is done once, in the shortest time that there is.
        assert {len(row) for row in rows} == {2 * (micro_batches + stages - 1)}
        work = sorted(FORWARD[:micro_batches] + "abcdefghijklmnop"[:micro_batches])
        assert all(sorted(row.replace(".", "")) == work for row in rows)


def test_the_slurm_job_finds_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@ $PYTHONPATH $MASTER_PORT"\n')
    (tmp_path / "srun").chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(LABS),
        "SLURM_JOB_ID": "12",
        "LESSON": "model_parallel",
        "PYTHON": "py",
    }
    done = subprocess.run(["bash", str(LABS / "lab.sbatch")], check=True, env=env, capture_output=True, text=True)
    assert done.stdout == f"py -m trainer.labs.model_parallel {LABS.parents[1]} 20012\n"


def request(**more: object) -> dict:
    return sagemaker.request("data_parallel", image="IMAGE", role="ROLE", bucket="b", name="lab", **more)  # type: ignore[arg-type]


def test_the_sagemaker_job_starts_one_rank_a_gpu(tmp_path: Path) -> None:
    job = request()
    assert job["ResourceConfig"]["InstanceType"] == "ml.g4dn.12xlarge"
    code, config = tmp_path / "code", tmp_path / "resourceconfig.json"
    code.mkdir()
    (code / "trainer.tar.gz").write_bytes(sagemaker.package())
    config.write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-2", "algo-1"]}))
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$@"; ls trainer/labs/data_parallel.py\n')
    (tmp_path / "torchrun").chmod(0o755)
    # The container's own command, with its paths below tmp_path.
    command = (
        job["AlgorithmSpecification"]["ContainerArguments"][0].replace(sagemaker.CODE, str(code)).replace("/tmp/lab", str(tmp_path / "lab"))
    )
    command = command.replace("/opt/ml/input/config/resourceconfig.json", str(config))
    done = subprocess.run(
        ["bash", "-c", command], check=False, env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "--nnodes 2 --node-rank 1 --master-addr algo-1 --master-port 29500 --nproc-per-node 4 -m trainer.labs.data_parallel",
        "trainer/labs/data_parallel.py",
    ], done.stderr


def test_the_package_is_the_trainer_without_tests() -> None:
    with tarfile.open(fileobj=io.BytesIO(sagemaker.package())) as archive:
        names = archive.getnames()
    assert {"trainer/__main__.py", "trainer/devices.json", "trainer/labs/model_parallel.py"} <= set(names)
    assert not [name for name in names if "tests" in name]


def test_an_instance_type_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["data_parallel", "--image", "i", "--role", "r", "--bucket", "b", "--instance_type", "ml.g4dn.12xlrge"]
    assert answer(sagemaker.main, argv) == 2
    assert "unknown instance type 'ml.g4dn.12xlrge': did you mean ml.g4dn.12xlarge?" in capsys.readouterr().err
