# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH to local nodes: the fleet's key, the nodes' host keys, and whether an sshd answers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError, run_command


def make_key(path: Path, comment: str) -> None:
    """Make an ed25519 key pair without a pass phrase, unless it exists; the private half appears last."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    done = run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(new)])
    if done.code != 0:
        raise NodeContainerError(f"No SSH key could be made at {path} ({done.reason}): install the OpenSSH client.")
    new.with_name(new.name + ".pub").replace(path.with_name(path.name + ".pub"))
    new.replace(path)


def ssh_answers(address: str) -> bool:
    """Whether an sshd answers at an address."""
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
