# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`make bench`: every figure of docs/performance.md, measured in one run on a quiet machine and written there.

It takes about 25 minutes; `python -m tests.bench 1` measures the first converges once instead of twice.
The figures of a whole `make site` come from the events of a run folder, see docs/performance.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import adding, converge
from .fleets import ROOT

BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"


def trainer_figures(script: str) -> dict:
    """What a script of the trainer prints, in the environment that the trainer's unit tests use; {} where that was not made yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "muster"
    made = sorted(cache.glob("venv-trainer-*/bin/python"))
    if not made:
        return {}
    done = subprocess.run([made[-1], f"tests/bench/{script}"], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def beside(memory: dict, scaling: dict) -> list[tuple]:
    """The rows of the estimate's memory and of more ranks."""
    rows: list[tuple] = [
        (f"Peak memory of {case} / its estimate", 1 / of["ratio"], "1.1", f"{of['measured_mb']:.0f} MB / {of['estimated_mb']:.0f} MB")
        for case, of in memory.items()
    ]
    for ranks, of in scaling.get("ranks", {}).items():
        text = f"{of['samples_per_s']:.1f} samples/s in all, {of['samples_per_s_and_rank']:.1f} a rank ({scaling['device']})"
        rows.append((f"All-reduce of the gradients / step at {ranks} ranks", of["collective_share"], "", text))
    return rows


def table(found: dict, trainer: dict, added: dict) -> str:
    """The figures with their bounds as a Markdown table."""
    rows = [
        ("First converge / bare shell script", found["first_to_bare"], "1.25", f"{found['first_s']:.1f} s / {found['first_bare_s']:.1f} s"),
        ("Second converge / `ansible -m setup`", found["second_to_setup"], "12", f"{found['second_s']:.1f} s / {found['setup_s']:.2f} s"),
        ("Second converge, changed tasks", found["second_changed"], "0", ""),
        ("Verify, told apart", found["verify_s"], "", "seconds"),
        (
            "Controller CPU-s per host, 8 / 2 compute nodes",
            found["cpu_8_to_2"],
            "1.1",
            f"{found['cpu_s_per_host_at_8']:.2f} s / {found['cpu_s_per_host_at_2']:.2f} s",
        ),
    ]
    rows.append(
        (
            "Adding a node to 100 / to 3",
            added["add_100_to_3"],
            "1.1",
            f"{added['add_to_100_s']:.1f} s / {added['add_to_3_s']:.1f} s",
        )
    )
    rows.append(
        (
            "Adding a node to 100 / to 3, controller CPU-s",
            added["add_100_to_3_cpu"],
            "1.1",
            f"{added['add_to_100_cpu_s']:.1f} s / {added['add_to_3_cpu_s']:.1f} s",
        )
    )
    if "loop_overhead" in trainer:
        rows += [
            (
                "Trainer's step / bare PyTorch loop's",
                trainer["loop_overhead"],
                "1.03",
                f"{trainer['trainer_step_s']:.3f} s / {trainer['bare_step_s']:.3f} s",
            ),
            (
                "Asynchronous save's stall / synchronous save",
                trainer["stall_to_save"],
                "0.1",
                f"{trainer['stall_s']:.3f} s / {trainer['save_s']:.2f} s",
            ),
            ("1M tokens/s / pre-tokenised loader", 1e6 / trainer["loader_tokens_per_s"], "1", f"{trainer['loader_tokens_per_s']} tokens/s"),
        ]
    if "streamed_to_tokenizer" in trainer:
        of = f"{trainer['tokenizer_tokens_per_s']} / {trainer['streamed_tokens_per_s']} tokens/s"
        rows.append(("Bare tokenizer / streaming", 1 / trainer["streamed_to_tokenizer"], "1.25", of))
    rows += trainer.get("rows", [])
    lines = ["| What | Measured | At most | Of |", "|---|---|---|---|"]
    lines += [f"| {what} | {value:.2f} | {bound} | {of} |" for what, value, bound, of in rows]
    where = (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    return "\n".join([f"Measured {where}.", "", *lines])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        found = converge.measure(Path(folder), int(sys.argv[1]) if sys.argv[1:] else 2)
        added = adding.measure(Path(folder))
    trainer = trainer_figures("trainer_loop.py")
    trainer["rows"] = beside(trainer_figures("trainer_memory.py"), trainer_figures("trainer_scaling.py"))
    text = table(found, trainer, added)
    print(json.dumps({"converge": found, "adding": added, "trainer": trainer}, indent=1))
    print(text)
    page = ROOT / "docs/performance.md"
    old = page.read_text()
    page.write_text(old[: old.index(BEGIN) + len(BEGIN)] + "\n" + text + "\n" + old[old.index(END) :])
    # By itself, because the peak memory of a process counts from its parent's, and this one is larger than what is measured.
    subprocess.run([sys.executable, "-m", "tests.bench.inventory"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
