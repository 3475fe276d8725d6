# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Node containers without an engine: what is planned, and how the engines' answers are read."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import multiprocessing
import os
import re
import stat
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.containers import engine as container_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers import fleet as fleets
from ansible_collections.muster.fleet.plugins.module_utils.containers import image as node_image
from ansible_collections.muster.fleet.plugins.module_utils.containers import network, ssh, state, systemd
from ansible_collections.muster.fleet.plugins.module_utils.containers import plan as planning
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, Finished, NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import Container, Node
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

FIXTURES = Path(__file__).parents[1] / "fixtures/node_container"
IMAGE = "localhost/muster-node:trixie-x"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


def node(name: str, group: str = "muster_compute", **more) -> Node:
    return Node.from_options({"name": name, "groups": [group], **more})


def record(*names: str) -> dict:
    nodes = [{**dataclasses.asdict(node(name)), "address": f"10.213.5.{index}"} for index, name in enumerate(names, 2)]
    return {"schema": state.SCHEMA, "nodes": nodes}


def live(**states: str) -> dict[str, Container]:
    names = {name.replace("_", "-"): state for name, state in states.items()}
    return {name: Container(name, state, node(name).spec(IMAGE)) for name, state in names.items()}


def plan(wanted: list[str], known: dict | None, there: dict, shrink: bool = False) -> planning.Plan:
    return planning.make_plan("demo", [node(name) for name in wanted], known, there, IMAGE, shrink=shrink)


class FakeRun:
    """Answers command lines by their first words and remembers all of them."""

    def __init__(self, answers: dict[str, Finished | list[Finished]]) -> None:
        self.answers = answers
        self.seen: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float = 0) -> Finished:
        self.seen.append(argv)
        for start, answer in self.answers.items():
            if " ".join(argv).startswith(start):
                return answer.pop(0) if isinstance(answer, list) else answer
        return Finished(127, "", f"{argv[0]} is not installed")


def engine(name: str = "podman", run=None, **more) -> Engine:
    return Engine(name, [], "4.3.1", "hybrid", "/", run or FakeRun({}), **more)


# Names and places


