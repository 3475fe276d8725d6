# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Starts a lesson: as one rank under a launcher (torchrun, srun, SageMaker), else as two processes on this machine."""

import importlib
import multiprocessing
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from trainer.config import TrainConfig
from trainer.launch import free_port, join, leave, read_ranks
from trainer.parallel.precision import COMPUTE, precision_of

RANKS = 2


class Rank:
    """This process among the others. `compute` is the type of the products: float16 on a GPU without bfloat16 (T4, V100)."""

    def __init__(self) -> None:
        ranks = read_ranks(os.environ)
        self.device, backend = join(ranks, None, 120)
        self.rank, self.ranks = ranks.rank, ranks.world_size
        name, remark = precision_of(TrainConfig(), self.device)
        self.compute = COMPUTE[name]
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        self.say(f"{self.ranks} ranks on {where} by {backend}, computing in {name}{': ' + remark if remark else ''}")

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def say_each(self, text: str) -> None:
        """Print the text of every rank, in their order."""
        texts: list[str | None] = [None] * self.ranks
        dist.all_gather_object(texts, text)
        for rank, line in enumerate(texts):
            self.say(f"  rank {rank}: {line}")


def _child(module: str, number: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(number),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    code = 1
    try:
        importlib.import_module(module).lesson(Rank())
        code = 0
    finally:
        leave(code)


def start(lesson: Callable[[Rank], None], module: str) -> int:
    """Run `lesson`, the function of that name in `module`, on all ranks; the exit code."""
    if read_ranks(os.environ).launcher != "single":
        lesson(Rank())
        dist.barrier()
        return 0
    if torch.cuda.device_count() == 1:
        print("one GPU is one rank; set CUDA_VISIBLE_DEVICES= to run two ranks on the CPU", flush=True)
        lesson(Rank())
        return 0
    port = free_port()
    # fork, so that torch is imported only once.
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_child, args=(module, number, port)) for number in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)
