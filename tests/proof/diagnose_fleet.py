# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: `diagnose.yml` names the bad nodes among six compute nodes, by jobs of pairs through Slurm whose bytes cross the nodes' network.

Every node has a wire of 200 Mbit/s (tc TBF), so that the wire and not this machine's CPUs bounds a pair. The faults lie in the network
namespaces of nodes: a wire of half that rate, packets that are lost (iptables statistic), and large packets that vanish while small ones
pass, as with a wrong MTU, which makes an all-reduce hang and leaves Slurm alone. Another hang is a rank that is stopped (SIGSTOP).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME = "diagnose"
NODES = [f"compute-{number}" for number in range(1, 7)]
WIRE, HALF = "200mbit", "100mbit"
LIMIT = 90
# A node has one job: the partition of the local fleet lets two share one. By default Slurm starts a batch job up to three seconds later.
SETTINGS = """\
slurm_config:
  SlurmdTimeout: 60
  SlurmctldTimeout: 10
  SchedulerParameters: nohold_on_prolog_fail,sched_interval=5,bf_interval=5,batch_sched_delay=1
  DefMemPerCPU: 700
slurm_partitions: "{{ slurm_nodegroups | muster.fleet.slurm_compute_partitions({'OverSubscribe': 'NO'}) }}"
muster_components: [common, slurm, trainer]
"""
BETWEEN: list[float] = []  # seconds between rounds