@pytest.mark.parametrize("name", ["", "A", "1a", "a_b", "a" * 21, "a/../b"])
def test_fleet_names_that_cannot_be_used(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        state_dir(name, {"HOME": "/home/u"})


def test_places_follow_xdg() -> None:
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


# Addresses and networks


def test_addresses_stay_and_fill_gaps() -> None:
    found = network.assign_addresses([node("a"), node("c"), node("d")], record("a", "b", "c"), "10.213.5.0/24")
    assert found == {"a": "10.213.5.2", "c": "10.213.5.4", "d": "10.213.5.5"}
    assert network.assign_addresses([node("a"), node("e")], record("a"), "10.213.5.0/24")["e"] == "10.213.5.3"


def test_addresses_of_another_subnet_are_given_anew() -> None:
    assert network.assign_addresses([node("a")], record("a"), "10.213.9.0/24") == {"a": "10.213.9.2"}


def test_routes_of_the_host() -> None:
    assert [str(route) for route in network.host_routes(fixture("proc_net_route.txt"))] == [
        "10.88.0.0/16",
        "10.199.7.0/24",
        "10.213.121.0/24",
        "192.0.2.0/24",
    ]


@pytest.mark.parametrize(
    ("file", "subnets"),
    [
        ("podman_network_inspect.json", ["10.88.0.0/16", "10.213.121.0/24"]),
        ("docker_network_inspect.json", ["10.213.160.0/24", "172.17.0.0/16"]),
    ],
)
def test_subnets_of_both_engines(file: str, subnets: list[str]) -> None:
    assert [str(subnet) for subnet in network.subnets_in(json.loads(fixture(file)))] == subnets


def test_subnet_is_free_and_steady() -> None:
    first = network.choose_subnet("demo", [])
    assert network.choose_subnet("demo", [ipaddress.IPv4Network("10.88.0.0/16")]) == first
    second = network.choose_subnet("demo", [ipaddress.IPv4Network(first)])
    assert not ipaddress.IPv4Network(first).overlaps(ipaddress.IPv4Network(second))
    with pytest.raises(NodeContainerError, match="No free network for fleet demo"):
        network.choose_subnet("demo", [ipaddress.IPv4Network("10.0.0.0/8")])


# Engines


def find(wanted: str, answers: dict[str, Finished], monkeypatch: pytest.MonkeyPatch, uid: int = 0) -> Engine:
    monkeypatch.setattr(container_engine.os, "geteuid", lambda: uid)
    return container_engine.find_engine(wanted, FakeRun(answers))


NO_DAEMON = Finished(
    0, fixture("docker_info_no_daemon.json"), "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
)


def test_podman_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find("auto", {"podman info": Finished(0, fixture("podman_info.json"), "")}, monkeypatch)
    assert (found.name, found.prefix, found.version, found.storage) == ("podman", [], "4.3.1", "/var/lib/containers/storage")


def test_docker_is_found_when_podman_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find("auto", {"docker info": Finished(0, fixture("docker_info.json"), "")}, monkeypatch, uid=1000)
    assert (found.name, found.prefix, found.version) == ("docker", [], "20.10.24+dfsg1")


def test_rootless_podman_goes_through_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    rootless = fixture("podman_info.json").replace('"rootless": false', '"rootless": true')
    answers = {"podman info": Finished(0, rootless, ""), "sudo -n podman info": Finished(0, fixture("podman_info.json"), "")}
    assert find("podman", answers, monkeypatch, uid=1000).prefix == ["sudo", "-n"]


def test_client_without_daemon_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NodeContainerError, match=r"podman: podman is not installed; docker: Cannot connect to the Docker daemon .*install podman"
    ):
        find("auto", {"docker info": NO_DAEMON}, monkeypatch)


def test_podmans_docker_command_is_not_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeContainerError, match="docker: is podman's stand-in"):
        find("docker", {"docker info": Finished(0, fixture("podman_info.json"), "")}, monkeypatch)


def test_unknown_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeContainerError, match="Unknown container engine 'lxc': use auto, podman or docker"):
        find("lxc", {}, monkeypatch)


@pytest.mark.parametrize(
    ("mounts", "view"),
    [
        (fixture("proc_mounts_hybrid.txt"), "hybrid"),
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "v2"),
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", "v1"),
    ],
)
def test_cgroup_view(mounts: str, view: str) -> None:
    assert container_engine.cgroup_view(mounts) == view


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (
            "Error: runc: … error setting rlimits for ready process: error setting rlimit type 7: operation not permitted",
            "nofile",
        ),
        ("error setting rlimit type 6: operation not permitted", "nproc"),
        ("crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted", "memlock"),
        ("no such image", None),
    ],
)
def test_refused_limits(text: str, limit: str | None) -> None:
    assert systemd.refused_ulimit(text) == limit


def test_learning_to_start_lowers_limits_and_tries_the_next_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "ulimit_ladder", lambda: {"nofile": [1048576, 20000]})
    refused = Finished(126, "", "error setting rlimit type 7: operation not permitted")
    run = FakeRun(
        {
            "podman rm": Finished(0, "", ""),
            "podman run": [refused, Finished(126, "", "crun: cgroups in hybrid mode not supported")],
            "podman --runtime runc --cgroup-manager cgroupfs rm": Finished(0, "", ""),
            "podman --runtime runc --cgroup-manager cgroupfs run": [refused, Finished(0, "id", "")],
            "podman --runtime runc --cgroup-manager cgroupfs exec muster-probe systemctl": Finished(0, "running\n", ""),
            "podman --runtime runc --cgroup-manager cgroupfs exec muster-probe cat": Finished(0, "1:name=systemd:/init.scope\n", ""),
        }
    )
    first = engine(run=run)
    systemd.learn_to_start(first, IMAGE, tmp_path)
    assert first.global_flags == ["--runtime", "runc", "--cgroup-manager", "cgroupfs"]
    assert first.ulimits == {"nofile": 20000}
    assert run.seen[-1][-4:] == ["rm", "--force", "--time=0", "muster-probe"]

    second = engine(run=FakeRun({}))
    systemd.learn_to_start(second, IMAGE, tmp_path)
    assert (second.global_flags, second.ulimits) == (first.global_flags, first.ulimits)
    assert not systemd.recall(engine(run=FakeRun({})).__class__("podman", [], "5.0", "v2", "/"), tmp_path)


