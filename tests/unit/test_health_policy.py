# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""When a node is drained, kept, resumed, restarted or replaced."""

from __future__ import annotations

import random
from typing import Any

import pytest
from health_records import QUIET, SHOWN, record

from ansible_collections.muster.fleet.plugins.module_utils.health import policy, settings
from ansible_collections.muster.fleet.plugins.module_utils.health.run import confirmed

DRAIN = settings.DRAIN


def test_what_scontrol_says_of_nodes() -> None:
    own = "muster:xid: XID 79; restart it [image ami-1]"
    text = "\n".join([
        SHOWN.format("n1", "p5,HealthCheck:Passed", "IDLE+DRAIN", "a note of mine", own, 1764063000),
        QUIET.format("n2", "MIXED"),
    ])  # fmt: skip
    assert policy.nodes_of(text) == {
        "n1": {
            "state": "IDLE+DRAIN",
            "reason": "muster:xid: XID 79; restart it [image ami-1]",
            "since": 1764063000,
            "comment": "a note of mine",
            "features": ["p5", "HealthCheck:Passed"],
            "partitions": ["main"],
        },
        "n2": {"state": "MIXED", "reason": "", "since": 0, "comment": "", "features": [], "partitions": ["main", "gpu"]},
    }
    for text in ("", "slurm_load_node error: Unable to contact slurm controller", "{"):
        with pytest.raises(ValueError, match="printed no node"):
            policy.nodes_of(text)


def nodes(**states: Any) -> dict[str, dict[str, Any]]:
    """{n1: what is not idle}, in a partition of 40."""
    base = {"state": "IDLE", "reason": "", "since": 0, "comment": "", "features": [], "partitions": ["main"]}
    return {f"n{i}": {**base, **states.get(f"n{i}", {})} for i in range(1, 41)}


def decide(fleet: dict[str, dict[str, Any]], *checks: str, **more: Any) -> dict[str, Any]:
    drains = [record(check) for check in checks]
    given = {"now": 10000, "todo": ("restart it (1 of 2)", True), "image": "ami-1", "settings": DRAIN, **more}
    return policy.decide("n1", fleet, drains, given.pop("settings"), **given)


def test_a_node_is_drained_for_its_worst_check() -> None:
    found = decide(nodes(), "gpu_count")
    assert found["action"] == "drain"
    assert found["reason"] == "muster:gpu_count: the driver lists 7 of 8 GPUs; restart it (1 of 2) [image ami-1]"
    assert policy.commands("n1", nodes()["n1"], found, False) == [
        ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=" + found["reason"]],
        ["scontrol", "update", "NodeName=n1", "AvailableFeatures=HealthCheck:Failed", "ActiveFeatures=HealthCheck:Failed"],
    ]


def drained(reason: str, state: str = "IDLE+DRAIN", since: int = 9000) -> dict[str, Any]:
    return {"state": state, "reason": reason, "since": since}


@pytest.mark.parametrize(
    ("reason", "checks", "hooks", "action"),
    [
        ("muster:gpu_count: it; restart it (1 of 2)", (), (), "resume"),
        ("muster:gpu_count: it; restart it (1 of 2)", ("clock",), (), "update"),
        ("Prolog error", (), ("prolog",), "resume"),
        ("Epilog error", ("xid",), ("epilog",), "update"),
        # Whoever else drained the node decides.
        ("Prolog error", (), (), "none"),
        ("bad disk, ticket 4711", (), ("prolog",), "none"),
        ("bad disk, ticket 4711", ("gpu_count",), (), "none"),
        ("muster:nccl: busbw 80 GB/s", (), (), "none"),
        ("muster:diagnose: slow", ("gpu_count",), (), "none"),
        ("", (), (), "none"),
        ("Kill task failed", ("gpu_count",), (), "none"),
    ],
)
def test_only_own_drains_are_undone(reason: str, checks: tuple, hooks: tuple, action: str) -> None:
    found = decide(nodes(n1=drained(reason)), *checks, hooks=hooks)
    assert found["action"] == action
    if action == "none":
        assert found["note"].startswith("n1 stays IDLE+DRAIN: ")
        assert not [argv for argv in policy.commands("n1", nodes()["n1"], found, True) if any("State=" in word for word in argv)]


def test_a_reason_that_says_the_same_keeps_its_time() -> None:
    first = decide(nodes(), "gpu_count")["reason"]
    assert decide(nodes(n1=drained(first)), "gpu_count")["action"] == "none"
    assert decide(nodes(n1=drained(first)), "gpu_count", todo=("replace it, 2 restarts did not help", False))["action"] == "update"


