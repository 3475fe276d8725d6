# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The CPU-seconds that role slurm takes to check its settings and to render the controller's files for 1,000 nodes of all types.

The role's own filters, variables and templates run in an ordinary play on this machine, with one node group for each type of the catalogue
and one without, a variable of its own on every tenth node, and a switch for every 16 nodes. The same play without these tasks is
subtracted: it reads the inventory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

from .fleets import ROOT
from .table import Row, row

NODES, BOUND_S, LEAF = 1000, 5, 16
FILES = "(__slurm_controller_files + [__slurm_dbd_file]) | flatten"


def variables(folder: Path, nodes: int) -> tuple[dict, dict]:
    """(the controller's variables, those of each compute node)."""
    types = ["cpu", *catalogue.names()]  # the hardware of cpu is what slurmd -C said
    hosts = [f"{types[number % len(types)].replace('.', '-')}-{number}" for number in range(nodes)]
    groups = [
        {"name": name.replace(".", "-"), "features": [name.partition(".")[0]], "hosts": hosts[number :: len(types)]}
        | ({"instance_type": name} if number else {})
        for number, name in enumerate(types)
    ]
    filled = [group["name"] for group in groups]
    leaves = [{"name": f"leaf-{first // LEAF}", "nodes": hosts[first : first + LEAF]} for first in range(0, nodes, LEAF)]
    spines = [
        {"name": f"spine-{first}", "switches": [leaf["name"] for leaf in leaves[first : first + LEAF]]}
        for first in range(0, len(leaves), LEAF)
    ]
    tree = {"switches": [{"name": "core", "switches": [spine["name"] for spine in spines]}, *spines, *leaves]}
    controller = {
        "slurm_controller_hosts": ["controller-1"],
        "slurm_compute_hosts": hosts,
        "slurm_functions": ["controller"],
        "slurm_cluster_name": "bench",
        "slurm_secrets_dir": str(folder / "secrets"),
        "slurm_nodegroups": groups,
        "slurm_partitions": [{"name": "all", "nodegroups": filled}, *({"name": name, "nodegroups": [name]} for name in filled)],
        "slurm_topology": tree,
        "__slurm_hardware": {
            "cpu": {"Boards": "1", "SocketsPerBoard": "1", "CoresPerSocket": "8", "ThreadsPerCore": "1", "RealMemory": "32000"}
        },
        "__slurm_hardware_kept": {"stderr": "slurm-wlm 25.11.1"},
        "muster_phases": [],
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    return controller, {host: {"slurm_node_params": {"Weight": 2}} if number % 10 == 0 else {} for number, host in enumerate(hosts)}


def play(folder: Path, nodes: int) -> None:
    """Write the inventory of `nodes` nodes and the play."""
    for kind in ("files", "templates"):  # lookups of the role look beside the play
        (folder / kind).symlink_to(ROOT / "roles/slurm" / kind)
    controller, compute = variables(folder, nodes)
    children = {"muster_controller": {"hosts": {"controller-1": controller}}, "muster_compute": {"hosts": compute}}
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": children}}))
    facts = {"distribution": "Debian", "os_family": "Debian", "distribution_release": "trixie", "distribution_major_version": "13"}
    tasks = [
        {"ansible.builtin.set_fact": {**facts, "architecture": "x86_64", "cacheable": True}},
        {"ansible.builtin.include_role": {"name": "muster.fleet.slurm", "public": True}},
        {
            "when": "render",
            "block": [
                {"ansible.builtin.include_role": {"name": "muster.fleet.slurm", "tasks_from": "check_settings"}},
                {"ansible.builtin.set_fact": {"__slurm_nodes": "{{ __slurm_node_groups }}"}},
                {"ansible.builtin.copy": {"content": "{{ (%s) | to_json }}" % FILES, "dest": f"{folder}/files.json"}},
            ],
        },
    ]
    (folder / "play.yml").write_text(json.dumps([{"hosts": "muster_controller", "gather_facts": False, "tasks": tasks}]))


def cpu_s(folder: Path, render: bool) -> float:
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", f"{folder}/hosts.json", f"{folder}/play.yml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*argv, "-e", json.dumps({"render": render})],
        cwd=ROOT,
        env={**os.environ, "PWD": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(folder: Path) -> list[Row]:
    folder = folder / "render"
    folder.mkdir()
    play(folder, NODES)
    took = min(cpu_s(folder, True) for _each in range(3)) - min(cpu_s(folder, False) for _each in range(3))
    files = {file["dest"]: file.get("content", "") for file in json.loads((folder / "files.json").read_text())}
    conf, topology = files["/etc/slurm/slurm.conf"], files["/etc/slurm/topology.yaml"]
    named = {node for line in conf.splitlines() if line.startswith("NodeName=") for node in line.split()[0][9:].split(",")}
    assert len(named) == NODES and topology.count("switch:") == 1 + -(-NODES // LEAF) + -(-NODES // LEAF // LEAF), "files lack nodes"
    assert files["/etc/slurm/gres.conf"].count("\nNodeName=") > 20, "gres.conf lacks groups"
    return [row(f"Slurm's files for {NODES:,} mixed nodes", f"{took:.1f} s of CPU", f"{BOUND_S} s", took / BOUND_S, "≤ 1")]
