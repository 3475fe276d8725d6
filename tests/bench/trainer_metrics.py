# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a step pays for train.jsonl, which muster-exporter reads: the trainer writes it in every second step. Prints one JSON object.

python tests/bench/trainer_metrics.py   (in an environment with torch; about three minutes on one quiet core)
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from trainer import metrics
from trainer.config import TrainConfig
from trainer.data.tokens import prepare
from trainer.launch import Ranks, StopFlag, join
from trainer.train import Run, read_shape
from trainer.watch import Watch

ROUNDS = 5
WARM = 4  # steps before the clock starts
PAIRS = 40  # a step with and one without, in each round


class Turns:
    """A tracker that turns the file on and off. A step begins and ends where the tracker is called, behind the write of the record.

    Pairs are with-without and without-with in turns, so that a machine that grows slower favours neither. CPU time counts, because
    other work on the machine makes the seconds of two steps differ by more than the file costs.
    """

    def __init__(self, lines: Any) -> None:
        self.lines, self.path = lines, lines.path
        self.order: list[bool] = []
        self.steps: list[tuple[bool, float, float]] = []  # whether it wrote, CPU and wall seconds
        self.since = (0.0, 0.0)

    def __call__(self, _record: dict[str, float], step: int) -> None:
        now = (time.process_time(), time.perf_counter())
        if step > WARM:
            self.steps.append((self.lines.path is not None, now[0] - self.since[0], now[1] - self.since[1]))
        pair, second = divmod(len(self.steps), 2)
        self.lines.path = self.path if (pair + second) % 2 == 0 else None
        self.since = (time.process_time(), time.perf_counter())


def main() -> None:
    torch.set_num_threads(1)
    metrics.logger().handlers[0].setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, 5_000_000, 1, 256)
        config = TrainConfig(
            model="tiny",
            max_context_width=256,
            hidden_width=384,
            intermediate_size=1024,
            dataset_path=name,
            train_batch_size=2,
            max_steps=WARM + 2 * PAIRS * ROUNDS,
            logging_freq=1,
            backend="gloo",
            jsonl=str(folder / "train.jsonl"),
        )
        device, backend = join(Ranks(), "gloo", 60)
        watch = Watch(folder / "hang", config.hang_timeout_s)
        training = Run(config, Ranks(), read_shape(config), device=device, backend=backend, stop=StopFlag(None), watch=watch)
        turns = Turns(training.observer.lines)
        training.observer.trackers.append(turns)
        training.train()
        written = sum(line.count('"loss"') for line in (folder / "train.jsonl").read_text().splitlines())
    # Each second step wrote; no figure comes from a file that was never there.
    if not len(turns.steps) == 2 * PAIRS * ROUNDS or not PAIRS * ROUNDS <= written <= PAIRS * ROUNDS + WARM:
        raise SystemExit(f"{len(turns.steps)} steps were measured and {written} records written; look at the trainer's log.")
    pairs = [sorted(turns.steps[at : at + 2], reverse=True) for at in range(0, len(turns.steps), 2)]
    rounds = [[with_file[1] / without[1] for with_file, without in pairs[at : at + PAIRS]] for at in range(0, len(pairs), PAIRS)]
    medians = [statistics.median(each) for each in rounds]
    found = {
        "cpu_s": round(statistics.median(without[1] for _with_file, without in pairs), 5),
        "wall_s": round(statistics.median(without[2] for _with_file, without in pairs), 5),
        "ratio": round(statistics.median(medians), 5),
        "least": round(min(medians), 5),
        "most": round(max(medians), 5),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # as the trainer leaves: gloo's threads may abort an interpreter that ends
