# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: a fleet watched by a real Prometheus. It scrapes every target, runs every query of every panel and rule, and six alarms fire.

compute-1 rehearses p5.48xlarge, so EFA's counters are those of stand-ins. Alarms reach a webhook with their text, and resolve.
Run by `make proofs`, or `pytest --engine tests/proof/observe.py`; about eight minutes on two cores.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typed import ROOT, typed

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet as Containers
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

pytestmark = pytest.mark.engine

NAME = "observe"
NODES = ("controller-1", "compute-1", "compute-2")
COMPONENTS = ["common", "slurm", "efa_exporter", "monitoring"]
WATCH = "python3 /usr/lib/muster/muster-watch"
LOGS = "/fsx/muster/observed"
TEXTFILES = "/var/lib/prometheus/node-exporter"
# Alarms that a test waits for hold for seconds instead of minutes.
QUICK = {
    "MusterNodeDown": {"hold": "2s"},
    "MusterDiskFull": {"hold": "2s"},
    "MusterSlurmctldDown": {"hold": "2s"},
    "MusterJobStuck": {"value": 15},
}


class Webhook:
    """Who is told of alarms: {(alarm, status): its annotations and labels}."""

    def __init__(self, address: str) -> None:
        told = self.told = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
                    told[alert["labels"]["alertname"], alert["status"]] = {**alert["labels"], **alert["annotations"]}
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Fleet:
    """A controller that watches itself and two compute nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inventory = folder / "inventory"
        inventory.mkdir()
        options = {
            "plugin": "muster.fleet.local_fleet",
            "fleet": NAME,
            "memory": "1536",
            "nodes": {"controller-1": {"memory": "2560"}, "compute-1": {"type": "p5.48xlarge", "tmpfs": {"/scratch": "64m"}}},
        }
        (inventory / "local_fleet.yml").write_text(json.dumps(options))
        (inventory / "monitoring.yml").symlink_to(ROOT / "inventory/local/monitoring.yml")
        (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
        self.inventory = inventory
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PWD": str(folder), "ANSIBLE_NOCOLOR": "1"}
        self.state = state_dir(NAME, self.env)
        self.settings: dict[str, object] = {"monitoring_interval": "2s", "monitoring_alarms": QUICK}

    def play(self, playbook: str, *extra: str, **variables: object) -> subprocess.CompletedProcess:
        given = {"muster_fleet": NAME, "muster_monitoring": True, "muster_components": COMPONENTS, **self.settings, **variables}
        done = typed(
            [".venv/bin/ansible-playbook", playbook, "-i", str(self.inventory), "-e", json.dumps(given), *extra], self.env, timeout=1200
        )
        with (self.folder / "output.txt").open("a") as output:
            output.write(done.stdout)
        return done

    def containers(self) -> Containers:
        return Containers(NAME, find_engine(), self.state, cache_dir(self.env))

    def run(self, node: str, script: str, timeout: float = 120):
        return self.containers().run_in(node, ["sh", "-ec", script], timeout=timeout)

    def sh(self, node: str, script: str, timeout: float = 120) -> str:
        """The output of a script, which must succeed."""
        done = self.run(node, script, timeout)
        assert done.code == 0, done
        return done.stdout.strip()

    def query(self, expression: str) -> list[dict]:
        found = self.sh("controller-1", "exec %s query \"$(cat <<'EOF'\n%s\nEOF\n)\"" % (WATCH, expression))
        return json.loads(found)

    def put(self, node: str, path: str, text: str) -> None:
        self.sh(node, "mkdir -p $(dirname %s); cat >%s.new <<'EOF'\n%s\nEOF\nmv %s.new %s" % (path, path, text.rstrip("\n"), path, path))


def wait_for(what: str, found: Callable[[], object], patience: float = 90) -> object:
    deadline = time.monotonic() + patience
    while not (value := found()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:.0f} s in vain for {what}")
        time.sleep(0.5)
    return value


@pytest.fixture(scope="module")
def fleet(artifacts) -> Iterator[Fleet]:
    """The fleet, watched."""
    made = Fleet(artifacts.folder(NAME))
    artifacts.leave(f"fleet {NAME}", lambda: made.play("playbooks/local_down.yml").check_returncode())
    done = made.play("playbooks/local_up.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    made.webhook = Webhook(made.containers().gateway())
    waits = {"monitoring_group_wait": "1s", "monitoring_group_interval": "2s"}
    made.settings |= {"monitoring_receivers": [{"kind": "webhook", "url": made.webhook.url}], **waits}
    made.settings["monitoring_training_logs"] = [f"{LOGS}/checkpoints-*/train.jsonl"]
    done = made.play("playbooks/provision.yml")
    assert done.returncode == 0, done.stdout[-5000:]
    yield made
    made.webhook.server.shutdown()


def told(fleet: Fleet, alarm: str, status: str = "firing") -> dict:
    """What the webhook heard of an alarm; waits for it."""
    wait_for(f"{alarm} {status}", lambda: (alarm, status) in fleet.webhook.told)
    return fleet.webhook.told[alarm, status]


def has_its_text(fleet: Fleet, alarm: str) -> dict:
    """The alarm reached the webhook with its summary, its remedy and its page."""
    heard = told(fleet, alarm)
    [known] = [each for each in alarms.ALARMS if each.name == alarm]
    assert heard["remedy"] == known.remedy and heard["severity"] == known.severity and heard["fleet"] == NAME
    assert heard["runbook_url"].endswith(f"runbooks.md#{alarm.lower()}") and "{{" not in heard["summary"]
    return heard


def test_every_target_is_scraped(fleet: Fleet) -> None:
    up = {(each["metric"]["job"], each["metric"]["instance"]): each["value"][1] for each in fleet.query("up")}
    wanted = {("node", node) for node in NODES} | {
        ("muster", "controller-1"),
        ("prometheus", "controller-1"),
        ("alertmanager", "controller-1"),
    }
    wanted |= {("efa", "compute-1")}  # DCGM exporter needs a GPU
    assert up == dict.fromkeys(wanted, "1")
