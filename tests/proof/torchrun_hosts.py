# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: jobs of the launcher torchrun on two hosts over real SSH, as units of a real systemd.

The hosts are nodes of a local fleet without Slurm, which have the trainer. Run by `make proofs`, or `pytest --engine
tests/proof/torchrun_hosts.py`; about three minutes on two cores.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from e2e_fleet import ROOT, Fleet, one_sentence

pytestmark = pytest.mark.engine

NAME = "hosts"
HOSTS = ["compute-1", "compute-2"]
GIVEN = {"muster_components": ["common", "trainer"], "muster_launcher": "torchrun", "muster_target": {"user": "ann"}}
# The first rank makes the data.
TRAIN = [
    "bash",
    "-c",
    'data=/fsx/ann/data; if [ "$RANK" = 0 ]; then python -m trainer prepare-data --out $data --tokens 100000; fi; '
    'until [ -e $data/index.json ]; do sleep 1; done; exec "$@" --dataset_path $data',
    "train",
    *["python", "-m", "trainer", "train", "--model", "tiny", "--train_batch_size", "2", "--backend", "gloo"],
]


@pytest.fixture(scope="module")
def fleet(artifacts) -> Fleet:
    made = Fleet(artifacts.folder(NAME), NAME, ROOT / "inventory/local")
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    for playbook in ("local_up", "provision"):
        done = made.run(f"playbooks/{playbook}.yml", "-e", json.dumps(GIVEN))
        assert done.returncode == 0, done.stdout[-4000:]
    return made


@pytest.fixture(scope="module")
def ann(fleet: Fleet) -> Fleet:
    """The fleet, whose hosts have the job's user and a folder of hers that both see."""
    for host in HOSTS:
        fleet.ansible(host, "useradd", "--uid", "2100", "--create-home", "ann")
    fleet.ansible(HOSTS[0], "install", "-d", "-o", "ann", "/fsx/ann")
    return fleet


def words(fleet: Fleet, name: str, verb: str = "run", **document: Any) -> list[str]:
    """What job.yml takes for a document of two nodes."""
    (fleet.folder / f"{name}.json").write_text(json.dumps({"name": name, "nodes": 2, "time_limit": 10, **document}))
    return ["playbooks/job.yml", "-e", json.dumps(GIVEN), "-e", f"job=@{name}.json", "-e", f"verb={verb}"]


def result(fleet: Fleet, name: str) -> dict[str, Any]:
    return json.loads((fleet.latest / "jobs" / name / "result.json").read_text())


def units(fleet: Fleet) -> list[list[str]]:
    """The active units of jobs on each host."""
    command = ("systemctl", "list-units", "--no-legend", "--plain", "--state=active", "muster-job-*")
    return [re.findall(r"^(muster-job-\S+)", fleet.ansible(host, *command), re.MULTILINE) for host in HOSTS]


def test_a_host_without_the_user_is_refused(fleet: Fleet) -> None:
    said = one_sentence(fleet.run(*words(fleet, "nobody", command=["true"])))
    assert said.endswith(
        "Host compute-1 cannot run job nobody: it has no user ann; make one, or set muster_target.user; mend it or leave it out."
    )
    assert units(fleet) == [[], []]


def test_two_hosts_train(ann: Fleet) -> None:
    done = ann.run(*words(ann, "train", command=[*TRAIN, "--max_steps", "40"]))
    assert done.returncode == 0, done.stdout[-4000:]
    assert (result(ann, "train")["state"], result(ann, "train")["nodes"]) == ("COMPLETED", HOSTS)
    output = (ann.latest / "jobs/train/output.txt").read_text()
    losses = [float(loss) for loss in re.findall(r"Batch \d+ Loss: ([\d.]+)", output)]
    assert len(losses) == 40 and losses[-1] < 0.8 * losses[0]
    assert units(ann) == [[], []]


def test_a_job_outlives_the_controller_that_started_it(ann: Fleet) -> None:
    command = ["bash", "-c", 'echo "began $RANK $(date +%s%N)"; sleep 25; echo "ended $RANK"']
    first = ann.begin(*words(ann, "patient", command=command))
    [[unit], _same] = ann.wait_for("the units of both hosts", lambda: all(found := units(ann)) and found, 90)
    output = ("sh", "-c", "cat /var/lib/muster/jobs/patient-*.unit/output.txt")
    ann.wait_for("the first line of rank 0", lambda: "began 0" in ann.ansible("compute-1", *output))
    ann.cut(first)
    killed = time.time_ns()
    assert units(ann) == [[unit], [unit]]
    done = ann.run(*words(ann, "patient", command=command))
    assert done.returncode == 0, done.stdout[-4000:]
    said = (ann.latest / "jobs/patient/output.txt").read_text()
    # The output of rank 0's host. A job that somebody had started again would have begun twice, or anew.
    assert re.findall(r"^(\w+) 0", said, re.MULTILINE) == ["began", "ended"]
    assert int(said.split()[2]) < killed


def test_the_rank_that_fails_first_is_named(ann: Fleet) -> None:
    command = ["bash", "-c", '[ "$RANK" != 1 ] || exit 7; sleep 60']
    said = one_sentence(ann.run(*words(ann, "fails", command=command)))
    assert "fails" in said
    found = result(ann, "fails")
    assert (found["state"], found["exit_code"], found["failed_rank"]) == ("FAILED", 7, 1)
    assert units(ann) == [[], []]


def test_a_stop_ends_the_ranks_of_all_hosts(ann: Fleet) -> None:
    command = ["sleep", "300"]
    assert ann.run(*words(ann, "long", "submit", command=command)).returncode == 0
    assert all(units(ann))
    assert ann.run(*words(ann, "long", "stop", command=command)).returncode == 0
    assert units(ann) == [[], []]


def test_a_host_that_is_lost_is_named(ann: Fleet) -> None:
    process = ann.begin(*words(ann, "lost", command=["sleep", "300"]))
    ann.wait_for("the units of both hosts", lambda: all(units(ann)), 90)
    ann.kill("compute-2")
    ann.start("compute-2")
    said = one_sentence(ann.finish(process, 300))
    assert "compute-2" in said
    assert result(ann, "lost")["state"] == "NODE_FAIL"
    assert units(ann) == [[], []]
