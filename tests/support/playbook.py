# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Playbooks against this machine, as a user runs them in the checkout from a folder of his own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_playbook(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook with these arguments, as if the user were in `folder`."""
    return subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", *words],
        cwd=ROOT,
        env={**os.environ, "PWD": str(folder), "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
