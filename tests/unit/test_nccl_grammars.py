# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""Each grammar that nccl-tests had is read right or refused by name, and no damaged output passes.

`output` writes what a version prints; its columns are those of the print statements in the version's src/common.cu, src/util.cu and
src/COLLECTIVE.cu. The rows are invented, and agree with each other as real ones do.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_judge import judge
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import ResultsError, parse

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"
WHOLE = (FIXTURES / "constructed-2.19.txt").read_text()
SIZES = (1 << 27, 1 << 28)
PARTS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1, "alltoallv": 1, "gather": 1, "scatter": 1}
# The keys before the measures up to 2.11, by collective.
OLD_KEYS = {
    "all_reduce": "redop",
    "reduce_scatter": "redop",
    "alltoall": "redop",
    "all_gather": "",
    "sendrecv": "",
    "hypercube": "",
    "broadcast": "root",
    "gather": "root",
    "scatter": "root",
    "reduce": "redop root",
}


def output(
    collective: str,
    *,
    ranks: int = 16,
    keys: str = "redop root",
    values: str = "sum -1",
    last: str = "#wrong",
    checks: str = "0 0",
    **more: bool,
) -> str:
    """An output with two rows: VALUES stand in the columns KEYS, CHECKS in the column LAST.

    early: algbw is that of before June 2020. named: the program's name stands at both ends.
    """
    factor = PARTS.get(collective, 0) * (ranks - 1) / ranks if collective in PARTS else 1.0
    device = (
        "#   Rank %2d Pid %6d on %10s device %2d [0x%02x] GPU"
        if last == "error"
        else "#  Rank %2d Group  0 Pid %6d on %10s device %2d [0x%02x] GPU"
    )
    lines = [
        *([f"# Collective test starting: {collective}_perf"] if more.get("named") else []),
        f"# nThread 1 nGpus 1 minBytes {SIZES[0]} maxBytes {SIZES[-1]} step: 2(factor) warmup iters: 5 iters: 20 validation: 1 ",
        "#",
        "# Using devices",
        *[device % (rank, 4000 + rank, f"node-{rank // 8}", rank % 8, rank) for rank in range(ranks)],
        "#",
        "#                                                     out-of-place                       in-place          ",
        "#       size         count    type  "
        + " ".join(keys.split())
        + f"     time   algbw   busbw  {last}     time   algbw   busbw  {last}",
        "#        (B)    (elements)            (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
    ]
    for size in SIZES:
        time = 1000.0 * size / SIZES[0]
        algbw = size / time / 1e3
        busbw = algbw * factor
        if more.get("early"):
            algbw = busbw = algbw * (ranks - 1) / ranks
        cells = [f"{time:7.1f}  {algbw:6.2f}  {busbw:6.2f}  {check}" for check in checks.split()]
        lines.append(f"{size:12d}  {size // 4:12d}  float  {values}  {cells[0]}  {cells[1]}")
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 123.4 ", "#"]
    lines += [f"# Collective test concluded: {collective}_perf"] if more.get("named") else []
    return "\n".join([*lines, ""])


def judged(text: str, collective: str, **expect: object) -> tuple[str, str]:
    document = judge(parse(text, collective), {"ranks": 16, "hosts": ["node-0", "node-1"], **expect})
    return document["verdict"], "; ".join(document["reasons"])


@pytest.mark.parametrize("collective", sorted(OLD_KEYS))
def test_columns_of_2_11_and_earlier(collective: str) -> None:
    """No root, no redop or neither, by collective; alltoall prints a column redop and leaves it blank."""
    keys = OLD_KEYS[collective]
    values = " ".join({"redop": "" if collective == "alltoall" else "sum", "root": "3"}[key] for key in keys.split())
    text = output(collective, keys=keys, values=values, last="error", checks="5e-07 0e+00")
    assert judged(text, collective) == ("passed", "")
    (table,) = parse(text, collective)
    assert [(row["size"], row["error"], row["root"]) for row in table["rows"][::2]] == [
        (size, 5e-07, 3 if "root" in keys else -1) for size in SIZES
    ]
    assert {row["redop"] for row in table["rows"]} == {"sum" if "redop" in keys and collective != "alltoall" else "none"}
    assert table["hosts"] == ["node-0", "node-1"]


