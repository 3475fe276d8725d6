# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints: `step-N` of torch.distributed.checkpoint with a manifest, complete or not there, in a folder or on S3.

In a folder a checkpoint is written as `step-N.tmp`; when all ranks are done, rank 0 adds `manifest.json` (muster.checkpoint/1, with
the size of every file) and renames the folder. On S3, which cannot rename, the manifest comes last and makes the checkpoint. Whatever kills
a run in between leaves something that is never chosen.
"""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemBase
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.config import TrainerError, UsageError

SCHEMA = "muster.checkpoint/1"
FULL = {errno.ENOSPC: "no space is left", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the limit of a file's size is reached"}

HALF = re.compile(r"PytorchStreamWriter failed|file write failed|unexpected pos")  # what torch.save makes of a full disk


def checked(text: str | bytes) -> dict[str, Any] | None:
    """The manifest in `text`, None where it is none of ours."""
    try:
        manifest: dict[str, Any] = json.loads(text)
        return manifest if manifest["schema"] == SCHEMA and isinstance(manifest["files"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


class Folder:
    """Checkpoints in a folder that all ranks see."""

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)

    def __str__(self) -> str:
        return str(self.place)

    def path(self, step: int) -> str:
        return str(self.place / f"step-{step}")

    def manifest(self, step: int) -> dict[str, Any] | None:
        """The manifest of a complete checkpoint; None where a file is missing or has another size."""
        folder = Path(self.path(step))
        try:
            manifest = checked((folder / "manifest.json").read_text())
            whole = manifest and all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        except OSError:
            return None
        return manifest if whole else None

    def names(self) -> list[str]:
        return sorted(path.name for path in self.place.iterdir()) if self.place.is_dir() else []

    def writer(self, step: int) -> Any:
        return dcp.FileSystemWriter(Path(f"{self.path(step)}.tmp"))

    def reader(self, step: int) -> Any:
        return dcp.FileSystemReader(self.path(step))

    def clean(self) -> None:
        """Remove what killed runs left."""
        self.place.mkdir(parents=True, exist_ok=True)
        for left in self.place.glob("step-*.tmp"):
            shutil.rmtree(left)

    def finish(self, step: int, facts: dict[str, Any]) -> None:
        """What all ranks have written becomes the checkpoint of `step`."""
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
        """Remove what was written of a checkpoint that failed: with no space left, every byte counts."""
        shutil.rmtree(f"{self.path(step)}.tmp", ignore_errors=True)

    def read(self, name: str) -> str | None:
        path = self.place / name
        return path.read_text() if path.exists() else None

    def write(self, name: str, text: str) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        temporary = self.place / f"{name}.tmp"
        temporary.write_text(text)
        temporary.replace(self.place / name)


class Ranged(io.RawIOBase):
    """An object of S3 as a file that is read in ranges: DCP reads a few tensors out of a large one."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self.client, self.bucket, self.key, self.at = client, bucket, key, 0
        self.size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        end = min(self.at + len(buffer), self.size)
        if end <= self.at:
            return 0
        part = self.client.get_object(Bucket=self.bucket, Key=self.key, Range=f"bytes={self.at}-{end - 1}")["Body"].read()
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


