# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The programs of recipe nemo-run: launch.py against the fields of NeMo-run, train.py against those of NeMo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_recipe_programs import OPTIONS, commands, program
from test_recipes import FOLDER

JOB: dict[str, Any] = {
    "schema": "muster.job/1",
    "name": "fsdp-tiny",
    "command": ["python", "-c", "import os; print(os.environ['A'], os.environ['RANK'])"],
    "nodes": 2,
    "procs_per_node": 2,
    "gpus_per_node": 2,
    "env": {"A": "b c"},
    "image": "/fsx/i.sqsh",
    "time_limit": 90,
    "launcher": {"kind": "slurm", "partition": "gpu", "options": {"mem-per-cpu": "4G"}},
}


def test_nemo_run_takes_the_settings_of_a_document(tmp_path: Path) -> None:
    """The executor has a field for each, and the real bash gives a rank what torchrun would."""
    launch = program("nemo-run", "launch.py")
    given = launch.settings(JOB, "research", "/fsx/runs")
    assert set(given) <= set(OPTIONS["nemo-run"]["executor"])
    assert (given["time"], given["nodes"], given["ntasks_per_node"], given["gpus_per_node"]) == ("1:30:00", 2, 2, 2)
    assert (given["additional_parameters"], given["container_mounts"]) == ({"mem_per_cpu": "4G"}, ["/fsx/runs:/fsx/runs"])
    env = os.environ | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "muster_head": "n1"}
    text = launch.script(JOB, str(tmp_path)).replace("exec python ", "exec python3 ")
    assert subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True).stdout == "b c 3\n"
    assert (tmp_path / "fsdp-tiny").is_dir()
    said = launch.script({**JOB, "command": ["bash", "-c", "echo $MUSTER_STOP_AT"]}, str(tmp_path))
    ends = [subprocess.run(["bash", "-c", said], env=env | each, capture_output=True, text=True, check=True).stdout.strip()
            for each in ({"SLURM_JOB_END_TIME": "1795713000"}, {})]  # fmt: skip
    assert ends[0] == "1795713000" and 0 <= time.time() + 90 * 60 - int(ends[1]) < 60


def test_nemo_run_lets_torchrun_start_the_ranks_of_a_document_for_torchrun(tmp_path: Path) -> None:
    launch = program("nemo-run", "launch.py")
    job = {**JOB, "cpus_per_proc": 3, "venv": "/opt/a venv", "launcher": {"kind": "slurm", "launch": "torchrun", "mpi": "none"}}
    given = launch.settings(job, "research", "/fsx/runs")
    # NeMo-run gives the two tasks to torchrun, which gets the CPUs of both.
    assert (given["launcher"], given["ntasks_per_node"], given["cpus_per_task"], given["srun_args"]) == ("torchrun", 2, 6, ["--mpi=none"])
    said = subprocess.run(["bash", "-c", given["setup_lines"] + '\necho "${PATH%%:*} $muster_head"'], env={"head_node": "n1"} | os.environ,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout == "/opt/a venv/bin n1\n"
    text = launch.script(job, str(tmp_path))
    assert "RANK=" not in text and "MUSTER_JOB_DIR" in text and "export A='b c'" in text
    assert launch.settings(JOB, "research", "/fsx/runs")["launcher"] is None


def test_nemo_run_writes_where_the_nodes_read(tmp_path: Path) -> None:
    """A LocalTunnel copies nothing, so NeMo-run's home, which it reads at its import, must be the shared folder."""
    (tmp_path / "nemo_run.py").write_text("import os, sys\nprint(os.environ['NEMORUN_HOME'])\nsys.exit(3)\n")
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    words = [sys.executable, FOLDER / "nemo-run/launch.py", tmp_path / "job.json", "--account", "a", "--folder", "/fsx/runs"]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "/fsx/runs\n"), done.stderr


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mounts": ["/nemo_run:/data"]}, r"the job fsdp-tiny or its folder has /nemo_run in a path, which NeMo-run replaces; rename it\."),
        ({"launcher": {"kind": "batch"}}, r"the job fsdp-tiny is for batch, and NeMo-run's executor is for Slurm; use playbooks/job.yml\."),
        (
            {"secrets": {"T": {"from": "env", "name": "T"}}},
            r"the job fsdp-tiny has secrets, which NeMo-run cannot give to it; use playbooks",
        ),
        ({"gpus_per_node": "all"}, r"wants all GPUs; give gpus_per_node a number, because NeMo-run does not ask Slurm\."),
    ],
)
def test_nemo_run_refuses_what_it_has_nothing_for(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        program("nemo-run", "launch.py").settings({**JOB, **changed}, "research", "/fsx/runs")


class Anything:
    """Takes every attribute, as a configuration of NeMo-run does, and remembers them by their paths."""

    def __init__(self, path: str, kept: dict[str, Any]) -> None:
        self.__dict__.update(path=path, kept=kept)

    def __getattr__(self, name: str) -> Anything:
        return Anything(f"{self.path}.{name}".lstrip("."), self.kept)

    def __setattr__(self, name: str, value: Any) -> None:
        self.kept[f"{self.path}.{name}".lstrip(".")] = value


def test_nemo_s_recipes_have_what_the_program_sets() -> None:
    train, theirs = program("nemo-run", "train.py"), OPTIONS["nemo-run"]
    for model, kind, command in commands("nemo-run"):
        asked = train.arguments(command[command.index("@recipe@/train.py") + 1 :])
        assert asked.model in theirs["recipes"]
        kept: dict[str, Any] = {}
        train.adjusted(Anything("", kept), asked)
        for path in kept:
            owner, _dot, name = path.rpartition(".")
            assert name in theirs["fields"][owner], path
        together = asked.tensor * asked.pipeline * asked.context_parallel
        copies = asked.nodes * asked.procs_per_node // together
        assert copies * together == asked.nodes * asked.procs_per_node, (model, kind)
        assert asked.global_batch % (asked.micro_batch * copies) == 0, (model, kind)
