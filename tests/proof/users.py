# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: a fleet with Slurm takes its users from a directory (OpenLDAP with TLS on the login node), also while that is down.

Run by `make proofs`, or `pytest --engine tests/proof/users.py`; about seven minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typed import ROOT, typed

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet as Containers
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

pytestmark = pytest.mark.engine

NAME = "users"
NODES = ("controller-1", "compute-1", "compute-2", "login-1")
SCENARIO = "roles/users/molecule/default"
ADA = "20001:30000:/fsx/home/ada:/bin/bash"
# su needs a terminal, so a pseudo-terminal types the password.
LOGIN = "(sleep 2; echo {word}) | script --quiet --return --command 'su - {user} -c whoami' /dev/null"


class Fleet:
    """A fleet with a login node, its playbooks and its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inventory = folder / "inventory"
        self.inventory.mkdir()
        options = {
            "plugin": "muster.fleet.local_fleet",
            "fleet": NAME,
            "memory": "2048",
            "login": 1,
            "nodes": {"login-1": {"memory": "512m"}},
        }
        (self.inventory / "local_fleet.yml").write_text(json.dumps(options))
        (self.inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PWD": str(folder), "ANSIBLE_NOCOLOR": "1"}
        self.state = state_dir(NAME, self.env)

    def play(self, playbook: str, *extra: str, **variables: object) -> subprocess.CompletedProcess:
        directory = f"@{SCENARIO}/vars/directory.yml"
        options = ["-i", str(self.inventory), "-e", directory, "-e", json.dumps({"muster_fleet": NAME, **variables})]
        done = typed([".venv/bin/ansible-playbook", playbook, *options, *extra], self.env, timeout=900)
        with (self.folder / "output.txt").open("a") as output:
            output.write(done.stdout)
        return done

    def configure(self, *extra: str, **variables: object) -> subprocess.CompletedProcess:
        return self.play("playbooks/provision.yml", *extra, muster_components=["users"], **variables)

    def sh(self, node: str, script: str, user: str = "root") -> str:
        """The output of a script, which must succeed."""
        done = self.run(node, script, user)
        assert done.code == 0, done
        return done.stdout.strip()

    def run(self, node: str, script: str, user: str = "root"):
        argv = ["sh", "-ec", script] if user == "root" else ["runuser", "--login", user, "--command", script]
        return Containers(NAME, find_engine(), self.state, cache_dir(self.env)).run_in(node, argv)

    def everywhere(self, script: str) -> dict[str, str]:
        return {node: self.sh(node, script) for node in NODES}

    def failed(self) -> set[tuple[str, str]]:
        """(host, component.check) of the newest run's checks that did not pass, without those that containers cannot pass."""
        lines = ((self.folder / "runs" / NAME / "latest" / "events.jsonl").read_text()).splitlines()
        checks = [event for line in lines if (event := json.loads(line))["event"] == "check"]
        assert checks
        return {(check["host"], f"{check['component']}.{check['check']}") for check in checks if check["status"] == "failed"}


def sentences(done: subprocess.CompletedProcess) -> set[str]:
    """The sentences of the summary about failed hosts, without their names."""
    assert done.returncode != 0, done.stdout[-3000:]
    return {line.partition(": ")[2] for line in re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)}


@pytest.fixture(scope="module")
def bare(artifacts) -> Fleet:
    """The fleet with Slurm and the directory's server, before any node uses the directory."""
    made = Fleet(artifacts.folder(NAME))
    artifacts.leave(f"fleet {NAME}", lambda: made.play("playbooks/local_down.yml").check_returncode())
    # Leave out Slurm's own checks: these tests run jobs.
    for playbook in ("playbooks/local_up.yml", f"{SCENARIO}/prepare.yml", "playbooks/stack.yml"):
        done = made.play(playbook, muster_components=["common", "slurm"], muster_phases=["install", "configure"])
        assert done.returncode == 0, done.stdout[-3000:]
    return made


