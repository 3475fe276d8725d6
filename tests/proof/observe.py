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
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typed import ROOT, typed

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet as Containers
from ansible_collections.muster.fleet.plugins.module_utils.health import formats
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, dashboards
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

pytestmark = pytest.mark.engine

NAME = "observe"
NODES = ("controller-1", "compute-1", "compute-2")
COMPONENTS = ["common", "slurm", "efa_exporter", "monitoring"]
WATCH = "python3 /usr/lib/muster/muster-watch"
LOGS = "/fsx/observed"
RECORDED = ROOT / "tests/fixtures/run/local/20261121T105130Z/jobs/train/train.jsonl"
# A job that writes the recorded log of a training as if it made its steps now. With STOP it hangs, with NAN its loss breaks.
REPLAY = """
import datetime, json, os, sys, time
folder, mode = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
records = [json.loads(line) for line in open("%(logs)s/recorded.jsonl")]
def write(record):
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    with open(folder + "/train.jsonl", "a") as file:
        file.write(json.dumps({**record, "time": now}) + "\\n")
with open(folder + "/goodput.json", "w") as file:
    json.dump({"schema": "muster.goodput/1", "summary": {"goodput": 0.93, "wall": 100.0}}, file)
for record in records[:25]:
    write({**record, "mfu": 0.41, "data_share": 0.01} if "loss" in record else record)
    time.sleep(0.1)
write({"event": "checkpoint", "step": 20, "path": folder, "seconds": 0.5, "world_size": 2})
while mode != "STOP":
    broken = mode == "NAN" and not os.path.exists(folder + "/mended")
    write({**records[20], "step": 21, "loss": None if broken else 2.5, "mfu": 0.41, "data_share": 0.01})
    time.sleep(1)
time.sleep(600)
""" % {"logs": LOGS}
# Many queries in one process: Slurm's nodes have no cores to spare.
ASK = """
import importlib.machinery, importlib.util, json, sys
loader = importlib.machinery.SourceFileLoader("watch", "/usr/lib/muster/muster-watch")
watch = importlib.util.module_from_spec(importlib.util.spec_from_loader("watch", loader))
loader.exec_module(watch)
print(json.dumps([watch.ask("query", query=each)["result"] for each in json.load(open("/run/queries.json"))]))
"""
PERIOD = 10  # seconds after which the targets follow Slurm's nodes
TEXTFILES = "/var/lib/prometheus/node-exporter"
# Alarms that a test waits for hold for seconds instead of minutes.
QUICK = {
    "MusterNodeDown": {"hold": "2s"},
    "MusterDiskFull": {"hold": "2s"},
    "MusterSlurmctldDown": {"hold": "2s"},
    "MusterJobStuck": {"value": 20},
    "MusterPrometheusStoresNothing": {"value": 40, "hold": "2s"},
}


