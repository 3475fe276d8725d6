# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Sweeps of recipes: the combinations, their jobs and their table."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.jobs import fleet, recipe, sweep, workload
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError

RECIPES = Path(__file__).parents[2] / "recipes"
GOOD = {
    "verdict": "passed",
    "first": {"step": 1, "loss": 5.5},
    "last": {"step": 60, "loss": 1.25},
    "tokens_per_s": 812.5,
    "samples_per_s": 6.25,
}


def read(name: str) -> dict:
    return recipe.load(yaml.safe_load((RECIPES / name / "recipe.yml").read_text()), name)


def test_every_combination_has_its_flags_and_its_name() -> None:
    asked = {"args": ["--seed", 7], "steps": 40, "suffix": "-night"}
    found = sweep.points({"--lr": [0.001, 3e-4], "--training.steps=": [10, 20]}, asked)
    assert [each["asked"]["args"][2:] for each in found] == [
        ["--lr", 0.001, "--training.steps=10"],
        ["--lr", 0.001, "--training.steps=20"],
        ["--lr", 0.0003, "--training.steps=10"],
        ["--lr", 0.0003, "--training.steps=20"],
    ]
    assert [each["asked"]["suffix"] for each in found] == ["-night-1", "-night-2", "-night-3", "-night-4"]
    assert {(each["asked"]["steps"], *each["asked"]["args"][:2]) for each in found} == {(40, "--seed", 7)}
    assert found[1]["label"] == "lr 0.001, training.steps 20"
    assert asked["args"] == ["--seed", 7]


@pytest.mark.parametrize(
    ("given", "asked", "says"),
    [
        ({}, {}, "muster_sweep must have a flag of the framework with a list of values"),
        (["--lr"], {}, "muster_sweep must have a flag"),
        ({"--lr": 0.1}, {}, "muster_sweep.--lr must be a list of values"),
        ({"--lr": []}, {}, "muster_sweep.--lr must be a list of values"),
        ({"--lr": [1, "1"]}, {}, "muster_sweep.--lr has a value twice; remove one."),
        ({"--lr": [1]}, {"args": ["--lr", 2]}, "--lr is in muster_sweep and in muster_workload.args; remove it from one of them."),
        ({"--lr": [1]}, {"args": ["--lr=2"]}, "--lr is in muster_sweep and in muster_workload.args"),
        (
            {"--a": list(range(9)), "--b": list(range(9))},
            {},
            "muster_sweep has 81 combinations, and 64 can run at once; give fewer values.",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(given, asked: dict, says: str) -> None:
    with pytest.raises(JobError, match=re.escape(says)):
        sweep.points(given, asked)


def test_each_combination_has_a_job_of_its_own() -> None:
    points = sweep.points({"--lr": [0.1, 0.2]})
    [part] = fleet.parts(["n1", "n2"], dict.fromkeys(["n1", "n2"], ""))
    found = read("ddp")
    documents = [workload.plan(found, each["asked"], part=part, trainer={"venv": "/v"})["document"] for each in points]
    assert [each["name"] for each in documents] == ["ddp-tiny-1", "ddp-tiny-2"]
    assert [each["command"][-2:] for each in documents] == [["--lr", "0.1"], ["--lr", "0.2"]]
    long = workload.plan(found, {"suffix": "-" + "x" * 30}, part=part, trainer={"venv": "/v"})["document"]["name"]
    assert len(long) <= 40 and long.endswith("-" + "x" * 30)


def test_the_table_has_the_lowest_loss_first_and_names_what_failed() -> None:
    points = sweep.points({"--lr": [0.1, 0.2, 0.3]})
    rows = [
        sweep.row(points[0], "ddp-tiny-1", GOOD),
        sweep.row(points[1], "ddp-tiny-2", {**GOOD, "last": {"step": 60, "loss": 0.5}, "tokens_per_s": None}),
        sweep.row(points[2], "ddp-tiny-3", {}, "Job ddp-tiny-3\nended as FAILED."),
    ]
    found = sweep.table(rows)
    assert found["lines"] == [
        "lr 0.2: loss 5.5 to 0.5 (ddp-tiny-2)",
        "lr 0.1: loss 5.5 to 1.25 at 812.5 tokens/s (ddp-tiny-1)",
        "lr 0.3: failed: Job ddp-tiny-3 ended as FAILED. (ddp-tiny-3)",
    ]
    assert found["failed"] == ["ddp-tiny-3"]
    read = list(csv.DictReader(found["csv"].splitlines()))
    assert [(each["lr"], each["job"], each["verdict"], each["last_loss"]) for each in read] == [
        ("0.1", "ddp-tiny-1", "passed", "1.25"),
        ("0.2", "ddp-tiny-2", "passed", "0.5"),
        ("0.3", "ddp-tiny-3", "failed", ""),
    ]


def test_a_loss_that_did_not_fall_is_a_failed_combination() -> None:
    [point] = sweep.points({"--lr": [0.1]})
    row = sweep.row(point, "x", {**GOOD, "verdict": "failed", "reason": "the loss did not fall enough"}, "wrapped")
    assert (row["verdict"], row["reason"]) == ("failed", "the loss did not fall enough")
    assert sweep.table([row])["lines"] == ["lr 0.1: failed: the loss did not fall enough (x)"]