def test_systemd_in_the_hosts_tree_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "ulimit_ladder", dict)
    run = FakeRun(
        {
            "docker rm": Finished(0, "", ""),
            "docker run": Finished(0, "id", ""),
            "docker exec muster-probe systemctl": Finished(1, "degraded\n", ""),
            "docker exec muster-probe cat": Finished(0, "9:name=systemd:/../../init.scope\n", ""),
        }
    )
    with pytest.raises(NodeContainerError, match=r"cannot start systemd from .*its systemd leaves the container's cgroup"):
        systemd.learn_to_start(engine("docker", run), IMAGE, tmp_path)
    assert not (tmp_path / "engine.json").exists()


@pytest.mark.parametrize(("name", "prefix"), [("podman", ""), ("docker", "")])
def test_command_line_of_a_node(name: str, prefix: str, tmp_path: Path) -> None:
    how = engine(name, run_flags=["--cgroupns=private"], ulimits={"nofile": 1048576, "memlock": -1})
    fleet = Fleet("demo", how, tmp_path / "state", tmp_path / "cache")
    fleet.network = "muster-demo-5"
    args = fleet.create_args(node("compute-1", memory="3g", tmpfs={"/spool": "64m"}, mounts=["/src:/src:ro"]), "10.213.5.3", IMAGE)
    assert args[:3] == ["run", "--name=muster-demo-compute-1", "--hostname=compute-1"]
    # Slurm binds steps to cores that it counted on the whole machine.
    assert not any(arg.startswith("--cpuset") for arg in args)
    for expected in (
        "--privileged",
        "--cgroupns=private",
        "--ulimit=nofile=1048576:1048576",
        "--ulimit=memlock=-1:-1",
        "--network=muster-demo-5",
        "--ip=10.213.5.3",
        "--mac-address=02:6d:0a:d5:05:03",
        "--cpus=1",
        "--memory=3072m",
        "--tmpfs=/spool:rw,mode=755,size=64m",
        "--volume=/src:/src:ro",
        f"--volume={tmp_path}/state/fsx:/fsx",
        f"--volume={tmp_path}/cache/shared:/var/cache/muster",
        "--label=muster.fleet=demo",
        "--label=muster.node=compute-1",
        f"--env=container={name}",
    ):
        assert expected in args
    assert args[-4:-1] == [IMAGE, "/bin/sh", "-c"]


def test_kernel_settings_of_the_host_are_read_only_before_systemd_starts() -> None:
    lines = systemd.BOOT_SCRIPT.splitlines()
    assert lines.index("mount -o remount,bind,ro /proc/sys") < lines.index("exec /sbin/init")
    assert lines.index("mount -o remount,bind,ro /sys") < lines.index("exec /sbin/init")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("podman_container_inspect.json", ("controller-1", "running", 2048)),
        ("docker_container_inspect.json", ("compute-1", "exited", 3072)),
    ],
)
def test_containers_of_both_engines(file: str, expected: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "alive", lambda _pid: True)
    run = FakeRun({"podman ps": Finished(0, "id\n", ""), "podman container inspect id": Finished(0, fixture(file), "")})
    [found] = Fleet("demo", engine(run=run), tmp_path, tmp_path).containers().values()
    assert (found.node, found.state, found.spec["memory_mib"]) == expected


