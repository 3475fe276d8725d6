# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank of a job failed first, and its exit status, from what torchrun and mpirun say.

torchrun itself ends with 1 whatever its ranks end with.
"""

from __future__ import annotations

import re

# The last part of torchrun's error, of the rank that failed first on its node; the traceback above it may name others.
TORCHRUN = re.compile(
    r"^Root Cause \(first observed failure\):\n\[\d+\]:\n  time      : (\S+)\n  host      : .*\n  rank      : (\d+) \(local_rank: \d+\)\n"
    r"  exitcode  : (-?\d+) ",
    re.MULTILINE,
)
# Open MPI 4 names the process [[53145,1],1], Open MPI 5 [prterun-launcher-1@1,1].
MPIRUN = re.compile(r"^ *Process name: \[.*,(\d+)\]\n *Exit code: +(\d+)$", re.MULTILINE)
MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
# The output of a Slurm job has all of its nodes and all of its runs; Slurm writes this when it ends a run to requeue the job.
SLURM_RUN_ENDED = re.compile(r"^slurmstepd\S*: error: \*\*\* JOB \d+ ON .*$", re.MULTILINE)
SIGKILL, SIGTERM = 9, 15
# torchrun's own status, and those with which srun ends when it ends the torchrun of the other nodes (--kill-on-bad-exit).
SRUN_OWN = (1, 128 + SIGKILL, 128 + SIGTERM)


def failed_rank(text):
    """{rank, exit_code, time} of the rank that failed in the log of one torchrun or mpirun, or None. The last of several runs counts."""
    found = TORCHRUN.findall(text)
    if found:
        time, rank, code = found[-1]
        return {"rank": int(rank), "exit_code": status(int(code)), "time": time}
    ended = MPIRUN.findall(text)
    if ended:
        return {"rank": int(ended[-1][0]), "exit_code": int(ended[-1][1]), "time": ""}
    killed = MPI_SIGNAL.findall(text)
    return {"rank": int(killed[-1][0]), "exit_code": status(-int(killed[-1][1])), "time": ""} if killed else None


def failed_ranks_of_slurm(text):
    """[failed_rank() of each node] in the output of a Slurm job whose ranks torchrun started; of its last run only."""
    found = TORCHRUN.findall(SLURM_RUN_ENDED.split(text)[-1])
    return [{"rank": int(rank), "exit_code": status(int(code)), "time": time} for time, rank, code in found]


def status(code):
    """The exit status as a shell gives it: 128 and the signal when a signal ended the rank, which torchrun writes as its negative."""
    return code if code >= 0 else 128 - code


def first_failure(found):
    """The failure of a job's nodes, [failed_rank() of each], that came first; None when no node says one.

    torchrun counts in seconds. Within one second, a rank that a signal ended, or that ended with Python's own 1, may have failed because of
    another.
    """
    order = {128 + SIGTERM: 2, 1: 1}
    return min(filter(None, found), key=lambda each: (each["time"], order.get(each["exit_code"], 0), each["rank"]), default=None)


def with_rank(record, found, own=(1,)):
    """A record of a failed job with the exit status of the rank that failed first, and its number as `failed_rank`.

    own: the statuses of the launcher itself. Another one stays, and has a rank only when it is the rank's.
    """
    first = first_failure(found)
    if record["state"] != "FAILED" or not first or record["exit_code"] not in (*own, first["exit_code"]):
        return record
    return {**record, "exit_code": first["exit_code"], "failed_rank": first["rank"]}
