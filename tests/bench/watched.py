# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What all exporters of a node cost it: CPU and memory over ten minutes, on a fleet that a real Prometheus scrapes every 15 s.

compute-1 rehearses p5.48xlarge, so that its EFA exporter reads 32 devices. DCGM exporter needs a GPU and is not there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from .exporters import MEMORY, SHARE
from .fleets import ROOT, Fleet
from .table import Row, row

SECONDS = 600
UNITS = {
    "compute-1": ("a p5.48xlarge", ["prometheus-node-exporter", "muster-efa-exporter"]),
    "controller-1": ("the controller", ["prometheus-node-exporter", "muster-exporter"]),
}
# CPU-seconds so far, with those of children that ended, and the peak memory in kB, of each unit.
LOOK = """
for unit; do
  pid=$(systemctl show --property=MainPID --value "$unit")
  [ "$pid" -gt 0 ] || { echo "$unit does not run" >&2; exit 1; }
  awk -v ticks="$(getconf CLK_TCK)" '{ printf "%f ", ($14 + $15 + $16 + $17) / ticks }' "/proc/$pid/stat"
  awk '/^VmHWM/ { print $2 }' "/proc/$pid/status"
done
"""


def look(fleet: Fleet, host: str) -> tuple[float, float]:
    """CPU-seconds and peak memory in MB of the host's exporters together."""
    argv = [*fleet.ssh(host), "sh", "-s", "--", *UNITS[host][1]]
    done = subprocess.run(argv, input=LOOK, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"on {host}: {done.stderr.strip()}")
    values = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return sum(cpu for cpu, _memory in values), sum(memory for _cpu, memory in values) / 1000


def rows(folder: Path) -> list[Row]:
    """CPU and memory of the exporters of a compute node and of the controller."""
    fleet = Fleet("benchwatched", 1, folder)
    shutil.copy(ROOT / "inventory/local/monitoring.yml", fleet.inventory)
    options = {"plugin": "muster.fleet.local_fleet", "compute": 1, "memory": "1500", "nodes": {"compute-1": {"type": "p5.48xlarge"}}}
    (fleet.inventory / "local_fleet.yml").write_text(json.dumps(options))
    with fleet:
        wanted = {
            "muster_components": ["common", "slurm", "efa_exporter", "monitoring"],
            "muster_monitoring": True,
            "common_ca_certificates": [],
        }
        fleet.playbook("playbooks/provision.yml", "-e", json.dumps(wanted))
        before, began = {host: look(fleet, host) for host in UNITS}, time.monotonic()
        time.sleep(SECONDS)
        after, passed = {host: look(fleet, host) for host in UNITS}, time.monotonic() - began
    out = []
    for host, (what, units) in UNITS.items():
        share, memory = (after[host][0] - before[host][0]) / passed, after[host][1]
        name = f"Exporters of {what} ({' and '.join(units)}), ten minutes of a scrape every 15 s"
        out.append(row(f"{name}: CPU", f"{100 * share:.3f} % of a core", f"{100 * SHARE} %", share / SHARE, "≤ 1"))
        out.append(row(f"{name}: memory", f"{memory:.1f} MB", f"{MEMORY} MB", memory / MEMORY, "≤ 1"))
    return out
