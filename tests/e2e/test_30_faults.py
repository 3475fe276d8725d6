# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Faults that the fleet must survive and name: each test makes one, sees it reported, and removes it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_fleet import Fleet, one_sentence

pytestmark = pytest.mark.engine

# slurmctld writes its state up to five seconds late; a kill loses what happened since.
STATE_SAVED_S = 6
SPOOL = "/var/lib/slurm/slurmd"
WRONG_KEY = (
    "umask 277; head -c 128 /dev/urandom | base64 -w0 > /etc/munge/munge.key; chown munge: /etc/munge/munge.key; systemctl restart munge"
)
# Only munged sees a clock that is a quarter of an hour late; the node's clock is the machine's and stays.
SKEW = """set -e
apt-get -qq install -y --no-install-recommends libfaketime >/dev/null
library=$(dpkg -L libfaketime | grep '/libfaketime.so.1$')
mkdir -p /run/systemd/system/munge.service.d
printf '[Service]\\nEnvironment=FAKETIME=-15m LD_PRELOAD=%s\\n' "$library" > /run/systemd/system/munge.service.d/skew.conf
systemctl daemon-reload
timeout 20 systemctl restart munge
"""
NO_SKEW = "rm -f /run/systemd/system/munge.service.d/skew.conf; systemctl daemon-reload; systemctl restart munge slurmd"


# The node's slurmd with another version string: it reports what is compiled in, and runs on.
OTHER_VERSION = """set -e
mkdir -p /run/other /run/systemd/system/slurmd.service.d
sed 's/24\\.11\\.5/24.11.4/g' /usr/sbin/slurmd > /run/other/slurmd
chmod 755 /run/other/slurmd
printf '[Service]\\nExecStart=\\nExecStart=/run/other/slurmd --systemd $SLURMD_OPTIONS\\n' > /run/systemd/system/slurmd.service.d/other.conf
systemctl daemon-reload
systemctl restart slurmd
echo '# old' >> /run/slurm/conf/cgroup.conf
"""
OWN_VERSION = "rm -rf /run/systemd/system/slurmd.service.d /run/other; systemctl daemon-reload; systemctl restart slurmd"
# More memory and a GPU than the nodes have, and a node in no partition.
TOO_MUCH = (
    "sed -i.right -E '/^NodeName=compute-1 / s/RealMemory=[0-9]+/RealMemory=999999/; /^NodeName=compute-2 / s/$/ Gres=gpu:1/;"
    " /^PartitionName=/ s/Nodes=compute /Nodes=compute-1 /' slurm.conf"
)


def slurm(fleet: Fleet, *argv: str, user: str = "root") -> str:
    return fleet.ansible("controller-1", *argv, user=user)


def submit(fleet: Fleet, script: str, *options: str) -> str:
    """A job of the user muster; its number."""
    return slurm(fleet, "sbatch", "--parsable", "--output=/dev/null", "--mem=64", *options, f"--wrap={script}", user="muster")


def job(fleet: Fleet, number: str, field: str) -> str:
    return re.search(rf"\b{field}=(\S+)", slurm(fleet, "scontrol", "-o", "show", "job", number))[1]


def states(fleet: Fleet) -> dict[str, str]:
    """Node to state."""
    return dict(line.split("|") for line in slurm(fleet, "sinfo", "--noheader", "--Node", "--format=%N|%T").splitlines())


def accounted(fleet: Fleet, *options: str) -> list[str]:
    """Rows of accounting as NUMBER|STATE, one for each run of a job."""
    argv = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--duplicates",
        "--allusers",
        "--starttime=now-2hours",
        "--format=jobid,state",
    ]
    # A restarted slurmctld writes the rows of jobs that it still knows again, without the "by UID" of cancelled ones.
    return [row.partition(" by ")[0] for row in slurm(fleet, *argv, *options).splitlines()]


def failed_checks(fleet: Fleet) -> set[tuple[str, str]]:
    """(host, component.check) of the newest run."""
    return {(check["host"], f"{check['component']}.{check['check']}") for check in fleet.events("check") if check["status"] == "failed"}


@pytest.fixture(autouse=True)
def whole(fleet: Fleet) -> Iterator[None]:
    """Each test starts and ends with an idle fleet."""
    idle = {"compute-1": "idle", "compute-2": "idle"}
    assert states(fleet) == idle
    yield
    fleet.wait_for("idle nodes", lambda: states(fleet) == idle, 120)