class Webhook:
    """Who is told of alarms: their labels and annotations, with `status`, in the order in which they arrive."""

    def __init__(self, address: str) -> None:
        told: list[dict] = []
        self.told = told

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
                    told.append({"status": alert["status"], **alert["labels"], **alert["annotations"]})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Fleet:
    """A controller that watches itself and two compute nodes. given: what its inventory says beside that."""

    def __init__(self, folder: Path, name: str, **given: object) -> None:
        self.folder, self.name = folder, name
        inventory = folder / "inventory"
        inventory.mkdir()
        options = {
            "plugin": "muster.fleet.local_fleet",
            "fleet": name,
            "memory": "1536",
            **given,
        }
        (inventory / "local_fleet.yml").write_text(json.dumps(options))
        (inventory / "monitoring.yml").symlink_to(ROOT / "inventory/local/monitoring.yml")
        (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
        self.inventory = inventory
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PWD": str(folder), "ANSIBLE_NOCOLOR": "1"}
        self.state = state_dir(name, self.env)
        self.settings: dict[str, object] = {"monitoring_interval": "5s", "monitoring_alarms": QUICK, "monitoring_discovery_seconds": PERIOD}

    def play(self, playbook: str, *extra: str, **variables: object) -> subprocess.CompletedProcess:
        given = {"muster_fleet": self.name, "muster_monitoring": True, "muster_components": COMPONENTS, **self.settings, **variables}
        done = typed(
            [".venv/bin/ansible-playbook", playbook, "-i", str(self.inventory), "-e", json.dumps(given), *extra], self.env, timeout=1200
        )
        with (self.folder / "output.txt").open("a") as output:
            output.write(done.stdout)
        return done

    def containers(self) -> Containers:
        return Containers(self.name, find_engine(), self.state, cache_dir(self.env))

    def run(self, node: str, script: str, timeout: float = 120):
        return self.containers().run_in(node, ["sh", "-ec", script], timeout=timeout)

    def sh(self, node: str, script: str, timeout: float = 120) -> str:
        """The output of a script, which must succeed."""
        done = self.run(node, script, timeout)
        assert done.code == 0, done
        return done.stdout.strip()

    def queries(self, expressions: list[str]) -> list[list[dict]]:
        """The results of expressions."""
        self.put("controller-1", "/run/queries.json", json.dumps(expressions))
        self.put("controller-1", "/run/ask.py", ASK)
        return json.loads(self.sh("controller-1", "python3 /run/ask.py"))

    def query(self, expression: str) -> list[dict]:
        return self.queries([expression])[0]

    def train(self, mode: str) -> str:
        """The number of a job that runs on a compute node and writes a log."""
        self.put("controller-1", f"{LOGS}/replay.py", REPLAY)
        self.put("controller-1", f"{LOGS}/recorded.jsonl", RECORDED.read_text())
        self.sh("controller-1", f"chown -R muster {LOGS}")
        wrap = f"exec python3 {LOGS}/replay.py {LOGS}/checkpoints-$SLURM_JOB_ID {mode}"
        submit = f"cd {LOGS} && sbatch --parsable --mem=64 --nodelist=compute-1 --wrap='{wrap}'"
        return self.sh("controller-1", f"runuser -u muster -- sh -c {json.dumps(submit).replace('$', chr(92) + '$')}")

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
    nodes = {
        "controller-1": {"memory": "2560", "tmpfs": {"/metrics": "32m"}},
        "compute-1": {"type": "p5.48xlarge", "tmpfs": {"/scratch": "64m"}},
    }
    made = Fleet(artifacts.folder(NAME), NAME, nodes=nodes)
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


def told(fleet: Fleet, alarm: str, status: str = "firing", **labels: str) -> dict:
    """What the webhook heard of an alarm with these labels; waits for it."""
    wanted = {"alertname": alarm, "status": status, **labels}
    found = wait_for(f"{alarm} {status}", lambda: [each for each in fleet.webhook.told if wanted.items() <= each.items()], 120)
    return found[0]


def has_its_text(fleet: Fleet, alarm: str, **labels: str) -> dict:
    """The alarm reached the webhook with its remedy and its page. Return what it heard."""
    heard = told(fleet, alarm, **labels)
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


@pytest.fixture(scope="module")
def busy(fleet: Fleet) -> str:
    """The number of a job that trains, on a fleet whose nodes have results of health checks."""
    job = fleet.train("ON")
    for node in NODES:
        fleet.put(node, f"{TEXTFILES}/muster_health.prom", health(xid=1))
    wait_for("the training", lambda: fleet.query(f'muster_training_step{{job_id="{job}"}} > 20'))
    # Rates need two scrapes in their time.
    time.sleep(20)
    return job


def health(**checks: int) -> str:
    """What muster-health leaves for node exporter."""
    records = [
        {"check": name, "status": "passed" if good else "failed", "severity": "critical", "seconds": 0.1} for name, good in checks.items()
    ]
    return formats.prometheus(records, "light", time.time())


def test_every_query_of_every_panel_has_data(fleet: Fleet, busy: str) -> None:
    asked = dashboards.queries()
    results = fleet.queries([dashboards.plain(expression, NAME, "1m") for _board, _panel, expression in asked])
    without = {
        (board.uid, panel.title) for (board, panel, _expression), found in zip(asked, results, strict=True) if not found and not panel.empty
    }
    cannot = {(board.uid, panel.title) for board, panel, expression in asked if dashboards.absent(expression)}
    # A panel of what this hardware cannot have is empty, or counts none.
    assert without <= cannot, without - cannot
    assert len(asked) - len(cannot) > 50


def test_every_rule_is_evaluated_on_data(fleet: Fleet, busy: str) -> None:
    assert fleet.sh("controller-1", f"{WATCH} rules") == f"all {len(alarms.ALARMS)} rules are evaluated"
    names = sorted({name for alarm in alarms.ALARMS for name in re.findall(r"\b([a-zA-Z]\w*_\w+|up)\b(?=[{\[ ]|$)", alarm.expression())})
    names = [name for name in names if name not in ("max_over_time", "min_over_time", "predict_linear")]
    results = fleet.queries([f"count({name})" for name in names])
    missing = {name for name, found in zip(names, results, strict=True) if not found}
    assert missing == {name for name in names if dashboards.absent(name)}
    assert len(names) > 40


def test_promtool_finds_each_alarm_firing_and_quiet(fleet: Fleet) -> None:
    fleet.put("controller-1", "/run/rules/muster.rules.yml", alarms.rules_file())
    fleet.put("controller-1", "/run/rules/tests.yml", alarms.tests_file())
    said = fleet.sh("controller-1", "cd /run/rules && promtool check rules muster.rules.yml && promtool test rules tests.yml 2>&1")
    assert f"{len(alarms.ALARMS)} rules found" in said and said.count("SUCCESS") == 2
    # The control: an alarm that never fires is found.
    broken = alarms.rules_file().replace("muster_slurm_up == 0", "muster_slurm_up == 7")
    fleet.put("controller-1", "/run/rules/muster.rules.yml", broken)
    assert "MusterSlurmctldDown" in fleet.run("controller-1", "cd /run/rules && promtool test rules tests.yml 2>&1").stdout
    assert "SUCCESS" in fleet.sh("controller-1", "promtool check config /etc/prometheus/prometheus.yml")


def test_a_counter_of_efa_that_rises_reaches_prometheus(fleet: Fleet) -> None:
    counter = "/run/muster-rehearsal/sys/class/infiniband/*/ports/1/hw_counters/tx_bytes"
    fleet.sh("compute-1", f"for each in {counter}; do echo 4000000000 >$each; done")
    wait_for("the counter", lambda: [each for each in fleet.query("sum(node_amazonefa_tx_bytes)") if float(each["value"][1]) == 32 * 4e9])


def test_node_down(fleet: Fleet) -> None:
    fleet.containers().set_state("killed", ["compute-2"])
    try:
        assert has_its_text(fleet, "MusterNodeDown", instance="compute-2")["summary"] == "Node compute-2 does not answer."
    finally:
        fleet.containers().set_state("started", ["compute-2"])
    told(fleet, "MusterNodeDown", "resolved", instance="compute-2")


def test_disk_full(fleet: Fleet) -> None:
    disk = {"instance": "compute-1", "mountpoint": "/scratch"}
    fleet.sh("compute-1", "dd if=/dev/zero of=/scratch/fill bs=1M count=63 2>&1")
    assert "/scratch of compute-1 has " in has_its_text(fleet, "MusterDiskFull", **disk)["summary"]
    fleet.sh("compute-1", "rm /scratch/fill")
    told(fleet, "MusterDiskFull", "resolved", **disk)


def nodes(fleet: Fleet) -> set[str]:
    """The instances that Prometheus scrapes as nodes."""
    return {each["metric"]["instance"] for each in fleet.query('up{job="node"}')}


def test_nodes_that_slurm_gains_and_loses_are_targets_and_are_none(fleet: Fleet) -> None:
    """No playbook runs. The new node is another name of compute-2, so that an exporter answers there."""
    conf = "/etc/slurm/slurm.conf"
    address = fleet.sh("compute-2", "hostname -I").split()[0]
    # The type has EFA and GPUs. EFA's exporter runs on every node; that of the GPUs does not, so it is no target.
    more = f"NodeName=later-1 NodeAddr={address} Features=p5.48xlarge CPUs=1 State=UNKNOWN\nNodeName=later-2 CPUs=1 State=CLOUD"
    fleet.sh("controller-1", f"cp -p {conf} /run/slurm.conf; printf '{more}\n' >>{conf}; scontrol reconfigure")
    try:
        wait_for("the new node", lambda: fleet.query('up{job="node",instance="later-1",instance_type="p5.48xlarge"} == 1'), 2 * PERIOD + 15)
        assert "POWERED_DOWN" in fleet.sh("controller-1", "scontrol show node later-2")
        assert nodes(fleet) == {*NODES, "later-1"}
        assert {each["metric"]["job"] for each in fleet.query('up{instance="later-1"}')} == {"node", "efa"}
    finally:
        fleet.sh("controller-1", f"cp -p /run/slurm.conf {conf}; scontrol reconfigure")
    wait_for("its end", lambda: nodes(fleet) == set(NODES), 2 * PERIOD + 15)
    wait_for("all targets", lambda: fleet.run("controller-1", f"{WATCH} targets --expected 4 --discovered").code == 0)


def test_slurmctld_down(fleet: Fleet) -> None:
    """Targets stay as they are, and Prometheus knows since when the list is old."""
    written = "cat /var/lib/prometheus/muster-targets/*.json"
    before = fleet.sh("controller-1", written)
    fleet.sh("controller-1", "systemctl stop slurmctld")
    try:
        has_its_text(fleet, "MusterSlurmctldDown", instance="controller-1")
        asked = f"{WATCH} discovered --within {3 * PERIOD}"
        refused = wait_for("the check", lambda: (done := fleet.run("controller-1", asked)).code and done)
        assert "The targets last followed Slurm's nodes " in refused.stderr
        assert fleet.sh("controller-1", written) == before and nodes(fleet) == set(NODES)
        assert float(fleet.query("time() - muster_discovery_last_success_time_seconds")[0]["value"][1]) > 3 * PERIOD - 10
        said = "journalctl -u muster-discovery | grep 'Prometheus knows no node of Slurm'"
        wait_for("the reason", lambda: fleet.run("controller-1", said).code == 0)
    finally:
        fleet.sh("controller-1", "systemctl start slurmctld")
    told(fleet, "MusterSlurmctldDown", "resolved", instance="controller-1")


def test_job_stuck(fleet: Fleet) -> None:
    job = fleet.train("STOP")
    assert has_its_text(fleet, "MusterJobStuck", job_id=job)["run"] == "observed"
    fleet.sh("controller-1", f"scancel {job}")
    told(fleet, "MusterJobStuck", "resolved", job_id=job)


def test_loss_not_finite(fleet: Fleet) -> None:
    job = fleet.train("NAN")
    has_its_text(fleet, "MusterLossNotFinite", job_id=job)
    fleet.sh("controller-1", f"touch {LOGS}/checkpoints-{job}/mended")
    told(fleet, "MusterLossNotFinite", "resolved", job_id=job)
    fleet.sh("controller-1", f"scancel {job}")


def test_health_check_failed(fleet: Fleet) -> None:
    failed = {"instance": "compute-1", "check": "xid"}
    fleet.put("compute-1", f"{TEXTFILES}/muster_health.prom", health(xid=0))
    has_its_text(fleet, "MusterCheckFailed", **failed)
    fleet.put("compute-1", f"{TEXTFILES}/muster_health.prom", health(xid=1))
    told(fleet, "MusterCheckFailed", "resolved", **failed)


def test_another_password_is_named(fleet: Fleet) -> None:
    web = "/etc/prometheus/muster/web.yml"
    other = "$2b$10$abcdefghijklmnopqrstuuG1b1V2a3b4c5d6e7f8g9h0i1j2k3l4m5n"
    fleet.sh("compute-2", f"""cp -p {web} /run/web.yml; sed -i 's/"muster": "[^"]*/"muster": "{other}/' {web}""")
    try:
        asked = f"{WATCH} targets --expected 4 --discovered"
        found = wait_for("the refusal", lambda: (done := fleet.run("controller-1", asked)).code and done)
        assert "node of compute-2 (server returned HTTP status 401 Unauthorized)" in found.stderr + found.stdout
    finally:
        fleet.sh("compute-2", f"cp -p /run/web.yml {web}")
    wait_for("all targets", lambda: fleet.run("controller-1", asked).code == 0)


def test_prometheus_killed_loses_nothing(fleet: Fleet) -> None:
    before = float(fleet.query('count_over_time(up{job="node",instance="compute-1"}[1h])')[0]["value"][1])
    for unit in ("prometheus", "muster-exporter", "prometheus-node-exporter"):
        fleet.sh("controller-1", f"systemctl kill --signal=KILL {unit}")
    wait_for("all targets", lambda: fleet.run("controller-1", f"{WATCH} targets --expected 4 --discovered").code == 0)
    after = float(fleet.query('count_over_time(up{job="node",instance="compute-1"}[1h])')[0]["value"][1])
    assert after > before


def test_a_full_disk_of_the_metrics_is_told(fleet: Fleet) -> None:
    """Prometheus stores no sample then, not even of its failures. It goes on when there is room."""
    options = "/etc/default/prometheus"
    move = f"cp -p {options} /run/options; sed -i 's#^ARGS=\"#&--storage.tsdb.path=/metrics #' {options}"
    fleet.sh("controller-1", f"{move}; chown prometheus /metrics; systemctl restart prometheus")
    try:
        wait_for("samples", lambda: fleet.run("controller-1", f"{WATCH} targets --expected 4 --discovered").code == 0)
        wait_for("its own", lambda: fleet.query("prometheus_tsdb_wal_writes_failed_total"))
        fleet.run("controller-1", "cat /dev/zero >/metrics/fill")
        has_its_text(fleet, "MusterPrometheusStoresNothing", instance="controller-1")
        assert fleet.query("prometheus_tsdb_wal_writes_failed_total")[0]["value"][1] == "0", "the rules see no failure"
        fleet.sh("controller-1", "rm /metrics/fill")
        told(fleet, "MusterPrometheusStoresNothing", "resolved", instance="controller-1")
    finally:
        fleet.sh("controller-1", f"cp -p /run/options {options}; systemctl restart prometheus")
    wait_for("all targets", lambda: fleet.run("controller-1", f"{WATCH} targets --expected 4 --discovered").code == 0)


def test_second_converge_changes_nothing(fleet: Fleet) -> None:
    done = fleet.play("playbooks/provision.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", done.stdout, re.MULTILINE)) == dict.fromkeys(("localhost", *NODES), "0")


