# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The fleet of the end-to-end tests. It runs playbooks as a user does, reaches nodes as Ansible does, and handles the containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_settings import kernel_settings

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet as Containers
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

ROOT = Path(__file__).parents[2]
INVENTORY = Path("tests/e2e/inventory")
NAME = "e2e"
# What Ansible prints for errors that Muster did not expect.
UNFORESEEN = ("Traceback", "Error while resolving", "Unexpected failure", "Undefined", "is undefined")


def one_sentence(ended: subprocess.CompletedProcess) -> str:
    """The one line that says why a run was refused, from the summary or from an error that left no record."""
    assert ended.returncode != 0, ended.stdout
    assert [word for word in UNFORESEEN if word in ended.stdout] == [], ended.stdout
    said = re.findall(r"^FAILED (.*)$", ended.stdout, re.MULTILINE)
    said = said or re.findall(r"^\[ERROR\]: Task failed: \w+ failed: (.*)$", ended.stdout, re.MULTILINE)
    said = said or [line for line in ended.stdout.splitlines() if line and not line.startswith((".venv/bin/", "make: "))]
    assert len(said) == 1, ended.stdout
    return said[0]


class Fleet:
    """A fleet; without `name` and `inventory` the one with nodes controller-1, compute-1, compute-2 and login-1.

    first: how its first site.yml ended; first_run: its run folder; settings: the machine's kernel settings before that;
    runs: the folder of its run folders.
    """

    first: subprocess.CompletedProcess
    first_run: Path

    def __init__(self, folder: Path, name: str = NAME, inventory: Path = INVENTORY) -> None:
        self.name = name
        self.inventory = inventory
        self.folder = folder
        self.runs = folder / "runs" / name
        # The state has a folder of its own; the caches are the user's. Run folders go below PWD, while the commands run in the checkout.
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PWD": str(folder)}
        self.state_dir = state_dir(name, self.env)
        self.settings = kernel_settings()
        self.begun: list[subprocess.Popen] = []

    def command(self, playbook: str, *extra: str) -> list[str]:
        return [".venv/bin/ansible-playbook", playbook, "-i", str(self.inventory), "-e", f"muster_fleet={self.name}", *extra]

    def run(self, playbook: str, *extra: str, timeout: float = 900) -> subprocess.CompletedProcess:
        """Run a playbook to its end; `stdout` has all of its output, which a file in the folder keeps as well."""
        process = self.begin(playbook, *extra)
        return self.finish(process, timeout)

    def begin(self, playbook: str, *extra: str) -> subprocess.Popen:
        """Start a playbook in a process group of its own."""
        log = self.folder / f"output-{time.strftime('%H%M%S')}-{Path(playbook).stem}.txt"
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command(playbook, *extra),
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.log = log
        self.begun.append(process)
        return process

    def finish(self, process: subprocess.Popen, timeout: float = 900) -> subprocess.CompletedProcess:
        """Wait for the end of what `begin` started."""
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{shlex.join(process.args)} took more than {timeout:.0f} s:\n{process.log.read_text()[-3000:]}")
        return subprocess.CompletedProcess(process.args, process.returncode, process.log.read_text())

    def cut(self, process: subprocess.Popen) -> None:
        """Send SIGKILL to the process group."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self) -> None:
        """Kill what an interrupted test left running."""
        for process in self.begun:
            self.cut(process)

    @property
    def latest(self) -> Path:
        """The folder of the newest run."""
        return (self.runs / "latest").resolve()

    def events(self, kind: str) -> list[dict]:
        """The events of one kind of the newest run."""
        return [event for line in (self.latest / "events.jsonl").read_text().splitlines() if (event := json.loads(line))["event"] == kind]

    def ansible(self, host: str, *argv: str, user: str = "root", check: bool = True, timeout: float = 120) -> str:
        """Run a command on a node over SSH as Ansible does, with the fleet's key and a checked host key; return its output, stripped."""
        if user != "root":
            argv = ("runuser", "--login", user, "--command", shlex.join(argv))
        done = subprocess.run(
            self.ssh(host, *argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{shlex.join(argv)} on {host} ended with {done.returncode}: {done.stdout[-2000:]}"
        return done.stdout.strip()

    def ssh(self, host: str, *argv: str, user: str = "root") -> list[str]:
        """The ssh command that logs in as `user`."""
        ssh = self.state_dir / "ssh"
        options = ["-o", f"UserKnownHostsFile={ssh}/known_hosts", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
        address = self.containers().address(host)
        return ["ssh", "-F", "none", "-i", str(ssh / "id_ed25519"), *options, f"{user}@{address}", shlex.join(argv)]

    def containers(self) -> Containers:
        """The containers themselves, for what a user cannot type."""
        return Containers(self.name, find_engine(), self.state_dir, cache_dir(self.env))

    def kill(self, *nodes: str) -> None:
        """Cut the power of these nodes, or of all nodes."""
        self.containers().set_state("killed", list(nodes) or None)

    def start(self, *nodes: str) -> None:
        """Restore the power, and wait for SSH."""
        self.containers().set_state("started", list(nodes) or None)

    def wait_for(self, what: str, found: Callable[[], object], patience: float = 60) -> object:
        """Call `found` twice a second until it returns something true, and return that. Fail the test with `what` when it never does."""
        deadline = time.monotonic() + patience
        while not (value := found()):
            if time.monotonic() > deadline:
                pytest.fail(f"waited {patience:.0f} s in vain for {what}")
            time.sleep(0.5)
        return value


def brought_up(
    artifacts, request: pytest.FixtureRequest, name: str, *extra: str, inventory: Path = INVENTORY, timeout: float = 900
) -> Fleet:
    """A fleet after its first site.yml, with further arguments; it goes down when the tests are over."""
    made = Fleet(artifacts.folder(name), name, inventory)
    artifacts.leave(f"fleet {name}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    request.addfinalizer(made.end)
    made.first = made.run("site.yml", *extra, timeout=timeout)
    if made.first.returncode != 0:
        pytest.fail(f"the fleet did not come up:\n{made.first.stdout[-5000:]}", pytrace=False)
    made.first_run = made.latest
    return made
