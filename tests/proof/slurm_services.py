# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Proof on a fleet of its own: two controllers, a database elsewhere behind TLS, slurmrestd.

Run by `make proofs`, or `pytest --engine tests/proof/slurm_services.py`; about eight minutes on two cores.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME = "ha"
CONTROLLERS = ("controller-1", "controller-2")
STATE = "/fsx/slurm/state"
PASSWORD = "Zq8NotToBeSeenAnywhere"
ONLY_SLURM = '{"muster_components": ["common", "slurm"]}'
# slurmctld writes its state up to five seconds late; a kill loses what happened since.
STATE_SAVED_S = 6
# Start nothing during the install of MariaDB's package: its certificates do not exist yet.
DATABASE = f"""set -e
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends mariadb-server >/dev/null 2>&1
rm /usr/sbin/policy-rc.d
chown mysql /fsx/tls/server.key
printf '[mysqld]\\nbind-address = 0.0.0.0\\nssl_ca = /fsx/tls/ca.pem\\nssl_cert = /fsx/tls/server.pem\\nssl_key = /fsx/tls/server.key\\n' \\
  > /etc/mysql/mariadb.conf.d/99-test.cnf
systemctl enable --now mariadb 2>/dev/null
mariadb --execute "CREATE DATABASE slurm_acct_db; CREATE USER slurm@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE SSL;
  GRANT ALL ON slurm_acct_db.* TO slurm@'%'"
"""


def certificates(folder: Path) -> None:
    """A CA with a server certificate, and a second CA that signed nothing."""
    folder.mkdir(parents=True)

    def openssl(*argv: str) -> None:
        subprocess.run(["openssl", *argv], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "rsa:2048", "-nodes"]
    for name in ("ca", "other-ca"):
        openssl("req", "-x509", *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "30", "-subj", f"/CN=muster-test-{name}")
    openssl("req", *new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=compute-1", "-addext", "subjectAltName=DNS:compute-1")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", "-days", "30"]
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")


def inventory(folder: Path, tls: Path) -> Path:
    """The embedded fleet with a second controller and the configuration of this proof."""
    (folder / "group_vars").mkdir(parents=True)
    options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "controllers": 2, "compute": 1, "cpus": 1, "memory": "2048"}
    (folder / "local_fleet.yml").write_text(yaml.safe_dump(options))
    local = ROOT / "inventory" / "local" / "group_vars"
    (folder / "group_vars" / "muster_compute.yml").write_text((local / "muster_compute.yml").read_text())
    site = yaml.safe_load((local / "all.yml").read_text())
    site["slurm_config"] |= {"StateSaveLocation": STATE, "AccountingStorageBackupHost": "controller-2", "DefMemPerCPU": 600}
    site["slurm_database"] = {"host": "compute-1", "ca": str(tls / "ca.pem")}
    site["slurm_rest"] = {"listen": "unix:/run/slurmrestd/slurmrestd.socket"}
    (folder / "group_vars" / "all.yml").write_text(yaml.safe_dump(site))
    return folder


@pytest.fixture(scope="module")
def fleet(artifacts) -> Iterator[Fleet]:
    """The fleet after its first run, with the database on its one compute node."""
    folder = artifacts.folder(NAME)
    made = Fleet(folder, NAME, inventory(folder / "inventory", folder / "tls"))
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    made.run("playbooks/local_up.yml").check_returncode()
    certificates(folder / "tls")
    subprocess.run(["cp", "-r", str(folder / "tls"), str(made.state_dir / "fsx")], check=True)
    made.ansible("compute-1", "sh", "-c", DATABASE, timeout=300)
    (made.state_dir / "secrets").mkdir(mode=0o700, exist_ok=True)
    (made.state_dir / "secrets" / "slurm_database_password").write_text(PASSWORD)
    made.first = made.run("playbooks/provision.yml", "-e", ONLY_SLURM)
    yield made
    made.end()


def configure(fleet: Fleet, *words: str, **variables: object) -> subprocess.CompletedProcess:
    """The configure phase on the controllers."""
    only = {"muster_components": ["slurm"], "muster_phases": ["configure"], **variables}
    return fleet.run("playbooks/stack.yml", "--limit=localhost,controller-1,controller-2", *words, "-e", json.dumps(only))


def job(fleet: Fleet, host: str, number: str, field: str) -> str:
    return re.search(rf"\b{field}=(\S+)", fleet.ansible(host, "scontrol", "-o", "show", "job", number))[1]


def submit(fleet: Fleet, host: str, script: str, *options: str) -> str:
    argv = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--nodelist=compute-1", *options, f"--wrap={script}")
    return fleet.ansible(host, *argv, user="muster")


def accounted(fleet: Fleet, host: str, number: str) -> str:
    return fleet.ansible(host, "sacct", "-nPXj", number, "-o", "state", check=False)


