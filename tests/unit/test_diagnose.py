# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The planner that finds bad nodes, on a simulated fleet with faults. A healthy node is never named."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose


class Fleet:
    """A simulated fleet: pairs reach 100, with noise, unless a fault slows them."""

    def __init__(self, count: int, seed: int = 1, leaf: int = 8, noise: float = 0.05) -> None:
        self.dice = random.Random(seed)
        self.names = [f"n{index:05d}" for index in range(count)]
        self.places = {name: ("spine", f"leaf-{at // leaf}") for at, name in enumerate(self.names)}
        self.noise = noise
        self.slow: dict[str, float] = {}
        self.flaky: dict[str, float] = {}  # how often a test with it is slow
        self.hangs: set[str] = set()
        self.cables: dict[frozenset[str], float] = {}  # between two leaves
        self.tests = 0

    def test(self, pair: tuple[str, str]) -> dict[str, Any]:
        self.tests += 1
        if self.hangs & set(pair):
            return {"nodes": list(pair), "value": None, "error": "no end within 60 s"}
        value = 100 * (1 - self.noise * self.dice.random())
        value *= min(self.slow.get(name, 1) for name in pair)
        value *= 0.5 if any(self.dice.random() < self.flaky.get(name, 0) for name in pair) else 1
        value *= self.cables.get(frozenset(self.places[name][1] for name in pair), 1)
        return {"nodes": list(pair), "value": value, "error": ""}

    def diagnose(self, **more: Any) -> dict[str, Any]:
        state = diagnose.start(self.names, self.places, **more)
        while pairs := diagnose.plan(state):
            busy = [name for pair in pairs for name in pair]
            assert len(busy) == len(set(busy)), "two tests of a round share a node"
            diagnose.record(state, [self.test(pair) for pair in pairs])
        return diagnose.verdict(state)


def bad(verdict: dict[str, Any]) -> list[str]:
    return sorted(each["node"] for each in verdict["bad"])


def test_one_bad_node_among_1024_in_two_rounds() -> None:
    for seed in range(5):
        fleet = Fleet(1024, seed)
        fleet.slow[fleet.dice.choice(fleet.names)] = 0.6
        found = fleet.diagnose()
        assert bad(found) == list(fleet.slow)
        assert (found["rounds"], fleet.tests) == (2, 512 + 2)
        assert (found["undecided"], found["untested"], found["links"], len(found["proven"])) == ([], [], [], 1023)
        assert " with n" in found["bad"][0]["evidence"] and found["bad"][0]["evidence"].endswith(" is usual")


@pytest.mark.parametrize("kind", ["slow", "hangs"])
def test_several_at_once(kind: str) -> None:
    """k bad nodes cost at most three more tests each, and two in one pair one round more."""
    for seed in range(20):
        fleet = Fleet(128, seed)
        faulty = fleet.dice.sample(fleet.names, 6)
        if seed % 2:
            faulty += ["n00000", "n00001"]  # a pair of round 1
        for name in set(faulty):
            fleet.slow[name] = 0.5
        if kind == "hangs":
            fleet.hangs, fleet.slow = set(fleet.slow), {}
        found = fleet.diagnose()
        assert bad(found) == sorted(set(faulty))
        assert found["rounds"] <= 4
        assert fleet.tests <= 64 + 3 * len(set(faulty))
        assert {each["hung"] for each in found["bad"]} == {kind == "hangs"}


def test_a_healthy_fleet_is_crossed_once() -> None:
    fleet = Fleet(64)
    found = fleet.diagnose()
    assert (found["bad"], found["undecided"], found["links"], found["rounds"], fleet.tests) == ([], [], [], 2, 64)
    # One round of 32 tests meets all 28 pairs of the 8 leaves.
    met = {
        frozenset(fleet.places[name][1] for name in pair)
        for pair in diagnose.across(diagnose.start(fleet.names, fleet.places), fleet.names)
    }
    assert len(met) == 28
    assert fleet.diagnose(across=False)["rounds"] == 1


def test_a_bad_cable_between_leaves_is_a_link() -> None:
    fleet = Fleet(64)
    fleet.cables[frozenset(("leaf-2", "leaf-5"))] = 0.4
    found = fleet.diagnose()
    assert bad(found) == []
    assert {frozenset(fleet.places[name][1] for name in each["nodes"]) for each in found["links"]} == {frozenset(("leaf-2", "leaf-5"))}


