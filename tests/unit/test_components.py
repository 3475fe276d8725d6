# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a host carries by its groups, by the table of the playbooks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from playbook import ROOT, run_playbook


@pytest.fixture
def carried(tmp_path: Path):
    """Components of each host of an inventory of groups."""

    def ask(**groups: list[str]) -> dict[str, list[str]]:
        copied = {"dest": f"{tmp_path}/{{{{ inventory_hostname }}}}.json", "content": "{{ __stack_wanted | to_json }}"}
        play = {
            "hosts": "all",
            "connection": "local",
            "gather_facts": False,
            "vars": {"ansible_python_interpreter": sys.executable},
            "vars_files": [str(ROOT / "playbooks/vars/components.yml")],
            "tasks": [{"ansible.builtin.copy": copied}],
        }
        (tmp_path / "play.json").write_text(json.dumps([play]))
        inventory = {group: {"hosts": dict.fromkeys(hosts)} for group, hosts in groups.items()}
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": inventory}}))
        done = run_playbook(tmp_path, "-i", tmp_path / "hosts.json", tmp_path / "play.json")
        assert done.returncode == 0, done.stdout + done.stderr
        return {host: json.loads((tmp_path / f"{host}.json").read_text()) for hosts in groups.values() for host in hosts}

    return ask


def test_pyxis_is_everywhere_where_somebody_has_gpus(carried) -> None:
    """Slurm's controller tells all nodes of it; a fleet without GPUs has none."""
    fleet = {"muster_controller": ["c"], "muster_login": ["l"], "muster_compute": ["n"]}
    with_gpus = carried(**fleet, muster_gpu=["n"])
    assert [host for host, found in with_gpus.items() if "enroot_pyxis" in found] == ["c", "l", "n"]
    assert ("cuda" in with_gpus["n"], "cuda" in with_gpus["c"]) == (True, False)
    assert {host for host, found in carried(**fleet).items() if "enroot_pyxis" in found} == set()
