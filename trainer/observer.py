# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a run tells about itself: log, JSON lines, trackers, profile, slow ranks, and where the time goes. The training loop calls it."""

import contextlib
import functools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.checkpoint.folder import Folder
from trainer.checkpoint.store import Store
from trainer.config import TrainConfig
from trainer.launch import Ranks
from trainer.metrics import JsonLines, Ledger, Utilisation, batch_line, logger, open_tensorboard, open_tracker
from trainer.models import Shape
from trainer.parallel.engine import Engine
from trainer.watch import Stragglers, Watch

PEAKS = {"float8": "fp8"}  # precision → its name in devices.json


@dataclass
class Spent:
    """Seconds of this start so far: between steps, which the logged speed does not count, and waiting for data."""

    idle: float = 0.0
    data: float = 0.0


class Reading:
    """The results of a step on their way to the host. A GPU works on while they travel; only reading a value waits for it."""

    def __init__(
        self, step: int, samples: int, lr: float, spent: Spent, *, status: torch.Tensor, norm: torch.Tensor, share: torch.Tensor
    ) -> None:
        self.step, self.samples, self.lr, self.spent = step, samples, lr, replace(spent)
        values = torch.cat([status.double(), torch.stack([norm.double(), share.double()])])
        self.event = torch.cuda.Event(enable_timing=True) if values.is_cuda else None
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


