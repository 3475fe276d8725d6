# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What pip, ansible-galaxy and a clone give people, and that the lock files match their sources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COLLECTION = "ansible_collections/muster/fleet"
DOCUMENTED = {"modules": "module", "inventory": "inventory", "callback": "callback", "filter": "filter", "lookup": "lookup"}


def call(*argv: str, cwd: Path = ROOT, **env: str) -> str:
    command = [str(BIN / argv[0]), *argv[1:]]
    ended = subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("muster-*.whl"))


def test_wheel_brings_the_collection(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[3] for name in names if name.startswith(COLLECTION)} == {
        "galaxy.yml",
        "meta",
        "playbooks",
        "plugins",
        "roles",
        "stacks",
    }
    assert [name for name in names if "molecule" in name or "/tests/" in name] == []
    call("pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel))
    assert str(tmp_path) in call("ansible-doc", "-t", "module", "muster.fleet.check_vars", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    tasks = call("ansible-playbook", "--list-tasks", "-i", "localhost,", "muster.fleet.provision", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "Run the role of each component" in tasks


def test_the_tarball_is_only_the_collection(tmp_path: Path) -> None:
    call("ansible-galaxy", "collection", "build", "--output-path", str(tmp_path))
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as tarball:
        names = tarball.getnames()
    assert {name.split("/")[0] for name in names} <= {
        *("FILES.json", "MANIFEST.json", "README.md", "CONTRIBUTING.md", "LICENSE", "LICENSES", "CHANGELOG.md", "changelogs"),
        *("docs", "meta", "playbooks", "plugins", "recipes", "roles", "stacks", "tests"),
    }
    assert {name for name in names if name.startswith("tests/")} <= {"tests/config.yml", "tests/sanity", "tests/sanity/run.sh"}
    assert [name for name in names if "molecule" in name or "__pycache__" in name] == []


def test_a_clone_runs_without_configuration(tmp_path: Path) -> None:
    assert "Open the run folder" in call("ansible-playbook", "--list-tasks", str(ROOT / "site.yml"), "-i", "localhost,", cwd=tmp_path)


def test_editable_install_copies_nothing() -> None:
    site_packages = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    copied = [path for path in site_packages.glob(f"{COLLECTION}/**/*") if path.is_file() and "__pycache__" not in path.parts]
    assert copied == []


@pytest.mark.parametrize(("folder", "kind"), DOCUMENTED.items())
def test_every_plugin_is_documented(folder: str, kind: str) -> None:
    # A Python file that holds several filters documents none of them; each has a YAML file of its own.
    plugins = sorted((ROOT / "plugins" / folder).glob("*.*"))
    files = {path.stem for path in plugins if path.suffix == ".yml" or "\nDOCUMENTATION = " in path.read_text()}
    listed = json.loads(call("ansible-doc", "-t", kind, "--list", "--json", "muster.fleet"))
    assert {name.removeprefix("muster.fleet.") for name in listed} == files
    described = json.loads(call("ansible-doc", "-t", kind, "--json", *listed))
    assert all(plugin["doc"]["short_description"] for plugin in described.values())
    assert kind == "callback" or all(plugin["examples"] for plugin in described.values())


def test_every_role_has_specs() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir() if (path / "tasks").is_dir()}
    listed = json.loads(call("ansible-doc", "-t", "role", "--list", "--json", "muster.fleet"))
    assert {name.removeprefix("muster.fleet.") for name in listed} == roles


def test_requirements_are_those_of_the_lock() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {(package["name"], package["version"]) for package in lock}
    # The proof of the oldest torch has its own file, because uv.lock holds only the newest.
    # The tools of the documentation site share nothing with other environments.
    # Frameworks of recipes stand beside the trainer's torch in environments of their own.
    # SageMaker's SDK runs in the environment of its proof, and asks for more than that proof uses.
    own = {
        ROOT / f"requirements/{name}.txt"
        for name in (
            "torch-2.11",
            "docs",
            "sagemaker-local",
            "recipe-torchtitan",
            "recipe-mosaicml",
            "recipe-megatron-core",
            "recipe-nemo-run",
        )
    }
    for requirements in set((ROOT / "requirements").glob("*.txt")) - own:
        pinned = set(re.findall(r"^([a-z0-9._-]+)==(\S+)", requirements.read_text(), re.MULTILINE))
        assert pinned and pinned <= locked, f"{requirements.name} is not from uv.lock; run `make lock`"
    metadata = next(package for package in lock if package["name"] == "muster")["metadata"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = sorted(re.split("[<>= ;]", each)[0] for requirements in extras.values() for each in requirements)
    assert sorted(each["name"] for each in metadata["requires-dist"]) == wanted, "uv.lock is not from pyproject.toml; run `make lock`"
