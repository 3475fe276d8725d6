# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The baseline of collectives: what is recorded, what a later run is compared with, and what made it fall."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.muster.fleet.plugins.filter.jobs import carried
from ansible_collections.muster.fleet.plugins.module_utils.health import nccl_baseline as logic
from ansible_collections.muster.fleet.plugins.module_utils.report import results
from ansible_collections.muster.fleet.plugins.modules import nccl_baseline as module

GIB = 1 << 30
POINTS = {8: 0.01, GIB: 437.0, 16 * GIB: 487.0}
FLEET = {f"compute-{number}": {"image": "ami-old", "stack": "aws-2026.11 3f0c"} for number in (1, 2, 3, 4)}
NEW = {host: {**have, "image": "ami-new"} for host, have in FLEET.items()}


def verdict(*numbers: int, factor: float = 1.0, collective: str = "all_reduce", **more) -> dict:
    """What nccl_results said of a job on compute-N..."""
    rows = [
        {"size": size, "placement": placement, "type": "float", "busbw": busbw * factor}
        for size, busbw in POINTS.items()
        for placement in ("out_of_place", "in_place")
    ]
    table = {"collective": collective, "verdict": "passed", "hosts": [f"compute-{number}" for number in numbers], "rows": rows}
    return {"instance_type": "p5.48xlarge", "nodes": len(numbers), "tables": [{**table, **more}]}


def entries(*documents: dict, hosts: dict | None = None) -> list[dict]:
    return logic.entries({f"job-{number}": document for number, document in enumerate(documents)}, hosts or FLEET)


def recorded(*documents: dict, hosts: dict | None = None, today: str = "2026-11-20") -> dict:
    return logic.record({"entries": []}, entries(*documents, hosts=hosts), today)


WHOLE = recorded(verdict(1, 2, 3, 4), verdict(1, 2), verdict(1))


def test_a_run_is_recorded_by_image_stack_type_nodes_collective_and_data_type() -> None:
    [entry] = recorded(verdict(1, 2))["entries"]
    assert [entry[name] for name in logic.KEY] == ["ami-old", "aws-2026.11 3f0c", "p5.48xlarge", 2, "all_reduce", "float"]
    assert (entry["hosts"], entry["recorded"], entry["points"][2]) == (
        ["compute-1", "compute-2"],
        "2026-11-20",
        [GIB, "out_of_place", 437.0],
    )
    again = logic.record(WHOLE, entries(verdict(1, 2, factor=1.1)), "2026-11-25")
    assert [(one["nodes"], one["recorded"]) for one in again["entries"]] == [(1, "2026-11-20"), (2, "2026-11-25"), (4, "2026-11-20")]
    assert len(logic.record(WHOLE, entries(verdict(1, 2), hosts=NEW), "2026-11-25")["entries"]) == 4


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([], "this run measured nothing"),
        ([verdict(1, 2, verdict="not_run")], "this run measured nothing"),
        ([verdict(1, 2), verdict(1, 2, 3, verdict="failed")], "the gate failed all_reduce float on 3 nodes"),
    ],
)
def test_what_failed_or_was_not_measured_is_no_baseline(documents: list, says: str) -> None:
    with pytest.raises(logic.BaselineError, match=says):
        recorded(*documents)


def test_only_sizes_at_which_bandwidth_decides_are_judged() -> None:
    measured = entries(verdict(1, 2))
    measured[0]["points"][0][2] = 0.0001
    found = logic.compare(WHOLE, measured)
    assert (found["reasons"], found["remarks"], found["refused"]) == ([], [], [])
    assert [(one["points"], one["fell"]) for one in found["compared"]] == [(4, False)]


def test_a_little_slower_is_a_remark_and_more_is_a_reason() -> None:
    said = (
        "all_reduce float on 2 nodes: busbw %g GB/s at 1 GiB in-place is 0.%s of the 437 GB/s of the baseline (image ami-old, 2026-11-20)"
    )
    found = logic.compare(WHOLE, entries(verdict(1, 2, factor=0.93)))
    assert (found["reasons"], found["remarks"]) == ([], [said % (437 * 0.93, "93")])
    found = logic.compare(WHOLE, entries(verdict(1, 2, factor=0.5)))
    assert (found["reasons"][0], found["remarks"]) == (said % (437 * 0.5, "50"), [])
    assert not logic.compare(WHOLE, entries(verdict(1, 2, factor=0.5)), 0.4, 0.4)["reasons"]


