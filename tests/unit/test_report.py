# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The report is built from the run folder alone, whatever state a run left it in."""

from __future__ import annotations

import calendar
import html.parser
import json
import math
import re
import shutil
import time
from pathlib import Path

import jsonschema
import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose
from ansible_collections.muster.fleet.plugins.module_utils.report import document as logic
from ansible_collections.muster.fleet.plugins.module_utils.report.curves import collectives
from ansible_collections.muster.fleet.plugins.module_utils.report.html import duration
from ansible_collections.muster.fleet.plugins.module_utils.report.page import render_html
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import Plot, Series, log2_ticks, log10_ticks, nice_ticks
from ansible_collections.muster.fleet.plugins.modules import report as module

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "fixtures" / "run" / "local" / "20261121T105130Z"
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "local" / SAMPLE.name))


def add(folder: Path, *events: dict, without: tuple[str, ...] = ()) -> None:
    """Append EVENTS to the folder's, from which the kinds WITHOUT are taken out."""
    path = folder / "events.jsonl"
    kept = [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] not in without]
    path.write_text("".join(json.dumps(event) + "\n" for event in [*kept, *({"time": "2026-11-21T11:00:00.000Z", **e} for e in events)]))


def end(**hosts: dict) -> dict:
    none = {"ok": 1, "changed": 0, "failures": 0, "unreachable": 0}
    ok = not any(host.get("failures") or host.get("unreachable") for host in hosts.values())
    return {"event": "end", "seconds": 9.5, "ok": ok, "hosts": {name: {**none, **host} for name, host in hosts.items()}}


def failure(host: str, message: str, **more: str) -> dict:
    return {
        "event": "failure",
        "host": host,
        "role": "slurm",
        "task": "Do it",
        "message": message,
        "remedy": "",
        "log": "failures.log",
        **more,
    }


def check(host: str, name: str, status: str, **more: str) -> dict:
    texts = {"expected": "x", "found": "y", "reason": "why", "remedy": "Do this.", "seconds": 0.1, "level": "node", **more}
    return {"event": "check", "host": host, "component": "slurm", "check": name, "status": status, **texts}


def test_the_sample_run() -> None:
    report = logic.build(SAMPLE)
    jsonschema.validate(report, SCHEMA)
    assert (report["run"]["verdict"], report["run"]["fleet"], report["run"]["name"]) == ("passed", "local", SAMPLE.name)
    assert report["checks"]["counts"] == {"passed": 30, "failed": 0, "not_run": 17}
    assert [entry["collective"] for entry in report["collectives"]][:2] == ["all_reduce", "all_gather"]
    for entry in report["collectives"]:
        assert entry["best"]["busbw"] == max(row["busbw"] for row in entry["rows"] if row["placement"] == "out_of_place")
    (training,) = report["training"]
    assert (training["resumes"], training["first_step"], training["last_step"], training["checkpoints"]) == (1, 1, 60, [20, 40, 60])
    assert training["last_loss"] < training["first_loss"]
    assert [attempt["from_step"] for attempt in training["attempts"]] == [0, 20]
    seconds = [entry["seconds"] for entry in report["timings"]["roles"]]
    assert seconds == sorted(seconds, reverse=True)
    assert report["notes"] == []


def test_the_summary_of_a_passed_run() -> None:
    lines = logic.summary(logic.build(SAMPLE), Path("runs/local/latest"))
    assert lines[0] == "fleet local: passed in 3 min 26 s"
    assert lines[1] == "hosts: 3 (controller-1, compute-1, compute-2)"
    assert lines[3] == "checks: 30 passed, 0 failed, 17 not run"
    assert lines[4].startswith("busbw: all_reduce 1.05 GB/s at 2 MiB, all_gather ")
    assert re.fullmatch(r"training: loss 5\.508 → 1\.622 at step 60, [\d.]+ samples/s, resumed 1 time \(run now\)", lines[5])
    assert lines[-1] == "report: runs/local/latest/report.html"
    assert len(lines) <= 10


