# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The AWS CLI, version 2, for tests that type its commands: Debian's packages of it, unpacked once into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir

SYSTEM = "/usr/bin/python3"  # for which Debian built the packages
DEPENDS = [
    "apt-cache",
    "depends",
    "--recurse",
    "--no-recommends",
    "--no-suggests",
    "--no-conflicts",
    "--no-breaks",
    "--no-replaces",
    "--no-enhances",
    "awscli",
]
# This version of the CLI reads no AWS_ENDPOINT_URL.
WRAPPER = f"""#!/bin/sh
PYTHONPATH=%(root)s/usr/lib/python3/dist-packages exec {SYSTEM} %(root)s/usr/bin/aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"
"""


def folder() -> Path:
    """The folder in which `aws` is. Skips the test where it cannot be had."""
    kept = cache_dir(os.environ) / "debian" / "awscli"
    if not (kept / "bin/aws").exists():
        if not shutil.which("apt-get"):
            pytest.skip("not_run: this test needs apt-get, by which it fetches the AWS CLI")
        listed = subprocess.run(DEPENDS, capture_output=True, text=True, check=False, timeout=120).stdout
        wanted = sorted(set(re.findall(r"^(python3-\S+|awscli)$", listed, re.MULTILINE)) - {"python3-minimal"})
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            done = subprocess.run(["apt-get", "-qq", "download", *wanted], cwd=work, capture_output=True, check=False, timeout=300)
            if done.returncode or not wanted:
                pytest.skip("not_run: apt-get cannot download awscli of Debian")
            for archive in Path(work).glob("*.deb"):
                subprocess.run(["dpkg", "-x", archive.name, "root"], cwd=work, check=True, timeout=120)
            made = Path(work, "root/bin/aws")
            made.parent.mkdir(exist_ok=True)
            made.write_text(WRAPPER % {"root": kept})
            made.chmod(0o755)
            shutil.rmtree(kept, ignore_errors=True)
            Path(work, "root").rename(kept)
    return kept / "bin"