def test_an_odd_node_is_tested_too() -> None:
    fleet = Fleet(7, leaf=100)
    fleet.slow["n00006"] = 0.5
    found = fleet.diagnose()
    assert (bad(found), found["untested"]) == (["n00006"], [])


def test_all_slow_is_no_node_s_fault_unless_a_floor_says_so() -> None:
    fleet = Fleet(32)
    fleet.slow = dict.fromkeys(fleet.names, 0.5)
    assert fleet.diagnose()["bad"] == []
    found = fleet.diagnose(floor=80.0)
    assert bad(found) == [], "no node has proven itself, so nobody can blame another"
    assert found["undecided"] == fleet.names
    assert found["rounds"] <= diagnose.MOST_ROUNDS


def test_two_nodes_blame_nobody() -> None:
    fleet = Fleet(2)
    fleet.hangs = {"n00000"}
    found = fleet.diagnose()
    assert (bad(found), found["undecided"]) == ([], ["n00000", "n00001"])


def test_random_cases() -> None:
    """No healthy node is named; every faulty one is named, or reported as undecided or as part of a link."""
    named = faulty_nodes = 0
    for seed in range(10000):
        dice = random.Random(seed)
        fleet = Fleet(dice.choice((4, 5, 8, 9, 16, 17, 31)), seed, leaf=dice.choice((2, 4, 8, 100)))
        faulty = dice.sample(fleet.names, dice.randint(0, max(1, len(fleet.names) // 5)))
        for name in faulty:
            what = dice.choice(("slow", "hang", "flaky", "dead"))
            if what == "slow":
                fleet.slow[name] = dice.uniform(0.3, 0.7)
            elif what == "flaky":
                fleet.flaky[name] = 0.5
            else:
                fleet.hangs.add(name)
        leaves = sorted({leaf for _spine, leaf in fleet.places.values()})
        if dice.random() < 0.1 and len(leaves) > 1:
            fleet.cables[frozenset(dice.sample(leaves, 2))] = 0.5
        found = fleet.diagnose()
        healthy = set(fleet.names) - set(faulty)
        assert not healthy & set(bad(found)), (seed, found)
        said = {*bad(found), *found["undecided"], *(name for each in found["links"] for name in each["nodes"])}
        # A flaky node that was well in all its tests is not there to be found.
        missed = [name for name in faulty if name not in said and name not in fleet.flaky]
        assert not missed, (seed, missed, found)
        named += len(set(bad(found)) & set(faulty))
        faulty_nodes += len(set(faulty) - set(fleet.flaky))
    assert named > 0.8 * faulty_nodes


@pytest.fixture
def others_forgotten() -> Iterator[None]:
    """Python's garbage collector leaves out what all tests before made, which costs it seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_ten_thousand_nodes_are_planned_in_two_seconds(others_forgotten: None) -> None:
    fleet = Fleet(10000)
    fleet.slow = dict.fromkeys(fleet.dice.sample(fleet.names, 100), 0.5)
    start = time.process_time()
    state = diagnose.start(fleet.names, fleet.places)
    first = diagnose.plan(state)
    assert time.process_time() - start < 2
    diagnose.record(state, [fleet.test(pair) for pair in first])
    start = time.process_time()
    assert len(diagnose.plan(state)) <= 200
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("nodes", "more", "words"),
    [
        (["a"], {}, "A pair needs two nodes and there is 1; name at least two idle nodes."),
        (["a", "b", "a"], {}, "A node is named twice; name each node once."),
        (["a", "b"], {"slow": 1.5}, "1.5 is no part of the usual bandwidth; give a number between 0 and 1."),
    ],
)
def test_what_cannot_be_diagnosed(nodes: list[str], more: dict, words: str) -> None:
    with pytest.raises(diagnose.DiagnoseError) as error:
        diagnose.start(nodes, **more)
    assert str(error.value) == words


def test_results_that_nobody_asked_for() -> None:
    state = diagnose.start(["a", "b"])
    diagnose.plan(state)
    with pytest.raises(diagnose.DiagnoseError, match="There is a result of a and c, which nobody asked for"):
        diagnose.record(state, [{"nodes": ["a", "c"], "value": 1}])
    with pytest.raises(diagnose.DiagnoseError, match="has no results yet"):
        diagnose.plan(state)
    diagnose.record(state, [])
    assert diagnose.tests_of(state) == [{"nodes": ["a", "b"], "value": None, "error": "no result"}]