def steps_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def test_a_lost_node_requeues_its_job_and_the_job_record_keeps_the_loss(fleet: Fleet) -> None:
    undisturbed = {line["step"]: line["loss"] for line in steps_of(fleet.first_run / "jobs" / "train" / "train.jsonl") if "loss" in line}
    training = fleet.state_dir / "fsx" / "home" / "muster" / "training"
    before = set(training.glob("checkpoints-*"))
    containers = fleet.containers()
    run = fleet.begin("playbooks/train.yml", "-e", "muster_rerun=true")
    [folder] = fleet.wait_for("the job's folder", lambda: set(training.glob("checkpoints-*")) - before)
    log, number = folder / "train.jsonl", folder.name.removeprefix("checkpoints-")
    fleet.wait_for(
        "the second checkpoint", lambda: [line for line in steps_of(log) if (line.get("event"), line["step"]) == ("checkpoint", 20)]
    )
    # The job keeps its number, and files that PMIx steps left on the dead node would stop it from starting there again.
    left = f"{SPOOL}/stepd.slurm.pmix.{number}.0"
    fleet.ansible("compute-2", "touch", left)
    containers.set_state("killed", ["compute-2"])
    reached = max(line["step"] for line in steps_of(log))
    assert reached < max(undisturbed), "the job was over before the node was killed"
    fleet.wait_for("Slurm to miss the node", lambda: states(fleet)["compute-2"].startswith("down"), 90)
    fleet.wait_for("the job in the queue", lambda: job(fleet, number, "JobState") in ("PENDING", "REQUEUED"))
    fleet.start("compute-2")
    assert fleet.ansible("compute-2", "sh", "-c", f"test -e {left} || echo clean") == "clean"
    done = fleet.finish(run, 180)
    assert done.returncode == 0, done.stdout[-3000:]

    result = json.loads((fleet.latest / "jobs" / "train" / "result.json").read_text())
    assert (str(result["job_id"]), result["state"], result["restarts"]) == (number, "COMPLETED", 1)
    assert [row.split("|")[1] for row in accounted(fleet, "--jobs", number)] == ["NODE_FAIL", "COMPLETED"]
    lines = steps_of(log)
    [resumed] = [line for line in lines if line.get("event") == "resume"]
    assert 20 <= resumed["step"] <= reached
    again = {line["step"]: line["loss"] for line in lines[lines.index(resumed) :] if "loss" in line}
    assert again == {step: loss for step, loss in undisturbed.items() if step > resumed["step"]}


def test_a_killed_controller_keeps_its_jobs(fleet: Fleet) -> None:
    number = submit(fleet, "srun sleep 20", "--nodes=2")
    fleet.wait_for("the job to run", lambda: job(fleet, number, "JobState") == "RUNNING")
    time.sleep(STATE_SAVED_S)
    started, process = job(fleet, number, "StartTime"), slurm(fleet, "pidof", "slurmctld")
    slurm(fleet, "kill", "-KILL", process)
    assert "DOWN" in fleet.ansible("controller-1", "scontrol", "ping", check=False)
    fleet.wait_for("slurmctld to come back", lambda: "is UP" in fleet.ansible("controller-1", "scontrol", "ping", check=False), 30)
    assert slurm(fleet, "pidof", "slurmctld") != process
    assert (job(fleet, number, "JobState"), job(fleet, number, "StartTime")) == ("RUNNING", started)
    fleet.wait_for("the job to end", lambda: job(fleet, number, "JobState") == "COMPLETED", 40)
    assert job(fleet, number, "Restarts") == "0"


def test_accounting_survives_its_database(fleet: Fleet) -> None:
    before = accounted(fleet)
    number = submit(fleet, "sleep 3")
    slurm(fleet, "systemctl", "stop", "mariadb")
    fleet.wait_for("the job to end", lambda: job(fleet, number, "JobState") == "COMPLETED", 40)
    assert f"{number}|COMPLETED" not in fleet.ansible(
        "controller-1", "timeout", "5", "sacct", "-nPXj", number, "-o", "jobid,state", check=False
    )
    slurm(fleet, "systemctl", "start", "mariadb")
    fleet.wait_for("the row of the job", lambda: f"{number}|COMPLETED" in accounted(fleet), 60)
    assert [row for row in accounted(fleet) if not row.startswith(f"{number}|")] == before


