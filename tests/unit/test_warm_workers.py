# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Workers do not load what the parent has loaded: files of filters and tests that workers import, and vars_files that get parsed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAY = """
- hosts: localhost
  gather_facts: false
  vars_files: [of_the_play.yml, "{{ 'named' }}.yml"]
  tasks:
    - ansible.builtin.debug:
        msg: "{{ [1] | map('string') | join | default('') | hash('sha1') | muster.fleet.components({}) }}"
      when: "'a' is match('a') and muster_no_such is not defined"
    - ansible.builtin.assert:
        that: of_the_play == 'text' and named == 'text'
"""
TASKS = 2
# Ansible's own start, and what a worker had to import when it was done.
WRAPPER = """
import os, runpy, sys
from ansible.parsing.dataloader import DataLoader
from ansible.executor.process.worker import WorkerProcess
run = WorkerProcess._run
def told(self):
    before = set(sys.modules)
    try:
        return run(self)
    finally:
        with open(os.environ["MUSTER_TEST_IMPORTED"], "a") as told:
            print(*sorted(set(sys.modules) - before), file=told)
WorkerProcess._run = told
load = DataLoader.load
def parsed(self, data, file_name="<string>", *others, **options):
    with open(os.environ["MUSTER_TEST_IMPORTED"], "a") as told:
        print("parsed", os.path.basename(file_name), file=told)
    return load(self, data, file_name, *others, **options)
DataLoader.load = parsed
import yaml
quick = yaml.load
def read(stream, Loader):
    if "muster.stack/1" in str(stream):
        with open(os.environ["MUSTER_TEST_IMPORTED"], "a") as told:
            print("stack", "parent" if os.getpid() == MAIN else "worker", file=told)
    return quick(stream, Loader)
MAIN = os.getpid()
yaml.load = read
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def imported(tmp_path: Path, callbacks: str, play: str = PLAY) -> list[str]:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "play.yml").write_text(play)
    for name in ("of_the_play", "named"):
        (tmp_path / f"{name}.yml").write_text(f"{name}: text\n")
    told = tmp_path / "imported"
    environment = {
        **os.environ,
        "MUSTER_TEST_IMPORTED": str(told),
        "ANSIBLE_CALLBACKS_ENABLED": callbacks,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }
    command = [
        sys.executable,
        "-c",
        WRAPPER,
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "localhost,",
        str(tmp_path / "play.yml"),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "callback" not in done.stderr.lower()
    return told.read_text().split()


def plugins(names: list[str]) -> list[str]:
    return [name for name in names if ".plugins.filter." in name or ".plugins.test." in name]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return imported(tmp_path_factory.mktemp("cold"), "muster.fleet.run_record")


def test_a_cold_worker_imports_them(without: list[str]) -> None:
    assert any(name.startswith("ansible.plugins.filter.") for name in plugins(without))
    assert "ansible_collections.muster.fleet.plugins.filter.components" in plugins(without)


def test_a_warm_worker_imports_none(tmp_path: Path) -> None:
    assert plugins(imported(tmp_path, "muster.fleet.warm_workers")) == []


def test_vars_files_are_parsed_once(tmp_path: Path, without: list[str]) -> None:
    warm = imported(tmp_path, "muster.fleet.warm_workers")
    cold = without.count("of_the_play.yml")
    assert without.count("named.yml") == warm.count("named.yml") == cold
    assert cold - warm.count("of_the_play.yml") == TASKS - 1, "each task but the first finds it parsed"


def test_a_vars_file_that_is_not_there_is_left_to_ansible(tmp_path: Path) -> None:
    warm = imported(tmp_path, "muster.fleet.warm_workers", PLAY.replace("of_the_play.yml", "gone.yml").replace("of_the_play", "named"))
    assert warm.count("named.yml") > 1


def test_stacks_are_read_before_the_first_worker(tmp_path: Path) -> None:
    play = (
        PLAY
        + """
    - ansible.builtin.debug:
        msg: "{{ lookup('muster.fleet.stack', 'aws-2026.11').name }} {{ lookup('muster.fleet.stack', 'debian-13').name }}"
"""
    )
    cold, warm = (imported(tmp_path / name, f"muster.fleet.{name}", play) for name in ("run_record", "warm_workers"))
    assert "worker" in cold
    assert "worker" not in warm
    assert "parent" in warm
