# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Rules of all test runs: which tests need a container engine, and what may remain."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Molecule runs its own tests on a node; without one they would test the developer's machine.
# collections/ links to the same files again.
collect_ignore_glob = ["roles/*/molecule/*", "collections/*", "runs", "dist"]

# Ansible, which tests start, refuses a locale that is not UTF-8.
os.environ["LC_ALL"] = "C.UTF-8"

LEFT_OUT = pytest.StashKey[int]()
KEPT = pytest.StashKey[list[str]]()


class Artifacts:
    """What tests create outside of Python: files in `folder(name)`, and everything that `leave` knows how to remove."""

    def __init__(self, folder: Path, keep: bool) -> None:
        self._folder = folder
        self._left: list[tuple[str, Callable[[], object]]] = []
        self._claims: dict[str, socket.socket] = {}
        self.keep = keep

    def folder(self, name: str) -> Path:
        """An empty folder for one test's files, such as its runs."""
        path = self._folder / name
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        return path

    def leave(self, what: str, remove: Callable[[], object]) -> None:
        """At the end of the tests `remove` is called, or `what` is printed when artifacts are kept. Call it before creating the thing.

        `remove` is also called now, for the remains of a run that was killed, so it must work when there is nothing to remove. It is an
        error when another run uses `what`; two test files of one run may both name it.
        """
        if what not in self._claims:
            claim = self._claims[what] = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0muster-tests {what}")  # a name without a file, which ends with this process
            except OSError:
                del self._claims[what]
                raise RuntimeError(f"Another test run on this machine uses {what}: wait for its end.") from None
        remove()
        self._left.append((what, remove))

    def end(self) -> list[str]:
        """Remove everything, latest first, and return [], or what stays when artifacts are kept. Tries all removals before it raises."""
        if self.keep:
            return [f"files in {self._folder}", *(what for what, _ in self._left)]
        errors = []
        for what, remove in reversed(self._left):
            try:
                remove()
            except Exception as error:
                error.add_note(f"while removing {what}")
                errors.append(error)
        shutil.rmtree(self._folder)
        if errors:
            raise ExceptionGroup("could not remove what the tests made", errors)
        return []


@pytest.fixture(scope="session")
def artifacts(request: pytest.FixtureRequest) -> Iterator[Artifacts]:
    """The Artifacts of this test run."""
    kept = request.config.getoption("--keep-artifacts")
    folder = Path(kept).resolve() if kept else Path(tempfile.mkdtemp(prefix="muster-tests-"))
    folder.mkdir(parents=True, exist_ok=True)
    made = Artifacts(folder, keep=bool(kept))
    yield made
    request.config.stash[KEPT] = made.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("muster")
    group.addoption("--engine", action="store_true", help="also run the tests that need podman or docker")
    group.addoption("--release", default="trixie", help="Debian release of the node that all roles are tested on")
    group.addoption("--keep-artifacts", metavar="DIR", help="keep containers, images and run folders, the files in DIR, and print where")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine: needs podman or docker; left out without --engine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--engine"):
        return
    left_out = [item for item in items if item.get_closest_marker("engine")]
    config.stash[LEFT_OUT] = len(left_out)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"Left out: {left_out} tests that need a container engine; `pytest --engine` runs them.")
    for kept in config.stash.get(KEPT, []):
        terminalreporter.write_line(f"Kept: {kept}")
