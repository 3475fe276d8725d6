# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Who this process is: one answer for torchrun, Slurm and a plain start, and the way into and out of the process group.

torch is imported where it is used, so that the rest runs on a machine without it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from trainer.config import LocalError, UsageError

EXIT_STOPPED = 75  # EX_TEMPFAIL: a signal asked to stop, the state is saved, run it again to go on


@dataclass(frozen=True)
class Ranks:
    """This process among the `world_size` of the job; `restart` counts how often the launcher started the job again."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    restart: int = 0
    launcher: str = "single"


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list such as `gpu-[03-04,9],login-1`; raises UsageError where there is none."""
    host = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodelist).split(",")[0]
    if not host:
        raise UsageError("the Slurm node list is empty: set MASTER_ADDR")
    return host


def read_ranks(env: Mapping[str, str]) -> Ranks:
    """The ranks from torchrun's variables, else from those of a Slurm step, else of a single process; raises UsageError."""
    restart = int(env.get("SLURM_RESTART_COUNT") or 0) + int(env.get("TORCHELASTIC_RESTART_COUNT") or 0)
    try:
        if "RANK" in env:
            return Ranks(
                rank=int(env["RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                local_rank=int(env.get("LOCAL_RANK", "0")),
                master_addr=env["MASTER_ADDR"],
                master_port=int(env["MASTER_PORT"]),
                restart=restart,
                launcher="torchrun",
            )
        # A batch script has SLURM_PROCID too; only the tasks of a step have the step's number, and peers.
        if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
            job = int(env.get("SLURM_JOB_ID", "0"))
            return Ranks(
                rank=int(env["SLURM_PROCID"]),
                world_size=int(env["SLURM_NTASKS"]),
                local_rank=int(env["SLURM_LOCALID"]),
                master_addr=env.get("MASTER_ADDR") or first_host(env.get("SLURM_JOB_NODELIST", "")),
                master_port=int(env.get("MASTER_PORT") or 20000 + job % 10000),
                restart=restart,
                launcher="slurm",
            )
    except KeyError as missing:
        raise UsageError(f"the environment has a rank but no {missing.args[0]}: start with torchrun or srun") from None
    return Ranks(restart=restart)


def join(ranks: Ranks, backend: str | None, timeout_s: int) -> tuple[Any, str]:
    """Enter the process group; (the torch.device to work on, the backend). Raises LocalError where that cannot be."""
    import torch
    import torch.distributed as dist

    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl":
        if ranks.local_rank >= torch.cuda.device_count():
            raise LocalError(f"there is no GPU for local rank {ranks.local_rank}: start fewer ranks on this host, or use --backend gloo")
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        # Under Slurm the cores of the task are the limit, whatever the machine has.
        if "OMP_NUM_THREADS" not in os.environ and "SLURM_CPUS_PER_TASK" in os.environ:
            torch.set_num_threads(int(os.environ["SLURM_CPUS_PER_TASK"]))
    where = f"tcp://{ranks.master_addr}:{ranks.master_port}"
    me = {"rank": ranks.rank, "world_size": ranks.world_size}
    meetings: dict[str, dict[str, Any]] = {
        "torchrun": {"init_method": "env://"},
        "slurm": {"init_method": where} | me,
        "single": {"store": dist.HashStore()} | me,
    }
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **meetings[ranks.launcher])
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise LocalError(f"could not meet the {ranks.world_size - 1} other ranks at {where}: {reason}") from None
    return device, backend


class StopFlag:
    """Set by SIGTERM or SIGUSR1; the training loop asks for it at every step."""

    def __init__(self) -> None:
        self.signal = 0
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: Any) -> None:
        self.signal = number


def leave(code: int) -> NoReturn:
    """End the process with `code`.

    gloo's threads now and then abort an interpreter that ends normally, which would turn a success into exit code 134;
    all files are closed by now, so the interpreter's own end is skipped.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
