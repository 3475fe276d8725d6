# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine starts systemd in a container: the flags, the limits and the boot script, learnt by trying once.

Nodes get the same flags from podman and docker. Podman's own systemd mode stays off: on cgroup v1 and hybrid hosts it mounts the
host's systemd hierarchy, so that the systemds of all nodes share one tree; with a private cgroup namespace each has its own.
"""

from __future__ import annotations

import json
import os
import re
import resource
import time
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, NodeContainerError, locked, write_whole
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins.node import DOCUMENT
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins.system import HOME

VERDICT = "engine.json"
# The limits that a node should have, best first; a machine without CAP_SYS_RESOURCE cannot raise its own hard limits.
WANTED_ULIMITS: dict[str, tuple[int, ...]] = {"nofile": (1048576,), "nproc": (-1, 32768, 4000), "memlock": (-1,)}
_RLIMIT_NUMBERS = {"6": "nproc", "7": "nofile", "8": "memlock"}
_RLIMIT_REFUSED = re.compile(r"rlimit type (\d+)|RLIMIT_([A-Z]+)", re.IGNORECASE)
# (global flags, flags of `run`), tried in this order. Many distributions let podman run crun, which needs cgroup v2.
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
# Privileged containers share the host's kernel settings. Before systemd starts, the boot script makes these read-only, except for the
# settings of the node's own network, and masks the units that would set up a machine's hardware or consoles.
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
# A node that rehearses an instance type gets its devices at each start. An image of such a node must not say that it has them.
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
rm -rf {HOME} {DOCUMENT}
if [ -e /run/muster-node/stand-in ]; then /run/muster-node/stand-in boot /run/muster-node; fi
exec /sbin/init
"""


def ulimit_ladder() -> dict[str, list[int]]:
    """The values to try for each limit, best first; the last is this process's own hard limit, and -1 is unlimited."""
    own = {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[1],
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
    }
    return {name: list(values) + ([own[name]] if own[name] not in values else []) for name, values in WANTED_ULIMITS.items()}


def refused_ulimit(text: str) -> str | None:
    """The limit that a runtime refused, from its error (runc gives its number, crun its name); None for other errors."""
    found = _RLIMIT_REFUSED.search(text)
    if not found:
        return None
    return _RLIMIT_NUMBERS.get(found[1]) if found[1] else found[2].lower()


def node_flags(engine: Engine) -> list[str]:
    """The flags of `run` that every node gets."""
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
    """The end of the command line of `run`: the image and its first process."""
    return [image, "/bin/sh", "-c", BOOT_SCRIPT]


def learn_to_start(engine: Engine, image: str, cache: Path) -> None:
    """Set the engine's flags and ulimits: from the cache, else by starting systemd with one set of flags after the other until one works.

    The cached verdict holds for one engine version, kernel and boot. NodeContainerError when no flags work.
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
        f"{engine.name} {engine.version} cannot start systemd from {image} on cgroup {engine.cgroup} "
        f"({'; '.join(dict.fromkeys(reasons))}): use another engine or image."
    )


def recall(engine: Engine, cache: Path) -> bool:
    """Set flags and ulimits from the cached verdict; False when there is none for this engine, kernel and boot."""
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
    """Start systemd with the engine's present flags, and lower the ulimits that are refused; return why it failed, or ""."""
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
