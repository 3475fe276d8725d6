# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The fleet grows and shrinks while jobs run, loses a node, and has another fleet beside it; stored results stay."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from e2e_fleet import INVENTORY, ROOT, Fleet
from typed import typed

pytestmark = pytest.mark.engine

# The least work that shows a result.
SMALL = {
    "muster_training": {"steps": 10, "tokens": 200_000, "checkpoint_freq": 5},
    "muster_collectives": {"ops": ["all_reduce"], "max_bytes": "1M"},
}
OLD = ("compute-1", "compute-2")
NEW = "compute-3"
BESIDE = "e2e-beside"


@pytest.fixture(scope="module")
def make(fleet: Fleet, artifacts, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess]:
    """Run make on this fleet; the environment names its inventory, in which collectives and training are small."""
    # make sets PWD for itself.
    artifacts.leave(f"runs/{fleet.name}", lambda: shutil.rmtree(ROOT / "runs" / fleet.name, ignore_errors=True))
    small = tmp_path_factory.mktemp("small") / "hosts.yml"
    # Group variables beat the inventory's group_vars/all.
    small.write_text(yaml.safe_dump({"muster_controller": {"vars": SMALL}}))
    environment = {**fleet.env, "ANSIBLE_INVENTORY": f"{INVENTORY},{small}"}

    def run(*words: str) -> subprocess.CompletedProcess:
        return typed(["make", *words], environment)

    return run


@pytest.fixture
def sleeper(fleet: Fleet) -> Iterator[Callable[[str, int], str]]:
    """Start a job that sleeps on the named nodes; return its id. The end cancels it."""
    started = []

    def start(nodes: str, seconds: int) -> str:
        argv = ("sbatch", "--parsable", "--mem=100", f"--nodelist={nodes}", "--output=/dev/null", f"--wrap=srun sleep {seconds}")
        started.append(fleet.ansible("controller-1", *argv, user="muster"))
        fleet.wait_for(f"job {started[-1]} to run", lambda: job(fleet, started[-1])["JobState"] == "RUNNING")
        return started[-1]

    yield start
    fleet.ansible("controller-1", "scancel", *started)


def job(fleet: Fleet, number: str) -> dict[str, str]:
    """What slurmctld knows about a job."""
    return dict(re.findall(r"(\w+)=(\S+)", fleet.ansible("controller-1", "scontrol", "-o", "show", "job", number)))


def nodes_in_slurm(fleet: Fleet) -> list[str]:
    return sorted(set(fleet.ansible("controller-1", "sinfo", "--noheader", "--Node", "--format=%N").split()))


def compute_nodes(fleet: Fleet) -> list[str]:
    """The compute nodes, by the containers and by the inventory, which must agree."""
    argv = [str(ROOT / ".venv/bin/ansible-inventory"), "-i", str(INVENTORY), "-e", f"muster_fleet={fleet.name}", "--list"]
    listed = subprocess.run(argv, cwd=ROOT, env=fleet.env, capture_output=True, text=True, check=True).stdout
    found = sorted(json.loads(listed)["muster_compute"]["hosts"])
    assert sorted(node for node in fleet.containers().containers() if node.startswith("compute-")) == found
    return found


def started(fleet: Fleet) -> dict[str, str]:
    """When each container of the fleet was started."""
    engine = fleet.containers().engine
    ids = engine.ask("ps", "--quiet", "--filter", f"label=muster.fleet={fleet.name}").split()
    return {each["Name"]: each["State"]["StartedAt"] for each in engine.inspect(*ids)}


def at_work(fleet: Fleet, node: str) -> str:
    """What must not restart on a node: slurmd's unit and the job's processes. slurmd's own process may change, because slurmd hands over
    to a new one when it learns of other nodes."""
    unit = fleet.ansible(node, "systemctl", "show", "--property=NRestarts,ActiveEnterTimestampMonotonic", "slurmd")
    return unit + "\n" + fleet.ansible(node, "pgrep", "-f", "slurmstepd|^sleep")


def train(fleet: Fleet, **variables: object) -> tuple[dict, bool]:
    """Run the training's playbook; its result and whether a task changed something."""
    ended = fleet.run("playbooks/train.yml", "-e", json.dumps({**SMALL, **variables}))
    assert ended.returncode == 0, ended.stdout[-3000:]
    changed = sum(int(number) for number in re.findall(r"changed=(\d+)", ended.stdout))
    return json.loads((fleet.latest / "jobs/train/result.json").read_text()), changed > 0


def test_stored_results_are_returned_until_rerun(fleet: Fleet) -> None:
    first, changed = train(fleet)
    assert (first["state"], first["stored"], changed) == ("COMPLETED", False, True)
    again, changed = train(fleet)
    assert (again, changed) == ({**first, "stored": True}, False)
    rerun, changed = train(fleet, muster_rerun="1")
    assert (rerun["state"], rerun["stored"], changed) == ("COMPLETED", False, True)
    assert rerun["identity"] == first["identity"]
    assert rerun["job_id"] > first["job_id"]


