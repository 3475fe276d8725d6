# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The table compared with lines that nccl-tests 2.19.7 and NVIDIA's tests on AWS printed (public reports), and the formulas."""

import pytest

from trainer import perf_table
from trainer.perf_table import COLLECTIVES, Cell

# nccl-tests 2.19.7, all_reduce_perf on 4 x H200 in one host.
TITLES = [
    "#",
    "#                                                              out-of-place                       in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
]
ROW = "  1073741824     268435456     float     sum      -1  4523.62  237.36  356.04       0  4539.85  236.51  354.77       0"


def test_a_real_row_and_its_titles() -> None:
    assert perf_table.titles() == TITLES
    sides = [Cell(4523.62e-6, 237.36, 356.04, 0), Cell(4539.85e-6, 236.51, 354.77, 0)]
    row = perf_table.row(size=1 << 30, count=268435456, dtype="float", redop="sum", root=-1, out_of_place=sides[0], in_place=sides[1])
    assert row == ROW


def test_a_real_rank_line() -> None:
    line = perf_table.rank_line(rank=1, pid=93200, host="nccltest08192", device=1, bus="0000:fb:05", name="NVIDIA H200")
    assert line == "#  Rank  1 Group  0 Pid  93200 on nccltest08192 device  1 [0000:fb:05] NVIDIA H200"


def test_a_row_has_thirteen_columns_also_without_a_check() -> None:
    unchecked = Cell(1e-5, 0.0, 0.0, None)
    row = perf_table.row(size=8, count=2, dtype="float", redop="none", root=0, out_of_place=unchecked, in_place=unchecked)
    assert len(row.split()) == 13
    assert row.split()[8] == row.split()[12] == "N/A"


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (1.0, 7, "1.00"),
        (4523.62, 7, "4523.62"),
        (17286.4, 7, "17286.4"),
        (1234567.8, 7, "1234568"),
        (12345678.9, 7, "1.2e+07"),
        (1e6, 6, "1.0e+06"),
    ],
)
def test_numbers_lose_decimals_before_they_lose_the_column(value: float, width: int, text: str) -> None:
    assert perf_table.number_text(value, width) == text


@pytest.mark.parametrize(
    ("collective", "n", "ratio"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 128, 1.9844),
        ("all_gather", 16, 0.9375),
        ("reduce_scatter", 8, 0.875),
        ("alltoall", 128, 0.9922),
        ("broadcast", 8, 1),
        ("sendrecv", 16, 1),
    ],
)
def test_bus_bandwidth_over_algorithm_bandwidth(collective: str, n: int, ratio: float) -> None:
    algbw, busbw = COLLECTIVES[collective].bandwidths(1 << 20, n, 4, 0.01)
    assert busbw / algbw == pytest.approx(ratio, abs=5e-5)
    assert algbw == pytest.approx((1 << 20) * 4 * (n if COLLECTIVES[collective].split else 1) / 0.01 / 1e9)


def test_split_collectives_round_the_count_of_a_rank_down_to_16_bytes() -> None:
    counts = [COLLECTIVES["all_gather"].count(size, 2, 4) for size in (8, 32, 40, 64, 1 << 20)]
    assert counts == [0, 4, 4, 8, 131072]
    assert COLLECTIVES["all_gather"].size(4, 2, 4) == 32
    assert COLLECTIVES["all_reduce"].count(8, 2, 4) == 2


def test_sizes() -> None:
    assert list(perf_table.sizes(8, 64, 1 << 20, 2)) == [8, 16, 32, 64]
    assert list(perf_table.sizes(1024, 3072, 1024, 1)) == [1024, 2048, 3072]
    assert [perf_table.parse_size(text) for text in ("8", "1K", "16m", "2G")] == [8, 1024, 1 << 24, 1 << 31]
    with pytest.raises(ValueError, match="not a size"):
        perf_table.parse_size("1.5M")


def test_the_footer_counts_wrong_elements_and_averages_all_cells() -> None:
    cells = [Cell(1, 1, 1.0, 0), Cell(1, 1, 2.0, 3), Cell(1, 1, 0.0, None), Cell(1, 1, 0.0, 0)]
    lines = perf_table.footer("all_reduce_perf", cells)
    assert lines[:2] == ["# Out of bounds values : 3 FAILED", "# Avg bus bandwidth    : 0.75 "]
    assert lines[3] == "# Collective test concluded: all_reduce_perf"
