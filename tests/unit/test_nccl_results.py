# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""What nccl-tests prints is read whole, and a run that did not prove itself does not pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_judge import judge, requested_sizes
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import ResultsError, human_size, parse
from ansible_collections.muster.fleet.plugins.modules import nccl_results

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"
REAL = (FIXTURES / "p5-2-nodes.txt").read_text()
WHOLE = (FIXTURES / "constructed-2.19.txt").read_text()
EXPECT = {"ranks": 16, "hosts": ["compute-1", "compute-2"], "min_bytes": 8, "max_bytes": 1 << 34, "step_factor": 2}
ROW = re.compile(r"^ +\d+ +\d+ +float .*$", re.M)


def verdict(text: str, expect: dict | None = None, collective: str | None = None) -> tuple[str, list[str]]:
    document = judge(parse(text, collective), EXPECT if expect is None else expect)
    json.dumps(document, allow_nan=False)
    return document["verdict"], document["reasons"]


def reason(text: str, expect: dict | None = None, collective: str | None = None) -> str:
    found, reasons = verdict(text, expect, collective)
    assert found == "failed"
    return "; ".join(reasons)


def each_row(change) -> str:
    return ROW.sub(lambda match: change(match.group()), WHOLE)


def small(collective: str, rows: list[str], *, header: str = "", maximum: int = 1 << 20, ranks: int = 2) -> str:
    """Return a table in the grammar of 2.19 with ROWS and RANKS ranks, one host each."""
    columns = header or "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    devices = [f"#  Rank {rank:2d} Group  0 Pid 1{rank} on compute-{rank + 1} device  0 [0000:53:00] GPU" for rank in range(ranks)]
    return "\n".join(
        [
            f"# Collective test starting: {collective}_perf",
            f"# nThread 1 nGpus 1 minBytes {1 << 20} maxBytes {maximum} step: 2(factor) warmup iters: 1 iters: 20 validation: 1",
            *devices,
            f"#  {columns}",
            *rows,
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 1.0",
            "#",
            f"# Collective test concluded: {collective}_perf",
            "",
        ]
    )


ONE = "     1048576        262144     float     sum      -1    100.0   10.49   10.49      0    100.0   10.49   10.49      0"


@pytest.mark.parametrize(
    ("collective", "last"),
    [
        ("all_reduce", (1.84, 1.75)),
        ("all_gather", (1.73, 1.82)),
        ("reduce_scatter", (1.57, 1.74)),
        ("alltoall", (1.23, 1.22)),
        ("broadcast", (3.64, 3.43)),
        ("reduce", (3.53, 3.66)),
        ("sendrecv", (1.47, 1.37)),
    ],
)
def test_every_collective_of_a_real_gpu(collective: str, last: tuple[float, float]) -> None:
    """Whole outputs of nccl-tests 2.19.6: two ranks on one H200."""
    expect = {"collective": collective, "ranks": 2, "hosts": ["vm"], "datatype": "float", "min_bytes": 8, "max_bytes": 16 << 20}
    document = judge(parse((FIXTURES / f"h200-two-ranks-{collective}.txt").read_text()), expect)
    assert (document["verdict"], document["reasons"], document["remarks"]) == ("passed", [], [])
    [table] = document["tables"]
    assert (table["program"], table["concluded"], table["damaged"], len(table["rows"])) == (f"{collective}_perf", True, [], 44)
    assert tuple(row["busbw"] for row in table["rows"][-2:]) == last
    unchecked = {row["placement"] for row in table["rows"] if row["wrong"] is None}
    assert unchecked == ({"in_place"} if collective in ("alltoall", "sendrecv") else set())


def test_one_rank_of_a_real_gpu_crossed_no_wire() -> None:
    text = (FIXTURES / "h200-one-rank.txt").read_text()
    assert verdict(text, {"ranks": 1, "hosts": ["vm"]}) == ("failed", ["all_reduce: one rank: nothing crossed a wire"])
    [table] = parse(text)
    assert (table["rows"][-1]["algbw"], table["rows"][-1]["time_us"], table["damaged"]) == (911960.0, 0.59, [])


