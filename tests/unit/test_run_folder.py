# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The folder of a run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.modules import run_folder as module


def test_latest_points_at_the_newest_run(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = call(module, fleet="local", runs="runs")
        folder = Path(result["muster_run_dir"])
        assert result["ansible_facts"] == {"muster_run_dir": str(folder)}
        assert re.fullmatch(r"\d{8}T\d{6}Z(-2)?", folder.name)
        # Relative, so that the folder of all runs can be moved.
        assert os.readlink(tmp_path / "runs/local/latest") == folder.name
    assert len([path for path in (tmp_path / "runs/local").iterdir() if not path.is_symlink()]) == 2


def test_two_runs_of_one_second_have_a_folder_each(tmp_path):
    # 1795259520 is 2026-11-21 11:12:00 UTC.
    names = [Path(module.open_folder(str(tmp_path), 1795259520)).name for _ in range(3)]
    assert names == ["20261121T111200Z", "20261121T111200Z-2", "20261121T111200Z-3"]


def test_check_mode_has_a_record_too(call, tmp_path):
    assert Path(call(module, check_mode=True, fleet="local", runs=str(tmp_path))["muster_run_dir"]).is_dir()


def test_no_room_for_runs_is_one_sentence(call, tmp_path):
    (tmp_path / "runs").touch()
    result = call(module, fleet="local", runs=str(tmp_path / "runs"))
    assert result["failed"]
    assert result["msg"].startswith(f"The run folder in {tmp_path}/runs/local cannot be created: ")


@pytest.mark.parametrize("missing", ["fleet", "runs"])
def test_both_options_are_needed(call, missing):
    options = {"fleet": "local", "runs": "runs"}
    del options[missing]
    assert f"missing required arguments: {missing}" in call(module, **options)["msg"]
