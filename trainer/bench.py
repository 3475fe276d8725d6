# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`bench`: the speed of a model on the ranks of this job, on random tokens, as the training loop reports it.

torchrun --nproc-per-node 8 -m trainer bench --model llama-3.2-1b --train_batch_size 4
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.cli import UsageError
from trainer.config import read_train
from trainer.launch import read_ranks

WARM = 5  # steps before the clock starts: they compile and find the fastest algorithms
STEPS = 20


def main(argv: Sequence[str]) -> int:
    """Takes the flags of train; the defaults of --dataset and --max_steps are synthetic and 25."""
    config = read_train(argv)
    if config.checkpoint_dir or config.resume_from_checkpoint:
        raise UsageError("bench keeps no checkpoints: leave --checkpoint_dir and --resume_from_checkpoint out")
    given = {flag.split("=")[0] for flag in argv}
    if "--dataset" not in given and not config.dataset_path:
        config = replace(config, dataset="synthetic")
    if "--max_steps" not in given:
        config = replace(config, max_steps=WARM + STEPS)
    if config.max_steps <= WARM:
        raise UsageError(f"--max_steps {config.max_steps} leaves nothing to measure after {WARM} steps: raise it")
    from trainer import metrics
    from trainer.train import run

    ranks = read_ranks(os.environ)
    metrics.logger().setLevel("WARNING")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.jsonl"
        code = run(replace(config, jsonl=str(path), logging_freq=1, straggler_freq=0), ranks)
        if ranks.rank == 0:
            print(json.dumps(summary([json.loads(line) for line in path.read_text().splitlines()], ranks.world_size)))
    return code


def summary(records: list[dict], ranks: int) -> dict:
    """Mean speed of the steps after the first WARM ones."""
    start = next(record for record in records if record.get("event") == "start")
    steps = [record for record in records if "loss" in record][WARM:]

    def mean(name: str) -> float:
        return len(steps) / sum(1 / record[name] for record in steps)

    return {
        "parameters": start["parameters"],
        "ranks": ranks,
        "steps": len(steps),
        "samples_per_s": round(mean("samples_per_s"), 3),
        "tokens_per_s": round(mean("tokens_per_s"), 1),
        "tokens_per_s_per_rank": round(mean("tokens_per_s") / ranks, 1),
        **{name: None if steps[0][name] is None else round(mean(name), 4) for name in ("mfu", "mfu_causal")},
        "memory_gib": round(max(record["memory_gib"] for record in steps), 3),
        "mfu_convention": start["mfu_convention"],
    }
