# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""podman and docker as engines of node containers: finding one, its command lines and its answers."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from node_container_fakes import IMAGE, FakeRun, engine, fixture, node

from ansible_collections.muster.fleet.plugins.module_utils.containers import engine as container_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers import fleet as fleets
from ansible_collections.muster.fleet.plugins.module_utils.containers import network, systemd
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, Finished, NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet


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
