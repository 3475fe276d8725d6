# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Small training runs for tests, and their records."""

import json
import time
from pathlib import Path

from trainer.tests.ranks import PATIENCE, Job, start

MAIN = "trainer.__main__:main"
BATCH = 8  # samples per step over all ranks
SMALL = ["--model", "tiny", "--hidden_width", "64", "--num_layers", "2", "--num_heads", "4", "--intermediate_size", "128"]


def train(ranks: int, folder: Path, tokens: Path, steps: int, *more: str, where: str = MAIN, **env: str) -> Job:
    """Start a run that keeps its checkpoints and its train.jsonl in `folder`."""
    argv = ["train", *SMALL, "--dataset_path", str(tokens), "--train_batch_size", str(BATCH // ranks), "--max_steps", str(steps)]
    argv += ["--lr_decay_iters", "20", "--lr", "3e-3", "--checkpoint_dir", str(folder), "--backend", "gloo", *more]
    return start(ranks, folder / "output", where, argv, **env)


def records(folder: Path) -> list[dict]:
    path = folder / "train.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(folder: Path) -> dict[int, float]:
    """Loss by step; the last line of a step counts."""
    return {record["step"]: record["loss"] for record in records(folder) if "loss" in record}


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, oldest first."""
    from trainer.checkpoint.store import complete_steps, open_store

    return [folder / f"step-{step}" for step in complete_steps(open_store(str(folder)))]


def wait_for_step(folder: Path, step: int) -> None:
    end = time.monotonic() + PATIENCE
    while step not in losses(folder):
        assert time.monotonic() < end, f"step {step} did not come"
        time.sleep(0.01)
