# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The collection amazon.aws out of the ansible package that uv.lock pins, to compare the inventory plugins; fetched once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pinned() -> tuple[str, str]:
    """Version and sha256 of the wheel for this Python."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    new = sys.version_info >= (3, 12)
    for each in packages:
        if each["name"] == "ansible" and any((">=" in marker) == new for marker in each["resolution-markers"]):
            return each["version"], each["wheels"][0]["hash"].removeprefix("sha256:")
    raise LookupError("uv.lock has no ansible for this Python")


def collections() -> Path:
    """A folder for ANSIBLE_COLLECTIONS_PATH with amazon.aws in it."""
    version, digest = pinned()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "muster"
    folder = cache / f"amazon.aws-{version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            made,
            f"ansible=={version}",
        ]
        subprocess.run(command, check=True)
        wheel = next(Path(made).glob("ansible-*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{wheel.name} is not the file of uv.lock")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(made) / "x", [each for each in archive.namelist() if each.startswith("ansible_collections/amazon/")])
        try:
            (Path(made) / "x").rename(folder)
        except OSError:
            # Another run was faster.
            shutil.rmtree(Path(made) / "x")
    return folder
