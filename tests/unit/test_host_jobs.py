# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""torchrun_job on hosts whose ssh and systemd are stand-ins: each host is a folder, and a unit is a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

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
exec bash -c "${2//@HOST@/$HOST}"
"""
TORCHRUN = """\
rank=0
for word; do case "$word" in --node-rank=*) rank="${word#*=}" ;; esac; done
echo "node $rank says $GREETING"
[ ! -e "$HOST/wait" ] || { sleep 60 & wait $!; }
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
    for name in ("install", "chown"):
        (bin_folder / name).chmod(0o755)
    for name in ("node-1", "node-2"):
        (hosts / name).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", str(hosts))
    return hosts


@pytest.fixture
def run(call, fleet: Path, tmp_path: Path):
    def ask(state: str = "finished", job: dict | None = None, **options):
        hosts = [{"name": name, "address": name, "ssh": ["ssh", name]} for name in ("node-1", "node-2")]
        target = {"hosts": hosts, "folder": "@HOST@/jobs"}
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
    later = {"job": job, "target": {"hosts": hosts, "folder": "@HOST@/jobs"}, "store": str(tmp_path / "store"), "poll": 1, "timeout": 20}
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
    assert first["ssh"] == ["ssh", "-o", "BatchMode=yes", "-p", "2222", "-i", "/k", "admin@10.0.0.1"]
    assert (first["address"], first["become"]) == ("10.0.0.1", True)
    assert second["ssh"] == ["ssh", "-o", "BatchMode=yes", "-o", "ProxyJump=login", "b"]
    assert (second["address"], second["become"]) == ("b", False)