def test_the_fleet_is_proven(fleet: Fleet) -> None:
    assert fleet.first.returncode == 0, fleet.first.stdout[-3000:]
    found = {check["check"]: check["found"] for check in fleet.events("check") if check["status"] == "passed"}
    assert found["controllers_up"] == "2"
    assert found["rest_token"] == "200 with a token, 401 without"
    assert found["slurmdbd_conf"] == "mode 0600, owner slurm"


def test_a_second_converge_changes_nothing(fleet: Fleet) -> None:
    done = fleet.run("playbooks/stack.yml", "-e", ONLY_SLURM, "-e", '{"muster_phases": ["install", "configure"]}', "--diff")
    assert done.returncode == 0, done.stdout[-3000:]
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}


def test_the_database_is_elsewhere_and_its_password_nowhere(fleet: Fleet) -> None:
    for host in CONTROLLERS:
        assert fleet.ansible(host, "sh", "-c", "command -v mariadbd || echo none") == "none"
        listed = fleet.ansible(host, "sh", "-c", f"ps -eo args; grep -rls {PASSWORD} /etc /var/log /run /tmp /root || true")
        assert [line for line in listed.splitlines() if PASSWORD in line and "grep" not in line] == []
        assert re.findall(r"^/.*", listed.split("COMMAND")[1], re.MULTILINE)[-1] == "/etc/slurm/slurmdbd.conf"
    asked = "SELECT DISTINCT host LIKE 'controller-%' OR host LIKE '10.%' FROM information_schema.processlist WHERE user = 'slurm'"
    assert fleet.ansible("compute-1", "mariadb", "-N", "-e", asked) == "1"
    dry = fleet.run("playbooks/stack.yml", "-e", ONLY_SLURM, "-e", '{"muster_phases": ["configure"]}', "--check", "--diff", "-vvv")
    kept = [path for path in fleet.folder.rglob("*") if path.is_file() and PASSWORD in path.read_text(errors="replace")]
    assert dry.returncode == 0, dry.stdout[-3000:]
    assert kept == [fleet.state_dir / "secrets" / "slurm_database_password"]


def test_a_server_of_another_ca_is_named(fleet: Fleet) -> None:
    """slurmdbd connects all the same, which is why verify looks."""
    other = json.dumps({"slurm_database": {"host": "compute-1", "ca": str(fleet.folder / "tls" / "other-ca.pem")}})
    phases = '{"muster_phases": ["configure", "verify_node"]}'
    only = ("-e", ONLY_SLURM, "-e", phases, "--limit", "localhost,controller-1")
    done = fleet.run("playbooks/stack.yml", *only, "-e", other)
    assert done.returncode != 0
    assert "slurm.database_certificate failed: openssl ended with code 1: " in done.stdout
    assert "certificate verify failed" in done.stdout
    fleet.run("playbooks/stack.yml", *only).check_returncode()


def test_slurmrestd_is_nobody_and_keeps_out_who_has_no_token(fleet: Fleet) -> None:
    owner = fleet.ansible("controller-1", "sh", "-c", "ps -o user= -p $(pidof slurmrestd)")
    assert owner not in ("root", "slurm", "")
    ask = "import sys; sys.path.insert(0, '/usr/lib/muster'); import slurm_rest_ping as p; print(p.ask(sys.argv[1], sys.argv[2], {}))"
    argv = ("python3", "-c", ask, "unix:/run/slurmrestd/slurmrestd.socket", "/slurm/v0.0.42/jobs")
    assert fleet.ansible("controller-1", *argv, user="muster") == "401"
    key = (fleet.state_dir / "secrets" / "jwt_hs256.key").read_text().strip()
    assert fleet.ansible("controller-2", "cat", "/etc/slurm/jwt_hs256.key") == key
    assert fleet.ansible("compute-1", "sh", "-c", "test -e /etc/slurm/jwt_hs256.key || echo none") == "none"


