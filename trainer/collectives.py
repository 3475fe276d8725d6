# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer.collectives`: nccl-tests' measurements over torch.distributed, on gloo or NCCL, with every result checked.

Elements are small whole numbers from a table per rank that repeats after PERIOD elements. PERIOD is a prime, so a part at a wrong offset
does not match by chance. The numbers are so small that every sum is exact, so one wrong bit is counted.
"""

import argparse
import functools
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer import __version__, launch, perf_table
from trainer.cli import NATURAL, POSITIVE, Parser, UsageError, choose
from trainer.comm import told_by_all
from trainer.perf_table import COLLECTIVES, Cell, Collective

PERIOD = 251
EXIT_WRONG = 7  # nccl-tests' code for wrong results
DTYPES = {name: getattr(torch, name) for name in ("int8", "int32", "int64", "half", "float", "double", "bfloat16")}
REDOPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
COPY_IN = "out-of-place copies into the receive buffer first, because torch.distributed works in place here; the copy is timed"
COPY_OUT = "in-place sends from a copy of the buffer, because torch.distributed has no in-place form; the copy is timed"
NOTES = {"all_reduce": COPY_IN, "broadcast": COPY_IN, "alltoall": COPY_OUT, "sendrecv": COPY_OUT}


def exact_to(dtype: torch.dtype) -> int:
    """The type represents all whole numbers up to this one."""
    return int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max


@dataclass(frozen=True)
class Bench:
    """The settings of all measurements of a run: `asked` are the arguments."""

    asked: argparse.Namespace
    device: torch.device
    dtype: torch.dtype
    rank: int = field(default_factory=dist.get_rank)
    ranks: int = field(default_factory=dist.get_world_size)

    @functools.cached_property
    def tables(self) -> Tensor:
        """The elements of each rank, (ranks, PERIOD) in float64."""
        draws = [torch.Generator().manual_seed(rank) for rank in range(self.ranks)]
        highest = min(7, exact_to(self.dtype) // self.ranks)
        return torch.stack([torch.randint(0, highest + 1, (PERIOD,), generator=draw) for draw in draws]).double()

    def call(self, name: str, send: Tensor, recv: Tensor) -> None:
        """One collective; `send` and `recv` overlap as in nccl-tests when it is in place."""
        in_place = send.data_ptr() == recv.data_ptr()
        if name in ("all_reduce", "broadcast"):
            if not in_place and (name == "all_reduce" or self.rank == self.asked.root):
                recv.copy_(send)
            if name == "all_reduce":
                dist.all_reduce(recv, REDOPS[self.asked.op])
            else:
                dist.broadcast(recv, self.asked.root)
        elif name == "all_gather":
            dist.all_gather_into_tensor(recv, send)
        elif name == "reduce_scatter":
            dist.reduce_scatter_tensor(recv, send, REDOPS[self.asked.op])
        elif name == "alltoall":
            dist.all_to_all_single(recv, send.clone() if in_place else send)
        else:
            source = send.clone() if in_place else send
            right, left = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, source, right), dist.P2POp(dist.irecv, recv, left)]):
                work.wait()

    def pattern(self, table: Tensor, first: int, count: int) -> Tensor:
        """Elements first to first+count-1 of the endless data that a rank's table makes."""
        return table.roll(-first).repeat(-(-count // PERIOD))[:count].to(self.device, self.dtype)

    def expected(self, name: str, count: int) -> Tensor:
        """The right content of this rank's receive buffer."""
        if name in ("all_reduce", "reduce_scatter"):
            reduced = {"sum": self.tables.sum(0), "min": self.tables.amin(0), "max": self.tables.amax(0)}[self.asked.op]
            return self.pattern(reduced, 0 if name == "all_reduce" else self.rank * count, count)
        if name in ("all_gather", "alltoall"):
            first = 0 if name == "all_gather" else self.rank * count
            return torch.cat([self.pattern(table, first, count) for table in self.tables])
        return self.pattern(self.tables[self.asked.root if name == "broadcast" else (self.rank - 1) % self.ranks], 0, count)

    def buffers(self, name: str, count: int, in_place: bool) -> tuple[Tensor, Tensor]:
        """(send, recv), filled. A separate receive buffer starts with a value that no result has."""
        parts_out = self.ranks if name in ("reduce_scatter", "alltoall") else 1
        parts_in = self.ranks if name in ("all_gather", "alltoall") else 1
        data = self.pattern(self.tables[self.rank], 0, parts_out * count)
        if not in_place:
            return data, torch.full((parts_in * count,), -1, dtype=self.dtype, device=self.device)
        mine = slice(self.rank * count, (self.rank + 1) * count)
        if name == "all_gather":
            whole = torch.full((parts_in * count,), -1, dtype=self.dtype, device=self.device)
            whole[mine] = data
            return whole[mine], whole
        return data, data[mine] if name == "reduce_scatter" else data

    def wait(self) -> None:
        """Wait until the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def total(self, value: float) -> float:
        """The sum over all ranks."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.item()

    def wrong(self, name: str, count: int, in_place: bool) -> int:
        """Run one size on fresh data; the number of wrong elements on this rank."""
        send, recv = self.buffers(name, count, in_place)
        if count:
            self.call(name, send, recv)
        self.wait()
        return int((recv != self.expected(name, count)).sum())

    def measure(self, name: str, collective: Collective, count: int, in_place: bool) -> Cell:
        """Time one size in one placement (mean over iterations and ranks), then check it."""
        width = self.dtype.itemsize
        send, recv = self.buffers(name, count, in_place)
        self.total(0)
        self.wait()
        began = time.perf_counter()
        for _ in range(self.asked.iters if count else 0):
            self.call(name, send, recv)
        self.wait()
        seconds = self.total(time.perf_counter() - began) / self.asked.iters / self.ranks
        wrong = int(self.total(self.wrong(name, count, in_place))) if self.asked.check else None
        return Cell(seconds, *collective.bandwidths(count, self.ranks, width, seconds), wrong)

    def sweep(self, name: str, devices: list[str]) -> int:
        """Print one collective's table on rank 0; the number of wrong elements."""
        collective, asked, width = COLLECTIVES[name], self.asked, self.dtype.itemsize

        def say(lines: list[str]) -> None:
            if self.rank == 0:
                print("\n".join(lines), flush=True)

        step = f"{asked.stepfactor}(factor)" if asked.stepfactor > 1 else f"{asked.stepbytes}(bytes)"
        notes = [f"muster: {NOTES[name]}"] if name in NOTES else []
        say(perf_table.header(collective.program, asked, step, notes) + devices + perf_table.titles())
        requested = perf_table.sizes(asked.minbytes, asked.maxbytes, asked.stepbytes, asked.stepfactor)
        counts = [collective.count(size, self.ranks, width) for size in requested]
        for count in (counts[-1], counts[0]):
            for _ in range(asked.warmup_iters if count else 0):
                self.call(name, *self.buffers(name, count, in_place=False))
        cells: list[Cell] = []
        for count in counts:
            out_of_place, in_place = (self.measure(name, collective, count, placement) for placement in (False, True))
            line = perf_table.row(
                size=collective.size(count, self.ranks, width),
                count=count,
                dtype=asked.datatype,
                redop=collective.redop or asked.op,
                root=asked.root if collective.rooted else -1,
                out_of_place=out_of_place,
                in_place=in_place,
            )
            say([line])
            cells += [out_of_place, in_place]
        say(perf_table.footer(collective.program, cells))
        return sum(cell.wrong or 0 for cell in cells)


def parser() -> Parser:
    """nccl-tests' flags, and --ops and --backend."""
    flags = Parser(prog="python -m trainer.collectives", description="Measure and check collectives over all ranks of the job.")
    flags.add_argument("--ops", default="all_reduce", help=f"collectives, separated by commas: {', '.join(COLLECTIVES)}")
    flags.add_argument("--backend", choices=("gloo", "nccl"), help="nccl on GPUs, gloo on CPUs (by the machine's devices if not given)")
    flags.add_argument("-b", "--minbytes", type=perf_table.parse_size, default="32M", help="smallest size (K, M, G)")
    flags.add_argument("-e", "--maxbytes", type=perf_table.parse_size, default="32M", help="largest size (K, M, G)")
    flags.add_argument("-i", "--stepbytes", type=perf_table.parse_size, default="1M", help="step between sizes")
    flags.add_argument("-f", "--stepfactor", type=POSITIVE, default=1, help="factor between sizes, instead of a step")
    flags.add_argument("-n", "--iters", type=POSITIVE, default=20, help="timed calls of each size")
    flags.add_argument("-w", "--warmup_iters", type=NATURAL, default=1, help="untimed calls before, at the largest and the smallest size")
    flags.add_argument("-c", "--check", type=int, choices=(0, 1), default=1, help="check the results")
    flags.add_argument("-o", "--op", choices=REDOPS, default="sum", help="operator of the reducing collectives")
    flags.add_argument("-d", "--datatype", choices=DTYPES, default="float", help="type of the elements")
    flags.add_argument("-r", "--root", type=NATURAL, default=0, help="root of broadcast")
    flags.add_argument("--timeout_s", type=POSITIVE, default=600, help="seconds to wait for the other ranks before giving up")
    return flags


def describe(ranks: launch.Ranks, device: torch.device, backend: str) -> str:
    """This rank's line of the list of devices."""
    bus, name = "0000:00:00", f"CPU {backend}"
    if device.type == "cuda":
        card: Any = torch.cuda.get_device_properties(device)
        bus, name = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}", card.name
    return perf_table.rank_line(rank=ranks.rank, pid=os.getpid(), host=socket.gethostname(), device=ranks.local_rank, bus=bus, name=name)


def main(argv: Sequence[str]) -> int:
    """Run the collectives of --ops; 0, or EXIT_WRONG if a result was wrong. Raises UsageError."""
    asked = parser().parse(argv)
    names = [choose("collective", name, list(COLLECTIVES)) for name in asked.ops.split(",")]
    ranks = launch.read_ranks(os.environ)
    dtype = DTYPES[asked.datatype]
    if not dtype.itemsize <= asked.minbytes <= asked.maxbytes:
        raise UsageError(
            f"-b {asked.minbytes} is not between one element ({dtype.itemsize} bytes) and -e {asked.maxbytes}: change one of them"
        )
    if asked.root >= ranks.world_size:
        raise UsageError(f"-r {asked.root} names no rank of {ranks.world_size}: count from 0")
    if "sendrecv" in names and ranks.world_size == 1:
        raise UsageError("sendrecv needs at least 2 ranks: start more, or leave it out of --ops")
    if asked.check and exact_to(dtype) < ranks.world_size:
        raise UsageError(
            f"a sum over {ranks.world_size} ranks in {asked.datatype} is not exact, so it cannot be checked: use -d float or -c 0"
        )
    device, backend = launch.join(ranks, asked.backend, asked.timeout_s)
    bench = Bench(asked, device, dtype)
    devices = told_by_all(describe(ranks, device, backend))
    if ranks.rank == 0:
        print(f"# muster trainer.collectives version {__version__} torch={torch.__version__} backend={backend}, written as nccl-tests does")
    wrong = sum(bench.sweep(name, devices) for name in names)
    dist.barrier()
    return EXIT_WRONG if wrong else 0


if __name__ == "__main__":
    launch.leave(launch.answer(main, sys.argv[1:]))
