# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Keeps a cluster: holds its namespaces, forwards a port of this machine's loopback to its API server, and removes what it leaves.

python -m localkube.keeper FOLDER NODES. Whatever ends the keeper, even kill -9, ends the cluster: the kernel kills the first node's
outermost process with it, and that one everything within its process namespace. A second process, which only waits for the end of the
first, then removes the control groups, the one thing that outlives its processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from localkube import config
from localkube.node import NAMESPACES

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, CLONE_NEWNET = 1, 0x40000000
CGROUPS = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The roots of the control groups: one, or one for each controller of version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return sorted({each.resolve() for each in CGROUPS.iterdir() if each.is_dir() and (each / "cgroup.procs").exists()})


def make_cgroups(name: str, nodes: int) -> None:
    groups = [name, *(f"{name}/n{number}" for number in range(1, nodes + 1))]
    for root in hierarchies():
        for group in groups:
            (root / group).mkdir(exist_ok=True)
            for each in ("cpuset.cpus", "cpuset.mems"):
                parent = (root / group).parent
                if (root / group / each).exists() and (parent / each).exists() and root != CGROUPS:
                    (root / group / each).write_text((parent / each).read_text())
        if root == CGROUPS:
            have = (CGROUPS / "cgroup.controllers").read_text().split()
            for group in ["", *groups]:
                for controller in have:
                    with contextlib.suppress(OSError):  # one that this group may not hand on
                        (root / group / "cgroup.subtree_control").write_text(f"+{controller}")


def remove_cgroups(name: str, seconds: float = 15) -> bool:
    """Remove a cluster's control groups, as soon as their processes have ended."""
    until = time.monotonic() + seconds
    while True:
        left = [root / name for root in hierarchies() if (root / name).exists()]
        if not left or time.monotonic() > until:
            return not left
        for top in left:
            for folder, _folders, _files in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        time.sleep(0.1)


def sweep(name: str, pipe: int) -> None:
    """In a child: wait for the end of the keeper, then remove the control groups."""
    os.setsid()
    os.read(pipe, 1)
    remove_cgroups(name)
    os._exit(0)


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def enter_network(pid: int) -> None:
    with open(f"/proc/{pid}/ns/net") as space:
        if LIBC.setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def forward(listening: socket.socket, pid: int) -> None:
    """Pass connections on to the API server of the network of a process. The listening socket stays in this machine's network."""
    enter_network(pid)
    while True:
        here, _address = listening.accept()
        try:
            there = socket.create_connection((config.API, 6443), timeout=5)
        except OSError:
            here.close()
            continue
        there.settimeout(None)
        for pair in ((here, there), (there, here)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def child_of(pid: int) -> int:
    """The first child of a process, as soon as it is there."""
    while True:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.02)


def main(argv: list[str]) -> int:
    folder, nodes = Path(argv[0]), int(argv[1])
    name = (folder / "cgroup").read_text().strip()
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.close(writes)
        lock.close()
        sweep(name, reads)
    os.close(reads)
    make_cgroups(name, nodes)
    listening = socket.create_server(("127.0.0.1", int((folder / "port").read_text())))
    program = [sys.executable, "-m", "localkube.node", str(folder), "1", str(nodes)]
    argv = ["unshare", "--net", *NAMESPACES, "--", *program]
    # There are no other threads yet.
    outer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
    inner = child_of(outer.pid)
    (folder / "pids").write_text(f"{os.getpid()} {inner}\n")
    threading.Thread(target=forward, args=(listening, inner), daemon=True).start()
    return outer.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
