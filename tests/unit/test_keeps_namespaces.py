# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""On which CPUs a node can keep the namespaces of jobs: on a kernel that refuses some, and on made-up answers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "roles/slurm/files/keeps-namespaces.py"
REFUSED = "unshare: mount /proc/7/ns/mnt on kept failed: Invalid argument"
# Like a container that was started on CPU 0 after many others: the numbers of its namespace are above those that CPU 1 has left.
YOUNG = f"""
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
allowed = os.sched_getaffinity(0)
os.sched_setaffinity(0, {{0}})
for number in range(3 * 4096):
    libc.unshare(0x04000000)
if libc.unshare(0x00020000) or libc.mount(None, b"/", None, 1 << 18 | 1 << 14, None):
    sys.exit("no mount namespaces for this test")
os.sched_setaffinity(0, allowed)
for words in [], ["mend"], []:
    subprocess.run([sys.executable, {str(SCRIPT)!r}, *words], check=True)
"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keeps_namespaces", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Node:
    """Answers of a node with four CPUs, of which some refuse until their numbers are used up."""

    def __init__(self, *refusing: int, mounts: bool = True, mends: bool = True) -> None:
        self.refusing, self.mounts, self.mends, self.here = set(refusing), mounts, mends, {0, 1, 2, 3}

    def run(self, program: str, *_argv: str) -> tuple[bool, str]:
        if program == "unshare" and self.here <= self.refusing:
            return False, REFUSED
        return (self.mounts or program != "mount"), "" if self.mounts else "mount: /run/x: permission denied."

    def use_up(self, cpu: int) -> None:
        if self.mends:
            self.refusing.remove(cpu)


def say(node: Node, script: ModuleType, monkeypatch, *words: str) -> None:
    monkeypatch.setattr(script, "run", node.run)
    monkeypatch.setattr(script, "use_up", node.use_up)
    monkeypatch.setattr(script, "FOLDER", None)
    monkeypatch.setattr(script.os, "sched_getaffinity", lambda _pid: node.here)
    monkeypatch.setattr(script.os, "sched_setaffinity", lambda _pid, cpus: setattr(node, "here", set(cpus)))
    monkeypatch.setattr(sys, "argv", ["keeps-namespaces", *words])
    script.main()


@pytest.mark.parametrize(
    ("node", "words", "lines"),
    [
        (Node(), [], ["kept on every CPU"]),
        (Node(), ["mend"], ["kept on every CPU"]),
        (Node(1, 3), [], [f"refused on CPU 1,3: {REFUSED}"]),
        (Node(1, 3), ["mend"], ["used up the numbers of CPU 1,3", "kept on every CPU"]),
        (Node(2, mends=False), ["mend"], ["used up the numbers of CPU 2", f"refused on CPU 2: {REFUSED}"]),
        (Node(mounts=False), ["mend"], ["cannot be tried: mount: mount: /run/x: permission denied."]),
    ],
)
def test_what_is_said(node, words, lines, request, capsys):
    say(node, request.getfixturevalue("script"), request.getfixturevalue("monkeypatch"), *words)
    assert capsys.readouterr().out.splitlines() == lines


def test_on_this_kernel():
    """Where the kernel refuses, it no longer does when the numbers of the CPU are used up."""
    if os.geteuid() or not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs root and two CPUs")
    done = subprocess.run([sys.executable, "-c", YOUNG], capture_output=True, text=True, check=False)
    if done.returncode or "kept on every CPU" in done.stdout.splitlines()[0]:
        pytest.skip(done.stderr.strip() or "this kernel keeps namespaces of every number")
    before, *after = done.stdout.splitlines()
    assert "refused on CPU" in before
    assert "Invalid argument" in before
    assert "used up the numbers of CPU" in after[0]
    assert after[1:] == ["kept on every CPU", "kept on every CPU"]
