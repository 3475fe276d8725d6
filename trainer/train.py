# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The training loop, readable from top to bottom in `Run.train`."""

import errno
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer import hf, optim
from trainer.checkpoint.saver import Saver, load, state_of
from trainer.checkpoint.store import Store, newest, open_store, same
from trainer.cli import TrainerError, UsageError
from trainer.comm import first_does, told_by_all, wait_for_all
from trainer.config import ModelFlags, TrainConfig, read_train
from trainer.data.loader import Loader, open_source
from trainer.estimate.memory import advice, memory_here, plan_of
from trainer.launch import EXIT_STOPPED, Ranks, StopFlag, join, read_ranks, read_stop_at
from trainer.layout import layout_of
from trainer.models import Shape, shape_of
from trainer.observer import Observer, Reading
from trainer.parallel.build import build
from trainer.parallel.precision import LossScale, precision_of
from trainer.watch import Watch, record_collectives


def read_shape(flags: ModelFlags) -> Shape:
    """The model's shape; raises UsageError."""
    given = {entry.name: getattr(flags, entry.name, None) for entry in fields(Shape)}
    if flags.init_from:
        return hf.shape_from(hf.folder_of(flags.init_from), given)
    return shape_of(flags.model, flags.model_type, given)


def advice_for(config: TrainConfig, shape: Shape, world_size: int, device: torch.device) -> str:
    """What to change when memory runs out."""
    have = memory_here(device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    plan = plan_of(config, layout_of(config, shape, world_size))
    return advice(shape, plan, precision_of(config, device)[0], have)


def make_folders(config: TrainConfig) -> None:
    """Make the folders that the run writes to; raises UsageError."""
    files = {"jsonl": config.jsonl, "checkpoint_dir": config.checkpoint_dir, "tensorboard_dir": config.tensorboard_dir}
    files["profile_dir"] = config.profile_dir if config.profile else None
    for name, text in files.items():
        if text is None or text.startswith("s3://"):
            continue
        try:
            path = Path(text)
            (path.parent if name == "jsonl" else path).mkdir(parents=True, exist_ok=True)
            if name == "jsonl":
                path.open("ab").close()
            elif not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"--{name} {text} cannot be written ({reason}): change its owner or choose another") from None


def main(argv: Sequence[str]) -> int:
    return run(read_train(argv), read_ranks(os.environ))


def run(config: TrainConfig, ranks: Ranks) -> int:
    """Train as `config` says, as one of the ranks of the job; the exit code. Raises TrainerError."""
    shape = read_shape(config)
    stop = StopFlag(read_stop_at(os.environ.get("MUSTER_STOP_AT", "")))
    record_collectives()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads it
    device, backend = join(ranks, config.backend, config.timeout_s)
    first_does(lambda: make_folders(config))
    folder = "." if (config.checkpoint_dir or "s3://").startswith("s3://") else config.checkpoint_dir
    watch = Watch(Path(folder or ".") / "hang", config.hang_timeout_s)
    try:
        return Run(config, ranks, shape, device=device, backend=backend, stop=stop, watch=watch).train()
    except TrainerError:
        raise
    except Exception as error:
        if expected := watch.explain(error, advice_for(config, shape, ranks.world_size, device)):
            watch.linger()
            raise expected from None
        raise


