# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Converge against a bare shell script, the second converge against `ansible -m setup`, and 8 compute nodes against 2."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from pathlib import Path

from .fleets import ROOT, Fleet


def addresses(fleet: Fleet) -> dict[str, str]:
    """{node: address} from the fleet's state."""
    return {node["name"]: node["address"] for node in json.loads((fleet.state / "fleet.json").read_text())["nodes"]}


def bare_converge_s(fleet: Fleet) -> float:
    """The shell script on all nodes at once, until every node is idle."""
    nodes = addresses(fleet)
    key = secrets.token_bytes(1024)
    script = (ROOT / "tests/bench/bare.sh").read_text()
    for name, address in nodes.items():
        subprocess.run([*fleet.ssh(name, address), "cat > /tmp/bare.sh"], input=script.encode(), check=True)
    began = time.monotonic()
    running = []
    for name, address in nodes.items():
        command = [*fleet.ssh(name, address), f"sh /tmp/bare.sh {name} controller-1 compute-1 compute-2"]
        running.append((name, subprocess.Popen(command, stdin=subprocess.PIPE)))
    for _name, process in running:
        process.stdin.write(key)
        process.stdin.close()
    for name, process in running:
        if process.wait() != 0:
            raise SystemExit(f"bare.sh failed on {name}")
    return time.monotonic() - began


def measure(folder: Path, rounds: int = 2) -> dict:
    """Wall seconds and ratios; the two first converges take turns so that a slow minute of the package mirror meets both."""
    bare, ours = [], []
    result: dict = {}
    for number in range(rounds):
        with Fleet(f"bench-bare{number}", 2, folder) as fleet:
            bare.append(bare_converge_s(fleet))
        with Fleet(f"bench-two{number}", 2, folder) as fleet:
            ours.append(fleet.stack("install", "configure").wall_s)
            if number + 1 < rounds:
                continue
            gather = [".venv/bin/ansible", "all", "-i", str(fleet.inventory), "-e", f"muster_fleet={fleet.name}", "-m", "setup"]
            setup = min(fleet.measure(gather).wall_s for _ in range(3))
            second = [fleet.stack("install", "configure") for _ in range(3)]
            result["second_changed"] = sum(int(count) for count in re.findall(r"changed=(\d+)", second[-1].output))
            result["second_s"] = min(run.wall_s for run in second)
            result["setup_s"] = setup
            result["second_to_setup"] = result["second_s"] / setup
            result["verify_s"] = fleet.stack("verify_image", "verify_node", "verify_fleet").wall_s
            result["cpu_s_per_host_at_2"] = min(run.cpu_s for run in second) / 3
    result["first_bare_s"], result["first_s"] = min(bare), min(ours)
    result["first_to_bare"] = min(ours) / min(bare)
    with Fleet("bench-eight", 8, folder) as fleet:
        fleet.stack("install", "configure")
        eight = [fleet.stack("install", "configure") for _ in range(2)]
        result["cpu_s_per_host_at_8"] = min(run.cpu_s for run in eight) / 9
    result["cpu_8_to_2"] = result["cpu_s_per_host_at_8"] / result["cpu_s_per_host_at_2"]
    return result
