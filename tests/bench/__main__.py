# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`make bench`: measures the figures of docs/performance.md and writes them there, on a quiet machine in about 30 minutes.

    python -m tests.bench                    every part but those of NAMED_ONLY
    python -m tests.bench converge adding    these parts; `make bench ONLY="converge adding"` is the same
    PEERS=folder python -m tests.bench       peers too: folder/ansible-slurm is a checkout of galaxyproject/ansible-slurm

Each part writes its rows as soon as it has them. The rows of a part that fails or is not run stay in the table with their date and the
mark "kept"; a part that fails also makes the exit code 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from . import adding, bake, converge, exporters, health, hosts, launch, peers, render, stack, table, targets, trainer, watched
from .fleets import ROOT

PAGE = ROOT / "docs/performance.md"


def inventory(folder: Path) -> list[table.Row]:
    """tests.bench.inventory writes its own table, into docs/inventory.md.

    It runs in a process of its own: the peak memory of a child counts from its parent's, and this process is larger than what it measures.
    """
    subprocess.run([sys.executable, "-m", "tests.bench.inventory"], cwd=ROOT, check=True)
    return []


PARTS: dict[str, Callable[[Path], list[table.Row]]] = {
    "converge": converge.rows,
    "adding": adding.rows,
    "hosts": hosts.rows,
    "render": render.rows,
    "peers": peers.rows,
    "loop": trainer.loop,
    "metrics": trainer.metrics,
    "tokens": trainer.tokens,
    "frameworks": trainer.frameworks,
    "memory": trainer.memory,
    "scaling": trainer.scaling,
    "exporters": exporters.rows,
    "targets": targets.rows,
    "watched": watched.rows,
    "health": health.rows,
    "launch": launch.rows,
    "inventory": inventory,
    "stack": stack.rows,
    "bake": bake.rows,
    "bake_gpu": bake.rows_gpu,
}
# They take too long for every run.
NAMED_ONLY = ("hosts", "frameworks", "targets", "watched", "health", "launch", "stack", "bake", "bake_gpu")


def main(wanted: list[str]) -> int:
    for part in wanted:
        if part not in PARTS:
            raise SystemExit(f"The bench has no part called {part}; choose from {', '.join(PARTS)}.")
    skipped = {} if wanted or os.environ.get("PEERS") else {"peers": "PEERS names no folder"}
    chosen = wanted or [part for part in PARTS if part not in {*NAMED_ONLY, *skipped}]
    failed: dict[str, str] = {}
    measured: dict[str, list[table.Row]] = {}
    rows: list[table.Row] = []
    old = table.read(PAGE.read_text())
    for part in chosen:
        print(f"bench: {part}", flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
                measured[part] = table.stamped(PARTS[part](Path(folder)), f"python -m tests.bench {part}")
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            failed[part] = f"it failed: {(str(error) or type(error).__name__).splitlines()[0][:120]}".replace("|", "/")
        # Write the page after each part, so that an interrupted run keeps what it measured.
        left = {each: "the run was interrupted" for each in chosen if each not in measured and each not in failed}
        rows = [row for each in measured.values() for row in each]
        PAGE.write_text(table.write(PAGE.read_text(), table.merge(old, rows), measured, {**skipped, **failed, **left}))
    for row in rows:
        print(" | ".join(row))
    for part, reason in {**skipped, **failed}.items():
        print(f"bench: {part} was not measured ({reason}); docs/performance.md keeps its old rows")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
