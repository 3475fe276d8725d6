# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Collectives on 2 and 4 gloo ranks: the check passes right results and counts wrong ones."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer.tests.ranks import NO_TORCH, PATIENCE, ROOT, start

pytest.importorskip("torch", reason=NO_TORCH)

import torch

from trainer import collectives
from trainer.cli import UsageError
from trainer.perf_table import COLLECTIVES

ALL = ",".join(COLLECTIVES)
MAIN = "trainer.collectives:main"


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


def corrupted(argv: Sequence[str]) -> int:
    """The command with one element wrong on the last rank after each call."""
    call = collectives.Bench.call

    def wrong(self: collectives.Bench, name: str, send: torch.Tensor, recv: torch.Tensor) -> None:
        call(self, name, send, recv)
        if self.rank == self.ranks - 1:
            recv[-1] += 1

    collectives.Bench.call = wrong  # type: ignore[method-assign]
    return collectives.main(argv)


def lost(argv: Sequence[str]) -> int:
    """The command on a fabric that delivers nothing."""
    collectives.Bench.call = lambda self, name, send, recv: None  # type: ignore[method-assign]
    return collectives.main(argv)


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_collectives_are_right(ranks: int, tmp_path: Path) -> None:
    job = start(ranks, tmp_path, MAIN, ["--ops", ALL, "-b", "8", "-e", "64K", "-f", "8", "-n", "2", "--backend", "gloo"])
    assert job.end() == [0] * ranks, job.output()
    output = job.output()
    table = rows(output)
    assert len(table) == len(COLLECTIVES) * 5
    assert all(len(row) == 13 and row[8] == row[12] == "0" for row in table)
    assert output.count(f"#  Rank {ranks - 1:2d} Group  0 Pid") == len(COLLECTIVES)
    assert re.search(r"^# nThread 1 nGpus 1 minBytes 8 maxBytes 65536 step: 8\(factor\) warmup iters: 1 iters: 2 agg", output, re.M)
    assert [line for line in output.splitlines() if "concluded" in line] == [
        f"# Collective test concluded: {name}_perf" for name in COLLECTIVES
    ]
    assert "Out of bounds values : 0 OK" in output
    assert job.output(1) == ""


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "double"])
@pytest.mark.parametrize("op", ["max"])
def test_types_and_operators(dtype: str, op: str, tmp_path: Path) -> None:
    argv = ["--ops", "all_reduce,reduce_scatter", "-b", "4K", "-e", "4K", "-n", "1", "-d", dtype, "-o", op, "--backend", "gloo"]
    job = start(2, tmp_path, MAIN, argv)
    assert job.end() == [0, 0], job.output()
    assert [row[2:4] for row in rows(job.output())] == [[dtype, op]] * 2


def test_one_wrong_element_is_counted_and_fails(tmp_path: Path) -> None:
    job = start(2, tmp_path, f"{__name__}:corrupted", ["--ops", ALL, "-b", "4K", "-e", "4K", "-n", "1", "--backend", "gloo"])
    assert job.end() == [collectives.EXIT_WRONG] * 2
    table = rows(job.output())
    assert len(table) == len(COLLECTIVES)
    assert all(row[8] == row[12] == "1" for row in table)
    assert job.output().count("# Out of bounds values : 2 FAILED") == len(COLLECTIVES)


def test_nothing_delivered_is_wrong_in_both_placements(tmp_path: Path) -> None:
    job = start(2, tmp_path, f"{__name__}:lost", ["--ops", ALL, "-b", "4K", "-e", "4K", "-n", "1", "--backend", "gloo"])
    assert job.end() == [collectives.EXIT_WRONG] * 2
    assert all(int(row[8]) > 500 and int(row[12]) > 200 for row in rows(job.output()))


def test_without_a_check_nothing_is_claimed(tmp_path: Path) -> None:
    job = start(2, tmp_path, f"{__name__}:lost", ["-b", "4K", "-e", "4K", "-n", "1", "-c", "0", "--backend", "gloo"])
    assert job.end() == [0, 0]
    assert rows(job.output())[0][8] == rows(job.output())[0][12] == "N/A"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["--ops", "all_redcue"],
            r"unknown collective 'all_redcue': did you mean all_reduce\? known are all_reduce, all_gather, .*sendrecv",
        ),
        (["--ops", "sendrecv"], "sendrecv needs at least 2 ranks"),
        (["-b", "1M", "-e", "8"], "-b 1048576 is not between one element"),
        (["-r", "1"], "-r 1 names no rank of 1"),
        (["-b", "huge"], "argument -b/--minbytes: invalid parse_size value: 'huge'"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        collectives.main(argv)


def test_under_torchrun() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer.collectives"]
    argv = ["-b", "1K", "-e", "1K", "-n", "1", "--backend", "gloo"]
    done = subprocess.run([*launch, *argv], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert len(rows(done.stdout)) == 1
