# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A Prometheus on one core that watches 1,000 nodes: scrapes that are lost, and what it needs.

A real fleet of one node is watched by role monitoring with its own configuration, rules, TLS and password. Then the file of targets names
1,000 more nodes. Their addresses are those of the loopback, where one server gives what the node's exporter said, with TLS. Prometheus
keeps to one core, the server to another. A scrape is lost when a target has fewer samples than the interval gives, or one that failed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from .fleets import ROOT, Fleet
from .table import Row, row

COUNT, INTERVAL, SECONDS = 1000, 15, 300
PORT, CONTROLLER = 9555, "controller-1"
# Serves the first argument's file to whoever asks. It checks no password: what a target does is not measured.
SERVE = """
import asyncio, ssl, sys
body = open(sys.argv[1], "rb").read()
answer = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain; version=0.0.4\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body
async def serve(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        writer.write(answer)
        await writer.drain()
async def main():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain("/etc/prometheus/muster/cert.pem", "/etc/prometheus/muster/key.pem")
    server = await asyncio.start_server(serve, "0.0.0.0", int(sys.argv[2]), ssl=tls, backlog=2048)
    await server.serve_forever()
asyncio.run(main())
"""
# Keeps what node exporter says.
COPY = """
import sys
sys.path.insert(0, "/usr/lib/muster")
import muster_endpoint
text = muster_endpoint.fetch("https://127.0.0.1:9100/metrics", "/etc/prometheus/muster")
assert "node_cpu_seconds_total" in text
open("/run/metrics.txt", "w").write(text)
"""
LOOK = """
import importlib.machinery, importlib.util, json, sys
loader = importlib.machinery.SourceFileLoader("watch", "/usr/lib/muster/muster-watch")
watch = importlib.util.module_from_spec(importlib.util.spec_from_loader("watch", loader))
loader.exec_module(watch)
found = {name: watch.ask("query", query=query)["result"] for name, query in json.load(open("/run/queries.json")).items()}
print(json.dumps({name: float(result[0]["value"][1]) if result else 0.0 for name, result in found.items()}))
"""
UP = f'up{{fleet="simulated"}}[{SECONDS}s]'
QUERIES = {
    "whole": f"count(count_over_time({UP}) >= {SECONDS // INTERVAL} and min_over_time({UP}) == 1)",
    "targets": 'count(up{fleet="simulated"})',
    "slowest": f'max(max_over_time(scrape_duration_seconds{{fleet="simulated"}}[{SECONDS}s]))',
    "series": 'avg(scrape_samples_scraped{fleet="simulated"})',
    "missed": f"sum(increase(prometheus_rule_group_iterations_missed_total[{SECONDS}s]))",
    "cpu": f'rate(process_cpu_seconds_total{{job="prometheus"}}[{SECONDS}s])',
    "memory": 'process_resident_memory_bytes{job="prometheus"}',
}


def watched(folder: Path) -> Fleet:
    """A fleet whose controller will watch it, with memory for the series of 1,000 nodes."""
    fleet = Fleet("benchtargets", 1, folder, memory="9000")
    shutil.copy(ROOT / "inventory/local/monitoring.yml", fleet.inventory)
    return fleet


def sh(fleet: Fleet, script: str, given: str = "") -> str:
    """The output of a script on the controller."""
    done = subprocess.run([*fleet.ssh(CONTROLLER), script], input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"on {CONTROLLER}: {done.stderr.strip() or done.stdout.strip() or script}")
    return done.stdout.strip()


def simulate(fleet: Fleet) -> None:
    """Give Prometheus the targets, and the server that answers for them."""
    sh(fleet, f"python3 -c '{COPY}'")
    sh(fleet, "cat >/run/serve.py", SERVE)
    sh(fleet, f"systemd-run --quiet --unit=simulated -p LimitNOFILE=8192 taskset -c 1 python3 /run/serve.py /run/metrics.txt {PORT}")
    entries = [
        {"targets": [f"127.1.{number // 250}.{number % 250 + 1}:{PORT}"], "labels": {"fleet": "simulated", "instance": f"n{number}"}}
        for number in range(COUNT)
    ]
    path = f"/etc/prometheus/muster/targets/{fleet.name}-node.json"
    sh(fleet, f"cat >{path}.new && mv {path}.new {path}", json.dumps(entries))
    sh(fleet, "for id in $(pidof prometheus); do taskset -acp 0 $id; done")


def rows(folder: Path) -> list[Row]:
    """What Prometheus lost and needed while it watched 1,000 nodes for five minutes."""
    with watched(folder) as fleet:
        wanted = {"muster_components": ["common", "slurm", "monitoring"], "muster_monitoring": True, "common_ca_certificates": []}
        fleet.playbook("playbooks/provision.yml", "-e", json.dumps(wanted))
        simulate(fleet)
        # The first scrapes make the connections and the series.
        time.sleep(4 * INTERVAL + SECONDS)
        sh(fleet, "cat >/run/queries.json", json.dumps(QUERIES))
        found = json.loads(sh(fleet, f"python3 -c '{LOOK}'"))
    print(found)
    if found["targets"] != COUNT:
        raise RuntimeError(f"Prometheus has {found['targets']:.0f} simulated targets and not {COUNT}")
    lost, cpu = COUNT - found["whole"], found["cpu"]
    what = f"Prometheus, 1,000 nodes of {found['series']:.0f} series at {INTERVAL} s, one core"
    return [
        row(f"{what}: targets with a lost scrape in 5 minutes", f"{lost:.0f}", f"{COUNT}", lost / COUNT, "≤ 0"),
        row(f"{what}: CPU", f"{100 * cpu:.0f} %, {found['missed']:.0f} evaluations of rules missed", "one core", cpu, "≤ 1"),
        row(f"{what}: slowest scrape", f"{found['slowest']:.1f} s", f"{INTERVAL} s", found["slowest"] / INTERVAL, "≤ 1"),
        row(f"{what}: memory", f"{found['memory'] / 1e9:.1f} GB", "1 GB", found["memory"] / 1e9),
    ]
