# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The record of slow tests: a proof holds until one of its inputs changes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

SPEC = importlib.util.spec_from_file_location("proofs", Path(__file__).parents[1] / "proofs.py")
assert SPEC and SPEC.loader
proofs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(proofs)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    (tmp_path / "roles/slurm").mkdir(parents=True)
    (tmp_path / "roles/slurm/main.yml").write_text("a")
    one = {"name": "slurm", "inputs": ["roles/slurm/**"], "command": ["sh", "-c", "echo run >>ran; ! test -e broken"]}
    (tmp_path / "proofs.json").write_text(json.dumps({"schema": "muster.proofs/1", "proofs": [one]}))
    return tmp_path


def call(checkout: Path, *argv: str) -> int:
    code: int = proofs.main(list(argv), checkout / "proofs.json", checkout)
    return code


def record(checkout: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkout / "proofs.json").read_text())["proofs"][0]
    return found


def test_a_proof_holds_until_an_input_changes(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(checkout, "check") == 1
    assert "proof slurm was never run" in capsys.readouterr().out
    assert call(checkout, "run") == 0
    assert call(checkout, "check") == 0
    assert call(checkout, "run") == 0
    assert (checkout / "ran").read_text() == "run\n"
    (checkout / "roles/slurm/__pycache__").mkdir()
    (checkout / "roles/slurm/__pycache__/x").write_text("ignored by git")
    assert call(checkout, "check") == 0
    (checkout / "roles/slurm/more.yml").write_text("b")
    assert call(checkout, "check") == 1
    assert "is older than its inputs" in capsys.readouterr().out


def test_shared_inputs_are_inputs(checkout: Path) -> None:
    document = json.loads((checkout / "proofs.json").read_text())
    document["shared"] = {"role": ["roles/phases/*"]}
    document["proofs"][0]["inputs"].append("@role")
    (checkout / "proofs.json").write_text(json.dumps(document))
    (checkout / "roles/phases").mkdir()
    (checkout / "roles/phases/main.yml").write_text("a")
    assert call(checkout, "run") == 0
    assert call(checkout, "check") == 0
    (checkout / "roles/phases/main.yml").write_text("b")
    assert call(checkout, "check") == 1


def test_a_proof_that_could_not_be_run_does_not_hold(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((checkout / "proofs.json").read_text())
    document["proofs"][0]["command"] = ["sh", "-c", "exit 75"]
    (checkout / "proofs.json").write_text(json.dumps(document))
    assert call(checkout, "run") == 1
    assert record(checkout)["result"] == "not_run"
    assert call(checkout, "check") == 1
    assert "proof slurm could not be run on" in capsys.readouterr().out


def test_a_failed_proof_is_recorded_and_does_not_hold(checkout: Path) -> None:
    (checkout / "broken").touch()
    assert call(checkout, "run") == 1
    assert record(checkout)["result"] == "failed"
    assert call(checkout, "check") == 1
    (checkout / "broken").unlink()
    assert call(checkout, "run", "slurm") == 0
    assert set(record(checkout)) == {"name", "inputs", "command", "inputs_sha256", "date", "seconds", "result"}


def test_a_glob_without_files_is_an_error(checkout: Path) -> None:
    (checkout / "roles/slurm/main.yml").unlink()
    with pytest.raises(SystemExit, match=r"no file matches the input roles/slurm/\*\*"):
        call(checkout, "check")


def test_an_unknown_proof_is_named(checkout: Path) -> None:
    with pytest.raises(SystemExit, match="There is no proof slum; there are: slurm"):
        call(checkout, "run", "slum")
