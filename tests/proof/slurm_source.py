# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: Slurm built from its tarball, once for two nodes, runs a job from /opt/slurm; then a second build beside it becomes active.

Run by `make proofs`, or `pytest --engine tests/proof/slurm_source.py`; about twelve minutes on two cores, for it builds twice.
Where the archive of the nodes does not have the tarball it ends with 75, which counts as not run.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from e2e_fleet import Fleet

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = "source"
HOSTS = ("controller-1", "compute-1")
VERSION, OTHER = "24.11.5", "24.11.5-plain"
SHA256 = "e1a5547edd212c38b5e3230a284133f777b32746551f094aaa81cc4af375e332"
# apt on the nodes knows the tarball's address.
ASK = r"""
sed -n 's/^deb /deb-src /p' /etc/apt/sources.list | head -n 1 >/tmp/source.list
set -- -o Dir::Etc::sourcelist=/tmp/source.list -o Dir::Etc::sourceparts=/dev/null
apt-get -qq "$@" update && apt-get "$@" source --print-uris slurm-wlm | sed -n "s/^'\(.*[.]orig[.]tar[.][a-z0-9]*\)' .*/\1/p"
apt-get -qq update
"""


class Cluster(Fleet):
    """The fleet of this proof; `vars` are in every run of a playbook."""

    vars: dict

    def play(self, playbook: str, *extra: str, **variables: object) -> subprocess.CompletedProcess:
        return self.run(f"playbooks/{playbook}.yml", "-e", json.dumps({**self.vars, **variables}), *extra, timeout=1800)

    def succeed(self, playbook: str, **variables: object) -> str:
        done = self.play(playbook, **variables)
        assert done.returncode == 0, done.stdout[-5000:]
        return done.stdout

    def refused(self, **variables: object) -> str:
        """The last sentence with which the install phase refuses; a failed fetch prints another one before it."""
        done = self.play("stack", muster_phases=["install"], **variables)
        assert done.returncode != 0, done.stdout[-3000:]
        said = re.findall(r"^\[ERROR\]: Task failed: (?:\w+ failed: )?(.*)$", done.stdout, re.MULTILINE)
        assert said, done.stdout[-3000:]
        return said[-1]

    def statuses(self) -> dict[tuple[str, str], tuple[str, str]]:
        return {(check["host"], check["check"]): (check["status"], check["found"]) for check in self.events("check")}


