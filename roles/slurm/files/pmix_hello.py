# SPDX-License-Identifier: Apache-2.0
"""Say hello through PMIx: `srun --mpi=pmix -N2 python3 pmix_hello.py` proves that Slurm's PMIx plugin joins the ranks of a step.

Needs libpmix.so.2 alone (Debian: libpmix2t64), no MPI. Every rank prints `pmix-hello rank=R size=N host=H` after a fence
that all ranks have to reach; when a call fails, one line on stderr and exit status 1.
Source: the PMIx Standard 4.1, chapters 3 (structures) and 5 (reserved keys).
"""

import ctypes
import socket
import sys

PMIX_SUCCESS = 0
PMIX_UINT32 = 14
RANK_WILDCARD = 0xFFFFFFFE  # asks about the whole job instead of one rank
JOB_SIZE = b"pmix.job.size"


class Proc(ctypes.Structure):
    """pmix_proc_t: the namespace (the step) and the rank of a process."""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class Data(ctypes.Union):
    """The members of pmix_value_t's union read here; `pointer` gives it the alignment of the real one."""

    _fields_ = (("uint32", ctypes.c_uint32), ("pointer", ctypes.c_void_p))


class Value(ctypes.Structure):
    """The head of pmix_value_t: a type tag and the union. The library allocates it, so its tail may be left out."""

    _fields_ = (("type", ctypes.c_uint16), ("data", Data))


def check(status, call):
    """Leave with one line when the PMIx call `call` answered anything but success."""
    if status != PMIX_SUCCESS:
        sys.exit(f"pmix-hello: {call} failed with status {status} on {socket.gethostname()}; was it started by srun --mpi=pmix?")


def main():
    """Join, ask for the size of the job, meet the other ranks, print, leave."""
    pmix = ctypes.CDLL("libpmix.so.2")
    me = Proc()
    check(pmix.PMIx_Init(ctypes.byref(me), None, ctypes.c_size_t(0)), "PMIx_Init")

    job = Proc(nspace=me.nspace, rank=RANK_WILDCARD)
    answer = ctypes.POINTER(Value)()
    check(pmix.PMIx_Get(ctypes.byref(job), JOB_SIZE, None, ctypes.c_size_t(0), ctypes.byref(answer)), "PMIx_Get")
    if answer.contents.type != PMIX_UINT32:
        sys.exit(f"pmix-hello: the job size has type {answer.contents.type}, not uint32")
    size = answer.contents.data.uint32

    check(pmix.PMIx_Fence(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0)), "PMIx_Fence")
    print(f"pmix-hello rank={me.rank} size={size} host={socket.gethostname()}", flush=True)
    check(pmix.PMIx_Finalize(None, ctypes.c_size_t(0)), "PMIx_Finalize")


if __name__ == "__main__":
    main()
