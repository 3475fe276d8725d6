# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Submits a job document (muster.job/1) through NeMo-run's Slurm executor, for people whose experiments NeMo-run keeps.

python launch.py job.json --account research --folder /fsx/experiments [--dryrun]
Run it where sbatch is. playbooks/job.yml submits the same document without NeMo-run.
"""

import argparse
import json
import os
import shlex
from pathlib import Path

# What torchrun gives to a rank. Without torchrun, NeMo-run's script sets none of it.
RANK = """\
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE={ranks}
export MASTER_ADDR="$muster_head" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
"""
JOB = """\
mkdir -p {folder}
export MUSTER_JOB_DIR={folder} MUSTER_RESTART="${{SLURM_RESTART_COUNT:-0}}"
export MUSTER_STOP_AT="${{SLURM_JOB_END_TIME:-$(($(date +%s) + 60 * {minutes}))}}"
"""
# NeMo-run replaces this in its scripts by a folder of its own.
RESERVED = "/nemo_run"


def by_torchrun(job):
    """Whether torchrun starts the ranks of a document, and srun only torchrun."""
    return job["launcher"].get("launch") == "torchrun"


def settings(job, account, folder):
    """The arguments of nemo_run.SlurmExecutor for a complete job document; raises SystemExit with one sentence."""
    kind = job["launcher"].get("kind", "slurm")
    if kind != "slurm":
        raise SystemExit(f"launch.py: the job {job['name']} is for {kind}, and NeMo-run's executor is for Slurm; use playbooks/job.yml.")
    if job.get("secrets"):
        raise SystemExit(f"launch.py: the job {job['name']} has secrets, which NeMo-run cannot give to it; use playbooks/job.yml.")
    if RESERVED in json.dumps([job, folder]):
        raise SystemExit(f"launch.py: the job {job['name']} or its folder has {RESERVED} in a path, which NeMo-run replaces; rename it.")
    minutes, gpus = job.get("time_limit", 60), job.get("gpus_per_node", 0)
    ranks, cpus = job.get("procs_per_node", 1), job.get("cpus_per_proc", 1)
    setup = ['export muster_head="$head_node"']
    if job.get("venv"):
        venv = shlex.quote(job["venv"])
        setup.append(f'export VIRTUAL_ENV={venv} PATH={venv}/bin:"$PATH"')
    if gpus == "all":
        raise SystemExit(
            f"launch.py: the job {job['name']} wants all GPUs; give gpus_per_node a number, because NeMo-run does not ask Slurm."
        )
    options = {name.replace("-", "_"): value for name, value in job["launcher"].get("options", {}).items()}
    return {
        "account": account,
        "partition": job["launcher"].get("partition") or None,
        "nodes": job.get("nodes", 1),
        # With torchrun, NeMo-run makes one task of them.
        "ntasks_per_node": ranks,
        "cpus_per_task": ranks * cpus if by_torchrun(job) else cpus,
        "gpus_per_node": gpus or None,
        "time": f"{minutes // 60}:{minutes % 60:02}:00",
        "container_image": job.get("image") or None,
        "container_mounts": [*job.get("mounts", []), *([f"{folder}:{folder}"] if job.get("image") else [])],
        "retries": job.get("retries", 0),
        "launcher": "torchrun" if by_torchrun(job) else None,
        "setup_lines": "\n".join(setup),
        "srun_args": [f"--mpi={job['launcher']['mpi']}"] if job["launcher"].get("mpi") else None,
        "additional_parameters": options,
    }


def script(job, folder):
    """The bash of one rank. It has the document's env too, because NeMo-run writes values into its batch script without quotes."""
    lines = JOB.format(folder=shlex.quote(f"{folder}/{job['name']}"), minutes=job.get("time_limit", 60))
    if not by_torchrun(job):
        lines += RANK.format(ranks=job.get("procs_per_node", 1))
    lines += "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in sorted(job.get("env", {}).items()))
    return lines + f"exec {shlex.join(map(str, job['command']))}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, help="the document as JSON, such as real.json of a run folder")
    parser.add_argument("--account", required=True)
    parser.add_argument("--folder", required=True, help="on a file system that the nodes share; it is not removed")
    parser.add_argument("--dryrun", action="store_true", help="prints the batch script and submits nothing")
    asked = parser.parse_args()
    job = json.loads(asked.job.read_text())
    given = settings(job, asked.account, asked.folder)
    # NeMo-run reads this once, when it is imported. A LocalTunnel copies nothing, so the nodes run what NeMo-run writes there.
    os.environ["NEMORUN_HOME"] = asked.folder
    import nemo_run

    executor = nemo_run.SlurmExecutor(**given, tunnel=nemo_run.LocalTunnel(job_dir=""), packager=nemo_run.Packager())
    with nemo_run.Experiment(job["name"]) as experiment:
        experiment.add(nemo_run.Script(inline=script(job, asked.folder)), executor=executor, name=job["name"])
        if asked.dryrun:
            experiment.dryrun(delete_exp_dir=False)
        else:
            experiment.run(detach=True)


if __name__ == "__main__":
    main()
