# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a fleet of node containers shall be: names, layouts and the plan of changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from node_container_fakes import IMAGE, node, record

from ansible_collections.muster.fleet.plugins.module_utils.containers import plan as planning
from ansible_collections.muster.fleet.plugins.module_utils.containers import state
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import Container, Node
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir


def live(**states: str) -> dict[str, Container]:
    names = {name.replace("_", "-"): state for name, state in states.items()}
    return {name: Container(name, state, node(name).spec(IMAGE)) for name, state in names.items()}


def plan(wanted: list[str], known: dict | None, there: dict, shrink: bool = False) -> planning.Plan:
    return planning.make_plan("demo", [node(name) for name in wanted], known, there, IMAGE, shrink=shrink)


# Names and folders


@pytest.mark.parametrize("name", ["", "A", "1a", "a_b", "a" * 21, "a/../b"])
def test_fleet_names_that_cannot_be_used(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        state_dir(name, {"HOME": "/home/u"})


def test_folders_follow_xdg() -> None:
    assert state_dir("a-1", {"HOME": "/home/u"}) == Path("/home/u/.local/state/muster/a-1")
    assert state_dir("local", {"HOME": "/home/u", "XDG_STATE_HOME": "/s"}) == Path("/s/muster/local")
    assert cache_dir({"HOME": "/home/u", "XDG_CACHE_HOME": "relative"}) == Path("/home/u/.cache/muster")


# Nodes and layouts


def test_two_nodes_with_one_name() -> None:
    with pytest.raises(NodeContainerError, match="Two nodes are called a"):
        planning.check_nodes([{"name": "a"}, {"name": "b"}, {"name": "a"}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a_b"}, "Node name 'a_b' cannot be a host name"),
        ({"name": "a", "cpus": 0}, "Node a cannot have 0 CPUs"),
        ({"name": "a", "cpus": "two"}, "Node a cannot have 'two' CPUs"),
        ({"name": "a", "memory": "2 GB"}, "Node a cannot have a size of '2 GB'"),
        ({"name": "a", "memory": 0}, "Node a cannot have a size of 0"),
        ({"name": "a", "tmpfs": {"/spool": "much"}}, "Node a cannot have a size of 'much'"),
    ],
)
def test_node_options_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(NodeContainerError, match=message):
        Node.from_options(options)


@pytest.mark.parametrize(("text", "size"), [(2048, 2048), ("2048", 2048), ("512m", 512), ("2g", 2048), ("2G", 2048)])
def test_memory(text: int | str, size: int) -> None:
    assert node("a", memory=text).memory_mib == size


def test_layout_makes_a_fleet() -> None:
    nodes = planning.layout_nodes({"compute": 2, "login": 1, "memory": "1g", "nodes": {"compute-2": {"memory": "4g"}}})
    assert [(n.name, n.groups, n.memory_mib) for n in nodes] == [
        ("controller-1", ("muster_controller",), 1024),
        ("compute-1", ("muster_compute",), 1024),
        ("compute-2", ("muster_compute",), 4096),
        ("login-1", ("muster_login",), 1024),
    ]


def test_layout_with_a_second_controller() -> None:
    nodes = planning.layout_nodes({"controllers": 2, "compute": 1})
    assert [(n.name, n.groups) for n in nodes[:2]] == [(f"controller-{i}", ("muster_controller",)) for i in (1, 2)]


@pytest.mark.parametrize(("compute", "size"), [(None, 3), ("", 3), ("4", 4), (1, 1)])
def test_size_asked_for_wins_over_the_live_one(compute: str | int | None, size: int) -> None:
    nodes = planning.layout_nodes({"compute": 2}, record("controller-1x", "compute-1", "compute-2") | {}, compute)
    assert sum("muster_compute" in n.groups for n in nodes) == size


@pytest.mark.parametrize("compute", ["0", 0, "-1", "two", "1.5", "201", "9" * 30])
def test_compute_that_is_no_size(compute: str | int) -> None:
    with pytest.raises(NodeContainerError, match=r"COMPUTE\) must be a whole number from 1 to 200"):
        planning.layout_nodes({}, None, compute)


def test_layout_of_a_node_that_no_fleet_has() -> None:
    with pytest.raises(NodeContainerError, match="describes compute1, which no fleet has"):
        planning.layout_nodes({"nodes": {"compute1": {}}})


def typed(*types: str) -> dict:
    nodes = [{**dataclasses.asdict(node(f"compute-{i}", type=kind)), "address": f"10.213.5.{i}"} for i, kind in enumerate(types, 1)]
    return {"schema": state.SCHEMA, "nodes": nodes}


@pytest.mark.parametrize(
    ("layout", "known", "types"),
    [
        ({}, None, ["", "", ""]),
        ({"types": {"compute": "p5.48xlarge"}}, None, ["p5.48xlarge"] * 3),
        ({"types": {"compute": "g6.xlarge"}, "nodes": {"compute-2": {"type": "g5.xlarge"}}}, None, ["g6.xlarge", "g5.xlarge", "g6.xlarge"]),
        ({}, typed("p5.48xlarge", "p5.48xlarge"), ["p5.48xlarge"] * 3),
        ({}, typed("p5.48xlarge", "g5.xlarge"), ["p5.48xlarge", "g5.xlarge", ""]),
        ({"types": {"compute": "g5.xlarge"}}, typed("p5.48xlarge"), ["g5.xlarge"] * 3),
    ],
)  # fmt: skip
def test_types_of_the_compute_nodes(layout: dict, known: dict | None, types: list[str]) -> None:
    assert [n.type for n in planning.layout_nodes(layout, known, 3) if n.name.startswith("compute")] == types


def test_record_of_an_older_version_has_no_types() -> None:
    known = record("compute-1")
    del known["nodes"][0]["type"]
    assert planning.layout_nodes({}, known)[1].type == ""


# The plan


def test_fresh_fleet_is_created() -> None:
    assert plan(["a", "b"], None, {}) == planning.Plan(["a", "b"], [], [], [])


def test_what_runs_is_left_untouched() -> None:
    found = plan(["a", "b", "c"], record("a", "b"), live(a="running", b="running"))
    assert found == planning.Plan(["c"], [], [], [])
    assert not plan(["a"], record("a"), live(a="running")).changes


@pytest.mark.parametrize("state", ["exited", "created", "configured", "stopped", "paused", "initialized"])
def test_what_stands_is_started(state: str) -> None:
    assert plan(["a"], record("a"), live(a=state)) == planning.Plan([], ["a"], [], [])


@pytest.mark.parametrize("state", ["removing", "dead", "stopping", "unknown", "lost"])
def test_what_is_broken_is_made_anew(state: str) -> None:
    assert plan(["a"], record("a"), live(a=state)) == planning.Plan(["a"], [], ["a"], [])


def test_recorded_and_never_created() -> None:
    assert plan(["a", "b"], record("a", "b"), live(a="running")).create == ["b"]


def test_smaller_is_refused_and_allowed() -> None:
    with pytest.raises(NodeContainerError, match="b would be removed; set SHRINK=1"):
        plan(["a"], record("a", "b"), live(a="running", b="running"))
    assert plan(["a"], record("a", "b"), live(a="running", b="running"), shrink=True).remove == ["b"]


def test_node_that_the_record_gave_up_goes_without_asking_again() -> None:
    assert plan(["a"], record("a"), live(a="running", b="running")).remove == ["b"]


def test_other_spec_is_refused_by_name() -> None:
    there = live(a="running")
    there["a"].spec["memory_mib"] = 512
    with pytest.raises(
        NodeContainerError, match=r"Node a of fleet demo was made with other settings \(memory_mib is 512, wanted 2048\).*make down"
    ):
        plan(["a"], record("a"), there)


def test_another_type_on_a_live_node_is_refused() -> None:
    there = live(a="running")
    with pytest.raises(
        NodeContainerError, match=r"made with other settings \(type is '', wanted 'p5.48xlarge'\): remove the fleet with make down"
    ):
        planning.make_plan("demo", [node("a", type="p5.48xlarge")], record("a"), there, IMAGE, shrink=False)
    del there["a"].spec["type"]  # a container of an older version
    assert not plan(["a"], record("a"), there).changes


def test_containers_without_record() -> None:
    with pytest.raises(NodeContainerError, match="no record in its state folder"):
        plan(["a"], None, live(a="running"))


@pytest.mark.parametrize(
    ("state", "wanted", "commands"),
    [
        ("running", "started", []),
        ("exited", "started", [["start"]]),
        ("paused", "started", [["unpause"]]),
        ("running", "stopped", [["stop", "-t", "20"]]),
        ("exited", "stopped", []),
        ("running", "killed", [["kill", "--signal=KILL"]]),
        ("paused", "killed", [["unpause"], ["kill", "--signal=KILL"]]),
        ("running", "paused", [["pause"]]),
        ("exited", "paused", []),
    ],
)
def test_transitions(state: str, wanted: str, commands: list[list[str]]) -> None:
    assert planning.transition(state, wanted) == commands
