# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm's day 2 on the test fleet: a job runs during each step and must survive it."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from e2e_fleet import INVENTORY, ROOT, Fleet

from ansible_collections.muster.fleet.plugins.module_utils.slurm import backup as slurm_backup

pytestmark = pytest.mark.engine

# Only Slurm, because these steps concern no other component.
SLURM = {"muster_components": ["slurm"]}
CONFIGURE = {**SLURM, "muster_phases": ["configure"]}
LONGEST = "3-00:00:00"
PARTITIONS = {"slurm_partitions": [{"name": "main", "nodegroups": ["compute"], "params": {"Default": "YES", "OverSubscribe": "FORCE:2"}}]}
CHANGED = {
    "slurm_partitions": [
        {"name": "main", "nodegroups": ["compute"], "params": {"Default": "YES", "OverSubscribe": "FORCE:2", "MaxTime": LONGEST}}
    ]
}
CONF = "/etc/slurm/slurm.conf"
LOG = "/var/log/slurm/slurmctld.log"
JWT = "/var/lib/slurm/slurmctld/muster-test.key"
UNITS = {
    "controller-1": ("munge", "mariadb", "slurmdbd", "slurmctld"),
    "compute-1": ("munge", "slurmd"),
    "compute-2": ("munge", "slurmd"),
    "login-1": ("munge", "sackd"),
}


def slurm(fleet: Fleet, *argv: str, user: str = "root") -> str:
    return fleet.ansible("controller-1", *argv, user=user)


def job(fleet: Fleet, number: str, field: str) -> str:
    return re.search(rf"\b{field}=(\S+)", slurm(fleet, "scontrol", "-o", "show", "job", number))[1]


