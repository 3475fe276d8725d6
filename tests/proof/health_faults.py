# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: each fault drains its node through Slurm by muster-health, its job starts again, and the drain ends with the fault.

The nodes rehearse p5.48xlarge, so GPUs and EFA cards are stand-ins; disks, mounts, memory, packages and daemons are the node's own.
What slurmd starts each five minutes is started by hand here, so that the tests need not wait; the last one lets slurmd do it.
A container cannot judge the clock, so a stopped chrony is not among the faults.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME, TYPE, NODE, OTHER = "health", "p5.48xlarge", "compute-2", "compute-1"
HEALTH = "/usr/lib/muster/slurm-health.sh"
DISK, HUNG = "/run/scratch", "/run/hung"
SETTINGS = f"""\
muster_components: [common, nvidia_driver, nvidia_fabric, cuda, efa, nccl, aws_ofi_nccl, slurm, node_health]
node_health_disks: [/, {DISK}]
node_health_units: [munge, slurmd, site-daemon]
node_health_limits: {{memory_available_percent: 40}}
"""
# Takes memory until a quarter of the node's is left.
TAKE = """
import pathlib, time
at = pathlib.Path("/sys/fs/cgroup/memory")
names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if at.is_dir() else ("memory.max", "memory.current")
most, used = (int(((at if at.is_dir() else at.parent) / name).read_text()) for name in names)
taken = b"x" * max(0, most * 3 // 4 - used)
pathlib.Path("/run/taken").touch()
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def fleet(artifacts, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A controller and two nodes that rehearse the type; the second one gets the faults."""
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    for group in ("all", "muster_compute"):
        (inventory / "group_vars" / group).mkdir(parents=True)
    options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "cpus": 1, "memory": "2560", "types": {"compute": TYPE}}
    (inventory / "local_fleet.yml").write_text(json.dumps({**options, "tmpfs": {DISK: "16m"}}))
    (inventory / "group_vars/all/1_local.yml").symlink_to(ROOT / "inventory/local/group_vars/all.yml")
    (inventory / "group_vars/muster_controller.yml").write_text("muster_components: [common, slurm]\n")
    (inventory / "group_vars/muster_compute/1_local.yml").symlink_to(ROOT / "inventory/local/group_vars/muster_compute.yml")
    (inventory / "group_vars/muster_compute/2_health.yml").write_text(SETTINGS)
    made = Fleet(folder, NAME, inventory)
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    request.addfinalizer(made.end)
    up = made.run("playbooks/local_up.yml")
    assert up.returncode == 0, up.stdout[-5000:]
    for node in (NODE, OTHER):
        made.ansible(node, "systemd-run", "--unit=site-daemon", "sleep", "infinity")
    done = made.run("playbooks/provision.yml", timeout=1500)
    assert done.returncode == 0, done.stdout[-5000:]
    yield made


def slurm(fleet: Fleet, *argv: str, user: str = "root") -> str:
    return fleet.ansible("controller-1", *argv, user=user)


def state_of(fleet: Fleet, node: str = NODE) -> tuple[str, str]:
    """(state, reason) of a node."""
    state, reason = slurm(fleet, "sinfo", "--noheader", f"--nodes={node}", "--Node", "--format=%T|%E").splitlines()[0].split("|", 1)
    return state, reason


def look(fleet: Fleet, times: int = 1) -> None:
    """What slurmd runs as HealthCheckProgram. A fault that may be gone in a moment drains when two looks agree."""
    for _time in range(times):
        fleet.ansible(NODE, HEALTH)


@pytest.fixture(autouse=True)
def whole(fleet: Fleet) -> Iterator[None]:
    """Each test begins and ends with two idle nodes, and the node without faults is never drained."""
    look(fleet, 2)
    fleet.wait_for("an idle node", lambda: state_of(fleet) == ("idle", "none"), 60)
    yield
    assert state_of(fleet, OTHER) == ("idle", "none")


@contextlib.contextmanager
def rehearsed(fleet: Fleet, **fault: object) -> Iterator[None]:
    """A fault of a stand-in."""

    def change(faults: list) -> None:
        done = fleet.run("playbooks/local_fault.yml", "-e", json.dumps({"muster_fault_node": NODE, "muster_faults": faults}))
        assert done.returncode == 0, done.stdout[-3000:]

    change([fault])
    try:
        yield
    finally:
        change([])


@contextlib.contextmanager
def full_disk(fleet: Fleet) -> Iterator[None]:
    fleet.ansible(NODE, "dd", "if=/dev/zero", f"of={DISK}/fill", "bs=1M", "count=15")
    try:
        yield
    finally:
        fleet.ansible(NODE, "rm", f"{DISK}/fill")