class Objects(FileSystemBase):
    """What DCP's writer and reader need of a file system, for the keys of a bucket."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.client, self.bucket = client, bucket

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[Any, None, None]:
        if mode == "rb":
            yield io.BufferedReader(Ranged(self.client, self.bucket, str(path)), 8 << 20)
            return
        with tempfile.SpooledTemporaryFile(64 << 20) as file:
            file.close = lambda: None  # type: ignore[method-assign]  # newer torch closes what it has written, and it is still to be read
            yield file
            file.seek(0)
            # Large ones go up in parts; an object is there when its upload is whole, and not before.
            self.client.upload_fileobj(file, self.bucket, str(path))

    def concat_path(self, path: Any, suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: Any) -> str:
        return str(path)

    def mkdir(self, path: Any) -> None: ...

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def exists(self, path: Any) -> bool:
        return bool(self.client.list_objects_v2(Bucket=self.bucket, Prefix=str(path), MaxKeys=1).get("KeyCount"))

    def rm_file(self, path: Any) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=str(path))

    def rename(self, path: Any, new_path: Any) -> None:
        self.client.copy_object(Bucket=self.bucket, Key=str(new_path), CopySource={"Bucket": self.bucket, "Key": str(path)})
        self.rm_file(path)


class Bucket:
    """Checkpoints below s3://BUCKET/PREFIX. Credentials, region and endpoint are boto3's, from the environment or the instance."""

    def __init__(self, place: str) -> None:
        try:
            import boto3
        except ModuleNotFoundError:
            raise UsageError(f"boto3 is not installed: `pip install muster-trainer[s3]` brings it, {place} needs it") from None
        self.place = place.rstrip("/")
        self.bucket, _, self.prefix = self.place.removeprefix("s3://").partition("/")
        self.client = boto3.client("s3")
        try:
            self.client.head_bucket(Bucket=self.bucket)
        except Exception as error:
            raise UsageError(f"{place} cannot be used: {error}: look at the bucket's name, the region and the credentials") from None

    def __str__(self) -> str:
        return self.place

    def path(self, step: int) -> str:
        return f"{self.place}/step-{step}"

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def sizes(self, name: str) -> dict[str, int]:
        """The objects below `name`/ with their sizes."""
        prefix = self.key(name) + "/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return {entry["Key"].removeprefix(prefix): entry["Size"] for page in pages for entry in page.get("Contents", [])}

    def manifest(self, step: int) -> dict[str, Any] | None:
        text = self.read(f"step-{step}/manifest.json")
        manifest = checked(text) if text else None
        sizes = self.sizes(f"step-{step}")
        return manifest if manifest and all(sizes.get(name) == size for name, size in manifest["files"].items()) else None

    def names(self) -> list[str]:
        prefix = self.key("") if self.prefix else ""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
        return sorted(entry["Prefix"].removeprefix(prefix).rstrip("/") for page in pages for entry in page.get("CommonPrefixes", []))

    def writer(self, step: int) -> Any:
        writer = dcp.FileSystemWriter(self.key(f"step-{step}"), sync_files=False)
        writer.fs, writer.path = Objects(self.client, self.bucket), self.key(f"step-{step}")  # type: ignore[assignment]
        return writer

    def reader(self, step: int) -> Any:
        reader = dcp.FileSystemReader(self.key(f"step-{step}"))
        reader.fs, reader.path = Objects(self.client, self.bucket), self.key(f"step-{step}")  # type: ignore[assignment]
        return reader

    def clean(self) -> None:
        for step in numbered(self.names()):
            if self.read(f"step-{step}/manifest.json") is None:
                self.drop(step)

    def finish(self, step: int, facts: dict[str, Any]) -> None:
        manifest = {"schema": SCHEMA, "step": step, "files": self.sizes(f"step-{step}")} | facts
        self.write(f"step-{step}/manifest.json", json.dumps(manifest, indent=1))

    def remove(self, step: int) -> None:
        # The manifest goes first: what is left when this is killed is no checkpoint.
        self.client.delete_object(Bucket=self.bucket, Key=self.key(f"step-{step}/manifest.json"))
        self.drop(step)

    def drop(self, step: int) -> None:
        for name in self.sizes(f"step-{step}"):
            self.client.delete_object(Bucket=self.bucket, Key=self.key(f"step-{step}/{name}"))

    def read(self, name: str) -> str | None:
        try:
            return self.client.get_object(Bucket=self.bucket, Key=self.key(name))["Body"].read().decode()
        except self.client.exceptions.NoSuchKey:
            return None

    def write(self, name: str, text: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self.key(name), Body=text.encode())


Store = Folder | Bucket


def open_store(place: str) -> Store:
    """Where checkpoints are kept; raises UsageError for a bucket that cannot be used."""
    return Bucket(place) if place.startswith("s3://") else Folder(place)


