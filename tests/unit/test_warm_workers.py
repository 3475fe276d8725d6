# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the parent has loaded no worker loads: files of filters and tests that workers import."""

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
  tasks:
    - ansible.builtin.debug:
        msg: "{{ [1] | map('string') | join | default('') | hash('sha1') | muster.fleet.components({}) }}"
      when: "'a' is match('a') and muster_no_such is not defined"
"""
# Ansible's own start, and what a worker had to import when it was done.
WRAPPER = """
import os, runpy, sys
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
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def imported(tmp_path: Path, callbacks: str) -> list[str]:
    (tmp_path / "play.yml").write_text(PLAY)
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