def test_podman_calls_a_container_running_whose_process_is_gone(tmp_path: Path) -> None:
    text = fixture("podman_container_inspect.json").replace('"Pid": 9878', f'"Pid": {2**22 + 1}')
    run = FakeRun({"podman ps": Finished(0, "id\n", ""), "podman container inspect id": Finished(0, text, "")})
    [found] = Fleet("demo", engine(run=run), tmp_path, tmp_path).containers().values()
    assert found.state == "lost"


@pytest.mark.parametrize(("started", "expected"), [("2026-11-22T14:25:07.239914613Z", "exited"), ("0001-01-01T00:00:00Z", "created")])
def test_podman_calls_a_container_created_that_ran_before_the_machines_restart(tmp_path: Path, started: str, expected: str) -> None:
    [told] = json.loads(fixture("podman_container_inspect.json"))
    told["State"] |= {"Status": "created", "StartedAt": started, "Pid": 0}
    run = FakeRun({"podman ps": Finished(0, "id\n", ""), "podman container inspect id": Finished(0, json.dumps([told]), "")})
    [found] = Fleet("demo", engine(run=run), tmp_path, tmp_path).containers().values()
    assert found.state == expected


def test_no_containers_and_none_of_others(tmp_path: Path) -> None:
    run = FakeRun({"podman ps": Finished(0, "", "")})
    assert Fleet("demo", engine(run=run), tmp_path, tmp_path).containers() == {}
    assert run.seen == [["podman", "ps", "--all", "--quiet", "--filter", "label=muster.fleet=demo"]]


def test_failure_of_the_engine_is_one_sentence() -> None:
    run = FakeRun({"podman network": Finished(125, "", "warning\nError: subnet is already used\n")})
    with pytest.raises(NodeContainerError, match=r"^podman network failed: Error: subnet is already used\.$"):
        engine(run=run).change("network", "create", "x")


