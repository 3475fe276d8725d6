# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What muster-health costs a node: the time that its prolog adds to a job, and the CPU of an hour of its periodic looks. And validate.yml.

compute-1 rehearses p5.48xlarge, so 8 GPUs and 32 EFA cards are looked at, by stand-ins of their commands.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .fleets import Fleet
from .table import Row, row

# A run of the periodic level each five minutes, as HealthCheckInterval says.
RUNS, HOUR = 12, 3600
PROLOG, SHARE, VALIDATE = 0.5, 0.01, 90
TIMES = (
    """
import json, resource, subprocess, time
def used():
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime
out = {}
for level, runs in (("prolog", 10), ("periodic", %d)):
    walls, before = [], used()
    for _run in range(runs):
        began = time.monotonic()
        done = subprocess.run(["/usr/bin/muster-health", "--level", level, "--format", "json"], capture_output=True)
        walls.append(time.monotonic() - began)
        checks = len(json.loads(done.stdout)["checks"])
    out[level] = {"wall": sorted(walls)[len(walls) // 2], "cpu": used() - before, "checks": checks}
print(json.dumps(out))
"""
    % RUNS
)


def rows(folder: Path) -> list[Row]:
    """The prolog, an hour of periodic looks, and validate.yml on two nodes."""
    fleet = Fleet("benchhealth", 2, folder)
    options = {"plugin": "muster.fleet.local_fleet", "compute": 2, "memory": "1500", "nodes": {"compute-1": {"type": "p5.48xlarge"}}}
    (fleet.inventory / "local_fleet.yml").write_text(json.dumps(options))
    # Nothing installs the plugin of NCCL here.
    off = [{"check": "efa_plugin", "owner": "bench", "until": "2099-12-31"}]
    wanted = {"muster_components": ["common", "slurm", "node_health"], "common_ca_certificates": [], "node_health_off": off}
    with fleet:
        fleet.playbook("playbooks/provision.yml", "-e", json.dumps(wanted))
        done = subprocess.run([*fleet.ssh("compute-1"), "python3", "-"], input=TIMES, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"on compute-1: {done.stderr[-1000:]}")
        found = json.loads(done.stdout)
        validate = fleet.playbook("playbooks/validate.yml", "-e", json.dumps(wanted)).wall_s
    prolog, periodic = found["prolog"], found["periodic"]
    share = periodic["cpu"] / HOUR
    of = "of a p5.48xlarge"
    return [
        row(f"Prolog {of}, {prolog['checks']} checks", f"{prolog['wall']:.2f} s", f"{PROLOG} s", prolog["wall"] / PROLOG, "≤ 1"),
        row(
            f"An hour of periodic looks {of}, {periodic['checks']} checks: CPU",
            f"{100 * share:.2f} % of a core",
            f"{100 * SHARE:.0f} %",
            share / SHARE,
            "≤ 1",
        ),
        row("validate.yml on a controller and two nodes", f"{validate:.1f} s", f"{VALIDATE} s", validate / VALIDATE, "≤ 1"),
    ]
