# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes what is made from the alarms and dashboards: runbooks, Grafana's JSON, objects for Kubernetes and AWS. --check compares."""

from __future__ import annotations

import sys
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, dashboards

ROOT = Path(__file__).parents[1]


def files() -> dict[str, str]:
    """{path in the checkout: text}."""
    boards = {f"roles/monitoring/files/dashboards/{board.uid}.json": dashboards.grafana(board) for board in dashboards.BOARDS}
    return {"docs/runbooks.md": alarms.runbooks(), **boards}


def main() -> int:
    made = files()
    old = [path for path, text in made.items() if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in old:
            print(f"{path} is not what alarms and dashboards say; run make docs.", file=sys.stderr)
        return 1 if old else 0
    for path in old:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
