# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container engine: which one can be used here, how it starts systemd, and the only place that runs it.

Nodes get the same flags from podman and docker. Podman's own systemd mode stays off: on cgroup v1 and hybrid hosts it mounts the
host's systemd hierarchy, so that the systemds of all nodes share one tree; with a private cgroup namespace each has its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import resource
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
VERDICT = "engine.json"
INFO_FORMAT = {"podman": "json", "docker": "{{json .}}"}

# What a node would like, best first; a machine without CAP_SYS_RESOURCE cannot raise the hard limits it got.
WANTED_ULIMITS: dict[str, tuple[int, ...]] = {"nofile": (1048576,), "nproc": (-1, 32768, 4000), "memlock": (-1,)}
_RLIMIT_NUMBERS = {"6": "nproc", "7": "nofile", "8": "memlock"}
_RLIMIT_REFUSED = re.compile(r"rlimit type (\d+)|RLIMIT_([A-Z]+)", re.IGNORECASE)

# (global flags, flags of run), tried in this order. Podman's default runtime is crun in many distributions, which needs cgroup v2.
START_FLAGS: dict[str, tuple[tuple[list[str], list[str]], ...]] = {
    "podman": (
        ([], ["--systemd=false", "--cgroupns=private"]),
        (["--runtime", "runc", "--cgroup-manager", "cgroupfs"], ["--systemd=false", "--cgroupns=private"]),
        (["--runtime", "crun", "--cgroup-manager", "cgroupfs"], ["--systemd=false", "--cgroupns=private"]),
    ),
    "docker": (
        ([], ["--cgroupns=private"]),
        ([], ["--cgroupns=host", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw"]),
    ),
}

# Privileged containers share the host's kernel settings. What belongs to the host is made read-only before systemd starts, except for
# the settings of the node's own network; units that would set up a machine's hardware or consoles are masked.
MASKED_UNITS = (
    "getty.target",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-modules-load.service",
    "systemd-sysctl.service",
    "systemd-timesyncd.service",
    "systemd-udevd.service",
)
BOOT_SCRIPT = f"""\
set -e
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,rw /proc/sys/net
mount -o remount,bind,ro /sys
mkdir -p /run/systemd/system
for unit in {" ".join(MASKED_UNITS)}; do ln -sf /dev/null /run/systemd/system/$unit; done
if [ -d /run/muster-node ]; then
  install -d -m 700 /root/.ssh
  install -m 600 /run/muster-node/authorized_keys /root/.ssh/authorized_keys
  rm -f /etc/ssh/ssh_host_*
  install -m 600 /run/muster-node/ssh_host_ed25519_key /etc/ssh/ssh_host_ed25519_key
  install -m 644 /run/muster-node/ssh_host_ed25519_key.pub /etc/ssh/ssh_host_ed25519_key.pub
fi
exec /sbin/init
"""


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
        """The last line of what it said, which is where tools put the cause."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        lines = [line for line in lines if "failed to connect to syslog" not in line]
        return lines[-1] if lines else f"exit code {self.code}"


def run_command(argv: list[str], timeout: float = 600) -> Finished:
    """Run a command with an English locale and no input; a missing program or a time-out is an exit code (127, 124) with its reason."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        # In a folder of its own: podman's monitor leaves a file named oom where it was started from when a container runs out of memory.
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
    """A usable engine: how it is called, and how it starts a node (known after `learn_to_start`)."""

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
        self.commands.append(shlex.join(self.argv(*args)).replace(shlex.quote(BOOT_SCRIPT), "BOOT_SCRIPT"))
        return "" if self.dry else self._call(args, timeout)

    def _call(self, args: tuple[str, ...], timeout: float) -> str:
        done = self.run(self.argv(*args), timeout=timeout)
        if done.code != 0:
            raise NodeContainerError(f"{self.name} {args[0]} failed: {done.reason}.")
        return done.stdout

    def inspect(self, *names: str) -> list[dict]:
        """What the engine knows of containers."""
        return json.loads(self.ask("container", "inspect", *names)) if names else []

    def containers(self, label: str) -> list[dict]:
        """What the engine knows of the containers with a label, running or not."""
        return self._steadily(lambda: self.inspect(*self.ask("ps", "--all", "--quiet", "--filter", f"label={label}").split()))

    def image_names(self, label: str) -> list[str]:
        """Names of the images with a label."""
        shown = self._steadily(lambda: self.ask("images", "--filter", f"label={label}", "--format", "{{.Repository}}:{{.Tag}}"))
        return [each for each in shown.split() if "<none>" not in each]

    def networks(self) -> list[dict]:
        """What the engine knows of all networks."""

        def look() -> list[dict]:
            names = self.ask("network", "ls", "--format", "{{.Name}}").split()
            return json.loads(self.ask("network", "inspect", *names)) if names else []

        return self._steadily(look)

    def _steadily(self, look: Callable[[], T], tries: int = 5) -> T:
        """What a look at many finds. It fails where another process removes one of them meanwhile: it is tried up to five times."""
        try:
            return look()
        except NodeContainerError:
            if tries == 1:
                raise
            time.sleep(0.3)
            return self._steadily(look, tries - 1)

    def facts(self) -> dict:
        """The engine in a result."""
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
    """The first engine that can be used: as this user or through sudo without a password. Rootless podman cannot give nodes addresses.

    NodeContainerError names for each engine why it cannot be used.
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
    # A client without a daemon prints JSON as well, with an empty version; podman's docker command prints podman's JSON.
    if "ServerVersion" not in info:
        return "", "", "is podman's stand-in, use engine podman"
    if not info["ServerVersion"]:
        return "", "", (info.get("ServerErrors") or [done.reason])[0].rstrip(". ?")
    return info["ServerVersion"], info["DockerRootDir"], ""


def ulimit_ladder() -> dict[str, list[int]]:
    """For each limit the values to try, best first, ending with this process's own hard limit; -1 is unlimited."""
    own = {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[1],
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
    }
    return {name: list(values) + ([own[name]] if own[name] not in values else []) for name, values in WANTED_ULIMITS.items()}


def refused_ulimit(text: str) -> str | None:
    """The limit whose value a runtime refused, from its error (runc names its number, crun its name); None for other errors."""
    found = _RLIMIT_REFUSED.search(text)
    if not found:
        return None
    return _RLIMIT_NUMBERS.get(found[1]) if found[1] else found[2].lower()


def node_flags(engine: Engine) -> list[str]:
    """The flags of `run` that every node gets, whatever its size."""
    return [
        "--detach",
        "--privileged",
        *engine.run_flags,
        *(f"--ulimit={name}={value}:{value}" for name, value in engine.ulimits.items()),
        "--pids-limit=-1",
        "--tmpfs=/run:rw,exec,nosuid,nodev,mode=755",
        "--tmpfs=/run/lock:rw,nosuid,nodev,mode=1777",
        f"--env=container={engine.name}",
        "--stop-signal=SIGRTMIN+3",
    ]


def start_command(image: str) -> list[str]:
    """What ends the command line of `run`: the image and its first process."""
    return [image, "/bin/sh", "-c", BOOT_SCRIPT]


def learn_to_start(engine: Engine, image: str, cache: Path) -> None:
    """Fill in the engine's flags and ulimits: from the cache, else by starting systemd once with each until one works.

    The verdict holds for one engine version, kernel and boot. NodeContainerError when nothing works.
    """
    if recall(engine, cache) or engine.dry:
        return
    with locked(cache / "locks" / "engine"):
        if recall(engine, cache):
            return
        reasons = []
        for global_flags, run_flags in START_FLAGS[engine.name]:
            engine.global_flags, engine.run_flags = global_flags, run_flags
            reason = _try_to_start(engine, image)
            if not reason:
                verdict = {"key": _key(engine), "global_flags": global_flags, "run_flags": run_flags, "ulimits": engine.ulimits}
                write_whole(cache / VERDICT, json.dumps(verdict, indent=1) + "\n")
                return
            reasons.append(reason)
    raise NodeContainerError(
        f"{engine.name} {engine.version} starts no systemd from {image} on cgroup {engine.cgroup} ({'; '.join(dict.fromkeys(reasons))}): "
        "use another engine or image."
    )


def recall(engine: Engine, cache: Path) -> bool:
    """Take flags and ulimits from the cached verdict; False when there is none for this engine, kernel and boot."""
    try:
        verdict = json.loads((cache / VERDICT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    if verdict.get("key") != _key(engine):
        return False
    engine.global_flags, engine.run_flags, engine.ulimits = verdict["global_flags"], verdict["run_flags"], verdict["ulimits"]
    return True


def _key(engine: Engine) -> list[str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return [engine.name, engine.version, os.uname().release, boot]


def _try_to_start(engine: Engine, image: str, patience: float = 20) -> str:
    """Start systemd with the engine's present flags, lowering refused ulimits; return the reason why not, or ""."""
    name = "muster-probe"
    ladder = ulimit_ladder()
    remove = ["rm", "--force", *(["--time=0"] if engine.name == "podman" else []), name]
    try:
        while True:
            engine.run(engine.argv(*remove))
            engine.ulimits = {limit: values[0] for limit, values in ladder.items() if values}
            done = engine.run(engine.argv("run", "--name", name, *node_flags(engine), "--network=none", *start_command(image)))
            if done.code == 0:
                break
            limit = refused_ulimit(done.stderr)
            if limit not in ladder or not ladder[limit]:
                return done.reason
            ladder[limit].pop(0)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            state = engine.run(engine.argv("exec", name, "systemctl", "is-system-running")).stdout.strip()
            if state in ("running", "degraded"):
                tree = engine.run(engine.argv("exec", name, "cat", "/proc/1/cgroup")).stdout
                return "its systemd leaves the container's cgroup" if "/../" in tree else ""
            if engine.inspect(name)[0]["State"]["Status"] != "running":
                return "systemd ended: " + engine.run(engine.argv("logs", "--tail=5", name)).reason
            time.sleep(0.3)
        return f"systemd was not up after {patience:.0f} s"
    finally:
        engine.run(engine.argv(*remove))


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that readers, and a run killed in between, see the old or the new text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)


def free_disk_mib(path: str) -> int:
    """Free space under the first folder of the path that exists and may be looked at; with sudo the engine's own folder may not."""
    for place in [Path(path), *Path(path).parents]:
        try:
            return shutil.disk_usage(place).free // 2**20
        except (FileNotFoundError, PermissionError):
            continue
    raise NodeContainerError(f"The free space of {path} cannot be read.")
