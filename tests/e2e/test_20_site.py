# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""site.yml on the test fleet, twice: the first run checks and trains, the second finds everything done."""

from __future__ import annotations

import json
import re
import subprocess
from xml.etree import ElementTree

import chromium_pipe
import jsonschema
import pytest
import yaml
from e2e_fleet import ROOT, Fleet, one_sentence
from kernel_settings import kernel_settings

pytestmark = pytest.mark.engine

SECOND_RUN_S = 60  # on a machine with nothing else to do; other tests run beside these
CONFIGURE_TASKS = 25
# The report has each plot twice, for wide and for narrow screens, and hides one of them.
LINES = """[...document.querySelectorAll('svg.plot')].filter(svg => svg.getBoundingClientRect().width > 0)
  .map(svg => [...svg.querySelectorAll('path.line')].map(line => line.getTotalLength()))"""
# These tasks call no module: they read files and compare arguments.
INCLUDES = re.compile(r"(include|import)_(tasks|role)$|validate_argument_spec$|^meta$")


@pytest.fixture(scope="module")
def second(fleet: Fleet) -> subprocess.CompletedProcess:
    """The same command again."""
    return fleet.run("site.yml")


def report_of(run) -> dict:
    return json.loads((run / "report.json").read_text())


def summary_of(output: str) -> list[str]:
    return output.split("SUMMARY")[1].strip().splitlines()[1:]


def test_first_run_ends_with_summary_and_report(fleet: Fleet) -> None:
    summary = summary_of(fleet.first.stdout)
    assert 5 <= len(summary) <= 10
    assert summary[0].startswith("fleet e2e: passed in ")
    assert any(line.startswith("busbw: ") and line.endswith("(run now)") for line in summary)
    path = re.fullmatch(r"report: (\S+)", summary[-1])[1]
    assert (ROOT / path).resolve() == fleet.first_run / "report.html"
    assert (fleet.first_run / "report.html").stat().st_size > 20_000


def test_report_says_what_was_proven(fleet: Fleet) -> None:
    report = report_of(fleet.first_run)
    jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "report.schema.json").read_text())).validate(report)
    assert report["run"]["verdict"] == "passed"
    assert report["failures"] == []
    assert {host["name"] for host in report["fleet"]["hosts"]} == {"controller-1", "compute-1", "compute-2", "login-1"}
    assert {entry["component"] for entry in report["fleet"]["versions"]} == {"common", "slurm", "node_health", "trainer"}
    # busbw equals algbw in a broadcast and between two ranks.
    proven = {"all_reduce": 2, "all_gather": 2, "reduce_scatter": 2, "alltoall": 2, "broadcast": None, "sendrecv": None}
    assert {entry["collective"]: entry["ranks_proven"] for entry in report["collectives"]} == proven
    assert {(entry["verdict"], *entry["hosts"]) for entry in report["collectives"]} == {("passed", "compute-1", "compute-2")}
    [training] = report["training"]
    assert training["last_step"] == 60
    assert training["last_loss"] < 0.8 * training["first_loss"]
    assert {job["name"]: (job["state"], job["nodes"]) for job in report["jobs"]} == {
        name: ("COMPLETED", ["compute-1", "compute-2"]) for name in ("collectives", "train")
    }


def test_not_run_is_what_the_inventory_allows_and_no_less(fleet: Fleet) -> None:
    records = report_of(fleet.first_run)["checks"]["records"]
    assert {record["status"] for record in records} == {"passed", "not_run"}
    allowed = yaml.safe_load((ROOT / "inventory" / "local" / "group_vars" / "all.yml").read_text())["__local_not_run"]
    assert {f"{record['component']}.{record['check']}" for record in records if record["status"] == "not_run"} == set(allowed)


def test_run_folder_is_whole(fleet: Fleet) -> None:
    kept = {path.relative_to(fleet.first_run).as_posix() for path in fleet.first_run.rglob("*") if path.is_file()}
    common = {f"jobs/{job}/{file}" for job in ("collectives", "train") for file in ("job.json", "job.sbatch", "output.txt", "result.json")}
    measured = {
        f"jobs/collectives/{name}.csv" for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
    }
    whole = {
        "events.jsonl",
        "fleet.json",
        "junit.xml",
        "report.json",
        "report.html",
        "jobs/collectives/nccl.json",
        "jobs/train/train.jsonl",
    }
    assert kept == whole | common | measured
    suites = ElementTree.parse(fleet.first_run / "junit.xml").getroot()
    assert {each.get("failures") for each in suites} == {"0"} and len(suites) > 4
    events = [json.loads(line) for line in (fleet.first_run / "events.jsonl").read_text().splitlines()]
    assert (events[0]["event"], events[0]["playbook"], events[0]["fleet"]) == ("start", "site.yml", "e2e")
    assert (events[-1]["event"], events[-1]["ok"]) == ("end", True)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert "Batch 60 Loss: " in (fleet.first_run / "jobs" / "train" / "output.txt").read_text()


