# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Node containers with a real engine: two fleets side by side, interrupted runs, killed nodes, refusals, and an untouched host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel_settings import kernel_settings

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
FIRST, SECOND, CUT = (f"t{os.getpid()}-{letter}" for letter in "abc")
SMALL = {"memory": "384"}
NODES = {
    FIRST: [{"name": "controller-1", **SMALL}, {"name": "compute-1", **SMALL}],
    SECOND: [{"name": "controller-1", **SMALL}],
    CUT: [{"name": "controller-1", **SMALL}, {"name": "compute-1", **SMALL}],
}
# The module as Ansible runs it: its arguments as JSON on standard input.
MODULE = "from ansible_collections.muster.fleet.plugins.modules.node_container import main; main()"


@pytest.fixture(scope="module")
def state_home(artifacts) -> Path:
    return artifacts.folder("state")


@pytest.fixture(scope="module")
def start(state_home: Path) -> Callable[..., subprocess.Popen]:
    """Start the module's process for a fleet."""

    def _start(fleet: str, **params) -> subprocess.Popen:
        if params.get("state", "present") == "present":
            params.setdefault("nodes", NODES[fleet])
        check_mode = params.pop("_ansible_check_mode", False)
        arguments = {"ANSIBLE_MODULE_ARGS": {"fleet": fleet, "_ansible_check_mode": check_mode, **params}}
        arguments["ANSIBLE_MODULE_ARGS"]["_ansible_remote_tmp"] = str(state_home)
        process = subprocess.Popen(
            [sys.executable, "-c", MODULE],
            cwd=ROOT,
            env={**os.environ, "XDG_STATE_HOME": str(state_home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        process.stdin.write(json.dumps(arguments))
        process.stdin.close()
        process.stdin = None
        return process

    return _start


@pytest.fixture(scope="module")
def module(start) -> Callable[..., dict]:
    """Run the module and return its result."""

    def run(fleet: str, **params) -> dict:
        output, _ = start(fleet, **params).communicate(timeout=300)
        return json.loads(output)

    return run


@pytest.fixture(scope="module")
def engine() -> Engine:
    return find_engine()


@pytest.fixture(scope="module")
def kernel_before() -> dict[str, str]:
    return kernel_settings()


@pytest.fixture(scope="module")
def fleets(artifacts, module, start, kernel_before) -> Iterator[dict[str, dict]]:
    """Two fleets with nodes of the same names, brought up at the same time."""
    for fleet in NODES:
        artifacts.leave(f"fleet {fleet}", lambda fleet=fleet: module(fleet, state="absent", remove_state=True))
    both = {fleet: start(fleet) for fleet in (FIRST, SECOND)}
    results = {fleet: json.loads(process.communicate(timeout=300)[0]) for fleet, process in both.items()}
    assert not [result["msg"] for result in results.values() if result.get("failed")]
    yield results


def ssh(result: dict, node: str, command: str) -> str:
    """Run a command on a node with the fleet's key; ssh checks the host key."""
    [address] = [each["address"] for each in result["nodes"] if each["name"] == node]
    options = ["-o", f"UserKnownHostsFile={result['known_hosts']}", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
    argv = ["ssh", "-F", "none", "-i", result["key"], *options, f"root@{address}", command]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def started(engine: Engine, fleet: str) -> dict[str, str]:
    """The start time of each container of a fleet."""
    ids = engine.ask("ps", "--quiet", "--filter", f"label=muster.fleet={fleet}").split()
    return {each["Name"]: each["State"]["StartedAt"] for each in engine.inspect(*ids)}


def test_two_fleets_side_by_side(fleets: dict[str, dict]) -> None:
    addresses = [node["address"] for result in fleets.values() for node in result["nodes"]]
    assert len(set(addresses)) == 3
    for result in fleets.values():
        assert ssh(result, "controller-1", "hostname") == "controller-1"
    first = {node["name"]: node["address"] for node in fleets[FIRST]["nodes"]}
    assert ssh(fleets[FIRST], "controller-1", "getent hosts compute-1").split()[0] == first["compute-1"]
    assert ssh(fleets[FIRST], "controller-1", "systemctl is-system-running || systemctl --failed") == "running"


def test_a_second_run_changes_nothing(fleets, module, engine: Engine) -> None:
    before = started(engine, FIRST)
    result = module(FIRST)
    assert (result["changed"], result["commands"]) == (False, [])
    assert started(engine, FIRST) == before


def test_a_recreated_node_keeps_its_keys_and_address(fleets, module) -> None:
    result = fleets[FIRST]
    hardware = "cat /sys/class/net/eth0/address"
    before = ssh(result, "compute-1", f"echo 1 > /fsx/seen; {hardware}")
    known = Path(result["known_hosts"]).read_text()
    module(FIRST, state="absent", nodes=[{"name": "compute-1"}])
    assert "compute-1" not in Path(result["known_hosts"]).read_text()
    assert module(FIRST)["plan"]["create"] == ["compute-1"]
    assert sorted(Path(result["known_hosts"]).read_text().splitlines()) == sorted(known.splitlines())
    assert ssh(result, "compute-1", "cat /fsx/seen") == "1"
    # Neighbours take half a minute to forget another MAC address.
    assert ssh(result, "compute-1", hardware) == before


def test_growing_leaves_running_nodes_untouched(fleets, module, engine: Engine) -> None:
    before = started(engine, FIRST)
    grown = module(FIRST, nodes=[*NODES[FIRST], {"name": "compute-2", **SMALL}])
    assert grown["plan"]["create"] == ["compute-2"]
    assert before.items() <= started(engine, FIRST).items()
    assert ssh(grown, "compute-1", "getent hosts compute-2").split()[0] == grown["nodes"][2]["address"]
    refused = module(FIRST)
    assert refused["failed"] and "compute-2 would be removed; set SHRINK=1" in refused["msg"]
    assert module(FIRST, shrink=True)["plan"]["remove"] == ["compute-2"]
    assert started(engine, FIRST) == before


def test_another_size_of_a_live_node_is_refused(fleets, module, engine: Engine) -> None:
    before = started(engine, FIRST)
    result = module(FIRST, nodes=[NODES[FIRST][0], {"name": "compute-1", "memory": "512"}])
    assert result["failed"]
    assert "Node compute-1 of fleet" in result["msg"] and "memory_mib is 384, wanted 512" in result["msg"] and "make down" in result["msg"]
    assert started(engine, FIRST) == before


def test_all_killed_and_brought_back(fleets, module, engine: Engine) -> None:
    result = fleets[FIRST]
    ssh(result, "controller-1", "echo 1 > /etc/kept && sync")
    assert module(FIRST, state="killed")["diff"]["after"] == "compute-1 exited\ncontroller-1 exited\n"
    again = module(FIRST)
    assert again["plan"]["start"] == ["controller-1", "compute-1"]
    assert again["nodes"] == result["nodes"]
    assert ssh(result, "controller-1", "cat /etc/kept") == "1"


@pytest.mark.parametrize("state", ["stopped", "killed", "paused"])
def test_one_node_goes_into_a_fault_and_back(fleets, module, engine: Engine, state: str) -> None:
    target = [{"name": "compute-1"}]
    assert module(FIRST, state=state, nodes=target)["changed"]
    assert not module(FIRST, state=state, nodes=target)["changed"]
    assert module(FIRST, state="started", nodes=target)["changed"]
    assert ssh(fleets[FIRST], "compute-1", "hostname") == "compute-1"


def test_unknown_node_is_named(fleets, module) -> None:
    result = module(FIRST, state="killed", nodes=[{"name": "compute-9"}])
    assert result["failed"] and "has no node compute-9: its nodes are compute-1, controller-1" in result["msg"]


def test_limits_are_enforced_and_each_node_has_its_own_cgroups(fleets, engine: Engine, state_home: Path) -> None:
    fleet = Fleet(FIRST, engine, state_home / "muster" / FIRST, cache_dir(os.environ))
    assert "/../" not in fleet.run_in("compute-1", ["cat", "/proc/1/cgroup"]).stdout
    paths = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")
    limits = [fleet.run_in("compute-1", ["cat", path]).stdout.strip() for path in paths]
    assert str(384 * 2**20) in limits
    eat = fleet.run_in("compute-1", ["python3", "-c", "bytearray(600 * 2**20)"])
    assert eat.code != 0


def test_the_hosts_kernel_settings_stay(fleets, kernel_before: dict[str, str]) -> None:
    huge = Path("/proc/sys/vm/nr_hugepages").read_text().strip()
    wanted = int(huge) + 1
    for path in ("/proc/sys/vm/nr_hugepages", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"):
        with pytest.raises(subprocess.CalledProcessError):
            ssh(fleets[FIRST], "compute-1", f"echo {wanted} > {path}")
    assert ssh(fleets[FIRST], "compute-1", "sysctl -n -w net.ipv4.ip_forward=1") == "1"
    after = kernel_settings()
    assert {path: (kernel_before[path], after.get(path)) for path in kernel_before if after.get(path) != kernel_before[path]} == {}


# When the run is killed: before the network, between the containers, while it waits for sshd.
@pytest.mark.usefixtures("fleets")
@pytest.mark.parametrize("moment", ["network", "first container", "second container"])
def test_a_second_run_finishes_an_interrupted_one(start, module, engine: Engine, state_home: Path, moment: str) -> None:
    def reached() -> bool:
        if moment == "network":
            return bool(engine.networks(f"muster.fleet={CUT}"))
        there = engine.ask("ps", "--all", "--quiet", "--filter", f"label=muster.fleet={CUT}").split()
        return len(there) >= (1 if moment == "first container" else 2)

    process = start(CUT)
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()[0]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = module(CUT)
    assert not again.get("failed"), again["msg"]
    assert [ssh(again, node["name"], "hostname") for node in again["nodes"]] == ["controller-1", "compute-1"]
    assert module(CUT)["commands"] == []
    module(CUT, state="absent", remove_state=True)
    assert not (state_home / "muster" / CUT).exists()


def test_down_removes_one_fleet_and_nothing_else(fleets, module, engine: Engine, state_home: Path) -> None:
    second = started(engine, SECOND)
    planned = module(FIRST, state="absent", remove_state=True, _ansible_check_mode=True)
    assert planned["changed"] and started(engine, FIRST)
    assert module(FIRST, state="absent", remove_state=True)["changed"]
    assert engine.ask("ps", "--all", "--quiet", "--filter", f"label=muster.fleet={FIRST}") == ""
    assert not engine.networks(f"muster.fleet={FIRST}") and len(engine.networks(f"muster.fleet={SECOND}")) == 1
    assert not (state_home / "muster" / FIRST).exists() and (state_home / "muster" / SECOND).exists()
    assert started(engine, SECOND) == second
    assert not module(FIRST, state="absent", remove_state=True)["changed"]
