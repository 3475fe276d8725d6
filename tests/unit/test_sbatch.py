# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The batch script of a job document."""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.module_utils.jobs import sbatch
from ansible_collections.muster.fleet.plugins.module_utils.slurm.text import SlurmError


def rendered(stop_at=(), **change):
    document = job.load({"name": "t", "command": ["python", "-c", "print('$HOME')"], **change})
    return sbatch.render_sbatch(document, job.identity(document), "/fsx/muster/jobs/t", stop_at)


def test_a_script_has_its_options_before_its_commands():
    script = rendered(nodes=2, procs_per_node=3, time_limit=7, launcher={"partition": "gpu", "options": {"mem": 0, "exclusive": True}})
    head = script.split("set -euo")[0].splitlines()
    for option in ["nodes=2", "ntasks-per-node=3", "time=7", "partition=gpu", "mem=0", "exclusive", "requeue", "open-mode=append"]:
        assert f"#SBATCH --{option}" in head
    assert "#SBATCH --output=/fsx/muster/jobs/t/output.txt" in head
    assert not any(line.startswith("#SBATCH") for line in script.split("set -euo")[1].splitlines())


def test_gpus_are_asked_for_where_there_are_some():
    document = job.load({"name": "t", "command": ["x"]})
    assert "#SBATCH --gpus-per-node=8\n" in sbatch.render_sbatch(document, "0" * 64, "/x", gpus=8)
    assert "gpus" not in sbatch.render_sbatch(document, "0" * 64, "/x")
    for option in ("gpus-per-node", "gpus"):
        with pytest.raises(job.JobError, match="use gpus_per_node"):
            rendered(launcher={"options": {option: 8}})


def test_ranks_see_all_gpus_of_the_job_and_have_cpus_of_their_socket():
    document = job.load({"name": "t", "command": ["x"], "procs_per_node": 8})
    bound = " --gpu-bind=none --distribution=block:block --cpu-bind=cores "
    assert bound in sbatch.render_sbatch(document, "0" * 64, "/x", gpus=8)
    assert "-bind" not in sbatch.render_sbatch(document, "0" * 64, "/x")
    document = job.load({"name": "t", "command": ["x"], "procs_per_node": 8, "launcher": {"launch": "torchrun"}})
    script = sbatch.render_sbatch(document, "0" * 64, "/x", gpus=8)
    assert " --gpu-bind=none torchrun " in script


