# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""playbooks/local_up.yml as a dry run. The engine is a stand-in without containers, which records the commands that it gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INVENTORY = """\
plugin: muster.fleet.local_fleet
cpus: 1
memory: "64"
engine: podman
reference: localhost/nodes:1
"""
PODMAN = """\
#!/bin/sh
echo "$*" >>"{folder}/asked"
case $1 in
info) echo '{info}' ;;
image) echo '[]' ;;
esac
"""


@pytest.fixture
def dry_run(tmp_path: Path):
    """A function that runs the playbook with --check, and returns how it ended and which commands the engine got."""
    info = {"version": {"Version": "4.3.1"}, "store": {"graphRoot": str(tmp_path)}, "host": {"security": {"rootless": False}}}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/podman").write_text(PODMAN.format(folder=tmp_path, info=json.dumps(info)))
    (tmp_path / "bin/podman").chmod(0o755)
    (tmp_path / "blue.local_fleet.yml").write_text(INVENTORY)

    def run(*more: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "-i", str(tmp_path / "blue.local_fleet.yml"), "playbooks/local_up.yml"]
        env = {
            **os.environ,
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "PWD": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        done = subprocess.run([*command, *more], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    return run


def test_a_dry_run_of_a_fleet_that_is_down_says_so_and_changes_nothing(dry_run, tmp_path: Path) -> None:
    done, asked = dry_run("--check", "-e", "muster_fleet=blue")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    nodes = "controller-1, compute-1, compute-2 of fleet blue"
    assert f"A dry run looks at the nodes, and {nodes} do not run; bring the fleet up first, without --check." in said, done.stdout
    # The playbook did not wait for nodes that are not there, and told the engine to make nothing.
    assert "Wait for the nodes" not in done.stdout
    assert {each.split()[0] for each in asked} <= {"info", "ps", "image", "images"}, asked
    assert not (tmp_path / "state/muster/blue/ssh").exists()
