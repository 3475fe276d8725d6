# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A second call of check for the same component and level replaces what failed in the first, so a host makes one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
# Its server makes one of the two calls, and the other nodes make the other.
APART = {"storage"}


def every(tasks: list[dict]) -> Iterator[dict]:
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from every(task.get(part) or [])


@pytest.mark.parametrize("role", sorted({path.parts[-3] for path in ROOT.glob("roles/*/tasks/verify_*.yml")} - APART))
def test_a_role_checks_a_level_in_one_call(role: str) -> None:
    tasks = [task for path in ROOT.glob(f"roles/{role}/tasks/*.yml") for task in every(yaml.safe_load(path.read_text()) or [])]
    calls = Counter(
        (task["muster.fleet.check"]["component"], task["muster.fleet.check"]["level"]) for task in tasks if "muster.fleet.check" in task
    )
    assert [call for call, times in calls.items() if times > 1] == []
