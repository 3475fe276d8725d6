# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes checkpoints together with all ranks, also while the training goes on, and loads them."""

import copy
import errno
import re
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.checkpoint.folder import SCHEMA, Summed
from trainer.checkpoint.store import Store, complete_steps, manifest_of
from trainer.cli import TrainerError, UsageError
from trainer.comm import first_does, in_host, told_by_all

FULL = {errno.ENOSPC: "no space is left", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the limit of a file's size is reached"}
HALF = re.compile(r"PytorchStreamWriter failed|file write failed|unexpected pos")  # what torch.save says when the disk is full
# What saving and loading raise. DCP's own exception is not an Exception.
FAILURES = (Exception, dcp.CheckpointException)


def causes(error: BaseException) -> list[BaseException]:
    """The errors of the ranks if `error` is DCP's collection of them, else `error`."""
    return [cause for cause, _ in error.failures.values()] if isinstance(error, dcp.CheckpointException) else [error]


@contextmanager
def reading(path: str) -> Generator[None, None, None]:
    """Turn a failure inside into a UsageError about the checkpoint `path`."""
    try:
        yield
    except FAILURES as error:
        cause = causes(error)[0]
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise UsageError(f"{path} cannot be read ({reason}): remove it to resume from the one before it") from None


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Weights and optimizer state by parameter name, the tensors themselves. The names are those of the whole model, in every layout."""
    weights = dict(model.named_parameters())
    kept = {f"state.{name}.{key}": value for name, weight in weights.items() for key, value in optimizer.state[weight].items()}
    return {"model": {name: weight.detach() for name, weight in weights.items()}, "optimizer": kept}


class Stage:
    """Copies the state into host memory while the training waits. It keeps that memory, because allocating takes longer than copying."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def copy(self, state: Any, name: str = "") -> Any:
        if isinstance(state, dict):
            return {key: self.copy(value, f"{name}.{key}") for key, value in state.items()}
        if isinstance(state, DTensor):
            return in_host(self.copy(state.to_local(), name), state)
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
    """Writes checkpoints. An asynchronous one stops the training only for the copy into host memory."""

    def __init__(self, store: Store, keep: int, asynchronous: bool) -> None:
        self.store, self.keep, self.asynchronous = store, keep, asynchronous
        # A group of its own, because its thread talks to the other ranks at any time.
        self.group = dist.new_group(backend="gloo")
        self.stage = Stage()
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.done: tuple[str, int, float] | None = None
        self.seconds = 0.0  # of the slowest write so far

    def save(self, step: int, state: dict[str, Any], facts: dict[str, Any]) -> None:
        """Start to write `step-N` together with all ranks; wait for its end unless asynchronous. Raises TrainerError."""
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
        try:
            first_does(self.store.clean, self.group)
            writer = self.store.writer(step)
            writer.fs = written = Summed(writer.fs)
            dcp.save(state, storage_writer=writer, process_group=self.group)
            files = {name: sizes for part in told_by_all(written.files, self.group) for name, sizes in part.items()}
            first_does(lambda: self._finish(step, {"schema": SCHEMA, "step": step, "files": files} | facts), self.group)
        except FAILURES as error:
            self.error = error
            if dist.get_rank() == 0:
                self.store.drop(step)
            return
        self.seconds = max(self.seconds, time.monotonic() - began)
        self.done = (self.store.path(step), step, time.monotonic() - began)

    def _finish(self, step: int, manifest: dict[str, Any]) -> None:
        self.store.finish(step, manifest)
        # Newer checkpoints were damaged, so that this run did not resume from them: they do not count.
        complete = [old for old in complete_steps(self.store) if old <= step]
        for old in complete[: -self.keep] if self.keep else []:
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
        """The path, step and seconds of a checkpoint that was completed since the last call."""
        found, self.done = self.done, None
        return found

    @property
    def failed(self) -> bool:
        return self.error is not None

    def wait(self) -> None:
        """Wait until nothing is being written any more. Raises TrainerError."""
        if self.thread:
            self.thread.join()
            self.thread = None
        self._raise()


def load(
    store: Store, step: int, model: nn.Module, optimizer: Optimizer, *, identity: dict[str, Any], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a complete checkpoint into the model and the optimizer. Returns its manifest and the `keys` of its data.

    Raises UsageError if `identity` differs from the checkpoint's, or if its files cannot be read.
    """
    manifest = manifest_of(store, step)
    assert manifest is not None
    path = store.path(step)
    for key, value in identity.items():
        if manifest["identity"].get(key) != value:
            raise UsageError(
                f"{path} was trained with {key} {manifest['identity'].get(key)}, this run has {value}: choose another --checkpoint_dir"
            )
    # DCP fills the tensors that it is given, those of the model and the optimizer, and adds none.
    state = state_of(model, optimizer)
    known = manifest.get("data", [])
    state["data"] = {key: "" for key in keys if key in known}
    with reading(path):
        dcp.load(state, storage_reader=store.reader(step))
    return manifest, state["data"]