def test_a_baseline_of_another_type_or_stack_is_refused() -> None:
    document = {**verdict(1, 2), "instance_type": "p5en.48xlarge"}
    found = logic.compare(WHOLE, entries(document))
    assert found["refused"] == [
        "The baseline is of p5.48xlarge with stack aws-2026.11 3f0c, and the nodes are p5en.48xlarge with stack aws-2026.11 3f0c, "
        "which cannot be compared; record one with -e muster_baseline=record."
    ]
    other = {host: {**have, "stack": "aws-2026.12 9a"} for host, have in FLEET.items()}
    found = logic.compare(WHOLE, entries(verdict(1, 2), verdict(1), hosts=other))
    assert (len(found["refused"]), found["compared"]) == (1, [])
    found = logic.compare(WHOLE, entries(verdict(1, 2, 3), verdict(1, 2, collective="sendrecv")))
    assert found["refused"] == [
        "No baseline has all_reduce float on 3 nodes, sendrecv float on 2 nodes; record one with -e muster_baseline=record."
    ]


def test_a_run_that_stops_below_the_judged_sizes_does_not_pass() -> None:
    measured = entries(verdict(1, 2))
    measured[0]["points"] = measured[0]["points"][:2]
    assert "none of the sizes that the baseline judges was measured" in logic.compare(WHOLE, measured)["reasons"][0]


def test_the_baseline_of_the_same_image_comes_first_then_the_newest() -> None:
    both = logic.record(WHOLE, entries(verdict(1, 2, factor=0.5), hosts=NEW), "2026-11-21")
    assert logic.compare(both, entries(verdict(1, 2)))["compared"][0]["against"] == "ami-old"
    assert not logic.compare(both, entries(verdict(1, 2, factor=0.5), hosts=NEW))["reasons"]
    third = {host: {**have, "image": "ami-third"} for host, have in FLEET.items()}
    assert logic.compare(both, entries(verdict(1, 2), hosts=third))["compared"][0]["against"] == "ami-new"


SLOW = {"factor": 0.6}


@pytest.mark.parametrize(
    ("hosts", "documents", "says"),
    [
        # The pair without compute-3 and compute-4 held; so did the three without compute-4.
        (FLEET, [verdict(1, 2, 3, 4, **SLOW), verdict(1, 2), verdict(1)], "compute-3, compute-4 fell together, which one slow node"),
        (FLEET, [verdict(3, 4, **SLOW), verdict(4)], "compute-3 is the one node that every test that fell has and no other has: drain it"),
        (NEW, [verdict(1, 2, **SLOW), verdict(3, **SLOW)], "compute-2, compute-3 fell on image ami-new, not one of them alone"),
        (NEW, [verdict(1, 2, **SLOW), verdict(3, **SLOW)], "go back to image ami-old"),
        (FLEET, [verdict(1, 2, **SLOW), verdict(3, **SLOW)], "fell on image ami-old, which had the baseline as well: look"),
        (NEW, [verdict(1, 2, 3, 4, **SLOW)], "compute-3, compute-4 fell together, which one slow node or the image"),
        (FLEET, [verdict(1, 2, **SLOW), verdict(1), verdict(2)], "compute-1, compute-2 held in smaller tests and fell together"),
        # Half of the fleet has the new image.
        (
            {**FLEET, "compute-3": NEW["compute-3"], "compute-4": NEW["compute-4"]},
            [verdict(3, 4, **SLOW), verdict(1, 2)],
            "compute-3, compute-4 fell on image ami-new, not one of them alone: an image regression; go back to image ami-old",
        ),
    ],
)  # fmt: skip
def test_one_slow_node_is_a_node_and_many_on_one_image_are_the_image(hosts: dict, documents: list, says: str) -> None:
    found = logic.compare(WHOLE, entries(*documents, hosts=hosts))
    assert says in found["reasons"][-1]
    assert len(found["reasons"]) == sum(one["fell"] for one in found["compared"]) + 1


