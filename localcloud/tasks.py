# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Tasks: containers that run one command to its end, as the agent of ECS starts them for Batch."""

from __future__ import annotations

import dataclasses
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, NodeContainerError

# What engines say of an image that they do not have.
NOT_THERE = ("image not known", "No such image", "Unable to find image")
NO_TIME = "0001-01-01"


@dataclasses.dataclass(frozen=True)
class Task:
    """What a task runs, and with what. mounts: (path on this machine, path in the container, whether it is read only)."""

    name: str
    image: str
    command: tuple[str, ...]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[tuple[str, str, bool], ...] = ()
    cpus: float = 1
    memory_mib: int = 512
    shm_mib: int = 64


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a task runs: the names of its container and network, its address, the cloud that it is of, and the file with its variables."""

    container: str
    network: str
    address: str
    cloud: str
    env_file: Path


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a task ended. code is None when its container never ran; `reason` says then why, as AWS does."""

    code: int | None
    reason: str = ""


def arguments(task: Task, place: Place, ulimits: Mapping[str, int]) -> list[str]:
    """The engine's arguments that run a task. Values are not among them, because every user of the machine reads a command line."""
    return [
        "run",
        "--pull=never",
        f"--name={place.container}",
        f"--hostname={task.name}",
        f"--network={place.network}",
        f"--ip={place.address}",
        *(f"--ulimit={name}={value}:{value}" for name, value in ulimits.items()),
        f"--cpus={task.cpus:g}",
        f"--memory={task.memory_mib}m",
        f"--memory-swap={task.memory_mib}m",
        f"--shm-size={task.shm_mib}m",
        f"--env-file={place.env_file}",
        *(f"--env={name}" for name, value in task.env.items() if "\n" in value),
        *(f"--volume={source}:{at}{':ro' if read_only else ''}" for source, at, read_only in task.mounts),
        f"--label=muster.fleet={place.cloud}",
        f"--label=muster.node={task.name}",
        task.image,
        *task.command,
    ]


def env_text(env: Mapping[str, str]) -> str:
    """The file of variables for the engine. It cannot hold values of several lines."""
    return "".join(f"{name}={value}\n" for name, value in env.items() if "\n" not in value)


def failure(said: str) -> str:
    """AWS's sentence for a container that the engine did not start, from what the engine said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = (lines or ["the engine said nothing"])[-1].removeprefix("Error: ")
    kind = "CannotPullContainerError" if any(each in said for each in NOT_THERE) else "CannotStartContainerError"
    return f"{kind}: {last}"


class Running:
    """A task whose container was started. Its output is read from `lines` as it comes."""

    def __init__(self, engine: Engine, task: Task, place: Place) -> None:
        self._engine, self._container, self._env_file = engine, place.container, place.env_file
        self.task, self.address = task, place.address
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        several = {name: value for name, value in task.env.items() if "\n" in value}
        # The engine stays attached to the container, so its output comes as it is written.
        self._process = subprocess.Popen(
            engine.argv(*arguments(task, place, engine.ulimits)),
            env={**os.environ, "LC_ALL": "C", **several},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.put(line.rstrip("\n"))

    def _state(self) -> dict[str, Any]:
        """The engine's description of the container's state; empty while there is no container."""
        try:
            return self._engine.inspect(self._container)[0]["State"]
        except NodeContainerError:
            return {}

    def running(self) -> bool:
        """Whether the container has started; it may have ended since then."""
        state = self._state()
        started = str(state.get("StartedAt", NO_TIME))
        return state.get("Status") not in (None, "created", "initialized") and not started.startswith(NO_TIME)

    def ended(self) -> Ended | None:
        """How the task ended, or None while it runs."""
        if self._process.poll() is None:
            return None
        self._reader.join(10)
        self._env_file.unlink(missing_ok=True)
        if not self.running():
            said = []
            while not self.lines.empty():
                said.append(self.lines.get())
            return Ended(None, failure("\n".join(said)))
        state = self._state()
        code = int(state.get("ExitCode", self._process.returncode))
        return Ended(code, "OutOfMemoryError: Container killed due to memory usage" if state.get("OOMKilled") else "")

    def stop(self, patience: int) -> None:
        """Ask the container to end, and kill it when it does not."""
        self._engine.run(self._engine.argv("stop", f"--time={patience}", self._container))
        deadline = time.monotonic() + 10
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if self._process.poll() is None:
            self._process.kill()

    def remove(self) -> None:
        self._env_file.unlink(missing_ok=True)
        self._engine.run(self._engine.argv("rm", "--force", "--volumes", self._container))