@pytest.fixture(scope="module")
def cluster(artifacts) -> Cluster:
    """A controller and a compute node without Slurm, with a cache of archives of their own."""
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    inventory.mkdir()
    options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "compute": 1, "cpus": 2, "memory": "4096"}
    (inventory / "local_fleet.yml").write_text(json.dumps(options))
    (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
    made = Cluster(folder, NAME, inventory)
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    made.vars = {}
    made.succeed("local_up")
    url = made.ansible("controller-1", "sh", "-c", ASK, check=False).splitlines()[-1:]
    if not url or not url[0].endswith(f"_{VERSION}.orig.tar.gz"):
        made.run("playbooks/local_down.yml")
        pytest.exit(f"The archive of these nodes has no tarball of Slurm {VERSION}, so nothing is proven: {url}", returncode=75)
    made.vars = {
        "muster_components": ["common", "slurm"],
        "slurm_rest": {"listen": "unix:/run/slurmrestd/slurmrestd.socket"},
        "slurm_pam_adopt": {"admins": []},
        "muster_cache_dir": str(folder / "cache"),
        "slurm_install_method": "source",
        "slurm_sources": [{"version": VERSION, "url": url[0], "sha256": SHA256}],
    }
    return made


@pytest.fixture(scope="module")
def built(cluster: Cluster) -> str:
    return cluster.succeed("provision")


def test_another_tarball_is_refused(cluster: Cluster) -> None:
    other = [{**cluster.vars["slurm_sources"][0], "sha256": "0" * 64}]
    said = cluster.refused(slurm_sources=other)
    assert f"has the sha256 {SHA256} and the stack says {'0' * 64}; the file was removed." in said
    for host in HOSTS:
        assert cluster.ansible(host, "sh", "-c", "ls -A /opt /var/tmp/muster-build/slurm 2>/dev/null | grep -v :", check=False) == ""
    assert [path.name for path in (cluster.folder / "cache/downloads").iterdir() if path.suffix != ".lock"] == []


def test_a_version_without_a_tarball_is_refused(cluster: Cluster) -> None:
    assert cluster.refused(slurm_version="25.05.1") == "slurm_version 25.05.1 is not in slurm_sources, which has 24.11.5."


def test_it_is_built_once_and_proven(cluster: Cluster, built: str) -> None:
    [step] = re.findall(
        r"^TASK \[muster\.fleet\.phases : source_build_make \| Spend minutes on the build of slurm.*?(?=^TASK)",
        built,
        re.MULTILINE | re.DOTALL,
    )
    assert len(re.findall(r"^changed: ", step, re.MULTILINE)) == 1
    statuses = cluster.statuses()
    for host in HOSTS:
        assert statuses[host, "active_version"] == ("passed", VERSION)
        assert statuses[host, "versions_whole"][0] == statuses[host, "libraries_found"][0] == "passed"
    assert statuses["controller-1", "pmix_ranks"][0] == "passed"
    assert statuses["controller-1", "rest_token"] == ("passed", "200 with a token, 401 without")
    assert statuses["compute-1", "ssh_needs_job"][0] == "passed"


def test_nothing_is_of_the_packages(cluster: Cluster, built: str) -> None:
    for host in HOSTS:
        assert cluster.ansible(host, "sh", "-c", "dpkg-query -W 'slurm*' 'sackd*' 2>/dev/null | grep '[0-9]'", check=False) == ""
        assert cluster.ansible(host, "id", "-u", "slurm") == "64030"


def test_a_job_runs_from_opt_slurm(cluster: Cluster, built: str) -> None:
    what = "srun --immediate=60 --mem=64 sh -c 'readlink -f $(command -v srun); sed s/:.*// /proc/$PPID/cmdline'; srun --mem=64 --mpi=list"
    said = cluster.ansible("controller-1", "sh", "-c", f"cd /fsx/home/muster; {what} 2>&1", user="muster")
    assert f"/opt/slurm/{VERSION}/bin/srun" in said
    assert "pmix" in said
    running = cluster.ansible("compute-1", "sh", "-c", "readlink /proc/$(pgrep -x slurmd)/exe")
    assert running == f"/opt/slurm/{VERSION}/sbin/slurmd"


def test_the_rest_daemon_is_that_of_the_build(cluster: Cluster, built: str) -> None:
    running = cluster.ansible("controller-1", "sh", "-c", "readlink /proc/$(systemctl show -P MainPID slurmrestd)/exe")
    assert running == f"/opt/slurm/{VERSION}/sbin/slurmrestd"
    assert "data_parser" in cluster.ansible("controller-1", "sh", "-c", "/usr/local/sbin/slurmrestd -d list 2>&1", user="muster")


def test_second_converge_changes_nothing(cluster: Cluster, built: str) -> None:
    assert set(re.findall(r"changed=(\d+)", cluster.succeed("provision"))) == {"0"}


def test_a_second_build_beside_it_becomes_active(cluster: Cluster, built: str) -> None:
    """The job that runs meanwhile does not notice."""
    first = cluster.vars["slurm_sources"][0]
    cluster.vars["slurm_sources"] = [first, {**first, "version": OTHER, "configure": ["--disable-x11"]}]
    cluster.vars["slurm_version"] = VERSION
    cluster.succeed("stack", muster_phases=["install"])
    sentence = "Slurm 24.11.5 is active and slurm"
    assert sentence in cluster.refused(slurm_version=OTHER)
    script = "while :; do date +%s >>ticks; sleep 1; done"
    job = cluster.ansible("controller-1", "sbatch", "--parsable", "--mem=64", "--time=60", f"--wrap=srun sh -c '{script}'", user="muster")
    cluster.vars["slurm_version"] = OTHER
    cluster.succeed("slurm_upgrade")
    assert cluster.ansible("controller-1", "squeue", "--noheader", f"--jobs={job}", "--format=%T") == "RUNNING"
    assert time.time() - int(cluster.ansible("controller-1", "tail", "-n1", "/fsx/home/muster/ticks")) < 10
    for host, daemons in (("controller-1", ("slurmdbd", "slurmctld")), ("compute-1", ("slurmd",))):
        for daemon in daemons:
            # slurmctld has a helper process of the same name.
            seen = cluster.ansible(host, "sh", "-c", f"for pid in $(pgrep -x {daemon}); do readlink /proc/$pid/exe; done | sort -u")
            assert seen == f"/opt/slurm/{OTHER}/sbin/{daemon}"
    cluster.ansible("controller-1", "scancel", job)


def test_every_version_must_be_whole(cluster: Cluster, built: str) -> None:
    cluster.ansible("compute-1", "sh", "-c", f"echo >>/opt/slurm/{VERSION}/bin/sinfo")
    done = cluster.play("validate")
    assert done.returncode != 0
    statuses = cluster.statuses()
    assert statuses["compute-1", "active_version"] == ("passed", OTHER)
    assert statuses["compute-1", "versions_whole"][0] == "failed"
    assert "./bin/sinfo: FAILED" in statuses["compute-1", "versions_whole"][1]
    assert statuses["controller-1", "versions_whole"][0] == "passed"
    # The remedy.
    cluster.ansible("compute-1", "rm", "-r", f"/opt/slurm/{VERSION}")
    cluster.succeed("provision")