def numbered(names: Iterable[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


def complete_steps(store: Store) -> list[int]:
    """The steps of the complete checkpoints, oldest first."""
    return [step for step in numbered(store.names()) if store.manifest(step)]


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints below `folder`, oldest first."""
    return [folder / f"step-{step}" for step in complete_steps(Folder(folder))]


def foreign(store: Store) -> str | None:
    """A checkpoint of another program: DCP's without our manifest, or a folder as the AWS reference trainer names them."""
    for name in store.names():
        if re.fullmatch(r"[a-z0-9_]+-\d+steps", name) or (
            isinstance(store, Folder) and (store.place / name / ".metadata").exists() and not name.startswith("step-")
        ):
            return name
    return None


def newest(stores: Sequence[Store], required: bool = False) -> tuple[Store, int] | None:
    """The newest complete checkpoint of the first store that has one. Rank 0 looks and tells the others. Raises UsageError.

    A store that this run writes to may be empty; with `required` the last one was asked for, and one has to be found.
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
                    found = [f"{stores[-1]} has no complete checkpoint to resume from: look at --resume_from_checkpoint"]
        except OSError as error:
            found = [f"{stores[0]} cannot be read: {error.strerror}: choose another --checkpoint_dir"]
    dist.broadcast_object_list(found)
    if isinstance(found[0], str):
        raise UsageError(found[0])
    return (stores[found[0][0]], found[0][1]) if found[0] else None


# What saving and loading raise: DCP's own exception is no Exception, so that handlers of those would miss it.
FAILURES = (Exception, dcp.CheckpointException)


def causes(error: BaseException) -> list[BaseException]:
    """What the ranks raised, where `error` is DCP's collection of that."""
    return [cause for cause, _ in error.failures.values()] if isinstance(error, dcp.CheckpointException) else [error]


@contextmanager
def reading(path: str) -> Generator[None, None, None]:
    """Makes what fails inside a UsageError about the checkpoint `path`."""
    try:
        yield
    except FAILURES as error:
        cause = causes(error)[0]
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise UsageError(f"{path} cannot be read ({reason}): remove it, and the one before it is taken") from None


FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Weights and optimizer state by parameter name: the names are those of the whole model, however it is cut and sharded."""
    weights, moments = get_state_dict(model, optimizer, options=FLAT)
    return {"model": weights, "optimizer": moments}


class Stage:
    """Copies of the state in host memory, taken while the training stands still. The memory is kept: it costs more than the copy."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def copy(self, state: Any, name: str = "") -> Any:
        if isinstance(state, dict):
            return {key: self.copy(value, f"{name}.{key}") for key, value in state.items()}
        if isinstance(state, DTensor):
            part = self.copy(state.to_local(), name)
            return DTensor.from_local(part, state.device_mesh, state.placements, run_check=False, shape=state.shape, stride=state.stride())
        if isinstance(state, torch.Tensor):
            kept = self.kept.get(name)
            if kept is None or kept.shape != state.shape:
                kept = self.kept[name] = torch.empty_like(state, device="cpu", pin_memory=state.is_cuda)
            return kept.copy_(state, non_blocking=True)
        return copy.deepcopy(state)

    def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        staged: dict[str, Any] = self.copy(state)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return staged


class Saver:
    """Writes checkpoints, if asked to while the training goes on: then only the copy into host memory stops it."""

    def __init__(self, store: Store, keep: int, asynchronous: bool) -> None:
        self.store, self.keep, self.asynchronous = store, keep, asynchronous
        # Of its own, because its thread talks to the other ranks at any time.
        self.group = dist.new_group(backend="gloo")
        self.stage = Stage()
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.done: tuple[str, int, float] | None = None
        self.seconds = 0.0  # of the slowest write so far

    def save(self, step: int, state: dict[str, Any], facts: dict[str, Any]) -> None:
        """Begin to write `step-N` together with all ranks, and end it too unless asynchronous. Raises TrainerError."""
        self.wait()
        if not self.asynchronous:
            self._write(step, state, facts)
            self._raise()
            return
        staged = self.stage(state)
        self.thread = threading.Thread(target=self._write, args=(step, staged, facts), daemon=True, name="checkpoint")
        self.thread.start()

    def _write(self, step: int, state: dict[str, Any], facts: dict[str, Any]) -> None:
        began = time.monotonic()
        first = dist.get_rank() == 0
        try:
            self._together(self.store.clean if first else None)
            dcp.save(state, storage_writer=self.store.writer(step), process_group=self.group)
            self._together((lambda: self._finish(step, facts)) if first else None)
        except FAILURES as error:
            self.error = error
            if first:
                self.store.drop(step)
            return
        self.seconds = max(self.seconds, time.monotonic() - began)
        self.done = (self.store.path(step), step, time.monotonic() - began)

    def _together(self, work: Callable[[], None] | None) -> None:
        """Rank 0 does `work` while the others wait; all of them learn how it failed."""
        failed: list[Any] = [None]
        if work:
            try:
                work()
            except Exception as error:
                failed = [error]
        dist.broadcast_object_list(failed, src=0, group=self.group)
        if failed[0]:
            raise failed[0]

    def _finish(self, step: int, facts: dict[str, Any]) -> None:
        self.store.finish(step, facts)
        for old in complete_steps(self.store)[: -self.keep] if self.keep else []:
            self.store.remove(old)

    def _raise(self) -> None:
        if self.error is None:
            return
        errors = causes(self.error)
        reason = next((FULL[error.errno] for error in errors if isinstance(error, OSError) and error.errno in FULL), None)
        if reason is None and any(HALF.search(str(error)) for error in errors):
            reason = "a file could not be written whole"
        steps = complete_steps(self.store)
        kept = f"{self.store.path(steps[-1])} is whole" if steps else "there is none before it"
        first = str(errors[0]).splitlines() or [type(errors[0]).__name__]
        raise TrainerError(
            f"a checkpoint could not be written to {self.store}, {reason or first[0]}: {kept}; make space or lower --keep_checkpoints"
        )

    def poll(self) -> tuple[str, int, float] | None:
        """The path, step and seconds of a checkpoint that became complete since the last call."""
        found, self.done = self.done, None
        return found

    @property
    def failed(self) -> bool:
        return self.error is not None

    def wait(self) -> None:
        """Until nothing is being written any more. Raises TrainerError."""
        if self.thread:
            self.thread.join()
            self.thread = None
        self._raise()


def load(
    store: Store, step: int, model: nn.Module, optimizer: Optimizer, *, identity: dict[str, Any], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a complete checkpoint into the model and the optimizer; its manifest, and the data's `keys` out of it.

    Raises UsageError where `identity` is not the checkpoint's, or where its files cannot be read.
    """
    manifest = store.manifest(step)
    assert manifest is not None
    path = store.path(step)
    for key, value in identity.items():
        if manifest["identity"].get(key) != value:
            raise UsageError(
                f"{path} was trained with {key} {manifest['identity'].get(key)}, this run has {value}: choose another --checkpoint_dir"
            )
    # The target has to exist before: DCP fills the tensors that it is handed and adds none.
    state = state_of(model, optimizer)
    known = manifest.get("data", [])
    state["data"] = {key: "" for key in keys if key in known}
    with reading(path):
        dcp.load(state, storage_reader=store.reader(step))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=FLAT)
    return manifest, state["data"]
