# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints in a folder. All ranks write into `step-N.tmp`; then rank 0 adds the manifest and renames the folder to `step-N`."""

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

SCHEMA = "muster.checkpoint/1"


def checked(text: str | bytes) -> dict[str, Any] | None:
    """The manifest in `text`, or None if it is not one of ours."""
    try:
        manifest: dict[str, Any] = json.loads(text)
        return manifest if manifest["schema"] == SCHEMA and isinstance(manifest["files"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def numbered(names: Iterable[str]) -> list[int]:
    """The steps of the folders called `step-N`, in order."""
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


class Folder:
    """Checkpoints in a folder that all ranks see."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def path(self, step: int) -> str:
        return str(self.root / f"step-{step}")

    def manifest(self, step: int) -> dict[str, Any] | None:
        """The manifest of a complete checkpoint; None if a file is missing or has another size."""
        folder = Path(self.path(step))
        try:
            manifest = checked((folder / "manifest.json").read_text())
            whole = manifest and all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        except OSError:
            return None
        return manifest if whole else None

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []

    def writer(self, step: int) -> Any:
        return dcp.FileSystemWriter(Path(f"{self.path(step)}.tmp"))

    def reader(self, step: int) -> Any:
        return dcp.FileSystemReader(self.path(step))

    def clean(self) -> None:
        """Remove the incomplete checkpoints of killed runs."""
        self.root.mkdir(parents=True, exist_ok=True)
        for left in self.root.glob("step-*.tmp"):
            shutil.rmtree(left)

    def finish(self, step: int, facts: dict[str, Any]) -> None:
        """Complete the checkpoint of `step`, whose files all ranks have written."""
        target, temporary = Path(self.path(step)), Path(f"{self.path(step)}.tmp")
        files = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        with (temporary / "manifest.json").open("w") as file:
            json.dump({"schema": SCHEMA, "step": step, "files": files} | facts, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)

    def remove(self, step: int) -> None:
        shutil.rmtree(self.path(step))

    def drop(self, step: int) -> None:
        """Remove the files of a checkpoint that failed. The disk may be full, so every byte counts."""
        shutil.rmtree(f"{self.path(step)}.tmp", ignore_errors=True)

    def read(self, name: str) -> str | None:
        path = self.root / name
        return path.read_text() if path.exists() else None

    def write(self, name: str, text: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f"{name}.tmp"
        temporary.write_text(text)
        temporary.replace(self.root / name)
