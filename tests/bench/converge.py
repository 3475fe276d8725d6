# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The first converge beside a bare shell script, the second beside `ansible -m setup`, and 8 compute nodes beside 2."""

from __future__ import annotations

import re
import secrets
import subprocess
import time
from pathlib import Path

from .fleets import ROOT, Fleet, Run
from .table import Row, row


def bare_converge_s(fleet: Fleet) -> float:
    """Seconds of the shell script on all nodes at once, until the daemons run."""
    nodes = fleet.addresses()
    key = secrets.token_bytes(1024)
    script = (ROOT / "tests/bench/bare.sh").read_text()
    for name in nodes:
        subprocess.run([*fleet.ssh(name), "cat > /tmp/bare.sh"], input=script.encode(), check=True)
    began = time.monotonic()
    running = []
    for name in nodes:
        command = [*fleet.ssh(name), f"sh /tmp/bare.sh {name} controller-1 compute-1 compute-2"]
        running.append((name, subprocess.Popen(command, stdin=subprocess.PIPE)))
    for _name, process in running:
        process.stdin.write(key)
        process.stdin.close()
    for name, process in running:
        if process.wait() != 0:
            raise SystemExit(f"bare.sh failed on {name}")
    return time.monotonic() - began


def second_converges(fleet: Fleet, count: int = 3) -> list[Run]:
    return [fleet.stack("install", "configure") for _ in range(count)]


def measure(folder: Path, rounds: int = 2) -> dict:
    """All seconds. The script and Muster take turns, so that a slow minute of the package mirror slows both."""
    bare, ours = [], []
    found: dict = {}
    for number in range(rounds):
        with Fleet(f"bench-bare{number}", 2, folder) as fleet:
            bare.append(bare_converge_s(fleet))
        with Fleet(f"bench-two{number}", 2, folder) as fleet:
            ours.append(fleet.stack("install", "configure").wall_s)
            if number + 1 < rounds:
                continue
            gather = [".venv/bin/ansible", "all", "-i", str(fleet.inventory), "-e", f"muster_fleet={fleet.name}", "-m", "setup"]
            found["setup"] = min(fleet.measure(gather).wall_s for _ in range(3))
            second = second_converges(fleet)
            found["changed"] = sum(int(count) for count in re.findall(r"changed=(\d+)", second[-1].output))
            found["second"] = min(run.wall_s for run in second)
            found["verify"] = fleet.stack("verify_image", "verify_node", "verify_fleet").wall_s
            found["cpu_at_2"] = min(run.cpu_s for run in second) / 3
    found["bare"], found["first"] = min(bare), min(ours)
    with Fleet("bench-eight", 8, folder) as fleet:
        fleet.stack("install", "configure")
        found["cpu_at_8"] = min(run.cpu_s for run in second_converges(fleet, 2)) / 9
    return found


def rows(folder: Path) -> list[Row]:
    found = measure(folder)
    first, bare, second, setup = (found[key] for key in ("first", "bare", "second", "setup"))
    large, small = found["cpu_at_8"], found["cpu_at_2"]
    return [
        row("First converge", f"{first:.1f} s", f"a bare shell script, {bare:.1f} s", first / bare, "≤ 1.5"),
        row("Second converge", f"{second:.1f} s", f"`ansible -m setup`, {setup:.2f} s", second / setup, "≤ 5"),
        row("Changed tasks of the second converge", str(found["changed"]), "none", found["changed"], "≤ 0"),
        row("Verify", f"{found['verify']:.1f} s", f"the second converge, {second:.1f} s", found["verify"] / second),
        row("CPU of the controller per host, 8 compute nodes", f"{large:.2f} s", f"2 compute nodes, {small:.2f} s", large / small, "≤ 1.1"),
    ]
