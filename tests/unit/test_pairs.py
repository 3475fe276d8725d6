# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Rounds of pair tests in a simulated Slurm: time limits, busy nodes, cut outputs, and the document of a pair."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import pairs

TEMPLATE = {
    "name": "nccl-all_reduce",
    "nodes": 6,
    "procs_per_node": 8,
    "gpus_per_node": 8,
    "time_limit": 30,
    "command": ["/opt/nccl-tests/bin/all_reduce_perf", "-b", "1G", "-e", "1G", "-f", "2", "-n", "20", "-g", "1", "-c", "1"],
    "launcher": {"kind": "slurm", "mpi": "pmix", "partition": "", "options": {"exclude": "n9"}},
}


def table(pair: tuple[str, str], busbw: float, in_place: float | None = None) -> str:
    """The output of all_reduce_perf, 2 ranks, one size, by the grammar of nccl-tests 2.19."""
    sides = [f"  {1073741824 / each / 1000:7.1f}  {each:6.2f}  {each:6.2f}      0" for each in (busbw, in_place or busbw)]
    head = "     time   algbw   busbw #wrong"
    return "\n".join([
        "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809",
        "# Collective test starting: all_reduce_perf",
        "# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor)"
        " warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(f"#  Rank {rank:2d} Group  0 Pid      7 on {host:>10} device  0 [0000:10:00] NVIDIA H100" for rank, host in enumerate(pair)),
        "#",
        f"#       size         count      type   redop    root{head}{head}",
        f"  1073741824     268435456     float     sum      -1{''.join(sides)}",
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {busbw} ",
        "#",
        "# Collective test concluded: all_reduce_perf",
    ]) + "\n"  # fmt: skip


