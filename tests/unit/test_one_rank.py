# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""nccl_tests.yml on one rank: nothing crosses a wire, so the verdict is not_run, and the run fails unless the node allows it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from playbook import run_playbook


@pytest.mark.parametrize(("allowed", "more"), [(False, {}), (True, {}), (True, {"muster_collectives": {"inspector": True}})])
def test_one_rank_is_a_verdict(tmp_path: Path, allowed: bool, more: dict) -> None:
    node = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    node |= {"muster_allow_not_run": ["collectives.one_rank"]} if allowed else {}
    groups = {group: {"hosts": {"n-1": node}} for group in ("muster_controller", "muster_compute")}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    state = {"muster_state_dir": str(tmp_path / "state"), "muster_cache_dir": str(tmp_path / "cache"), "muster_fleet": "one", **more}
    done = run_playbook(tmp_path, "-i", tmp_path / "hosts.json", "playbooks/nccl_tests.yml", "-e", json.dumps(state))
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert (done.returncode == 0) == allowed, said
    sentence = (
        "The collectives did not pass: n-1: one rank: nothing crossed a wire, so nothing was measured; add a node, or name "
        "collectives.one_rank in muster_allow_not_run"
    )
    assert (sentence in said) == (not allowed)
    [entry] = json.loads((tmp_path / "runs/one/latest/report.json").read_text())["collectives"]
    assert (entry["verdict"], entry["reasons"]) == ("not_run", ["one rank: nothing crossed a wire"])
