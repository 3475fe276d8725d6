# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Files of the stack are fetched while a node is at work with something else."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from download_server import ARCHIVE, SHA256
from playbook import run_playbook

PATHS = ("/a/gdrcopy.tar.gz", "/a/pyxis.tar.gz")


class Late(dict):
    """Files that a server gives out when another file is there, or after half a minute."""

    until: Path

    def __getitem__(self, path: str) -> bytes:
        deadline = time.monotonic() + 30
        while not self.until.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return super().__getitem__(path) if self.until.exists() else b"too late"


@pytest.fixture
def play(server, tmp_path: Path):
    """Begins to fetch, writes a file meanwhile, and copies one that was begun; the results of the first and the last task."""
    server.files = Late(dict.fromkeys(PATHS, ARCHIVE))
    server.files.until = tmp_path / "meanwhile"
    at = f"http://127.0.0.1:{server.server_address[1]}"
    components = {name: {"version": "1", "sources": [{"url": f"{at}/a/{name}.tar.gz", "sha256": SHA256[:-1] + end}]} for name, end in ENDS}
    stack = {"schema": "muster.stack/1", "name": "site", "extends": "debian-13", **components}
    (tmp_path / "site.yml").write_text(json.dumps(stack))
    facts = {"distribution": "Debian", "distribution_major_version": "13", "architecture": "x86_64", "cacheable": True}
    tasks = [
        {"ansible.builtin.set_fact": facts},
        {"muster.fleet.fetch_ahead": {"roles": ["common", "docker", "gdrcopy", "enroot_pyxis", "neuron"]}, "register": "ahead"},
        {"ansible.builtin.copy": {"content": "{{ ahead | to_json }}", "dest": f"{tmp_path}/meanwhile"}, "check_mode": False},
        {
            "muster.fleet.download": {"source": {"kind": "url", "url": f"{at}{PATHS[0]}", "sha256": SHA256}, "dest": f"{tmp_path}/node"},
            "when": "not ansible_check_mode",
        },
    ]
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "muster_cache_dir": str(tmp_path / "cache"),
        "muster_stack_name": str(tmp_path / "site.yml"),
    }
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": tasks}]))

    def run(*options: str) -> dict:
        done = run_playbook(tmp_path, *options, "-i", "localhost,", tmp_path / "play.yml")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "meanwhile").read_text())

    return run


# The second one is not what the stack says, which is the business of the role that needs it.
ENDS = (("gdrcopy", SHA256[-1]), ("pyxis", "0" if SHA256[-1] != "0" else "1"))


def test_a_role_s_file_comes_while_others_work(play, server, tmp_path: Path) -> None:
    assert [url.rsplit("/", 1)[1] for url in play()["begun"]] == ["gdrcopy.tar.gz", "pyxis.tar.gz"]
    assert (tmp_path / "node").read_bytes() == ARCHIVE
    assert server.asked[PATHS[0]] == 1, "it was fetched twice"


def test_what_is_here_is_not_fetched_and_a_dry_run_fetches_nothing(play, server, tmp_path: Path) -> None:
    assert len(play("--check")["begun"]) == 2
    assert not server.asked
    play()
    assert [url.rsplit("/", 1)[1] for url in play()["begun"]] == ["pyxis.tar.gz"]
    assert server.asked[PATHS[0]] == 1