def test_the_backup_takes_over_and_gives_back(fleet: Fleet) -> None:
    running = submit(fleet, "controller-1", "sleep 45", "--exclusive", "--mem=0")
    queued = submit(fleet, "controller-1", "true", "--exclusive", "--mem=0")
    fleet.wait_for("the job to run", lambda: job(fleet, "controller-1", running, "JobState") == "RUNNING")
    started = job(fleet, "controller-1", running, "StartTime")
    time.sleep(STATE_SAVED_S)
    fleet.kill("controller-1")
    killed = time.monotonic()

    def standing_in() -> bool:
        said = fleet.ansible("controller-2", "scontrol", "ping", check=False)
        return bool(re.search(r"\(primary\) at controller-1 is DOWN", said) and re.search(r"\(backup\d*\) at controller-2 is UP", said))

    fleet.wait_for("the backup to stand alone", standing_in, 60)
    show = ("timeout", "20", "scontrol", "-o", "show", "job", running)
    fleet.wait_for("it to take over", lambda: "JobState=RUNNING" in fleet.ansible("controller-2", *show, check=False), 90)
    print(f"took over after {time.monotonic() - killed:.0f} s")
    assert job(fleet, "controller-2", running, "StartTime") == started
    fleet.wait_for("the running job to end", lambda: job(fleet, "controller-2", running, "JobState") == "COMPLETED", 90)
    fleet.wait_for("the queued job to end", lambda: job(fleet, "controller-2", queued, "JobState") == "COMPLETED", 90)
    assert job(fleet, "controller-2", running, "Restarts") == "0"
    fleet.wait_for("its row, by the second slurmdbd", lambda: accounted(fleet, "controller-2", queued) == "COMPLETED", 90)
    later = submit(fleet, "controller-2", "sleep 5")

    fleet.start("controller-1")
    log = ("tail", "-n20", "/var/log/slurm/slurmctld.log")
    fleet.wait_for(
        "the primary to take back", lambda: "Running as primary controller" in fleet.ansible("controller-1", *log, check=False), 60
    )
    ping = ("scontrol", "ping")
    fleet.wait_for("both to be up", lambda: fleet.ansible("controller-1", *ping, check=False).count(" is UP") == 2, 60)
    assert "JobState=" in fleet.ansible("controller-1", "scontrol", "-o", "show", "job", later)
    done = fleet.run("playbooks/stack.yml", "-e", ONLY_SLURM, "-e", '{"muster_phases": ["verify_fleet"]}')
    assert done.returncode == 0, done.stdout[-3000:]


def test_controllers_with_a_state_folder_each_are_refused(fleet: Fleet) -> None:
    before = {host: fleet.ansible(host, "pidof", "slurmctld") for host in CONTROLLERS}
    fleet.ansible("controller-2", "mount", "-t", "tmpfs", "none", STATE)
    try:
        done = configure(fleet)
    finally:
        fleet.ansible("controller-2", "umount", STATE)
    assert done.returncode != 0
    sentence = f"controller-2 does not see in {STATE} what controller-1 wrote there as user slurm; mount one shared folder there"
    assert sentence in done.stdout, shlex.join(done.args)
    assert {host: fleet.ansible(host, "pidof", "slurmctld") for host in before} == before


def test_a_database_on_another_host_would_begin_anew_and_is_refused(fleet: Fleet) -> None:
    look = ("sh", "-c", "find /etc -type f | sort | xargs sha256sum; pidof slurmctld slurmdbd slurmrestd munged")
    before = {host: fleet.ansible(host, *look) for host in CONTROLLERS}
    done = configure(fleet, slurm_database={"host": "db-2", "ca": str(fleet.folder / "tls" / "ca.pem")})
    assert done.returncode != 0
    said = (
        "slurmdbd has its database slurm_acct_db on compute-1 and would begin an empty slurm_acct_db on db-2, without accounts and history;"
    )
    assert said in done.stdout, done.stdout[-3000:]
    assert re.findall(r"^controller-\d +: .*changed=(\d+).*failed=(\d+)", done.stdout, re.MULTILINE) == [("0", "1")] * len(CONTROLLERS)
    assert {host: fleet.ansible(host, *look) for host in CONTROLLERS} == before


def test_a_backup_of_a_database_elsewhere(fleet: Fleet) -> None:
    done = fleet.run("playbooks/slurm_backup.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    [archive] = (fleet.folder / "backups" / NAME).iterdir()
    with tarfile.open(archive) as tar:
        dump = gzip.decompress(tar.extractfile("database.sql.gz").read())
    assert f"CREATE TABLE `{NAME}_job_table`".encode() in dump
    fleet.wait_for("both to be up", lambda: fleet.ansible("controller-1", "scontrol", "ping", check=False).count(" is UP") == 2, 60)


def test_slurmrestd_ends_when_the_inventory_no_longer_names_it(fleet: Fleet) -> None:
    done = configure(fleet, slurm_rest={})
    assert done.returncode == 0, done.stdout[-3000:]
    said = fleet.ansible(
        "controller-1", "sh", "-c", "systemctl show -P ActiveState -P UnitFileState slurmrestd; scontrol token", check=False
    )
    assert said.splitlines()[:2] == ["inactive", "disabled"]
    assert "SLURM_JWT=" not in said
    for host in CONTROLLERS:
        assert (
            fleet.ansible(
                host, "sh", "-c", "ls /etc/slurm/jwt_hs256.key /etc/systemd/system/slurmrestd.service.d/* 2>/dev/null || echo none"
            )
            == "none"
        )
    again = configure(fleet, slurm_rest={})
    assert set(re.findall(r"changed=(\d+)", again.stdout)) == {"0"}, again.stdout[-3000:]