def test_a_rehearsal_says_so_in_its_first_line(folder: Path) -> None:
    assert logic.build(SAMPLE)["run"]["rehearses"] == []
    stood_in = check("compute-1", "gpus", "not_run", rehearsed="passed")
    add(folder, stood_in)
    assert logic.summary(logic.build(folder))[0].startswith("REHEARSAL of an unknown type, fleet local: ")
    add(folder, {"event": "rehearsal", "instance_types": ["p5.48xlarge"]})
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert logic.summary(report)[0] == "REHEARSAL of p5.48xlarge, fleet local: passed in 3 min 26 s"
    page = render_html(report)
    assert "<title>REHEARSAL · Passed" in page
    assert "<header>\n<p>REHEARSAL of p5.48xlarge on stand-ins · Muster" in page


@pytest.mark.parametrize("tables", [True, False])
def test_collectives_that_stand_ins_measured_say_so(folder: Path, tables: bool) -> None:
    path = folder / "jobs" / "collectives" / "nccl.json"
    document = json.loads(path.read_text())
    rehearsed = {"verdict": "not_run", "rehearsed": "passed"}
    document.update(rehearsed, tables=[{**table, **rehearsed} for table in document["tables"]] if tables else [])
    path.write_text(json.dumps(document))
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert {(entry["verdict"], entry["rehearsed"]) for entry in report["collectives"]} == {("not_run", "passed")}
    page = render_html(report)
    assert '<span class="tag not_run">rehearsal, would have passed</span>' in page
    if tables:
        assert any(line.startswith("busbw of stand-ins: all_reduce 1.05 GB/s") for line in logic.summary(report))
        assert "busbw of stand-ins, all_reduce" in page


def test_the_fleet_names_what_its_hosts_rehearse(folder: Path) -> None:
    document = json.loads((folder / "fleet.json").read_text())
    for host, kind in zip(document["hosts"], (None, "trn1.32xlarge", "p5.48xlarge"), strict=True):
        host["rehearses"] = kind
    (folder / "fleet.json").write_text(json.dumps(document))
    assert logic.summary(logic.build(folder))[0].startswith("REHEARSAL of p5.48xlarge and trn1.32xlarge, fleet local: passed")


def test_what_a_stand_in_would_have_failed_is_a_failure(folder: Path) -> None:
    add(folder, check("compute-2", "gpus", "not_run", rehearsed="failed", reason="it looked at a stand-in"))
    report = logic.build(folder)
    assert report["checks"]["records"][0]["check"] == "gpus"
    assert "FAILED compute-2: slurm.gpus: it looked at a stand-in. Remedy: Do this." in logic.summary(report)
    assert '<div class="item failed"><p><b>slurm.gpus</b> on compute-2</p>' in render_html(report)


def test_stored_results_are_said_to_be_stored(folder: Path) -> None:
    path = folder / "jobs" / "train" / "result.json"
    path.write_text(path.read_text().replace('"stored": false', '"stored": true'))
    lines = logic.summary(logic.build(folder))
    assert lines[4].endswith("(run now)")
    assert lines[5].endswith("(stored)")
    assert "stored, of 2026-11-21" in render_html(logic.build(folder))
    again = Path(shutil.copytree(folder / "jobs" / "collectives", folder / "jobs" / "again"))
    (again / "result.json").write_text((again / "result.json").read_text().replace('"stored": false', '"stored": true'))
    report = logic.build(folder)
    assert logic.summary(report)[4].endswith("(partly stored)")
    assert "all_reduce (again)" in render_html(report)


