# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer COMMAND`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence

from trainer import data
from trainer.config import LocalError, TrainerError, UsageError, choose, read_train
from trainer.launch import Ranks, fan_out, leave, processes_per_host, read_ranks

HELP = """usage: python -m trainer COMMAND [--help]

  train         train on all ranks of the job (torchrun, srun, PyTorchJob, Batch, SageMaker or a single process)
  estimate      memory, speed, hours and money of a run on instances of a type, before they are rented
  preflight     look in seconds at all that train would stumble over: ranks, data, checkpoints, memory, collectives
  prove-resume  kill a run, resume it, and compare its losses with an undisturbed one's
  bench         speed and memory of a model on the ranks of this job
  export        a checkpoint as a Hugging Face model
  prepare-data  write a tokenised data set
  (python -m trainer.collectives measures and checks the collectives)"""


def all_ranks(command: str, argv: Sequence[str]) -> Ranks:
    """The ranks of the job; where the launcher starts one process a host, that one becomes torchrun's."""
    ranks = read_ranks(os.environ)
    if ranks.launcher in ("pytorchjob", "batch", "sagemaker") and (processes := processes_per_host(os.environ)) > 1:
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *fan_out(ranks, processes), command, *argv])
    return ranks


def train(argv: Sequence[str]) -> int:
    config = read_train(argv)
    ranks = all_ranks("train", argv)
    from trainer.train import run

    return run(config, ranks)


def estimate(argv: Sequence[str]) -> int:
    from trainer import estimate

    return estimate.main(argv)


def preflight(argv: Sequence[str]) -> int:
    ranks = all_ranks("preflight", argv)
    from trainer import preflight

    return preflight.main(argv, ranks)


def prove_resume(argv: Sequence[str]) -> int:
    from trainer import prove

    return prove.main(argv)


def bench(argv: Sequence[str]) -> int:
    from trainer import bench

    return bench.main(argv)


def export(argv: Sequence[str]) -> int:
    from trainer import export

    return export.main(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "estimate": estimate,
    "preflight": preflight,
    "prove-resume": prove_resume,
    "bench": bench,
    "export": export,
    "prepare-data": data.main,
}


def answer(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command; its exit code, with one sentence on standard error for an expected failure."""
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
    except Exception:  # whatever it is, a rank that fails must leave by `leave`, which waits for no other rank
        traceback.print_exc()
        return 1


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return 0 if argv else 2
    return COMMANDS[choose("command", argv[0], list(COMMANDS))](argv[1:])


if __name__ == "__main__":
    leave(answer(main, sys.argv[1:]))