def test_the_budget_of_a_cause() -> None:
    """5 % of 40 nodes are 2 in an hour."""
    one, two = drained("muster:clock: it; x"), drained("muster:clock: it; x")
    assert decide(nodes(n2=one), "clock")["action"] == "drain"
    found = decide(nodes(n2=one, n3=two), "clock")
    assert found["action"] == "hold"
    assert found["note"].startswith("n1 is not drained for clock: 2 of 40 nodes were within 3600 s, which is the budget")
    assert found["comment"].startswith("muster:clock: ")
    assert decide(nodes(n2=one, n3=two), "gpu_count")["action"] == "drain", "another cause"
    assert decide(nodes(n2=one, n3={**two, "since": 6000}), "clock")["action"] == "drain", "more than an hour ago"
    assert decide(nodes(n2=one, n3={**two, "state": "IDLE"}), "clock")["action"] == "drain", "it came back"
    assert decide(nodes(), "clock", settings={**DRAIN, "part": 0})["action"] == "hold"


def test_many_nodes_of_one_image_are_a_fault_of_the_image() -> None:
    alike = {f"n{i}": {"comment": "muster:drift: it; x [image ami-1]"} for i in range(3, 6)}
    found = decide(nodes(n2=drained("muster:drift: it; x [image ami-1]", since=0), **alike), "drift")
    assert found["action"] == "hold", "10 % of 40 nodes, and this is one more"
    assert found["alarm"] == {"check": "drift", "image": "ami-1", "nodes": 5}
    assert found["note"].startswith("5 nodes of image ami-1 fail drift: this is a fault of the image, so n1 is not drained")
    assert (
        decide(nodes(**{name: {"comment": node["comment"].replace("ami-1", "ami-0")} for name, node in alike.items()}), "drift")["alarm"]
        is None
    )


def test_a_mark_goes_when_the_node_is_well() -> None:
    well = decide(nodes(n1={"comment": "muster:clock: it; x"}))
    assert (well["action"], well["comment"]) == ("none", "")
    assert decide(nodes(n1={"comment": "rack 7"}))["comment"] is None


def test_two_restarts_and_then_another_machine() -> None:
    state: dict[str, Any] = {}
    lost = record("gpu_count")
    said = [policy.advice(lost, policy.boots_with(state, "gpu_count", f"boot-{i}", 1000 * i), 2) for i in (0, 0, 1, 2)]
    assert said == [
        ("restart it (1 of 2)", True),
        ("restart it (1 of 2)", True),
        ("restart it (2 of 2)", True),
        ("replace it, 2 restarts did not help", False),
    ]
    assert policy.boots_with(state, "gpu_count", "boot-9", 2000 + policy.WEEK) == 1, "a week later the node starts again"
    assert policy.advice(record("gpu_bus"), 1, 2) == ("replace it", False)


def test_a_restart_waits_until_no_job_runs_and_somebody_allowed_it() -> None:
    own = "muster:gpu_count: it; restart it (1 of 2)"
    allowed = {**DRAIN, "reboot": True}
    assert not decide(nodes(n1=drained(own)), "gpu_count")["reboot"]
    assert decide(nodes(n1=drained(own)), "gpu_count", settings=allowed)["reboot"]
    for state in ("ALLOCATED+DRAIN", "MIXED+DRAIN", "IDLE+DRAIN+REBOOT_ISSUED", "IDLE+COMPLETING+DRAIN"):
        assert not decide(nodes(n1=drained(own, state)), "gpu_count", settings=allowed)["reboot"], state
    found = decide(nodes(n1=drained(own)), "gpu_count", settings=allowed)
    assert policy.commands("n1", nodes()["n1"], found, False)[-1][:4] == ["scontrol", "reboot", "ASAP", "nextstate=RESUME"]


def test_an_unknown_name_drains_nothing() -> None:
    found = policy.decide("other", nodes(), [record("gpu_count")], DRAIN, now=1)
    assert (found["action"], found["note"]) == ("none", "Slurm has no node other; compare the node's name with slurm.conf.")


def test_what_flickers_needs_two_runs() -> None:
    state: dict[str, Any] = {}
    assert [each["check"] for each in confirmed([record("clock"), record("gpu_count"), record("gpu_ecc", "not_run")], state)] == [
        "gpu_count"
    ]
    assert [each["check"] for each in confirmed([record("clock"), record("gpu_ecc", "not_run")], state)] == ["gpu_ecc", "clock"]
    assert confirmed([record("clock", "passed"), record("gpu_ecc", "passed")], state) == []
    assert confirmed([record("clock")], state) == [], "it was well in between"
    assert confirmed([record("swap"), record("gpu_count", "not_run", allowed=True)], {}) == []


