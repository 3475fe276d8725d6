# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The first and second converge of Muster beside those of a peer, on the same three containers.

PEERS names a folder of checkouts; `ansible-slurm` in it is github.com/galaxyproject/ansible-slurm. The bench uses the role's documented
variables and groups, and copies nothing of it. The role gets the cluster of bare.sh without accounting, because it sets up no database.
It also sets up no PAM and no limits, and it checks nothing afterwards.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from pathlib import Path

import yaml

from .converge import second_converges
from .fleets import Fleet, Run
from .table import Row, row

CONTROLLER, NODES = "controller-1", ["compute-1", "compute-2"]
LISTS = "ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1 || apt-get -qq update"
CONFIG = {
    "ClusterName": "peer",
    "SlurmctldHost": CONTROLLER,
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "TaskPlugin": "task/cgroup,task/affinity",
    "ProctrackType": "proctrack/cgroup",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
    "MpiDefault": "pmix",
}


def role() -> Path:
    """The checkout of the role, or an error that says how to get it."""
    found = Path(os.environ.get("PEERS", "")) / "ansible-slurm"
    if not os.environ.get("PEERS") or not (found / "tasks/main.yml").exists():
        raise SystemExit("PEERS must name a folder with a checkout of galaxyproject/ansible-slurm in ansible-slurm.")
    return found.resolve()


def version(checkout: Path) -> str:
    """The commit of a checkout."""
    argv = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def playbook(fleet: Fleet, checkout: Path, folder: Path) -> list[str]:
    """The command that applies the role to the fleet, with an inventory, a playbook and a key of its own in `folder`."""
    ssh, addresses = fleet.state / "ssh", fleet.addresses()
    login = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(ssh / "id_ed25519"),
        "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={ssh}/known_hosts",
    }
    hosts = {name: {"ansible_host": addresses[name], **login} for name in [CONTROLLER, *NODES]}
    groups = {
        "slurmservers": {"hosts": {CONTROLLER: hosts[CONTROLLER]}},
        "slurmexechosts": {"hosts": {name: hosts[name] for name in NODES}},
    }
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    play = {
        "hosts": "all",
        "gather_facts": True,
        # The image has no package lists, and the role reads none.
        "pre_tasks": [{"name": "Read the package lists once", "ansible.builtin.shell": LISTS, "changed_when": False}],
        "roles": [str(checkout)],
        "vars": {
            "slurm_config": CONFIG,
            "slurm_nodes": [{"name": ",".join(NODES), "CPUs": 2, "RealMemory": 1000}],
            "slurm_partitions": [{"name": "main", "Nodes": "ALL", "Default": "YES"}],
            "slurm_munge_key": str(folder / "munge.key"),
        },
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    (folder / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
    return [".venv/bin/ansible-playbook", "-i", str(folder / "hosts.yml"), str(folder / "play.yml")]


def wait_for_idle(fleet: Fleet) -> None:
    """A converge counts only when it made a cluster that takes jobs."""
    ask = [*fleet.ssh(CONTROLLER), "sinfo --noheader --Node --format='%N %T'"]
    deadline = time.monotonic() + 60
    while (said := fleet.measure(ask).output).count(" idle") != len(NODES):
        if time.monotonic() > deadline:
            raise SystemExit(f"The peer's nodes are not idle after a minute: {' '.join(said.split())}")
        time.sleep(1)


def measure_peer(checkout: Path, folder: Path) -> tuple[Run, Run]:
    """The first and the best second converge by the role. Our ansible.cfg applies, except that the role needs facts as variables."""
    with Fleet("bench-peer", 2, folder) as fleet:
        fleet.env["ANSIBLE_INJECT_FACT_VARS"] = "true"
        argv = playbook(fleet, checkout, folder)
        first = fleet.measure(argv)
        wait_for_idle(fleet)
        second = min(fleet.measure(argv) for _ in range(3))
    return first, second


def rows(folder: Path) -> list[Row]:
    checkout = role()
    peer = measure_peer(checkout, folder)
    with Fleet("bench-ours", 2, folder) as fleet:
        first = fleet.stack("install", "configure")
        second = min(second_converges(fleet))
    name = f"galaxyproject/ansible-slurm {version(checkout)} without accounting"
    return [
        row(f"{what} beside a peer", f"{ours.wall_s:.1f} s", f"{name}, {theirs.wall_s:.1f} s", ours.wall_s / theirs.wall_s)
        for what, ours, theirs in zip(("First converge", "Second converge"), (first, second), peer, strict=True)
    ]