class Observer:
    """Observes one start of a run on one rank; only rank 0 writes. Its log lines name the line of the loop that calls it."""

    profiler: Any = None

    def __init__(
        self, config: TrainConfig, ranks: Ranks, shape: Shape, engine: Engine, *, watch: Watch, store: Store | None, step: int, began: float
    ) -> None:
        self.config, self.ranks, self.watch, self.store, self.device = config, ranks, watch, store, engine.device
        self.batch, self.context = engine.samples * engine.data_ranks, shape.max_context_width
        first = ranks.rank == 0
        self.log = logger()
        self.log.disabled = not first
        folder = store.root if isinstance(store, Folder) else None
        jsonl = Path(config.jsonl) if config.jsonl else folder / "train.jsonl" if folder else None
        self.lines = JsonLines(jsonl if first else None, world_size=ranks.world_size, restart=ranks.restart, host=socket.gethostname())
        self.trackers = [open_tensorboard(config.tensorboard_dir)] if config.tensorboard_dir and first else []
        self.trackers += [open_tracker(config.tracker, asdict(config))] if config.tracker and first else []
        self.stragglers = Stragglers(self.device, config.straggler_ratio) if config.straggler_freq and ranks.world_size > 1 else None
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        flops, causal = shape.flops_per_token(), shape.flops_per_token(causal=True)
        self.utilisation = Utilisation(flops, causal, name, PEAKS.get(engine.precision, engine.precision))
        self.ledger = Ledger(store.read(Ledger.NAME) if store and first else None, step)
        self.ledger.add("start", time.perf_counter() - began)
        self.logged, self.since, self.spent, self.told = step, self.now(), Spent(), Spent()
        self.looked = self.data = self.slowest = self.pause = 0.0

    def say(self, text: str, **event: Any) -> None:
        """Log a sentence, and write its event as a JSON line."""
        self.log.info(text, stacklevel=2)
        if event:
            self.lines.write(**event)

    def now(self) -> Any:
        """The time: on a GPU an event, because it is behind the host, and is read a step later."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin_step(self, step: int) -> None:
        with self.paused():
            self.profile_window(step + 1)
        self.began = time.perf_counter()
        self.watch.at("data", step)

    def data_arrived(self) -> None:
        self.data = time.perf_counter() - self.began
        self.spent.data += self.data
        self.looked += self.data

    def end_step(self) -> None:
        took = time.perf_counter() - self.began
        self.slowest = max(self.slowest, took)
        self.ledger.add("data", self.data)
        self.ledger.add("step", took - self.data)

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A named part of the step, for the hang watch, the profile and Nsight Systems."""
        self.watch.at(name)
        if self.device.type == "cuda":
            torch.cuda.nvtx.range_push(name)
        try:
            with record_function(name):
                yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.nvtx.range_pop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Work between two steps, which the logged speed does not count."""
        began = time.perf_counter()
        yield
        self.spent.idle += time.perf_counter() - began

    @contextlib.contextmanager
    def part(self, name: str, step: int) -> Iterator[None]:
        """A pause of the training, for the hang watch and the ledger. `pause` is its length afterwards."""
        began = time.perf_counter()
        self.watch.at(name, step)
        yield
        self.pause = time.perf_counter() - began
        self.ledger.add(name, self.pause)

    def report(self, reading: Reading, last: bool = False) -> None:
        """Write a step's log line and JSON line, every --logging_freq steps and at the end."""
        if reading.step % self.config.logging_freq and not last and reading.step != self.config.max_steps:
            return
        now = reading.event or time.perf_counter()
        took = self.since.elapsed_time(now) / 1000 if reading.event else now - self.since
        took -= reading.spent.idle - self.told.idle
        speed, waiting = (reading.step - self.logged) * self.batch / took, (reading.spent.data - self.told.data) / took
        self.logged, self.since, self.told = reading.step, now, reading.spent
        per_s = speed * self.context
        used = self.utilisation.of(per_s / self.ranks.world_size)
        memory = (torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else resident()) / 2**30
        more = {
            "tokens/s": f"{per_s:.0f}",
            "grad_norm": f"{reading.norm:.4f}",
            "mfu": "n/a" if used["mfu"] is None else f"{100 * used['mfu']:.1f}%",
            "mem": f"{memory:.2f} GiB",
            "data": f"{100 * waiting:.1f}%",
        }
        self.log.info(batch_line(reading.step, reading.loss, speed, reading.lr, **more), stacklevel=2)
        record = {"loss": reading.loss, "samples_per_s": speed, "tokens_per_s": per_s, "lr": reading.lr, "grad_norm": reading.norm}
        record |= {"memory_gib": memory, "data_share": waiting}
        self.lines.write(step=reading.step, **record, **used)
        self.track(record | {name: share for name, share in used.items() if share is not None}, reading.step)

    def track(self, record: dict[str, float], step: int) -> None:
        for tracker in self.trackers:
            tracker(record, step)

    def look_for_stragglers(self, step: int) -> None:
        """Name the slow ranks, every --straggler_freq steps."""
        if self.stragglers and step % self.config.straggler_freq == 0:
            self.watch.at("looking for stragglers")
            for sentence in self.stragglers.look(self.looked / self.config.straggler_freq):
                self.log.warning(sentence, stacklevel=2)
                self.lines.write(event="straggler", step=step, text=sentence)
            self.looked = 0.0

    def keep_ledger(self, step: int) -> None:
        """Write the ledger beside the checkpoints."""
        if self.ranks.rank == 0 and self.store:
            with contextlib.suppress(OSError):
                self.store.write(Ledger.NAME, self.ledger.text(step))

    def end(self, step: int) -> None:
        self.profile_window(0)
        self.log.info(self.ledger.sentence(step), stacklevel=2)
        self.keep_ledger(step)
        self.lines.write(event="end", step=step, finished=step == self.config.max_steps)

    def profile_window(self, step: int) -> None:
        """Begin or end the profile before `step`; 0 is after the last one."""
        if not self.config.profile:
            return
        first, last = (int(part) for part in self.config.profile.split("-"))
        cuda = self.device.type == "cuda"
        if self.profiler is None and first <= step <= last:
            self.profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])], acc_events=True)
            self.profiler.start()
            if cuda:
                torch.cuda.cudart().cudaProfilerStart()  # nsys profile --capture-range=cudaProfilerApi
        elif self.profiler is not None and not first <= step <= last:
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.cudart().cudaProfilerStop()
            self.profiler.stop()
            folder = Path(self.config.profile_dir)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"steps-{first}-{last}-rank-{self.ranks.rank}.json"
            self.profiler.export_chrome_trace(str(path))
            self.log.info(f"Profile of steps {first} to {last}: {path}", stacklevel=3)
            self.profiler = None


def resident() -> int:
    """Bytes of memory that this process holds."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
