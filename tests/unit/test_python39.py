# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The code that travels to a node is imported by Python 3.9, which Amazon Linux 2023 calls python3."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from amazon_linux import python39

ROOT = Path(__file__).parents[2]
PACKAGES = ("aws", "hardware", "health", "jobs", "node", "observe", "slurm", "stack")
IMPORT = """
import importlib, sys
assert sys.version_info[:2] == (3, 9), sys.version
for name in sys.argv[1:]:
    importlib.import_module("ansible_collections.muster.fleet.plugins.module_utils." + name)
print(len(sys.argv) - 1)
"""
COMPILE = """
import sys
for path in sys.argv[1:]:
    with open(path) as file:
        compile(file.read(), path, "exec")
print(len(sys.argv) - 1)
"""


@pytest.fixture(scope="module")
def python() -> str:
    prefix = python39()
    if prefix is None:
        pytest.skip("no Python 3.9 on this machine; name one in PYTHON39")
    return str(prefix / "bin/python3.9")


def run(python: str, program: str, names: list[str]) -> int:
    """Run a program that prints how many names it has dealt with."""
    env = {"PYTHONPATH": str(ROOT / "collections"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([python, "-c", program, *names], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_python_3_9_imports_everything_that_modules_import(python: str) -> None:
    utils = ROOT / "plugins/module_utils"
    names = sorted(f"{package}.{path.stem}" for package in PACKAGES for path in (utils / package).glob("*.py") if path.stem != "__init__")
    assert run(python, IMPORT, ["basics", *names]) > 40


def test_python_3_9_compiles_the_modules_and_the_programs_of_the_roles(python: str) -> None:
    """The modules themselves import Ansible, which has no version for this Python and the other Pythons of the tests."""
    assert run(python, COMPILE, [str(path) for path in [*ROOT.glob("plugins/modules/*.py"), *ROOT.glob("roles/*/files/*.py")]]) > 40
