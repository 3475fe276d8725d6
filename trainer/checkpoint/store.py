# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Opens the folder or bucket of a run's checkpoints and finds the complete ones."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.checkpoint.folder import SCHEMA, Folder, damage, numbered
from trainer.checkpoint.s3 import Bucket
from trainer.cli import UsageError
from trainer.comm import first_does, told_by_all

Store = Folder | Bucket


def open_store(path: str) -> Store:
    """The folder or bucket of checkpoints; raises UsageError for a bucket that cannot be used."""
    return Bucket(path) if path.startswith("s3://") else Folder(path)


def same(one: str | None, other: str | None) -> bool:
    """Whether both are one folder or bucket of checkpoints, however it is written."""
    places = [path and (path.rstrip("/") if path.startswith("s3://") else str(Path(path).resolve())) for path in (one, other)]
    return places[0] == places[1]


def manifest_of(store: Store, step: int) -> dict[str, Any] | None:
    """The manifest of a finished checkpoint; None without one. Raises UsageError if it is not one of ours."""
    text = store.read(f"step-{step}/manifest.json")
    try:
        manifest: dict[str, Any] | None = None if text is None else json.loads(text)
        if manifest is None or (manifest["schema"] == SCHEMA and isinstance(manifest["files"], dict)):
            return manifest
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"its manifest.json is not one of schema {SCHEMA}")


def damage_of(store: Store, step: int) -> str | None:
    """How the manifest, or the files by their sizes, are damaged: empty for a whole checkpoint, None for one that was not finished."""
    try:
        manifest = manifest_of(store, step)
    except UsageError as error:
        return str(error)
    return None if manifest is None else damage(manifest["files"], store.sizes(f"step-{step}"))


def complete_steps(store: Store) -> list[int]:
    """The steps of the complete checkpoints, oldest first."""
    return [step for step in numbered(store.names()) if damage_of(store, step) == ""]


def changed(store: Store, step: int, part: slice = slice(None)) -> str:
    """Name a file of the checkpoint whose content has changed since it was written; empty if none has. `part` is the files to read."""
    manifest, reader = manifest_of(store, step), store.reader(step)
    assert manifest is not None
    for name, (_, expected) in sorted(manifest["files"].items())[part]:
        with reader.fs.create_stream(reader.fs.concat_path(reader.path, name), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                return f"the checksum of {name} differs"
    return ""


def verify(store: Store, step: int) -> str:
    """As `changed`, by all ranks together: each reads its share of the files. Raises UsageError if one cannot be read."""
    try:
        mine: str | Exception = changed(store, step, slice(dist.get_rank(), None, dist.get_world_size()))
    except Exception as error:
        mine = error
    everyone = told_by_all(mine)
    if failed := next((found for found in everyone if isinstance(found, Exception)), None):
        raise UsageError(f"{store.path(step)} cannot be read ({failed}): remove it to resume from the one before it")
    return next(filter(None, everyone), "")


def foreign(store: Store) -> str | None:
    """The name of another program's checkpoint: one of DCP without our manifest, or a folder with a name of the AWS reference trainer's."""
    for name in store.names():
        if re.fullmatch(r"[a-z0-9_]+-\d+steps", name) or (
            isinstance(store, Folder) and (store.root / name / ".metadata").exists() and not name.startswith("step-")
        ):
            return name
    return None


def newest(stores: Sequence[Store], required: bool = False) -> tuple[tuple[Store, int] | None, list[str]]:
    """The newest whole checkpoint of the first store that has finished ones, and a sentence for each damaged one that is newer.

    The stores may all be empty, unless `required`. Raises UsageError, also if all checkpoints are damaged.
    """

    def search() -> tuple[int, list[tuple[int, str]]]:
        for number, store in enumerate(stores):
            try:
                steps = [(step, found) for step in reversed(numbered(store.names())) if (found := damage_of(store, step)) is not None]
                if not steps and (other := foreign(store)):
                    raise UsageError(f"{store} holds the checkpoint {other} of another program: choose another folder")
            except OSError as error:
                raise UsageError(f"{store} cannot be read: {error.strerror}: choose another --checkpoint_dir") from None
            if steps:
                return number, steps
        if required:
            raise UsageError(f"{stores[-1]} has no complete checkpoint to resume from: correct --resume_from_checkpoint")
        return 0, []

    number, steps = first_does(search)
    damaged: list[str] = []
    for step, found in steps:
        reason = found or verify(stores[number], step)
        if not reason:
            return (stores[number], step), damaged
        damaged.append(f"{stores[number].path(step)} is damaged: {reason}")
    if damaged:
        raise UsageError(f"{damaged[0]}; no checkpoint before it is whole: restore it, or remove it to start at step 0")
    return None, []
