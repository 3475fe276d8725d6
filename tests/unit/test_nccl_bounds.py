# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The gate: a run is held to what was published for its instance type, and to what its wires can carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_judge import judge
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import parse

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"
P5 = (FIXTURES / "constructed-2.19.txt").read_text()  # 2 x p5.48xlarge
KEYS = {"all_reduce": "sum", "all_gather": "none", "alltoall": "none"}
GIB = 1 << 30


def scaled(part: float) -> str:
    """P5 on a network of PART of the speed."""
    lines = []
    for line in P5.split("\n"):
        fields = line.split()
        if len(fields) == 13 and fields[0].isdigit():
            for at in (5, 9):
                fields[at] = f"{float(fields[at]) / part:.2f}"
                fields[at + 1] = f"{int(fields[0]) / 1e3 / float(fields[at]):.2f}"
                fields[at + 2] = f"{float(fields[at + 1]) * 1.875:.2f}"
        lines.append(" ".join(fields) if len(fields) == 13 else line)
    return "\n".join(lines)


def run(collective: str, nodes: int, gpus: int, busbw: float, size: int = 16 * GIB) -> str:
    """A whole output of nccl-tests with one row."""
    ranks = nodes * gpus
    factor = (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1) if collective != "sendrecv" else 1
    algbw = busbw / factor
    cells = f"{size / algbw / 1e3:.0f} {algbw:.2f} {busbw:.2f}"
    devices = [f"#  Rank {rank} Group 0 Pid {rank} on node-{rank // gpus} device {rank % gpus} [0000:53:00] GPU" for rank in range(ranks)]
    return "\n".join(
        [
            f"# Collective test starting: {collective}_perf",
            f"# nThread 1 nGpus 1 minBytes {size} maxBytes {size} step: 2(factor) warmup iters: 1 iters: 20 validation: 1",
            *devices,
            "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
            f"{size} {size // 4} float {KEYS.get(collective, 'sum')} -1 {cells} 0 {cells} 0",
            "# Out of bounds values : 0 OK",
            f"# Avg bus bandwidth    : {busbw}",
            "#",
            f"# Collective test concluded: {collective}_perf",
            "",
        ]
    )


def judged(text: str, **expect: object) -> dict:
    document = judge(parse(text), expect)
    json.dumps(document, allow_nan=False)
    return document


def test_what_was_published_passes_and_the_result_says_what_it_was_compared_with() -> None:
    document = judged(P5, instance_type="p5.48xlarge", hosts=["compute-1", "compute-2"], ranks=16)
    assert (document["verdict"], document["reasons"], document["remarks"]) == ("passed", [], [])
    (table,) = document["tables"]
    assert table["ceiling"] == 750.0
    assert [floor["min_size"] for floor in table["floors"]] == [128 << 20, 512 << 20, GIB, 2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB]
    last = table["floors"][-1]
    assert (last["floor"], last["warn"], last["below"], last["placement"]) == (438.38, 462.74, None, "out_of_place")
    assert "awslabs/awsome-distributed-ai" in last["source"]


@pytest.mark.parametrize(("part", "verdict", "remarks"), [(1.0, "passed", 0), (0.93, "passed", 7), (0.8, "failed", 1)])
def test_a_slow_network(part: float, verdict: str, remarks: int) -> None:
    document = judged(scaled(part), instance_type="p5.48xlarge", nodes=2)
    assert document["verdict"] == verdict
    assert len(document["remarks"]) == remarks
    if verdict == "failed":
        assert len(document["reasons"]) == 7
        assert "16 GiB out-of-place is below the floor of 438.38 GB/s (487.09 GB/s at 16384 MiB on 2 node(s)" in document["reasons"][-1]
    if verdict == "passed" and remarks:
        assert "GB/s at 16 GiB out-of-place is below 462.74 GB/s" in document["remarks"][-1]


def test_both_limits_are_options() -> None:
    assert judged(scaled(0.8), instance_type="p5.48xlarge", nodes=2, fail_below=0.75)["verdict"] == "passed"
    assert judged(scaled(0.97), instance_type="p5.48xlarge", nodes=2, fail_below=0.99)["verdict"] == "failed"
    assert len(judged(scaled(0.97), instance_type="p5.48xlarge", nodes=2, warn_below=0.99)["remarks"]) == 7