def test_a_failed_run_names_check_reason_remedy_and_log(folder: Path) -> None:
    verdict = "slurm.munge failed: why (expected x, found y). Remedy: Do this."
    add(
        folder,
        check("compute-2", "munge", "failed"),
        failure("compute-2", verdict),
        failure("compute-1", "Broken\n\tbadly.", remedy="Mend it."),
        end(**{"compute-1": {"failures": 1}, "compute-2": {"failures": 1}, "controller-1": {}}),
        without=("end",),
    )
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert report["run"]["verdict"] == "failed"
    assert report["checks"]["records"][0]["check"] == "munge"
    lines = logic.summary(report, Path("runs/local/latest"))
    assert lines[0] == "fleet local: failed in 9.5 s, 2 hosts stopped"
    assert "FAILED compute-2: slurm.munge: why. Remedy: Do this." in lines
    assert "FAILED compute-1: slurm : Do it: Broken badly. Remedy: Mend it." in lines
    assert lines[-1] == "report: runs/local/latest/report.html  log: runs/local/latest/failures.log"
    assert "Broken\n\tbadly." in render_html(report)
    # The verdict on the checks repeats the check, so the summary names it once.
    assert sum("munge" in line for line in lines) == 1


def test_hosts_that_fail_alike_share_a_line(folder: Path) -> None:
    add(folder, *(check(host, "munge", "failed", reason="one\n  two.") for host in ("compute-1", "compute-2")))
    assert "FAILED compute-1, compute-2: slurm.munge: one two. Remedy: Do this." in logic.summary(logic.build(folder))
    add(folder, *(failure(host, "line\n" * 9) for host in "ab"), end(a={"failures": 1}, b={"failures": 1}), without=("end",))
    page = render_html(logic.build(folder))
    assert "<b>a, b</b> slurm · Do it</p><p>" + "line\n" * 8 + "…</p>" in page


def test_each_host_that_failed_has_a_line_before_any_has_two(folder: Path) -> None:
    """What a controller failed with can be why nothing else ran."""
    add(folder, *(check("compute-2", f"a{number}", "failed") for number in range(9)), check("controller-1", "cores_bite", "failed"))
    lines = [line for line in logic.summary(logic.build(folder)) if line.startswith("FAILED")]
    assert [line.split(": ")[1] for line in lines[:2]] == ["slurm.a0", "slurm.cores_bite"]


def test_the_summary_has_ten_lines_even_when_everything_fails(folder: Path) -> None:
    add(
        folder,
        *(failure(f"n{number}", "Broken.") for number in range(40)),
        end(**{f"n{n}": {"failures": 1} for n in range(40)}),
        without=("end",),
    )
    lines = logic.summary(logic.build(folder), Path("r"))
    assert len(lines) == 10
    assert lines[-2] == "… and 38 more in the report"


def test_a_rescued_failure_is_none_and_the_last_one_counts(folder: Path) -> None:
    unreachable = {"event": "unreachable", "host": "compute-2", "message": "No route to host"}
    add(
        folder,
        failure("compute-1", "rescued"),
        failure("controller-1", "first"),
        failure("controller-1", "second"),
        unreachable,
        end(**{"compute-1": {}, "controller-1": {"failures": 1}, "compute-2": {"unreachable": 1}}),
        without=("end",),
    )
    failures = [(entry["host"], entry["message"]) for entry in logic.build(folder)["failures"]]
    assert failures == [("compute-2", "unreachable: No route to host"), ("controller-1", "second")]


def test_a_check_that_was_repeated_counts_once_with_its_last_status(folder: Path) -> None:
    add(folder, check("compute-1", "slurmd_active", "failed"), check("compute-1", "slurmd_active", "passed"))
    assert logic.build(folder)["checks"]["counts"] == {"passed": 30, "failed": 0, "not_run": 17}


def test_a_killed_run_is_unfinished_and_its_cut_line_named(folder: Path) -> None:
    add(folder, without=("end", "role"))
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "ta')
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert (report["run"]["verdict"], report["run"]["ended"]) == ("unfinished", None)
    assert report["notes"] == [f"Line {len((folder / 'events.jsonl').read_text().splitlines())} of events.jsonl cannot be read."]
    assert logic.summary(report)[0] == "fleet local: unfinished"
    assert "the run has not ended, or was killed" in render_html(report)


