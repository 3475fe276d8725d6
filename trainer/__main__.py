# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer COMMAND`."""

import importlib
import os
import sys
from collections.abc import Sequence

from trainer.cli import choose
from trainer.config import read_train
from trainer.launch import answer, fan_out, leave, processes_per_host, read_ranks

# The module of each command, and its line of the help. Only the chosen module is imported: most import torch, which takes seconds.
COMMANDS = {
    "train": ("train", "train on all ranks of the job (torchrun, srun, PyTorchJob, Batch, SageMaker or a single process)"),
    "estimate": ("estimate.command", "memory, speed, hours and money of a run on instances of a type, before you rent them"),
    "preflight": ("preflight", "check in seconds everything that train needs: ranks, data, checkpoints, memory, collectives"),
    "environment": ("environment", "what PyTorch is and can do on this machine, as JSON"),
    "prove-resume": ("prove", "kill a run, resume it, and compare its losses with an undisturbed run's"),
    "bench": ("bench", "speed and memory of a model on the ranks of this job"),
    "export": ("export", "write a checkpoint as a Hugging Face model"),
    "prepare-data": ("data.prepare", "write a tokenised data set, of made sentences or of text that all ranks tokenise"),
}
HELP = "usage: python -m trainer COMMAND [--help]\n\n"
HELP += "".join(f"  {name:<12}  {text}\n" for name, (_, text) in COMMANDS.items())
HELP += "  (python -m trainer.collectives measures and checks the collectives)"


def start_all_ranks(command: str, argv: Sequence[str]) -> None:
    """Become torchrun if the launcher starts one process a host and the host should have more."""
    ranks = read_ranks(os.environ)
    if ranks.launcher in ("pytorchjob", "batch", "sagemaker") and (processes := processes_per_host(os.environ)) > 1:
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *fan_out(ranks, processes), command, *argv])


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return 0 if argv else 2
    command, rest = choose("command", argv[0], list(COMMANDS)), argv[1:]
    if command == "train":
        read_train(rest)  # so that a wrong flag is reported before torch is imported
    if command in ("train", "preflight"):
        start_all_ranks(command, rest)
    code: int = importlib.import_module(f"trainer.{COMMANDS[command][0]}").main(rest)
    return code


if __name__ == "__main__":
    leave(answer(main, sys.argv[1:]))
