# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Samples a second at 1, 2, 4 and 8 ranks, and the share of a step that its collectives take. Prints one JSON object.

python tests/bench/trainer_scaling.py   (in an environment with torch; a rank a GPU, or 8 on this machine's cores by gloo)

Where ranks share cores, samples a second per rank say little. The all-reduce of all gradients over the step says what scaling costs where
nothing hides it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.trainer_ranks import start

WARM, STEPS, BATCH = 3, 10, 4  # BATCH samples a rank


def rank_main(gpus: int) -> None:
    """One rank: times the trainer's step on synthetic samples, and its collectives alone."""
    import torch
    import torch.distributed as dist

    from trainer import optim
    from trainer.config import TrainConfig
    from trainer.launch import join, leave, read_ranks
    from trainer.parallel.build import build
    from trainer.train import read_shape

    torch.set_num_threads(1)
    ranks = read_ranks(os.environ)
    config = TrainConfig(model="llama-3.2-1b" if gpus else "tiny", train_batch_size=BATCH, sharding_strategy="ddp", compile=int(bool(gpus)))
    device, _ = join(ranks, None, 300)
    shape = read_shape(config)
    engine = build(shape, config, device)
    optimizer = optim.AdamW(engine.model, config)
    batch = torch.randint(0, shape.vocab_size, (BATCH, shape.max_context_width + 1), device=device)
    gradients = torch.zeros(shape.parameters(), device=device)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for step in range(WARM + STEPS):
        if step == WARM:
            dist.barrier()
            began = now()
        engine.forward_backward(batch)
        engine.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = (now() - began) / STEPS
    dist.barrier()
    began = now()
    for _ in range(STEPS):
        dist.all_reduce(gradients)
    alone = (now() - began) / STEPS
    if ranks.rank == 0:
        print(json.dumps({"samples_per_s": BATCH * ranks.world_size / seconds, "step_s": seconds, "all_reduce_s": alone}))
    dist.barrier()
    leave(0)


def measure(ranks: int, gpus: int) -> dict[str, float]:
    found: dict[str, float] = json.loads(start(ranks, [__file__, "rank", str(gpus)])[0].splitlines()[-1])
    return found


def main() -> None:
    import torch

    gpus = torch.cuda.device_count()
    counts = [ranks for ranks in (1, 2, 4, 8) if ranks <= (gpus or 8)]
    found = {ranks: measure(ranks, gpus) for ranks in counts}
    one = found[1]["samples_per_s"]
    answer = {
        str(ranks): {
            "samples_per_s": round(one_of["samples_per_s"], 2),
            "samples_per_s_and_rank": round(one_of["samples_per_s"] / ranks, 2),
            "efficiency": round(one_of["samples_per_s"] / ranks / one, 3),
            "collective_share": round(one_of["all_reduce_s"] / one_of["step_s"], 3) if ranks > 1 else 0.0,
        }
        for ranks, one_of in found.items()
    }
    print(json.dumps({"device": torch.cuda.get_device_name() if gpus else f"{os.cpu_count()} cores, gloo", "ranks": answer}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]))
    else:
        main()