def test_a_day_of_noise_drains_no_node() -> None:
    """1,000 nodes, a run each five minutes: a check in 10,000 is wrong for one run, and a tool in 1,000 does not answer in time once."""
    dice = random.Random(7)
    flickering = ["clock", "gpu_temperature", "gpu_throttle", "efa_counters", "memory_available", "mounts"]
    noisy, drains = 0, 0
    for _node in range(1000):
        state: dict[str, Any] = {}
        for _run in range(288):
            wrong = [record(name) for name in flickering if dice.random() < 1e-4]
            # A tool that is late twice within a second has failed its run (run_checks looks again).
            wrong += [record("gpu_ecc", "not_run")] if dice.random() < 1e-3 * 1e-3 * 40 else []
            noisy += bool(wrong)
            drains += len(confirmed(wrong, state)) if wrong or state.get("strikes") else 0
    assert noisy > 100
    assert drains == 0


def running(reason: str) -> dict[str, Any]:
    return drained(reason, "ALLOCATED+DRAIN")


@pytest.mark.parametrize(
    ("check", "least", "requeued"),
    [
        ("gpu_count", "reset", True),
        ("gpu_remapped_rows", "reset", True),
        ("gpu_bus", "replace", True),
        ("gpu_count", "replace", False),
        ("gpu_count", "never", False),
        ("disk_space", "reset", False),
        ("disk_space", "drain", True),
    ],
)
def test_the_severity_decides_whether_the_jobs_start_again(check: str, least: str, requeued: bool) -> None:
    want = {**DRAIN, "requeue": least}
    assert decide(nodes(), check, settings=want)["requeue"] is requeued
    drain = decide(nodes(), check, settings=want)["reason"]
    again = decide(nodes(n1=running(drain)), check, settings=want)
    assert (again["action"], again["requeue"]) == ("none", requeued), "a requeue that failed is tried again"


def test_a_worse_fault_of_a_drained_node_requeues() -> None:
    fleet = nodes(n1=running("muster:disk_space: it; x"))
    assert not decide(fleet, "disk_space")["requeue"]
    assert decide(fleet, "gpu_count", "disk_space")["requeue"]


def test_a_check_that_could_not_look_requeues_nothing() -> None:
    found = policy.decide("n1", nodes(), [record("gpu_count", "not_run")], DRAIN, now=10000)
    assert (found["action"], found["requeue"]) == ("drain", False)


def test_the_budget_the_image_and_other_people_s_drains_requeue_nothing() -> None:
    two = {"n2": drained("muster:gpu_count: it; x"), "n3": drained("muster:gpu_count: it; x")}
    assert not decide(nodes(**two), "gpu_count")["requeue"]
    hooked = nodes(n1=running("Prolog error"), **two)
    assert decide(hooked, "gpu_count", hooks=("prolog",))["action"] == "update"
    assert not decide(hooked, "gpu_count", hooks=("prolog",))["requeue"], "a drain of the prolog asks for no budget"
    assert decide(nodes(n1=running("Prolog error")), "gpu_count", hooks=("prolog",))["requeue"]
    alike = {f"n{i}": {"comment": "muster:gpu_count: it; x [image ami-1]"} for i in range(2, 6)}
    assert not decide(nodes(n1=running("Prolog error"), **alike), "gpu_count", hooks=("prolog",))["requeue"]
    assert not decide(nodes(n1=running("ada: new cables")), "gpu_count")["requeue"]
    assert not decide(nodes(n1=running("muster:gpu_count: it; x")))["requeue"]


def test_numbers_of_jobs() -> None:
    assert policy.job_numbers("12\n13_4\n15+0\n15+1\n") == ["12", "13_4", "15"]
    assert policy.job_numbers("") == []


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("JobId=1 JobName=a JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 Reboot=0", True),
        ("JobId=1 JobName=a JobState=RUNNING Reason=None Requeue=1 Restarts=1 BatchFlag=2 Reboot=0", True),
        ("JobId=1 JobName=a JobState=RUNNING Reason=None Requeue=0 Restarts=0 BatchFlag=1 Reboot=0", False),
        ("JobId=1 JobName=a JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=0 Reboot=0", False),
        ("", False),
    ],
)
def test_which_jobs_may_be_requeued(line: str, may: bool) -> None:
    assert policy.may_requeue(line) is may