def test_nothing_fell_nothing_is_said() -> None:
    assert logic.compare(WHOLE, entries(verdict(1, 2)))["reasons"] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = tmp_path / "jobs" / "nccl-all_reduce"
    job.mkdir(parents=True)
    (job / "nccl.json").write_text(json.dumps(verdict(1, 2)))
    return tmp_path


def run(capsys, folder: Path, state: str, **more) -> dict:
    options = {"path": str(folder / "baseline.json"), "run_dir": str(folder), "jobs": ["nccl-all_reduce"], "hosts": FLEET, "state": state}
    with patch_module_args({**options, **more}), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


def test_a_baseline_is_recorded_and_a_later_run_compared(capsys, folder: Path) -> None:
    found = run(capsys, folder, "recorded")
    assert (found["changed"], found["verdict"]) == (True, "recorded")
    assert found["muster_message"] == "baseline: recorded all_reduce float on 2 nodes"
    assert not run(capsys, folder, "recorded")["changed"]
    found = run(capsys, folder, "compared")
    assert (found["verdict"], found["muster_message"]) == ("passed", "baseline: 4 points held")
    (folder / "jobs/nccl-all_reduce/nccl.json").write_text(json.dumps(verdict(1, 2, factor=0.5)))
    found = run(capsys, folder, "compared")
    assert (found["failed"], found["verdict"], len(found["reasons"])) == (True, "failed", 2)


def test_check_mode_writes_nothing(capsys, folder: Path) -> None:
    assert run(capsys, folder, "recorded", _ansible_check_mode=True)["changed"]
    assert not (folder / "baseline.json").exists()


def test_a_stored_result_is_neither_recorded_nor_compared(capsys, folder: Path) -> None:
    run(capsys, folder, "recorded")
    (folder / "jobs/nccl-all_reduce/result.json").write_text('{"stored": true}')
    says = "The results of nccl-all_reduce are stored ones: measure again with -e muster_rerun=true."
    assert run(capsys, folder, "recorded")["msg"] == says
    assert run(capsys, folder, "compared", required=True)["msg"] == says
    found = run(capsys, folder, "compared")
    assert (found["verdict"], found["remarks"], found["muster_message"]) == ("not_run", [says], "baseline: nothing was compared")


def test_what_cannot_be_compared_fails_only_where_it_was_asked_for(capsys, folder: Path) -> None:
    found = run(capsys, folder, "compared")
    assert (found["verdict"], found.get("failed", False), len(found["remarks"])) == ("not_run", False, 1)
    assert run(capsys, folder, "compared", required=True)["failed"]
    (folder / "jobs/nccl-all_reduce/nccl.json").unlink()
    assert "measured nothing" in run(capsys, folder, "compared", required=True)["msg"]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "muster.other/1"}'])
def test_another_file_is_no_baseline(capsys, folder: Path, text: str) -> None:
    (folder / "baseline.json").write_text(text)
    assert run(capsys, folder, "compared")["msg"].endswith("remove it, or put an earlier copy back.")


def test_junit_has_the_comparison(capsys, folder: Path) -> None:
    run(capsys, folder, "recorded")
    (folder / "jobs/nccl-all_reduce/nccl.json").write_text(json.dumps(verdict(1, 2, factor=0.5)))
    for state, statuses in (("compared", ["failure", "failure"]), ("recorded", [None])):
        found = run(capsys, folder, state)
        [suite] = ElementTree.fromstring(results.junit([results._of_baseline(found)]).encode())
        assert [case[0].tag if len(case) else None for case in suite] == statuses
    [suite] = ElementTree.fromstring(results.junit([results._of_baseline({})]).encode())
    assert suite[0][0].get("message") == "the baseline has no verdict"


def test_what_a_node_carries() -> None:
    manifest = {"manifest": {"stack": {"name": "aws-2026.11", "sha256": "3f" * 32}}}
    assert carried({"image_id": "ami-1", "muster_manifest": manifest}) == {"image": "ami-1", "stack": "aws-2026.11 3f3f3f3f3f3f"}
    assert carried({"node_health_image": "mine", "image_id": "ami-1"}) == {"image": "mine", "stack": ""}
    assert carried({"muster_manifest": {"manifest": {"stack": None}}}) == {"image": "", "stack": ""}
