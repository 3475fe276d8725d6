# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Who a process is under torchrun, under Slurm and alone."""

from __future__ import annotations

import pytest

from trainer.config import UsageError
from trainer.launch import Ranks, first_host, read_ranks

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
