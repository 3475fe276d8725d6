# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: it draws its plots, fits a wide and a narrow screen, and leaves the console empty."""

from __future__ import annotations

import calendar
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import chromium_pipe
import pytest

from ansible_collections.muster.fleet.plugins.module_utils.report.document import write_report

BEGUN = calendar.timegm((2026, 11, 21, 10, 51, 30))
SAMPLE = Path(__file__).parents[1] / "fixtures" / "run" / "local" / "20261121T105130Z"
PROGRAM = chromium_pipe.find()

pytestmark = chromium_pipe.needed

MEASURE = """(() => {
  const shown = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const place = element => { const {left, right, top, bottom} = element.getBoundingClientRect(); return {left, right, top, bottom}; };
  const root = document.documentElement;
  const texts = [...document.querySelectorAll("svg.plot text")].filter(shown);
  return {
    scrollWidth: root.scrollWidth, clientWidth: root.clientWidth,
    sections: [...document.querySelectorAll("section")].map(section => section.id),
    plots: [...document.querySelectorAll("svg.plot")].filter(shown).map(svg => ({
      title: svg.querySelector("title").textContent, box: place(svg),
      named: svg.getAttribute("aria-labelledby").split(" ").every(id => document.getElementById(id)?.textContent),
      lines: [...svg.querySelectorAll("path.line")].map(path => ({
        box: place(path), length: path.getTotalLength(), steps: path.getAttribute("d").split("L").length,
      })),
      points: svg.querySelectorAll("path.point title").length,
    })),
    letters: Math.min(...texts.map(text => text.getBoundingClientRect().height)),
    wide: [...document.querySelectorAll("main *")].filter(shown).filter(element => !element.closest(".scroll"))
      .filter(element => place(element).right > root.clientWidth + 0.5).map(element => element.tagName + "." + element.className),
    cut: [...document.querySelectorAll(".scroll")].filter(box => !box.closest("details:not([open])"))
      .filter(box => box.scrollWidth > box.clientWidth + 1)
      .map(box => box.closest("section").id),
    collisions: [...document.querySelectorAll("svg.plot")].filter(shown).flatMap(svg => {
      const boxes = [...svg.querySelectorAll("text")].map(text => ({text: text.textContent, ...place(text)}));
      // The boxes are as high as the line, so letters below each other touch by a little without meeting.
      const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
      return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => meet(a, b)).map(b => a.text + " | " + b.text));
    }),
  };
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium_pipe.Chromium]:
    assert PROGRAM
    started = chromium_pipe.Chromium(PROGRAM, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def passed(artifacts) -> Path:
    folder = artifacts.folder("report-passed") / "local" / SAMPLE.name
    shutil.copytree(SAMPLE, folder)
    # The longest name and time of a real run.
    role = {
        "event": "role",
        "time": "2026-11-21T10:51:31.000Z",
        "role": "stack_component.yml",
        "phase": "",
        "seconds": 60.0,
        "tasks": 9,
        "changed": 0,
    }
    with (folder / "events.jsonl").open("a") as events:
        events.write(json.dumps(role) + "\n")
    write_report(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def failed(artifacts) -> Path:
    """A run that stopped before its jobs, with the longest words and names."""
    folder = artifacts.folder("report-failed") / "local" / SAMPLE.name
    shutil.copytree(SAMPLE, folder)
    shutil.rmtree(folder / "jobs")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    check = next(event for event in events if event.get("check") == "munge_active" and event["host"] == "compute-2")
    check.update(status="failed", found="failed (exited, result exit-code)", reason="the unit munge is not active")
    events[-1].update(ok=False)
    events[-1]["hosts"]["compute-2"]["failures"] = 1
    message = f"slurm.munge_active failed: the unit munge is not active. Remedy: {'look-' * 60}.\n{'x' * 300}"
    failure = {
        "host": "compute-2",
        "role": "phases",
        "task": "verdict | Fail the host",
        "message": message,
        "remedy": "",
        "log": "failures.log",
    }
    events.insert(-1, {"event": "failure", "time": events[-1]["time"], **failure})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    write_report(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def watched(artifacts) -> Path:
    """A run with the metrics of another, tests/fixtures/run/watched, and more nodes than colours."""
    folder = artifacts.folder("report-watched") / "local" / SAMPLE.name
    shutil.copytree(SAMPLE, folder)
    document = json.loads((SAMPLE.parents[1] / "watched" / "metrics.json").read_text())
    points = [point for chart in document["charts"] for one in chart["series"] for point in one["points"]]
    later = BEGUN - min(when for when, _value in points)
    for point in points:
        point[0] += later
    [busy] = [chart for chart in document["charts"] if chart["title"] == "CPU in use"]
    one = busy["series"][0]
    busy["series"] += [{**one, "labels": {**one["labels"], "instance": f"cluster-queue-p5-dy-compute-{each}"}} for each in range(30)]
    (folder / "metrics.json").write_text(json.dumps(document))
    write_report(folder)
    return folder / "report.html"


def measured(browser: chromium_pipe.Chromium, page: Path, width: int, scheme: str = "light") -> dict:
    browser.open(page, width, scheme=scheme)
    browser.screenshot(page.with_name(f"report-{width}-{scheme}.png"))
    return browser.evaluate(MEASURE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 760, 400])
def test_a_passed_run_reads_well(browser: chromium_pipe.Chromium, passed: Path, width: int, scheme: str) -> None:
    page = measured(browser, passed, width, scheme)
    assert browser.errors() == []
    assert page["sections"] == ["fleet", "checks", "collectives", "training", "timings", "jobs", "versions"]
    assert page["scrollWidth"] <= page["clientWidth"] == width
    assert page["wide"] == []
    assert page["cut"] == []
    assert [plot["title"] for plot in page["plots"]] == ["Bus bandwidth against message size", "Loss against step", "Speed against step"]
    assert [len(plot["lines"]) for plot in page["plots"]] == [6, 2, 2]
    for plot in page["plots"]:
        assert plot["named"]
        assert plot["points"] == sum(line["steps"] for line in plot["lines"]) >= 60
        assert 0 <= plot["box"]["left"] < plot["box"]["right"] <= width
        assert plot["box"]["right"] - plot["box"]["left"] > 0.35 * min(width, 1120)
        for line in plot["lines"]:
            assert line["length"] > 20
            for low, high in (("left", "right"), ("top", "bottom")):
                assert plot["box"][low] <= line["box"][low] <= line["box"][high] <= plot["box"][high]
    assert page["collisions"] == []
    assert page["letters"] > 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 760, 400])
def test_a_watched_run_reads_well(browser: chromium_pipe.Chromium, watched: Path, width: int, scheme: str) -> None:
    page = measured(browser, watched, width, scheme)
    assert browser.errors() == []
    assert page["sections"][3:5] == ["training", "during"]
    assert page["scrollWidth"] <= page["clientWidth"] == width
    assert page["wide"] == page["cut"] == page["collisions"] == []
    assert page["letters"] > 10
    plots = [plot for plot in page["plots"] if plot["title"].endswith(" against time")]
    assert [plot["title"].removesuffix(" against time") for plot in plots] == [
        *("CPU in use", "Memory in use", "Network received", "Network sent", "Loss", "Speed in tokens a second", "Goodput"),
        *("Norm of the gradient", "Waiting for data", "Step", "Length of a checkpoint"),
    ]
    for plot in plots:
        assert plot["named"] and 0 <= plot["box"]["left"] < plot["box"]["right"] <= width
        assert plot["points"] == sum(line["steps"] for line in plot["lines"]) >= 3
        for line in plot["lines"]:
            for low, high in (("left", "right"), ("top", "bottom")):
                assert plot["box"][low] <= line["box"][low] <= line["box"][high] <= plot["box"][high]
    # One time is at one place in all plots of a column.
    first, *others = [plot for plot in plots if plot["box"]["left"] == plots[0]["box"]["left"]]
    for plot in others:
        assert abs(plot["lines"][0]["box"]["right"] - first["lines"][0]["box"]["right"]) < 12


@pytest.mark.parametrize("width", [1280, 400])
def test_a_failed_run_reads_well(browser: chromium_pipe.Chromium, failed: Path, width: int) -> None:
    page = measured(browser, failed, width)
    assert browser.errors() == []
    assert page["sections"][:3] == ["failures", "fleet", "checks"]
    assert page["scrollWidth"] <= page["clientWidth"] == width
    assert page["wide"] == []
    assert page["plots"] == []


def test_everything_unfolds_on_a_narrow_screen(browser: chromium_pipe.Chromium, passed: Path) -> None:
    browser.open(passed, 400)
    browser.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    page = browser.evaluate(MEASURE)
    assert page["scrollWidth"] <= page["clientWidth"]
    assert page["wide"] == []
