# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The inventory of the local fleet, through Ansible's own loader: before the fleet is up, while it is, and with bad options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inventory(tmp_path: Path):
    """Run ansible-inventory on a local_fleet.yml with the given options; return the finished process."""

    def run(options: str = "", *args: str) -> subprocess.CompletedProcess:
        path = tmp_path / "local_fleet.yml"
        path.write_text(f"plugin: muster.fleet.local_fleet\n{options}")
        program = "from ansible.cli.inventory import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, "--list", "-i", str(path), *args],
            cwd=ROOT,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def hosts(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_record(tmp_path: Path, fleet: str, **more: str) -> None:
    state = tmp_path / "state/muster" / fleet
    state.mkdir(parents=True)
    nodes = [
        {"name": "controller-1", "groups": ["muster_controller"], "address": "10.213.1.2", "cpus": 1.0, "memory_mib": 2048},
        {"name": "compute-1", "groups": ["muster_compute", "extra"], "address": "10.213.1.3", "cpus": 2.0, "memory_mib": 4096, **more},
    ]
    engine = {"name": "podman", "version": "4.3.1", "cgroup": "v2"}
    (state / "fleet.json").write_text(json.dumps({"engine": engine, "image": {"name": "image:1"}, "nodes": nodes}))


def test_hosts_are_known_before_the_fleet_is_up(inventory, tmp_path: Path) -> None:
    found = hosts(inventory("compute: 3\nlogin: 1\n"))
    assert found["muster_controller"]["hosts"] == ["controller-1"]
    assert found["muster_compute"]["hosts"] == ["compute-1", "compute-2", "compute-3"]
    assert found["muster_login"]["hosts"] == ["login-1"]
    values = found["_meta"]["hostvars"]["compute-3"]
    assert "ansible_host" not in values
    assert values["ansible_ssh_private_key_file"] == f"{tmp_path}/state/muster/local/ssh/id_ed25519"
    assert f"UserKnownHostsFile={tmp_path}/state/muster/local/ssh/known_hosts" in values["ansible_ssh_common_args"]
    assert "StrictHostKeyChecking" not in values["ansible_ssh_common_args"]
    assert (values["ansible_user"], values["ansible_become"]) == ("root", False)
    assert (values["muster_fleet"], values["muster_local"]["compute"], values["muster_local_engine"]) == ("local", 3, None)


def test_a_fleet_that_is_up_comes_from_its_record(inventory, tmp_path: Path) -> None:
    write_record(tmp_path, "local")
    found = hosts(inventory("compute: 3\n"))
    assert found["muster_compute"]["hosts"] == found["extra"]["hosts"] == ["compute-1"]
    values = found["_meta"]["hostvars"]["compute-1"]
    assert (values["ansible_host"], values["muster_cpus"], values["muster_memory_mib"]) == ("10.213.1.3", 2.0, 4096)
    assert (values["muster_image"], values["muster_local_engine"]["version"]) == ("image:1", "4.3.1")


def test_extra_variable_names_another_fleet(inventory, tmp_path: Path) -> None:
    write_record(tmp_path, "other")
    found = hosts(inventory("", "-e", "muster_fleet=other"))
    assert found["_meta"]["hostvars"]["compute-1"]["muster_fleet"] == "other"
    assert found["_meta"]["hostvars"]["compute-1"]["ansible_host"] == "10.213.1.3"


def test_name_may_be_a_template(inventory) -> None:
    found = hosts(inventory("fleet: mol-{{ 'nccl_tests' | replace('_', '-') }}\n"))
    assert found["_meta"]["hostvars"]["controller-1"]["muster_fleet"] == "mol-nccl-tests"


def test_a_rehearsed_type_gives_what_the_inventory_of_ec2_gives(inventory) -> None:
    found = hosts(inventory("compute: 3\nnodes: {compute-3: {type: trn1.32xlarge}}\n", "-e", "muster_local_type=p5.48xlarge"))
    assert found["muster_type_p5_48xlarge"]["hosts"] == found["muster_gpu"]["hosts"] == ["compute-1", "compute-2"]
    assert found["muster_type_trn1_32xlarge"]["hosts"] == found["muster_neuron"]["hosts"] == ["compute-3"]
    assert found["muster_efa"]["hosts"] == ["compute-1", "compute-2", "compute-3"]
    values = found["_meta"]["hostvars"]
    assert (values["compute-1"]["instance_type"], values["compute-1"]["muster_rehearsal"]) == ("p5.48xlarge", True)
    assert not {"instance_type", "muster_rehearsal"} & set(values["controller-1"])


def test_a_live_fleet_keeps_its_types(inventory, tmp_path: Path) -> None:
    write_record(tmp_path, "local", type="g5.48xlarge")
    found = hosts(inventory("types: {compute: p5.48xlarge}\n"))
    assert found["muster_type_g5_48xlarge"]["hosts"] == ["compute-1"]
    assert found["_meta"]["hostvars"]["compute-1"]["instance_type"] == "g5.48xlarge"
    assert "muster_type_p5_48xlarge" not in found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("compute: 0\n", "must be a whole number from 1 to 200, not '0'"),
        ("fleet: Ours\n", "Fleet name 'Ours' cannot be used"),
        ("nodes: {compute-1: {memory: lots}}\n", "Node compute-1 cannot have a size of 'lots'"),
        (
            "types: {compute: p5.48xlrage}\n",
            "only a type with GPUs or Neuron devices. The catalogue has no instance type p5.48xlrage; the nearest are p5",
        ),
        (
            "types: {compute: c7i.large}\n",
            "only a type with GPUs or Neuron devices. The catalogue has no instance type c7i.large;",
        ),
        ("types: {compute: dl1.24xlarge}\n", "Muster does not support dl1.24xlarge (Gaudi): no role installs Habana's driver"),
        ("types: {compte: p5.48xlarge}\n", "The layout gives compte a type: its kinds of nodes are controller, compute, login"),
        ("comptue: 3\n", "unknown option comptue; the nearest is compute"),
    ],
)
def test_options_that_cannot_be(inventory, options: str, message: str) -> None:
    done = inventory(options)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