@contextlib.contextmanager
def hung_mount(fleet: Fleet) -> Iterator[None]:
    """A file system whose server never answers: nobody reads the FUSE requests."""
    found = {each["Config"]["Labels"]["muster.node"]: each for each in fleet.containers().engine.containers(f"muster.fleet={NAME}")}
    inside = ["nsenter", f"--target={found[NODE]['State']['Pid']}", "--mount"]
    fleet.ansible(NODE, "mkdir", "-p", HUNG)
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    subprocess.run([*inside, "mount", "-i", "-t", "fuse", "-o", options, "hung", HUNG], pass_fds=[server], check=True)
    try:
        yield
    finally:
        os.close(server)
        fleet.ansible(NODE, "umount", "--lazy", "--no-canonicalize", HUNG)


@contextlib.contextmanager
def no_memory(fleet: Fleet) -> Iterator[None]:
    fleet.ansible(NODE, "systemd-run", "--unit=taker", "python3", "-c", TAKE)
    fleet.wait_for("the memory", lambda: fleet.ansible(NODE, "ls", "/run/taken", check=False) == "/run/taken")
    try:
        yield
    finally:
        fleet.ansible(NODE, "sh", "-c", "systemctl stop taker && rm /run/taken")


@contextlib.contextmanager
def drift(fleet: Fleet) -> Iterator[None]:
    """dpkg knows another version of munge than the manifest."""
    status = "/var/lib/dpkg/status"
    change = r"cp -p %s /run/status && sed -i '/^Package: munge$/,/^$/s/^Version: .*/Version: 9.9/' %s" % (status, status)
    fleet.ansible(NODE, "sh", "-c", change)
    try:
        yield
    finally:
        fleet.ansible(NODE, "mv", "/run/status", status)


@contextlib.contextmanager
def killed_daemon(fleet: Fleet) -> Iterator[None]:
    fleet.ansible(NODE, "systemctl", "kill", "--signal=KILL", "site-daemon")
    try:
        yield
    finally:
        fleet.ansible(NODE, "sh", "-c", "systemctl reset-failed site-daemon && systemd-run --unit=site-daemon sleep infinity")


@contextlib.contextmanager
def retransmits(fleet: Fleet) -> Iterator[None]:
    """The counter of one card rises by 5,000 a second."""
    counter = "/run/muster-rehearsal/sys/class/infiniband/*/ports/1/hw_counters/retrans_pkts"
    rise = f"file=$(ls {counter} | head -n 1); n=$(cat $file); while sleep 1; do n=$((n + 5000)); echo $n >$file; done"
    fleet.ansible(NODE, "systemd-run", "--unit=riser", "sh", "-c", rise)
    try:
        yield
    finally:
        fleet.ansible(NODE, "systemctl", "stop", "riser")


def drained(fleet: Fleet, check: str) -> str:
    """The reason with which the node was drained, once it is."""
    state, reason = state_of(fleet)
    assert state in ("drained", "draining") and reason.startswith(f"muster:{check}: "), (state, reason)
    return reason


