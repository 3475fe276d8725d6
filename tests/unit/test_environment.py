# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The virtual environment that tools/venv.sh makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("command", ["ansible-config", "ansible-playbook", "pytest"])
def test_programs_find_each_other_without_activation(command: str) -> None:
    """Molecule and testinfra call Ansible by its bare name."""
    program = f"import shutil; print(shutil.which('{command}'))"
    done = subprocess.run([sys.executable, "-c", program], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(Path(sys.prefix, "bin", command))