def test_a_second_playbook_in_the_folder_gives_the_verdict(folder: Path) -> None:
    add(folder, {"event": "start", "playbook": "again.yml", "fleet": "local", "argv": []}, end(a={"failures": 1}))
    report = logic.build(folder)
    assert (report["run"]["playbook"], report["run"]["verdict"]) == ("again.yml", "failed")
    assert report["checks"]["counts"]["passed"] == 30


@pytest.mark.parametrize("keep", ["events.jsonl", "fleet.json"])
def test_a_folder_with_one_file_is_enough(folder: Path, keep: str) -> None:
    shutil.rmtree(folder / "jobs")
    ({"events.jsonl", "fleet.json"} - {keep}).pop()
    for path in folder.iterdir():
        if path.name != keep:
            path.unlink()
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert report["run"]["fleet"] == "local"
    assert render_html(report)
    assert logic.summary(report)


def test_a_folder_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(logic.ReportError, match="has no run"):
        logic.build(tmp_path)


def test_damaged_documents_are_named_and_the_rest_reported(folder: Path) -> None:
    (folder / "jobs" / "collectives" / "nccl.json").write_text('{"tables": [')
    (folder / "fleet.json").write_text("[1]")
    with (folder / "jobs" / "train" / "train.jsonl").open("a") as file:
        file.write('{"step": 61, "loss": NaN, "restart": 1}\n{"step": 62, "lo')
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert report["notes"] == [
        "fleet.json cannot be read: it is not a JSON object.",
        "jobs/collectives/nccl.json cannot be read: it is not a JSON object.",
        "Line 81 of jobs/train/train.jsonl cannot be read.",
    ]
    assert report["training"][0]["last_step"] == 60


def test_a_collective_test_without_a_table_is_shown_as_failed(folder: Path) -> None:
    document = {"schema": "muster.nccl_results/1", "verdict": "failed", "reasons": ["The output is empty."], "tables": []}
    (folder / "jobs" / "collectives" / "nccl.json").write_text(json.dumps(document))
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert report["collectives"][0]["reasons"] == ["The output is empty."]
    assert "The output is empty." in render_html(report)


