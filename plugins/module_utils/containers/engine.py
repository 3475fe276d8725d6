# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container engine: which one this machine can use, and the only code that runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ENGINES = ("podman", "docker")
INFO_FORMAT = {"podman": "json", "docker": "{{json .}}"}


class NodeContainerError(Exception):
    """An expected failure; the text is one sentence that names the object and the remedy."""


@dataclasses.dataclass
class Finished:
    """How a command ended: its exit code and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def reason(self) -> str:
        """The last line that it wrote, which is where tools put the cause."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        lines = [line for line in lines if "failed to connect to syslog" not in line]
        return lines[-1] if lines else f"exit code {self.code}"


def run_command(argv: list[str], timeout: float = 600) -> Finished:
    """Run a command in English and without input; a missing program or a timeout is an exit code (127, 124) with its reason."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        # In a folder of its own, because podman's monitor leaves a file named oom in its folder when a container runs out of memory.
        with tempfile.TemporaryDirectory(prefix="muster-") as folder:
            done = subprocess.run(
                argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
            )
    except FileNotFoundError:
        return Finished(127, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        return Finished(124, "", f"{argv[0]} did not end within {timeout:.0f} s")
    return Finished(done.returncode, done.stdout, done.stderr)


Runner = Callable[..., Finished]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel releases it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclasses.dataclass
class Engine:
    """A usable engine: how it is called, and the flags that start a node (known after `systemd.learn_to_start`)."""

    name: str
    prefix: list[str]
    version: str
    cgroup: str
    storage: str
    run: Runner = run_command
    global_flags: list[str] = dataclasses.field(default_factory=list)
    run_flags: list[str] = dataclasses.field(default_factory=list)
    ulimits: dict[str, int] = dataclasses.field(default_factory=dict)
    dry: bool = False
    commands: list[str] = dataclasses.field(default_factory=list)

    def argv(self, *args: str) -> list[str]:
        """The whole command line for the engine's arguments."""
        return [*self.prefix, self.name, *self.global_flags, *args]

    def ask(self, *args: str) -> str:
        """Run a command that changes nothing and return what it wrote; NodeContainerError when it fails."""
        return self._call(args, 120)

    def change(self, *args: str, timeout: float = 600) -> str:
        """Run a command that changes something, and record it; in a dry run only record it."""
        self.commands.append(shlex.join("BOOT_SCRIPT" if "\n" in each else each for each in self.argv(*args)))
        return "" if self.dry else self._call(args, timeout)

    def _call(self, args: tuple[str, ...], timeout: float) -> str:
        done = self.run(self.argv(*args), timeout=timeout)
        if done.code != 0:
            raise NodeContainerError(f"{self.name} {args[0]} failed: {done.reason}.")
        return done.stdout

    def inspect(self, *names: str) -> list[dict]:
        """The engine's descriptions of containers."""
        return json.loads(self.ask("container", "inspect", *names)) if names else []

    def containers(self, label: str) -> list[dict]:
        """The engine's descriptions of all containers with a label, running or not."""
        return self._steadily(lambda: self.inspect(*self.ask("ps", "--all", "--quiet", "--filter", f"label={label}").split()))

    def image_names(self, label: str) -> list[str]:
        """Names of the images with a label."""
        shown = self._steadily(lambda: self.ask("images", "--filter", f"label={label}", "--format", "{{.Repository}}:{{.Tag}}"))
        return [each for each in shown.split() if "<none>" not in each]

    def networks(self, label: str = "") -> list[dict]:
        """The engine's descriptions of all networks, or of those with a label."""

        def look() -> list[dict]:
            names = self.ask("network", "ls", *([f"--filter=label={label}"] if label else []), "--format", "{{.Name}}").split()
            return json.loads(self.ask("network", "inspect", *names)) if names else []

        return self._steadily(look)

    def _steadily(self, look: Callable[[], T], tries: int = 5) -> T:
        """List and inspect objects. That fails when another process removes one of them in between, so try up to five times."""
        try:
            return look()
        except NodeContainerError:
            if tries == 1:
                raise
            time.sleep(0.3)
            return self._steadily(look, tries - 1)

    def facts(self) -> dict:
        """The engine's part of a module's result."""
        return {
            "name": self.name,
            "version": self.version,
            "cgroup": self.cgroup,
            "command": shlex.join(self.argv()),
            "run_flags": self.run_flags,
            "ulimits": self.ulimits,
        }


def cgroup_view(mounts: str) -> str:
    """v1, hybrid or v2, from the text of /proc/self/mounts."""
    kinds = {fields[2] for fields in map(str.split, mounts.splitlines()) if len(fields) > 2 and fields[1].startswith("/sys/fs/cgroup")}
    if "cgroup" not in kinds:
        return "v2"
    return "hybrid" if "cgroup2" in kinds else "v1"


def find_engine(wanted: str = "auto", run: Runner = run_command) -> Engine:
    """The first engine that works as this user or through sudo without a password. Rootless podman cannot give nodes addresses.

    NodeContainerError says for each engine why it cannot be used.
    """
    if wanted not in ("auto", *ENGINES):
        raise NodeContainerError(f"Unknown container engine {wanted!r}: use auto, podman or docker.")
    cgroup = cgroup_view(Path("/proc/self/mounts").read_text(encoding="utf-8"))
    reasons = []
    for name in ENGINES if wanted == "auto" else (wanted,):
        for prefix in [[]] if os.geteuid() == 0 else [[], ["sudo", "-n"]]:
            version, storage, reason = _read_info(name, run([*prefix, name, "info", "--format", INFO_FORMAT[name]], timeout=60))
            if not reason:
                return Engine(name, prefix, version, cgroup, storage, run)
        reasons.append(f"{name}: {reason}")
    raise NodeContainerError(
        f"No container engine can be used here ({'; '.join(reasons)}): install podman with the system's package manager or start docker."
    )


def _read_info(name: str, done: Finished) -> tuple[str, str, str]:
    """(version, folder of its storage, "") from `info --format json`, or ("", "", reason) when the engine cannot be used."""
    try:
        info = json.loads(done.stdout)
    except ValueError:
        return "", "", done.reason
    if name == "podman":
        if info["host"]["security"]["rootless"]:
            return "", "", "runs without root and sudo asks for a password"
        return info["version"]["Version"], info["store"]["graphRoot"], ""
    # A docker client without a daemon prints JSON with an empty version; podman's own docker command prints podman's JSON.
    if "ServerVersion" not in info:
        return "", "", "is podman's stand-in, use engine podman"
    if not info["ServerVersion"]:
        return "", "", (info.get("ServerErrors") or [done.reason])[0].rstrip(". ?")
    return info["ServerVersion"], info["DockerRootDir"], ""


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file in one step: a reader finds the old or the new text, also after this process was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)


def free_disk_mib(path: str) -> int:
    """Free space at a path, or at its nearest parent that this user can reach: under sudo the engine's folder is closed to this user."""
    for folder in [Path(path), *Path(path).parents]:
        try:
            return shutil.disk_usage(folder).free // 2**20
        except (FileNotFoundError, PermissionError):
            continue
    raise NodeContainerError(f"The free disk space of {path} cannot be read: make the folder or a parent of it readable.")
