# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Starts the ranks of a bench."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def start(ranks: int, argv: list[str], **env: str) -> list[str]:
    """What each rank printed of `python ARGV…`, started as torchrun would; ends the bench if one fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"} | env
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen([sys.executable, *argv], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)  # type: ignore[call-overload]
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("".join(said))
    return said
