# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Programs of Debian's packages for tests that only run them: this machine's own, or those of the package, unpacked once into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir


def unpacked(package: str, program: str) -> Path:
    """The folder in which usr/bin has the program. Skips the test where this machine neither has it nor can fetch it."""
    if Path("/usr/bin", program).exists():
        return Path("/")
    kept = cache_dir(os.environ) / "debian" / package
    if not kept.exists():
        if not shutil.which("apt-get"):
            pytest.skip(f"not_run: there is no {program}; install {package}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            done = subprocess.run(["apt-get", "-qq", "download", package], check=False, cwd=work, capture_output=True, timeout=120)
            archives = list(Path(work).glob("*.deb"))
            if done.returncode != 0 or not archives:
                pytest.skip(f"not_run: there is no {program}, and apt-get cannot download {package}")
            subprocess.run(["dpkg", "-x", archives[0].name, "root"], cwd=work, check=True, timeout=120)
            try:
                Path(work, "root").rename(kept)
            except OSError:  # another worker was first
                assert kept.exists()
    return kept