class Page(html.parser.HTMLParser):
    """Every tag with its attributes, and the text outside style and title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data) -> None:
        self.words.append(data)


def test_the_page_escapes_everything_and_asks_the_network_for_nothing(folder: Path) -> None:
    attack = "<script>alert(1)</script>\"'&\x00\udce4"
    fleet = json.loads((folder / "fleet.json").read_text())
    for host in fleet["hosts"]:
        host.update(os=attack, image=attack, address=attack, groups=[attack], gpus=[attack])
    fleet["versions"].append({"component": attack, "version": attack, "hosts": [attack]})
    fleet["engine"] = {"name": attack}
    (folder / "fleet.json").write_text(json.dumps(fleet))
    job = folder / "jobs" / "collectives"
    (job / "nccl.json").write_text((job / "nccl.json").read_text().replace('"all_reduce"', json.dumps(attack)))
    (folder / "jobs" / "train").rename(folder / "jobs" / "<script>&")
    more = dict.fromkeys(("expected", "found", "reason", "remedy", "level"), attack)
    add(
        folder,
        {"event": "message", "host": "a", "text": attack},
        failure(attack, attack, role=attack, task=attack, remedy=attack, log=attack),
        *(check(attack, attack + status, status, **more) for status in ("failed", "passed", "not_run")),
        {"event": "role", "role": attack, "phase": attack, "seconds": 1, "tasks": 1, "changed": 0},
        {"event": "task", "role": attack, "task": attack, "path": attack, "seconds": 99, "changed": 0, "hosts": 1},
        end(**{attack: {"failures": 1}}),
        without=("end",),
    )
    logic.write_report(folder)
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in {tag for tag, _attributes in page.tags}
    assert not [name for _tag, attributes in page.tags for name in attributes if name.startswith("on") or name == "src"]
    assert [attributes["href"] for _tag, attributes in page.tags if "href" in attributes] == ["data:,"]
    assert "url(" not in text
    assert "@import" not in text
    assert "\x00" not in text
    assert sum("<script>alert(1)</script>" in words for words in page.words) > 15
    jsonschema.validate(json.loads((folder / "report.json").read_text()), SCHEMA)


def test_a_step_trained_twice_counts_once_and_shows_twice(folder: Path) -> None:
    report = logic.build(folder)
    page = render_html(report)
    assert report["training"][0]["last_step"] == 60
    assert page.count('class="line c0 past"') == 4  # loss and speed, each wide and narrow
    assert page.count(">resumed after 20<") == 4


def test_a_fleet_of_thousands_stays_a_small_page(folder: Path) -> None:
    names = [f"compute-{number}" for number in range(5000)]
    add(folder, *(check(name, "munge", "failed") for name in names), *(check(name, "gpu", "not_run") for name in names))
    page = render_html(logic.build(folder))
    assert "compute-0, compute-1, " in page
    assert "and 4988 more" in page
    assert len(page) < 300_000


def test_one_point_and_equal_values_can_be_drawn(folder: Path) -> None:
    line = '{"time": "2026-11-21T10:00:00.000Z", "step": 5, "loss": 2.0, "tokens_per_s": 0, "samples_per_s": 0}\n'
    (folder / "jobs" / "train" / "train.jsonl").write_text(line)
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert "NaN" not in render_html(report).replace("busbw", "")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 2, [0, 0.5, 1, 1.5, 2]),
        (0, 487.1, [0, 100, 200, 300, 400, 500]),
        (1.6, 5.5, [1, 2, 3, 4, 5, 6]),
        (3, 3, [3, 3.1, 3.2, 3.3]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_nice_ticks_cover_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high, 5)[: len(ticks)] == ticks


def test_log10_ticks() -> None:
    assert log10_ticks(0.02, 487.1) == [0.01, 0.1, 1, 10, 100, 1000]
    assert log10_ticks(1, 1) == [1, 10]
    assert log10_ticks(5, 10) == [1, 10]


def test_busbw_is_drawn_on_logarithmic_axes() -> None:
    """A tenth of the bandwidth is as far below as a hundredth below a tenth; a busbw of 0 has no place."""
    rows = [{"size": 8 << n, "placement": "out_of_place", "busbw": value, "time_us": 1.0} for n, value in enumerate([0, 0.1, 1, 10])]
    best = {"busbw": 10.0, "size": 64}
    entry = {
        "collective": "all_reduce",
        "job": "j",
        "rows": rows,
        "ranks": 2,
        "ranks_proven": 2,
        "best": best,
        "verdict": "passed",
        "reasons": [],
        "remarks": [],
        "floors": [],
        "ceiling": None,
    }
    page = collectives([entry])
    assert "Dashed" not in page
    path = re.search(r'class="line c0 " d="M([^"]+)"', page)[1]
    heights = [float(spot.split()[1]) for spot in path.split("L")]
    assert len(heights) == 3
    assert abs((heights[0] - heights[1]) - (heights[1] - heights[2])) < 0.2
    assert "2 (proven)" in page and "Proven: each rank named itself" in page


def test_floor_and_ceiling_of_a_collective_are_shown(folder: Path) -> None:
    job = folder / "jobs" / "collectives" / "nccl.json"
    document = json.loads(job.read_text())
    floors = [
        {"min_size": 1 << 20, "below": 1 << 24, "placement": "out_of_place", "floor": 0.25, "warn": 0.3, "source": "a page"},
        {"min_size": 1 << 24, "below": None, "placement": "out_of_place", "floor": 0.5, "warn": 0.6, "source": "a page"},
    ]
    document["tables"][0].update(floors=floors, ceiling=93.8, remarks=["busbw 0.55 GB/s at 16 MiB is below 0.6 GB/s"])
    job.write_text(json.dumps(document))
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert (report["collectives"][0]["floors"], report["collectives"][0]["ceiling"]) == (floors, 93.8)
    page = collectives(report["collectives"])
    assert page.count('class="line c0 limit"') == 4  # floor and ceiling, for wide and for narrow screens
    assert report["collectives"][0]["best"]["size"] < 1 << 24
    assert page.count(">0.25 GB/s</td>") == 1 and page.count(">93.8 GB/s</td>") == 1
    assert "floor of all_reduce, 1 MiB: 0.25 GB/s" in page and "floor of all_reduce, 512 KiB" not in page
    assert "is below 0.6 GB/s" in page and "Dashed: the floor" in page


def test_hosts_stand_in_the_order_of_a_reader(folder: Path) -> None:
    fleet = json.loads((folder / "fleet.json").read_text())
    names = ["compute-10", "compute-9", "login-1", "controller-1", "nas"]
    groups = {"compute": ["muster_compute"], "login": ["muster_login"], "controller": ["muster_controller"]}
    fleet["hosts"] = [{**fleet["hosts"][0], "name": name, "groups": groups.get(name.split("-")[0], [])} for name in names]
    (folder / "fleet.json").write_text(json.dumps(fleet))
    assert [host["name"] for host in logic.build(folder)["fleet"]["hosts"]] == ["controller-1", "login-1", "compute-9", "compute-10", "nas"]


def test_log2_ticks() -> None:
    assert log2_ticks(8, 1 << 34, 9) == [float(8 << step) for step in range(0, 32, 4)]
    assert log2_ticks(1000, 5000, 9) == [1024.0, 2048.0, 4096.0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def run_module(capsys: pytest.CaptureFixture[str], **options: object) -> dict:
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


def test_the_module_writes_once_and_check_mode_never(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert run_module(capsys, run_dir=str(folder), _ansible_check_mode=True)["changed"]
    assert not (folder / "report.json").exists()
    result = run_module(capsys, run_dir=str(folder))
    assert (result["changed"], result["verdict"], result["path"]) == (True, "passed", str(folder / "report.html"))
    assert not run_module(capsys, run_dir=str(folder))["changed"]
    assert sorted(path.name for path in folder.glob("report*")) == ["report.html", "report.json"]
    assert "has no run" in run_module(capsys, run_dir=str(folder.parent))["msg"]


def watched(title: str, unit: str, *series: dict, board: str = "fleet", kind: str = "timeseries", empty: bool = False) -> dict:
    """A chart as muster-watch leaves it in metrics.json."""
    return {"board": board, "title": title, "unit": unit, "kind": kind, "empty": empty, "series": list(series)}


def line(points: list, legend: str = "{{instance}}", **labels: str) -> dict:
    return {"labels": {"fleet": "f", "job": "node", **labels}, "legend": legend, "points": points}


def during(folder: Path, *charts: dict) -> tuple[dict, str]:
    """The report of a run, and its section "During the run"."""
    (folder / "metrics.json").write_text(json.dumps({"schema": "muster.metrics/2", "charts": charts}))
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    found = re.search(r'<section id="during">(.*?)</section>', render_html(report), re.DOTALL)
    return report, found[1] if found else ""


BEGUN = calendar.timegm(time.strptime("20261121T105130", "%Y%m%dT%H%M%S"))


def test_the_dashboards_of_the_run_are_drawn(folder: Path) -> None:
    busy = [[BEGUN + 15 * each, 0.5 + each / 100] for each in range(20)]
    nodes = [line(busy if each else [[BEGUN, None], [BEGUN + 15, math.nan]], instance=f"compute-{each}") for each in range(12)]
    loss = line([[BEGUN + 120, 5.5], [BEGUN + 300, 1.25]], "{{job_id}} {{run}}", job_id="7", run="train")
    report, section = during(
        folder,
        watched("Nodes that answer", "count", line([[BEGUN, 3], [BEGUN + 15, 12], [BEGUN + 30, 11]], ""), kind="stat"),
        watched("CPU in use", "share", *nodes),
        watched("Network sent", "Bps", line([[BEGUN + 60, 25e6]], instance="compute-1")),
        watched("Firing alarms", "count", kind="table", empty=True),
        watched("Loss", "count", loss, board="training"),
        watched("Model FLOPs utilisation", "share", board="training"),
    )
    assert [one["label"] for one in report["metrics"][1]["series"]] == [f"compute-{each}" for each in range(1, 12)]
    assert report["metrics"][1]["series"][0]["points"][0] == [BEGUN, 50.0], "in percent"
    assert report["metrics"][2]["series"][0]["points"] == [[BEGUN + 60, 25.0]], "in MB/s"
    assert re.findall("<h3>(.*?)</h3>", section) == ["Fleet", "Training"]
    assert "<dt>Nodes that answer</dt><dd>11<small>at most 12</small></dd>" in section
    assert "CPU in use: the highest 6 of 11" in section and "Firing alarms: none." in section and "7 train" in section
    assert re.findall("Without data: (.*?)<", section) == ["Model FLOPs utilisation."]
    axes = set(re.findall(r"minutes from (\S+) to (\S+)</desc>", section))
    assert len(axes) == 1 and {low for low, _high in axes} == {"0"}, "all plots share the axis of time"
    assert "so CPU and memory are those of their machine" in section


def test_alarms_of_the_run_have_their_time(folder: Path) -> None:
    fired = line([[BEGUN + 60, 1], [BEGUN + 150, 1]], "{{alertname}} {{instance}}", alertname="MusterNodeDown", instance="compute-2")
    many = [line([[BEGUN + 90 + each, 1]], "{{alertname}}", alertname=f"Site{each}") for each in range(24)]
    _report, section = during(folder, watched("Firing alarms", "count", *many, fired, kind="table", empty=True))
    first = re.search(r"<tbody>\s*<tr>(.*?)</tr>", section)
    assert first and re.findall(r">([^<]+)</td>", first[1]) == ["MusterNodeDown compute-2", "1.0", "2.5"]
    assert section.count("<tr>") == 21 and "And 5 more." in section


def test_a_run_of_many_hours_is_drawn_in_hours(folder: Path) -> None:
    _report, section = during(folder, watched("CPU in use", "share", line([[BEGUN + 3600 * each, 0.5] for each in range(9)])))
    assert "hours from 0 to 8</desc>" in section and "minutes" not in section


def test_a_run_without_metrics_or_with_those_of_another_version_has_no_section(folder: Path) -> None:
    assert "During the run" not in render_html(logic.build(folder))
    assert during(folder, watched("Firing alarms", "count", kind="table", empty=True))[1] == "", "Prometheus knew nothing"
    (folder / "metrics.json").write_text(json.dumps({"schema": "muster.metrics/1", "charts": [{"title": "CPU", "series": []}]}))
    report = logic.build(folder)
    assert report["metrics"] == []
    assert "metrics.json is muster.metrics/1, of another version of Muster: its plots are left out." in report["notes"]


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1.2, ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25"]),
        (0, 12, ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]),
        (0, 80, ["0", "20"]),
    ],
)
def test_the_numbers_of_an_axis_are_at_their_lines(low: float, high: float, texts: list[str]) -> None:
    drawn = Plot("t", [Series("s", [(0, low), (1, high)], 0, ["", ""])], "y", "x", from_zero=True).both("p", 520, 240)
    assert re.findall(r'text-anchor="end">([\d.]+)<', drawn.partition("</svg>")[0])[: len(texts)] == texts


def diagnosis(count: int, slow: tuple[str, ...] = (), hangs: tuple[str, ...] = ()) -> dict:
    """What diagnose.yml leaves of a fleet in which these nodes are slow or hang."""
    state = diagnose.start([f"n{index}" for index in range(1, count + 1)])
    while pairs := diagnose.plan(state):
        results = []
        for pair in pairs:
            hung = bool(set(hangs) & set(pair))
            value = None if hung else 20.0 if set(slow) & set(pair) else 48.0
            results.append({"nodes": list(pair), "value": value, "error": "no end within 60 s" if hung else ""})
        diagnose.record(state, results)
    return {**diagnose.verdict(state), "left_alone": {"n<7>": "it is allocated"}, "size": "1 GiB", "stopped": "", "between": [0.5]}


def test_the_pairs_of_a_diagnosis_are_a_heat_map(folder: Path) -> None:
    (folder / "diagnose.json").write_text(json.dumps(diagnosis(6, slow=("n2",), hangs=("n5",))))
    (folder / "diagnose-p5.48xlarge.json").write_text(json.dumps({**diagnosis(2), "rehearsed": ["all_reduce_perf"]}))
    report = logic.build(folder)
    jsonschema.validate(report, SCHEMA)
    assert [entry["type"] for entry in report["diagnoses"]] == ["p5.48xlarge", ""]
    page = render_html(report)
    assert page.count('<section id="pairs">') == 1
    tests = report["diagnoses"][1]["pairs"]
    rows = dict(re.findall(r'<tr><th scope="row">(n\d)</th>(.*?)</tr>', page.partition("All nodes")[2]))
    cells = {row: re.findall(r"<td (.*?)>(.*?)</td>", rest) for row, rest in rows.items()}
    assert [len(each) for each in cells.values()] == [6] * 6
    for test in (test for round_ in tests for test in round_):
        one, other = (int(node[1:]) - 1 for node in test["nodes"])
        for row, column in ((one, other), (other, one)):
            style, words = cells[f"n{row + 1}"][column]
            if test["error"]:
                assert (words, 'class="heat none"' in style) == ("none", True)
            else:
                part = 100 if test["value"] == 48 else 0
                assert words == "%.3g" % test["value"] and f'style="--part: {part}%"' in style
            assert " with " in style and "in round " in style
    untested = 36 - 6 - 2 * len({frozenset(test["nodes"]) for round_ in tests for test in round_})
    assert sum(each == ('class=""', "") for row in cells.values() for each in row) == untested > 0
    assert "n2 is bad: 20 with n1; " in page and "n5 is bad (it hangs): no end within 60 s with " in page
    assert "n&lt;7&gt; is left alone: it is allocated" in page
    assert "stand-ins of a rehearsal (all_reduce_perf) printed the outputs" in page
    assert f"4 nodes are well, by {sum(map(len, tests))} tests of pairs in {len(tests)} rounds of 1 GiB" in page


def test_a_large_fleet_s_heat_map_has_the_slowest_pairs(folder: Path) -> None:
    (folder / "diagnose.json").write_text(json.dumps(diagnosis(1024, slow=("n1000",))))
    report = logic.build(folder)
    page = render_html(report)
    assert "Of 1024 nodes, the 24 of the slowest pairs." in page and '<th scope="row">n1000</th>' in page
    assert len(page) < len(render_html({**report, "diagnoses": []})) + 60000


def test_a_dry_run_and_a_run_without_a_diagnosis_have_no_heat_map(folder: Path) -> None:
    assert "Pairs of nodes" not in render_html(logic.build(folder))
    (folder / "diagnose.json").write_text(json.dumps({"pairs": [[["n1", "n2"]]], "left_alone": {}}))
    assert logic.build(folder)["diagnoses"] == []
