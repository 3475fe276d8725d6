# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The builder's key, which Packer's plugin leaves behind, is removed when ansible-playbook has ended, however it ended."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packer/ansible-playbook.sh"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script beside a stand-in of ansible-playbook that sees the key, waits and ends with 3."""
    program = tmp_path / ".venv/bin/ansible-playbook"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor last; do :; done\ncat "$last" 2>/dev/null\nsleep 0.5\nexit 3\n')
    program.chmod(0o755)
    (tmp_path / "packer").mkdir()
    copy = tmp_path / "packer" / SCRIPT.name
    copy.write_text(SCRIPT.read_text())
    copy.chmod(0o755)
    return copy


def gone(path: Path) -> bool:
    deadline = time.monotonic() + 5
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not path.exists()


def test_the_key_lives_as_long_as_the_run(script: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "ansible-key123", tmp_path / "mine"
    for each in (key, other):
        each.write_text("private")
    argv = [str(script), "-e", f"ansible_ssh_private_key_file={key}", "-e", f"x={other}", str(key)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (3, "private")
    assert gone(key)
    assert other.exists()


def test_a_killed_run_leaves_no_key(script: Path, tmp_path: Path) -> None:
    key = tmp_path / "ansible-key456"
    key.write_text("private")
    with subprocess.Popen([str(script), "-e", f"ansible_ssh_private_key_file={key}"]) as process:
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    assert gone(key)


def test_a_key_of_the_users_own_stays(script: Path, tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    key.write_text("private")
    subprocess.run([str(script), "-e", f"ansible_ssh_private_key_file={key}"], capture_output=True, check=False, timeout=20)
    time.sleep(1.5)
    assert key.exists()
