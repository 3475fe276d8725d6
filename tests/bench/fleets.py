# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fleets to measure on: small containers with their state in a temporary folder; the caches are the user's."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from ansible_collections.muster.fleet.plugins.module_utils.paths import state_dir

ROOT = Path(__file__).parents[2]


class Run(NamedTuple):
    """A finished command: wall seconds, CPU-seconds of it and its children on this machine, output."""

    wall_s: float
    cpu_s: float
    output: str


class Fleet:
    """A fleet of containers for one measurement; the end of the `with` block removes it."""

    def __init__(self, name: str, compute: int, folder: Path, memory: str = "1500") -> None:
        self.name, self.compute = name, compute
        self.inventory = folder / f"inventory-{name}"
        self.inventory.mkdir()
        (self.inventory / "local_fleet.yml").write_text(f"plugin: muster.fleet.local_fleet\ncompute: {compute}\nmemory: '{memory}'\n")
        shutil.copytree(ROOT / "inventory/local/group_vars", self.inventory / "group_vars")
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PWD": str(folder)}
        self.state = state_dir(name, self.env)

    def __enter__(self) -> Fleet:
        try:
            self.playbook("playbooks/local_up.yml")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_failure) -> None:
        self.playbook("playbooks/local_down.yml")

    def measure(self, argv: list[str]) -> Run:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(argv, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Run(wall, cpu, done.stdout)

    def playbook(self, path: str, *extra: str) -> Run:
        return self.measure(self.argv(path, *extra))

    def argv(self, path: str, *extra: str) -> list[str]:
        return [".venv/bin/ansible-playbook", path, "-i", str(self.inventory), "-e", f"muster_fleet={self.name}", *extra]

    def stack(self, *phases: str) -> Run:
        """Run these phases of the two components that bare.sh installs too; torch would only measure the package index."""
        wanted = json.dumps({"muster_phases": phases, "muster_components": ["common", "slurm"], "common_ca_certificates": []})
        return self.playbook("playbooks/stack.yml", "-e", wanted)

    def addresses(self) -> dict[str, str]:
        """{node: address} from the fleet's state."""
        return {node["name"]: node["address"] for node in json.loads((self.state / "fleet.json").read_text())["nodes"]}

    def ssh(self, host: str) -> list[str]:
        ssh = self.state / "ssh"
        known = f"UserKnownHostsFile={ssh}/known_hosts"
        return ["ssh", "-F", "none", "-i", f"{ssh}/id_ed25519", "-o", known, f"root@{self.addresses()[host]}"]
