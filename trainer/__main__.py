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
from trainer.config import LocalError, TrainerError, choose, read_train
from trainer.launch import leave

HELP = """usage: python -m trainer COMMAND [--help]

  train         train on all ranks of the job (torchrun, srun or a single process)
  prepare-data  write a tokenised data set
  (python -m trainer.collectives measures and checks the collectives)"""


def train(argv: Sequence[str]) -> int:
    config = read_train(argv)
    from trainer.train import run

    return run(config)


def answer(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command; its exit code, with one sentence on standard error for an expected failure."""
    try:
        return command(argv)
    except TrainerError as error:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        if isinstance(error, LocalError):
            print(f"trainer: rank {rank} on {socket.gethostname()}: {error}", file=sys.stderr)
        elif rank == "0":
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
    return {"train": train, "prepare-data": data.main}[choose("command", argv[0], ["train", "prepare-data"])](argv[1:])


if __name__ == "__main__":
    leave(answer(main, sys.argv[1:]))
