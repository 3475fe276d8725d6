# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Gives a node of a local Kubernetes the program muster-health, and the stand-ins of an instance type.

A node of localkube sees the files of this machine. What it gets here lies in overlays of its own mount namespace, so the machine stays as
it is, and everything ends with the cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from localkube.cluster import Cluster
from localkube.rehearsal import cover

ROOT = Path(__file__).parents[2]


class RehearsedNode:
    """A node of a local cluster, as its own process 1 sees it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.name = cluster, f"node{number}"
        self.run(*cover())

    def run(self, *argv: str, **more: Any) -> str:
        """What a command prints on the node."""
        done = subprocess.run(self.cluster.argv(self.name, *argv), capture_output=True, text=True, check=False, **more)
        assert done.returncode == 0, f"{' '.join(argv)} on {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def install_health(self) -> None:
        """As role node_health does it: its own module, on the node."""
        argv = ["localhost", "--connection=local", "--module-name=muster.fleet.node_health", "--args=state=installed"]
        self.run(str(ROOT / ".venv/bin/ansible"), *argv, cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")})

    def health_settings(self, **settings: Any) -> None:
        text = json.dumps({"schema": "muster.health/1", "container": True, **settings})
        self.run("sh", "-c", "mkdir -p /etc/muster && cat > /etc/muster/health.json", input=text)

    def rehearse(self, kind: str) -> None:
        """Boot the stand-ins of an instance type."""
        at = self.cluster.folder / "rehearsal"
        at.mkdir(exist_ok=True)
        for name, content in rehearsal.node_files(kind).items():
            (at / name).write_bytes(content)
        self.run("python3", str(at / "stand-in"), "boot", str(at))

    def faults(self, *faults: dict[str, Any]) -> None:
        """Give the node these faults in place of those that it had."""
        self.run("muster-rehearsal", "faults", json.dumps(faults))
