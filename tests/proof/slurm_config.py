# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm configuration on the running fleet: a bad one reaches no daemon, a good one takes effect, and the end restores the first."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e_fleet import ROOT, Fleet

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.slurm import conf, topology

pytestmark = pytest.mark.engine

CONTROLLER = "controller-1"
ON = "--limit=controller-1,compute-1,compute-2"
CONFIGURE = {"muster_phases": ["configure"], "muster_components": ["slurm"]}
LOCAL = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())
# One of everything that a site can configure in Slurm. TaskProlog prints what goes into the task's environment.
SITE = {
    "slurm_qos": [
        {"name": "urgent", "params": {"Priority": 100, "MaxTRESPerUser": {"cpu": 4}, "MaxWall": "2:00:00", "Flags": ["DenyOnLimit"]}}
    ],
    "slurm_accounts": [
        {"name": "muster"},
        {"name": "vision", "parent": "research", "params": {"QOS": ["normal", "urgent"]}},
        {"name": "research", "params": {"GrpTRES": {"cpu": 100}}},
    ],
    "slurm_users": [
        {"name": "muster", "uid": 2000, "account": "muster"},
        {"name": "ada", "uid": 2077, "account": "vision", "params": {"MaxJobs": 5}},
    ],
    "slurm_licenses": {"solver": 3},
    "slurm_reservations": [
        {"name": "service", "params": {"StartTime": "now+1day", "Duration": "1:00:00", "Nodes": "compute-1", "Users": ["ada"]}}
    ],
    "slurm_topology": {"switches": [{"name": "top", "switches": ["leaf"]}, {"name": "leaf", "nodegroups": ["compute"]}]},
    "slurm_job_container": {"AutoBasePath": True, "BasePath": "/var/tmp/jobs"},
    "slurm_nodegroups": [
        {"name": "compute", "hosts": ["compute-1", "compute-2"], "features": ["fast"], "params": {"Gres": "gpu:null:2"}},
    ],
    "slurm_gres": [{"nodegroups": ["compute"], "params": {"Name": "gpu", "Type": "null", "File": ["/dev/null", "/dev/zero"]}}],
    "slurm_pam_adopt": {"admins": ["sudo", "adm"]},
    "slurm_partitions": [
        {
            "name": "main",
            "nodegroups": ["compute"],
            "params": {"Default": "YES", "OverSubscribe": "FORCE:2", "AllowQos": ["normal", "urgent"]},
        }
    ],
}
SCRIPTS = {
    "Prolog": "touch /run/muster-test-prolog",
    "TaskProlog": "echo export SITE=here",
    "HealthCheckProgram": "touch /run/muster-test-health",
}


@pytest.fixture(scope="module")
def job(fleet: Fleet) -> Iterator[str]:
    """A job that runs during all tests of this file."""
    argv = ("sbatch", "--parsable", "--mem=64", "--output=/dev/null", "--nodelist=compute-2", "--wrap=sleep 900")
    number = fleet.ansible(CONTROLLER, *argv, user="muster")
    fleet.wait_for(f"job {number} to run", lambda: state(fleet, number) == "RUNNING 0")
    yield number
    fleet.ansible(CONTROLLER, "scancel", number)


def state(fleet: Fleet, number: str) -> str:
    shown = fleet.ansible(CONTROLLER, "scontrol", "-o", "show", "job", number)
    return " ".join(re.search(rf"\b{key}=(\S+)", shown)[1] for key in ("JobState", "Restarts"))


def live(fleet: Fleet) -> str:
    """What a refusal must not change: files, the daemon, its running configuration, and accounting."""
    look = (
        "find /etc/slurm /etc/sysusers.d -type f -exec sha256sum {} + | sort; systemctl show -P MainPID slurmctld;"
        "scontrol show config | grep -v -e '^Configuration data' -e ^BOOT -e ^NEXT_JOB; sacctmgr -nP show assoc; sacctmgr -nP show qos"
    )
    return fleet.ansible(CONTROLLER, "sh", "-c", look)


