# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the exporters of Muster cost their node: CPU and memory at a scrape every 15 s, with TLS and a password as on a fleet.

Each exporter is measured for about a minute. What a scrape costs is then scaled to one in 15 s, so that slow growth would not be seen; the
proof `observe` runs them in a fleet. Slurm's commands are stand-ins that print the JSON of 200 nodes and 100 jobs, and their time is left
out. Node exporter is Debian's own program and is not measured. CPU-seconds are the process's own, so that a busy machine hardly matters.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ansible_collections.muster.fleet.plugins.lookup import certificate
from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import system
from ansible_collections.muster.fleet.plugins.module_utils.observe import muster_endpoint

from .fleets import ROOT
from .table import Row, row

INTERVAL = 15
SHARE, MEMORY = 0.005, 60  # the bounds of all exporters of a node: of a core, and in MB
TYPE = "p5.48xlarge"
SET = {"set": True, "infinite": False}


class Cost(NamedTuple):
    """CPU-seconds of a scrape, CPU-seconds of a second without one, peak memory in MB."""

    scrape: float
    idle: float
    memory: float

    @property
    def share(self) -> float:
        """Of a core, at a scrape every 15 s."""
        return self.scrape / INTERVAL + self.idle


def cpu(pid: int) -> float:
    """CPU-seconds of a process, without those of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    """The most memory that a process had, in MB."""
    [line] = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def secrets(folder: Path) -> Path:
    """A folder with the certificate and the password that an endpoint has."""
    folder.mkdir()
    cert, key = certificate.make("bench.muster.internal", datetime.datetime.now(datetime.UTC))
    for name, content in (("cert.pem", cert), ("key.pem", key), ("password", b"bench\n")):
        (folder / name).write_bytes(content)
    return folder


def devices(folder: Path) -> Path:
    """The /sys of a rehearsed node."""
    files, links = system.sys_files(rehearsal.rehearsal(TYPE), [], {"nvidia_driver": "595.84", "neuron": ""})
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for path, target in links.items():
        os.symlink(folder / target.removeprefix("/sys/"), folder / path)
    return folder


def slurm(folder: Path) -> Path:
    """Commands that answer as those of Slurm do on a cluster of 200 nodes."""
    folder.mkdir()
    node = {"state": ["IDLE"], "cpus": 192, "alloc_cpus": 96, "gres": "gpu:h100:8(S:0-1)", "gres_used": "gpu:h100:4(IDX:0-3)"}
    job = {"job_state": ["RUNNING"], "partition": "main", "name": "train", "user_name": "a", "nodes": "n[1-2]"}
    answers = {
        "scontrol": {"nodes": [{"name": f"n{number}", **node} for number in range(200)]},
        "squeue": {"jobs": [{"job_id": number, **job, "start_time": {**SET, "number": 1795260000}} for number in range(100)]},
        "sdiag": {"statistics": {"server_thread_count": 2, "jobs_started": 7}},
    }
    for name, answer in answers.items():
        (folder / f"{name}.json").write_text(json.dumps(answer))
        (folder / name).write_text(f"#!/bin/sh\nexec cat {folder}/{name}.json\n")
        (folder / name).chmod(0o755)
    return folder


def measure(command: list[str], env: dict[str, str], secret: Path, *, scrapes: int, pause: float, wanted: str) -> Cost:
    """Start an exporter, scrape it so often with this pause, and look at what that cost."""
    port = free_port()
    url = f"https://127.0.0.1:{port}/metrics"
    command = [*command, f"--listen=127.0.0.1:{port}", f"--secrets={secret}"]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([sys.executable, *command], env=env))
        stack.callback(process.kill)
        for _try in range(200):
            try:
                text = muster_endpoint.fetch(url, str(secret))
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise RuntimeError(f"{command[0]} did not answer in 20 s")
        if wanted not in text:
            raise RuntimeError(f"{command[0]} has no {wanted}, so nothing is measured")
        before, began = cpu(process.pid), time.monotonic()
        time.sleep(10)
        idle = (cpu(process.pid) - before) / (time.monotonic() - began)
        before, began = cpu(process.pid), time.monotonic()
        for _scrape in range(scrapes):
            muster_endpoint.fetch(url, str(secret))
            time.sleep(pause)
        used = cpu(process.pid) - before - idle * (time.monotonic() - began)
        return Cost(max(0.0, used) / scrapes, idle, peak(process.pid))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def both(what: str, cost: Cost, how: str) -> list[Row]:
    """The rows of an exporter. Each bound is that of all exporters of a node."""
    return [
        row(
            f"{what}, CPU at 15 s",
            f"{100 * cost.share:.3f} % of a core ({how})",
            f"{100 * SHARE} % for all of a node",
            cost.share / SHARE,
            "≤ 1",
        ),
        row(f"{what}, memory", f"{cost.memory:.1f} MB", f"{MEMORY} MB for all of a node", cost.memory / MEMORY, "≤ 1"),
    ]


def rows(folder: Path) -> list[Row]:
    """EFA's exporter with the devices of a p5.48xlarge, and the exporter of Slurm and of trainings."""
    secret = secrets(folder / "secrets")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugins/module_utils/observe")}
    efa_exporter = [str(ROOT / "roles/efa_exporter/files/muster-efa-exporter.py"), f"--sys={devices(folder / 'sys')}"]
    efa = measure(efa_exporter, env, secret, scrapes=60, pause=1, wanted="node_amazonefa_devices 32\n")
    exporter = [str(ROOT / "roles/monitoring/files/muster-exporter.py"), "--slurm"]
    env["PATH"] = f"{slurm(folder / 'bin')}:{env['PATH']}"
    # An answer of Slurm is good for ten seconds, and at an interval of 15 s each scrape asks anew.
    other = measure(exporter, env, secret, scrapes=5, pause=11, wanted="muster_slurm_up 1\n")
    return [
        *both("EFA exporter, 32 devices", efa, "60 scrapes in a minute, scaled"),
        *both("Exporter of Slurm, 200 nodes, 100 jobs", other, "5 scrapes in a minute, scaled; without Slurm's commands"),
    ]
