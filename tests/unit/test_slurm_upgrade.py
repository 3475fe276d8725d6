# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Which version of Slurm may follow which, what is refused and in which words."""

from __future__ import annotations

import itertools

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import upgrade as logic

OFFERED = ["24.11.5", "26.05.5"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("slurm-wlm 24.11.5\n", (24, 11, 5)),
        ("slurm 26.05.5", (26, 5, 5)),
        ("24.11.5-nvml", (24, 11, 5)),
        ("25.11", (25, 11, 0)),
    ],
)
def test_version(text, parts):
    assert logic.version(text) == parts


@pytest.mark.parametrize("text", ["", None, "command not found", "1.2.3"])
def test_no_version(text):
    with pytest.raises(logic.UpgradeError, match=r"is no version of Slurm, which looks like 24\.11\.5"):
        logic.version(text)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        # Slurm's own release notes: two until 24.05, three since 24.11.
        ("23.11", ["23.02", "22.05"]),
        ("24.05", ["23.11", "23.02"]),
        ("24.11", ["24.05", "23.11", "23.02"]),
        ("25.05", ["24.11", "24.05", "23.11"]),
        ("26.05", ["25.11", "25.05", "24.11"]),
        ("26.11", ["26.05", "25.11", "25.05"]),
    ],
)
def test_accepted(name, accepted):
    assert logic.accepted(name) == accepted


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    [
        ("24.11", "26.05", ["26.05"]),
        ("24.05", "26.05", ["25.11", "26.05"]),
        ("22.05", "24.11", ["23.11", "24.11"]),
        ("22.05", "26.05", ["23.11", "25.05", "26.05"]),
        ("25.05", "25.05", []),
    ],
)
def test_way(old, new, steps):
    assert logic.way(old, new) == steps


def test_every_step_of_a_way_is_accepted():
    for first, old in enumerate(logic.MAJORS):
        for new in logic.MAJORS[first:]:
            steps = [old, *logic.way(old, new)]
            assert all(before in logic.accepted(after) for before, after in itertools.pairwise(steps))


def host(version: str, *functions: str, unfinished: tuple[str, ...] = ()) -> dict:
    return {"version": version, "functions": list(functions), "unfinished": list(unfinished)}


HEAD = host("slurm-wlm 24.11.5", "controller", "database")
DONE = host("slurm-wlm 26.05.5", "controller", "database")


def test_plan_in_slurms_order():
    hosts = {
        "compute-1": host("slurm-wlm 26.05.5", "compute"),
        "compute-2": host("slurm-wlm 25.05.1", "compute"),
        "controller-1": HEAD,
        "login-1": host("slurm-wlm 24.11.5", "login"),
    }
    plan = logic.plan(hosts, OFFERED, "", "controller-1")
    assert list(plan["steps"].items()) == [
        ("database", ["controller-1"]),
        ("controller", ["controller-1"]),
        ("compute", ["compute-2"]),
        ("login", ["login-1"]),
    ]
    assert (plan["from"], plan["to"]) == ("24.11.5", "26.05.5")


def test_what_an_earlier_run_began_is_gone_on_with():
    """The new packages are there, and slurmctld did not start."""
    unfinished = ("26.05.5/controller", "25.05.1/database")
    steps = logic.plan({"a": {**DONE, "unfinished": unfinished}}, OFFERED, "", "a")["steps"]
    assert steps == {"database": [], "controller": ["a"], "compute": [], "login": []}


@pytest.mark.parametrize("wanted", ["26.05.5", "26.05", "26", ""])
def test_what_is_wanted_may_be_said_in_short(wanted):
    assert logic.plan({"a": HEAD}, OFFERED, wanted, "a")["to"] == "26.05.5"


def test_two_builds_of_one_version():
    hosts = {"a": host("24.11.5", "controller"), "b": host("24.11.5-nvml", "compute")}
    plan = logic.plan(hosts, ["24.11.5", "24.11.5-nvml"], "24.11.5-nvml", "a")
    assert (plan["to"], plan["steps"]["controller"], plan["steps"]["compute"]) == ("24.11.5-nvml", ["a"], [])
    with pytest.raises(logic.UpgradeError, match=r"Slurm 24\.11\.5-jwt is offered by no source"):
        logic.plan(hosts, ["24.11.5", "24.11.5-nvml"], "24.11.5-jwt", "a")


def test_nothing_to_do():
    assert not any(logic.plan({"a": HEAD}, ["24.11.5"], "", "a")["steps"].values())


@pytest.mark.parametrize(
    ("have", "offered", "wanted", "sentence"),
    [
        (
            "22.05.8",
            OFFERED,
            "26.05",
            "Slurm 22.05.8 on a cannot become 26.05.5 in one step, because 26.05 understands only 25.11, 25.05 and 24.11; "
            "go by way of 23.11 and 25.05.",
        ),
        (
            "24.05.2",
            OFFERED,
            "",
            "Slurm 24.05.2 on a cannot become 26.05.5 in one step, because 26.05 understands only 25.11, 25.05 and 24.11; "
            "go by way of 25.11.",
        ),
        (
            "26.05.5",
            OFFERED,
            "24.11",
            "Slurm 26.05.5 on a is newer than 24.11.5, and Slurm never goes back over its converted database and state files; "
            "restore the copies of before an upgrade instead.",
        ),
        (
            "24.11.5",
            OFFERED,
            "27.05",
            "Slurm 27.05 is offered by no source of a, which has 24.11.5 and 26.05.5; set slurm_version to what there is, or "
            "slurm_apt_source or slurm_sources to where it is.",
        ),
        (
            "24.11.5",
            [],
            "",
            "Slurm of any version is offered by no source of a, which has none; set slurm_version to what there is, or "
            "slurm_apt_source or slurm_sources to where it is.",
        ),
        ("", OFFERED, "", "Slurm is not installed on a; run playbooks/provision.yml before an upgrade."),
        ("24.07.1", OFFERED, "", "Slurm has no release 24.07; known are 20.02 to 44.11."),
    ],
)
def test_refused(have, offered, wanted, sentence):
    with pytest.raises(logic.UpgradeError) as refused:
        logic.plan({"a": host(have, "controller")}, offered, wanted, "a")
    assert str(refused.value) == sentence


def test_a_wanted_version_is_compared_by_numbers():
    """The number 2 does not select version 26."""
    with pytest.raises(logic.UpgradeError, match="Slurm 2 is offered by no source"):
        logic.target(OFFERED, "2", "a")
