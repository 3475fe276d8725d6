# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Peak resident memory of real training steps on this CPU, above the level after the imports, beside `estimate`. Prints JSON.

glibc keeps freed blocks of up to 32 MiB, so resident memory depends on the order of earlier frees and may be 1.4 times what the run needs.
MALLOC_MMAP_THRESHOLD_ makes glibc give freed memory back, so resident memory is what the run needs.

python tests/bench/trainer_memory.py   (in an environment with torch; each case takes seconds, in a process of its own)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.trainer_ranks import start
from trainer.estimate.memory import Plan, memory
from trainer.layout import Layout
from trainer.models import shape_of

# Shapes that differ in what fills the memory: weights, activations, the loss; and weights that FSDP2 divides over two ranks.
CASES = {
    "weights": {
        "hidden_width": 768,
        "num_layers": 6,
        "num_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
        "vocab_size": 8192,
        "max_context_width": 128,
        "batch": 1,
    },
    "activations": {
        "hidden_width": 512,
        "num_layers": 8,
        "num_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1408,
        "vocab_size": 512,
        "max_context_width": 512,
        "batch": 4,
    },
    "loss": {
        "hidden_width": 256,
        "num_layers": 2,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 32000,
        "max_context_width": 512,
        "batch": 4,
    },
}
CASES["divided"] = CASES["weights"] | {"num_layers": 12, "ranks": 2}


def status(key: str) -> int:
    """A line of /proc/self/status in bytes."""
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))


def child(folder: str, case: str, more: list[str]) -> None:
    """Two steps of the trainer; prints the peak above the level after the imports."""
    import torch

    from trainer import metrics
    from trainer.config import read_train
    from trainer.launch import leave, read_ranks
    from trainer.train import run

    torch.set_num_threads(1)
    # The first call of a kernel loads its library, so call each once: the libraries count as imports.
    layer = torch.nn.Linear(64, 64)
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    torch.nn.functional.scaled_dot_product_attention(*(torch.ones(1, 1, 64, 64, requires_grad=True) for _ in range(3))).sum().backward()
    layer(torch.ones(64, 64)).sum().backward()
    metrics.logger().handlers[0].setLevel("ERROR")
    parts = dict(CASES[case])
    batch = parts.pop("batch")
    parts.pop("ranks", 0)
    argv = ["--model", "tiny", "--dataset_path", folder, "--train_batch_size", str(batch), "--max_steps", "2", "--backend", "gloo", *more]
    for name, value in parts.items():
        argv += [f"--{name}", str(value)]
    config = read_train(argv)
    before = status("VmRSS")
    code = run(config, read_ranks(os.environ))
    print(json.dumps({"code": code, "bytes": status("VmHWM") - before}))
    leave(code)


def measure(folder: Path, case: str, *more: str) -> tuple[float, float]:
    """(measured, estimated) bytes of one case; `more` are flags of train."""
    parts = dict(CASES[case])
    batch, ranks = parts.pop("batch"), parts.pop("ranks", 1)
    argv = [__file__, "child", str(folder), case, *more]
    said = start(ranks, argv, MALLOC_MMAP_THRESHOLD_="262144", MALLOC_ARENA_MAX="1")
    kept = more[more.index("--activation_checkpointing") + 1] if "--activation_checkpointing" in more else "none"
    shape = shape_of("tiny", "llama_v3", parts)
    need = memory(shape, Plan(Layout(shard=ranks), batch, recompute=kept), "fp32")
    return max(json.loads(text.splitlines()[-1])["bytes"] for text in said), need.total


def main() -> None:
    from trainer.data.tokens import prepare

    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), 20_000, 1, 256)
        found = {case: measure(Path(name), case) for case in sys.argv[1:] or CASES}
    print(
        json.dumps(
            {
                case: {"measured_mb": round(m / 1e6, 1), "estimated_mb": round(e / 1e6, 1), "ratio": round(e / m, 3)}
                for case, (m, e) in found.items()
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
