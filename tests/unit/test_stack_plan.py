# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a playbook says of a stack before it installs anything: refusals of all hosts, and one warning of what only HTTPS vouches for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from playbook import run_playbook

ROOT = Path(__file__).parents[2]
WARNING = "[WARNING]: Only HTTPS vouches for the key "


@pytest.fixture
def plan(tmp_path: Path):
    """Runs playbooks/tasks/plan.yml for hosts of a system: plan("Ubuntu", "24.04", {host: variables}) -> (passed hosts, output)."""

    def run(name: str, version: str, hosts: dict[str, dict[str, Any]], **extra: Any) -> tuple[set[str], str]:
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "muster_stack_name": "aws-2026.11"}
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"vars": local, "hosts": hosts}}))
        facts = {"distribution": name, "distribution_version": version, "distribution_major_version": version.split(".", maxsplit=1)[0]}
        facts |= {"os_family": "Debian", "architecture": "x86_64"}
        tasks = [
            {"ansible.builtin.set_fact": {**facts, **{f"ansible_{key}": value for key, value in facts.items()}, "cacheable": True}},
            {"ansible.builtin.include_tasks": str(ROOT / "playbooks/tasks/plan.yml")},
            {"ansible.builtin.file": {"path": str(tmp_path / "{{ inventory_hostname }}.passed"), "state": "touch", "mode": "0600"}},
        ]
        table = str(ROOT / "playbooks/vars/components.yml")
        play = {"hosts": "all", "gather_facts": False, "vars_files": [table], "tasks": tasks}
        (tmp_path / "play.yml").write_text(json.dumps([play]))
        done = run_playbook(tmp_path, "-i", tmp_path / "hosts.json", tmp_path / "play.yml", "-e", json.dumps(extra))
        return {path.stem for path in tmp_path.glob("*.passed")}, done.stdout + done.stderr

    return run


LUSTRE = {"muster_components": ["common", "efa", "lustre_client"]}


def test_what_only_https_vouches_for_is_warned_about_once(plan) -> None:
    passed, said = plan("Ubuntu", "24.04", {"one": LUSTRE, "two": LUSTRE, "controller": {"muster_components": ["common", "slurm"]}})
    assert passed == {"one", "two", "controller"}
    assert said.count(WARNING) == 1


def test_a_site_that_wants_signatures_refuses_it_and_nothing_is_installed_anywhere(plan) -> None:
    hosts = {"one": LUSTRE, "controller": {"muster_components": ["common", "slurm"]}}
    passed, said = plan("Ubuntu", "24.04", hosts, muster_require_signed=True)
    assert passed == set()
    assert "muster_require_signed is true, and only HTTPS vouches for the key https://fsx-lustre-client-repo-public-keys." in " ".join(
        said.split()
    )
    assert WARNING not in said


def test_all_refusals_of_a_host_are_said_at_once(plan) -> None:
    passed, said = plan("Debian", "13", {"one": {"muster_components": ["common", "lustre_client", "neuron", "efa"]}})
    assert passed == set()
    for component in ("lustre_client", "neuron"):
        assert f"{component} " in said and "is refused on debian13" in said
    assert "Neuron has no packages for Debian." in said and "FSx for Lustre has no client packages" in said


def test_a_role_that_installs_less_than_the_table_says_is_not_refused(plan, tmp_path: Path) -> None:
    """cloud_tools asks for the tools that cloud_tools_names names."""
    own = tmp_path / "own.yml"
    own.write_text("schema: muster.stack/1\nname: own\nextends: aws-2026.11\nhelm: null\n")
    hosts = {
        "some": {"muster_components": ["cloud_tools"], "cloud_tools_names": ["kubectl"]},
        "other": {"muster_components": ["common"]},
    }
    passed, said = plan("Debian", "13", hosts, muster_stack_name=str(own))
    assert passed == {"some", "other"}, said
    for path in tmp_path.glob("*.passed"):
        path.unlink()
    passed, said = plan("Debian", "13", {"all_of_them": {"muster_components": ["cloud_tools"]}}, muster_stack_name=str(own))
    assert passed == set() and "Stack own has no helm." in said