@pytest.mark.parametrize("collective", ["all_gather", "broadcast", "alltoall", "gather", "scatter", "hypercube"])
def test_a_blank_redop_in_2_13_and_hypercube_until_today(collective: str) -> None:
    text = output(collective, values="   0" if collective == "broadcast" else "  -1")
    assert judged(text, collective) == ("passed", "")
    assert parse(text, collective)[0]["rows"][0]["root"] == (0 if collective == "broadcast" else -1)


@pytest.mark.parametrize("collective", ["sendrecv", "alltoall", "alltoallv"])
def test_results_in_place_that_nccl_tests_does_not_check(collective: str) -> None:
    assert judged(output(collective, checks="0 N/A", named=True), collective) == ("passed", "")
    # 2.13.0 prints the wrong values in place, and counts none of them.
    assert judged(output(collective, checks="0 4e+06"), collective) == ("passed", "")
    counted = output(collective, checks="0 40").replace("values : 0 OK", "values : 1 FAILED")
    assert "40 wrong values at 128 MiB in-place" in judged(counted, collective)[1]
    assert "40 wrong values at 128 MiB out-of-place" in judged(output(collective, checks="40 N/A"), collective)[1]
    for checks in ("N/A N/A", "N/A 0"):
        assert "the out-of-place results were not checked" in judged(output(collective, checks=checks), collective)[1]


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "hypercube"]
)
def test_na_fails_where_nccl_tests_checks(collective: str) -> None:
    assert "the in-place results were not checked" in judged(output(collective, checks="0 N/A"), collective)[1]
    old = output(collective, keys=OLD_KEYS[collective], values="1" * ("root" in OLD_KEYS[collective]), last="error", checks="N/A N/A")
    assert "results were not checked" in judged(old, collective)[1]


def test_a_recorded_output_with_its_ranks() -> None:
    text = (FIXTURES / "h100-2-nodes.txt").read_text()
    hosts = ["ztan-mig-235z", "ztan-mig-gq73"]
    verdict, reasons = judged(text, "all_reduce", hosts=hosts)
    assert verdict == "failed" and reasons.startswith("all_reduce: the output is incomplete") and ";" not in reasons
    assert judged(text + "#\n", "all_reduce", hosts=hosts) == ("passed", "")
    (table,) = parse(text + "#\n", "all_reduce")
    assert (table["ranks"], table["ranks_proven"], len(table["rows"]), table["average_busbw"]) == (16, 16, 62, 70.742)
    # The average is over all rows and both placements, so no row was lost or read wrong.
    assert sum(row["busbw"] for row in table["rows"]) / 62 == pytest.approx(70.742, abs=0.005)


def test_the_recorded_sendrecv_lacks_only_its_end() -> None:
    text = (FIXTURES / "sendrecv-2-nodes.txt").read_text()
    verdict, reasons = judged(text, "sendrecv", ranks=2, hosts=["gpu23", "gpu24"], max_bytes=4096)
    assert verdict == "failed"
    assert reasons.startswith("sendrecv: the output is incomplete") and ";" not in reasons
    whole = text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.05 \n#\n"
    assert judged(whole, "sendrecv", ranks=2, hosts=["gpu23", "gpu24"], max_bytes=4096) == ("passed", "")


def test_the_recorded_difference_of_2_10_is_not_counted() -> None:
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.22 \n#\n"
    table = (FIXTURES / "sendrecv-2.10.txt").read_text()
    ranks = "#   Rank  0 Pid   5897 on x0 device  0 [0x05] GPU\n#   Rank  1 Pid   5897 on x0 device  1 [0x06] GPU\n"
    expect = {"ranks": 2, "hosts": ["x0"], "min_bytes": 37748744, "max_bytes": 37748744}
    assert judged(ranks + table + end, "sendrecv", **expect) == ("passed", "")


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_before_june_2020_algbw_leaves_out_the_own_part(collective: str) -> None:
    old = {"keys": OLD_KEYS[collective], "values": "sum" if OLD_KEYS[collective] else "", "last": "error", "checks": "0e+00 0e+00"}
    text = output(collective, early=True, **old)
    assert judged(text, collective) == ("passed", "")
    assert parse(text, collective)[0]["ranks_proven"] is None
    assert "32 ranks expected, the output lists 16" in judged(text, collective, ranks=32)[1]
    unlisted = re.sub("#   Rank.*\n", "", text)
    assert "the rank count is not proven" in judged(unlisted, collective, hosts=[])[1]
    # Later versions have another ratio, so equal bandwidths contradict the rank count there.
    later = output(collective, early=True, values="sum -1")
    assert judged(later, collective)[0] == "failed"


