# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints in a folder. All ranks write into `step-N.tmp`; then rank 0 adds the manifest and renames the folder to `step-N`."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

SCHEMA = "muster.checkpoint/2"
Files = dict[str, tuple[int, str]]  # name → bytes and SHA-256


class Writing:
    """A file while it is written, with the number of bytes and their checksum."""

    def __init__(self, file: Any) -> None:
        self.file, self.bytes, self.sum = file, 0, hashlib.sha256()

    def write(self, content: Any) -> Any:
        self.bytes += memoryview(content).nbytes
        self.sum.update(content)
        return self.file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Summed:
    """A file system of DCP that notes the bytes and checksum of each file written through it."""

    def __init__(self, system: Any) -> None:
        self.system = system
        self.files: Files = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[Any, None, None]:
        with self.system.create_stream(path, mode) as file:
            writing = Writing(file)
            yield writing
        self.files[Path(path).name] = (writing.bytes, writing.sum.hexdigest())

    def rename(self, path: Any, new_path: Any) -> None:
        self.system.rename(path, new_path)
        self.files[Path(new_path).name] = self.files.pop(Path(path).name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.system, name)


def damage(files: Files, sizes: dict[str, int]) -> str:
    """How the files that are there, with their sizes, differ from those of a manifest; empty if they do not."""
    for name, (size, _) in files.items():
        if (found := sizes.get(name)) != size:
            return f"{name} is missing" if found is None else f"{name} has {found} bytes and not {size}"
    return ""


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

    def sizes(self, name: str) -> dict[str, int]:
        """The files of the folder `name` with their sizes."""
        return {path.name: path.stat().st_size for path in (self.root / name).iterdir()}

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

    def finish(self, step: int, manifest: dict[str, Any]) -> None:
        """Complete the checkpoint of `step`, whose files all ranks have written; raises OSError if they are not all here."""
        target, temporary = Path(self.path(step)), Path(f"{self.path(step)}.tmp")
        if reason := damage(manifest["files"], self.sizes(temporary.name)):
            raise OSError(f"{reason} on the host of rank 0")
        with (temporary / "manifest.json").open("w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)

    def remove(self, step: int) -> None:
        # Rename it first: if this run is killed here, the rest is no complete checkpoint.
        shutil.rmtree(Path(self.path(step)).rename(f"{self.path(step)}.tmp"))

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
