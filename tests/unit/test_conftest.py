# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What plain pytest collects, what it leaves out and says, and what stays behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.engine
def test_container(artifacts):
    folder = artifacts.folder("runs")
    (folder / "run.txt").write_text("kept")
    thing = folder.parent.parent / "container"
    artifacts.leave(f"container {thing}", lambda: thing.unlink(missing_ok=True))
    assert not thing.exists()
    thing.write_text("")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout in small: the real conftest.py, one test file and one of Molecule's."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -ra --strict-markers\n")
    (tmp_path / "conftest.py").symlink_to(ROOT / "conftest.py")
    (tmp_path / "test_it.py").write_text(TESTS)
    molecule = tmp_path / "roles/slurm/molecule/default/tests"
    molecule.mkdir(parents=True)
    (molecule / "test_node.py").write_text("def test_node(): pass\n")
    links = tmp_path / "collections/ansible_collections"
    links.mkdir(parents=True)
    (links / "roles").symlink_to(tmp_path / "roles")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def run(project: Path, *args: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *args]
    env = {"TMPDIR": str(project / "tmp"), "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""}
    ended = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def test_plain_run_names_what_it_leaves_out(project: Path) -> None:
    output = run(project, ".")
    assert "1 passed, 1 deselected" in output
    assert "Left out: 1 tests that need a container engine; `pytest --engine` runs them." in output


def test_molecule_names_its_files_itself(project: Path) -> None:
    assert "1 passed" in run(project, "roles/slurm/molecule/default/tests/test_node.py")


def test_nothing_stays(project: Path) -> None:
    output = run(project, "--engine", ".")
    assert "2 passed" in output and "Left out" not in output and "Kept" not in output
    assert list((project / "tmp").iterdir()) == []


def test_what_a_killed_run_left_goes_first(project: Path) -> None:
    (project / "tmp" / "container").write_text("of a run that was killed")
    run(project, "--engine", ".")
    assert not (project / "tmp" / "container").exists()


def test_two_runs_do_not_share_a_thing(project: Path) -> None:
    container = project / "tmp" / "container"
    container.write_text("of the other run")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0muster-tests container {container}")
        output = run(project, "--engine", ".", code=1)
    assert f"Another test run on this machine uses container {container}: wait for its end." in output
    assert container.read_text() == "of the other run"


def test_two_files_of_one_run_share_a_thing(project: Path) -> None:
    (project / "test_second.py").write_text(TESTS)
    assert "4 passed" in run(project, "--engine", ".")


def test_artifacts_are_kept_and_named(project: Path) -> None:
    kept, container = project / "kept", project / "container"
    output = run(project, "--engine", "--keep-artifacts=kept", ".")
    assert (kept / "runs/run.txt").read_text() == "kept"
    assert container.exists()
    assert f"Kept: files in {kept}" in output and f"Kept: container {container}" in output


def test_this_checkout_collects_no_test_of_a_node() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "roles", "collections"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, ended.stdout
