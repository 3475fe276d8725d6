# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The results of a run as CSV and JUnit XML."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health import nccl_judge, nccl_results
from ansible_collections.muster.fleet.plugins.module_utils.report import document as logic
from ansible_collections.muster.fleet.plugins.module_utils.report import results

TESTS = Path(__file__).parents[1]
SAMPLE = TESTS / "fixtures" / "run" / "local" / "20261121T105130Z"
REFERENCE = (
    "Size_Bytes,Size_KB,Size_MB,Count,Data_Type,Operation,Root,OOP_Time_us,OOP_AlgBW_GBps,OOP_BusBW_GBps,OOP_Errors,"
    "IP_Time_us,IP_AlgBW_GBps,IP_BusBW_GBps,IP_Errors"
)


def judged(name: str = "constructed-2.19.txt", collective: str | None = None, **expect) -> dict:
    text = (TESTS / "fixtures" / "nccl" / name).read_text()
    return nccl_judge.judge(nccl_results.parse(text, collective), {"instance_type": "p5.48xlarge", "nodes": 2, **expect})


def cases(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    """{suite: {testcase: (status, message)}}; the numbers of each suite must be those of its cases."""
    found = {}
    for suite in ElementTree.fromstring(text.encode()):
        of_suite = {}
        for case in suite:
            [said] = [*case] or [None]
            status = {None: "passed", "failure": "failed", "skipped": "not_run"}[said.tag if said is not None else None]
            of_suite[f"{case.get('classname')} {case.get('name')}"] = (status, said.get("message") if said is not None else "")
        statuses = [status for status, _ in of_suite.values()]
        told = [int(suite.get(key) or -1) for key in ("tests", "failures", "skipped", "errors")]
        assert told == [len(statuses), statuses.count("failed"), statuses.count("not_run"), 0]
        found[suite.get("name")] = of_suite
    return found


def of_job(document: dict) -> dict[str, dict[str, tuple[str, str]]]:
    return cases(results.junit(results._of_collectives("nccl-all_reduce", document)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "local" / SAMPLE.name))


def test_the_csv_has_the_reference_s_columns() -> None:
    text = results.table_csv(judged()["tables"][0])
    assert text.splitlines()[0] == REFERENCE
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 32
    last = {
        key: rows[-1][key] for key in ("Size_Bytes", "Size_MB", "Count", "Data_Type", "Operation", "Root", "OOP_BusBW_GBps", "IP_Errors")
    }
    expected = ["17179869184", "16384", "4294967296", "float", "sum", "-1", "487.09", "0"]
    assert list(last.values()) == expected


def test_a_result_that_was_not_checked_has_no_number_of_errors() -> None:
    rows = list(csv.DictReader(results.table_csv(judged("sendrecv-2-nodes.txt", "sendrecv")["tables"][0]).splitlines()))
    assert {(row["OOP_Errors"], row["IP_Errors"]) for row in rows} == {("0", "N/A")}


def test_each_point_is_a_case_and_a_slow_one_fails_with_its_sentence() -> None:
    [(name, found)] = of_job(judged(floors=[{"min_size": 17179869184, "busbw": 490.0, "placement": "in_place"}])).items()
    assert name == "all_reduce float on 2 nodes of p5.48xlarge"
    assert len(found) == 65
    failed = {case: said for case, (status, said) in found.items() if status == "failed"}
    assert failed == {
        "collectives.nccl-all_reduce 16 GiB in-place": "busbw 487.26 GB/s at 16 GiB in-place is below the floor of 490 GB/s",
    }


def test_what_concerns_no_point_fails_the_whole_test() -> None:
    [found] = of_job(judged(hosts=["compute-9"])).values()
    assert found["collectives.nccl-all_reduce whole test"] == ("failed", "no rank ran on compute-9")
    assert sum(status == "failed" for status, _ in found.values()) == 1


def test_stand_ins_are_skipped_unless_they_would_have_failed() -> None:
    [found] = of_job(nccl_judge.rehearsed(judged(), ["all_reduce_perf"])).values()
    assert set(found.values()) == {("not_run", "stand-ins printed it: all_reduce_perf")}
    [found] = of_job(nccl_judge.rehearsed(judged(hosts=["compute-9"]), ["all_reduce_perf"])).values()
    assert found["collectives.nccl-all_reduce whole test"] == ("failed", "no rank ran on compute-9")


@pytest.mark.parametrize(
    ("document", "case"),
    [
        ({"verdict": "not_run", "reasons": ["one rank: nothing crossed a wire"]}, ("not_run", "one rank: nothing crossed a wire")),
        ({"verdict": "failed", "reasons": ["The output is empty."]}, ("failed", "The output is empty.")),
        ({"verdict": "not_run", "rehearsed": "failed", "reasons": ["The output is empty."]}, ("failed", "The output is empty.")),
        ({}, ("failed", "the job has no verdict")),
        ({"verdict": "passed", "reasons": [], "tables": []}, ("failed", "the job has no verdict")),
    ],
)
def test_a_job_without_a_table_has_one_case_and_does_not_pass(document: dict, case: tuple) -> None:
    assert of_job(document) == {"nccl-all_reduce": {"collectives.nccl-all_reduce whole job": case}}


def test_reasons_of_the_whole_output_are_a_suite_of_their_own() -> None:
    text = (TESTS / "fixtures" / "nccl" / "singletons.txt").read_text()
    found = of_job(nccl_judge.judge(nccl_results.parse(text, "all_reduce"), {}))
    [[(status, said)]] = [list(of_suite.values()) for name, of_suite in found.items() if name == "nccl-all_reduce"]
    assert status == "failed" and "processes ran alone" in said


def test_a_run_writes_both(folder: Path) -> None:
    logic.write_report(folder)
    found = cases((folder / "junit.xml").read_text(encoding="utf-8"))
    assert found["run"] == {"run site.yml": ("passed", "")}
    checks = [status for name, of_host in found.items() if name.startswith("checks of ") for status, _ in of_host.values()]
    assert (checks.count("passed"), checks.count("not_run"), checks.count("failed")) == (30, 17, 0)
    assert all(said for of_host in found.values() for status, said in of_host.values() if status == "not_run")
    names = sorted(path.name for path in (folder / "jobs" / "collectives").glob("*.csv"))
    assert names == ["all_gather.csv", "all_reduce.csv", "alltoall.csv", "broadcast.csv", "reduce_scatter.csv", "sendrecv.csv"]
    assert "all_reduce float on ? nodes of CPUs" in found


def test_a_failed_check_a_stopped_host_and_an_unread_line_are_failures(folder: Path) -> None:
    record = {
        "event": "check",
        "time": "2026-11-21T11:00:00.000Z",
        "host": "compute-1",
        "component": "slurm",
        "level": "node",
        "check": "munge",
    }
    record |= {"expected": "active", "found": "dead\x1b", "reason": "it is dead", "remedy": "Start it.", "seconds": 0.1}
    stood_in = {**record, "check": "gpus", "status": "not_run", "rehearsed": "failed"}
    path = folder / "events.jsonl"
    events = [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] != "end"]
    path.write_text("".join(json.dumps(event) + "\n" for event in [*events, {**record, "status": "failed"}, stood_in]) + "{cut\n")
    logic.write_report(folder)
    found = cases((folder / "junit.xml").read_text(encoding="utf-8"))
    assert found["checks of compute-1"]["slurm.node munge"] == (
        "failed",
        "slurm.munge failed: it is dead (expected active, found dead\N{REPLACEMENT CHARACTER}). Remedy: Start it.",
    )
    assert found["checks of compute-1"]["slurm.node gpus"][0] == "failed"
    assert found["run"]["run site.yml"] == ("failed", "the run has not ended")
    assert [status for name, (status, _) in found["run"].items() if "cannot be read" in name] == ["failed"]


def test_tables_of_one_collective_have_files_of_their_own() -> None:
    table = judged()["tables"][0]
    tables = [{**table, "collective": name} for name in ("reduce_scatter", "reduce", "reduce")]
    run = {"messages": [], "verdict": "passed", "playbook": "x.yml", "seconds": 1.0, "started": None}
    report = {"run": run, "failures": [], "notes": [], "checks": {"records": []}}
    found = results.files(report, {"j": {"verdict": "passed", "reasons": [], "tables": tables}})
    assert sorted(found) == ["jobs/j/reduce-2.csv", "jobs/j/reduce.csv", "jobs/j/reduce_scatter.csv", "junit.xml"]
