# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A controller that is lost with its disk is made anew from a backup while jobs run: a proof, because it takes minutes.

.venv/bin/pytest --engine tests/e2e/proof_restore.py
"""

from __future__ import annotations

import json
import re

import pytest
from e2e_fleet import Fleet

pytestmark = pytest.mark.engine

SLURM = {"muster_components": ["common", "slurm"]}


def slurm(fleet: Fleet, *argv: str, user: str = "root") -> str:
    return fleet.ansible("controller-1", *argv, user=user)


def job(fleet: Fleet, number: str, field: str) -> str:
    return re.search(rf"\b{field}=(\S+)", slurm(fleet, "scontrol", "-o", "show", "job", number))[1]


def submit(fleet: Fleet, script: str, *options: str) -> str:
    argv = ("sbatch", "--parsable", "--output=/dev/null", "--mem=64", *options, f"--wrap={script}")
    return slurm(fleet, *argv, user="muster")


def history(fleet: Fleet) -> list[str]:
    argv = ("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--allusers", "--starttime=now-2hours")
    return slurm(fleet, *argv, "--format=jobid,jobname,state,end").splitlines()


def test_a_lost_controller_comes_back_with_queue_history_and_running_jobs(fleet: Fleet) -> None:
    running, held = submit(fleet, "srun sleep 900", "--nodelist=compute-1"), submit(fleet, "true", "--hold")
    later = submit(fleet, "true", "--begin=now+1hour")
    fleet.wait_for("the job to run", lambda: job(fleet, running, "JobState") == "RUNNING")
    slurm(fleet, "scontrol", "update", "nodename=compute-2", "state=drain", "reason=ticket 4711")
    started, processes = job(fleet, running, "StartTime"), fleet.ansible("compute-1", "pgrep", "-x", "sleep")
    fleet.wait_for("the row of the job", lambda: any(line.startswith(f"{running}|") and "RUNNING" in line for line in history(fleet)))
    before = [line for line in history(fleet) if "PENDING" not in line]
    assert fleet.run("playbooks/slurm_backup.yml").returncode == 0
    [archive] = sorted((fleet.folder / "backups" / fleet.name).iterdir())[-1:]

    containers = fleet.containers()
    containers.engine.ask("rm", "--force", "--volumes", containers.container_name("controller-1"))
    up = fleet.run("playbooks/local_up.yml")
    assert up.returncode == 0, up.stdout[-3000:]
    assert fleet.ansible("controller-1", "sh", "-c", "command -v slurmctld || echo fresh") == "fresh"
    restored = fleet.run("playbooks/slurm_restore.yml", "-e", json.dumps({**SLURM, "muster_restore": str(archive)}))
    # The drain of a person came back as well, so that the check of the nodes names it and everything else has passed.
    bad = {check["check"] for check in fleet.events("check") if check["status"] == "failed"}
    assert bad == {"nodes_ready"}, restored.stdout[-3000:]

    assert (job(fleet, running, "JobState"), job(fleet, running, "StartTime")) == ("RUNNING", started)
    assert fleet.ansible("compute-1", "pgrep", "-x", "sleep") == processes
    assert [job(fleet, number, "Reason") for number in (held, later)] == ["JobHeldUser", "BeginTime"]
    assert [line for line in before if line not in history(fleet)] == []
    assert "ticket 4711" in slurm(fleet, "sinfo", "--list-reasons")

    slurm(fleet, "scontrol", "update", "nodename=compute-2", "state=resume")
    slurm(fleet, "scontrol", "release", held)
    fleet.wait_for("the held job to end", lambda: job(fleet, held, "JobState") == "COMPLETED")
    slurm(fleet, "scancel", running, later)
    again = fleet.run("playbooks/provision.yml", "-e", json.dumps(SLURM))
    assert again.returncode == 0, again.stdout[-3000:]
    recap = dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", again.stdout, re.MULTILINE))
    assert set(recap.values()) == {"0"}
