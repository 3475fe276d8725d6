# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role slurm leaves on one node that is controller, database and compute node: what the daemons answer, and the kernel."""

from __future__ import annotations

import json
import re

import pytest

RUN = "runuser -u muster -- srun --immediate=60 --quiet --time=2 --mem=64"


@pytest.fixture(scope="module")
def config(host):
    """The configuration that slurmctld runs with, by key in lower case."""
    lines = host.check_output("scontrol show config").splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    # Slurm since 23.11 numbers what may stand several times: Prolog[0].
    return {key.strip().lower().removesuffix("[0]"): value.strip() for key, value in pairs}


def test_the_node_is_idle_in_its_partition(host):
    # Backfill reserves an idle node for a waiting job. It is "planned" until the next cycle, also when the job has run meanwhile.
    found = host.check_output("sinfo --noheader --format='%P|%a|%D|%T|%N'")
    assert found in ("main*|up|1|idle|controller-1", "main*|up|1|planned|controller-1")
    assert host.check_output("squeue --noheader") == ""


def test_memory_of_the_node_is_the_containers(host):
    """slurmd -C sees the machine; the node line must not."""
    limit = int(host.check_output("cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes")) >> 20
    offered = int(host.check_output("sinfo --noheader --format=%m"))
    assert limit - 600 < offered < limit


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_CORE_MEMORY"),
        ("ProctrackType", "proctrack/cgroup"),
        ("JobAcctGatherType", "jobacct_gather/cgroup"),
        ("MpiDefault", "pmix"),
        ("GresTypes", "gpu"),
        ("KillOnBadExit", "1"),
        ("ReturnToService", "2"),
        ("JobRequeue", "1"),
        # Of the local inventory, over the role's 180.
        ("SlurmdTimeout", "20 sec"),
    ],
)
def test_slurmctld_runs_with(config, key, value):
    assert config[key.lower()] == value


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("TaskPlugin", {"task/cgroup", "task/affinity"}),
        ("PrologFlags", {"Alloc", "Contain"}),
        ("AccountingStorageEnforce", {"associations", "limits", "qos", "safe"}),
        ("PropagateResourceLimitsExcept", {"MEMLOCK"}),
    ],
)
def test_slurmctld_runs_with_all_of(config, key, values):
    assert set(config[key.lower()].split(",")) == values


def test_gpus_are_accounted(config):
    assert "gres/gpu" in config["accountingstoragetres"].split(",")


def test_slurmd_has_its_configuration_from_its_controller(host, config):
    """Configless: nothing but the controller's address is on the node."""
    running = host.check_output("tr '\\0' ' ' </proc/$(systemctl show --property=MainPID --value slurmd)/cmdline")
    assert "--conf-server controller-1" in running
    names = ["slurm.conf", "cgroup.conf"]
    if host.system_info.release.split(".")[0] != "12":  # Slurm 22.05 sends no scripts
        names += [config["prolog"], config["epilog"]]
        assert names[2:] == ["muster-prolog.sh", "muster-epilog.sh"]
    for name in names:
        sent, original = (host.file(f"{folder}/{name}") for folder in ("/var/lib/slurm/slurmd/conf-cache", "/etc/slurm"))
        assert sent.content_string == original.content_string
        assert original.mode & 0o500 == sent.mode & 0o500


def test_prolog_ran_and_the_epilog_cleans(host):
    """The epilog takes away shared memory of the job's user, so it ran after this job and before the next answer."""
    host.check_output(f"{RUN} touch /dev/shm/muster-left-behind")
    assert host.run("for n in $(seq 50); do [ -e /dev/shm/muster-left-behind ] || exit 0; sleep 0.2; done; exit 1").rc == 0


def test_munge_key_is_the_fleets(host):
    """Debian's package makes a key of its own from random bytes; the fleet's is 1024 letters and digits."""
    key = host.file("/etc/munge/munge.key")
    assert (key.mode, key.user, key.group, key.size) == (0o400, "munge", "munge", 1024)
    assert host.run("LC_ALL=C grep -qE '^[A-Za-z0-9]{1024}$' /etc/munge/munge.key").rc == 0
    assert "STATUS:          Success (0)" in host.check_output("munge --no-input | unmunge")


def test_secrets_are_closed_to_others(host):
    """Keys, the database and what jobs brought; only the cluster's name may be read by everybody."""
    places = "/etc/munge /etc/slurm/slurmdbd.conf /var/lib/munge /var/lib/slurm/slurmctld /var/lib/mysql/slurm_acct_db"
    assert host.check_output(f"find {places} -type f -perm -004") == "/var/lib/slurm/slurmctld/clustername"
    assert host.file("/fsx/home/muster").mode & 0o007 == 0
    # The folder above is nobody's own, or no other user would reach a home in it.
    assert (host.file("/fsx/home").user, host.file("/fsx/home").mode) == ("root", 0o755)