@pytest.mark.parametrize("key", ["name", "Name"])  # podman and docker
def test_a_network_has_its_subnet_in_its_name_and_is_found_by_its_label(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of the packet filter that a killed podman left belong to a name, so one name must never have two subnets."""
    first, second = (
        network.choose_subnet("demo", []),
        network.choose_subnet("demo", [ipaddress.IPv4Network(network.choose_subnet("demo", []))]),
    )
    assert network.network_name("demo", first) != network.network_name("demo", second)
    monkeypatch.setattr(fleets, "host_routes", lambda _table: [])
    run = FakeRun({"podman network ls": Finished(0, "", ""), "podman network create": Finished(0, "", "")})
    assert Fleet("demo", engine(run=run), tmp_path, tmp_path).gateway() == first.replace(".0/24", ".1")
    assert run.seen[-1][-3:] == [f"--subnet={first}", "--label=muster.fleet=demo", network.network_name("demo", first)]
    # A network of an older Muster has another name.
    described = Finished(0, json.dumps([{key: "muster-demo", "subnets": [{"subnet": second}]}]), "")
    run = FakeRun({"podman network ls": Finished(0, "muster-demo\n", ""), "podman network inspect": described})
    fleet = Fleet("demo", engine(run=run), tmp_path, tmp_path)
    assert fleet.gateway() == second.replace(".0/24", ".1") and fleet.network == "muster-demo"
    assert "--filter=label=muster.fleet=demo" in run.seen[0] and not [argv for argv in run.seen if "create" in argv]


# Nodes that come one by one


def test_a_node_is_added_from_its_own_image_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "available_memory_mib", lambda _text: 10**6)
    monkeypatch.setattr(fleets, "free_disk_mib", lambda _path: 10**6)
    monkeypatch.setattr(fleets, "recall", lambda *_: True)
    monkeypatch.setattr(systemd, "recall", lambda *_: True)
    network = Finished(0, json.dumps([{"name": "muster-demo", "subnets": [{"subnet": "10.213.9.0/24"}]}]), "")
    run = FakeRun({"podman ps": Finished(0, "", ""), "podman network inspect": network, "podman image inspect": Finished(0, "[]", "")})
    run.answers["podman network ls"] = Finished(0, "muster-demo\n", "")
    run.answers["podman run"] = Finished(0, "id", "")
    fleet = Fleet("demo", engine(run=run), tmp_path / "state", tmp_path / "cache")
    assert fleet.add(node("i-1"), NodeImage(), {"user-data": b"#!/bin/sh"}) == "10.213.9.2"
    assert fleet.add(node("i-2"), NodeImage(reference="localhost/saved:1"), {}) == "10.213.9.3"
    assert [(each["name"], each["address"]) for each in state.read_record(tmp_path / "state")["nodes"]] == [
        ("i-1", "10.213.9.2"),
        ("i-2", "10.213.9.3"),
    ]
    started = [argv for argv in run.seen if argv[1] == "run"]
    assert [argv[-4] for argv in started] == [NodeImage().name, "localhost/saved:1"]
    data = tmp_path / "state/hostkeys/i-1/user-data"
    assert (data.read_bytes(), stat.S_IMODE(data.stat().st_mode)) == (b"#!/bin/sh", 0o700)


def test_images_of_a_fleet_are_removed_by_its_label_alone(tmp_path: Path) -> None:
    run = FakeRun({"podman images": Finished(0, "localhost/a:1\n<none>:<none>\nlocalhost/b:2\n", ""), "podman rmi": Finished(0, "", "")})
    Fleet("demo", engine(run=run), tmp_path, tmp_path).remove_images()
    assert "label=muster.fleet=demo" in run.seen[0]
    assert run.seen[1:] == [["podman", "rmi", "--force", "localhost/a:1", "localhost/b:2"]]


RACED = {
    "images": Finished(125, "", 'Error: retrieving label for image "1a2b": image not known\n'),
    "container": Finished(125, "", "Error: inspecting object: no such container 4d7f74cecb01\n"),
    "network": Finished(
        125, "", "Error: inspecting object: network gone: unable to find network with name or ID gone: network not found\n"
    ),
}
FOUND = {
    "images": (lambda podman: podman.image_names("muster.fleet=demo"), [], [Finished(0, "localhost/a:1\n", "")], ["localhost/a:1"]),
    "container": (
        lambda podman: podman.containers("muster.fleet=demo"),
        [Finished(0, "aa bb\n", "")],
        [Finished(0, "bb\n", ""), Finished(0, '[{"Id": "bb"}]', "")],
        [{"Id": "bb"}],
    ),
    "network": (
        lambda podman: podman.networks(),
        [Finished(0, "podman gone\n", "")],
        [Finished(0, "podman\n", ""), Finished(0, '[{"name": "podman"}]', "")],
        [{"name": "podman"}],
    ),
}


@pytest.mark.parametrize("what", RACED)
def test_a_look_at_many_is_taken_again_where_one_went_meanwhile(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded from podman 4.3 on Debian 12, where another process removed one between its own two looks or ours."""
    monkeypatch.setattr(container_engine.time, "sleep", lambda _seconds: None)
    look, before, after, found = FOUND[what]
    raced = [*before, RACED[what]]
    answers = raced * 4 + after + raced * 5
    podman = engine(run=lambda _argv, timeout=0: answers.pop(0))
    assert look(podman) == found
    with pytest.raises(NodeContainerError, match=f"podman {what} failed: {re.escape(RACED[what].stderr.strip())}"):
        look(podman)
    assert not answers


# Room on the machine


def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, disk: int) -> list[list[str]]:
    run = FakeRun({"podman ps": Finished(0, "", ""), "podman image inspect": Finished(0, "[]", "")})
    monkeypatch.setattr(fleets, "available_memory_mib", lambda _text: memory)
    monkeypatch.setattr(fleets, "free_disk_mib", lambda _path: disk)
    try:
        Fleet("demo", engine(run=run), tmp_path / "state", tmp_path / "cache").present([node("a"), node("b")], NodeImage())
    finally:
        assert not (tmp_path / "state").exists()
    return run.seen