@pytest.fixture(scope="module")
def fleet(artifacts, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A controller and six compute nodes, each with its wire."""
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    (inventory / "group_vars/all").mkdir(parents=True)
    options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "cpus": 1, "memory": "1300", "compute": len(NODES)}
    (inventory / "local_fleet.yml").write_text(json.dumps({**options, "nodes": {"controller-1": {"memory": "2560"}}}))
    (inventory / "group_vars/all/1_local.yml").symlink_to(ROOT / "inventory/local/group_vars/all.yml")
    (inventory / "group_vars/all/2_diagnose.yml").write_text(SETTINGS)
    (inventory / "group_vars/muster_compute.yml").symlink_to(ROOT / "inventory/local/group_vars/muster_compute.yml")
    made = Fleet(folder, NAME, inventory)
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    request.addfinalizer(made.end)
    for playbook in ("playbooks/local_up.yml", "playbooks/provision.yml"):
        done = made.run(playbook, timeout=1200)
        assert done.returncode == 0, done.stdout[-5000:]
    for node in NODES:
        wire(made, node, WIRE)
    yield made
    print(f"\nseconds between rounds: {sorted(BETWEEN)}")


@pytest.fixture(autouse=True)
def whole(fleet: Fleet) -> Iterator[None]:
    """Each test leaves an idle fleet without jobs."""
    yield
    fleet.wait_for("idle nodes", lambda: nodes(fleet) == dict.fromkeys(NODES, ("idle", "none")), 90)
    assert slurm(fleet, "squeue", "--noheader") == ""


def slurm(fleet: Fleet, *argv: str, user: str = "root") -> str:
    return fleet.ansible("controller-1", *argv, user=user)


def nodes(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """Node to (state, reason)."""
    rows = [line.split("|", 2) for line in slurm(fleet, "sinfo", "--noheader", "--Node", "--format=%N|%T|%E").splitlines()]
    return {name: (state, reason) for name, state, reason in rows}


def namespace(fleet: Fleet, node: str) -> str:
    """The network namespace of a node."""
    found = {each["Config"]["Labels"]["muster.node"]: each for each in fleet.containers().engine.containers(f"muster.fleet={NAME}")}
    return f"/proc/{found[node]['State']['Pid']}/ns/net"


def on_network(fleet: Fleet, node: str, *argv: str) -> None:
    """Run a command of this machine in the network namespace of a node."""
    done = subprocess.run(["nsenter", f"--net={namespace(fleet, node)}", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"


def wire(fleet: Fleet, node: str, rate: str) -> None:
    """Let a node send at most this rate."""
    on_network(fleet, node, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "512kb", "latency", "100ms")


@contextlib.contextmanager
def slow(fleet: Fleet, node: str) -> Iterator[None]:
    """Half of the wire's rate."""
    wire(fleet, node, HALF)
    try:
        yield
    finally:
        wire(fleet, node, WIRE)


@contextlib.contextmanager
def rule(fleet: Fleet, node: str, chain: str, *match: str) -> Iterator[None]:
    """Drop the packets of TCP that match."""
    on_network(fleet, node, "iptables", "-A", chain, "-p", "tcp", *match, "-j", "DROP")
    try:
        yield
    finally:
        on_network(fleet, node, "iptables", "-D", chain, "-p", "tcp", *match, "-j", "DROP")


def lossy(fleet: Fleet, node: str) -> contextlib.AbstractContextManager[None]:
    """Three packets of twenty that the node receives are lost."""
    return rule(fleet, node, "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.15")


def black_hole(fleet: Fleet, node: str) -> contextlib.AbstractContextManager[None]:
    """What the node sends in large packets never arrives."""
    return rule(fleet, node, "OUTPUT", "-m", "length", "--length", "1400:65535")


@contextlib.contextmanager
def stopped(fleet: Fleet, node: str) -> Iterator[None]:
    """Each rank that starts on the node is stopped, by SIGSTOP."""
    over = threading.Event()
    network = os.stat(namespace(fleet, node)).st_ino
    found: set[int] = set()

    def ranks() -> Iterator[int]:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"trainer.collectives" in words and b"python" in words[0] and (process / "ns/net").stat().st_ino == network:
                    yield int(process.name)

    def watch() -> None:
        while not over.wait(0.2):
            for pid in set(ranks()) - found:
                found.add(pid)
                os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert found, "no rank was stopped"


def diagnosed(fleet: Fleet, code: int, **settings: object) -> tuple[dict, str]:
    """Run diagnose.yml, which must end with `code`; what it found, and all that it printed in one line."""
    done = fleet.run("playbooks/diagnose.yml", "-e", json.dumps({"muster_diagnose": {"limit": LIMIT, **settings}}))
    assert done.returncode == code, done.stdout[-4000:]
    found = json.loads((fleet.latest / "diagnose.json").read_text())
    # A node that hangs gives its test back late, so the next round waits for it.
    if "no end within" not in json.dumps(found["pairs"]):
        BETWEEN.extend(found["between"])
    print(f"{found['tests']} tests in {found['rounds']} rounds, {found['between']} s between them, {found['usual']}: {found['pairs']}")
    assert f"by {found['tests']} tests of pairs in {found['rounds']} rounds of 4 MiB" in done.stdout
    return found, " ".join(done.stdout.split())


def bad(found: dict) -> dict[str, bool]:
    """The bad nodes, and whether they hang."""
    return {each["node"]: each["hung"] for each in found["bad"]}


def page(fleet: Fleet) -> str:
    return (fleet.latest / "report.html").read_text()


def proven_but(found: dict, *others: str) -> None:
    """All nodes but these are well, and nothing is left open."""
    assert sorted(found["proven"]) == [node for node in NODES if node not in others]
    assert (found["links"], found["undecided"], found["untested"], found["skipped"], found["stopped"]) == ([], [], [], [], "")


def test_a_healthy_fleet_names_nobody(fleet: Fleet) -> None:
    found, _said = diagnosed(fleet, 0)
    assert bad(found) == {}
    proven_but(found)
    assert (found["tests"], found["rounds"], found["left_alone"]) == (3, 1, {})
    assert page(fleet).count('<td class="heat" ') == 6, "three pairs, each in two fields of the map"
    # The wire bounds the pairs: 200 Mbit/s are 0.025 GB/s.
    assert 0.02 < found["usual"]["near"] < 0.027


def test_a_slow_node_is_named_and_its_drain_proposed(fleet: Fleet) -> None:
    with slow(fleet, "compute-2"):
        found, said = diagnosed(fleet, 2)
    assert bad(found) == {"compute-2": False}
    proven_but(found, "compute-2")
    assert found["tests"] <= 3 + 3
    assert re.search(r"compute-2 is bad: 0\.01\d+ with compute-\d; .*, where 0\.02\d+ is usual", said)
    assert "Drain it with muster_diagnose: {drain: true}, then run muster-health --level full there." in said
    assert "compute-2 is bad: " in page(fleet) and '<table class="heatmap">' in page(fleet)
    assert nodes(fleet) == dict.fromkeys(NODES, ("idle", "none")), "nobody asked for a drain"


def test_a_node_that_loses_packets_is_named(fleet: Fleet) -> None:
    with lossy(fleet, "compute-5"):
        found, _said = diagnosed(fleet, 2)
    assert list(bad(found)) == ["compute-5"]
    proven_but(found, "compute-5")


def test_a_test_that_hangs_is_ended_and_its_node_named(fleet: Fleet) -> None:
    with black_hole(fleet, "compute-3"):
        found, said = diagnosed(fleet, 2)
    assert bad(found) == {"compute-3": True}
    proven_but(found, "compute-3")
    assert f"compute-3 is bad (it hangs): no end within {LIMIT} s with compute-4; " in said
    assert '<td class="heat none"' in page(fleet)


def test_two_bad_nodes_in_one_pair(fleet: Fleet) -> None:
    with slow(fleet, "compute-1"), stopped(fleet, "compute-2"):
        found, _said = diagnosed(fleet, 2)
    assert bad(found) == {"compute-1": False, "compute-2": True}
    proven_but(found, "compute-1", "compute-2")


def test_the_whole_ends_with_its_budget(fleet: Fleet) -> None:
    with stopped(fleet, "compute-6"):
        found, said = diagnosed(fleet, 2, budget=60)
    assert (bad(found), found["untested"], found["skipped"]) == ({}, ["compute-5", "compute-6"], [])
    assert found["stopped"] == "its time was over in round 1" and found["stopped"] in said
    assert "Not tested: compute-5, compute-6; raise budget or rounds in muster_diagnose." in said


def test_somebody_s_job_stays_and_a_drain_is_done_when_told_and_undone(fleet: Fleet) -> None:
    job = slurm(fleet, "sbatch", "--parsable", "--output=/dev/null", "--nodelist=compute-6", "--wrap=sleep 1200", user="muster")
    fleet.wait_for("the job", lambda: slurm(fleet, "squeue", "--noheader", f"--job={job}", "--format=%T") == "RUNNING")
    started = slurm(fleet, "squeue", "--noheader", f"--job={job}", "--format=%S")
    try:
        with slow(fleet, "compute-4"):
            found, said = diagnosed(fleet, 2, drain=True)
            assert bad(found) == {"compute-4": False}
            proven_but(found, "compute-4", "compute-6")
            assert found["left_alone"] == {"compute-6": "it is allocated"}
            assert "It is drained; run muster-health --level full there." in said and "Drain it with" not in said
            state, reason = nodes(fleet)["compute-4"]
            assert state == "drained" and reason.startswith("muster:diagnose: 0.01"), reason
        # The drained node is out of service: nobody tests it again, and nothing is wrong with the others.
        found, _said = diagnosed(fleet, 0)
        assert found["left_alone"] == {"compute-4": "it is drained", "compute-6": "it is allocated"}
        proven_but(found, "compute-4", "compute-6")
        slurm(fleet, "scontrol", "update", "NodeName=compute-4", "State=RESUME")
        fleet.wait_for("the node", lambda: nodes(fleet)["compute-4"] == ("idle", "none"))
        assert slurm(fleet, "squeue", "--noheader", f"--job={job}", "--format=%T %S") == f"RUNNING {started}"
    finally:
        slurm(fleet, "scancel", job)
        if nodes(fleet)["compute-4"][0] != "idle":
            slurm(fleet, "scontrol", "update", "NodeName=compute-4", "State=RESUME")


def test_rounds_follow_each_other_within_two_seconds(fleet: Fleet) -> None:
    assert len(BETWEEN) >= 4
    assert statistics.median(BETWEEN) <= 2, sorted(BETWEEN)