@pytest.mark.parametrize(
    ("name", "collective", "size", "busbw", "ceiling"),
    [
        # nccl#527 measured 231 GB/s on one p4d: on "two" it means that they did not use their 4 x 100 Gbit/s.
        ("p4d.24xlarge", "all_reduce", (2, 8), 230.77, 93.8),
        ("p5.48xlarge", "alltoall", (4, 8), 300.0, 64.6),
        ("p5.48xlarge", "sendrecv", (2, 8), 420.0, 400.0),
        ("p6e-gb200.36xlarge", "alltoall", (36, 4), 600.0, 99.3),
        ("p6e-gb200.36xlarge", "all_reduce", (18, 4), 1900.0, 1775.0),
    ],
)
def test_a_value_above_the_ceiling_did_not_cross_the_wires(
    name: str, collective: str, size: tuple[int, int], busbw: float, ceiling: float
) -> None:
    document = judged(run(collective, *size, busbw), instance_type=name)
    assert document["verdict"] == "failed"
    assert f"is above the ceiling of {ceiling:g} GB/s: the wires carry less, so the data did not cross them" in document["reasons"][0]


@pytest.mark.parametrize(("nodes", "busbw", "remarks"), [(4, 800.0, 1), (18, 800.0, 1), (18, 190.0, 2), (36, 190.0, 2), (36, 800.0, 1)])
def test_the_gpus_of_an_ultraserver_are_held_to_nvlink(nodes: int, busbw: float, remarks: int) -> None:
    """EFA gives a node 192 GB/s: less than a domain of NVLink has, and no ceiling of it. Nobody published a figure, so none fails."""
    document = judged(run("all_reduce", nodes, 4, busbw), instance_type="p6e-gb200.36xlarge")
    assert (document["verdict"], document["reasons"]) == ("passed", [])
    assert len(document["remarks"]) == remarks
    assert document["remarks"][0] == f"all_reduce: nobody published its busbw on {nodes} p6e-gb200.36xlarge, so no floor judges it"
    assert document["tables"][0]["floors"][0]["warn"] == 684.0


@pytest.mark.parametrize(
    ("name", "collective"), [("p5.48xlarge", "alltoall"), ("g5.48xlarge", "all_reduce"), ("g6.48xlarge", "all_gather")]
)
def test_a_figure_that_nobody_published_only_warns(name: str, collective: str) -> None:
    document = judged(run(collective, 2, 8, 1.0), instance_type=name)
    assert document["verdict"] == "passed"
    assert document["remarks"] == [f"{collective}: nobody published its busbw on 2 {name}, so no floor judges it"]
    assert not any(floor["floor"] for floor in document["tables"][0]["floors"])


def test_a_sweep_below_every_floor_is_not_measured() -> None:
    document = judged(run("all_reduce", 2, 8, 100.0, size=64 << 20), instance_type="p5.48xlarge")
    assert document["reasons"] == ["all_reduce: not measured: 128 MiB and above, where the floor is 260.24 GB/s"]
    assert judged(run("all_reduce", 2, 8, 290.0, size=128 << 20), instance_type="p5.48xlarge")["verdict"] == "passed"


def test_floors_of_the_caller_replace_those_of_the_catalogue_but_not_the_ceiling() -> None:
    floors = [{"min_size": GIB, "busbw": 300.0}]
    document = judged(scaled(0.8), instance_type="p5.48xlarge", nodes=2, floors=floors)
    assert document["verdict"] == "passed"
    assert [floor["floor"] for floor in document["tables"][0]["floors"]] == [300.0]
    assert document["tables"][0]["ceiling"] == 750.0
    other = [{"min_size": GIB, "busbw": 300.0, "collective": "alltoall"}]
    assert judged(scaled(0.8), instance_type="p5.48xlarge", nodes=2, floors=other)["verdict"] == "failed"


def test_a_run_of_other_ranks_than_the_type_has_gpus_is_not_judged() -> None:
    document = judged(run("all_reduce", 2, 4, 10.0), instance_type="p5.48xlarge")
    assert document["verdict"] == "passed"
    assert document["remarks"] == [
        "all_reduce: 2 p5.48xlarge have 16 GPUs and this run had 8 ranks, so no figure of the catalogue judges it"
    ]
    assert document["tables"][0]["ceiling"] is None


def test_times_of_the_cpu_are_not_judged() -> None:
    document = judged(P5.replace("    time ", " cputime "), instance_type="p5.48xlarge")
    assert ["-C" in reason for reason in document["reasons"]] == [True]


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(CatalogueError, match=r"no instance type p5\.48xlage; the nearest are p5\.48xlarge"):
        judged(P5, instance_type="p5.48xlage")


def test_without_a_type_nothing_is_bounded() -> None:
    (table,) = judged(scaled(0.01))["tables"]
    assert (table["verdict"], table["floors"], table["ceiling"], table["remarks"]) == ("passed", [], None, [])