def test_the_whole_output_passes() -> None:
    (table,) = parse(WHOLE)
    assert verdict(WHOLE) == ("passed", [])
    assert (table["program"], table["collective"], table["ranks"], table["ranks_proven"]) == ("all_reduce_perf", "all_reduce", 16, 16)
    assert table["hosts"] == ["compute-1", "compute-2"]
    assert len(table["rows"]) == 64
    assert table["requested"] == {"min_bytes": 8, "max_bytes": 1 << 34, "step": 2, "step_kind": "factor"}
    assert table["rows"][-1] == {
        "size": 17179869184, "count": 4294967296, "type": "float", "redop": "sum", "root": -1, "placement": "in_place",
        "time_us": 66109.0, "algbw": 259.87, "busbw": 487.26, "wrong": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "largest"), [("p5-2-nodes.txt", 64, 487.26), ("p4de-2-nodes.txt", 58, 78.33)])
def test_real_tables_prove_their_ranks_but_lack_a_conclusion(name: str, rows: int, largest: float) -> None:
    (table,) = parse((FIXTURES / name).read_text(), "all_reduce")
    assert (len(table["rows"]), table["ranks"], table["ranks_proven"]) == (rows, None, 16)
    assert max(row["busbw"] for row in table["rows"]) == largest
    assert "no concluding line" in reason(REAL, {"ranks": 16, "min_bytes": 8, "max_bytes": 1 << 34}, "all_reduce")


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        " 0: ",
        "[1,0]<stdout>:",
        "[0] ",
        "[0]",
        "nccl-launcher-x7x: ",
        "2026-11-21T10:51:30.123Z ",
        "10:51:30 [0]: ",
        "\x1b[32m0: \x1b[0m",
    ],
)
def test_prefixes_of_launchers(prefix: str) -> None:
    text = "\n".join(prefix + line for line in WHOLE.split("\n"))
    assert verdict(text) == ("passed", [])
    assert parse(text)[0]["rows"] == parse(WHOLE)[0]["rows"]


def test_colours() -> None:
    text = "\n".join(f"\x1b[32m{line}\x1b[0m" for line in WHOLE.split("\n"))
    assert parse(text)[0]["rows"] == parse(WHOLE)[0]["rows"]


def test_a_size_that_touches_its_prefix() -> None:
    row = "[1,0]<stdout>:137438953472 34359738368 float sum -1 66132 259.78 487.09 0 66109 259.87 487.26 0"
    text = "[1,0]<stdout>:" + "\n[1,0]<stdout>:".join(WHOLE.split("\n"))
    text = text.replace("[1,0]<stdout>:# Out of", row + "\n[1,0]<stdout>:# Out of")
    assert parse(text)[0]["rows"][-1]["size"] == 137438953472


def test_interleaved_lines_and_carriage_returns_change_nothing() -> None:
    noise = "compute-1:4100:4177 [0] NCCL INFO Channel 00/16 : 0 1 2 3\n"
    text = each_row(lambda row: noise + row).replace("\n", "\r\n")
    assert verdict(text) == ("passed", [])
    assert parse(text)[0]["rows"] == parse(WHOLE)[0]["rows"]


def test_per_iteration_columns_and_timestamps() -> None:
    header = "size count type redop root " + " ".join(["time algbw busbw #wrong i_min i_max i_p99 i_cv%"] * 2) + "  timestamp"
    half = "100.0   10.49   10.49      0    90.0   110.0   109.0   3.50"
    text = small("all_reduce", [f"1048576 262144 float sum -1 {half} {half}  2026-11-21 10:51:30"], header=header)
    assert verdict(text, {"ranks": 2}) == ("passed", [])
    first = parse(text)[0]["rows"][0]
    assert (first["i_min"], first["i_max"], first["i_p99"], first["i_cv"], first["wrong"]) == (90.0, 110.0, 109.0, 3.5, 0)


def test_a_timestamp_behind_an_ordinary_row() -> None:
    text = each_row(lambda row: row + "  2026-11-21 10:51:30").replace("#wrong\n", "#wrong            timestamp\n")
    assert parse(text)[0]["rows"] == parse(WHOLE)[0]["rows"]


