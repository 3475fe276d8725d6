# SPDX-License-Identifier: Apache-2.0
"""A key is replaced in steps. After an interruption at any step the next run continues, and the key exists at every moment."""

import os
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import key_rotation as logic

WAY = ["begun", "switched", "finished"]


@pytest.fixture
def key(tmp_path: Path) -> str:
    (tmp_path / "munge.key").write_text("old")
    return str(tmp_path / "munge.key")


def go(key: str, state: str) -> list:
    todo = logic.steps(state, logic.stage(logic.present(key)), "new")
    logic.apply(key, todo)
    return todo


def test_the_whole_way(key: str, tmp_path: Path) -> None:
    assert [bool(go(key, state)) for state in WAY] == [True, True, True]
    assert (tmp_path / "munge.key").read_text() == "new"
    assert (tmp_path / "munge.key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["munge.key"]


@pytest.mark.parametrize("done", [1, 2])
def test_a_cut_run_goes_on(key: str, tmp_path: Path, done: int) -> None:
    for state in WAY[:done]:
        go(key, state)
    assert [bool(go(key, state)) for state in WAY] == [False, done < 2, True]
    assert (tmp_path / "munge.key").read_text() == "new"


def test_cut_between_the_two_halves_of_the_switch(key: str, tmp_path: Path) -> None:
    go(key, "begun")
    todo = logic.steps("switched", "begun", "")
    logic.apply(key, todo[:1])
    assert (tmp_path / "munge.key").read_text() == "old"
    go(key, "switched")
    assert (tmp_path / "munge.key").read_text() == "new"
    assert (tmp_path / "munge.key.previous").read_text() == "old"


def test_steps_out_of_order_are_refused(key: str) -> None:
    with pytest.raises(logic.KeyRotationError, match="No rotation"):
        go(key, "switched")
    go(key, "begun")
    with pytest.raises(logic.KeyRotationError, match="never brought to the nodes"):
        go(key, "finished")
    with pytest.raises(logic.KeyRotationError, match="no key to rotate"):
        logic.stage({".next"})