def test_the_report_draws_the_dashboards_of_the_run(fleet: Fleet, busy: str) -> None:
    others = {each["metric"]["job_id"] for each in fleet.query("muster_training_step")} - {busy}
    assert others, "trainings that ended before the run"
    parts = [{"ansible.builtin.import_playbook": str(ROOT / "playbooks" / name)} for name in ("validate.yml", "parts/metrics.yml")]
    (fleet.folder / "watched.yml").write_text(json.dumps(parts))
    done = fleet.play(str(fleet.folder / "watched.yml"))
    assert done.returncode == 0, done.stdout[-3000:]
    report = json.loads((fleet.folder / "runs" / NAME / "latest/report.json").read_text())
    drawn = [(chart["board"], chart["title"]) for chart in report["metrics"] if chart["series"] or chart["empty"]]
    boards = [board for board in dashboards.BOARDS if board.uid in ("muster-fleet", "muster-training")]
    assert drawn == [(board.uid.removeprefix("muster-"), panel.title) for board in boards for panel in board.panels]
    trained = {one["label"] for chart in report["metrics"] if chart["board"] == "training" for one in chart["series"]}
    assert trained == {f"{busy} observed"}, "only trainings that made a step in the run"
    working = {one["label"] for chart in report["metrics"] if chart["title"] == "CPU in use" for one in chart["series"]}
    assert working == set(NODES)