def test_the_recorded_all_gather_of_2020() -> None:
    text = (FIXTURES / "all_gather-2020-02.txt").read_text()
    (table,) = parse(text, "all_gather")
    assert [(row["algbw"], row["busbw"], row["error"]) for row in table["rows"]] == [(129.05, 129.05, 1.0), (128.84, 128.84, 1.0)]
    verdict, reasons = judged(text, "all_gather", ranks=8, hosts=[], min_bytes=1 << 32, max_bytes=1 << 32)
    assert verdict == "failed"
    assert reasons == "all_gather: 2 values are out of bounds; all_gather: the rank count is not proven: the output lists no ranks"


@pytest.mark.parametrize("op", ["", "      op", "    root", "      op    root"])
def test_the_grammar_before_2019_is_refused_by_name(op: str) -> None:
    """Its times are milliseconds, and its list of ranks and its conclusion differ too."""
    measures = "     time  algbw  busbw      res"
    header = f"#      bytes             N    type{op}{measures}{measures}"
    row = "     1048576        262144   float     sum    0.113   9.28   9.28    2e-07    0.112   9.36   9.36    2e-07"
    with pytest.raises(ResultsError, match=r"from before 2019 .* build nccl-tests 2\.13 or later"):
        parse(f"{header}\n{row}\n")


@pytest.mark.parametrize("cut", ["5e-0", "5e-", "5e", "5", "5e-07x", "nan"])
def test_an_error_that_was_cut_short_is_damage(cut: str) -> None:
    text = output("all_reduce", keys="redop", values="sum", last="error", checks="5e-07 5e-07")
    damaged = text.replace("5e-07\n", cut + "\n")
    assert len(parse(damaged, "all_reduce")[0]["damaged"]) == 2
    assert "error is" in judged(damaged, "all_reduce")[1]


@pytest.mark.parametrize(
    ("whole", "cut"), [("busbw  #wrong\n", "busbw  #wro\n"), ("busbw  #wrong\n", "busbw\n"), ("redop root", "root redop")]
)
def test_a_header_that_no_version_prints_is_damage(whole: str, cut: str) -> None:
    text = output("all_reduce")
    assert whole in text
    assert "no nccl-tests has these columns" in judged(text.replace(whole, cut), "all_reduce")[1]


def test_one_rank_has_crossed_no_wire() -> None:
    text = (FIXTURES / "alltoall-one-rank.txt").read_text()
    for expect in ({"ranks": None, "hosts": []}, {"ranks": 1, "hosts": ["GENOA-01"]}):
        assert judged(text, "alltoall", **expect) == ("failed", "alltoall: one rank: nothing crossed a wire")
    # The ratio tells one rank too.
    unlisted = re.sub("#  Rank.*\n", "", text)
    assert "one rank: nothing crossed a wire" in judged(unlisted, "alltoall", ranks=None, hosts=[])[1]


def alone(host: str) -> str:
    """The output of a process without MPI: its own world of one rank."""
    text = output("all_reduce", ranks=1)
    return text.replace("node-0", host)


def test_processes_that_did_not_find_each_other() -> None:
    recorded = judged((FIXTURES / "singletons.txt").read_text(), "all_reduce", ranks=2, hosts=[])
    after = judged("".join(alone(f"node-{n}") for n in range(16)), "all_reduce")
    between = "".join(f"{task}: {line}\n" for line in alone("node-0").split("\n") for task in range(16))
    for count, (verdict, reasons) in ((2, recorded), (16, after), (16, judged(between, "all_reduce"))):
        assert verdict == "failed"
        assert reasons.startswith(
            f"{count} processes ran alone, each as the only rank of its own test. MPI was not used: build nccl-tests with MPI=1"
        )
        assert "one rank: nothing crossed a wire" in reasons


FAILURES = {
    "node-1: Test NCCL failure all_reduce.cu:44 'remote process exited or there was a network error / '": ["node-1"],
    "node-0: Test CUDA failure common.cu:943 'out of memory'": ["node-0"],
    "node-1: Test timeout (30s) common.cu:523": ["node-1"],
    " .. node-1 pid 4009: Test failure common.cu:512": ["node-1"],
    " .. node-1: Test failure common.cu:401": ["node-1"],
    "9: node-1: Test NCCL failure common.cu:512 'unhandled system error / '": ["node-1"],
    "[1,9]<stdout>:node-1: Test NCCL failure common.cu:512 'unhandled system error'": ["node-1"],
    "# error: invalid usage": [],
}


