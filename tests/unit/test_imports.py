# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may import whom: imports run one way, and no files import each other in a circle."""

from __future__ import annotations

import ast
import functools
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLLECTION = "ansible_collections.muster.fleet."
UTILS = f"{COLLECTION}plugins.module_utils"
# Each package or file of module_utils, and the others that it may import.
LEAVES = {"basics", "paths"}
ARROWS: dict[str, set[str]] = {
    "basics": set(),
    "paths": set(),
    "node": LEAVES,
    "hardware": LEAVES,
    "slurm": LEAVES | {"node", "hardware"},
    "aws": LEAVES | {"node", "hardware", "observe"},
    "stack": LEAVES | {"node", "hardware"},
    "health": LEAVES | {"node", "hardware"},
    "containers": LEAVES | {"hardware"},
    "observe": LEAVES,
    "kubernetes": LEAVES | {"hardware"},
    "jobs": LEAVES | {"node", "hardware", "slurm", "aws", "stack", "health", "kubernetes"},
    "report": LEAVES | {"node", "hardware", "slurm", "aws", "stack", "health"},
}
# What each folder of Python must not import, by the beginning of the name.
FORBIDDEN = {
    "trainer": ("ansible", "localcloud", "tools", "tests"),
    "localcloud": ("ansible.", "trainer", "tools", "tests"),
    "localkube": ("ansible.", "trainer", "localcloud", "tools", "tests"),
    "tools": ("trainer", "tests"),
    "plugins": ("trainer", "localcloud", "localkube", "tools", "tests"),
}


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return COLLECTION + name if name.startswith("plugins.") else name


@functools.cache
def files(folder: str) -> dict[str, Path]:
    """Module name -> file, without tests."""
    return {module_name(path): path for path in sorted((ROOT / folder).rglob("*.py")) if "tests" not in path.parts}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a file imports anywhere, also inside its functions; `from package import module` counts as the module."""
    package = module_name(path).split(".")[: None if path.name == "__init__.py" else -1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found.update(f"{source}.{each.name}" if f"{source}.{each.name}" in known else source for each in node.names)
    return found


def part(name: str) -> str:
    return name.removeprefix(f"{UTILS}.").split(".")[0]


def test_packages_of_module_utils_import_only_those_below_them() -> None:
    known = files("plugins/module_utils")
    assert {part(name) for name in known} == set(ARROWS)
    wrong = [
        f"{name} imports {other}"
        for name, path in known.items()
        for other in sorted(imports(path, known))
        if other.startswith(UTILS) and part(other) not in ARROWS[part(name)] | {part(name)}
    ]
    assert not wrong


def test_module_utils_imports_only_itself_and_the_standard_library() -> None:
    known = files("plugins/module_utils")
    # AWS is called from the controller alone, which has boto3.
    extra = {"aws": {"boto3", "botocore"}, "kubernetes": {"kubernetes", "urllib3"}}
    wrong = [
        f"{name} imports {other}"
        for name, path in known.items()
        for other in sorted(imports(path, known))
        if not other.startswith(f"{UTILS}.") and other.split(".")[0] not in sys.stdlib_module_names | extra.get(part(name), set())
    ]
    assert not wrong


def test_packages_of_module_utils_load_nothing() -> None:
    """A module's archive has the __init__.py of each package on the way, with all that it imports."""
    for path in (ROOT / "plugins/module_utils").glob("*/__init__.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert len(body) == 1 and isinstance(body[0], ast.Expr), path


@pytest.mark.parametrize("folder", ["plugins", "trainer", "localcloud", "tools"])
def test_no_files_import_each_other_in_a_circle(folder: str) -> None:
    known = files(folder)
    graph = {name: {other for other in imports(path, known) if other in known} for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folders_import_nothing_that_stands_above_them(folder: str) -> None:
    known = files(folder)
    wrong = [
        f"{name} imports {other}"
        for name, path in known.items()
        for other in sorted(imports(path, known))
        if f"{other}.".startswith(FORBIDDEN[folder])
    ]
    assert not wrong