WRONG = {
    "nobody listens": ({"users_servers": ["ldaps://login-1:637"]}, r"ldaps://login-1:637 cannot be reached \(Connection refused\)\."),
    "another bind": ({"users_bind_dn": "cn=writer,dc=example,dc=org"}, r"refuses to be read as cn=writer,dc=example,dc=org \(wrong name"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_directory_that_cannot_be_used_changes_nothing(bare: Fleet, fault: str) -> None:
    variables, reason = WRONG[fault]
    done = bare.configure(**variables)
    said = sentences(done)
    assert [line for line in said if not re.search(f"nothing was written: directory server .*({reason})", line)] == []
    assert set(bare.everywhere("ls /etc/sssd/sssd.conf /etc/muster/directory-ca.pem 2>&1 | grep -c 'No such'").values()) == {"2"}
    assert set(bare.everywhere("systemctl is-active sssd || true").values()) == {"inactive"}


@pytest.fixture(scope="module")
def fleet(bare: Fleet) -> Fleet:
    """The fleet with its directory."""
    done = bare.configure()
    assert done.returncode == 0, done.stdout[-3000:]
    return bare


def test_one_user_everywhere(fleet: Fleet) -> None:
    assert fleet.everywhere("getent passwd ada | cut -d: -f3,4,6,7") == dict.fromkeys(NODES, ADA)
    assert fleet.everywhere("id -Gn ada") == dict.fromkeys(NODES, "staff-of-example physics")
    assert fleet.sh("compute-1", "stat -c '%U %a' /fsx/home/ada") == "ada 700"


def accounted(fleet: Fleet, job: str) -> str:
    row = f"sacct --noheader --parsable2 --allocations --jobs={job} --format=user,account,state,nnodes"
    return fleet.sh("controller-1", f"for n in $(seq 30); do {row} | grep COMPLETED && break; sleep 1; done")


def test_directory_user_runs_a_job_and_is_charged(fleet: Fleet) -> None:
    told = fleet.sh("login-1", "srun --nodes=2 --mem=64 --time=1 sh -c 'id -u; pwd'", "ada")
    assert sorted(told.split()) == ["/fsx/home/ada", "/fsx/home/ada", "20001", "20001"]
    job = fleet.sh("login-1", "sbatch --parsable --wait --nodes=2 --mem=64 --time=1 --wrap='srun touch made-$SLURM_JOB_ID'", "ada")
    assert accounted(fleet, job) == "ada|muster|COMPLETED|2"
    assert fleet.sh("controller-1", f"stat -c %u /fsx/home/ada/made-{job}") == "20001"


def test_who_is_in_no_group_stays_outside(fleet: Fleet) -> None:
    """The node knows mallory, and the password is right."""
    assert fleet.sh("login-1", "id -u mallory") == "20003"
    assert fleet.run("login-1", LOGIN.format(user="mallory", word="mallory-password"), "muster").code != 0
    assert fleet.run("login-1", "su - mallory -c whoami").code != 0
    refused = fleet.run("login-1", "cd /tmp; srun --mem=64 true", "mallory")
    assert refused.code != 0
    assert "Invalid account" in refused.stderr + refused.stdout


def test_password_is_the_directorys(fleet: Fleet) -> None:
    assert fleet.sh("login-1", LOGIN.format(user="ada", word="ada-password"), "muster").split()[-1] == "ada"
    assert fleet.run("login-1", LOGIN.format(user="ada", word="other"), "muster").code != 0


def test_second_converge_changes_nothing(fleet: Fleet) -> None:
    done = fleet.configure()
    assert done.returncode == 0, done.stdout[-3000:]
    assert dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", done.stdout, re.MULTILINE)) == dict.fromkeys(("localhost", *NODES), "0")


def test_dry_run_says_what_would_be(fleet: Fleet) -> None:
    fleet.sh("controller-1", "rmdir /fsx/home/grace; sacctmgr --immediate --quiet delete user grace")
    configure = {"muster_components": ["users"], "muster_phases": ["configure"]}
    done = fleet.play("playbooks/stack.yml", "--check", "--diff", **configure)
    assert "+home /fsx/home/grace" in done.stdout
    assert "+user grace in account muster" in done.stdout
    fleet.sh("controller-1", "test ! -e /fsx/home/grace")
    assert fleet.play("playbooks/stack.yml", **configure).returncode == 0
    assert fleet.sh("controller-1", "stat -c %U /fsx/home/grace") == "grace"


def test_directory_down_is_named_and_its_users_go_on(fleet: Fleet) -> None:
    fleet.sh("login-1", "systemctl stop test-directory")
    try:
        done = fleet.play("playbooks/validate.yml", muster_components=["users"])
        assert done.returncode != 0
        assert fleet.failed() == {(node, "users.directory_answers") for node in NODES}
        said = "directory server ldaps://login-1 cannot be reached (Connection refused)"
        assert all(said in line and "Remedy: Start the named server" in line for line in sentences(done))
        assert fleet.everywhere("getent passwd ada | cut -d: -f3,4,6,7") == dict.fromkeys(NODES, ADA)
        job = fleet.sh("login-1", "sbatch --parsable --wait --nodes=2 --mem=64 --time=1 --wrap='srun id -u'", "ada")
        assert accounted(fleet, job) == "ada|muster|COMPLETED|2"
        assert fleet.sh("login-1", LOGIN.format(user="ada", word="ada-password"), "muster").split()[-1] == "ada"
        # Everything else must converge; what exists already is not tried again.
        done = fleet.play("playbooks/stack.yml", muster_components=["users"], muster_phases=["configure"])
        assert done.returncode == 0, done.stdout[-3000:]
    finally:
        fleet.sh("login-1", "systemctl start test-directory")


def test_new_member_has_no_account_until_the_next_converge(fleet: Fleet) -> None:
    change = "dn: cn=physics,ou=groups,dc=example,dc=org\nchangetype: modify\nadd: memberUid\nmemberUid: mallory\n"
    modify = f"printf %s {shlex.quote(change)} | slapmodify -f /etc/test-directory/slapd.conf"
    fleet.sh("login-1", f"systemctl stop test-directory; {modify}; systemctl start test-directory")
    # After a closed port SSSD waits a minute before it asks again, so tell it to ask now.
    ask = "sss_cache --everything; systemctl kill --kill-whom=main --signal=USR2 sssd; getent group physics | grep -q mallory"
    fleet.everywhere(f"timeout 60 sh -c 'until {ask}; do sleep 1; done'")
    done = fleet.play("playbooks/validate.yml", muster_components=["users"])
    assert fleet.failed() == {("controller-1", "users.members_accounted")}
    assert "mallory has no account muster" in done.stdout
    assert fleet.configure().returncode == 0
    assert fleet.sh("login-1", "srun --mem=64 --time=1 id -un", "mallory") == "mallory"


def test_number_that_somebody_has(fleet: Fleet) -> None:
    fleet.sh("compute-1", "useradd --non-unique --uid 20002 squatter")
    try:
        done = fleet.play("playbooks/validate.yml", muster_components=["users"])
        assert fleet.failed() == {("compute-1", "users.numbers_free")}
        assert "UID 20002 of grace is taken on this node by squatter" in done.stdout
    finally:
        fleet.sh("compute-1", "userdel squatter")


def test_listed_user_with_a_taken_number_changes_no_file(fleet: Fleet) -> None:
    """The node that has another user with that number refuses before the role writes its first file."""
    fleet.sh("compute-1", "useradd --uid 2345 squatter; touch /run/begin")
    listed = [{"name": "muster", "uid": 2000, "account": "muster"}, {"name": "linus", "uid": 2345, "account": "muster"}]
    try:
        done = fleet.play("playbooks/provision.yml", "--limit=compute-1,localhost", muster_components=["slurm"], slurm_users=listed)
        [said] = sentences(done)
        assert "UID 2345 of linus (slurm_users) is taken on this node by squatter; give linus another, or remove squatter." in said
        assert fleet.sh("compute-1", "find /etc /var/lib/slurm -newer /run/begin -type f ! -path '/var/lib/slurm/slurmd/*'") == ""
        assert fleet.run("compute-1", "getent passwd linus").code != 0
    finally:
        fleet.sh("compute-1", "userdel squatter")


def test_password_of_the_bind_is_nowhere_else(fleet: Fleet) -> None:
    secret = fleet.state / "secrets" / "users-bind-password"
    word = secret.read_text().split()[0]
    # The control: the search must find the password in sssd.conf. The test's own directory server has it too.
    places = "/etc /var/log /usr/lib/muster /fsx/muster"
    search = f"printf %s {word} >/run/needle; grep -rlF -f /run/needle {places} 2>/dev/null; rm /run/needle"
    found = fleet.everywhere(f"{{ {search}; }} | grep -v /etc/test-directory/ || true")
    assert found == dict.fromkeys(NODES, "/etc/sssd/sssd.conf")
    assert fleet.everywhere(f"journalctl --no-pager | grep -cF {word} || true") == dict.fromkeys(NODES, "0")
    argv = ["grep", "-rlF", word, str(fleet.folder / "runs"), str(fleet.folder / "output.txt"), str(secret)]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split() == [str(secret)]
