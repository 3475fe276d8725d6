# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Runs the trainer's commands as several gloo ranks on this machine: one server imports torch, each rank is a fork of it."""

import importlib
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.launch import free_port

ROOT = Path(__file__).parents[2]
NO_TORCH = "torch is not installed in this environment: `pip install ./trainer` brings it, then these tests run"
PATIENCE = 600  # seconds; a rank that takes longer hangs, even on a busy machine

# torch reads OMP_NUM_THREADS when the server imports it. With more threads than CPUs, they wait for each other by spinning.
os.environ |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]), "OMP_NUM_THREADS": "1"}
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["trainer.train", "trainer.collectives", "torch._dynamo"])


def _rank(env: dict[str, str], output: str, where: str, argv: list[str]) -> None:
    os.environ.update(env)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    from trainer.launch import answer, leave

    module, name = where.split(":")
    leave(answer(getattr(importlib.import_module(module), name), argv))


@dataclass
class Job:
    """Started ranks. `output(rank)` is what a rank printed; `end()` waits for all and gives their exit codes."""

    folder: Path
    processes: list[Any]

    def output(self, rank: int = 0) -> str:
        return (self.folder / f"rank-{rank}.txt").read_text()

    def end(self, patience: float = PATIENCE) -> list[int]:
        end = time.monotonic() + patience
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        return [process.exitcode for process in self.processes]


def start(world_size: int, folder: Path, where: str, argv: list[str], **env: str) -> Job:
    """Start `where` (module:function) with `argv` on `world_size` ranks that find each other as under torchrun."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(world_size):
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        process = context.Process(target=_rank, args=(ranks | common | env, str(folder / f"rank-{rank}.txt"), where, argv))
        process.start()
        processes.append(process)
    return Job(folder, processes)