def configure(fleet: Fleet, *words: str, **variables: object):
    return fleet.run("playbooks/stack.yml", ON, *words, "-e", json.dumps({**CONFIGURE, **variables}))


def reasons(ended) -> list[str]:
    return re.findall(r"^\[ERROR\]: Task failed: Module failed: (.*)$", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("dry", [(), ("--check",)], ids=["for real", "check mode"])
def test_a_key_that_slurm_does_not_know_stops_before_anything_is_written(fleet: Fleet, job: str, dry: tuple) -> None:
    before = live(fleet)
    ended = configure(fleet, *dry, "--limit=controller-1", slurm_config={**LOCAL["slurm_config"], "SlurmdTimout": 30})
    [said] = reasons(ended)
    assert "The new slurm.conf was refused, nothing was written: Parsing error at unrecognized key: SlurmdTimout." in said
    assert "Correct it in the inventory" in said
    assert (live(fleet), state(fleet, job)) == (before, "RUNNING 0")


def test_several_topologies_need_a_newer_slurm(fleet: Fleet, job: str) -> None:
    before = live(fleet)
    ended = configure(fleet, "--limit=controller-1", slurm_topology={"topologies": [{"name": "fabric", **SITE["slurm_topology"]}]})
    sentence = r"slurm_topology\.topologies needs Slurm 25\.05 or newer and this controller has 2[24]\.\d+; give one topology for all"
    assert re.search(sentence, ended.stdout)
    assert (live(fleet), state(fleet, job)) == (before, "RUNNING 0")


@pytest.mark.parametrize(
    ("file", "edit", "says"),
    [
        ("slurm.conf", "", "slurmctld would start"),
        ("slurm.conf", "$aNodeName=only-in-dns-[1-9],only-in-dns RealMemory=1", "slurmctld would start"),
        ("slurm.conf", "s/^SlurmctldTimeout=.*/SlurmctldTimeout=soon/", 'SlurmctldTimeout value "soon" is not a valid number'),
        ("slurm.conf", "s/RealMemory=[0-9]*/RealMemory=-1/", "RealMemory value (-1) is less than zero"),
        ("slurm.conf", "s/CoresPerSocket/CoresPerSockt/", "Parsing error at unrecognized key: CoresPerSockt"),
        ("slurm.conf", "s/^SelectType=.*/SelectType=select\\/most/", "find plugin for select/most"),
        ("slurm.conf", "s/Nodes=compute /Nodes=gpus /", "Invalid node names in partition main"),
        ("slurm.conf", "$aLicenses=solver:x", "Invalid configured licenses: solver:x"),
        ("cgroup.conf", "s/ConstrainCores/ConstranCores/", "Parsing error at unrecognized key: ConstranCores"),
    ],
)
def test_a_configuration_that_slurmctld_would_not_start_with(fleet: Fleet, file: str, edit: str, says: str) -> None:
    """The trial by itself, on a copy of the live configuration; it does not use the fleet's munge, state or database."""
    script = (ROOT / "roles/slurm/files/would-slurmctld-start.sh").read_text()
    copy = f"rm -rf /run/muster-copy; cp -a /etc/slurm /run/muster-copy && sed -i '{edit}' /run/muster-copy/{file}"
    trial = 'sh -c "$0" trial /run/muster-copy /etc/slurm 2>&1; code=$?; rm -rf /run/muster-copy; exit $code'
    said = fleet.ansible(CONTROLLER, "sh", "-c", f"{copy}; {trial}", script, check=not edit)
    assert says in said
    assert len(said.splitlines()) == 1


def configuration_of(kinds: list[str]) -> tuple[str, str, str]:
    """(lines of slurm.conf, gres.conf, topology.conf) that role slurm writes for two nodes of each type."""
    groups = {
        f"muster_type_{re.sub(r'[^a-z0-9]', '_', kind)}": [f"{re.sub(r'[^a-z0-9]', '-', kind)}-{n}" for n in (1, 2)] for kind in kinds
    }
    hosts = [host for members in groups.values() for host in members]
    # Nodes that cannot be measured have the whole type's CPUs and memory.
    nodegroups = [{**group, "measured": False} for group in conf.compute_groups(hosts, groups)]
    made = conf.node_groups(nodegroups, {}, 0.95)
    lines = [f"NodeName={','.join(line['nodes'])} {line['keys']}" for group in made for line in group["lines"]]
    lines += [f"NodeSet={group['name']} Nodes={','.join(group['nodes'])}" for group in made]
    for partition in conf.compute_partitions(nodegroups):
        lines.append(f"PartitionName={partition['name']} Nodes={','.join(partition['nodegroups'])} {conf.on_a_line(partition['params'])}")
    gres = [f"NodeName={','.join(group['nodes'])} {conf.on_a_line(group['gres'])}" for group in made if group["gres"]]
    blocks = topology.network(nodegroups, groups)
    network = [f"BlockName={block['name']} Nodes={','.join(block['nodes'])}" for block in blocks.get("blocks", [])]
    if network:
        lines.append("TopologyPlugin=topology/block")
        network.append(f"BlockSizes={','.join(map(str, blocks['block_sizes']))}")
    return "\n".join(lines) + "\n", "\n".join(gres) + "\n", "\n".join(network) + "\n"


# The trial on a copy of the live configuration with other nodes. $1: lines of slurm.conf, $2: gres.conf, $3: topology.conf.
TRIED = (ROOT / "roles/slurm/files/would-slurmctld-start.sh").read_text()
TRIAL = (
    "copy=/run/muster-copy; rm -rf $copy; cp -a /etc/slurm $copy &&"
    " sed -i -E '/^(NodeName|NodeSet|PartitionName|TopologyPlugin)=/d' $copy/slurm.conf"
    ' && printf %s "$1" >>$copy/slurm.conf && printf %s "$2" >$copy/gres.conf && printf %s "$3" >$copy/topology.conf || exit 1;'
    ' sh -c "$0" trial $copy /etc/slurm 2>&1; code=$?; rm -rf $copy; exit $code'
)


@pytest.mark.parametrize("kinds", [catalogue.names(), ["p6e-gb200.36xlarge"]], ids=["all types in one fleet", "an UltraServer"])
def test_slurmctld_starts_with_nodes_of_every_type(fleet: Fleet, kinds: list[str]) -> None:
    lines, gres, network = configuration_of(kinds)
    assert lines.count("Gres=gpu:") >= len(kinds) // 2
    assert fleet.ansible(CONTROLLER, "sh", "-c", TRIAL, TRIED, lines, gres, network) == "slurmctld would start"


def tree_of(layers: int) -> tuple[str, str]:
    """(lines of slurm.conf, topology.conf) that role slurm writes for 200 nodes below network nodes, and 8 of which nothing is known."""
    hosts = [f"net-{number}" for number in range(208)]
    groups: dict[str, list[str]] = {}
    for number, host in enumerate(hosts[:200]):
        # EC2's ids are 17 hexadecimal digits. The second half has a layer less, as beside another type.
        for layer in range(1, layers + 1 - number // 100):
            groups.setdefault(f"muster_layer{layer}_nn_{layer:x}{number // 4 ** (layers - layer + 1):016x}", []).append(host)
    found = topology.network([{"name": "compute", "hosts": hosts}], groups)["switches"]
    network = [
        f"SwitchName={each['name']} "
        + conf.on_a_line({("Switches" if "switches" in each else "Nodes"): each.get("switches") or each["nodes"]})
        for each in found
    ]
    lines = [
        f"NodeName={','.join(hosts)} CPUs=1",
        f"NodeSet=compute Nodes={','.join(hosts)}",
        "PartitionName=main Nodes=compute Default=YES",
    ]
    return "\n".join([*lines, "TopologyPlugin=topology/tree", ""]), "\n".join([*network, ""])


@pytest.mark.parametrize("layers", [3, 4])
def test_slurmctld_starts_with_the_tree_of_the_inventory(fleet: Fleet, layers: int) -> None:
    lines, network = tree_of(layers)
    assert "SwitchName=muster-unknown Nodes=net-200," in network and "-nodes Nodes=net-100," in network
    assert fleet.ansible(CONTROLLER, "sh", "-c", TRIAL, TRIED, lines, "", network) == "slurmctld would start"
    wrong = network.replace("SwitchName=muster-top Switches=", "SwitchName=muster-top Switches=nn_none,")
    assert "muster-top has invalid child (nn_none)" in fleet.ansible(CONTROLLER, "sh", "-c", TRIAL, TRIED, lines, "", wrong, check=False)


def test_the_network_nodes_of_the_inventory_become_the_tree(fleet: Fleet, tmp_path: Path) -> None:
    """In check mode, which tries the files and writes none."""
    names = {"muster_layer1_nn_0a": ["compute-1", "compute-2"], "muster_layer2_nn_0b": ["compute-1"], "muster_layer2_nn_0c": ["compute-2"]}
    groups = {name: {"hosts": dict.fromkeys(members)} for name, members in names.items()}
    (tmp_path / "network.yml").write_text(json.dumps({"all": {"children": groups}}))
    before = live(fleet)
    ended = configure(fleet, "--check", "--diff", "--limit=controller-1", "-i", str(tmp_path / "network.yml"))
    ended.check_returncode()
    for line in ("TopologyPlugin=topology/tree", "SwitchName=nn_0a Switches=nn_0b,nn_0c", "SwitchName=nn_0b Nodes=compute-1"):
        assert f"+{line}\n" in ended.stdout
    assert live(fleet) == before


def test_a_uid_that_another_user_has_on_a_node(fleet: Fleet) -> None:
    fleet.ansible("compute-1", "useradd", "--uid=2077", "local-user")
    try:
        ended = configure(fleet, "--limit=compute-1", slurm_users=SITE["slurm_users"], slurm_accounts=SITE["slurm_accounts"])
        [said] = reasons(ended)
        assert "UID 2077 of ada (slurm_users) is taken on this node by local-user; give ada another" in said
        assert "ada" not in fleet.ansible("compute-1", "sh", "-c", "cat /etc/sysusers.d/muster-slurm.conf; getent passwd")
    finally:
        fleet.ansible("compute-1", "userdel", "local-user")


@pytest.fixture(scope="module")
def site(fleet: Fleet, job: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """The fleet with all of SITE, which the end removes again."""
    folder = tmp_path_factory.mktemp("site")
    for hook, line in SCRIPTS.items():
        (folder / f"{hook}.sh").write_text(f"#!/bin/sh\n{line}\n")
    variables = {**SITE, "slurm_scripts": [{"hook": hook, "path": str(folder / f"{hook}.sh")} for hook in SCRIPTS]}
    before, door = live_conf(fleet), fleet.ansible("compute-1", "cat", "/etc/pam.d/sshd")
    try:
        configure(fleet, **variables).check_returncode()
        yield variables
    finally:
        fleet.ansible(CONTROLLER, "scontrol", "delete", "ReservationName=service", check=False)
        configure(fleet).check_returncode()
        fleet.ansible(CONTROLLER, "sh", "-c", "; ".join(f"sacctmgr -i delete {what}" for what in LEFT))
        clean = "userdel ada; rm -rf /etc/slurm/site-* /run/muster-test-* /fsx/home/ada /var/tmp/jobs /tmp/mine"
        for node in (CONTROLLER, "compute-1", "compute-2"):
            fleet.ansible(node, "sh", "-c", clean)
        assert (live_conf(fleet), fleet.ansible("compute-1", "cat", "/etc/pam.d/sshd")) == (before, door)


LEFT = ("user ada", "account vision", "account research", "qos urgent")


def live_conf(fleet: Fleet) -> str:
    return fleet.ansible(CONTROLLER, "sh", "-c", "cd /etc/slurm && ls && cat slurm.conf cgroup.conf")


def srun(fleet: Fleet, *words: str) -> str:
    """Run srun as ada, whose job must end before the reservation begins."""
    return fleet.ansible(
        CONTROLLER, "srun", "--immediate=60", "--time=5", "--mem=64", "--nodelist=compute-1", "--chdir=/", *words, user="ada"
    )


def test_accounting_is_as_configured(fleet: Fleet, site: dict) -> None:
    shown = fleet.ansible(
        CONTROLLER, "sacctmgr", "-nP", "show", "associations", "wopl", "format=account,parentname,user,grptres,maxjobs,qos"
    )
    assert {"research|root||cpu=100||", "vision|research||||normal,urgent", "vision||ada||5|"} <= set(shown.splitlines())
    shown = fleet.ansible(CONTROLLER, "sacctmgr", "-nP", "show", "qos", "urgent", "format=priority,maxtresperuser,maxwall,flags")
    assert shown == "100|cpu=4|02:00:00|DenyOnLimit"


def test_nodes_have_features_devices_and_a_topology(fleet: Fleet, site: dict) -> None:
    fleet.wait_for("nodes with their gres", lambda: "idle" in fleet.ansible(CONTROLLER, "sinfo", "-hN", "-ncompute-1", "-o%T"))
    assert fleet.ansible(CONTROLLER, "sinfo", "-hN", "-ncompute-1", "-o%G %f %E") == "gpu:null:2 fast none"
    shown = fleet.ansible(CONTROLLER, "scontrol", "show", "topology")
    assert re.search(r"SwitchName=leaf Level=0 .*compute-", shown)
    reserved = fleet.ansible(CONTROLLER, "scontrol", "-o", "show", "reservation", "service")
    assert re.search(r"Duration=01:00:00 Nodes=compute-1 .* Users=ada ", reserved)
    assert "Total=3" in fleet.ansible(CONTROLLER, "scontrol", "show", "licenses")


def test_a_job_gets_what_it_asks_for_and_the_sites_scripts_run(fleet: Fleet, site: dict) -> None:
    look = "echo $SITE; scontrol -d show job $SLURM_JOB_ID | grep -o 'GRES=.*IDX.*'"
    wants = ("--gres=gpu:2", "--constraint=fast", "--qos=urgent", "--licenses=solver:2")
    assert srun(fleet, *wants, "sh", "-c", look).splitlines() == ["here", "GRES=gpu:null:2(IDX:0-1)"]
    fleet.ansible("compute-1", "test", "-e", "/run/muster-test-prolog")
    assert "site-HealthCheckProgram.sh" in fleet.ansible(CONTROLLER, "scontrol", "show", "config")


def test_a_job_has_a_tmp_of_its_own(fleet: Fleet, site: dict) -> None:
    said = srun(fleet, "--gres=gpu:2", "sh", "-c", "ls /tmp; stat -c %U /tmp").splitlines()
    assert [line for line in said if not line.startswith("srun: job ")] == ["ada"]  # the job before it may still run


def test_a_node_that_cannot_give_jobs_a_tmp_is_named(fleet: Fleet, site: dict) -> None:
    """One of two nodes allows no mount namespaces."""
    fleet.ansible("compute-2", "sh", "-c", "printf '#!/bin/sh\\necho no namespaces >&2; exit 1\\n' >/usr/local/bin/unshare")
    fleet.ansible("compute-2", "chmod", "755", "/usr/local/bin/unshare")
    try:
        wanted = {"muster_phases": ["verify_node"], "muster_components": ["slurm"], **site}
        ended = fleet.run("playbooks/stack.yml", "--limit=compute-1,compute-2", "-e", json.dumps(wanted))
    finally:
        fleet.ansible("compute-2", "rm", "/usr/local/bin/unshare")
    assert re.search(r"slurm.job_container failed: .* found refused on CPU [0-9,]+: no namespaces\)", ended.stdout)
    assert re.findall(r"^(\S+) .* failed=(\d)", ended.stdout, re.MULTILINE) == [("compute-1", "0"), ("compute-2", "1")]


def log_in(fleet: Fleet, *argv: str) -> tuple[int, str]:
    """Log in as ada by ssh, not through root; return the exit code and the output."""
    done = subprocess.run(fleet.ssh("compute-1", *argv, user="ada"), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_only_a_user_with_a_job_may_log_in_by_ssh(fleet: Fleet, site: dict) -> None:
    key = (fleet.state_dir / "ssh/id_ed25519.pub").read_text().strip()
    fleet.ansible("compute-1", "sh", "-c", f"mkdir -p .ssh; echo '{key}' >.ssh/authorized_keys", user="ada")
    code, said = log_in(fleet, "true")
    assert (code, "Access denied by pam_slurm_adopt: you have no active jobs on this node" in said) == (255, True)
    script = (ROOT / "roles/slurm/files/pam-adopt.py").read_text()
    checked = fleet.ansible("compute-1", "python3", "-c", script, "try", "root", "ada").splitlines()
    assert checked == ["root let in", "ada refused: Access denied by pam_slurm_adopt: you have no active jobs on this node"]
    argv = (
        "sbatch",
        "--parsable",
        "--time=5",
        "--mem=64",
        "--gres=gpu:2",  # the site's device is /dev/null
        "--output=/dev/null",
        "--chdir=/",
        "--nodelist=compute-1",
        "--wrap=touch /tmp/mine; sleep 300",
    )
    number = fleet.ansible(CONTROLLER, *argv, user="ada")
    fleet.wait_for(f"job {number} to run", lambda: state(fleet, number) == "RUNNING 0")
    fleet.wait_for("its shell", lambda: log_in(fleet, "ls", "/tmp/mine") == (0, "/tmp/mine\n"))
    assert log_in(fleet, "ls", "/tmp") == (0, "mine\n")
    assert f"/job_{number}/step_extern" in log_in(fleet, "cat", "/proc/self/cgroup")[1]
    stays = subprocess.Popen(fleet.ssh("compute-1", "sleep", "300", user="ada"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        fleet.wait_for(
            "the second shell", lambda: fleet.ansible("compute-1", "pgrep", "-u", "ada", "-fx", "sleep 300", check=False).count("\n")
        )
        fleet.ansible(CONTROLLER, "scancel", number)
        assert stays.wait(60) != 0
    finally:
        stays.kill()
        stays.wait()


def test_an_admin_may_log_in_without_a_job(fleet: Fleet, site: dict) -> None:
    fleet.wait_for("ada's job to be gone", lambda: log_in(fleet, "true")[0] == 255)
    fleet.ansible("compute-1", "gpasswd", "--add", "ada", "adm")
    try:
        code, said = log_in(fleet, "cat", "/proc/self/cgroup")
        assert (code, "job_" in said) == (0, False)
    finally:
        fleet.ansible("compute-1", "gpasswd", "--delete", "ada", "adm")


def test_a_second_converge_with_all_settings_changes_nothing(fleet: Fleet, site: dict, job: str) -> None:
    ended = configure(fleet, "--limit=controller-1", "--check", **site)
    assert re.findall(r"changed=(\d+)", ended.stdout) == ["0"], [block for block in ended.stdout.split("\n\n") if "changed: [" in block]
    assert state(fleet, job) == "RUNNING 0"


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd", "slurmd"])
def test_a_daemon_writes_on_after_its_log_is_rotated(fleet: Fleet, daemon: str) -> None:
    node = "compute-1" if daemon == "slurmd" else CONTROLLER
    log = f"/var/log/slurm/{daemon}.log"
    main = f"$(systemctl show -P MainPID {daemon})"
    written = f"readlink /proc/{main}/fd/* | grep -F {log}"
    fleet.ansible(node, "sh", "-c", f"logrotate --force /etc/logrotate.d/{daemon}")
    fleet.wait_for(f"{daemon} to open a new log", lambda: fleet.ansible(node, "sh", "-c", written, check=False).splitlines() == [log])
    assert fleet.ansible(node, "sh", "-c", f"test -s {log}.1 && systemctl is-active {daemon}") == "active"