def test_full_spool_and_a_broken_daemon_are_named_and_nothing_breaks(fleet: Fleet) -> None:
    fleet.ansible("compute-1", "sh", "-c", f"dd if=/dev/zero of={SPOOL}/filler bs=1M status=none; df -m {SPOOL}", check=False)
    fleet.ansible("compute-2", "systemctl", "stop", "slurmd")
    try:
        done = fleet.run("playbooks/validate.yml", "-e", '{"muster_phases": ["verify_node"]}')
        fleet.ansible("compute-2", "systemctl", "start", "slurmd")
        assert done.returncode != 0
        assert {("compute-1", "slurm.spool_space"), ("compute-2", "slurm.slurmd_active")} <= failed_checks(fleet)
        assert re.search(r"FAILED compute-1: slurm\.spool_space: .* Remedy: Free space in /var/lib/slurm/slurmd", done.stdout)
        assert re.search(r"FAILED compute-2: slurm\.slurmd_active: .* Remedy: Read journalctl -u slurmd on the node", done.stdout)
        number = submit(fleet, "true", "--nodelist=compute-1")
        fleet.wait_for(
            "Slurm to drain the node", lambda: "SlurmdSpoolDir is full" in slurm(fleet, "sinfo", "--noheader", "--format=%E"), 30
        )
    finally:
        fleet.ansible("compute-1", "rm", f"{SPOOL}/filler")
        fleet.ansible("compute-2", "systemctl", "start", "slurmd")
    fleet.wait_for("the job in the queue again", lambda: job(fleet, number, "Restarts") == "1")
    assert job(fleet, number, "JobState") in ("PENDING", "REQUEUED")
    slurm(fleet, "scontrol", "update", "nodename=compute-1", "state=resume")
    slurm(fleet, "scancel", number)  # otherwise it waits a minute, as each requeued job does
    # --quiet, because srun would print that it waits for the node that has just come back.
    assert sorted(slurm(fleet, "srun", "--quiet", "--nodes=2", "hostname", user="muster").split()) == ["compute-1", "compute-2"]


def test_wrong_key_and_skewed_clock_are_named(fleet: Fleet) -> None:
    fleet.ansible("compute-1", "cp", "-p", "/etc/munge/munge.key", "/etc/munge/munge.key.right")
    fleet.ansible("compute-1", "sh", "-c", WRONG_KEY)
    fleet.ansible("compute-2", "sh", "-c", SKEW)
    try:
        done = fleet.run("playbooks/validate.yml", "-e", '{"muster_phases": ["verify_fleet"], "slurm_ready_wait": 5}')
        found = {
            check["host"]: check["found"]
            for check in fleet.events("check")
            if check["check"] == "munge_remote" and check["status"] == "failed"
        }
    finally:
        fleet.ansible("compute-1", "sh", "-c", "mv /etc/munge/munge.key.right /etc/munge/munge.key; systemctl restart munge slurmd")
        fleet.ansible("compute-2", "sh", "-c", NO_SKEW)
    assert done.returncode != 0
    assert set(found) == {"compute-1", "compute-2"}
    assert "Invalid credential" in found["compute-1"]
    assert "Rewound credential" in found["compute-2"]


def test_each_fault_of_the_cluster_is_named(fleet: Fleet) -> None:
    fleet.ansible("controller-1", "sh", "-ec", f"cd /etc/slurm; {TOO_MUCH}; scontrol reconfigure; systemctl stop slurmdbd")
    fleet.wait_for("Slurm to refuse the nodes", lambda: slurm(fleet, "scontrol", "-o", "show", "nodes").count("INVALID_REG") == 2, 30)
    fleet.ansible("compute-2", "sh", "-c", OTHER_VERSION)
    try:
        submit(fleet, "true", "--hold")
        fleet.wait_for("a record that waits", lambda: not re.search(r"DBD Agent queue size: 0$", slurm(fleet, "sdiag"), re.MULTILINE))
        done = fleet.run("playbooks/validate.yml", "-e", '{"muster_phases": ["verify_fleet"], "slurm_ready_wait": 1}')
        found = {
            check["check"]: check["found"] for check in fleet.events("check") if check["status"] == "failed" and check["host"] != "login-1"
        }
    finally:
        fleet.ansible("compute-2", "sh", "-c", OWN_VERSION)
        restore = "mv /etc/slurm/slurm.conf.right /etc/slurm/slurm.conf; systemctl start slurmdbd; scontrol reconfigure"
        fleet.ansible("controller-1", "sh", "-c", f"{restore}; scancel --user muster")
    fleet.wait_for("the nodes to register", lambda: "INVALID_REG" not in slurm(fleet, "scontrol", "-o", "show", "nodes"), 30)
    slurm(fleet, "scontrol", "update", "nodename=compute-[1-2]", "state=resume")
    assert done.returncode != 0
    assert set(found) == {
        "same_configuration",
        "hardware_as_configured",
        "nodes_in_partitions",
        "nodes_registered",
        "nodes_version",
        "nodes_ready",
        "database_lag",
    }
    assert found["nodes_in_partitions"] == "compute-1"
    assert "cgroup.conf: FAILED" in found["same_configuration"]
    assert re.search(r"\d+ of 999999 MiB", found["hardware_as_configured"])
    assert re.search(r"compute-1: Low RealMemory \(reported:\d+ < 100.00% of configured:999999\)", found["nodes_registered"])
    assert "compute-2: gres/gpu count reported lower than configured (0 < 1)" in found["nodes_registered"]
    assert found["nodes_version"] == "compute-2 has 24.11.4"
    assert re.fullmatch(r"\d+ records wait for slurmdbd, \d+ s before \d+", found["database_lag"])
    assert "FAILED compute-1: slurm.hardware_as_configured: " in done.stdout
    assert "slurm_cluster.nodes_version failed: sh printed something else: compute-2 has 24.11.4 (expected the controller's" in done.stdout


