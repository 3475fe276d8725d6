# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: a running fleet goes from Debian 13's Slurm to that of Debian testing, fails half-way, goes on, and goes back.

Run by `make proofs`, or `pytest --engine tests/proof/slurm_upgrade.py`; about eleven minutes on two cores. Where the
archive has no testing suite it ends with 75, which counts as not run.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from e2e_fleet import Fleet

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = "upgrade"
SOURCE = {"suite": "testing", "check_valid_until": False}
COUNT = "while :; do date +%s >>ticks.$SLURM_PROCID; sleep 1; done"
BACKUP = "/var/backups/slurm"
HOSTS = ("controller-1", "compute-1", "compute-2")
OLD = "24.11.5"


class Cluster(Fleet):
    """The fleet of this proof; `vars` are in every run of a playbook."""

    vars: dict

    def play(self, playbook: str, *extra: str, **variables: object) -> subprocess.CompletedProcess:
        return self.run(f"playbooks/{playbook}.yml", "-e", json.dumps({**self.vars, **variables}), *extra)

    def head(self, *argv: str, user: str = "root") -> str:
        return self.ansible("controller-1", *argv, user=user)

    def submit(self, name: str, script: str, *options: str) -> str:
        return self.head("sbatch", "--parsable", f"--job-name={name}", "--mem=64", *options, f"--wrap={script}", user="muster")

    def state(self, job: str) -> str:
        return self.head("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")

    def ticks(self) -> list[int]:
        """The times at which the running job wrote, by node."""
        return [int(line) for line in self.head("sh", "-c", "cat /fsx/home/muster/ticks.0").splitlines()]

    def versions(self) -> dict[str, str]:
        nodes = dict(line.split() for line in self.head("sinfo", "--noheader", "--Node", "--format=%N %v").splitlines())
        shown = re.search(r"SLURM_VERSION\s*=\s*(\S+)", self.head("scontrol", "show", "config"))
        assert shown
        return {**nodes, "slurmctld": shown[1]}

    def look(self) -> dict[str, str]:
        """What a refusal must not change."""
        command = f"dpkg-query -W | sha256sum; find /etc {BACKUP} -type f 2>/dev/null | xargs sha256sum | sha256sum; pgrep -a 'slurm|sackd'"
        return {host: self.ansible(host, "sh", "-c", command) for host in HOSTS}


def failures(done: subprocess.CompletedProcess) -> list[str]:
    """The lines of the summary that say what failed."""
    assert done.returncode != 0, done.stdout[-3000:]
    return re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(artifacts) -> Cluster:
    """Two compute nodes with jobs: one that runs on both, one that waits, one that is over."""
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    inventory.mkdir()
    (inventory / "local_fleet.yml").write_text(json.dumps({"plugin": "muster.fleet.local_fleet", "fleet": NAME, "memory": "2048"}))
    (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
    made = Cluster(folder, NAME, inventory)
    local = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())
    # Debian's packages of 26.05 are built without PMIx.
    made.vars = {
        "muster_components": ["common", "slurm"],
        "slurm_rest": {"listen": "unix:/run/slurmrestd/slurmrestd.socket"},
        "slurm_pam_adopt": {"admins": []},
        "slurm_config": {**local["slurm_config"], "MpiDefault": "pmi2"},
        "muster_allow_not_run": [
            *local["muster_allow_not_run"],
            "slurm.pmix_plugin",
            "slurm_cluster.pmix_offered",
            "slurm_cluster.pmix_ranks",
        ],
    }
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        made.vars["slurm_cgroup_config"] = {"CgroupPlugin": "cgroup/v1"}
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    for playbook in ("local_up", "provision"):
        done = made.play(playbook)
        assert done.returncode == 0, done.stdout[-5000:]
    own = "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)"
    suite = made.ansible(
        "controller-1", "sh", "-c", f"/usr/lib/apt/apt-helper download-file {own}dists/testing/InRelease /tmp/r 2>&1", check=False
    )
    if "Fetched" not in suite:
        made.run("playbooks/local_down.yml")
        pytest.exit(f"The archive of these nodes has no testing suite, so nothing is proven: {suite[-300:]}", returncode=75)
    return made


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> dict[str, str]:
    over = cluster.submit("over", "hostname", "--wait")
    runs = cluster.submit("runs", f"srun -N2 sh -c '{COUNT}'", "-N2", "--ntasks-per-node=1", "--time=60")
    waits = cluster.submit("waits", "hostname", "--begin=now+2hours")
    cluster.wait_for("the job to run", lambda: cluster.state(runs) == "RUNNING")
    return {"over": over, "runs": runs, "waits": waits}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"slurm_apt_source": SOURCE, "slurm_version": "27.05"},
            r"Slurm 27\.05 is offered by no source of controller-1, which has 26\.\S+; set",
        ),
        ({"slurm_apt_source": {**SOURCE, "suite": "nonsense"}}, r"The suite nonsense of slurm_apt_source cannot be read"),
        (
            {"slurm_apt_source": {**SOURCE, "suite": "oldstable"}, "slurm_version": "22.05"},
            r"newer than 22\.05\.8, and Slurm never goes back",
        ),
        ({"slurm_verson": "26.05"}, r"slurm_verson .*the nearest is slurm_version"),
    ],
)
def test_refused_with_nothing_changed(cluster: Cluster, jobs, variables: dict, sentence: str) -> None:
    before = cluster.look()
    [said] = failures(cluster.play("slurm_upgrade", **variables))
    assert re.search(sentence, said), said
    assert cluster.look() == before


