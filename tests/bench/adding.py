# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Adding one node to a fleet of 100 beside adding it to a fleet of 3.

One container runs the slurmd of every node but the new one (`slurmd -N`). So slurmctld tells as many nodes about the new one as in a real
fleet, and Ansible has as many hosts in its inventory. The new node is a container of its own that has everything installed, as a node from
an image has: an install takes the same time at any size and would hide what depends on the size. Real nodes have cores of their own, so the
simulated ones get at most what the others leave of this machine's: their container has the smallest share, and within it they are the last.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import yaml

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine

from .fleets import ROOT, Fleet
from .table import Row, row

HOME, NEW, CONTROLLER = "compute-1", "compute-2", "controller-1"
SIZES = (3, 100)
FIRST_PORT = 7000
# One slurm.conf names the same spool and pid paths for all, so each slurmd gets its own file systems there.
START = """
for node in %(nodes)s; do
  systemctl is-active --quiet $node || systemd-run --quiet --unit=$node --property=Delegate=yes --property=Nice=19 unshare --mount sh -c "
    mount -t tmpfs none /var/lib/slurm/slurmd && mount -t tmpfs none /run/slurm && exec slurmd -D -N $node --conf-server %(controller)s"
done
"""


def simulated(size: int) -> list[str]:
    return [f"sim-{number}" for number in range(1, size)]


def inventory(fleet: Fleet, folder: Path, size: int, new: bool) -> Path:
    """An ordinary inventory of the fleet with `size` nodes, and with the new node too if `new` is set."""
    listing = fleet.measure([".venv/bin/ansible-inventory", "-i", str(fleet.inventory), "-e", f"muster_fleet={fleet.name}", "--list"])
    known = json.loads(listing.output)["_meta"]["hostvars"]
    real = {name: {key: value for key, value in known[name].items() if key != "muster_local"} for name in (CONTROLLER, HOME, NEW)}
    local = {"muster_local": {"release": "trixie"}}  # the stack of the nodes depends on it
    real = {name: {**variables, **local} for name, variables in real.items()}
    sims = {
        name: {
            "ansible_host": real[HOME]["ansible_host"],
            **local,
            "slurm_node_params": {"NodeHostname": HOME, "Port": FIRST_PORT + number, "CPUs": 1, "RealMemory": 100},
        }
        for number, name in enumerate(simulated(size))
    }
    compute = {HOME: real[HOME], **({NEW: real[NEW]} if new else {}), **sims}
    groups = [
        {"name": "compute", "hosts": [name for name in (HOME, NEW) if name in compute]},
        {"name": "sims", "hosts": list(sims), "hardware": {"CPUs": 1, "RealMemory": 100}},
    ]
    partitions = [
        {"name": "main", "nodegroups": ["compute"], "params": {"Default": "YES", "OverSubscribe": "FORCE:2"}},
        {"name": "sims", "nodegroups": ["sims"]},
    ]
    path = folder / f"{size}-{'with' if new else 'without'}"
    path.mkdir(exist_ok=True)
    if not (path / "group_vars").exists():
        shutil.copytree(ROOT / "inventory/local/group_vars", path / "group_vars")
    document = {
        # Host variables, because group_vars/all beats the group variables of this file.
        "muster_controller": {"hosts": {CONTROLLER: {**real[CONTROLLER], "slurm_nodegroups": groups, "slurm_partitions": partitions}}},
        "muster_compute": {"hosts": compute},
    }
    (path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": document}}, sort_keys=False))
    return path


def provision(fleet: Fleet, path: Path, limit: str):
    # The same variables as Fleet.stack gives, or the new node would install common again.
    wanted = {"muster_components": ["common", "slurm"], "muster_fleet": fleet.name, "common_ca_certificates": []}
    argv = [".venv/bin/ansible-playbook", "playbooks/provision.yml", "-i", str(path), "--limit", limit, "-e", json.dumps(wanted)]
    return fleet.measure(argv)


def shell(fleet: Fleet, host: str, script: str) -> str:
    return fleet.measure([*fleet.ssh(host), script]).output


def measure(folder: Path, rounds: int = 2) -> dict:
    """Wall seconds, and CPU-seconds of the controller, of adding the node at each size: the best of `rounds`."""
    result: dict = {}
    with Fleet("bench-add", 2, folder) as fleet:
        fleet.stack("install", "configure")
        engine = find_engine()
        engine.change("update", "--cpu-shares", "2", f"muster-{fleet.name}-{HOME}")
        for size in SIZES:
            seconds, cpu = [], []
            for _ in range(rounds):
                shell(fleet, NEW, "systemctl disable --quiet --now slurmd")
                provision(fleet, inventory(fleet, folder, size, new=False), f"{CONTROLLER},{HOME}")
                shell(fleet, HOME, START % {"nodes": " ".join(simulated(size)), "controller": CONTROLLER})
                deadline = time.monotonic() + 120
                while (ready := shell(fleet, CONTROLLER, "sinfo --noheader --Node --states=idle --format=%N | wc -l").strip()) != str(size):
                    if time.monotonic() > deadline:
                        raise SystemExit(f"only {ready} of {size} nodes are ready")
                    time.sleep(2)
                run = provision(fleet, inventory(fleet, folder, size, new=True), f"{CONTROLLER},{NEW},localhost")
                seconds.append(run.wall_s)
                cpu.append(run.cpu_s)
            result[f"add_to_{size}_s"], result[f"add_to_{size}_cpu_s"] = min(seconds), min(cpu)
    return result


def rows(folder: Path) -> list[Row]:
    made = []
    found = measure(folder)
    for what, key in (("", "s"), (", CPU of the controller", "cpu_s")):
        large, small = found[f"add_to_100_{key}"], found[f"add_to_3_{key}"]
        made.append(row(f"Adding a node to 100{what}", f"{large:.1f} s", f"adding one to 3, {small:.1f} s", large / small, "≤ 1.1"))
    return made