class Slurm:
    """Jobs that need a second, unless a test says otherwise."""

    def __init__(self, limit: float = 60, budget: float = 600, start: float = 30) -> None:
        self.now = 0.0
        self.jobs: dict[str, tuple[tuple[str, str], float]] = {}
        self.slow: set[str] = set()
        self.hangs: set[str] = set()
        self.busy: set[str] = set()
        self.lag = 0.0  # seconds until Slurm starts a job
        self.clings = 0.0  # seconds for which a node that hangs keeps a cancelled job
        self.kept: dict[str, float] = {}  # {cancelled job: until when}
        self.ran: dict[str, float] = {}  # {job: since when}
        self.cut: set[str] = set()
        self.cancelled: list[str] = []
        self.rounds = pairs.Rounds(
            submit=self.submit,
            queue=self.queue,
            output=self.output,
            cancel=self.cancel,
            held=self.held,
            ranks=2,
            collective="all_reduce",
            limit_s=limit,
            start_s=start,
            budget_s=budget,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def submit(self, pair: tuple[str, str], number: int) -> str:
        job = str(len(self.jobs) + 1)
        self.jobs[job] = (pair, self.now)
        return job

    def queue(self, ids: list[str]) -> dict[str, str]:
        out = {}
        for job in ids:
            pair, at = self.jobs[job]
            if job not in self.ran and self.now >= at + self.lag and not (self.busy | self.held(list(self.kept))) & set(pair):
                self.ran[job] = self.now
            if job not in self.ran:
                out[job] = "PENDING"
            elif self.hangs & set(pair) or self.now - self.ran[job] < 1:
                out[job] = "RUNNING"
        return {job: state for job, state in out.items() if job not in self.cancelled}

    def output(self, pair: tuple[str, str], _number: int) -> str:
        text = table(pair, 20.0 if self.slow & set(pair) else 48.0)
        return text[: len(text) // 2] if self.cut & set(pair) else text

    def cancel(self, ids: list[str]) -> None:
        self.cancelled += ids
        self.kept.update({job: self.now + self.clings for job in ids if job in self.ran})

    def held(self, ids: list[str]) -> set[str]:
        kept = [job for job in ids if self.kept.get(job, 0) > self.now]
        return {node for job in kept for node in self.jobs[job][0] if node in self.hangs}

    def diagnose(self, count: int) -> tuple[dict[str, Any], str]:
        state = diagnose.start([f"n{index}" for index in range(1, count + 1)])
        stopped = self.rounds.run(state)
        return diagnose.verdict(state), stopped


def test_a_slow_node_and_one_that_hangs_among_six() -> None:
    slurm = Slurm(limit=60)
    slurm.slow, slurm.hangs = {"n2"}, {"n5"}
    found, stopped = slurm.diagnose(6)
    assert ({each["node"]: each["hung"] for each in found["bad"]}, stopped) == ({"n2": False, "n5": True}, "")
    assert "no end within 60 s" in next(each["evidence"] for each in found["bad"] if each["node"] == "n5")
    assert slurm.cancelled, "a job that hangs does not stay on its nodes"
    assert slurm.rounds.largest == "1 GiB"
    assert max(slurm.rounds.between) <= 2


@pytest.mark.parametrize(
    ("clings", "words"), [(80, "no end within 100 s with n"), (10000, "because Slurm cannot end the test before with n")]
)
def test_a_hung_node_that_keeps_its_cancelled_test_is_no_busy_one(clings: float, words: str) -> None:
    slurm = Slurm(limit=100, budget=2000, start=30)
    slurm.hangs, slurm.clings = {"n3"}, clings
    found, stopped = slurm.diagnose(6)
    assert ({each["node"]: each["hung"] for each in found["bad"]}, found["skipped"], stopped) == ({"n3": True}, [], "")
    assert found["bad"][0]["evidence"].count(words) >= 2, found["bad"]
    assert len(found["proven"]) == 5


def test_a_cut_output_is_no_speed() -> None:
    slurm = Slurm()
    slurm.cut = {"n1"}
    found, _stopped = slurm.diagnose(8)
    assert [each["node"] for each in found["bad"]] == ["n1"]
    assert "48" not in found["bad"][0]["evidence"].split(",")[0]


def test_a_node_that_somebody_took_is_left_alone() -> None:
    slurm = Slurm()
    slurm.busy, slurm.slow = {"n3"}, {"n1"}
    found, _stopped = slurm.diagnose(8)
    assert [each["node"] for each in found["bad"]] == ["n1"]
    assert found["skipped"] == ["n3", "n4"], "its partner was not tested either"
    assert "n3" not in {node for round_ in [found["undecided"], found["proven"]] for node in round_}


def test_the_whole_has_a_budget() -> None:
    slurm = Slurm(limit=100, budget=90)
    slurm.hangs = {"n1"}
    found, stopped = slurm.diagnose(8)
    assert found["bad"] == []
    assert stopped == "its time was over in round 1"
    assert slurm.now < 100
    # Nobody knows what would have come of the test, and nobody else has the nodes.
    assert (found["untested"], found["skipped"], found["tests"]) == (["n1", "n2"], [], 3)
    assert diagnose.faults({**found, "stopped": stopped}) == [
        "Not tested: n1, n2; raise budget or rounds in muster_diagnose.",
        "The diagnosis stopped early, its time was over in round 1; raise budget in muster_diagnose.",
    ]


def test_a_test_that_the_budget_cuts_blames_nobody() -> None:
    """n1 was slow with two partners, and the third test is cut: it must not be the third witness."""
    slurm = Slurm(limit=100, budget=2.2)
    slurm.slow = {"n1"}
    found, stopped = slurm.diagnose(6)
    assert stopped.startswith("its time was over in round ")
    assert (found["bad"], found["undecided"]) == ([], ["n1"]), found


def test_a_diagnosis_that_knows_everything_did_not_stop_early() -> None:
    slurm = Slurm(limit=100, budget=0.9)
    found, stopped = slurm.diagnose(8)
    assert (len(found["proven"]), stopped, diagnose.faults(found)) == (8, "", [])


def test_idle_nodes_alone_are_tested() -> None:
    text = "n1|idle|4|main*|none\nn2|allocated|4|main*|none\nn3|drained|4|main*|bad disk\nn4|idle|4|main*|none\n"
    left, free = pairs.idle(text, ["n1", "n2", "n3", "n4", "n5"])
    assert free == ["n1", "n4"]
    assert left == {"n2": "it is allocated", "n3": "it is drained", "n5": "Slurm does not know it"}


def test_the_document_of_a_pair() -> None:
    document = documents.load(pairs.document_of(TEMPLATE, ("n1", "n2"), 90))
    assert (document["nodes"], document["time_limit"], document["name"]) == (2, 3, "diagnose")
    assert document["launcher"]["options"] == {"nodelist": "n1,n2", "exclusive": True}
    assert TEMPLATE["nodes"] == 6, "the template stays as it is"


@pytest.mark.parametrize(
    ("text", "words"), [("", "no table"), ("srun: error: Unable to create step", "no table"), (table(("n1", "n9"), 48), "n2")]
)
def test_outputs_that_prove_nothing(text: str, words: str) -> None:
    value, error = pairs.value_of(text, ("n1", "n2"), 2, "all_reduce")
    assert value is None
    assert error and (words in error or words == "no table")


def test_the_time_between_rounds_ends_when_a_job_runs() -> None:
    slurm = Slurm()
    slurm.slow, slurm.lag = {"n2"}, 3
    found, _stopped = slurm.diagnose(6)
    assert found["rounds"] == len(slurm.rounds.between) + 1 > 1
    assert all(3 <= seconds <= 3.5 for seconds in slurm.rounds.between), slurm.rounds.between


@pytest.mark.parametrize(("busbw", "printed"), [(0.0046, "0.00"), (0.0463, "0.05"), (0.0537, "0.05"), (48.12, "48.12")])
def test_a_slow_network_is_measured_by_the_time(busbw: float, printed: str) -> None:
    text = table(("n1", "n2"), busbw)
    assert f" {printed} " in text
    value, error = pairs.value_of(text, ("n1", "n2"), 2, "all_reduce")
    assert (value, error) == (pytest.approx(busbw, rel=0.001), "")


def test_the_better_placement_counts() -> None:
    for text in (table(("n1", "n2"), 30, in_place=48), table(("n1", "n2"), 48, in_place=30)):
        assert pairs.value_of(text, ("n1", "n2"), 2, "all_reduce") == (pytest.approx(48, rel=0.001), "")


def test_a_test_that_fails_does_not_hang() -> None:
    slurm = Slurm()
    slurm.cut, slurm.hangs = {"n1"}, {"n4"}
    found, _stopped = slurm.diagnose(8)
    assert {each["node"]: each["hung"] for each in found["bad"]} == {"n1": False, "n4": True}


def test_what_a_person_reads() -> None:
    slurm = Slurm()
    slurm.slow = {"n2"}
    found, _stopped = slurm.diagnose(6)
    text = "\n".join(diagnose.lines({**found, "left_alone": {"n7": "it is allocated"}, "size": "1 GiB"}))
    assert "n2 is bad: 20 with n1" in text and "n7 is left alone: it is allocated" in text
    assert "5 nodes are well, by 6 tests of pairs in 3 rounds of 1 GiB" in text, text
    [fault] = diagnose.faults(found)
    assert fault.startswith("n2 is bad: ") and fault.endswith("then run muster-health --level full there.")
    [fault] = diagnose.faults(found, drained=True)
    assert fault.endswith("where 48 is usual. It is drained; run muster-health --level full there.")
    assert diagnose.faults({"undecided": ["n1", "n2"]}) == ["Undecided: n1, n2; run diagnose.yml again, with more idle nodes."]
    assert diagnose.faults({**found, "bad": []}) == []
