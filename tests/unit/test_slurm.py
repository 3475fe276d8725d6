# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils import job, slurm, slurm_node

FIXTURES = Path(__file__).parent.parent / "fixtures" / "slurm"


def said(name):
    return (FIXTURES / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("compute-[1-2]", ["compute-1", "compute-2"]),
        ("a[08-11,20],b", ["a08", "a09", "a10", "a11", "a20", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("x", ["x"]),
        ("", []),
    ],
)
def test_host_lists_expand(text, hosts):
    assert slurm.expand(text) == hosts


@pytest.mark.parametrize("text", ["a[1-2", "a1-2]", "a[x]", "a[[1]]"])
def test_a_damaged_host_list_is_refused(text):
    with pytest.raises(ValueError, match="is no host list"):
        slurm.expand(text)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["compute-2", "compute-1"], "compute-[1-2]"),
        (["a10", "a9", "a8", "a1"], "a[1,8-9],a10"),
        (["a08", "a09", "a9"], "a9,a[08-09]"),
        (["login", "a1"], "login,a1"),
        ([], ""),
    ],
)
def test_host_lists_compress_and_expand_back(hosts, text):
    assert slurm.compress(hosts) == text
    assert sorted(slurm.expand(text)) == sorted(hosts)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running", {"job_id": 6, "state": "RUNNING", "ended": None, "nodes": ["compute-1", "compute-2"], "started": 1795259727}),
        ("pending", {"state": "PENDING", "reason": "Resources", "nodes": [], "started": None}),
        ("dark", {"state": "PENDING", "reason": "PartitionDown"}),
        ("done", {"state": "COMPLETED", "ended": 1795259736, "name": "muster:ok:0123456789ab"}),
        ("failed", {"state": "FAILED", "exit_code": 3, "signal": 0, "reason": "NonZeroExitCode"}),
        ("oom", {"state": "OUT_OF_MEMORY", "exit_code": 0, "signal": 125, "nodes": ["compute-2"]}),
        ("cancelled", {"state": "CANCELLED", "signal": 15}),
    ],
)
def test_scontrol_jobs(name, expected):
    record = slurm.job_record(said("scontrol_job_" + name))
    assert {key: record[key] for key in expected} == expected


def test_what_is_no_job_is_an_error():
    with pytest.raises(ValueError, match="Invalid job id"):
        slurm.job_record(said("scontrol_job_unknown"))


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [
        (6, {"state": "COMPLETED", "elapsed_s": 9, "restarts": 0, "nodes": ["compute-1", "compute-2"]}),
        (10, {"state": "CANCELLED"}),
        (26, {"state": "FAILED", "reason": "OUT_OF_MEMORY", "exit_code": 1}),
        (27, {"state": "COMPLETED", "restarts": 1, "submitted": 1795260615, "elapsed_s": 1}),
        (29, {"state": "TIMEOUT"}),
    ],
)
def test_accounting_rows(job_id, expected):
    record = slurm.accounting_record(said("sacct"), job_id)
    assert {key: record[key] for key in expected} == expected


def test_no_accounting_row():
    assert slurm.accounting_record(said("sacct"), 2) is None


def test_sinfo_nodes_with_a_bar_in_the_reason():
    nodes = slurm.node_records(said("sinfo_drained"))
    assert nodes["compute-1"] == {"state": "idle", "cpus": 1, "partitions": ["main"], "reason": ""}
    assert nodes["compute-2"]["reason"] == "muster:nccl: busbw 80 GB/s | floor 320"
    assert sorted(nodes["compute-2"]["partitions"]) == ["dark", "main"]


def test_cpus_of_a_partition():
    assert slurm.cpus_of(said("sinfo_idle")) == {"compute-1": 1, "compute-2": 1}
    assert slurm.cpus_of(said("sinfo_idle"), "dark") == {"compute-2": 1}
    with pytest.raises(job.JobError, match=r"no partition drak; set launcher\.partition, did you mean dark"):
        slurm.cpus_of(said("sinfo_idle"), "drak")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("PartitionDown", "impossible"),
        ("QOSMaxCpuPerJobLimit", "impossible"),
        ("launch failed requeued held", "impossible"),
        ("ReqNodeNotAvail, May be reserved for other job", "unavailable"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "unavailable"),
        ("Resources", None),
        ("Priority", None),
        ("BeginTime", None),
        ("AssocGrpCpuLimit", None),
    ],
)
def test_pending_reasons(reason, kind):
    assert slurm.pending_problem(reason)[0] == kind


