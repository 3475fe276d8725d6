# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Watches a running job: it names a rank that hangs or is slow, and ends the other ranks with one sentence when a rank is lost."""

import contextlib
import faulthandler
import os
import re
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.cli import TrainerError
from trainer.comm import told_by_all
from trainer.launch import leave

# Messages of gloo and NCCL when a peer is gone, from torch 2.11 to 2.15.
LOST = re.compile(
    r"gloo/transport|Connection (closed|reset|refused)|Broken pipe|NCCL|[Tt]imed out|Socket ?Timeout|DistNetworkError", re.IGNORECASE
)
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|Cannot allocate memory|std::bad_alloc")
ALONE = ("start", "data", "optimizer")  # parts of a step that wait for no other rank
LOOKS = 3  # a rank that is slow so many times in a row is named


class Said(TrainerError):
    """A failure of many ranks that only one of them should print."""

    def __init__(self, text: str, here: bool) -> None:
        super().__init__(text)
        self.here = here


class Watch:
    """Knows what each rank is doing, and ends this one when no step was finished for `timeout_s` seconds (0: never)."""

    def __init__(self, folder: Path, timeout_s: int) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.folder, self.timeout_s = folder, timeout_s
        self.phase, self.step, self.since = "start", 0, time.monotonic()
        self.store = dist.PrefixStore("watch", dist.distributed_c10d._get_default_store())
        if timeout_s:
            threading.Thread(target=self._look, daemon=True, name="watch").start()

    def at(self, phase: str, step: int | None = None) -> None:
        """This rank begins `phase`; a `step` also restarts the clock."""
        self.phase = phase
        if step is not None:
            self.step, self.since = step, time.monotonic()

    def _look(self) -> None:
        wait = min(5.0, self.timeout_s / 4)
        while True:
            self._tell()
            time.sleep(wait)
            # Saving, validating and compiling may take long without a hang; torch's own time-out covers their collectives.
            if time.monotonic() - self.since > self.timeout_s:
                self._end()

    def _tell(self) -> None:
        with contextlib.suppress(Exception):
            self.store.set(str(self.rank), f"{self.step} {self.phase} {socket.gethostname()}")

    def _end(self) -> None:
        where = f"rank {self.rank} on {socket.gethostname()}: {self.phase} of step {self.step + 1}, for more than {self.timeout_s} s\n\n"
        with contextlib.suppress(OSError):  # a rank that cannot write has to end too
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"hang-rank-{self.rank}.txt").open("w") as file:
                file.write(where)
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            (self.folder / f"hang-rank-{self.rank}-collectives.json").write_bytes(flight_recorder())
        first = self.claim()
        time.sleep(min(5.0, self.timeout_s / 4))  # until the others have written theirs and told where they are
        if first:
            print(f"trainer: {self._sentence()}", file=sys.stderr)
        self.linger()
        leave(TrainerError.exit_code)

    def linger(self) -> None:
        """Rank 0 leaves last, because the other ranks ask its store whether to print the sentence."""
        if self.rank == 0 and self.world_size > 1:
            time.sleep(2)

    def _sentence(self) -> str:
        told: dict[int, tuple[int, str, str]] = {}
        for rank in range(self.world_size):
            with contextlib.suppress(Exception):
                step, phase, host = self.store.get(str(rank)).decode().split(" ", 2)
                told[rank] = (int(step), phase, host)
        return hang_sentence(told, self.timeout_s, self.folder)

    def claim(self) -> bool:
        """True on the first rank that fails. If rank 0 no longer answers, true on rank 1 and on the first rank of each host."""
        try:
            return self.store.add("failed", 1) == 1
        except Exception:
            return self.rank == 1 or (os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")) == "0"

    def explain(self, error: BaseException, advice: str) -> TrainerError | None:
        """The error with a sentence about what torch raised, or None for an unexpected failure."""
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(text):
            wanted = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)|you tried to allocate (\d+ bytes)", text)
            size = f" ({next(filter(None, wanted.groups()))} more wanted)" if wanted else ""
            where = f"rank {self.rank} on {socket.gethostname()} ran out of memory in step {self.step + 1}{size}"
            return Said(f"{where}: {advice}", self.claim())
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and LOST.search(text)):
            peer = re.search(r"\[([\d.a-fA-F:]+)\]:\d+", text)
            where = f" (its address is {peer[1]})" if peer and not peer[1].startswith("127.") else ""
            return Said(
                f"step {self.step + 1} was not finished, because another rank ended or its network failed{where}: look at that rank's last "
                f"line, then start the job again; it resumes from the newest checkpoint",
                self.claim(),
            )
        return None


