# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""docs/add_a_role.md, followed word by word in a copy of the checkout: its files are enough for playbooks, disk space, docs and tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.filter.components import components

ROOT = Path(__file__).parents[2]
TABLE = "playbooks/vars/components.yml"
FILES = re.compile(r"^`(\S+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Checkout:
    """A copy of this checkout, and commands in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip("\0")
        here = "\0".join(name for name in names.split("\0") if (ROOT / name).is_symlink() or (ROOT / name).exists())
        copy = ["cp", "--parents", "--no-dereference", "--target-directory", str(root)]
        subprocess.run(["xargs", "-0", *copy], input=here, text=True, cwd=ROOT, check=True)

    def run(self, *words: str | Path) -> tuple[str, int]:
        env = os.environ | {"PYTHONPATH": str(self.root / "collections"), "PWD": str(self.root), "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(
            [*map(str, words)], cwd=self.root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr, done.returncode

    def play(self, *phases: str) -> str:
        """A dry run of a playbook on this machine as a node that carries the role; its package is one that every system has."""
        hosts = {"here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}}
        (self.root / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        asked = json.dumps({"muster_phases": phases, "muster_components": ["hello"], "hello_packages": ["bash"]})
        playbook = Path(sys.executable).parent / "ansible-playbook"
        return self.run(playbook, "--check", "-i", "hosts.json", "playbooks/stack.yml", "-e", asked)[0]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    for name, text in FILES.findall((ROOT / "docs/add_a_role.md").read_text()):
        path = made.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + text if name == TABLE else text)
    assert made.run(sys.executable, "tools/role_readmes.py") == ("", 0)
    return made


def test_its_groups_carry_it_in_the_order_of_the_table(checkout: Checkout) -> None:
    table = yaml.safe_load((checkout.root / TABLE).read_text())["component_table"]
    carried = components(["muster_login"], table)
    assert "hello" in carried and carried.index("slurm") < carried.index("hello")
    assert "hello" not in components(["muster_compute"], table)


def test_a_playbook_runs_its_phases(checkout: Checkout) -> None:
    said = checkout.play("install", "verify_image")
    for task in ("install | Install the packages", "verify_image | Check the program"):
        assert f"TASK [muster.fleet.hello : {task}]" in said, said


def test_its_disk_space_is_asked_for(checkout: Checkout) -> None:
    table = checkout.root / TABLE
    before = table.read_text()
    table.write_text(before.replace("space: 1\n", "space: 1000000000\n"))
    said = " ".join(checkout.play("install").split())
    table.write_text(before)
    assert "hello together need 1000000000 MiB on /" in said, said


def test_its_scenario_is_a_proof(checkout: Checkout) -> None:
    for words in (["init", "--quiet"], ["add", "."]):
        assert checkout.run("git", *words)[1] == 0
    assert "proof molecule-hello was never run" in checkout.run(sys.executable, "tests/proofs.py", "check")[0]


def test_docs_and_tests_accept_it(checkout: Checkout) -> None:
    assert "| `hello_greeting` |" in (checkout.root / "roles/hello/README.md").read_text()
    assert "[hello](hello/README.md)" in (checkout.root / "roles/README.md").read_text()
    tests = [f"tests/unit/test_{name}.py" for name in ("components", "packer_plan", "role_checks", "role_readmes", "stack_facts")]
    tests.append("tests/unit/test_lookups.py::test_what_an_install_reads_is_among_its_inputs")
    said, code = checkout.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert code == 0, said
