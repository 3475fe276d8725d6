# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""One run at a time changes a fleet; the lock ends with its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.action.fleet_lock import playbooks
from ansible_collections.muster.fleet.plugins.plugin_utils import fleet_lock as logic


@pytest.fixture
def other():
    """A process of somebody else."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_second_run_is_refused_and_says_for_whom_it_waits(tmp_path: Path, other: subprocess.Popen) -> None:
    logic.take(tmp_path / "fleet", "blue", other.pid, "ansible-playbook site.yml")
    with pytest.raises(
        logic.Held, match=rf"^Fleet blue is being changed by ansible-playbook site.yml of \S+ \(process {other.pid} on "
    ) as error:
        logic.take(tmp_path / "fleet", "blue", os.getpid(), "ansible-playbook playbooks/provision.yml")
    assert str(error.value).endswith("; wait for its end.")
    # The same process may ask again.
    logic.take(tmp_path / "fleet", "blue", other.pid, "ansible-playbook site.yml")
    assert (tmp_path / "fleet").stat().st_mode & 0o777 == 0o700


def test_the_lock_of_a_run_that_ended_is_free(tmp_path: Path, other: subprocess.Popen) -> None:
    logic.take(tmp_path, "blue", other.pid, "a")
    other.kill()
    other.wait()
    logic.take(tmp_path, "blue", os.getpid(), "b")
    assert json.loads((tmp_path / logic.FILE).read_text())["what"] == "b"


def test_a_process_that_got_the_number_of_another_holds_nothing(tmp_path: Path, other: subprocess.Popen) -> None:
    logic.take(tmp_path, "blue", other.pid, "a")
    holder = json.loads((tmp_path / logic.FILE).read_text())
    (tmp_path / logic.FILE).write_text(json.dumps({**holder, "born": "1"}))
    logic.take(tmp_path, "blue", os.getpid(), "b")


def test_a_holder_on_another_machine_cannot_be_seen(tmp_path: Path) -> None:
    logic.take(tmp_path, "blue", os.getpid(), "a")
    holder = json.loads((tmp_path / logic.FILE).read_text())
    (tmp_path / logic.FILE).write_text(json.dumps({**holder, "host": "elsewhere"}))
    with pytest.raises(logic.Held, match=f"or remove {tmp_path}/run.lock if elsewhere no longer runs it"):
        logic.take(tmp_path, "blue", os.getpid(), "b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_file_is_no_lock(tmp_path: Path, text: str) -> None:
    (tmp_path / logic.FILE).write_text(text)
    logic.take(tmp_path, "blue", os.getpid(), "b")


def test_only_playbooks_of_the_command_line_are_told() -> None:
    argv = ["/x/ansible-playbook", "site.yml", "-e", "password=a.yml", "-e", "@secret.yml", "-i", "hosts", "playbooks/train.yml"]
    assert playbooks(argv) == ["/x/ansible-playbook", "site.yml", "playbooks/train.yml"]