def test_a_node_that_health_drained_fails_alone(fleet: Fleet) -> None:
    slurm(fleet, "scontrol", "update", "nodename=compute-2", "state=drain", "reason=muster:test: a fault of this test")
    try:
        done = fleet.run("playbooks/validate.yml", "-e", '{"muster_phases": ["verify_fleet"]}')
    finally:
        slurm(fleet, "scontrol", "update", "nodename=compute-2", "state=resume")
    assert done.returncode != 0
    assert failed_checks(fleet) == {("compute-2", "slurm.in_service")}
    assert "drained: muster:test: a fault of this test" in done.stdout


def test_another_machine_s_keys_are_refused(fleet: Fleet) -> None:
    key = fleet.state_dir / "secrets" / "munge.key"
    ours = key.read_text()
    key.write_text("another machine's key".ljust(64, "x"))
    try:
        whole = one_sentence(fleet.run("playbooks/provision.yml"))
        limited = one_sentence(fleet.run("playbooks/provision.yml", "--limit", "compute-1,localhost"))
        alone = one_sentence(fleet.run("playbooks/provision.yml", "--limit", "compute-1,controller-1"))
    finally:
        key.write_text(ours)
    assert re.search(r"controller-1.*compute-2.* have another munge key than .*/munge.key, so another machine provisions this", whole)
    assert "compute-1 has another munge key than " in limited
    assert "--limit leaves out localhost" in alone
    assert "INVALID" not in slurm(fleet, "sinfo") and "Invalid" not in fleet.ansible("compute-1", "sinfo")


def test_busy_nodes_are_no_fault(fleet: Fleet) -> None:
    # Three seconds show the same as the twenty that a user waits.
    verify = ("playbooks/validate.yml", "-e", '{"muster_phases": ["verify_fleet"], "__slurm_srun_free": "--immediate=3 --quiet --time=5"}')
    number = submit(fleet, "sleep 200", "--nodes=2", "--exclusive", "--mem=0")
    fleet.wait_for("the job to run", lambda: job(fleet, number, "JobState") == "RUNNING")
    done = fleet.run(*verify)
    slurm(fleet, "scancel", number)
    assert done.returncode != 0
    assert "slurm_cluster.every_node_runs could not run: all nodes are busy with jobs." in done.stdout
    assert failed_checks(fleet) == set()
    fleet.wait_for("idle nodes", lambda: set(states(fleet).values()) == {"idle"})
    slurm(fleet, "scontrol", "update", "partitionname=main", "state=down")
    try:
        fleet.run(*verify)
    finally:
        slurm(fleet, "scontrol", "update", "partitionname=main", "state=up")
    assert failed_checks(fleet) == {("controller-1", "slurm_cluster.every_node_runs")}


def test_a_site_run_that_was_killed_is_finished_by_a_second_one(fleet: Fleet) -> None:
    fleet.ansible("compute-1", "sh", "-c", WRONG_KEY)
    run = fleet.begin("site.yml")
    fleet.wait_for("the task after the key", lambda: "configure | Start munge and the accounting daemons" in run.log.read_text(), 120)
    fleet.cut(run)
    assert "PLAY RECAP" not in run.log.read_text()
    again = fleet.run("site.yml")
    assert again.returncode == 0, again.stdout[-3000:]
    assert failed_checks(fleet) == set()
    key = (fleet.state_dir / "secrets" / "munge.key").read_text().strip()
    assert fleet.ansible("compute-1", "cat", "/etc/munge/munge.key") == key


def test_all_nodes_killed_and_brought_back(fleet: Fleet) -> None:
    waiting, history = submit(fleet, "true", "--hold"), accounted(fleet)
    time.sleep(STATE_SAVED_S)
    fleet.kill()
    assert {each.state for each in fleet.containers().containers().values()} == {"exited"}
    done = fleet.run("site.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert job(fleet, waiting, "JobState") == "PENDING"
    kept = accounted(fleet)
    assert [row for row in history if row not in kept] == [], kept
    slurm(fleet, "scontrol", "release", waiting)
    fleet.wait_for("the job to end", lambda: job(fleet, waiting, "JobState") == "COMPLETED")