def test_the_key_is_in_no_log_and_no_manifest(host):
    needle, places = "/run/muster-needle", "/etc /var/log /var/lib/slurm /usr/lib/muster /fsx/muster"
    host.check_output(f"head -c 40 /etc/munge/munge.key >{needle}")
    assert host.run(f"grep -qF -f {needle} /etc/munge/munge.key").rc == 0
    found = host.run(f"grep -rlF -f {needle} {places} --exclude=munge.key; rm {needle}")
    assert found.stdout == ""


def cpus(text: str) -> set[int]:
    """0-1,4 -> {0, 1, 4}."""
    ranges = (part.split("-") for part in text.split(",") if part)
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def test_a_step_is_held_to_its_cores(host):
    """The kernel's own word on the step: none of the machine's cores that this node does not own."""
    status = host.check_output(f"{RUN} -n1 -c1 sh -c 'grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup'")
    node = dict(part.split("=", 1) for part in host.check_output("scontrol show node controller-1").split() if "=" in part)
    held = cpus(status.splitlines()[0].split()[1])
    assert 1 <= len(held) <= int(node["ThreadsPerCore"])
    assert not held & cpus(node.get("CPUSpecList", ""))
    assert re.search(r"/job_\d+/step_0/", status)


def test_only_the_jobs_devices(host):
    assert "ConstrainDevices=yes" in host.file("/etc/slurm/cgroup.conf").content_string.splitlines()


def test_accounts(host):
    rows = host.check_output("sacctmgr --noheader --parsable2 show associations format=cluster,account,user").splitlines()
    cluster = host.check_output("scontrol show config | awk '$1 == \"ClusterName\" {print $3}'")
    assert f"{cluster}|root|root" in rows
    assert f"{cluster}|muster|muster" in rows


def test_a_job_of_the_user_is_accounted(host):
    sbatch = "sbatch --parsable --wait --mem=64 --time=1 --job-name=tell --wrap='id -un; pwd'"
    job = host.check_output(f"cd /fsx/home/muster && runuser -u muster -- {sbatch}")
    assert host.file(f"/fsx/home/muster/slurm-{job}.out").content_string.splitlines() == ["muster", "/fsx/home/muster"]
    row = f"sacct --noheader --parsable2 --allocations --jobs={job} --format=user,account,state,exitcode,nodelist"
    told = host.check_output(f"for n in $(seq 30); do {row} | grep COMPLETED && break; sleep 1; done")
    assert told == "muster|muster|COMPLETED|0:0|controller-1"


def test_a_user_without_an_account_is_refused(host):
    refused = host.run("runuser -u nobody -- srun --immediate=20 --mem=64 true")
    assert refused.rc != 0
    assert "Invalid account" in refused.stderr


def test_the_database_has_no_password_and_no_port(host):
    assert "StoragePass" not in host.file("/etc/slurm/slurmdbd.conf").content_string
    assert (
        host.check_output("mariadb --skip-column-names --execute \"SELECT plugin FROM mysql.user WHERE user = 'slurm'\"") == "unix_socket"
    )
    assert not host.socket("tcp://3306").is_listening


@pytest.mark.parametrize("unit", ["munge", "mariadb", "slurmdbd", "slurmctld", "slurmd"])
def test_daemons_are_enabled_and_come_back(host, unit):
    assert host.service(unit).is_enabled
    assert host.service(unit).is_running
    if unit.startswith("slurm"):
        shown = host.check_output(f"systemctl show --property=Restart,StartLimitIntervalUSec {unit}")
        assert sorted(shown.splitlines()) == ["Restart=on-failure", "StartLimitIntervalUSec=0"]


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd", "slurmd"])
def test_logs_are_put_aside_and_the_daemon_told(host, daemon):
    rotation = host.file(f"/etc/logrotate.d/{daemon}").content_string
    assert f"/var/log/slurm/{daemon}.log {{\n  size 20M\n  rotate 12\n" in rotation
    assert f"systemctl kill --kill-whom=main --signal=SIGUSR2 {daemon}" in rotation
    told = host.run(f"logrotate --debug /etc/logrotate.d/{daemon}")
    assert (told.rc, "error" in told.stderr) == (0, False)


@pytest.mark.parametrize("name", ["gres.conf", "topology.conf", "topology.yaml", "job_container.conf"])
def test_what_nobody_asked_for_is_not_there(host, name):
    assert not host.file(f"/etc/slurm/{name}").exists


def test_a_trial_start_leaves_nothing(host):
    assert host.check_output("find /etc/slurm /tmp -name '.state' -o -name '.said'") == ""
    assert host.check_output("pgrep -xc slurmctld") == "1"


def test_every_user_reaches_their_home(host):
    """The folder of the homes is nobody's, also when it was made with the first of them."""
    home = host.file("/fsx/home")
    assert (home.user, home.mode) == ("root", 0o755)


def test_manifest_names_the_packages(host):
    slurm = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["slurm"]
    assert slurm["packages"]["slurmd"] == host.package("slurmd").version
    assert slurm["version"] == host.check_output("sinfo --version").split()[1]