def nodes(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """Node to (state, reason)."""
    rows = [line.split("|", 2) for line in slurm(fleet, "sinfo", "--noheader", "--Node", "--format=%N|%T|%E").splitlines()]
    return {name: (state.rstrip("*"), reason) for name, state, reason in rows}


def units(fleet: Fleet, host: str) -> dict[str, str]:
    """Unit to a value that changes when the unit restarts. A reconfigured slurmctld hands over to a new process of the same unit."""
    said = fleet.ansible(host, "systemctl", "show", "--property=InvocationID,NRestarts", *UNITS[host]).split("\n\n")
    return dict(zip(UNITS[host], said, strict=True))


def all_units(fleet: Fleet) -> dict[tuple[str, str], str]:
    return {(host, unit): since for host in UNITS for unit, since in units(fleet, host).items()}


def extra(*variables: dict) -> tuple[str, str]:
    return "-e", json.dumps({key: value for each in variables for key, value in each.items()})


def failed(ended: subprocess.CompletedProcess) -> str:
    """The sentence of the summary that refused the playbook."""
    assert ended.returncode != 0, ended.stdout[-3000:]
    [said] = re.findall(r"^FAILED (.*)$", ended.stdout, re.MULTILINE)
    return said


def succeeded(ended: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended


@pytest.fixture
def submit(fleet: Fleet) -> Iterator[Callable[..., str]]:
    """Submit a job of the user muster and wait until it runs, unless it is held; the end cancels jobs that are left."""
    made = []

    def run(script: str, *options: str) -> str:
        argv = ("sbatch", "--parsable", "--output=/dev/null", "--mem=64", *options, f"--wrap={script}")
        made.append(slurm(fleet, *argv, user="muster"))
        if "--hold" not in options:
            fleet.wait_for(f"job {made[-1]} to run", lambda: job(fleet, made[-1], "JobState") == "RUNNING")
        return made[-1]

    yield run
    fleet.ansible("controller-1", "scancel", *made, check=False)


@pytest.fixture(autouse=True)
def whole(fleet: Fleet) -> Iterator[None]:
    """Each test leaves an idle fleet."""
    yield
    idle = {"compute-1": ("idle", "none"), "compute-2": ("idle", "none")}
    fleet.wait_for("idle nodes", lambda: nodes(fleet) == idle, 60)


def test_a_change_touches_only_what_it_must_and_can_be_reverted(fleet: Fleet, submit) -> None:
    number = submit("srun sleep 900", "--nodelist=compute-1")
    started = job(fleet, number, "StartTime")
    before, conf, running = all_units(fleet), slurm(fleet, "cat", CONF), slurm(fleet, "scontrol", "show", "partition")
    succeeded(fleet.run("playbooks/stack.yml", *extra(CONFIGURE, CHANGED, {"slurm_dbd_config": {"DebugLevel": "verbose"}})))
    assert f"MaxTime={LONGEST}" in slurm(fleet, "scontrol", "show", "partition")
    after = all_units(fleet)
    assert {unit for unit in before if after[unit] != before[unit]} == {("controller-1", "slurmdbd")}
    fleet.wait_for("the nodes' copies", lambda: LONGEST in fleet.ansible("compute-2", "cat", "/var/lib/slurm/slurmd/conf-cache/slurm.conf"))
    assert (job(fleet, number, "JobState"), job(fleet, number, "StartTime")) == ("RUNNING", started)

    succeeded(fleet.run("playbooks/stack.yml", *extra(CONFIGURE)))
    assert slurm(fleet, "cat", CONF) == conf
    assert slurm(fleet, "scontrol", "show", "partition") == running
    assert (job(fleet, number, "JobState"), job(fleet, number, "StartTime")) == ("RUNNING", started)


def test_check_and_diff_show_a_pending_change_and_change_nothing(fleet: Fleet, submit) -> None:
    number = submit("srun sleep 900", "--nodelist=compute-1")
    before, conf = all_units(fleet), slurm(fleet, "cat", CONF)
    shown = succeeded(fleet.run("site.yml", "--check", "--diff", *extra(CHANGED)))
    assert re.search(rf"^\+PartitionName=main .*MaxTime={LONGEST}$", shown.stdout, re.MULTILINE)
    recap = dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", shown.stdout, re.MULTILINE))
    assert {host for host, count in recap.items() if count != "0"} == {"controller-1"}
    assert slurm(fleet, "cat", CONF) == conf
    assert all_units(fleet) == before
    assert job(fleet, number, "JobState") == "RUNNING"


def test_a_backup_holds_all_but_the_key_and_another_fleet_refuses_it(fleet: Fleet, submit, tmp_path: Path) -> None:
    running, held = submit("srun sleep 900", "--nodelist=compute-1"), submit("true", "--hold")
    started = job(fleet, running, "StartTime")
    made = succeeded(fleet.run("playbooks/slurm_backup.yml"))
    assert re.search(r"slurmctld paused for \d\.\d+ s", made.stdout.replace("\n", " "))
    assert (job(fleet, running, "JobState"), job(fleet, running, "StartTime")) == ("RUNNING", started)
    folder = fleet.folder / "backups" / fleet.name
    [archive] = sorted(folder.iterdir())[-1:]
    assert (folder.stat().st_mode & 0o777, archive.stat().st_mode & 0o777) == (0o700, 0o600)
    assert slurm(fleet, "find", "/var/tmp", "-name", "muster-*") == ""

    key = (fleet.state_dir / "secrets" / "munge.key").read_text().strip().encode()
    manifest = slurm_backup.read(str(archive), str(tmp_path))
    assert manifest["munge_key"] == str(fleet.state_dir / "secrets" / "munge.key")
    parts = {name: gzip.decompress((tmp_path / name).read_bytes()) for name in slurm_backup.PARTS}
    assert [name for name, content in parts.items() if key in content] == []
    with tarfile.open(tmp_path / slurm_backup.STATE) as state, tarfile.open(tmp_path / slurm_backup.CONFIG) as config:
        assert {"job_state", f"hash.{held[-1]}/job.{held}/script"} <= set(state.getnames())
        assert {"slurm.conf", "slurmdbd.conf"} <= set(config.getnames())

    def restore(change: Callable[[str, bytes], bytes | None] = lambda name, content: content, **options: object) -> str:
        with tarfile.open(archive) as whole, tarfile.open(folder / "changed.tar", "w") as other:
            for member in whole:
                content = change(member.name, whole.extractfile(member).read())
                if content is not None:
                    member.size = len(content)
                    other.addfile(member, io.BytesIO(content))
        variables = {**SLURM, "muster_restore": str(folder / "changed.tar"), **options}
        return failed(fleet.run("playbooks/slurm_restore.yml", *extra(variables)))

    def newer(name: str, content: bytes) -> bytes:
        return content.replace(b'"slurm": "2', b'"slurm": "9') if name == "manifest.json" else content

    slurm(fleet, "scancel", held)
    slurm(fleet, "srun", "-n1", "true", user="muster")
    before, queue = all_units(fleet), slurm(fleet, "squeue", "--noheader", "--format=%i %T")
    assert "changed.tar is damaged (the sha256 of state.tar.gz" in restore(lambda name, text: text[:-1] if name == "state.tar.gz" else text)
    assert "is not whole, database.sql.gz is missing" in restore(lambda name, text: None if name.startswith("database") else text)
    assert re.search(r"made by Slurm 9\d\.\d+\.\d+ and 2\d\.\S+ is installed", restore(newer))
    fleet.wait_for("the row of the job", lambda: "holds jobs up to" in restore(), 30)
    assert "No backup is named" in restore(muster_restore="")
    assert (all_units(fleet), slurm(fleet, "squeue", "--noheader", "--format=%i %T")) == (before, queue)
    (folder / "changed.tar").unlink()


def test_a_rolling_change_stops_at_the_first_failure_and_a_second_run_continues(fleet: Fleet, submit, tmp_path: Path) -> None:
    tasks = tmp_path / "before.yml"
    tasks.write_text(
        yaml.safe_dump([{"ansible.builtin.fail": {"msg": "a bad disk"}, "name": "Break", "when": "inventory_hostname == 'compute-1'"}])
    )
    hook = {"muster_hooks": {"slurm": {"before_configure": str(tasks)}}}
    slurm(fleet, "scontrol", "update", "nodename=compute-2", "state=drain", "reason=ticket 4711")
    try:
        number = submit("srun sleep 12", "--nodelist=compute-1")
        said = failed(fleet.run("playbooks/slurm_rolling.yml", *extra(SLURM, hook)))
        assert "compute-1 stays drained, the nodes after it are as they were: a bad disk" in said
        assert job(fleet, number, "JobState") == "COMPLETED"
        assert nodes(fleet) == {"compute-1": ("drained", "muster:rolling: failed: a bad disk"), "compute-2": ("drained", "ticket 4711")}
        assert [event for event in fleet.events("task") if event["role"] == "slurm" and event["hosts"] > 1] == []
        succeeded(fleet.run("playbooks/slurm_rolling.yml", *extra(SLURM, {"muster_rolling": {"batch": "100%"}})))
        assert nodes(fleet) == {"compute-1": ("idle", "none"), "compute-2": ("drained", "ticket 4711")}
        # Every converge does the same.
        succeeded(fleet.run("playbooks/stack.yml", *extra(CONFIGURE)))
        assert nodes(fleet)["compute-2"] == ("drained", "ticket 4711")
    finally:
        slurm(fleet, "scontrol", "update", "nodename=compute-2", "state=resume")


def test_an_interrupted_key_rotation_is_finished_by_a_second_run(fleet: Fleet, submit) -> None:
    original = fleet.state_dir / "secrets" / "munge.key"
    old = original.read_text()
    long, short = submit("srun sleep 900", "--nodelist=compute-1"), submit("srun sleep 15", "--nodelist=compute-2")
    started = job(fleet, long, "StartTime")
    run = fleet.begin("playbooks/slurm_rotate_key.yml", *extra(SLURM))
    fleet.wait_for("the keys to change", lambda: "TASK [Restart munge with the new key]" in run.log.read_text(), 90)
    fleet.cut(run)
    assert "PLAY RECAP" not in run.log.read_text()
    succeeded(fleet.run("playbooks/slurm_rotate_key.yml", *extra(SLURM)))
    new = original.read_text()
    assert new != old
    assert sorted(path.name for path in original.parent.iterdir()) == ["munge.key"]
    for host in UNITS:
        assert fleet.ansible(host, "sh", "-c", "ls /etc/munge; cat /etc/munge/munge.key").split() == ["munge.key", new.strip()]
    assert (job(fleet, long, "JobState"), job(fleet, long, "StartTime")) == ("RUNNING", started)
    fleet.wait_for("the end of the other job", lambda: job(fleet, short, "JobState") == "COMPLETED", 60)
    assert job(fleet, short, "Restarts") == "0"
    before = all_units(fleet)
    succeeded(fleet.run("playbooks/stack.yml", *extra(CONFIGURE)))
    assert all_units(fleet) == before


def test_a_node_leaves_after_its_jobs_and_comes_back_alone(fleet: Fleet, submit, tmp_path: Path) -> None:
    argv = [str(ROOT / ".venv/bin/ansible-inventory"), "-i", str(INVENTORY), "-e", f"muster_fleet={fleet.name}", "--list"]
    listed = json.loads(subprocess.run(argv, cwd=ROOT, env=fleet.env, capture_output=True, text=True, check=True).stdout)
    variables = listed["_meta"]["hostvars"]

    def inventory(*hosts: str) -> tuple[str, str]:
        """An ordinary inventory with these nodes, which does not say that they are containers."""
        path = tmp_path / "hosts.yml"
        own = {host: {**known, "muster_local": {"release": "trixie"}} for host, known in variables.items()}  # their stack depends on it
        groups = {
            group: {"hosts": {host: own[host] for host in members}}
            for group in ("muster_controller", "muster_compute", "muster_login")
            if (members := [host for host in listed[group]["hosts"] if host in hosts])
        }
        path.write_text(yaml.safe_dump({"all": {"children": groups}}))
        return "-i", str(path)

    def run(*words: str) -> subprocess.CompletedProcess:
        log = fleet.folder / f"output-{time.strftime('%H%M%S')}-inventory.txt"
        command = [".venv/bin/ansible-playbook", "playbooks/provision.yml", "-e", f"muster_fleet={fleet.name}", *words]
        with log.open("w") as output:
            code = subprocess.run(
                command, cwd=ROOT, env=fleet.env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        return subprocess.CompletedProcess(command, code.returncode, log.read_text())

    stays, leaves = submit("srun sleep 900", "--nodelist=compute-1"), submit("srun sleep 12", "--nodelist=compute-2")
    untouched = {host: units(fleet, host) for host in ("compute-1", "login-1")}
    gone = succeeded(run(*inventory("controller-1", "compute-1", "login-1"), "--limit", "controller-1,localhost", *extra(SLURM)))
    assert set(re.findall(r"^(\S+) +: ok=", gone.stdout, re.MULTILINE)) == {"localhost", "controller-1"}
    assert list(nodes(fleet)) == ["compute-1"]
    assert job(fleet, leaves, "JobState") == "COMPLETED"

    back = succeeded(run(*inventory(*UNITS), "--limit", "controller-1,compute-2,localhost", *extra(SLURM)))
    assert set(re.findall(r"^(\S+) +: ok=", back.stdout, re.MULTILINE)) == {"localhost", "controller-1", "compute-2"}
    assert {name: state in ("idle", "mixed", "allocated") for name, (state, _reason) in nodes(fleet).items()} == {
        "compute-1": True,
        "compute-2": True,
    }
    assert {host: units(fleet, host) for host in untouched} == untouched
    assert job(fleet, stays, "JobState") == "RUNNING"
    assert slurm(fleet, "srun", "--quiet", "--nodelist=compute-2", "hostname", user="muster") == "compute-2"


def test_a_bundle_of_a_failing_fleet_has_no_secrets(fleet: Fleet) -> None:
    password = "verySecretPassword"
    fleet.kill("login-1")
    slurm(fleet, "sh", "-c", f"echo StoragePass={password} > /etc/slurm/muster-test.conf; cat /etc/munge/munge.key >> {LOG}")
    slurm(fleet, "sh", "-c", f"head -c 32 /dev/urandom | base64 > {JWT}; systemctl stop slurmctld; (echo; cat {JWT}) >> {LOG}")
    jwt = slurm(fleet, "cat", JWT)
    try:
        made = succeeded(fleet.run("playbooks/bundle.yml"))
    finally:
        slurm(fleet, "sh", "-c", f"rm /etc/slurm/muster-test.conf {JWT}; systemctl start slurmctld")
        fleet.start("login-1")
    path = Path(re.search(r"Bundle (\S+?),?\s", made.stdout)[1])  # Ansible breaks the line at a long path
    assert re.search(r"without\s+login-1", made.stdout)
    assert (path.parent, path.stat().st_mode & 0o777) == (fleet.runs, 0o600)
    with tarfile.open(path) as tar:
        found = {member.name.partition("/")[2]: tar.extractfile(member).read() for member in tar}
    key = (fleet.state_dir / "secrets" / "munge.key").read_text().strip()
    for secret in (password, key, jwt):
        assert [name for name, content in found.items() if secret.encode() in content] == []
    assert b"StoragePass=[secret]" in found["controller-1/files/etc/slurm/muster-test.conf"]
    assert found["controller-1/files/var/log/slurm/slurmctld.log"].rstrip().endswith(b"[secret]")
    document = json.loads(found["bundle.json"])
    assert {host: said for host, said in document["nodes"].items() if host != "login-1"} == dict.fromkeys(list(UNITS)[:3], "collected")
    assert "login-1" in document["nodes"] and document["nodes"]["login-1"] != "collected"
    wanted = {
        "controller-1": ["commands/scontrol-config.txt", "commands/sdiag.txt", "commands/journal-slurmdbd.txt", f"files{CONF}"],
        "compute-1": ["commands/journal-slurmd.txt", "commands/packages.txt", "files/etc/muster/manifest.json"],
    }
    assert {f"{host}/{name}" for host, names in wanted.items() for name in names} | {"run/events.jsonl"} <= set(found)
