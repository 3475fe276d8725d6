# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The training loop, readable from top to bottom."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from trainer import checkpoint, estimate, hf, optim
from trainer.config import TrainConfig, TrainerError, UsageError
from trainer.data import Loader, open_source
from trainer.launch import EXIT_STOPPED, Ranks, StopFlag, join, read_ranks, read_stop_at
from trainer.metrics import JsonLines, Ledger, Utilisation, batch_line, logger, open_tensorboard, open_tracker
from trainer.models import Shape, shape_of
from trainer.parallel import build, layout_of, precision_of
from trainer.watch import Stragglers, Watch, record_collectives

PEAKS = {"float8": "fp8"}  # what devices.json calls a precision


def read_shape(config: TrainConfig) -> Shape:
    """The model's shape; raises UsageError."""
    given = {entry.name: getattr(config, entry.name, None) for entry in fields(Shape)}
    try:
        if config.init_from:
            return hf.shape_from(hf.folder_of(config.init_from), given)
        return shape_of(config.model, config.model_type, given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def advice_for(config: TrainConfig, shape: Shape, world_size: int, device: torch.device) -> str:
    """What to change when memory runs out."""
    have = estimate.memory_here(device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    plan = estimate.plan_of(config, layout_of(config, shape, world_size))
    return estimate.advice(shape, plan, precision_of(config, device)[0], have, cpu=device.type != "cuda")


def run(config: TrainConfig, ranks: Ranks | None = None) -> int:
    """Train as `config` says, as one of the ranks of the job; the exit code. Raises TrainerError."""
    ranks = ranks or read_ranks(os.environ)
    shape = read_shape(config)
    stop = StopFlag(read_stop_at(os.environ.get("MUSTER_STOP_AT", "")))
    record_collectives()
    device, backend = join(ranks, config.backend, config.timeout_s)
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


class Reading:
    """What a step gave, on its way to the host: a GPU works on while it travels, and is waited for only where a value is read."""

    def __init__(self, step: int, samples: int, lr: float, *, status: torch.Tensor, norm: torch.Tensor, share: torch.Tensor) -> None:
        self.step, self.samples, self.lr = step, samples, lr
        values = torch.cat([status.double(), torch.stack([norm.double(), share.double()])])
        self.event = torch.cuda.Event() if values.is_cuda else None
        self.host = torch.empty(len(values), dtype=values.dtype, pin_memory=values.is_cuda)
        self.host.copy_(values, non_blocking=True)
        if self.event:
            self.event.record()

    @functools.cached_property
    def values(self) -> list[float]:
        if self.event:
            self.event.synchronize()
        return self.host.tolist()

    loss = property(lambda self: self.values[0])  # the mean over all ranks
    stop = property(lambda self: bool(self.values[1]))
    failed = property(lambda self: bool(self.values[2]))
    norm = property(lambda self: self.values[3])
    share = property(lambda self: self.values[4])


class Run:
    """One start of a training run on one rank."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, shape: Shape, *, device: torch.device, backend: str, stop: StopFlag, watch: Watch
    ) -> None:
        self.config, self.ranks, self.shape, self.device, self.stop, self.watch = config, ranks, shape, device, stop, watch
        began = time.perf_counter()
        context = shape.max_context_width
        source = open_source(config, shape.vocab_size, context)
        weights = hf.source(hf.folder_of(config.init_from), shape) if config.init_from else None
        self.engine = build(shape, config, device, weights)
        self.model = self.engine.model
        self.optimizer = optim.adamw(self.model, config)
        self.batch = self.engine.samples * self.engine.data_ranks  # samples of a step
        self.tokens = self.batch * context
        self.context = context

        first = ranks.rank == 0
        self.log = logger()
        self.log.disabled = not first
        self.store = checkpoint.open_store(config.checkpoint_dir) if config.checkpoint_dir else None
        folder = self.store.place if isinstance(self.store, checkpoint.Folder) else None
        jsonl = Path(config.jsonl) if config.jsonl else folder / "train.jsonl" if folder else None
        common = {"world_size": ranks.world_size, "restart": ranks.restart, "host": socket.gethostname()}
        self.lines = JsonLines(jsonl if first else None, **common)
        self.trackers = [open_tensorboard(config.tensorboard_dir)] if config.tensorboard_dir and first else []
        self.trackers += [open_tracker(config.tracker, asdict(config))] if config.tracker and first else []

        self.identity = {**asdict(shape), "seed": config.seed, "data": source.identity}
        self.step = self.samples = 0
        states: dict[str, str] = {}
        resume = checkpoint.open_store(config.resume_from_checkpoint) if config.resume_from_checkpoint else None
        if str(resume) == str(self.store):
            resume = None
        found = checkpoint.newest([store for store in (self.store, resume) if store], required=resume is not None)
        if found:
            store, step = found
            keys = source.keys(self.engine.data_rank, self.engine.data_ranks) if hasattr(source, "keys") else []
            manifest, states = checkpoint.load(store, step, self.model, self.optimizer, identity=self.identity, keys=keys)
            self.step, self.samples = manifest["step"], manifest["samples"]
        # A GPU is never waited for inside the step: its readings are looked at when the next step has been handed to it.
        self.late = device.type == "cuda" and getattr(self.engine, "scale", None) is None
        self.logged, self.since, self.waited = self.step, 0.0, 0.0
        self.loader = Loader(source, self.engine.data_rank, self.engine.data_ranks, self.engine.samples, first=self.samples, states=states)
        self.saver = checkpoint.Saver(self.store, config.keep_checkpoints, bool(config.async_checkpoint)) if self.store else None
        self.stragglers = Stragglers(device, config.straggler_ratio) if config.straggler_freq and ranks.world_size > 1 else None
        self.validation: list[Any] = []
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        causal = shape.flops_per_token(context, causal=True)
        self.utilisation = Utilisation(
            shape.flops_per_token(context), causal, name, PEAKS.get(self.engine.precision, self.engine.precision)
        )
        if first:
            self.ledger = Ledger(self.store.read(Ledger.NAME) if self.store else None, self.step)
            self.ledger.add("start", time.perf_counter() - began)

        start = f"Resumed from step {self.step} ({found[0].path(found[1])})" if found else "Started at step 0"
        self.log.info(
            f"{start}: {shape.parameters()} parameters, {ranks.world_size} ranks by {ranks.launcher}, {backend}, {self.engine.layout}, "
            f"{self.engine.precision}, restart {ranks.restart}; {self.utilisation}"
        )
        if self.engine.remark:
            self.log.info(self.engine.remark)
        if self.step < config.max_steps:
            event = "resume" if found else "start"
            self.lines.write(
                event=event, step=self.step, parameters=shape.parameters(), backend=backend, mfu_convention=str(self.utilisation)
            )

    def spend(self, part: str, seconds: float) -> None:
        if self.ranks.rank == 0:
            self.ledger.add(part, seconds)

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A named stretch of the step: for the hang watch, the profile and Nsight Systems."""
        self.watch.at(name)
        if self.device.type == "cuda":
            torch.cuda.nvtx.range_push(name)
        try:
            with record_function(name):
                yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.nvtx.range_pop()

    def train(self) -> int:
        config = self.config
        if self.step >= config.max_steps:
            self.log.info(f"All {config.max_steps} steps were trained before: nothing to do")
            return 0
        self.since = time.perf_counter()
        self.logged = self.step
        slowest = looked = 0.0
        stopping = False
        before: Reading | None = None
        while self.step < config.max_steps and not stopping:
            began = time.perf_counter()
            self.watch.at("data", self.step)
            self.profile_window(self.step + 1)
            with self.range("data"):
                batch = self.move(self.loader.next())
            data = time.perf_counter() - began
            with self.range("forward_backward"):
                loss = self.engine.forward_backward(*batch)
            with self.range("clip"):
                norm = self.engine.clip(config.grad_clip)
            # One reduction a step tells every rank the loss of all tokens, whether any was asked to stop, and whether any could not save.
            with self.range("reduce"):
                needed = slowest + (self.saver.seconds if self.saver else 0.0)
                flags = [float(self.stop.asked(needed)), float(bool(self.saver and self.saver.failed))]
                status = torch.stack([loss, *(loss.new_tensor(value) for value in flags)])
                dist.all_reduce(status)
                rate = optim.learning_rate(config, self.step + 1)
                reading = Reading(self.step + 1, self.samples, rate, status=status, norm=norm, share=loss)
                usable = True if self.late else self.engine.keeps(reading.norm)
            if not self.late:
                self.check(reading, usable)
            with self.range("optimizer"):
                for group in self.optimizer.param_groups:
                    group["lr"] = reading.lr
                if usable:
                    self.optimizer.step()
                self.optimizer.zero_grad()
            self.step += 1
            self.samples += self.batch
            looked += data
            self.waited += data
            validating = bool(config.validation_freq) and self.step % (config.validation_freq or 1) == 0
            saving = self.saver is not None and self.step % config.checkpoint_freq == 0
            if self.late and before:
                self.check(before, True)
                stopping = before.stop
                self.report(before)
            if not self.late or validating or saving or stopping or self.step == config.max_steps:
                if self.late:
                    self.check(reading, True)
                stopping = stopping or reading.stop
                self.report(reading, last=stopping)
                before = None
            else:
                before = reading
            took = time.perf_counter() - began
            slowest = max(slowest, took)
            self.spend("data", data)
            self.spend("step", took - data)
            last = self.step == config.max_steps or stopping
            paused = time.perf_counter()
            if self.stragglers and self.step % config.straggler_freq == 0:
                self.watch.at("looking for stragglers")
                for sentence in self.stragglers.look(looked / config.straggler_freq):
                    self.log.warning(sentence)
                    self.lines.write(event="straggler", step=self.step, text=sentence)
                looked = 0.0
            if validating or (config.validation_freq and last):
                self.validate()
            if self.saver and (saving or last):
                self.save()
            self.saved()
            self.since += time.perf_counter() - paused
        self.end(stopping)
        return 0 if self.step == config.max_steps else EXIT_STOPPED

    def check(self, reading: Reading, usable: bool) -> None:
        """Raises TrainerError where a rank could not save, or where the step's loss is no number."""
        if reading.failed:
            assert self.saver
            self.saver.wait()
            raise TrainerError("another rank could not write its part of the checkpoint: look at its last line")
        if not math.isfinite(reading.loss) or (usable and not math.isfinite(reading.norm)):
            self.not_finite(reading)

    def move(self, batch: tuple[torch.Tensor, torch.Tensor | None]) -> list[torch.Tensor | None]:
        return [part if part is None else part.to(self.device, non_blocking=True) for part in batch]

    def not_finite(self, reading: Reading) -> None:
        """All ranks come here; they tell each other whose batch it was. No checkpoint has been begun since."""
        mine = (
            math.isfinite(reading.share),
            f"rank {self.ranks.rank} on {socket.gethostname()}, samples {self.loader.where(reading.samples)}",
        )
        everyone: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(everyone, mine)
        whose = [where for finite, where in everyone if not finite] or [f"samples {reading.samples} to {reading.samples + self.batch - 1}"]
        self.lines.write(event="not_finite", step=reading.step, batches=whose)
        raise TrainerError(
            f"the loss of step {reading.step} is {reading.loss} and its gradient norm {reading.norm}, in the batch of "
            f"{'; '.join(whose[:4])}: lower --lr or look at the data; the checkpoints before it are untouched"
        )

    def report(self, reading: Reading, last: bool = False) -> None:
        """The log line of a step and its twin, every --logging_freq steps."""
        if reading.step % self.config.logging_freq and not last and reading.step != self.config.max_steps:
            return
        now = time.perf_counter()
        speed = (reading.step - self.logged) * self.batch / (now - self.since)
        waiting = self.waited / (now - self.since)
        self.logged, self.since, self.waited = reading.step, now, 0.0
        per_s = speed * self.context
        used = self.utilisation.of(per_s / self.ranks.world_size)
        memory = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else resident() / 2**30
        more = {
            "tokens/s": f"{per_s:.0f}",
            "grad_norm": f"{reading.norm:.4f}",
            "mfu": "n/a" if used["mfu"] is None else f"{100 * used['mfu']:.1f}%",
            "mem": f"{memory:.2f} GiB",
            "data": f"{100 * waiting:.1f}%",
        }
        self.log.info(batch_line(reading.step, reading.loss, speed, reading.lr, **more))
        record = {"loss": reading.loss, "samples_per_s": speed, "tokens_per_s": per_s, "lr": reading.lr, "grad_norm": reading.norm}
        record |= {"memory_gib": memory, "data_share": waiting}
        self.lines.write(step=reading.step, **record, **used)
        self.track(record | {name: share for name, share in used.items() if share is not None}, reading.step)

    def track(self, record: dict[str, float], step: int) -> None:
        for tracker in self.trackers:
            tracker(record, step)

    def validate(self) -> None:
        """The mean loss of the same batches each time; they are read once."""
        began = time.perf_counter()
        self.watch.at("validation", self.step)
        config, engine = self.config, self.engine
        if not self.validation:
            source = open_source(config, self.shape.vocab_size, self.context, validation=True)
            loader = Loader(source, engine.data_rank, engine.data_ranks, config.val_batch_size)
            self.validation = [loader.next() for _ in range(config.validation_batches)]
        shares = torch.stack([engine.evaluate(*self.move(batch)) for batch in self.validation]).mean()
        dist.all_reduce(shares)
        loss = float(shares)
        self.log.info(f"Batch {self.step} Validation loss: {loss:.5f}")
        self.lines.write(event="validation", step=self.step, validation_loss=loss)
        self.track({"validation_loss": loss}, self.step)
        self.spend("validation", time.perf_counter() - began)

    def save(self) -> None:
        """Begin a checkpoint of this step."""
        assert self.saver
        began = time.perf_counter()
        self.watch.at("checkpoint", self.step)
        state = checkpoint.state_of(self.model, self.optimizer)
        state["data"] = self.loader.state()
        facts = {"samples": self.samples, "world_size": self.ranks.world_size, "identity": self.identity}
        source = self.loader.source
        facts["data"] = source.taken(self.samples) if hasattr(source, "taken") else []
        self.saver.save(self.step, state, facts)
        self.stalled = time.perf_counter() - began
        self.spend("checkpoint", self.stalled)

    def saved(self) -> None:
        """Tell of a checkpoint that has become complete since."""
        if not self.saver or not (found := self.saver.poll()):
            return
        path, step, seconds = found
        self.log.info(f"Checkpoint {path} written in {seconds:.2f} s, training stopped for {self.stalled:.2f} s")
        self.lines.write(event="checkpoint", step=step, path=path, seconds=round(seconds, 3), stall=round(self.stalled, 3))
        self.keep_ledger()

    def keep_ledger(self) -> None:
        if self.ranks.rank == 0 and self.store:
            with contextlib.suppress(OSError):
                self.store.write(Ledger.NAME, self.ledger.text(self.step))

    def end(self, stopping: bool) -> None:
        config = self.config
        if self.saver:
            began = time.perf_counter()
            self.watch.at("checkpoint", self.step)
            self.saver.wait()
            self.spend("checkpoint", time.perf_counter() - began)
            self.saved()
        self.profile_window(0)
        if stopping:
            self.log.info(
                f"Stopped by {self.stop.reason} after step {self.step} of {config.max_steps}"
                f"{': the same command goes on from there' if self.store else ''}"
            )
        if self.ranks.rank == 0:
            self.ledger.text(self.step)
            summary = self.ledger.summary()
            self.log.info(
                f"Goodput {100 * summary['goodput']:.1f}% of {summary['wall']:.0f} s over {summary['starts']} starts: "
                f"{summary['lost']:.1f} s of steps done again, {summary['gaps']:.1f} s between starts, {summary['start']:.1f} s starting, "
                f"{summary['data']:.1f} s waiting for data, {summary['checkpoint']:.1f} s for checkpoints, "
                f"{summary['validation']:.1f} s validating"
            )
            self.keep_ledger()
        self.lines.write(event="end", step=self.step, finished=self.step == config.max_steps)
        dist.barrier()

    profiler: Any = None
    stalled = 0.0

    def profile_window(self, step: int) -> None:
        """Begin or end the profile before `step`; 0 is after the last one."""
        if not self.config.profile:
            return
        first, last = (int(part) for part in self.config.profile.split("-"))
        if self.profiler is None and first <= step <= last:
            cuda = self.device.type == "cuda"
            self.profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])])
            self.profiler.start()
            if cuda:
                torch.cuda.cudart().cudaProfilerStart()  # nsys profile --capture-range=cudaProfilerApi
        elif self.profiler is not None and not first <= step <= last:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.cudart().cudaProfilerStop()
            self.profiler.stop()
            folder = Path(self.config.profile_dir)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"steps-{first}-{last}-rank-{self.ranks.rank}.json"
            self.profiler.export_chrome_trace(str(path))
            self.log.info(f"Profile of steps {first} to {last}: {path}")
            self.profiler = None


def resident() -> int:
    """Bytes of memory that this process holds."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
