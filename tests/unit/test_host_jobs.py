# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""torchrun_job on hosts whose ssh and systemd are stand-ins: each host is a folder, and a unit is a process."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from test_ranks import FAILED

from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import torchrun
from ansible_collections.muster.fleet.plugins.modules import torchrun_job

JOB = {"name": "hello", "command": ["true"], "nodes": 2, "env": {"GREETING": "hi"}}
# The unit starts here and goes on when ssh has returned; its end is written as systemd's ExecStopPost would write it.
SYSTEMD_RUN = """\
[ ! -e "$HOST/refuse" ] || { echo "Failed to start transient service unit: no room" >&2; exit 1; }
for word; do case "$word" in --property=StandardOutput=append:*) out="${word##*append:}" ;; esac; last="$word"; done
folder="${last%/*}"
touch "$HOST/active"
( cd "$folder"; setsid /bin/bash "$last" >> "$out" 2>&1 & echo $! > "$HOST/pid"; wait $!; code=$?
  [ $code = 0 ] && said="success exited" || said="exit-code exited"
  echo "$said $code" > "$folder/end"; rm -f "$HOST/active" ) > /dev/null 2>&1 &
"""
SYSTEMCTL = """\
case "$1" in
  show) [ -e "$HOST/active" ] && echo active || echo inactive ;;
  stop) [ ! -e "$HOST/active" ] || { kill -- "-$(cat "$HOST/pid")"; while [ -e "$HOST/active" ]; do sleep 0.05; done; } ;;
esac
"""
# ssh HOST COMMAND. All of a host's files are below its folder.
SSH = """\
export HOST="$HOSTS/$1"
[ -d "$HOST" ] || { echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255; }
exec bash -c "${2//\\/@HOST@/$HOST}"
"""
TORCHRUN = """\
rank=0
for word; do case "$word" in --node-rank=*) rank="${word#*=}" ;; esac; done
echo "node $rank says $GREETING"
[ ! -e "$HOST/wait" ] || { sleep 60 & wait $!; }
[ ! -e "$HOST/says" ] || { cat "$HOST/says"; exit 1; }
[ ! -e "$HOST/fail" ] || exit 3
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bin_folder, hosts = tmp_path / "bin", tmp_path / "hosts"
    bin_folder.mkdir()
    for name, body in {"ssh": SSH, "systemctl": SYSTEMCTL, "systemd-run": SYSTEMD_RUN, "torchrun": TORCHRUN}.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}")
        (bin_folder / name).chmod(0o755)
    (bin_folder / "install").write_text('#!/bin/bash\nexec mkdir -p "${!#}"\n')
    (bin_folder / "chown").write_text("#!/bin/bash\n")
    # The users of a host are not those of this machine.
    (bin_folder / "id").write_text('#!/bin/bash\n[ "${2:-}" != -- ] || { [ ! -e "$HOST/nobody" ]; exit; }\nexec /usr/bin/id "$@"\n')
    for name in ("install", "chown", "id"):
        (bin_folder / name).chmod(0o755)
    for name in ("node-1", "node-2"):
        (hosts / name).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", str(hosts))
    return hosts


@pytest.fixture
def run(call, fleet: Path, tmp_path: Path):
    def ask(state: str = "finished", job: dict | None = None, user: str = "muster", **options):
        hosts = [{"name": name, "address": name, "ssh": ["ssh", name]} for name in ("node-1", "node-2")]
        target = {"hosts": hosts, "folder": "/@HOST@/jobs", "user": user}
        return call(torchrun_job, job=job or JOB, target=target, store=str(tmp_path / "store"), state=state, poll=1, timeout=20, **options)

    return ask


def test_a_job_runs_once_on_its_hosts_and_keeps_their_outputs(run) -> None:
    first = run()
    assert (first["changed"], first["result"]["state"], first["nodes"]) == (True, "COMPLETED", ["node-1", "node-2"]), first
    folder = Path(first["folder"])
    assert (folder / "output.txt").read_text() == "node 0 says hi\n"
    assert (folder / "output-node-2.txt").read_text() == "node 1 says hi\n"
    again = run()
    assert (again["changed"], again["stored"]) == (False, True)


def test_a_job_outlives_the_module_and_is_found_again(run, fleet: Path) -> None:
    (fleet / "node-1/wait").touch()
    assert run("submitted")["changed"] is True
    found = run("queried")
    assert (found["changed"], found["result"]["state"]) == (False, "RUNNING")
    assert found["ready"] >= 1
    again = run("submitted")
    assert again["changed"] is False
    stopped = run("cancelled")
    assert (stopped["changed"], stopped["result"]["state"]) == (True, "CANCELLED")
    assert not (fleet / "node-1/active").exists()


def test_a_host_that_fails_ends_the_job_on_the_others_and_is_named(run, fleet: Path) -> None:
    (fleet / "node-1/wait").touch()
    (fleet / "node-2/fail").touch()
    answer = run()
    assert answer["failed"] and "ended FAILED (node-2: exited 3) with exit status 3" in answer["msg"], answer
    assert not (fleet / "node-1/active").exists()
    assert "retry was not given" in run()["msg"]


def test_a_failure_has_the_status_of_the_rank_that_failed(run, fleet: Path) -> None:
    (fleet / "node-1/wait").touch()
    (fleet / "node-2/says").write_text(FAILED)
    answer = run()
    assert answer["failed"] and "ended FAILED (node-2: exited 1) with exit status 7 of rank 1 on node-" in answer["msg"], answer
    assert (answer["exit_code"], answer["failed_rank"]) == (7, 1)


def test_a_restarted_host_has_lost_its_ranks(run, fleet: Path) -> None:
    (fleet / "node-2/wait").touch()
    run("submitted")
    time.sleep(0.3)
    os.kill(int((fleet / "node-2/pid").read_text()), 9)
    for _ in range(100):
        if not (fleet / "node-2/active").exists():
            break
        time.sleep(0.05)
    for end in fleet.glob("node-2/jobs/*/end"):
        end.unlink()
    answer = run("awaited")
    assert "ended NODE_FAIL (the unit ended without a trace on node-2)" in answer["msg"], answer


def test_a_host_that_does_not_start_the_job_leaves_it_on_none(run, fleet: Path, tmp_path: Path) -> None:
    (fleet / "node-1/wait").touch()
    (fleet / "node-2/refuse").touch()
    answer = run()
    assert (
        "Host node-2 does not start job hello: Failed to start transient service unit: no room; the other hosts stopped it."
        in answer["msg"]
    )
    assert not (fleet / "node-1/active").exists()
    assert not list((tmp_path / "store").glob("*/*.json"))


def test_a_host_that_does_not_answer_is_named_before_anything_starts(run, fleet: Path) -> None:
    (fleet / "node-2").rename(fleet / "gone")
    assert "Host node-2 cannot run job hello: ssh: connect to host node-2 port 22: No route to host" in run()["msg"]
    assert not list(fleet.glob("node-1/jobs"))
    (fleet / "node-1").rename(fleet / "gone too")
    assert "Host node-1 does not answer (ssh: connect to host node-1 port 22: No route to host); look at it" in run()["msg"]


def test_a_job_keeps_its_ranks_when_the_order_of_the_inventory_changes(run, fleet: Path, call, tmp_path: Path) -> None:
    """The inventory may learn of network nodes, or of more hosts, while the job runs."""
    job = {**JOB, "nodes": 1}
    (fleet / "node-1/wait").touch()
    first = run("submitted", job=job)
    assert (Path(first["folder"]) / "hostfile").read_text() == "node-1 slots=1\n"
    hosts = [{"name": name, "address": name, "ssh": ["ssh", name]} for name in ("node-2", "node-1")]
    later = {"job": job, "target": {"hosts": hosts, "folder": "/@HOST@/jobs"}, "store": str(tmp_path / "store"), "poll": 1, "timeout": 20}
    found = call(torchrun_job, state="submitted", **later)
    assert (found["changed"], found["result"]["state"], found["nodes"]) == (False, "RUNNING", ["node-1"]), found
    assert call(torchrun_job, state="cancelled", **later)["result"]["state"] == "CANCELLED"
    assert not (fleet / "node-1/active").exists()
    # A new run follows the inventory.
    (fleet / "node-1/wait").unlink()
    assert call(torchrun_job, state="finished", rerun=True, **later)["nodes"] == ["node-2"]
    assert (Path(first["folder"]) / "hostfile").read_text() == "node-2 slots=1\n"


def test_ranks_follow_the_network() -> None:
    layers = {"a": ["t", "1"], "b": ["t", "2"], "c": ["t", "1"], "d": None, "e": ["t", "2"], "g": ["t", "1"]}
    variables = {name: {"inventory_hostname": name} | ({"muster_network_nodes": path} if path else {}) for name, path in layers.items()}
    assert [each["name"] for each in torchrun.hosts_of(list("abcdeg"), variables)] == list("acgbed")
    for name in "dg":
        variables[name]["muster_ultraserver"] = "us-1"
    assert [each["name"] for each in torchrun.hosts_of(list("abcdeg"), variables)] == list("acdgbe")


def test_hosts_of_the_inventory_are_reached_as_ansible_reaches_them() -> None:
    key = {"ansible_port": 2222, "ansible_ssh_private_key_file": "/k"}
    variables = {
        "a": {"inventory_hostname": "a", "ansible_host": "10.0.0.1", "ansible_user": "admin", **key},
        "b": {"inventory_hostname": "b", "ansible_ssh_common_args": "-o ProxyJump=login"},
    }
    first, second = torchrun.hosts_of(["a", "b"], variables)
    alive = ["-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]
    assert first["ssh"] == ["ssh", "-o", "BatchMode=yes", "-p", "2222", "-i", "/k", *alive, "admin@10.0.0.1"]
    assert (first["address"], first["become"]) == ("10.0.0.1", True)
    assert second["ssh"] == ["ssh", "-o", "BatchMode=yes", "-o", "ProxyJump=login", *alive, "b"]
    assert (second["address"], second["become"]) == ("b", False)


@pytest.fixture
def as_nobody(run, fleet: Path):
    """run() with the real chown and install and a job of nobody, whose working folder each host has already."""
    if os.geteuid():
        pytest.skip("only root can start the job of another user")
    for name in ("install", "chown", "id"):
        (fleet.parent / "bin" / name).unlink()
    folder = fleet / "node-1/jobs" / Path(run("queried")["folder"]).name
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    return lambda **options: run(user="nobody", **options), folder


NOBODY = 65534


def test_the_links_of_the_jobs_user_lead_root_to_no_other_file(as_nobody, tmp_path: Path) -> None:
    ask, folder = as_nobody
    secret = tmp_path / "secret"
    secret.write_text("for root alone\n")
    secret.chmod(0o600)
    for name in ("job.sh", "output.txt", "end", "cancelled"):
        (folder / name).symlink_to(secret)
        os.lchown(folder / name, NOBODY, NOBODY)
    answer = ask()
    assert answer["result"]["state"] == "COMPLETED", answer
    info = secret.stat()
    assert (secret.read_text(), info.st_uid, stat.S_IMODE(info.st_mode)) == ("for root alone\n", 0, 0o600)
    assert (Path(answer["folder"]) / "output.txt").read_text() == "node 0 says hi\n"
    kept = folder.with_name(folder.name + ".unit")
    assert (kept.stat().st_uid, stat.S_IMODE(kept.stat().st_mode)) == (0, 0o755)
    assert {path.name: path.stat().st_uid for path in kept.iterdir()} == {"job.sh": NOBODY, "output.txt": NOBODY, "end": NOBODY}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda jobs: os.chown(jobs, NOBODY, NOBODY), "/node-1/jobs belongs to nobody; give it to root, or set muster_target.folder"),
        (lambda jobs: jobs.chmod(0o777), "others than root may write to "),
        (lambda jobs: jobs.rename(jobs.parent / "real") and jobs.symlink_to("real"), "leads through a link; set muster_target.folder to"),
    ],
)
def test_a_folder_that_others_can_change_is_refused(as_nobody, spoil, why: str) -> None:
    ask, folder = as_nobody
    spoil(folder.parent)
    answer = ask()
    assert answer["failed"] and "Host node-1 cannot keep job hello: " in answer["msg"] and why in answer["msg"], answer
    assert not folder.with_name(folder.name + ".unit").exists()


def test_an_output_is_fetched_in_part_and_need_not_be_utf_8(run, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "OUTPUT_BYTES", 40)
    torchrun_program = fleet.parent / "bin/torchrun"
    torchrun_program.write_text("#!/bin/bash\nprintf 'begin \\377\\n'; printf '%060d' 0; printf ' end'\n")
    text = (Path(run()["folder"]) / "output.txt").read_text()
    assert text == f"begin \ufffd\n00\nmuster: the middle of the output is left out here (32 bytes)\n{'0' * 26} end"


def test_an_end_that_the_user_wrote_is_read_as_a_failure(run, fleet: Path) -> None:
    run("submitted")
    for _ in range(100):
        if not list(fleet.glob("*/active")):
            break
        time.sleep(0.05)
    [end] = fleet.glob("node-2/jobs/*/end")
    end.write_text("success\n" * 1000)
    os.utime(end, (1 << 40, 1 << 40))
    assert "ended FAILED (node-2: unreadable end)" in run("awaited")["msg"]


def test_a_host_that_hangs_is_given_up(run, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun.Hosts.on, "__defaults__", ("", 1))
    (fleet.parent / "bin/ssh").write_text("#!/bin/bash\nexec sleep 30\n")
    began = time.monotonic()
    assert "Host node-1 does not answer (no answer within 1 s); look at it" in run()["msg"]
    assert time.monotonic() - began < 15


def test_a_folder_on_the_hosts_is_an_absolute_path(call, tmp_path: Path) -> None:
    target = {"hosts": [{"name": "a", "address": "a", "ssh": ["ssh", "a"]}], "folder": "jobs"}
    answer = call(torchrun_job, job={**JOB, "nodes": 1}, target=target, store=str(tmp_path))
    assert answer["msg"] == "muster_target.folder must be the absolute path of a folder on the hosts, not jobs."


def test_a_secret_that_the_user_cannot_read_is_named_before_anything_is_written(run, fleet: Path, tmp_path: Path) -> None:
    (fleet.parent / "bin/runuser").write_text('#!/bin/bash\n[ "$1 $2 $3" = "-u muster --" ] || exit 9\nshift 3\n"$@"\n')
    (fleet.parent / "bin/runuser").chmod(0o755)
    secret = tmp_path / "token"
    job = {**JOB, "secrets": {"TOKEN": {"from": "file", "path": str(secret)}}}
    answer = run(job=job)
    assert answer["msg"] == (
        f"Host node-1 cannot run job hello: user muster cannot read {secret}, the file of the secret TOKEN; mend it or leave it out."
    )
    assert not list(fleet.glob("*/jobs")) and not Path(answer["folder"]).exists()
    secret.write_text("value")
    assert run(job=job)["result"]["state"] == "COMPLETED"


def test_a_host_without_the_user_is_named_before_anything_is_written(run, fleet: Path) -> None:
    (fleet / "node-2/nobody").touch()
    answer = run()
    assert answer["msg"] == (
        "Host node-2 cannot run job hello: it has no user muster; make one, or set muster_target.user; mend it or leave it out."
    )
    assert not list(fleet.glob("*/jobs"))


def test_a_job_that_no_host_can_look_for_leaves_no_folder(run, fleet: Path) -> None:
    for name in ("node-1", "node-2"):
        (fleet / name).rename(fleet / f"{name} is gone")
    answer = run()
    assert "does not answer" in answer["msg"] and not Path(answer["folder"]).exists()