def job_of(fleet: Fleet, job: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", slurm(fleet, "scontrol", "-o", "show", "job", job)))


def submit(fleet: Fleet, *options: str, command: str = "true") -> str:
    where = options or (f"--nodelist={NODE}",)
    return slurm(fleet, "sbatch", "--parsable", "--output=/dev/null", *where, f"--wrap={command}", user="muster")


@contextlib.contextmanager
def running(fleet: Fleet, *options: str) -> Iterator[str]:
    """A job that runs on the node with the faults, and that Slurm may start on the other one."""
    blocker = submit(fleet, f"--nodelist={OTHER}", "--exclusive", command="sleep 600")
    fleet.wait_for("the other node's job", lambda: job_of(fleet, blocker)["JobState"] == "RUNNING", 60)
    job = submit(fleet, "--exclusive", *options, command="sleep 600")
    fleet.wait_for("the job", lambda: job_of(fleet, job)["JobState"] == "RUNNING", 60)
    assert job_of(fleet, job)["NodeList"] == NODE
    slurm(fleet, "scancel", blocker)
    try:
        yield job
    finally:
        slurm(fleet, "scancel", job)
        fleet.wait_for("an idle node", lambda: state_of(fleet, OTHER) == ("idle", "none"), 60)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ({"fault": "gpu_lost", "index": 3}, "gpu_count"),
        ({"fault": "xid", "index": 2, "code": 79}, "xid"),
        ({"fault": "efa_missing", "index": 5}, "efa_count"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_that_the_prolog_sees_drains_and_the_job_starts_again(fleet: Fleet, fault: dict, check: str) -> None:
    with rehearsed(fleet, **fault):
        job = submit(fleet)
        fleet.wait_for("the prolog's verdict", lambda: job_of(fleet, job)["Restarts"] == "1", 60)
        assert job_of(fleet, job)["JobState"] == "PENDING"
        assert state_of(fleet)[0] in ("drained", "draining")
        look(fleet, 2)
        drained(fleet, check)
    look(fleet)
    fleet.wait_for("the job", lambda: job_of(fleet, job)["JobState"] == "COMPLETED", 90)
    assert (job_of(fleet, job)["NodeList"], job_of(fleet, job)["Restarts"]) == (NODE, "1")


FAULTS = {
    "gpu_remapped_rows": lambda fleet: rehearsed(fleet, fault="remapped_rows", index=0, failure=True),
    "efa_counters": retransmits,
    "disk_space": full_disk,
    "mounts": hung_mount,
    "memory_available": no_memory,
    "drift": drift,
    "units": killed_daemon,
}
SAYS = {
    "disk_space": f"{DISK} is 9",
    "mounts": f"{HUNG} does not answer within 2 s",
    "memory_available": "of the memory is available",
    "drift": "munge",
    "units": "site-daemon is failed",
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_that_the_health_check_sees_keeps_jobs_away_until_it_is_gone(fleet: Fleet, check: str) -> None:
    with FAULTS[check](fleet):
        look(fleet, 2)
        reason = drained(fleet, check)
        assert SAYS.get(check, "") in reason
        job = submit(fleet)
        assert job_of(fleet, job)["JobState"] == "PENDING"
    look(fleet, 2 if check == "efa_counters" else 1)
    fleet.wait_for("the job", lambda: job_of(fleet, job)["JobState"] == "COMPLETED", 90)
    assert job_of(fleet, job)["NodeList"] == NODE


def test_a_running_job_starts_again_on_another_node(fleet: Fleet) -> None:
    with running(fleet, "--requeue") as job, rehearsed(fleet, fault="gpu_lost", index=3):
        look(fleet)
        drained(fleet, "gpu_count")
        fleet.wait_for("the requeue", lambda: job_of(fleet, job)["Restarts"] == "1", 120)
        # Slurm may wait for some minutes before it starts a job again.
        fleet.wait_for("the job", lambda: job_of(fleet, job)["JobState"] == "RUNNING", 240)
        look(fleet)
        found = job_of(fleet, job)
        assert (found["JobState"], found["NodeList"], found["Restarts"]) == ("RUNNING", OTHER, "1")
        assert state_of(fleet)[0] == "drained"


def test_a_running_job_goes_on_where_it_may_or_must(fleet: Fleet) -> None:
    """A full disk ends no job, and a lost GPU none that may not be requeued."""
    with running(fleet, "--no-requeue") as job:
        with full_disk(fleet):
            look(fleet, 2)
            drained(fleet, "disk_space")
        look(fleet)
        with rehearsed(fleet, fault="gpu_lost", index=3):
            look(fleet, 2)
            drained(fleet, "gpu_count")
            found = job_of(fleet, job)
            assert (found["JobState"], found["NodeList"], found["Restarts"]) == ("RUNNING", NODE, "0")
            assert state_of(fleet)[0] == "draining"
    look(fleet, 2)
    fleet.wait_for("an idle node", lambda: state_of(fleet) == ("idle", "none"), 60)
    with running(fleet, "--requeue") as job, full_disk(fleet):
        look(fleet, 2)
        drained(fleet, "disk_space")
        assert (job_of(fleet, job)["JobState"], job_of(fleet, job)["NodeList"]) == ("RUNNING", NODE)


def test_a_drain_of_somebody_else_stays(fleet: Fleet) -> None:
    slurm(fleet, "scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=ada: new cables")
    try:
        with full_disk(fleet):
            look(fleet, 2)
            assert state_of(fleet)[1] == "ada: new cables"
        look(fleet, 2)
        assert state_of(fleet) == ("drained", "ada: new cables")
    finally:
        slurm(fleet, "scontrol", "update", f"NodeName={NODE}", "State=RESUME")


def test_slurmd_runs_it(fleet: Fleet) -> None:
    config = "/etc/slurm/slurm.conf"

    def interval(seconds: int) -> None:
        slurm(fleet, "sed", "-i", f"s/^HealthCheckInterval=.*/HealthCheckInterval={seconds}/", config)
        slurm(fleet, "scontrol", "reconfigure")

    interval(5)
    try:
        with full_disk(fleet):
            fleet.wait_for("the drain", lambda: state_of(fleet)[1].startswith("muster:disk_space: "), 90)
        fleet.wait_for("the end of the drain", lambda: state_of(fleet) == ("idle", "none"), 90)
    finally:
        interval(300)
