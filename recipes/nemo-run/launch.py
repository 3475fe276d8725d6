# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Submits a job document (muster.job/1) through NeMo-run's Slurm executor, for people whose experiments NeMo-run keeps.

python launch.py job.json --account research --folder /fsx/nemo-run [--dryrun]
Run it where sbatch is. playbooks/job.yml submits the same document without NeMo-run.
"""

import argparse
import json
import shlex
from pathlib import Path

# What torchrun gives to a rank. NeMo-run's script sets none of it.
RANK = """\
mkdir -p {folder}
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE={ranks}
export MASTER_ADDR="$muster_head" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MUSTER_JOB_DIR={folder} MUSTER_RESTART="${{SLURM_RESTART_COUNT:-0}}"
"""
UNABLE = ("secrets", "venv")  # fields of a document that NeMo-run has nothing for


def settings(job, account, folder):
    """The arguments of nemo_run.SlurmExecutor for a complete job document; raises SystemExit with one sentence."""
    kind = job["launcher"].get("kind", "slurm")
    if kind != "slurm":
        raise SystemExit(f"launch.py: the job {job['name']} is for {kind}, and NeMo-run's executor is for Slurm; use playbooks/job.yml.")
    for field in UNABLE:
        if job.get(field):
            raise SystemExit(f"launch.py: the job {job['name']} has {field}, which NeMo-run cannot give to it; use playbooks/job.yml.")
    minutes, gpus = job.get("time_limit", 60), job.get("gpus_per_node", 0)
    if gpus == "all":
        raise SystemExit(
            f"launch.py: the job {job['name']} wants all GPUs; give gpus_per_node a number, because NeMo-run does not ask Slurm."
        )
    options = {name.replace("-", "_"): value for name, value in job["launcher"].get("options", {}).items()}
    return {
        "account": account,
        "partition": job["launcher"].get("partition") or None,
        "nodes": job.get("nodes", 1),
        "ntasks_per_node": job.get("procs_per_node", 1),
        "cpus_per_task": job.get("cpus_per_proc", 1),
        "gpus_per_node": gpus or None,
        "time": f"{minutes // 60}:{minutes % 60:02}:00",
        "container_image": job.get("image") or None,
        "container_mounts": [*job.get("mounts", []), *([f"{folder}:{folder}"] if job.get("image") else [])],
        "retries": job.get("retries", 0),
        "setup_lines": 'export muster_head="$head_node"',
        "additional_parameters": options,
    }


def script(job, folder):
    """The bash of one rank. It has the document's env too, because NeMo-run writes values into its batch script without quotes."""
    lines = RANK.format(ranks=job.get("procs_per_node", 1), folder=shlex.quote(f"{folder}/{job['name']}"))
    lines += "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in sorted(job.get("env", {}).items()))
    return lines + f"exec {shlex.join(map(str, job['command']))}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, help="the document as JSON, such as real.json of a run folder")
    parser.add_argument("--account", required=True)
    parser.add_argument("--folder", required=True, help="on a file system that the nodes share; it is not removed")
    parser.add_argument("--dryrun", action="store_true", help="prints the batch script and submits nothing")
    asked = parser.parse_args()
    import nemo_run

    job = json.loads(asked.job.read_text())
    given = settings(job, asked.account, asked.folder)
    executor = nemo_run.SlurmExecutor(**given, tunnel=nemo_run.LocalTunnel(job_dir=asked.folder), packager=nemo_run.Packager())
    with nemo_run.Experiment(job["name"]) as experiment:
        experiment.add(nemo_run.Script(inline=script(job, asked.folder)), executor=executor, name=job["name"])
        if asked.dryrun:
            experiment.dryrun(delete_exp_dir=False)
        else:
            experiment.run(detach=True)


if __name__ == "__main__":
    main()