def test_login_node_submits(fleet: Fleet) -> None:
    assert sorted(fleet.ansible("login-1", "srun", "--quiet", "-N2", "hostname", user="muster").split()) == ["compute-1", "compute-2"]
    assert fleet.ansible("login-1", "systemctl", "is-active", "sackd") == "active"
    assert fleet.ansible("login-1", "sh", "-c", "test -e /etc/slurm/slurm.conf || echo configless") == "configless"


def test_no_secret_leaves_its_folder(fleet: Fleet) -> None:
    secrets = {fleet.state_dir / "secrets" / "munge.key": 0, fleet.state_dir / "ssh" / "id_ed25519": 1}
    for path, line in secrets.items():
        assert path.stat().st_mode & 0o077 == 0
        text = path.read_text().splitlines()[line]
        # The control: the search must find the secret in its own folder.
        folders = [fleet.folder / "runs", *fleet.folder.glob("output-*"), path.parent, ROOT]
        argv = ["grep", "-rlF", "--exclude-dir=.venv*", "--exclude-dir=.git", "-f", "-", *map(str, folders)]
        assert subprocess.run(argv, input=text, capture_output=True, text=True, check=False).stdout.split() == [str(path)]


def test_the_machine_keeps_its_kernel_settings(fleet: Fleet) -> None:
    assert kernel_settings() == fleet.settings


def test_second_run_changes_nothing(fleet: Fleet, second: subprocess.CompletedProcess) -> None:
    assert second.returncode == 0, second.stdout[-3000:]
    recap = dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", second.stdout, re.MULTILINE))
    changes = [line for line in re.split(r"\n\n", second.stdout) if "changed: [" in line]
    assert recap == dict.fromkeys(("localhost", "controller-1", "compute-1", "compute-2", "login-1"), "0"), changes


def test_second_run_returns_the_stored_results(fleet: Fleet, second: subprocess.CompletedProcess) -> None:
    summary = summary_of(second.stdout)
    assert [line.rsplit(" ", 1)[1] for line in summary if line.startswith(("busbw: ", "training: "))] == ["(stored)", "(stored)"]
    first, now = report_of(fleet.first_run), report_of(fleet.latest)
    assert {job["job_id"] for job in now["jobs"]} == {job["job_id"] for job in first["jobs"]}
    assert now["collectives"] == first["collectives"]
    assert now["training"] == first["training"]


def test_second_run_is_short(fleet: Fleet, second: subprocess.CompletedProcess) -> None:
    assert report_of(fleet.latest)["run"]["seconds"] <= 3 * SECOND_RUN_S
    tasks = [event for event in fleet.events("task") if event["phase"] == "configure" and event["hosts"]]
    assert 10 <= len([task for task in tasks if not INCLUDES.search(task["action"])]) <= CONFIGURE_TASKS


@chromium_pipe.needed
@pytest.mark.parametrize("width", [1280, 400])
def test_report_reads_well_in_a_browser(fleet: Fleet, tmp_path, width: int) -> None:
    browser = chromium_pipe.Chromium(chromium_pipe.find(), tmp_path)
    try:
        browser.open(fleet.first_run / "report.html", width)
        browser.screenshot(fleet.folder / f"report-{width}.png")
        plots = browser.evaluate(LINES)
        assert [len(plot) for plot in plots] == [6, 1, 1]
        assert all(length > 20 for plot in plots for length in plot)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.errors() == []
    finally:
        browser.close()


@pytest.mark.parametrize(
    ("playbook", "variable", "name"), [("train.yml", "muster_training", "train"), ("nccl_tests.yml", "muster_collectives", "collectives")]
)
def test_more_ranks_than_cpus(fleet, playbook: str, variable: str, name: str) -> None:
    newest = ("sacct", "--noheader", "--allocations", "--allusers", "--format=jobid", "--starttime=now-1days")
    before = fleet.ansible("controller-1", *newest)
    said = one_sentence(fleet.run(f"playbooks/{playbook}", "-e", json.dumps({variable: {"procs_per_node": 64}})))
    assert f"Job {name} wants 64 ranks of 1 CPUs on each of 2 nodes" in said
    assert "lower nodes, procs_per_node or cpus_per_proc." in said
    assert fleet.ansible("controller-1", *newest) == before
