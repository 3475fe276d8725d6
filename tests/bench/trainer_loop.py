# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Steps a second of the trainer against a bare PyTorch loop of the same model, in turns, in one process. Prints one JSON object.

python tests/bench/trainer_loop.py   (in an environment with torch; about a minute on one core)
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from trainer import data, metrics
from trainer.config import TrainConfig
from trainer.launch import Ranks
from trainer.llama import Llama, initial_value, summed_loss
from trainer.train import read_shape, run

ROUNDS = 5  # the best of each side counts: other work on the machine only ever slows a round down
WARM = 5  # steps before the clock starts
STEPS = 20
BATCH = 8


def trainer_steps_per_s(folder: Path, config: TrainConfig) -> float:
    """The trainer as it is, without checkpoints: its own speed of the last STEPS steps."""
    jsonl = folder / "train.jsonl"
    jsonl.unlink(missing_ok=True)
    run(config, Ranks())
    dist.destroy_process_group()
    last = [json.loads(line) for line in jsonl.read_text().splitlines() if "loss" in line][-STEPS:]
    return STEPS / sum(BATCH / line["samples_per_s"] for line in last)


def bare_steps_per_s(folder: Path, config: TrainConfig) -> float:
    """The shortest loop that trains the same model on the same samples: no ranks, no log, no schedule."""
    shape = read_shape(config)
    model = Llama(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, parameter.shape, config.seed, config.initializer_range))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    source = data.Tokens(folder, shape.max_context_width)
    batches = [source.batch(config.seed, step * BATCH, BATCH) for step in range(WARM + STEPS)]
    for step, samples in enumerate(batches):
        if step == WARM:
            began = time.perf_counter()
        (summed_loss(model, samples) / (BATCH * shape.max_context_width)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
    return STEPS / (time.perf_counter() - began)


def main() -> None:
    torch.set_num_threads(1)
    metrics.logger().handlers[0].setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data.prepare(folder, 200_000, 1, 256)
        config = TrainConfig(
            model="tiny",
            dataset_path=name,
            train_batch_size=BATCH,
            max_steps=WARM + STEPS,
            backend="gloo",
            jsonl=str(folder / "train.jsonl"),
        )
        rounds = [(trainer_steps_per_s(folder, config), bare_steps_per_s(folder, config)) for _ in range(ROUNDS)]
    trainer, bare = (max(column) for column in zip(*rounds, strict=True))
    print(json.dumps({"trainer_steps_per_s": round(trainer, 3), "bare_steps_per_s": round(bare, 3), "ratio": round(trainer / bare, 3)}))


if __name__ == "__main__":
    main()