def test_cpu_times_are_read_and_no_floor_judges_them() -> None:
    text = WHOLE.replace("    time ", " cputime ")
    assert verdict(text) == ("passed", [])
    assert "-C" in reason(text, {**EXPECT, "floors": [{"min_size": 1 << 30, "busbw": 1}]})


def test_scientific_numbers() -> None:
    row = "1048576 262144 float sum -1 1.0e+06 1.05 1.05 1e+06 1.0e+06 1.05 1.05 0"
    text = small("all_reduce", [row])
    assert parse(text)[0]["rows"][0]["time_us"] == 1e6
    assert "1000000 wrong values at 1 MiB out-of-place" in reason(text, {"ranks": 2})


def test_the_error_column_of_old_versions() -> None:
    row = "     1048576        262144     float     sum    100.0   10.49   10.49  5e-07    100.0   10.49   10.49  1e-07"
    text = small("all_reduce", [row], header="size count type redop time algbw busbw error time algbw busbw error")
    text = text.replace("Group  0 ", "").replace("[0000:53:00]", "[0x53]")
    assert verdict(text, {"ranks": 2}) == ("passed", [])
    first = parse(text)[0]["rows"][0]
    assert (first["error"], first["wrong"], first["root"]) == (5e-07, None, -1)
    assert "3 values are out of bounds" in reason(text.replace("values : 0 OK", "values : 3 FAILED"), {"ranks": 2})


def test_the_program_may_be_a_path() -> None:
    assert parse(WHOLE.replace(": all_reduce_perf", ": ./build/all_reduce_perf"))[0]["collective"] == "all_reduce"


def test_unchecked_results_do_not_pass() -> None:
    assert "not checked" in reason(each_row(lambda row: re.sub(r" 0(?= |$)", " N/A", row)))


def test_in_place_alltoall_may_be_unchecked() -> None:
    rows = ["1048576 131072 float none -1 100.0 10.49 5.24 0 100.0 10.49 5.24 N/A"]
    assert verdict(small("alltoall", rows), {"ranks": 2}) == ("passed", [])
    assert "in-place results were not checked" in reason(small("all_gather", rows), {"ranks": 2})


def test_wrong_values_are_named_with_their_size() -> None:
    text = WHOLE.replace("259.78  487.09      0", "259.78  487.09      7")
    assert reason(text) == "all_reduce: 7 wrong values at 16 GiB out-of-place"


def test_out_of_bounds_in_the_conclusion_alone() -> None:
    assert "2 values are out of bounds" in reason(WHOLE.replace("values : 0 OK", "values : 2 FAILED"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda row: row[:60], "fields where 13 are expected"),
        (lambda row: row[:20], "no size, count and data type"),
        (lambda row: row + " NCCL INFO comm 0x5f abort", "18 fields where 13 are expected"),
        (lambda row: row.replace("66132", "6132"), "its time, size and algbw contradict each other"),
        (lambda row: row + row, "two rows on one line"),
        (lambda row: row.replace("66132", "6\x00132"), "time is not a number"),
        (lambda row: row.replace("259.78", "nan"), "algbw is not a number"),
        (lambda row: row.replace("66132", "661\ud83232"), "time is not a number"),
    ],
)
def test_a_damaged_row_is_named_and_its_size_missed(damage, says: str) -> None:
    text = each_row(lambda row: damage(row) if "17179869184" in row else row)
    (damaged,) = parse(text)[0]["damaged"]
    assert says in damaged["reason"]
    assert "17179869184" in text.split("\n")[damaged["line"] - 1]
    found = reason(text)
    assert f"line {damaged['line']} is damaged" in found
    assert ("not measured: 16 GiB" in found) == ("contradict" not in says)


def test_missing_sizes_are_named() -> None:
    text = re.sub(r"^ +(8589934592|1048576) .*\n", "", WHOLE, flags=re.M)
    assert reason(text) == "all_reduce: not measured: 1 MiB, 8 GiB"
    assert "not measured: 8 B" in reason(re.sub(r"^ +8 .*\n", "", WHOLE, count=1, flags=re.M))


