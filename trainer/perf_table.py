# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""nccl-tests' output format (as of version 2.19) and its bandwidth formulas, without torch.

Bandwidths are in 1e9 bytes a second. `count` is what nccl-tests prints: elements per rank where the data of a rank is split by rank.
"""

import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

ALIGNMENT = 16  # bytes; nccl-tests rounds the per-rank count of split collectives down to a multiple of it


@dataclass(frozen=True)
class Collective:
    """A collective in nccl-tests. `split`: one rank's buffer holds a part for every rank. `factor(n)` is busbw / algbw on n ranks."""

    program: str
    split: bool
    numerator: int = 1  # factor = numerator * (n - 1) / n, or 1 if numerator is 0
    redop: str | None = "none"  # None: the operator of -o
    rooted: bool = False

    def factor(self, ranks: int) -> float:
        return self.numerator * (ranks - 1) / ranks if self.numerator else 1.0

    def count(self, size: int, ranks: int, width: int) -> int:
        """The count for a requested size in bytes and elements of `width` bytes."""
        if not self.split:
            return size // width
        return size // width // ranks * width // ALIGNMENT * ALIGNMENT // width

    def size(self, count: int, ranks: int, width: int) -> int:
        """Bytes of the larger of the send and the receive buffer."""
        return count * width * (ranks if self.split else 1)

    def bandwidths(self, count: int, ranks: int, width: int, seconds: float) -> tuple[float, float]:
        """(algbw, busbw) of one call that took `seconds`."""
        algbw = self.size(count, ranks, width) / seconds / 1e9
        return algbw, algbw * self.factor(ranks)


COLLECTIVES = {
    "all_reduce": Collective("all_reduce_perf", split=False, numerator=2, redop=None),
    "all_gather": Collective("all_gather_perf", split=True),
    "reduce_scatter": Collective("reduce_scatter_perf", split=True, redop=None),
    "broadcast": Collective("broadcast_perf", split=False, numerator=0, rooted=True),
    "alltoall": Collective("alltoall_perf", split=True),
    # nccl-tests prints the operator of -o here too, although sendrecv reduces nothing.
    "sendrecv": Collective("sendrecv_perf", split=False, numerator=0, redop=None),
}


def parse_size(text: str) -> int:
    """Bytes of `8`, `1K`, `16M`, `1G`; raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match:
        raise ValueError(f"'{text}' is not a size: write bytes, or a number with K, M or G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def sizes(low: int, high: int, step: int, factor: int) -> Iterator[int]:
    """The requested sizes in bytes: each times `factor`, or plus `step` if the factor is 1."""
    size = low
    while size <= high:
        yield size
        size = size * factor if factor > 1 else size + step


def number_text(value: float, width: int) -> str:
    """`value` with two decimals, or with one, none or an exponent if that is wider than `width`."""
    for text in (f"{value:.2f}", f"{value:.1f}", f"{value:.0f}"):
        if len(text) <= width:
            return text
    return f"{value:.1e}"


def header(program: str, asked: Namespace, step: str, notes: list[str]) -> list[str]:
    """The lines from the program's name to the list of devices, which repeat what was asked for."""
    return [
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {asked.minbytes} maxBytes {asked.maxbytes} step: {step} "
        f"warmup iters: {asked.warmup_iters} iters: {asked.iters} agg iters: 1 validation: {asked.check} graph: 0",
        *(f"# {note}" for note in notes),
        "#",
        "# Using devices",
    ]


def rank_line(*, rank: int, pid: int, host: str, device: int, bus: str, name: str) -> str:
    return f"#  Rank {rank:2d} Group  0 Pid {pid:6d} on {host:>10s} device {device:2d} [{bus}] {name}"


def titles() -> list[str]:
    """The three header lines of the table, after the line that ends the list of devices."""
    keys = "# {:>10s}  {:>12s}  {:>8s}  {:>6s}  {:>6s}"
    side = "  {:>7s}  {:>6s}  {:>6s}  {:>6s}"
    return [
        "#",
        keys.format("", "", "", "", "") + "           out-of-place                       in-place          ",
        keys.format("size", "count", "type", "redop", "root") + 2 * side.format("time", "algbw", "busbw", "#wrong") + " ",
        keys.format("(B)", "(elements)", "", "", "") + 2 * side.format("(us)", "(GB/s)", "(GB/s)", "") + " ",
    ]


@dataclass(frozen=True)
class Cell:
    """One placement of one row. `wrong` is None if the result was not checked."""

    seconds: float
    algbw: float
    busbw: float
    wrong: int | None

    def text(self) -> str:
        wrong = "N/A" if self.wrong is None else f"{self.wrong:g}"
        return (
            f"  {number_text(self.seconds * 1e6, 7):>7s}  {number_text(self.algbw, 6):>6s}  {number_text(self.busbw, 6):>6s}  {wrong:>6s}"
        )


def row(*, size: int, count: int, dtype: str, redop: str, root: int, out_of_place: Cell, in_place: Cell) -> str:
    return f"{size:12d}  {count:12d}  {dtype:>8s}  {redop:>6s}  {root:6d}{out_of_place.text()}{in_place.text()}"


def footer(program: str, cells: list[Cell]) -> list[str]:
    """The closing lines. As in nccl-tests the average is over every row and both placements, rows of size 0 included."""
    wrong = sum(cell.wrong or 0 for cell in cells)
    average = sum(cell.busbw for cell in cells) / len(cells)
    return [
        f"# {'Out of bounds values':<20s} : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20s} : {average:g} ",
        "#",
        f"# Collective test concluded: {program}",
        "",
    ]