@pytest.mark.parametrize("change", [{}, {"launcher": {"launch": "torchrun"}}, {"image": "a/b:1"}])
def test_the_nodes_environment_reaches_the_ranks_and_the_jobs_own_wins(tmp_path, change):
    profile = tmp_path / "muster-nccl.sh"
    lines = [
        f'[ -n "${{{name}+set}}" ] || export {name}={value}\n' for name, value in [("NCCL_NET", "'AWS Libfabric'"), ("NCCL_DEBUG", "INFO")]
    ]
    profile.write_text("# Written by Muster (role nccl).\n" + "".join(lines))
    script = rendered(env={"NCCL_DEBUG": "TRACE"}, **change).replace("/etc/profile.d", str(tmp_path))
    for name, body in {
        "scontrol": "echo node-1",
        "srun": 'echo "$NCCL_NET,$NCCL_DEBUG"; printf "%s\\n" "$@" | grep container-env || true',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node-1"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    seen = "AWS Libfabric,TRACE\n" + ("--container-env=MASTER_ADDR,NCCL_DEBUG,NCCL_NET\n" if "image" in change else "")
    assert (done.returncode, done.stdout, done.stderr) == (0, seen, "")


@pytest.mark.parametrize(
    ("shown", "seen"),
    [
        ("NodeName=gpu-1 CoresPerSocket=2 NodeAddr=10.0.0.7 NodeHostName=gpu-1", "10.0.0.7"),
        ("NodeName=gpu-1 NodeAddr=gpu-1 NodeHostName=gpu-1", "gpu-1"),
        ("", "gpu-1"),
    ],
)
def test_ranks_meet_at_the_address_that_slurm_has(tmp_path, shown, seen):
    """The name of a node that Slurm started resolves nowhere."""
    said = f'[ "$1" = show ] && echo gpu-1 || {{ [ -n "{shown}" ] || exit 1; echo "{shown}"; }}'
    for name, body in {"scontrol": said, "srun": 'echo "$MASTER_ADDR"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "gpu-[1-2]", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=rendered(nodes=2), env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == ([seen], 0), done.stderr


def test_every_script_is_bash_and_runs_the_words_it_was_given(tmp_path):
    secret = tmp_path / "token"
    secret.write_text('it\'s a "secret"\n')
    script = rendered(
        command=["printf", "%s|", "a b", "$HOME", "it's"],
        env={"QUOTED": 'it\'s $(false) "q"'},
        secrets={"TOKEN": {"from": "file", "path": str(secret)}},
    )
    assert "secret" not in script.replace("muster: secret", "").replace(str(secret), "")
    # Stand-ins for Slurm's commands: srun drops its options and runs the rest, as one rank would.
    for name, body in {
        "scontrol": "echo node-1",
        "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"; env > ' + str(tmp_path / "env"),
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_PROCID": "0"}
    environment |= {"SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b|$HOME|it's|", "")
    seen = (tmp_path / "env").read_text()
    assert 'TOKEN=it\'s a "secret"\n' in seen
    assert 'QUOTED=it\'s $(false) "q"\n' in seen
    assert "MASTER_ADDR=node-1\nMASTER_PORT=20041\n" in seen or ("MASTER_ADDR=node-1" in seen and "MASTER_PORT=20041" in seen)


LIMIT, PAST = 4_000_000_000, "2020-01-01T00:00:00Z"  # the job's time limit ends it in 2096


@pytest.mark.parametrize(
    ("stop_at", "seen"),
    [
        ([], LIMIT),
        (["2090-01-01T00:00:00Z", "2090-01-01T06:00:00"], 3_786_912_000),
        (["2090-01-01T02:00:00+02:00"], 3_786_912_000),
        (["3786912000.5", PAST], 3_786_912_000),
        ([PAST], LIMIT),  # requeued: it has other nodes
        (["2099-01-01T00:00:00Z"], LIMIT),
    ],
)
def test_a_job_is_told_of_the_first_end(tmp_path, stop_at, seen):
    for name, body in {"scontrol": "echo node-1", "srun": 'echo "$MUSTER_STOP_AT"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "node-1",
        "SLURM_JOB_END_TIME": str(LIMIT),
    }
    done = subprocess.run(["bash"], input=rendered(stop_at), env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{seen}\n", "")


@pytest.mark.parametrize("text", ["tomorrow", "", "-5", "2026-13-01T00:00:00Z"])
def test_an_end_that_is_no_time(text):
    with pytest.raises(SlurmError, match=r"muster_stop_at is '.*'; write seconds since 1970 or a time such as"):
        rendered([text])


def test_a_missing_secret_ends_the_job_by_name():
    script = rendered(secrets={"TOKEN": {"from": "env", "name": "NOT_THERE"}}).split("export MASTER_ADDR")[1].split("\n", 1)[1]
    done = subprocess.run(["bash", "-u"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "muster: secret TOKEN" in done.stderr


def test_retries_requeue_and_torchrun_starts_one_task_a_node():
    assert "scontrol requeue" in rendered(retries=1)
    assert "scontrol requeue" not in rendered()
    script = rendered(nodes=2, procs_per_node=4, cpus_per_proc=2, launcher={"launch": "torchrun", "mpi": "none"})
    assert "#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=8\n" in script
    assert "torchrun --nnodes=2 --nproc-per-node=4" in script


def test_images_go_to_srun():
    assert "--container-image=a/b:1 --container-mounts=/fsx:/fsx" in rendered(image="a/b:1", mounts=["/fsx:/fsx"])


@pytest.mark.parametrize("options", [{"nodes": 3}, {"mem": "1 --uid=0"}, {"-x": 1}, {"output": "/etc/passwd"}])
def test_options_that_are_not_the_launchers_are_refused(options):
    with pytest.raises(job.JobError, match=r"launcher\.options cannot hold"):
        rendered(launcher={"options": options})
