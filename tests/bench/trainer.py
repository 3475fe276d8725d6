# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The trainer's rows: its scripts run in its own environment, which is made first where it is missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from .fleets import ROOT
from .table import Row, row


def run(script: str) -> dict[str, Any]:
    """What a script of the trainer prints."""
    made = subprocess.run(["tools/trainer_venv.sh"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    done = subprocess.run([f"{made}/bin/python", f"tests/bench/{script}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def loop(folder: Path) -> list[Row]:
    found = run("trainer_loop.py")
    step, bare = f"{found['trainer_step_s']:.3f} s", f"a bare PyTorch loop, {found['bare_step_s']:.3f} s"
    stall, save = f"{found['stall_s']:.3f} s", f"a synchronous save, {found['save_s']:.2f} s"
    loader, streamed = found["loader_tokens_per_s"], found["streamed_tokens_per_s"]
    return [
        row("Step of the trainer", step, bare, found["loop_overhead"], "≤ 1.03"),
        row("Stall of the training by an asynchronous save", stall, save, found["stall_to_save"], "≤ 0.1"),
        row("Loader of pre-tokenised data, one core", f"{loader:,} tokens/s", "1,000,000 tokens/s", loader / 1e6, "≥ 1"),
        row(
            "Streaming of text, one core",
            f"{streamed:,} tokens/s",
            f"the bare tokenizer, {found['tokenizer_tokens_per_s']:,} tokens/s",
            found["streamed_to_tokenizer"],
            "≥ 0.8",
        ),
    ]


def metrics(folder: Path) -> list[Row]:
    """The file that muster-exporter reads; the trainer does nothing else for the metrics."""
    found = run("trainer_metrics.py")
    spread = " to ".join(f"{100 * (found[each] - 1):+.2f}" for each in ("least", "most"))
    ours = f"{100 * (found['ratio'] - 1):+.2f} % of CPU (rounds {spread} %)"
    return [row("Step of the trainer with its metrics", ours, f"without train.jsonl, {found['cpu_s']:.3f} s", found["ratio"], "≤ 1.005")]


def tokens(folder: Path) -> list[Row]:
    return [
        row(
            f"Tokens per CPU-second, {case}",
            f"{each['tokens_per_cpu_s']:,}",
            f"a bare loop around transformers' Llama, {each['bare_tokens_per_cpu_s']:,}",
            each["ratio"],
            "≥ 1.05",
        )
        for case, each in run("trainer_peers.py").items()
    ]


def frameworks(folder: Path) -> list[Row]:
    found = run("trainer_frameworks.py")
    ours = found.pop("trainer")
    best = max(found, key=lambda name: found[name])
    others = " and ".join(f"{name}'s {found[name]:,}" for name in sorted(found))
    return [row("Tokens per CPU-second beside other frameworks", f"{ours:,}", others, ours / found[best], "≥ 1.0")]


def memory(folder: Path) -> list[Row]:
    """The trainer promises that no run needs more than a tenth above its estimate."""
    return [
        row(
            f"Peak memory of a step, case {case}",
            f"{each['measured_mb']:.0f} MB",
            f"its estimate, {each['estimated_mb']:.0f} MB",
            1 / each["ratio"],
            "≤ 1.1",
        )
        for case, each in run("trainer_memory.py").items()
    ]


def scaling(folder: Path) -> list[Row]:
    found = run("trainer_scaling.py")
    return [
        row(
            f"All-reduce of the gradients, {ranks} ranks",
            f"{each['samples_per_s']:.1f} samples/s in all, {each['samples_per_s_and_rank']:.1f} a rank",
            f"a step ({found['device']})",
            each["collective_share"],
        )
        for ranks, each in found["ranks"].items()
        if int(ranks) > 1
    ]