def test_the_newest_live_job_of_a_name():
    text = "7|RUNNING|muster:a:1\n9|COMPLETED|muster:a:1\n8|PENDING|muster:a:1\n12|RUNNING|muster:b:1\n"
    assert slurm.newest_live(text, "muster:a:1") == 8
    assert slurm.newest_live("", "muster:a:1") is None


def rendered(stop_at=(), **change):
    document = job.load({"name": "t", "command": ["python", "-c", "print('$HOME')"], **change})
    return slurm.render_sbatch(document, job.identity(document), "/fsx/muster/jobs/t", stop_at)


def test_a_script_has_its_options_before_its_commands():
    script = rendered(nodes=2, procs_per_node=3, time_limit=7, launcher={"partition": "gpu", "options": {"mem": 0, "exclusive": True}})
    head = script.split("set -euo")[0].splitlines()
    for option in ["nodes=2", "ntasks-per-node=3", "time=7", "partition=gpu", "mem=0", "exclusive", "requeue", "open-mode=append"]:
        assert f"#SBATCH --{option}" in head
    assert "#SBATCH --output=/fsx/muster/jobs/t/output.txt" in head
    assert not any(line.startswith("#SBATCH") for line in script.split("set -euo")[1].splitlines())


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
    with pytest.raises(job.JobError, match=r"muster_stop_at is '.*'; write seconds since 1970 or a time such as"):
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


NODES = {
    "a1": {"state": "idle", "reason": ""},
    "a2": {"state": "drained", "reason": "muster:nccl: slow"},
    "a3": {"state": "draining*", "reason": "bad disk, ticket 4711"},
    "a4": {"state": "down*", "reason": "Not responding"},
    "a5": {"state": "down", "reason": "on fire"},
    "a6": {"state": "drained", "reason": "muster:nccl2: slow"},
}


def test_draining_leaves_what_is_out_of_service():
    changes, notes = slurm_node.plan(NODES, ["a[1-6]"], "drained", "nccl", "very\nslow")
    assert changes == dict.fromkeys(["a1", "a4"], "muster:nccl: very slow")
    assert notes == ["a3 stays draining*: bad disk, ticket 4711", "a5 stays down: on fire", "a6 stays drained: muster:nccl2: slow"]
    assert slurm_node.command(changes, "drained") == [
        "scontrol", "update", "NodeName=a[1,4]", "State=DRAIN", "Reason=muster:nccl: very slow",
    ]  # fmt: skip


def test_only_the_same_check_gives_a_newer_reason():
    changes, _notes = slurm_node.plan(NODES, ["a[2,3,6]"], "drained", "nccl", "very slow", update_reason=True)
    assert changes == {"a2": "muster:nccl: very slow"}
    assert slurm_node.plan(NODES, ["a2"], "drained", "nccl", "slow", update_reason=True)[0] == {}


def test_nodes_that_left_the_configuration():
    text = (
        "NodeName=a1 Arch=x86_64 State=IDLE Comment=State=DYNAMIC\nNodeName=a2 State=DOWN*+DRAIN \n"
        "NodeName=d1 State=IDLE+DYNAMIC_NORM \nslurm_load_node error\n"
    )
    assert slurm_node.leaving(text, ["a1"]) == ["a2"]
    assert slurm_node.leaving(text, ["a1", "a2"]) == []


def test_resuming_undoes_only_own_drains():
    changes, notes = slurm_node.plan(NODES, ["a[1-6]"], "resumed", "nccl", "")
    assert list(changes) == ["a2"]
    assert [note.split()[0] for note in notes] == ["a3", "a4", "a5", "a6"]
    assert slurm_node.command(changes, "resumed") == ["scontrol", "update", "NodeName=a2", "State=RESUME"]


def test_unknown_nodes_and_checks_are_named():
    with pytest.raises(slurm_node.SlurmNodeError, match="no node a11; did you mean a1"):
        slurm_node.plan(NODES, ["a11"], "drained", "nccl", "x")
    with pytest.raises(slurm_node.SlurmNodeError, match="no usable name"):
        slurm_node.plan(NODES, ["a1"], "drained", "a:b", "x")


def test_a_draining_node_is_busy_and_a_drained_one_is_not():
    assert slurm_node.busy(NODES, ["a2", "a3", "a4"]) == ["a3"]
