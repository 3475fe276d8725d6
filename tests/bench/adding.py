# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Adding one node to a fleet of 100 against adding it to a fleet of 3.

One container runs the slurmd of all nodes but the new one (`slurmd -N`), so slurmctld has as many nodes to tell of the new one as in a
real fleet, and Ansible as many hosts in its inventory. The new node is a container of its own with everything installed, as from an
image: what is the same at any size must not hide what is not.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import yaml

from .converge import addresses
from .fleets import ROOT, Fleet

HOME, NEW, CONTROLLER = "compute-1", "compute-2", "controller-1"
SIZES = (3, 100)
FIRST_PORT = 7000
# Each slurmd has a spool and a place for its pid of its own, at the paths that the one slurm.conf of all names.
START = """
for node in %(nodes)s; do
  systemctl is-active --quiet $node || systemd-run --quiet --unit=$node --property=Delegate=yes unshare --mount sh -c "
    mount -t tmpfs none /var/lib/slurm/slurmd && mount -t tmpfs none /run/slurm && exec slurmd -D -N $node --conf-server %(controller)s"
done
"""


def simulated(size: int) -> list[str]:
    return [f"sim-{number}" for number in range(1, size)]


def inventory(fleet: Fleet, folder: Path, size: int, new: bool) -> Path:
    """An ordinary inventory of the fleet with `size` nodes, and one more when it is to have the new one."""
    listing = fleet.measure([".venv/bin/ansible-inventory", "-i", str(fleet.inventory), "-e", f"muster_fleet={fleet.name}", "--list"])
    known = json.loads(listing.output)["_meta"]["hostvars"]
    real = {name: {key: value for key, value in known[name].items() if key != "muster_local"} for name in (CONTROLLER, HOME, NEW)}
    sims = {
        name: {
            "ansible_host": real[HOME]["ansible_host"],
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
        # Of the host: group_vars/all goes before what a group has in this file.
        "muster_controller": {"hosts": {CONTROLLER: {**real[CONTROLLER], "slurm_nodegroups": groups, "slurm_partitions": partitions}}},
        "muster_compute": {"hosts": compute},
    }
    (path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": document}}, sort_keys=False))
    return path


def provision(fleet: Fleet, path: Path, limit: str):
    wanted = json.dumps({"muster_components": ["common", "slurm"], "muster_fleet": fleet.name})
    argv = [".venv/bin/ansible-playbook", "playbooks/provision.yml", "-i", str(path), "--limit", limit, "-e", wanted]
    return fleet.measure(argv)


def shell(fleet: Fleet, host: str, script: str) -> str:
    return fleet.measure([*fleet.ssh(host, addresses(fleet)[host]), script]).output


def measure(folder: Path, rounds: int = 2) -> dict:
    """Wall seconds, and CPU-seconds of the controller, of adding the node at each size, the best of `rounds`, and their ratios."""
    result: dict = {}
    with Fleet("bench-add", 2, folder) as fleet:
        fleet.stack("install", "configure")
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
    result["add_100_to_3"] = result["add_to_100_s"] / result["add_to_3_s"]
    result["add_100_to_3_cpu"] = result["add_to_100_cpu_s"] / result["add_to_3_cpu_s"]
    return result


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="muster-bench-") as temporary:
        print(json.dumps(measure(Path(temporary)), indent=1))