class Run:
    """One start of a training run on one rank."""

    unread: Reading | None = None  # of the step before, on a GPU
    stalled = 0.0  # seconds that the last checkpoint stopped the training

    def __init__(
        self, config: TrainConfig, ranks: Ranks, shape: Shape, *, device: torch.device, backend: str, stop: StopFlag, watch: Watch
    ) -> None:
        self.config, self.ranks, self.shape, self.device, self.stop = config, ranks, shape, device, stop
        began = time.perf_counter()
        source = open_source(config, shape.vocab_size, shape.max_context_width)
        self.held_out = open_source(config, shape.vocab_size, shape.max_context_width, validation=True) if config.validation_freq else None
        self.store = open_store(config.checkpoint_dir) if config.checkpoint_dir else None
        found, damaged = self.find_checkpoint()
        weights = hf.source(hf.folder_of(config.init_from), shape) if config.init_from and not found else None
        engine = self.engine = build(shape, config, device, weights, empty=bool(found))
        self.optimizer = optim.AdamW(engine.model, config)
        self.batch = engine.samples * engine.data_ranks  # samples of a step
        # Never wait for a GPU inside a step: read its results when it works on the next one.
        self.late = device.type == "cuda" and engine.scale is None

        self.identity = {**asdict(shape), "seed": config.seed, "data": source.identity}
        self.step = self.samples = 0
        states: dict[str, str] = {}
        if found:
            store, step = found
            keys = source.keys(engine.data_rank, engine.data_ranks) if hasattr(source, "keys") else []
            manifest, states = load(store, step, engine.model, self.optimizer, identity=self.identity, keys=keys)
            self.step, self.samples = manifest["step"], manifest["samples"]
            if engine.scale and manifest["loss_scale"]:
                engine.scale = LossScale(**manifest["loss_scale"])
        self.loader = Loader(source, engine.data_rank, engine.data_ranks, engine.samples, first=self.samples, states=states)
        self.saver = Saver(self.store, config.keep_checkpoints, bool(config.async_checkpoint)) if self.store else None
        self.validation: list[Any] = []

        seen = self.observer = Observer(config, ranks, shape, engine, watch=watch, store=self.store, step=self.step, began=began)
        start = f"Resumed from step {self.step} ({found[0].path(found[1])})" if found else "Started at step 0"
        seen.say(
            f"{start}: {shape.parameters()} parameters, {ranks.world_size} ranks by {ranks.launcher}, {backend}, {engine.layout}, "
            f"{engine.precision}, restart {ranks.restart}; {seen.utilisation}"
        )
        for remark in filter(None, (engine.remark, *config.remarks)):
            seen.say(remark)
        if self.step < config.max_steps:
            event, convention = "resume" if found else "start", str(seen.utilisation)
            seen.lines.write(event=event, step=self.step, parameters=shape.parameters(), backend=backend, mfu_convention=convention)
        for text in damaged:
            seen.say(f"Skipped {text}", event="skipped", step=self.step, reason=text)

    def find_checkpoint(self) -> tuple[tuple[Store, int] | None, list[str]]:
        """The store and step to resume from, and a sentence for each newer checkpoint, which is damaged."""
        path = self.config.resume_from_checkpoint
        resume = open_store(path) if path and not same(path, self.config.checkpoint_dir) else None
        return newest([store for store in (self.store, resume) if store], required=resume is not None)

    def train(self) -> int:
        """All steps that are left; the exit code."""
        config, seen = self.config, self.observer
        if self.step >= config.max_steps:
            seen.say(f"All {config.max_steps} steps were trained before: nothing to do")
            return 0
        stopping = False
        while self.step < config.max_steps and not stopping:
            seen.begin_step(self.step)
            with seen.range("data"):
                batch = self.move(self.loader.next())
            seen.data_arrived()
            with seen.range("forward_backward"):
                loss = self.engine.forward_backward(*batch)
            with seen.range("clip"):
                norm = self.engine.clip(config.grad_clip)
            with seen.range("reduce"):
                reading = self.reduce(loss, norm)
                usable = self.late or self.engine.keeps(reading.norm)
            if not self.late:
                self.check(reading, usable)
            with seen.range("optimizer"):
                for group in self.optimizer.param_groups:
                    group["lr"] = reading.lr
                if usable:
                    self.optimizer.step()
                self.optimizer.zero_grad()
            self.step += 1
            self.samples += self.batch

            validating = config.validation_freq is not None and self.step % config.validation_freq == 0
            saving = self.saver is not None and self.step % config.checkpoint_freq == 0
            last = self.step == config.max_steps
            stopping = self.read(reading, now=not self.late or validating or saving or last)
            last = last or stopping
            seen.end_step()
            with seen.paused():
                seen.look_for_stragglers(self.step)
                if validating or (config.validation_freq and last):
                    self.validate()
                if saving or last:
                    self.save()
                self.tell_saved()
        self.end(stopping)
        return 0 if self.step == config.max_steps else EXIT_STOPPED

    def move(self, batch: tuple[torch.Tensor, torch.Tensor | None]) -> list[torch.Tensor | None]:
        if self.device.type == "cuda":
            # From other memory the copy waits until the GPU is done with the step before.
            batch = batch[0].pin_memory(), batch[1] if batch[1] is None else batch[1].pin_memory()
        return [part if part is None else part.to(self.device, non_blocking=True) for part in batch]

    def reduce(self, loss: torch.Tensor, norm: torch.Tensor) -> Reading:
        """One reduction tells every rank the mean loss, whether a rank was asked to stop, and whether a rank could not save."""
        needed = self.observer.slowest + (self.saver.seconds if self.saver else 0.0)
        flags = [float(self.stop.asked(needed)), float(bool(self.saver and self.saver.failed))]
        # A tensor made of numbers of the host would wait for the GPU; one that a kernel fills does not.
        status = torch.stack([loss, *(torch.full_like(loss, value) for value in flags)])
        dist.all_reduce(status)
        rate = optim.learning_rate(self.config, self.step + 1)
        return Reading(self.step + 1, self.samples, rate, self.observer.spent, status=status, norm=norm, share=loss)

    def read(self, reading: Reading, now: bool) -> bool:
        """Check and report the step before, if it is unread, and `reading` if it has to be read `now`; whether to stop."""
        before, self.unread = self.unread, None
        if before:
            self.check(before, True)
            self.observer.report(before)
        stopping = before is not None and before.stop
        if not now and not stopping:
            self.unread = reading
            return False
        if self.late:
            self.check(reading, True)
        stopping = stopping or reading.stop
        self.observer.report(reading, last=stopping)
        return stopping

    def check(self, reading: Reading, usable: bool) -> None:
        """Raises TrainerError if a rank could not save, or if the step's loss is not finite."""
        if reading.failed:
            assert self.saver
            self.saver.wait()
            raise TrainerError("another rank could not write its part of the checkpoint: look at its last line")
        if not math.isfinite(reading.loss) or (usable and not math.isfinite(reading.norm)):
            self.not_finite(reading)

    def not_finite(self, reading: Reading) -> None:
        """All ranks call this, to tell each other whose batch it was. No checkpoint was begun since."""
        where = f"rank {self.ranks.rank} on {socket.gethostname()}, samples {self.loader.where(reading.samples)}"
        whose = list(filter(None, told_by_all("" if math.isfinite(reading.share) else where)))
        whose = whose or [f"samples {reading.samples} to {reading.samples + self.batch - 1}"]
        self.observer.lines.write(event="not_finite", step=reading.step, batches=whose)
        raise TrainerError(
            f"the loss of step {reading.step} is {reading.loss} and its gradient norm {reading.norm}, in the batch of "
            f"{'; '.join(whose[:4])}: lower --lr or check the data; the checkpoints before it are untouched"
        )

    def validate(self) -> None:
        """Log the mean loss of the validation batches, which are read once and then kept."""
        config, engine = self.config, self.engine
        with self.observer.part("validation", self.step):
            if not self.validation:
                loader = Loader(self.held_out, engine.data_rank, engine.data_ranks, config.val_batch_size)
                self.validation = [loader.next() for _ in range(config.validation_batches)]
            shares = torch.stack([engine.evaluate(*self.move(batch)) for batch in self.validation]).mean()
            dist.all_reduce(shares)
            loss = float(shares)
            self.observer.say(f"Batch {self.step} Validation loss: {loss:.5f}", event="validation", step=self.step, validation_loss=loss)
            self.observer.track({"validation_loss": loss}, self.step)

    def save(self) -> None:
        """Begin a checkpoint of this step."""
        if not self.saver:
            return
        with self.observer.part("checkpoint", self.step):
            state = state_of(self.engine.model, self.optimizer)
            state["data"] = self.loader.state()
            facts = {"samples": self.samples, "world_size": self.ranks.world_size, "identity": self.identity}
            facts["loss_scale"] = self.engine.scale and asdict(self.engine.scale)
            source = self.loader.source
            facts["data"] = source.taken(self.samples) if hasattr(source, "taken") else []
            self.saver.save(self.step, state, facts)
        self.stalled = self.observer.pause

    def tell_saved(self) -> None:
        """Log a checkpoint that was completed since the last call."""
        if not self.saver or not (found := self.saver.poll()):
            return
        path, step, seconds = found
        event = {"event": "checkpoint", "step": step, "path": path, "seconds": round(seconds, 3), "stall": round(self.stalled, 3)}
        self.observer.say(f"Checkpoint {path} written in {seconds:.2f} s, training stopped for {self.stalled:.2f} s", **event)
        self.observer.keep_ledger(self.step)

    def end(self, stopping: bool) -> None:
        if self.saver:
            with self.observer.part("checkpoint", self.step):
                self.saver.wait()
            self.tell_saved()
        if stopping:
            resumable = ": the same command resumes there" if self.store else ""
            self.observer.say(f"Stopped by {self.stop.reason} after step {self.step} of {self.config.max_steps}{resumable}")
        self.observer.end(self.step)
        wait_for_all(self.device)
