# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""This process among the ranks of its job, under torchrun, Slurm, PyTorchJob, Batch, SageMaker or alone: how it joins the others and ends.

Kubernetes, Batch and SageMaker start one process a host. On a host with several GPUs that process becomes torchrun (`fan_out`).

Functions that need torch import it themselves, so that the rest runs on a machine without it.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from trainer.cli import LocalError, TrainerError, UsageError

EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped with its state saved; the same command resumes


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
    """The first host of a Slurm node list such as `gpu-[03-04,9],login-1`; raises UsageError if the list is empty."""
    host = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodelist).split(",")[0]
    if not host:
        raise UsageError("the Slurm node list is empty: set MASTER_ADDR")
    return host


def read_ranks(env: Mapping[str, str]) -> Ranks:
    """The ranks from torchrun's variables, else from another launcher's, else of a single process; raises UsageError."""
    restart = int(env.get("SLURM_RESTART_COUNT") or 0) + int(env.get("TORCHELASTIC_RESTART_COUNT") or 0)
    restart += max(0, int(env.get("AWS_BATCH_JOB_ATTEMPT") or 1) - 1)

    def ranks(launcher: str, rank: str | int, size: str | int, address: str, *, local: str = "0", port: str = "29500") -> Ranks:
        return Ranks(int(rank), int(size), int(local), address, int(env.get("MASTER_PORT") or port), restart, launcher)

    try:
        if "RANK" in env and "LOCAL_RANK" not in env and "MASTER_ADDR" in env:
            return ranks("pytorchjob", env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"])
        if "RANK" in env:
            local = env.get("LOCAL_RANK", "0")
            return ranks("torchrun", env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"], local=local, port=env["MASTER_PORT"])
        # A batch script has SLURM_PROCID too, but only the tasks of a step have SLURM_STEP_ID.
        if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
            address = env.get("MASTER_ADDR") or first_host(env.get("SLURM_JOB_NODELIST", ""))
            port = str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 10000)
            return ranks("slurm", env["SLURM_PROCID"], env["SLURM_NTASKS"], address, local=env["SLURM_LOCALID"], port=port)
        if "AWS_BATCH_JOB_NUM_NODES" in env:
            nodes, index = int(env["AWS_BATCH_JOB_NUM_NODES"]), int(env["AWS_BATCH_JOB_NODE_INDEX"])
            # Batch does not tell the main node its own address; that node listens.
            address = env.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "127.0.0.1")
            return ranks("batch", (index - int(env["AWS_BATCH_JOB_MAIN_NODE_INDEX"])) % nodes, nodes, address)
        if "SM_HOSTS" in env:
            hosts = sorted(json.loads(env["SM_HOSTS"]))
            return ranks("sagemaker", hosts.index(env["SM_CURRENT_HOST"]), len(hosts), hosts[0])
    except KeyError as missing:
        raise UsageError(f"the environment has a rank but no {missing.args[0]}: start with torchrun or srun") from None
    except ValueError as error:
        raise UsageError(f"the environment's ranks cannot be read ({error}): start with torchrun or srun") from None
    return Ranks(restart=restart)


def fan_out(ranks: Ranks, processes: int) -> list[str]:
    """torchrun's arguments that replace the one process of this host by `processes`."""
    where = ["--master-addr", ranks.master_addr, "--master-port", str(ranks.master_port)]
    if ranks.world_size == 1:
        where = ["--standalone"]
    return ["--nnodes", str(ranks.world_size), "--node-rank", str(ranks.rank), "--nproc-per-node", str(processes), *where, "-m", "trainer"]


def processes_per_host(env: Mapping[str, str]) -> int:
    """How many processes a host should have if the launcher starts one: MUSTER_PROCS_PER_HOST, else one a GPU. Raises UsageError."""
    asked = env.get("MUSTER_PROCS_PER_HOST", "")
    if asked and not (asked.isdigit() and int(asked)):
        raise UsageError(f"MUSTER_PROCS_PER_HOST '{asked}' is not a number of processes: give 1 or more, or unset it")
    if asked:
        return int(asked)
    import torch

    return max(1, torch.cuda.device_count())


def read_stop_at(text: str) -> float | None:
    """MUSTER_STOP_AT in seconds since 1970; `text` is that or a time such as 2026-11-22T06:00:00Z. Raises UsageError."""
    if not text:
        return None
    with contextlib.suppress(ValueError):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"MUSTER_STOP_AT '{text}' is neither seconds since 1970 nor a time such as 2026-11-22T06:00:00Z: correct it"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def join(ranks: Ranks, backend: str | None, timeout_s: int) -> tuple[Any, str]:
    """Join the process group; (torch.device, backend). Raises LocalError if there is no GPU for this rank or the others do not come."""
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
    meetings: dict[str, dict[str, Any]] = {"torchrun": {"init_method": "env://"}, "single": {"store": dist.HashStore()} | me}
    meeting = meetings.get(ranks.launcher, {"init_method": where} | me)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **meeting)
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise LocalError(f"could not meet the {ranks.world_size - 1} other ranks at {where}: {reason}") from None
    return device, backend


def free_port() -> int:
    """A port of this host that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StopFlag:
    """Set by SIGTERM, by SIGUSR1 and before `stop_at`, when this job's machines are taken away. The loop asks at every step."""

    MARGIN = 5.0  # seconds on top of twice the longest step and save so far

    def __init__(self, stop_at: float | None = None) -> None:
        self.signal = 0
        self.stop_at = stop_at
        self.reason = "a signal"  # to this rank, or to another one if this one was never asked to stop
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: Any) -> None:
        self.signal = number

    def asked(self, needed: float) -> bool:
        """Whether to stop now, if saving and one more step take `needed` seconds; sets `reason`."""
        if not self.signal and self.stop_at is not None and time.time() + 2 * needed + self.MARGIN >= self.stop_at:
            self.reason = "MUSTER_STOP_AT"
            return True
        return bool(self.signal)


def answer(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command and return its exit code. An expected failure is one sentence on standard error."""
    try:
        return command(argv)
    except TrainerError as error:
        try:
            rank = read_ranks(os.environ).rank
        except UsageError:
            rank = 0
        if isinstance(error, LocalError):
            print(f"trainer: rank {rank} on {socket.gethostname()}: {error}", file=sys.stderr)
        elif getattr(error, "here", rank == 0):
            print(f"trainer: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # a rank that fails must end by `leave`, which waits for no other rank
        traceback.print_exc()
        return 1


def leave(code: int) -> NoReturn:
    """End the process with `code`.

    gloo's threads sometimes abort an interpreter that ends normally, which would turn a success into exit code 134.
    All files are closed by now, so skip the interpreter's own end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
