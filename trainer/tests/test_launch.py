# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The rank of a process under torchrun, under Slurm and alone."""

import time

import pytest

from trainer.cli import UsageError
from trainer.launch import Ranks, StopFlag, fan_out, first_host, processes_per_host, read_ranks, read_stop_at

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "compute-[1-2]",
}


def test_torchrun_goes_before_slurm() -> None:
    ranks = read_ranks(SLURM | TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"})
    assert ranks == Ranks(3, 4, 1, "a", 29500, 2, "torchrun")


def test_slurm() -> None:
    assert read_ranks(SLURM | {"SLURM_RESTART_COUNT": "1"}) == Ranks(1, 2, 0, "compute-1", 23456, 1, "slurm")
    assert read_ranks(SLURM | {"MASTER_ADDR": "b", "MASTER_PORT": "7"}).master_addr == "b"


def test_a_batch_script_is_not_a_task_of_a_step() -> None:
    script = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}
    assert read_ranks(script) == Ranks() == read_ranks({})


def test_a_half_set_environment_is_named() -> None:
    with pytest.raises(UsageError, match="no WORLD_SIZE"):
        read_ranks({"RANK": "0"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu-[03-04,9],login-1", "gpu-03"),
        ("r[2-3]n[07,09]", "r2n07"),
        ("a,b[1-2]", "a"),
        ("p[1-2]-x", "p1-x"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_an_empty_node_list_is_named() -> None:
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        first_host("")


BATCH = {
    "AWS_BATCH_JOB_NUM_NODES": "4",
    "AWS_BATCH_JOB_NODE_INDEX": "2",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.7",
    "AWS_BATCH_JOB_ATTEMPT": "3",
}


def test_pytorchjob_is_a_rank_without_a_local_one() -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-worker-0", "MASTER_PORT": "23456", "PET_NNODES": "2"}
    assert read_ranks(pod) == Ranks(1, 2, 0, "job-worker-0", 23456, 0, "pytorchjob")


def test_batch_counts_from_its_main_node() -> None:
    assert read_ranks(BATCH) == Ranks(1, 4, 0, "10.0.0.7", 29500, 2, "batch")
    main = {key: value for key, value in BATCH.items() if "PRIVATE" not in key} | {"AWS_BATCH_JOB_NODE_INDEX": "1"}
    assert (read_ranks(main).rank, read_ranks(main).master_addr) == (0, "127.0.0.1")


def test_sagemaker() -> None:
    env = {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "4"}
    assert read_ranks(env) == Ranks(1, 2, 0, "algo-1", 29500, 0, "sagemaker")
    assert read_ranks(env | TORCHRUN).launcher == "torchrun"
    with pytest.raises(UsageError, match="cannot be read"):
        read_ranks(env | {"SM_CURRENT_HOST": "algo-9"})


def test_one_process_a_host_becomes_torchrun() -> None:
    assert " ".join(fan_out(read_ranks(BATCH), 8)) == (
        "--nnodes 4 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.7 --master-port 29500 -m trainer"
    )
    assert "--standalone" in fan_out(Ranks(launcher="sagemaker"), 4)
    assert processes_per_host({"MUSTER_PROCS_PER_HOST": "2"}) == 2
    with pytest.raises(UsageError, match="MUSTER_PROCS_PER_HOST 'two' is not a number"):
        processes_per_host({"MUSTER_PROCS_PER_HOST": "two"})


def test_the_time_to_stop_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_stop_at("") is None
    assert read_stop_at("1000.5") == 1000.5
    assert read_stop_at("2026-11-22T06:00:00Z") == read_stop_at("2026-11-22T07:00:00+01:00")
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")  # a time without a zone is UTC wherever the machine is
        time.tzset()
        assert read_stop_at("2026-11-22T06:00:00Z") == read_stop_at("2026-11-22T06:00:00")
    time.tzset()
    with pytest.raises(UsageError, match="MUSTER_STOP_AT 'soon' is neither"):
        read_stop_at("soon")


def test_it_is_left_time_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.launch.signal.signal", lambda *_: None)
    monkeypatch.setattr("trainer.launch.time.time", lambda: 1000.0)
    assert not StopFlag().asked(1e9)
    stop = StopFlag(1000.0 + 2 * 10 + StopFlag.MARGIN + 1)
    assert not stop.asked(10)
    assert stop.asked(11)
    assert stop.reason == "MUSTER_STOP_AT"