def test_growing_leaves_running_jobs_alone(fleet: Fleet, make, sleeper) -> None:
    number = sleeper(",".join(OLD), 900)
    before = {node: at_work(fleet, node) for node in OLD}, started(fleet), job(fleet, number)["StartTime"]
    ended = make("site", f"FLEET={fleet.name}", "COMPUTE=3")
    assert ended.returncode == 0, ended.stdout[-3000:]
    running = job(fleet, number)
    after = {node: at_work(fleet, node) for node in OLD}, started(fleet), running["StartTime"]
    assert after[0] == before[0]
    assert before[1].items() < after[1].items()
    assert after[2] == before[2]
    assert (running["JobState"], running["Restarts"]) == ("RUNNING", "0")
    assert compute_nodes(fleet) == nodes_in_slurm(fleet) == [*OLD, NEW]
    run = ROOT / Path(re.findall(r"^report: (\S+)", ended.stdout, re.MULTILINE)[0]).parent
    for name in ("collectives", "train"):
        assert json.loads((run / f"jobs/{name}/result.json").read_text())["nodes"] == [*OLD, NEW]


def test_no_number_keeps_the_live_size(fleet: Fleet) -> None:
    before = started(fleet)
    ended = fleet.run("playbooks/local_up.yml")
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert re.findall(r"changed=(\d+)", ended.stdout) == ["0"] * 6
    assert started(fleet) == before
    assert compute_nodes(fleet) == [*OLD, NEW]


def test_a_smaller_number_alone_is_refused(fleet: Fleet, make) -> None:
    before = started(fleet)
    ended = make("site", f"FLEET={fleet.name}", "COMPUTE=2")
    assert ended.returncode != 0
    said = f"Fleet {fleet.name} is larger than asked for: {NEW} would be removed; set SHRINK=1 (shrink: true) to drain and remove them."
    assert [said in line for line in re.findall(r"^FAILED (.*)$", ended.stdout, re.MULTILINE)] == [True], ended.stdout[-3000:]
    assert started(fleet) == before
    assert compute_nodes(fleet) == nodes_in_slurm(fleet) == [*OLD, NEW]


def test_other_hosts_go_on_without_an_unreachable_one(fleet: Fleet) -> None:
    containers = fleet.containers()
    # Close Ansible's open connection, which would outlive sshd.
    containers.run_in(NEW, ["sh", "-c", "systemctl stop ssh; pkill -x 'sshd.*'"])
    try:
        ended = fleet.run("playbooks/validate.yml")
    finally:
        containers.run_in(NEW, ["systemctl", "start", "ssh"])
    assert ended.returncode != 0
    assert {event["host"] for event in fleet.events("unreachable")} == {NEW}
    assert re.search(rf"^FAILED {NEW}: .*unreachable|^FAILED {NEW}: .*(refused|connect)", ended.stdout, re.MULTILINE), ended.stdout[-3000:]
    assert len(re.findall(r"^FAILED ", ended.stdout, re.MULTILINE)) == 1, ended.stdout[-3000:]
    checked = {event["host"] for event in fleet.events("check") if event["level"] == "fleet" and event["status"] == "passed"}
    assert checked == {"controller-1", "login-1", *OLD}


def test_shrinking_waits_for_jobs_and_removes_the_node(fleet: Fleet, make, sleeper) -> None:
    before = started(fleet)
    number = sleeper(NEW, 30)
    ended = make("site", f"FLEET={fleet.name}", "COMPUTE=2", "SHRINK=1")
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert job(fleet, number)["JobState"] == "COMPLETED"
    assert compute_nodes(fleet) == nodes_in_slurm(fleet) == [*OLD]
    after = started(fleet)
    assert before.keys() - after.keys() == {fleet.containers().container_name(NEW)}
    assert after.items() < before.items()
    assert "training: " in ended.stdout and "(stored)" in ended.stdout.split("training: ")[-1]


def test_down_leaves_the_other_fleet_alone(fleet: Fleet, make) -> None:
    before = started(fleet)
    nodes = [{"name": "controller-1", "memory": "384"}]
    argv = ["localhost", "-m", "muster.fleet.node_container", "-a", json.dumps({"fleet": BESIDE, "nodes": nodes})]
    subprocess.run([".venv/bin/ansible", *argv], cwd=ROOT, env=fleet.env, check=True, capture_output=True)
    assert (fleet.state_dir.parent / BESIDE / "fleet.json").exists()
    ended = make("down", f"FLEET={BESIDE}")
    assert ended.returncode == 0, ended.stdout
    engine = fleet.containers().engine
    assert engine.ask("ps", "--all", "--quiet", "--filter", f"label=muster.fleet={BESIDE}") == ""
    assert engine.networks(f"muster.fleet={BESIDE}") == []
    assert not (fleet.state_dir.parent / BESIDE).exists()
    assert started(fleet) == before
    assert fleet.state_dir.exists()
