# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The controller's CPU for each host when provision.yml runs over 500 hosts, beside 50.

No machine here holds 500 nodes. So a real fleet of two compute nodes is provisioned twice, and the second run is recorded: what each node
answered to each of Ansible's commands. Then the same playbook runs over 50 and 500 hosts that give these answers, see callbacks/replay.py.
What Ansible computes, sends and reads for each host is real; the network and the nodes are not there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import yaml

from .fleets import ROOT, Fleet
from .table import Row, row

SIZES = (50, 500)
CONTROLLER, COMPUTE = "controller-1", "compute-2"
SIZE = {
    "muster_cpus": 1,
    "muster_memory_mib": 1500,
    "muster_local": {"release": "trixie"},
}  # what the inventory of a local fleet says of its nodes


def provision(fleet: Fleet, inventory: Path, **environment: str) -> float:
    """CPU-seconds of provision.yml."""
    wanted = {"muster_components": ["common", "slurm"], "muster_fleet": fleet.name, "common_ca_certificates": []}
    argv = [".venv/bin/ansible-playbook", "playbooks/provision.yml", "-i", str(inventory), "-e", json.dumps(wanted)]
    before = fleet.env
    fleet.env = {
        **before,
        **environment,
        "ANSIBLE_CALLBACKS_ENABLED": "muster.fleet.run_record,muster.fleet.warm_workers,replay",
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/bench/callbacks"),
    }
    try:
        return fleet.measure(argv).cpu_s
    finally:
        fleet.env = before


def inventory(folder: Path, size: int) -> Path:
    """An inventory of a controller and `size` compute nodes, whose addresses are their names."""
    path = folder / f"hosts-{size}"
    path.mkdir()
    shutil.copytree(ROOT / "inventory/local/group_vars", path / "group_vars")
    names = [f"compute-{number}" for number in range(1, size + 1)]
    document = {
        "vars": {"ansible_user": "root", "ansible_become": False, "ansible_python_interpreter": "/usr/bin/python3", **SIZE},
        "children": {
            "muster_controller": {"hosts": {CONTROLLER: {"ansible_host": CONTROLLER}}},
            "muster_compute": {"hosts": {name: {"ansible_host": name} for name in names}},
        },
    }
    (path / "hosts.yml").write_text(yaml.safe_dump({"all": document}, sort_keys=False))
    return path


def measure(folder: Path) -> dict[int, float]:
    """{number of compute nodes: CPU-seconds of the controller for each of them}."""
    record = folder / "record"
    record.mkdir()
    with Fleet("bench-hosts", 2, folder) as fleet:
        provision(fleet, fleet.inventory)
        provision(fleet, fleet.inventory, MUSTER_RECORD=str(record))
        addresses = fleet.addresses()
        found = {}
        for size in SIZES:
            replay = folder / f"replay-{size}"
            replay.mkdir()
            shutil.copy(record / addresses[CONTROLLER], replay / CONTROLLER)
            shutil.copy(record / addresses[COMPUTE], replay / "default")
            found[size] = provision(fleet, inventory(folder, size), MUSTER_REPLAY=str(replay)) / size
            counts = {os.stat(each).st_size for each in replay.glob("count-compute-*")}
            if len(counts) != 1:
                raise SystemExit(f"hosts answered different numbers of commands: {sorted(counts)}")
    return found


def rows(folder: Path) -> list[Row]:
    found = measure(folder)
    few, many = (found[size] for size in SIZES)
    what = f"CPU of the controller per host, provision.yml over {SIZES[1]} hosts"
    return [row(what, f"{many:.2f} s", f"{SIZES[0]} hosts, {few:.2f} s", many / few, "≤ 1.15")]