def test_packages_without_the_configured_mpi_are_refused(cluster: Cluster, jobs) -> None:
    """The playbook has fetched the packages by then, and stopped and installed nothing."""
    look = ("sh", "-c", "dpkg-query -W | sha256sum; pgrep -a slurm")
    before = cluster.head(*look)
    said = failures(
        cluster.play("slurm_upgrade", slurm_apt_source=SOURCE, slurm_config={**cluster.vars["slurm_config"], "MpiDefault": "pmix"})
    )
    assert all("have no plugin for PMIx, which MpiDefault=pmix needs; give slurm_config another MpiDefault" in line for line in said), said
    assert cluster.head(*look) == before


def test_a_step_that_fails_says_how_to_go_on_or_back(cluster: Cluster, jobs) -> None:
    """slurmdbd and slurmctld are upgraded by then; the jobs run on."""
    cluster.vars["slurm_apt_source"] = SOURCE
    broken = "/etc/apt/apt.conf.d/99broken"
    cluster.ansible("compute-1", "sh", "-c", f"echo 'DPkg::Pre-Invoke {{\"false\";}};' >{broken}")
    [said] = failures(cluster.play("slurm_upgrade"))
    cluster.ansible("compute-1", "rm", broken)
    wanted = (
        r"The step slurmd of the upgrade to Slurm 26\S+ failed on compute-1: .*Problem executing scripts.*\. Repair that and run playbooks/"
    )
    assert re.search(wanted, said), said
    assert "go back by playbooks/slurm_upgrade_back.yml" in said


def test_mixed_versions_run_jobs(cluster: Cluster, jobs) -> None:
    versions = cluster.versions()
    assert versions["slurmctld"].startswith("26.")
    assert {versions["compute-1"], versions["compute-2"]} == {OLD}
    job = cluster.submit("mixed", "srun -N2 hostname", "-N2", "--wait", "--ntasks-per-node=1")
    assert cluster.head("sacct", "-nPX", f"--jobs={job}", "--format=state") == "COMPLETED"


def test_run_again_it_goes_on(cluster: Cluster, jobs) -> None:
    done = cluster.play("slurm_upgrade")
    assert done.returncode == 0, done.stdout[-5000:]
    assert "slurmd on compute-1, compute-2." in done.stdout
    assert len(set(cluster.versions().values())) == 1
    checks = {check["check"]: check["status"] for check in cluster.events("check")}
    assert checks == {"upgrade_versions": "passed", "upgrade_history": "passed", "upgrade_queue": "passed"}


def test_nothing_was_lost(cluster: Cluster, jobs) -> None:
    assert cluster.state(jobs["runs"]) == "RUNNING"
    assert cluster.state(jobs["waits"]) == "PENDING"
    assert cluster.head("sacct", "-nPX", f"--jobs={jobs['over']}", "--format=jobname,state") == "over|COMPLETED"
    ticks = cluster.ticks()
    assert max(after - before for before, after in itertools.pairwise(ticks)) < 10
    assert time.time() - ticks[-1] < 10
    cluster.head("scontrol", "update", f"jobid={jobs['waits']}", "starttime=now")
    cluster.wait_for("the waiting job to run", lambda: cluster.state(jobs["waits"]) == "COMPLETED")


def test_systemd_and_the_rest_stay(cluster: Cluster, jobs) -> None:
    """Only what Slurm needs comes from the other suite."""
    for host in HOSTS:
        assert cluster.ansible(host, "sh", "-c", "systemctl --version | head -n 1").startswith("systemd 257 ")


def test_there_is_nothing_more_to_do(cluster: Cluster, jobs) -> None:
    done = cluster.play("slurm_upgrade")
    assert done.returncode == 0, done.stdout[-5000:]
    assert "everywhere, nothing is to be done." in done.stdout
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}


def test_the_fleet_is_proven_and_converged_with_the_new_version(cluster: Cluster, jobs) -> None:
    done = cluster.play("provision")
    assert done.returncode == 0, done.stdout[-5000:]
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}


def test_the_way_back(cluster: Cluster, jobs) -> None:
    """The cluster is as it was when slurmctld stopped: later jobs are forgotten, jobs that ran then still run."""
    del cluster.vars["slurm_apt_source"]
    later = cluster.submit("later", "hostname", "--wait")
    done = cluster.play("slurm_upgrade_back")
    assert done.returncode == 0, done.stdout[-5000:]
    cluster.wait_for("all nodes to be back", lambda: set(cluster.versions().values()) == {OLD})
    assert cluster.state(jobs["runs"]) == "RUNNING"
    assert time.time() - cluster.ticks()[-1] < 10
    assert cluster.state(jobs["waits"]) == "PENDING"
    assert cluster.head("sacct", "-nPX", f"--jobs={later}", "--format=jobname") != "later"
    assert cluster.head("sacct", "-nPX", f"--jobs={jobs['over']}", "--format=jobname,state") == "over|COMPLETED"
    done = cluster.play("provision")
    assert done.returncode == 0, done.stdout[-5000:]
