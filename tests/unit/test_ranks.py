# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Which rank failed first, by what torchrun and mpirun print."""

from __future__ import annotations

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.jobs.ranks import (
    SRUN_OWN,
    failed_rank,
    failed_ranks_of_slurm,
    first_failure,
    with_rank,
)

# The end of torchrun (torch 2.15) with two ranks, of which rank 1 ends with status 7.
FAILED = """\
W1126 14:12:26.993000 10988 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 11043 closing signal SIGTERM
E1126 14:12:26.995000 10988 multiprocessing/api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 11044) of binary: bash
Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
============================================================
bash FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-26_14:12:26
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11043)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 11043
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_14:12:26
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 7 (pid: 11044)\x20
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
# mpirun of Open MPI 4 and 5, in the words of their help files (help-orte-odls-base.txt, help-prterun.txt).
MPI_4 = """\
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[53145,1],3]
  Exit code:    9
--------------------------------------------------------------------------
"""
MPI_5 = MPI_4.replace("[[53145,1],3]", "[prterun-hello-launcher-7@1,3]")
SIGNAL = "mpirun noticed that process rank 2 with PID 0 on node hello-worker-1 exited on signal 11 (Segmentation fault).\n"


def test_torchrun_names_the_rank_that_failed_first() -> None:
    assert failed_rank("Batch 1 Loss: 2.5\n" + FAILED) == {"rank": 1, "exit_code": 7, "time": "2026-11-26_14:12:26"}
    killed = FAILED.replace("exitcode  : 7 (pid: 11044) ", "exitcode  : -9 (pid: 11044)  (SIGKILL)")
    assert failed_rank(killed) == {"rank": 1, "exit_code": 137, "time": "2026-11-26_14:12:26"}
    # A log of two runs: the second one ended the job.
    assert failed_rank(FAILED + killed) == failed_rank(killed)


@pytest.mark.parametrize(("text", "rank", "code"), [(MPI_4, 3, 9), (MPI_5, 3, 9), (SIGNAL, 2, 139)])
def test_mpirun_names_the_rank_that_failed_first(text: str, rank: int, code: int) -> None:
    assert failed_rank(f"said\n{text}") == {"rank": rank, "exit_code": code, "time": ""}


def test_a_log_without_such_an_end_names_no_rank() -> None:
    for text in ("", "exitcode  : 7 (pid: 3)\n", "muster: secret token: it is not there\n"):
        assert failed_rank(text) is None
    assert first_failure([None, None]) is None


def test_the_first_failure_of_the_nodes_counts() -> None:
    later = {"rank": 9, "exit_code": 1, "time": "2026-11-26_14:12:27"}
    ended = {"rank": 2, "exit_code": 143, "time": "2026-11-26_14:12:26"}
    raised = {"rank": 0, "exit_code": 1, "time": "2026-11-26_14:12:26"}
    own = {"rank": 5, "exit_code": 7, "time": "2026-11-26_14:12:26"}
    assert first_failure([None, later, ended, raised, own]) == own
    assert first_failure([later, ended, raised]) == raised
    assert first_failure([later, ended]) == ended


@pytest.mark.parametrize(
    ("state", "code", "wanted"),
    [
        ("FAILED", 1, (7, 1)),  # torchrun's own status
        ("FAILED", 7, (7, 1)),  # mpirun's, which is the rank's
        ("FAILED", 78, (78, None)),  # a node that did not start its ranks
        ("OUT_OF_MEMORY", 1, (1, None)),
        ("TIMEOUT", 1, (1, None)),
        ("COMPLETED", 0, (0, None)),
    ],
)
def test_only_a_failed_job_has_the_status_of_a_rank(state: str, code: int, wanted: tuple) -> None:
    record = with_rank({"state": state, "exit_code": code}, [None, failed_rank(FAILED)])
    assert (record["exit_code"], record.get("failed_rank")) == wanted


# The words of srun 24.11 and of slurmstepd, on the local fleet: --kill-on-bad-exit ends the torchrun of the other node.
STEP = """\
srun: error: compute-2: task 1: Exited with exit code 1
srun: Terminating StepId=9.0
slurmstepd-compute-1: error: *** STEP 9.0 ON compute-1 CANCELLED AT 2026-11-26T17:48:59 ***
srun: error: compute-1: task 0: Terminated
"""
REQUEUED = "slurmstepd-compute-1: error: *** JOB 9 ON compute-1 CANCELLED AT 2026-11-26T17:48:59 DUE TO JOB REQUEUE ***\n"


def test_the_output_of_a_slurm_job_has_all_nodes_and_all_runs() -> None:
    other = FAILED.replace("14:12:26", "14:12:28").replace("exitcode  : 7", "exitcode  : 1").replace("rank      : 1", "rank      : 0")
    killed = FAILED.replace("exitcode  : 7 (pid: 11044) ", "exitcode  : -9 (pid: 11044)  (SIGKILL)")
    found = failed_ranks_of_slurm(killed + STEP + REQUEUED + FAILED + STEP + other)
    assert [(each["rank"], each["exit_code"]) for each in found] == [(1, 7), (0, 1)]
    # Another run than that of the failure ended the job.
    assert failed_ranks_of_slurm(FAILED + STEP + REQUEUED + "Batch 1 Loss: 2.5\n") == []


@pytest.mark.parametrize(("code", "wanted"), [(1, 7), (143, 7), (137, 7), (7, 7), (78, 78)])
def test_srun_s_own_status_is_not_that_of_a_rank(code: int, wanted: int) -> None:
    record = with_rank({"state": "FAILED", "exit_code": code}, failed_ranks_of_slurm(FAILED + STEP), SRUN_OWN)
    assert (record["exit_code"], record.get("failed_rank")) == (wanted, 1 if wanted == 7 else None)