def hang_sentence(told: dict[int, tuple[int, str, str]], timeout_s: int, folder: Path) -> str:
    """A sentence with the ranks that the others wait for: those behind in steps, else those in another phase than most."""
    first = min(step for step, _, _ in told.values())
    behind = {rank: entry for rank, entry in told.items() if entry[0] == first}
    phases = [phase for _, phase, _ in behind.values()]
    # No rank waits for another in ALONE. Of the other phases, the ranks in a rarer one are suspect.
    alone = {rank: entry for rank, entry in behind.items() if entry[1] in ALONE}
    common = statistics.mode(phases)
    odd = alone or {rank: entry for rank, entry in behind.items() if entry[1] != common} or behind
    if len(odd) == len(told) > 1:
        named = f"all ranks are in {common} of step {first + 1}"
    else:
        named = ", ".join(
            f"rank {rank} on {host} is in {phase} of step {step + 1}" for rank, (step, phase, host) in sorted(odd.items())[:4]
        )
    return f"no step was finished for {timeout_s} s: {named}; {folder}/hang-rank-*.txt say where each rank was"


def flight_recorder() -> bytes:
    """The last collectives of this rank as torch recorded them, as JSON; {} if this build of torch has no recorder."""
    backend = dist.get_backend()
    for name, arguments in (("_dump_fr_trace_json", {"backend": backend}), ("_dump_fr_trace_json", {}), ("_dump_nccl_trace_json", {})):
        dump = getattr(torch._C._distributed_c10d, name, None)
        try:
            if dump:
                found = dump(**arguments)
                return found if isinstance(found, bytes) else found.encode()
        except Exception:
            continue
    return b"{}"


def record_collectives() -> None:
    """Make torch record the last collectives, and NCCL's watchdog write them. Call it before the process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


class Stragglers:
    """Compares the ranks by the wait for their data and the speed of their device, because collectives make their steps equally long."""

    def __init__(self, device: torch.device, ratio: float) -> None:
        self.ratio, self.slow = ratio, [0] * dist.get_world_size()
        self.group = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else None
        size = 2048 if device.type == "cuda" else 128
        self.left = torch.ones(size, size, device=device)
        self.out = torch.empty_like(self.left)
        self.hosts = told_by_all(socket.gethostname(), self.group)

    def probe(self) -> float:
        """Seconds of some matrix products: the best of five, because one disturbance makes no straggler."""
        best = float("inf")
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(4):
                torch.mm(self.left, self.left, out=self.out)
            if self.left.device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        return best

    def look(self, waited: float) -> list[str]:
        """Compare all ranks; `waited` is how many seconds a step this one waited for its data. Returns the sentences to log."""
        mine = torch.tensor([self.probe(), waited], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in self.hosts]
        dist.all_gather(everyone, mine, group=self.group)
        return self.judge([tuple(pair.tolist()) for pair in everyone])

    def judge(self, measured: list[tuple[float, float]]) -> list[str]:
        sentences = []
        compute, data = (statistics.median(column) for column in zip(*measured, strict=True))
        for rank, (own, waited) in enumerate(measured):
            # The ratio of two tiny waits means nothing: only a wait of 0.1 s more than the median counts.
            late = waited > max(self.ratio * data, data + 0.1)
            self.slow[rank] = self.slow[rank] + 1 if own > self.ratio * compute or late else 0
            if self.slow[rank] == LOOKS:
                why = (
                    f"waits {waited:.2f} s a step for its data"
                    if late
                    else f"is {own / compute:.2f} times slower than the median in matrix products"
                )
                sentences.append(f"Straggler: rank {rank} on {self.hosts[rank]} {why}, {LOOKS} looks in a row")
        return sentences
