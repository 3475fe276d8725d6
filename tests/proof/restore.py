# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: a backup restores a controller that was lost with its disk, while jobs run; some archives are refused.

Run by `make proofs`, or `pytest --engine tests/proof/restore.py`; about six minutes on two cores.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME = "restore"
HOSTS = ("controller-1", "compute-1", "compute-2")
ONLY_SLURM = {"muster_components": ["common", "slurm"]}


class Cluster(Fleet):
    """The fleet of this proof, with Slurm alone."""

    def play(self, playbook: str, **variables: object) -> subprocess.CompletedProcess:
        return self.run(f"playbooks/{playbook}.yml", "-e", json.dumps({**ONLY_SLURM, **variables}))

    def succeed(self, playbook: str, **variables: object) -> str:
        done = self.play(playbook, **variables)
        assert done.returncode == 0, done.stdout[-5000:]
        return done.stdout

    def head(self, *argv: str, user: str = "root") -> str:
        return self.ansible("controller-1", *argv, user=user)

    def submit(self, script: str, *options: str) -> str:
        return self.head("sbatch", "--parsable", "--output=/dev/null", "--mem=64", *options, f"--wrap={script}", user="muster")

    def job(self, number: str, field: str) -> str:
        found = re.search(rf"\b{field}=(\S+)", self.head("scontrol", "-o", "show", "job", number))
        assert found
        return found[1]

    def history(self) -> list[str]:
        argv = ("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--allusers", "--starttime=now-2hours")
        return self.head(*argv, "--format=jobid,jobname,state,end").splitlines()

    def look(self) -> dict[str, str]:
        """What a refusal must not change: packages, files, daemons and databases."""
        command = (
            "dpkg-query -W | sha256sum; find /etc -type f | sort | xargs sha256sum | sha256sum; pgrep -a 'slurm|sackd|mariadbd|munged';"
            "! command -v mariadb >/dev/null || mariadb -N -e 'show databases'"
        )
        return {host: self.ansible(host, "sh", "-c", command) for host in HOSTS}


@pytest.fixture(scope="module")
def cluster(artifacts) -> Cluster:
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    inventory.mkdir()
    (inventory / "local_fleet.yml").write_text(json.dumps({"plugin": "muster.fleet.local_fleet", "fleet": NAME, "memory": "2048"}))
    (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
    made = Cluster(folder, NAME, inventory)
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    made.succeed("local_up")
    made.succeed("provision")
    return made


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> dict[str, str]:
    """A running, a held and a delayed job, and a node that a person has drained."""
    made = {
        "runs": cluster.submit("srun sleep 1800", "--nodelist=compute-1"),
        "held": cluster.submit("true", "--hold"),
        "later": cluster.submit("true", "--begin=now+1hour"),
    }
    cluster.wait_for("the job to run", lambda: cluster.job(made["runs"], "JobState") == "RUNNING")
    cluster.head("scontrol", "update", "nodename=compute-2", "state=drain", "reason=ticket 4711")
    row = rf"{made['runs']}\|.*\|RUNNING\|"
    cluster.wait_for("the row of the job", lambda: any(re.match(row, line) for line in cluster.history()))
    return made


@pytest.fixture(scope="module")
def archive(cluster: Cluster, jobs: dict[str, str]) -> Path:
    cluster.succeed("slurm_backup")
    [made] = (cluster.folder / "backups" / cluster.name).iterdir()
    return made


def made_by(archive: Path, target: Path, **facts: object) -> str:
    """A copy of the archive with a changed manifest."""
    with tarfile.open(archive) as whole, tarfile.open(target, "w") as other:
        for member in whole:
            content = whole.extractfile(member).read()
            if member.name == "manifest.json":
                content = json.dumps({**json.loads(content), **facts}).encode()
            member.size = len(content)
            other.addfile(member, io.BytesIO(content))
    return str(target)


def refused(done: subprocess.CompletedProcess) -> str:
    assert done.returncode != 0, done.stdout[-3000:]
    [said] = re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
    return said


TOO_OLD = r"made by Slurm 22\.05\.8 and 24\.11\.\d+ is installed, which reads only 24\.11, 24\.05, 23\.11 and 23\.02; install 22\.05"
TOO_NEW = r"made by Slurm 97\.05\.1 and 24\.11\.\d+ is installed, which cannot read it; install 97\.05 or newer first\."


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"slurm": "22.05.8"}, TOO_OLD),
        ({"slurm": "97.05.1"}, TOO_NEW),
        (
            {"database_schema": 1},
            r"newer than the backup: the database has schema \d+ and the backup the older 1, of before an upgrade; set",
        ),
        ({"taken": 1700000000}, r"newer than the backup: the database holds jobs up to 20\S+ \S+ UTC, the backup is of 2023-11-14"),
    ],
    ids=["a Slurm that is too new for it", "a Slurm that is too old for it", "the database of a newer Slurm", "a database with later jobs"],
)
def test_a_restore_into_what_does_not_fit_changes_nothing(cluster: Cluster, archive: Path, tmp_path: Path, facts, sentence: str) -> None:
    before = cluster.look()
    said = refused(cluster.play("slurm_restore", muster_restore=made_by(archive, tmp_path / "other.tar", **facts)))
    assert re.search(sentence, said), said
    assert cluster.look() == before


