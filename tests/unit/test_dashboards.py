# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The dashboards as data and as the JSON of Grafana. Proof observe runs each query against a real Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, dashboards

ROOT = Path(__file__).parents[2]


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
