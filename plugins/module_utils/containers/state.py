# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state folder of a local fleet: its record, its keys and the hosts file that all its nodes have mounted."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError, write_whole
from ansible_collections.muster.fleet.plugins.module_utils.containers.network import hosts_text

SCHEMA = "muster.local_fleet/1"


def read_record(state: Path) -> dict | None:
    """The fleet's record, or None when it is not up."""
    try:
        return json.loads((state / "fleet.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise NodeContainerError(f"{state / 'fleet.json'} is damaged: remove the fleet with make down and bring it up again.") from None


def write_record(state: Path, record: dict) -> None:
    """Write the record, and what follows from its nodes: known_hosts and the hosts file."""
    known = []
    for node in record["nodes"]:
        key = (state / "hostkeys" / node["name"] / "ssh_host_ed25519_key.pub").read_text(encoding="utf-8").split()
        known.append(f"{node['address']},{node['name']} {key[0]} {key[1]}\n")
    write_whole(state / "ssh" / "known_hosts", "".join(known), 0o600)
    rewrite(state / "hosts", hosts_text(record["nodes"]))
    write_whole(state / "fleet.json", json.dumps(record, indent=1) + "\n")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read and run."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
    with open(handle, "wb") as file:
        file.write(content)


def rewrite(path: Path, text: str) -> None:
    """Rewrite a file in place, because bind mounts go on showing a file that was replaced. A reader never finds it empty."""
    data = text.encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.fchmod(handle, 0o644)  # users of the nodes read it, whatever umask made it
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)