def test_a_sweep_that_was_reduced_is_not_measured() -> None:
    text = re.sub(r"^ +(8589934592|17179869184) .*\n", "", WHOLE, flags=re.M)
    text = text.replace("# Using devices", "#\n# Reducing maxBytes to 4294967296 due to memory limitation\n# Using devices")
    assert reason(text) == ("all_reduce: not measured: 8 GiB, 16 GiB (the test reduced its largest size to 4 GiB for want of memory)")


def test_the_sizes_come_from_the_output_or_the_caller() -> None:
    assert verdict(WHOLE, {"ranks": 16})[0] == "passed"
    assert "not measured: 32 GiB" in reason(WHOLE, {**EXPECT, "max_bytes": 1 << 35})
    assert "give min_bytes and max_bytes" in reason(REAL, {"ranks": 16}, "all_reduce")
    assert requested_sizes({"min_bytes": 4, "max_bytes": 12, "step": 4, "step_kind": "bytes"}) == [4, 8, 12]
    assert requested_sizes({"min_bytes": 0, "max_bytes": 12, "step": 2, "step_kind": "factor"}) == [0]


def test_rounded_sizes_of_all_gather_serve_the_sizes_asked_for() -> None:
    """3 ranks, 8 to 1024 bytes: the count per rank is rounded down to 4 floats."""
    half = {size: f"0.10 {size / 100:.2f} {size / 150:.2f} 0" for size in (0, 48, 96, 240, 480, 1008)}
    rows = [f"{size} {size // 12} float none -1 {half[size]} {half[size]}" for size in (0, 0, 0, 48, 96, 240, 480, 1008)]
    expect = {"ranks": 3, "min_bytes": 8, "max_bytes": 1024, "step_factor": 2}
    text = small("all_gather", rows, ranks=3)
    assert verdict(text, expect) == ("passed", [])
    assert "not measured: 128 B" in reason(text.replace(rows[4] + "\n", ""), expect)
    assert "not measured" in reason(text.replace(rows[0] + "\n", "", 1), expect)


def test_every_block_of_a_table_must_be_whole() -> None:
    rows = [ONE, ONE.replace(" sum", "prod"), ONE.replace("1048576        262144", "2097152        524288")]
    assert "not measured: 2 MiB" in reason(small("all_reduce", rows, maximum=1 << 21), {"ranks": 2})


def test_singletons_are_found_by_their_ratio() -> None:
    """Two nodes of 8 that never met: the ratio is 1.75, whatever the caller believes."""

    def alone(row: str) -> str:
        fields = row.split()
        for at in (7, 11):
            fields[at] = f"{float(fields[at - 1]) * 1.75:.2f}"
        return " ".join(fields)

    assert "16 ranks expected, but busbw/algbw proves 8: the ranks did not run as one job" in reason(each_row(alone))


def test_singletons_that_print_in_each_others_way() -> None:
    lines = [line for line in small("all_reduce", [ONE], ranks=1).split("\n") if line]
    text = "\n".join(f"{task}: {line}" for line in lines for task in (0, 1))
    assert [table["ranks"] for table in parse(text)] == [1, 1]
    found = reason(text, {"ranks": 2})
    assert found.startswith("2 processes ran alone, each as the only rank of its own test. MPI was not used")
    assert "one rank: nothing crossed a wire" in found
    assert "2 ranks expected, the output lists 1" in found


def test_rank_count_that_bandwidths_cannot_prove() -> None:
    tiny = ONE.replace("10.49", " 0.01")
    assert "raise max_bytes" in reason(small("all_reduce", [tiny], ranks=8), {"ranks": 8})
    assert "contradict each other" in reason(small("all_reduce", [ONE, ONE.replace("10.49   10.49", "10.49   15.73")]), {"ranks": 2})
    assert "give expect_ranks" in reason(re.sub("#  Rank.*\n", "", small("all_reduce", [tiny])), {})


@pytest.mark.parametrize("collective", ["broadcast", "sendrecv"])
def test_a_ratio_of_one_needs_the_list_of_ranks(collective: str) -> None:
    text = small(collective, [ONE])
    assert verdict(text, {"ranks": 2}) == ("passed", [])
    assert "lists no ranks" in reason(re.sub("#  Rank.*\n", "", text), {"ranks": 2})