def test_a_receiver_that_there_is_not_changes_nothing(fleet: Fleet) -> None:
    done = fleet.play("playbooks/provision.yml", monitoring_receivers=[{"kind": "pager"}])
    assert done.returncode != 0
    assert "There is no receiver of kind pager (monitoring_receivers); the kinds are webhook, slack, sns, email." in done.stdout


def test_a_controller_without_slurm_is_watched(artifacts) -> None:
    plain = Fleet(artifacts.folder("plain"), "observe-plain", compute=1)
    plain.settings |= {"muster_components": ["common", "monitoring"], "monitoring_training_logs": ["/fsx/checkpoints-*/train.jsonl"]}
    artifacts.leave("fleet observe-plain", lambda: plain.play("playbooks/local_down.yml").check_returncode())
    for playbook in ("local_up", "provision"):
        done = plain.play(f"playbooks/{playbook}.yml")
        assert done.returncode == 0, done.stdout[-5000:]
    plain.put("controller-1", "/fsx/checkpoints-1/train.jsonl", RECORDED.read_text())
    plain.sh("controller-1", "chmod 0700 /fsx/checkpoints-1; chmod 0600 /fsx/checkpoints-1/train.jsonl")
    wait_for("the step of a training", lambda: [each for each in plain.query("muster_training_step") if float(each["value"][1]) > 0])
    assert plain.query("muster_slurm_up") == []
    assert plain.run("controller-1", "systemctl cat muster-discovery.timer").code != 0, "nothing follows Slurm where there is none"
    assert plain.sh("controller-1", f"{WATCH} rules") == f"all {len(alarms.ALARMS)} rules are evaluated"


def test_the_password_is_nowhere_else(fleet: Fleet) -> None:
    word = (fleet.state / "secrets/metrics-password").read_text().split()[0]
    for node in NODES:
        fleet.put(node, "/run/needle", word)
        places = {"/etc/prometheus/muster/password", "/etc/muster/metrics/password"}
        assert set(fleet.sh(node, "grep -rlF -f /run/needle /etc /var/log /usr/lib/muster 2>/dev/null || true").split()) == places
        # The command must not have the word itself, or it would find itself.
        said = fleet.sh(node, "{ ps ax -o args; journalctl --no-pager; } | grep -F -f /run/needle || true; rm /run/needle")
        assert said.replace(word, "PASSWORD") == ""
    for file in (fleet.folder / "runs").rglob("*"):
        assert not file.is_file() or word not in file.read_text(errors="replace")
    assert word not in (fleet.folder / "output.txt").read_text()
