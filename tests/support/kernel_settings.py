# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The kernel settings of this machine, which no test may change."""

from __future__ import annotations

from pathlib import Path


def kernel_settings() -> dict[str, str]:
    """The machine's settings that a privileged container could change, without counters and the machine's network."""
    moving = ("/random/", "/net/", "-nr", "-state", "ns_last_pid", "/pty/nr", "/quota/syncs")
    found = {}
    for path in Path("/proc/sys").rglob("*"):
        if not any(part in str(path) for part in moving) and path.is_file():
            try:
                found[str(path)] = path.read_text()
            except OSError:  # write-only and unsupported settings
                continue
    return found
