# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints: `step-N` folders of torch.distributed.checkpoint with a manifest, complete or not there.

A checkpoint is written as `step-N.tmp`; when all ranks are done, rank 0 adds `manifest.json` (muster.checkpoint/1, with the size of
every file) and renames the folder. Whatever kills a run in between leaves a folder that is never chosen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim import Optimizer

from trainer.config import UsageError

SCHEMA = "muster.checkpoint/1"

# The optimizer's state by parameter name: the stages of a pipeline, and layouts that group parameters otherwise, meet in one checkpoint.
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete checkpoint; None where a file is missing or has another size."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        whole = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return manifest if whole and manifest.get("schema") == SCHEMA else None


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints below `folder`, oldest first."""
    steps = sorted((int(match[1]), path) for path in folder.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name)))
    return [path for _, path in steps if manifest_of(path)]


def newest(folders: list[Path]) -> Path | None:
    """The newest complete checkpoint of the first folder that has one. Rank 0 looks and tells the others."""
    found = [next((paths[-1] for folder in folders if (paths := complete(folder))), None)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(found)
    return found[0]


def save(folder: Path, step: int, model: nn.Module, optimizer: Optimizer, *, facts: dict[str, Any], keep: int) -> Path:
    """Write `step-N` together with all ranks, then remove all but the newest `keep` (0 keeps all). `facts` go into the manifest."""
    target = folder / f"step-{step}"
    temporary = folder / f"step-{step}.tmp"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("step-*.tmp"):
            shutil.rmtree(left)
    dist.barrier()
    model_state, optimizer_state = get_state_dict(model, optimizer, options=BY_NAME)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=temporary)
    dist.barrier()
    if dist.get_rank() == 0:
        files = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        with (temporary / "manifest.json").open("w") as file:
            json.dump({"schema": SCHEMA, "step": step, "files": files} | facts, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        for old in complete(folder)[:-keep] if keep else []:
            shutil.rmtree(old)
    dist.barrier()
    return target


def load(folder: Path, model: nn.Module, optimizer: Optimizer, identity: dict[str, Any]) -> dict[str, Any]:
    """Read a complete checkpoint into the model and the optimizer; its manifest. Raises UsageError where `identity` is not its own."""
    manifest = manifest_of(folder)
    assert manifest is not None
    for key, value in identity.items():
        if manifest["identity"].get(key) != value:
            raise UsageError(
                f"{folder} was trained with {key} {manifest['identity'].get(key)}, this run has {value}: choose another --checkpoint_dir"
            )
    # The target has to exist before: DCP fills the tensors that it is handed and adds none.
    model_state, optimizer_state = get_state_dict(model, optimizer, options=BY_NAME)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state, options=BY_NAME)
    return manifest
