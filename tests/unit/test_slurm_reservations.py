# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Reservations against what scontrol prints: made when missing, changed where they differ, and never made again when they are over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import reservations as logic

# Recorded from Slurm 24.11.5 on a node whose clock is UTC, see the README there.
RECORDED = (Path(__file__).parents[1] / "fixtures/slurm/scontrol_reservations.txt").read_text()
NOW = 1799500000
MAINT = {
    "StartTime": "2027-01-10T08:00:00",
    "Duration": "120",
    "Nodes": "compute-[1]",
    "Users": ["root"],
    "Flags": ["ignore_jobs", "MAINT"],
}


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def commands(name: str = "maint", text: str = RECORDED, now: float = NOW, **params) -> tuple[list[str], list[str]]:
    run, notes = logic.plan([{"name": name, "params": params}], logic.reservations(text), now)
    return [" ".join(argv).removeprefix("scontrol ") for argv in run], notes


def test_one_that_is_as_said():
    assert commands(**MAINT) == ([], [])
    assert commands("class", EndTime="2027-01-11T12:00", PartitionName="main", Accounts="muster", NodeCnt=1) == ([], [])
    assert commands(**{**MAINT, "StartTime": "now+1hour"}) == ([], [])


@pytest.mark.parametrize(
    ("params", "sets"),
    [
        ({"Users": ["root", "ada"]}, "Users=root,ada"),
        ({"Nodes": "compute-[1-2]"}, "Nodes=compute-[1-2]"),
        ({"Duration": "3:00:00"}, "Duration=3:00:00"),
        ({"StartTime": "2027-01-10T09:00:00"}, "StartTime=2027-01-10T09:00:00"),
        ({"Flags": "MAINT,FLEX"}, "Flags=MAINT,FLEX"),
    ],
)
def test_what_differs(params, sets):
    assert commands(**{**MAINT, **params}) == ([f"update reservation ReservationName=maint {sets}"], [])


def test_the_beginning_of_one_that_has_begun_stays():
    begun = RECORDED.replace("State=INACTIVE", "State=ACTIVE")
    assert commands(text=begun, **{**MAINT, "StartTime": "2027-01-10T07:00:00"}) == ([], [])


def test_one_that_is_missing_and_one_that_is_over():
    text = "No reservations in the system\n"
    made = "create reservation ReservationName=maint StartTime=2027-01-10T08:00:00 Duration=120 Nodes=compute-[1] Users=root"
    assert commands(text=text, **MAINT) == ([f"{made} Flags=ignore_jobs,MAINT"], [])
    over = "The reservation maint is over since 2027-01-10 10:00 and is not made."
    assert commands(text=text, now=NOW + 10**6, **MAINT) == ([], [over])
    assert commands(text=text, now=NOW + 10**6, StartTime="now", Duration=60)[0] != []
