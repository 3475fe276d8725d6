# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Opens the folder or bucket of a run's checkpoints and finds the complete ones."""

import re
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from trainer.checkpoint.folder import Folder, numbered
from trainer.checkpoint.s3 import Bucket
from trainer.cli import UsageError

Store = Folder | Bucket


def open_store(path: str) -> Store:
    """The folder or bucket of checkpoints; raises UsageError for a bucket that cannot be used."""
    return Bucket(path) if path.startswith("s3://") else Folder(path)


def complete_steps(store: Store) -> list[int]:
    """The steps of the complete checkpoints, oldest first."""
    return [step for step in numbered(store.names()) if store.manifest(step)]


def foreign(store: Store) -> str | None:
    """The name of another program's checkpoint: one of DCP without our manifest, or a folder with a name of the AWS reference trainer's."""
    for name in store.names():
        if re.fullmatch(r"[a-z0-9_]+-\d+steps", name) or (
            isinstance(store, Folder) and (store.root / name / ".metadata").exists() and not name.startswith("step-")
        ):
            return name
    return None


def newest(stores: Sequence[Store], required: bool = False) -> tuple[Store, int] | None:
    """The newest complete checkpoint of the first store that has one. Rank 0 searches and tells the others.

    The stores may all be empty, unless `required`. Raises UsageError.
    """
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            for number, store in enumerate(stores):
                if steps := complete_steps(store):
                    found = [(number, steps[-1])]
                    break
                if other := foreign(store):
                    found = [f"{store} holds the checkpoint {other} of another program: choose another folder"]
                    break
            else:
                if required:
                    found = [f"{stores[-1]} has no complete checkpoint to resume from: correct --resume_from_checkpoint"]
        except OSError as error:
            found = [f"{stores[0]} cannot be read: {error.strerror}: choose another --checkpoint_dir"]
    dist.broadcast_object_list(found)
    if isinstance(found[0], str):
        raise UsageError(found[0])
    return (stores[found[0][0]], found[0][1]) if found[0] else None