def test_every_expected_host_must_have_run_a_rank() -> None:
    assert "no rank ran on compute-3" in reason(WHOLE, {**EXPECT, "hosts": ["compute-1.fleet.local", "COMPUTE-2", "compute-3"]})


def test_split_groups_count_the_group_of_rank_0() -> None:
    text = (
        small("all_reduce", [ONE], ranks=4).replace("Rank  2 Group  0", "Rank  2 Group  1").replace("Rank  3 Group  0", "Rank  3 Group  1")
    )
    assert parse(text)[0]["ranks"] == 2
    assert verdict(text, {"ranks": 2})[0] == "passed"


def test_several_collectives_in_one_output() -> None:
    gather = small("all_gather", ["1048576 131072 float none -1 100.0 10.49 5.24 0 100.0 10.49 5.24 0"])
    text = small("all_reduce", [ONE]) + gather
    assert [(table["collective"], table["ranks"]) for table in parse(text)] == [("all_reduce", 2), ("all_gather", 2)]
    assert verdict(text, {"ranks": 2}) == ("passed", [])
    cut = text[: text.rindex("# Out of bounds")]
    assert reason(cut, {"ranks": 2}).startswith("all_gather: the output is incomplete")


def test_cycles_repeat_the_sweep() -> None:
    twice = each_row(lambda row: row + "\n" + row)
    assert verdict(twice) == ("passed", [])
    assert "not measured: 16 B" in reason(re.sub(r"^ +16 .*\n", "", twice, flags=re.M))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("srun: error: compute-2: task 1: Killed\n", "contains no table"),
        ("compute-1: Test NCCL failure common.cu:1044 'unhandled system error'\n", "it says: compute-1: Test NCCL failure common.cu:1044"),
    ],
)
def test_an_output_without_table_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ResultsError, match=re.escape(says)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["# error: unhandled cuda error", "compute-2: Test timeout (30s) common.cu:210", "x: Test CUDA failure a.cu:3 'oom'"]
)
def test_failures_that_the_test_prints_are_reasons(line: str) -> None:
    assert line.lstrip("# ") in reason(WHOLE + line + "\n")


def test_an_unknown_or_other_collective_does_not_pass() -> None:
    assert "name it by `collective`" in reason(WHOLE.replace("all_reduce_perf", "sorting_perf"))
    assert "not of the collective all_gather" in reason(WHOLE, {**EXPECT, "collective": "all_gather"})


def test_floors_judge_each_row_and_never_the_average() -> None:
    floor = {"min_size": 1 << 33, "busbw": 479.0}
    assert "busbw 478.95 GB/s at 8 GiB in-place is below the floor of 479 GB/s" in reason(WHOLE, {**EXPECT, "floors": [floor]})
    for passing in ({**floor, "placement": "out_of_place"}, {**floor, "collective": "all_gather"}):
        assert verdict(WHOLE, {**EXPECT, "floors": [passing]})[0] == "passed"
    assert "not measured: 32 GiB and above" in reason(WHOLE, {**EXPECT, "floors": [{"min_size": 1 << 35, "busbw": 1}]})


@pytest.mark.parametrize(
    ("size", "text"), [(8, "8 B"), (1000, "1000 B"), (1024, "1 KiB"), (1536, "1536 B"), (3 << 30, "3 GiB"), (1 << 40, "1 TiB")]
)
def test_human_size(size: int, text: str) -> None:
    assert human_size(size) == text


def test_pods_have_the_names_of_their_nodes() -> None:
    line = "#  Rank  1 Group  0 Pid     10 on collectives-ae29d51f5835-worker-1 device  0 [0000:00:00] CPU gloo"
    named = nccl_results.renamed(line + "\n# a line on other things\n", {"collectives-ae29d51f5835-worker-1": "node2"})
    assert named == line.replace("collectives-ae29d51f5835-worker-1", "node2") + "\n# a line on other things\n"
    assert nccl_results.renamed(line, {"worker-1": "node2"}) == line