def test_too_little_memory_is_refused_before_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeContainerError, match="Fleet demo needs 4096 MiB of memory, 1000 MiB are free"):
        room(tmp_path, monkeypatch, memory=1000, disk=100000)


def test_too_little_disk_is_refused_before_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeContainerError, match="Fleet demo needs 2000 MiB of disk in /, 900 MiB are free"):
        room(tmp_path, monkeypatch, memory=100000, disk=900)


def test_available_memory() -> None:
    assert fleets.available_memory_mib("MemTotal: 1 kB\nMemAvailable:   23541000 kB\n") == 22989


# State


def test_dry_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun({"podman ps": Finished(0, "", ""), "podman image inspect": Finished(0, "[]", "")})
    monkeypatch.setattr(fleets, "available_memory_mib", lambda _text: 10**6)
    monkeypatch.setattr(fleets, "free_disk_mib", lambda _path: 10**6)
    fleet = Fleet("demo", engine(run=run, dry=True), tmp_path / "state", tmp_path / "cache")
    assert fleet.present([node("a")], NodeImage()).create == ["a"]
    assert not (tmp_path / "state").exists()
    assert {argv[1] for argv in run.seen} == {"ps", "image"}


def test_damaged_record(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{")
    with pytest.raises(NodeContainerError, match="is damaged"):
        state.read_record(tmp_path)


def test_hosts_file_is_rewritten_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    state.rewrite(path, network.hosts_text(record("a", "b")["nodes"]))
    before = path.stat().st_ino
    state.rewrite(path, network.hosts_text(record("a")["nodes"]))
    assert path.stat().st_ino == before
    assert path.read_text().splitlines()[2:] == ["10.213.5.2 a"]


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = tmp_path / "ssh/id_ed25519"
    ssh.make_key(key, "muster-demo")
    first = key.read_bytes()
    ssh.make_key(key, "muster-demo")
    assert key.read_bytes() == first
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.with_name("id_ed25519.pub").read_text().endswith("muster-demo\n")
    assert len(list(key.parent.iterdir())) == 2


# The image


def test_image_is_named_by_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    name = NodeImage("trixie").name
    assert name.startswith("localhost/muster-node:trixie-")
    assert NodeImage("trixie").name == name
    assert len({name, NodeImage("bookworm").name, NodeImage("trixie", mirror="http://mirror.example/debian").name}) == 3
    monkeypatch.setattr(node_image, "PACKAGES", (*node_image.PACKAGES, "vim"))
    assert NodeImage("trixie").name != name
    assert NodeImage(reference="registry.example/node:1").name == "registry.example/node:1"


def test_unknown_release() -> None:
    with pytest.raises(NodeContainerError, match="Unknown release 'sarge' for the node image: use trixie or bookworm"):
        NodeImage("sarge")


def test_mirror_only_when_given() -> None:
    assert NodeImage("trixie").build_argv(Path("x.tar"))[-2:] == ["trixie", "x.tar"]
    assert NodeImage("trixie", mirror="http://m").build_argv(Path("x.tar"))[-1] == "http://m"


def test_image_that_cannot_be_a_node() -> None:
    run = FakeRun({"podman run --rm": Finished(0, "sshd\npython3\n", "")})
    with pytest.raises(NodeContainerError, match="Image r/i cannot be used for nodes because it lacks sshd, python3"):
        node_image.check_reference(engine(run=run), NodeImage(reference="r/i"))


def test_image_that_no_registry_has(tmp_path: Path) -> None:
    run = FakeRun({"podman image": Finished(1, "", ""), "podman pull": Finished(125, "", "Error: manifest unknown")})
    with pytest.raises(
        NodeContainerError,
        match=r"^Image r/i cannot be pulled \(podman pull failed: Error: manifest unknown\): give another reference, or none",
    ):
        node_image.ensure_image(engine(run=run), NodeImage(reference="r/i"), tmp_path)


def test_failed_build_is_one_sentence_and_leaves_no_image(tmp_path: Path) -> None:
    run = FakeRun({"podman image": Finished(1, "", ""), "mmdebstrap": Finished(1, "", "I: x\nE: cannot reach the mirror")})
    with pytest.raises(NodeContainerError, match=r"could not be built \(E: cannot reach the mirror\)"):
        node_image.ensure_image(engine(run=run), NodeImage(), tmp_path)
    assert not list((tmp_path / "images").glob("*.tar"))


def test_a_build_on_a_full_disk_leaves_nothing_there(tmp_path: Path) -> None:
    def run(argv: list[str], timeout: float = 0) -> Finished:
        if argv[0] == "mmdebstrap":
            Path(argv[-1]).write_text("a part")
            return Finished(1, "", "E: No space left on device")
        return Finished(1, "", "")

    with pytest.raises(NodeContainerError, match="No space left on device"):
        node_image.ensure_image(engine(run=run), NodeImage(), tmp_path)
    assert list((tmp_path / "images").iterdir()) == []


def test_users_of_the_nodes_read_what_a_private_umask_made(tmp_path: Path) -> None:
    fleet = Fleet("demo", engine(), tmp_path / "state", tmp_path / "cache")
    before = os.umask(0o077)
    try:
        fleet._write_state([node("a")], {"a": "10.213.5.2"}, "10.213.5.0/24", NodeImage())
    finally:
        os.umask(before)
    modes = {each: (tmp_path / each).stat().st_mode & 0o777 for each in ("state", "state/hosts", "state/fsx", "cache/shared")}
    assert modes == {"state": 0o700, "state/hosts": 0o644, "state/fsx": 0o755, "cache/shared": 0o755}
    assert (tmp_path / "state/ssh/id_ed25519").stat().st_mode & 0o777 == 0o600


def _build(cache: Path, queue: multiprocessing.Queue) -> None:
    def run(argv: list[str], timeout: float = 0) -> Finished:
        mark = cache / "imported"
        if argv[0] == "mmdebstrap":
            queue.put("built")
            Path(argv[-1]).write_text("tar")
        if argv[1:2] == ["import"]:
            mark.write_text("")
        return Finished(0 if argv[1:2] != ["image"] or mark.exists() else 1, "", "")

    node_image.ensure_image(engine(run=run), NodeImage(), cache)


def test_runs_side_by_side_build_the_image_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    builders = [context.Process(target=_build, args=(tmp_path, queue)) for _ in range(4)]
    for each in builders:
        each.start()
    for each in builders:
        each.join(20)
        assert each.exitcode == 0
    assert [path.read_text() for path in (tmp_path / "images").iterdir()] == ["tar"]
    assert queue.get(timeout=5) == "built"
    assert queue.empty()


def test_free_disk_of_a_folder_that_only_root_may_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = container_engine.shutil.disk_usage

    def forbidden(path: Path) -> object:
        if path != tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(container_engine.shutil, "disk_usage", forbidden)
    assert container_engine.free_disk_mib(str(tmp_path / "containers/storage")) > 0


@pytest.mark.parametrize(
    ("alias", "tags"), [(Finished(125, "", "no such image"), 1), (Finished(0, "old\n", ""), 1), (Finished(0, "new\n", ""), 0)]
)
def test_the_newest_image_of_a_release_has_a_name_without_its_hash(alias: Finished, tags: int) -> None:
    image, short = NodeImage(), "localhost/muster-node:trixie"
    asked = "podman image inspect --format={{.Id}} "
    made = engine(run=FakeRun({asked + image.name: Finished(0, "new\n", ""), asked + short: alias, "podman tag": Finished(0, "", "")}))
    node_image.name_newest(made, image)
    assert made.commands == [f"podman tag {image.name} {short}"] * tags