def test_a_database_elsewhere_would_begin_anew_and_is_refused(cluster: Cluster, jobs: dict[str, str]) -> None:
    before = cluster.look()
    cluster.env["MOVED_DATABASE"] = "NotToBeSeen"
    elsewhere = {"host": "db-2", "tls": False, "password_env": "MOVED_DATABASE"}
    done = cluster.play("stack", muster_phases=["configure"], slurm_database=elsewhere)
    [said] = re.findall(r"^\[ERROR\]: Task failed: Module failed: (.*)$", done.stdout, re.MULTILINE)
    assert "slurmdbd has its database slurm_acct_db on localhost and would begin an empty slurm_acct_db on db-2, without accounts" in said
    assert "remove /etc/slurm/slurmdbd.conf and run this again" in said
    assert cluster.look() == before


def test_a_lost_controller_comes_back_with_queue_history_and_running_jobs(
    cluster: Cluster, jobs: dict[str, str], archive: Path, tmp_path: Path
) -> None:
    started, processes = cluster.job(jobs["runs"], "StartTime"), cluster.ansible("compute-1", "pgrep", "-x", "sleep")
    before = [line for line in cluster.history() if "PENDING" not in line]

    containers = cluster.containers()
    containers.engine.ask("rm", "--force", "--volumes", containers.container_name("controller-1"))
    cluster.succeed("local_up")
    assert cluster.head("sh", "-c", "command -v slurmctld || echo fresh") == "fresh"
    # The restore knows Slurm's version only after its install, so it refuses after the install and changes nothing more.
    said = refused(cluster.play("slurm_restore", muster_restore=made_by(archive, tmp_path / "other.tar", slurm="22.05.8")))
    assert re.search(TOO_OLD, said), said
    assert (
        cluster.head(
            "sh",
            "-c",
            "ls /etc/slurm/slurm.conf /var/lib/slurm/slurmctld/job_state 2>/dev/null || pidof mariadbd slurmdbd slurmctld || echo fresh",
        )
        == "fresh"
    )
    restored = cluster.play("slurm_restore", muster_restore=str(archive))
    # The restore also brings back the drain that a person set, so only the check of the nodes fails.
    bad = {check["check"] for check in cluster.events("check") if check["status"] == "failed"}
    assert bad == {"nodes_ready"}, restored.stdout[-3000:]

    assert (cluster.job(jobs["runs"], "JobState"), cluster.job(jobs["runs"], "StartTime")) == ("RUNNING", started)
    assert cluster.ansible("compute-1", "pgrep", "-x", "sleep") == processes
    assert [cluster.job(jobs[name], "Reason") for name in ("held", "later")] == ["JobHeldUser", "BeginTime"]
    assert [line for line in before if line not in cluster.history()] == []
    assert "ticket 4711" in cluster.head("sinfo", "--list-reasons")


def test_the_restored_controller_goes_on(cluster: Cluster, jobs: dict[str, str]) -> None:
    cluster.head("scontrol", "update", "nodename=compute-2", "state=resume")
    cluster.head("scontrol", "release", jobs["held"])
    cluster.wait_for("the held job to end", lambda: cluster.job(jobs["held"], "JobState") == "COMPLETED")
    cluster.head("scancel", jobs["runs"], jobs["later"])
    again = cluster.succeed("provision")
    assert set(re.findall(r"changed=(\d+)", again)) == {"0"}
