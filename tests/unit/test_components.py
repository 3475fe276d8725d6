# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The component table: which hosts carry what, and that it fits the roles."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from component_table import NAMES, TABLE
from playbook import ROOT, run_playbook

from ansible_collections.muster.fleet.plugins.module_utils.stack.facts import WAYS


@pytest.fixture
def carried(tmp_path: Path):
    """Components of each host of an inventory of groups."""

    def ask(**groups: list[str]) -> dict[str, list[str]]:
        copied = {
            "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}.json",
            "content": "{{ group_names | muster.fleet.components(component_table) | to_json }}",
        }
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


def roles() -> dict[str, dict[str, Any]]:
    """What each role of nodes passes to phases."""
    mains = {path.parts[-3]: yaml.safe_load(path.read_text()) for path in ROOT.glob("roles/*/tasks/main.yml")}
    given = {name: tasks[-1].get("vars", {}) for name, tasks in mains.items()}
    return {name: variables for name, variables in given.items() if "phases_component" in variables}


def test_the_table_has_every_role_once_after_what_it_needs() -> None:
    assert sorted(NAMES) == sorted(roles())
    for number, entry in enumerate(TABLE):
        assert set(entry) <= {"name", "groups", "when", "after", "space", "alone", "stack"}, entry
        assert set(entry.get("after", [])) <= set(NAMES[:number]), f"{entry['name']} stands before what it needs"


def test_the_table_has_what_roles_take_from_the_stack() -> None:
    stack = {entry["name"]: set(entry.get("stack", {})) for entry in TABLE}
    assert len([name for names in stack.values() for name in names]) == len(set().union(*stack.values())), "one role each"
    for name, given in roles().items():
        taken = given.get("phases_components", [])
        if isinstance(taken, list):  # else it depends on the type
            assert set(taken) <= set().union(*stack.values()) and set(taken) & stack[name] == set(taken) - {"libfabric"}, name
    # stack_facts also reads what the kernel runs and what a container's torch brings, which are no components of a stack.
    assert set(WAYS) - {"running_kernel", "efa_driver", "gdrdrv", "torch", "torch_nccl"} <= set().union(*stack.values())
