# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A node that takes connections and says nothing: the run goes on without it within the time that ansible.cfg sets, and names it."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SECONDS = 3


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a listener that accepts nothing: the kernel completes the connection, and no byte ever comes. So does a frozen node."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.skipif(not shutil.which("ssh"), reason="not_run: there is no ssh")
def test_a_node_that_hangs_costs_the_time_of_one_connection_and_is_named(tmp_path: Path, silent: int) -> None:
    hung = {"ansible_host": "127.0.0.1", "ansible_port": silent, "ansible_user": "root"}
    well = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"hung-1": hung, "well-1": well}}}))
    tasks = [
        {"name": "Reach the node", "ansible.builtin.ping": {}},
        {"name": "Go on", "ansible.builtin.debug": {"msg": "went on with {{ ansible_play_hosts | join(',') }}"}},
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml")]
    # The settings of this collection, with a shorter time than its own. Other connections must not be shared.
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_TIMEOUT": str(SECONDS), "ANSIBLE_HOME": str(tmp_path)}
    env["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(tmp_path)
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    seconds = time.monotonic() - began
    assert done.returncode == 4, done.stdout + done.stderr
    assert re.search(r"hung-1.*UNREACHABLE", done.stdout), done.stdout
    assert "timed out" in done.stdout, done.stdout
    assert "went on with well-1" in done.stdout
    # Ansible itself takes some seconds to start, many of them on a busy machine.
    assert seconds < SECONDS + 60


def test_ansible_cfg_bounds_the_time_that_a_node_may_be_silent() -> None:
    """`timeout` is for a connection that is being made. One that was made ends after ServerAliveCountMax (3) silent intervals."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "ansible.cfg")
    assert 1 <= config.getint("defaults", "timeout") <= 30
    args = dict(re.findall(r"-o (\w+)=(\S+)", config["ssh_connection"]["ssh_args"]))
    interval, most = int(args.get("ServerAliveInterval", 0)), int(args.get("ServerAliveCountMax", 3))
    assert 1 <= interval * most <= 60