@pytest.mark.parametrize(("line", "hosts"), FAILURES.items())
def test_the_failing_host_is_kept_and_named(line: str, hosts: list[str]) -> None:
    document = judge(parse(output("all_reduce") + line + "\n", "all_reduce"), {"ranks": 16})
    assert (document["verdict"], document["failed_hosts"]) == ("failed", hosts)
    assert len(document["reasons"]) == 1
    assert all(host in document["reasons"][0] for host in hosts)


def test_hosts_are_named_when_the_table_never_came() -> None:
    text = output("all_reduce")
    begun = text[: text.index("#                 ")] + "node-1: Test NCCL failure common.cu:1044 'unhandled system error / '\n"
    with pytest.raises(ResultsError) as caught:
        parse(begun)
    assert caught.value.hosts == ["node-0", "node-1"] and caught.value.failed_hosts == ["node-1"]
    assert "it says: node-1: Test NCCL failure common.cu:1044" in str(caught.value)
    assert "; ranks are listed on node-0, node-1: read the job's whole output" in str(caught.value)


def test_a_table_inside_another_is_named() -> None:
    first, second = output("all_reduce").split("\n"), output("all_reduce").split("\n")
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert "a table begins where the one before has no end" in judged(mixed, "all_reduce")[1]


WHOLES = {
    "2.19": (WHOLE, "all_reduce", {"ranks": 16, "hosts": ["compute-1", "compute-2"]}),
    "2.16": (output("alltoall", checks="0 N/A"), "alltoall", {}),
    "2.11": (output("all_gather", keys="", values="", last="error", checks="0e+00 0e+00"), "all_gather", {}),
    "2.19 with prefixes": ("".join(f"0: {line}\n" for line in WHOLE.split("\n")), "all_reduce", {"hosts": ["compute-1", "compute-2"]}),
}


@pytest.mark.parametrize("name", WHOLES)
@pytest.mark.parametrize("asked", [True, False], ids=["sizes asked for", "sizes from the output"])
def test_no_truncated_output_passes(name: str, asked: bool) -> None:
    """Cut anywhere, also within the last lines: at random places of the table, and at every place of what follows it."""
    text, collective, expect = WHOLES[name]
    sizes = {"min_bytes": 8 if collective == "all_reduce" else SIZES[0], "max_bytes": 1 << 34 if collective == "all_reduce" else SIZES[-1]}
    expect = {**expect, **(sizes if asked else {})}
    assert judged(text, collective, **expect) == ("passed", "")
    end = len(text.rstrip(" \n0:"))
    tail = text.index("# Out of bounds")
    for cut in [*random.Random(name).sample(range(tail), min(tail, 150)), *range(tail, end)]:
        try:
            verdict, _reasons = judged(text[:cut], collective, **expect)
        except ResultsError:
            continue
        assert verdict == "failed", (cut, text[max(0, cut - 60) : cut])


def test_no_output_passes_that_lost_a_line_which_it_needs() -> None:
    lines = WHOLE.split("\n")
    needed = [n for n, line in enumerate(lines) if re.match(r" +\d|#  Rank|# nThread|# (Out|Avg|Collective test concluded)|#  +size", line)]
    assert len(needed) == 32 + 16 + 1 + 3 + 1
    for number in needed:
        try:
            verdict, _reasons = judged("\n".join(lines[:number] + lines[number + 1 :]), "all_reduce", hosts=["compute-1", "compute-2"])
        except ResultsError:
            continue
        assert verdict == "failed", lines[number]


@pytest.mark.parametrize("seed", range(40))
def test_no_output_passes_whose_bytes_were_lost_or_mixed_within_its_rows(seed: int) -> None:
    chance = random.Random(seed)
    start, end = WHOLE.index("           8 "), WHOLE.index("# Out of")
    numbers = [match.span() for match in re.finditer(r"\d+\.\d+|\d+", WHOLE[start:end])]
    low, high = chance.choice(numbers)
    at = start + chance.randrange(low, high)
    other = chance.choice(["", "NCCL INFO ", "\n", WHOLE[start:end].split("\n")[chance.randrange(32)]])
    text = WHOLE[:at] + other + WHOLE[at + 1 :]
    verdict, reasons = judged(text, "all_reduce", hosts=["compute-1", "compute-2"])
    assert verdict == "failed", text[at - 80 : at + 80]
    assert "damaged" in reasons or "not measured" in reasons or "wrong values" in reasons or "rank" in reasons
