# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The labs: every cell of the notebooks runs, and the Slurm job finds its program."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from trainer.tests.notebooks import LABS, LESSONS, cells, execute
from trainer.tests.ranks import NO_TORCH


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_notebook_is_the_text_executed(lesson: str) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    text = (LABS / f"{lesson}.md").read_text()
    stored = json.loads((LABS / f"{lesson}.ipynb").read_text())
    remake = "make it again: python -m trainer.tests.notebooks"
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
