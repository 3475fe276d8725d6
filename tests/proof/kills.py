# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: SIGKILL ends `site.yml` at twenty random moments, while it makes, keeps, grows and shrinks a fleet; the next run makes it whole.

Run by hand: `pytest --engine tests/proof/kills.py`; about half an hour on two cores, which must be free, or nodes miss their deadlines.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME = "kills"
# (what, compute nodes before, compute nodes asked for, the longest time before the kill in seconds)
# The gate of the collectives needs two nodes.
KEEPS, SHRINKS, GROWS, FIRST = ("keeps", 2, 2, 30), ("shrinks", 3, 2, 30), ("grows", 2, 3, 45), ("first run", 0, 2, 120)
KILLS = [FIRST, *[KEEPS] * 8, *[SHRINKS, GROWS] * 4, *[FIRST] * 3]
SEED = int(os.environ.get("MUSTER_KILLS_SEED", str(time.time_ns() % 1_000_000)))


@pytest.fixture(scope="module")
def fleet(artifacts) -> Fleet:
    made = Fleet(artifacts.folder(NAME), NAME, ROOT / "inventory/local")
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    return made


def options(compute: int) -> list[str]:
    return ["-e", f"muster_local_compute={compute}", "-e", "muster_local_shrink=true"]


def good(fleet: Fleet, compute: int) -> None:
    done = fleet.run("site.yml", *options(compute))
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"fleet {NAME}: passed in " in done.stdout
    ready = fleet.ansible("controller-1", "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    assert sorted(ready) == [f"compute-{number} idle" for number in range(1, compute + 1)]


@pytest.mark.parametrize("number", range(len(KILLS)))
def test_the_run_after_a_kill_makes_the_fleet_whole(fleet: Fleet, number: int) -> None:
    what, before, after, longest = KILLS[number]
    moment = random.Random(SEED + number).uniform(0.5, longest)
    print(f"{what}: SIGKILL after {moment:.1f} s; MUSTER_KILLS_SEED={SEED} repeats it")
    if not before:
        assert fleet.run("playbooks/local_down.yml").returncode == 0
    elif not fleet.state_dir.exists() or len(fleet.containers().containers()) != before + 1:
        good(fleet, before)
    run = fleet.begin("site.yml", *options(after))
    try:
        run.wait(moment)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    good(fleet, after)
