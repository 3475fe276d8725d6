# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The package's imports, also those inside functions: no circles, and nothing of Ansible."""

import ast
import importlib
import os
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import trainer

PACKAGE = Path(__file__).parents[1]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_of(path): path for path in PACKAGE.rglob("*.py") if PACKAGE / "tests" not in path.parents}


def imported(path: Path) -> set[str]:
    """The full names of all modules that a file imports. `from a import b` imports a.b if that is a module, else a."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path} has a relative import: write the full name"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in PATHS else node.module for name in names}
    return found


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter({name: imported(path) & PATHS.keys() for name, path in PATHS.items()}).prepare()  # raises CycleError


def test_nothing_of_ansible_is_imported() -> None:
    for name, path in PATHS.items():
        assert not [other for other in imported(path) if other.split(".")[0] in ("ansible", "ansible_collections")], name


def test_the_commands_are_imported_by_nobody() -> None:
    assert [name for name, path in PATHS.items() if "trainer.__main__" in imported(path)] == []


def test_a_gpus_memory_has_segments_that_grow_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reads the variable when it is imported, and estimate reserves less because of it."""
    for theirs in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None):
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)
        if theirs:
            monkeypatch.setenv(theirs, "max_split_size_mb:64")
        importlib.reload(trainer)
        found = {name: os.environ[name] for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if name in os.environ}
        assert found == ({theirs: "max_split_size_mb:64"} if theirs else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
