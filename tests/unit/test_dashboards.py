# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The dashboards as data and as the JSON of Grafana, what Grafana reads beside them, and the jobs of GPUs.

Proof observe runs each query against a real Prometheus.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, dashboards

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "roles/monitoring"


@pytest.mark.parametrize("board", dashboards.BOARDS, ids=lambda board: board.uid)
def test_grafana_reads_the_board(board: dashboards.Board) -> None:
    document = json.loads((ROOT / f"roles/monitoring/files/dashboards/{board.uid}.json").read_text())
    assert (document["uid"], len(document["panels"])) == (board.uid, len(board.panels))
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = {(x, at["y"]) for x in range(at["x"], at["x"] + at["w"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, "panels lie on each other"
        taken |= cells
        assert panel["targets"] and all(target["expr"] for target in panel["targets"])
    known = {variable["name"] for variable in document["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$(\w+)", " ".join(target["expr"] for panel in document["panels"] for target in panel["targets"]))) <= known


def test_every_query_is_of_one_fleet_and_has_no_variable_left() -> None:
    for board, panel, expression in dashboards.queries():
        assert 'fleet="$fleet"' in expression, (board.uid, panel.title)
        assert "$" not in dashboards.plain(expression, "f")


def test_what_this_hardware_cannot_have_is_named() -> None:
    missing = {panel.title for _board, panel, expression in dashboards.queries() if dashboards.absent(expression)}
    assert "Temperature" in missing and "Loss" not in missing
    assert {start for start in dashboards.ABSENT} <= {"DCGM_"}, "a longer list needs a reason"


def test_alarms_and_panels_name_metrics_that_an_exporter_of_ours_serves() -> None:
    source = "".join(
        (ROOT / path).read_text()
        for path in ("roles/monitoring/files/muster-exporter.py", "roles/efa_exporter/files/muster-efa-exporter.py")
    )
    asked = {expression for _board, _panel, expression in dashboards.queries()} | {alarm.expr for alarm in alarms.ALARMS}
    names = {name for expression in asked for name in re.findall(r"\b(?:muster_(?:slurm|training)|node_amazonefa)_\w+", expression)}
    for name in sorted(names):
        end = name.removeprefix("node_amazonefa_").removeprefix("muster_slurm_node_")
        assert name in source or f'"{end}"' in source, name
    assert len(names) > 40


@pytest.mark.parametrize("password", ["a1B2", "12345678", "1e12"])
def test_grafana_finds_prometheus_and_the_dashboards(password: str) -> None:
    """The role provisions both. A password may look like a number."""
    given = {
        "__monitoring_fleet": "f",
        "__monitoring_password": password,
        "__monitoring_pair": {"cert": "-----BEGIN CERTIFICATE-----\nx\n"},
        "monitoring_interval": "15s",
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["to_json"] = json.dumps
    sources, boards = (
        yaml.safe_load(environment.from_string((ROLE / "templates" / name).read_text()).render(given))
        for name in ("grafana-datasources.yaml.j2", "grafana-dashboards.yaml.j2")
    )
    [source] = sources["datasources"]
    assert source["secureJsonData"] == {"basicAuthPassword": password, "tlsCACert": given["__monitoring_pair"]["cert"]}
    assert source["jsonData"]["serverName"] == "f.muster.internal" and source["url"].startswith("https://127.0.0.1:9090")
    for path in (ROLE / "files/dashboards").glob("*.json"):
        chosen = {
            each["name"]: each["query"] for each in json.loads(path.read_text())["templating"]["list"] if each["type"] == "datasource"
        }
        assert chosen == {"source": source["type"]}
    [copied] = [each for each in yaml.safe_load((ROLE / "tasks/configure.yml").read_text()) if "ansible.builtin.copy" in each]
    assert boards["providers"][0]["options"]["path"] + "/" == copied["ansible.builtin.copy"]["dest"]


def test_slurm_tells_dcgm_exporter_which_job_has_a_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"

    def hook(name: str, job: int, gpus: str) -> dict[str, str]:
        script = (ROLE.parent / f"slurm/files/muster-{name}.sh").read_text().replace("/run/muster-dcgm-jobs", str(folder))
        script = script.replace("/usr/bin/muster-health", str(tmp_path / "none")).replace("/etc/muster/", str(tmp_path))
        environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": str(job), **({"SLURM_JOB_GPUS": gpus} if gpus else {})}
        subprocess.run(["sh", "-c", script], env=environment, check=True)
        return {path.name: path.read_text() for path in folder.glob("*")} if folder.exists() else {}

    assert hook("prolog", 1, "0") == hook("epilog", 1, "0") == {}, "without the exporter the hooks do nothing"
    folder.mkdir()
    assert hook("prolog", 7, "0,1") == {"0": "7\n", "1": "7\n"}
    assert hook("prolog", 17, "1") == {"0": "7\n", "1": "7\n17\n"}
    assert hook("epilog", 7, "0,1") == {"0": "", "1": "17\n"}
    assert hook("prolog", 8, "") == hook("epilog", 8, "") == {"0": "", "1": "17\n"}, "a job without GPUs"


def test_the_report_asks_for_the_dashboards_of_its_time() -> None:
    asked = dashboards.run_charts("20261121T105130Z", "f", 1795258290 + 7200)
    assert (asked["start"], asked["step"]) == (1795258290, 72)
    boards = [board for board in dashboards.BOARDS if board.uid in ("muster-fleet", "muster-training")]
    assert [chart["title"] for chart in asked["charts"]] == [panel.title for board in boards for panel in board.panels]
    assert {chart["board"] for chart in asked["charts"]} == {"fleet", "training"}
    for chart in asked["charts"]:
        for query in chart["queries"]:
            assert "$" not in query["expr"] and 'fleet="f"' in query["expr"]
            # A window is longer than a step, so that no scrape is between two of them.
            assert all(int(window) > 72 for window in re.findall(r"\[(\d+)s\]", query["expr"]))
            assert ('and on (fleet, job_id, run) (muster_training_last_record_time_seconds{fleet="f"} >= 1795258290)' in query["expr"]) == (
                chart["board"] == "training"
            ), "only trainings that made a step in the run"
    assert dashboards.run_charts("20261121T105130Z-2", "f", 1795258290 + 60)["step"] == 5
