# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The alarms as data, a site's changes, receivers, and what Prometheus scrapes. Proof observe runs them on a real Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from debian_package import unpacked

from ansible_collections.muster.fleet.plugins.filter.monitoring_faults import monitoring_faults
from ansible_collections.muster.fleet.plugins.filter.monitoring_files import monitoring_files
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, alertmanager, scrape

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "name": "controller-1",
    "interval": "15s",
    "alarms": {},
    "receivers": [],
    "runbooks": "https://wiki/runbooks",
    "remote_write": [],
    "openmetrics": False,
    "discovery": False,
    "slurm_nodes": [],
    "waits": {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h"},
}
HOSTVARS = {
    "controller-1": {"ansible_host": "10.0.0.2"},
    "compute-1": {"ansible_host": "i-0abc", "private_ip_address": "10.0.0.3", "instance_type": "p5.48xlarge"},
    "compute-2": {"ansible_host": "fd00::4"},
}
GROUPS = {
    "all": ["localhost", *HOSTVARS],
    "muster_controller": ["controller-1"],
    "muster_efa": ["compute-1"],
    "muster_gpu": ["compute-1"],
    "muster_monitoring": ["controller-1"],
}


def test_every_alarm_says_what_to_do_and_has_a_page() -> None:
    assert len({alarm.name for alarm in alarms.ALARMS}) == len(alarms.ALARMS) >= 40
    pages = set(re.findall(r"^## (.*)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE))
    for alarm in alarms.ALARMS:
        assert alarm.severity in alarms.SEVERITIES and len(alarm.remedy) > 40 and alarm.summary.endswith("."), alarm.name
        assert alarm.name in pages
        assert alarm.fires != alarm.quiet
        # With a value in the expression a site can change it, and without one it cannot.
        assert ("{value}" in alarm.expr) is (alarm.value is not None), alarm.name


def test_rules_carry_severity_remedy_and_page() -> None:
    document = yaml.safe_load(alarms.rules_file(runbooks="https://wiki/runbooks"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == [alarm.name for alarm in alarms.ALARMS]
    [full] = [rule for rule in rules if rule["alert"] == "MusterDiskFull"]
    assert full["labels"] == {"severity": "critical"} and full["for"] == "1m" and full["expr"].endswith("< 0.05")
    assert full["annotations"]["runbook_url"] == "https://wiki/runbooks#musterdiskfull"
    assert not [rule for rule in rules if "{value}" in json.dumps(rule)]


def test_a_site_changes_alarms() -> None:
    changed = {"MusterDiskFull": {"value": 0.1, "hold": "5s", "severity": "info"}, "MusterDrift": {"off": True}}
    rules = {rule["alert"]: rule for group in alarms.groups(changed) for rule in group["rules"]}
    assert "MusterDrift" not in rules
    assert (rules["MusterDiskFull"]["for"], rules["MusterDiskFull"]["labels"]["severity"]) == ("5s", "info")
    assert rules["MusterDiskFull"]["expr"].endswith("< 0.1")


FAULTS = {
    "unknown alarm": (
        {"monitoring_alarms": {"MusterDiscFull": {"value": 1}}},
        "There is no alarm MusterDiscFull (monitoring_alarms); docs/runbooks.md lists the alarms.",
    ),
    "unknown key": (
        {"monitoring_alarms": {"MusterDiskFull": {"for": "5m"}}},
        "Alarm MusterDiskFull has no for (monitoring_alarms); it has value, hold, severity and off.",
    ),
    "no value": (
        {"monitoring_alarms": {"MusterNodeDown": {"value": 1}}},
        "Alarm MusterNodeDown has no value to change (monitoring_alarms).",
    ),
    "no time": (
        {"monitoring_alarms": {"MusterNodeDown": {"hold": "soon"}}},
        "Alarm MusterNodeDown cannot hold soon (monitoring_alarms); give a time such as 5m.",
    ),
    "severity": (
        {"monitoring_alarms": {"MusterNodeDown": {"severity": "high"}}},
        "Alarm MusterNodeDown cannot have severity high (monitoring_alarms); choose one of critical, warning, info.",
    ),
    "receiver": (
        {"monitoring_receivers": [{"kind": "pager", "url": "https://x"}]},
        "There is no receiver of kind pager (monitoring_receivers); the kinds are webhook, slack, sns, email.",
    ),
    "channel": (
        {"monitoring_receivers": [{"kind": "slack", "url": "https://hooks"}]},
        "A receiver of kind slack has no channel (monitoring_receivers).",
    ),
    "url": (
        {"monitoring_receivers": [{"kind": "webhook", "url": "hooks"}]},
        "The url of a receiver of kind webhook must begin with http:// or https:// and name a host (monitoring_receivers).",
    ),
    "severity of a receiver": (
        {"monitoring_receivers": [{"kind": "webhook", "url": "https://x", "severities": ["critical", "critcal"]}]},
        "A receiver of kind webhook cannot take severities critcal (monitoring_receivers); give a list of critical, warning, info.",
    ),
    "severities": (
        {"monitoring_receivers": [{"kind": "webhook", "url": "https://x", "severities": "critical"}]},
        "A receiver of kind webhook cannot take severities critical (monitoring_receivers); give a list of critical, warning, info.",
    ),
    "topic": (
        {"monitoring_receivers": [{"kind": "sns", "topic": "fleet", "region": "us-east-1"}]},
        "The topic of a receiver of kind sns must be an ARN, not fleet (monitoring_receivers).",
    ),
    "key": (
        {"monitoring_receivers": [{"kind": "sns", "topic": "arn:x", "region": "r", "url": "https://x"}]},
        "A receiver of kind sns has no key url (monitoring_receivers).",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_site_are_one_sentence(fault: str) -> None:
    variables, said = FAULTS[fault]
    assert monitoring_faults(variables) == [said]


RECEIVERS: dict[str, dict] = {
    "webhook": {"kind": "webhook", "url": "http://127.0.0.1:1/"},
    "slack": {"kind": "slack", "url": "https://hooks/x", "channel": "#fleet", "severities": ["critical", "warning"]},
    "sns": {"kind": "sns", "topic": "arn:aws:sns:us-east-1:1:t", "region": "us-east-1", "severities": ["critical"]},
    "email": {"kind": "email", "to": "a@b", "from": "c@d", "smarthost": "mail:25", "severities": ["info"]},
}


def test_receivers_take_their_severities_and_hear_of_the_end() -> None:
    document = json.loads(alertmanager.configuration(RECEIVERS.values()))
    assert [route["continue"] for route in document["route"]["routes"]] == [True] * 4
    assert document["route"]["routes"][1]["matchers"] == ['severity=~"critical|warning"']
    for receiver in document["receivers"][1:]:
        [(_kind, [told])] = [(key, value) for key, value in receiver.items() if key != "name"]
        assert told["send_resolved"] is True
    assert json.loads(alertmanager.configuration([]))["receivers"] == [{"name": "nobody"}]


@pytest.fixture
def amtool(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Debian's amtool with a configuration as its file."""
    root = unpacked("prometheus-alertmanager", "amtool")

    def run(configuration: str, *argv: str) -> subprocess.CompletedProcess:
        (tmp_path / "alertmanager.yml").write_text(configuration)
        templates = root / "usr/share/prometheus/alertmanager"
        given = [each.format(file=tmp_path / "alertmanager.yml", templates=templates) for each in argv]
        return subprocess.run([root / "usr/bin/amtool", *given], check=False, capture_output=True, text=True, timeout=60)

    return run


CHECK = ("check-config", "{file}")


@pytest.mark.parametrize("kind", [*RECEIVERS, "all", "none"])
def test_amtool_reads_every_kind_of_receiver(amtool, kind: str) -> None:
    chosen = {"all": [*RECEIVERS.values()], "none": []}.get(kind) or [RECEIVERS[each] for each in RECEIVERS if each == kind]
    done = amtool(alertmanager.configuration(chosen), *CHECK)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done
    assert f" - {len(chosen) + 1} receivers" in done.stdout and " - 1 inhibit rules" in done.stdout


def test_amtool_routes_a_severity_to_those_who_take_it(amtool) -> None:
    def hear(receivers: list[dict], severity: str) -> set[str]:
        done = amtool(
            alertmanager.configuration(receivers), "config", "routes", "test", "--config.file={file}", f"severity={severity}", "alertname=A"
        )
        assert done.returncode == 0, done
        return set(done.stdout.strip().split(","))

    receivers = [*RECEIVERS.values()]
    assert hear(receivers, "critical") == {"receiver-1", "receiver-2", "receiver-3"}
    assert hear(receivers, "warning") == {"receiver-1", "receiver-2"}
    assert hear(receivers, "info") == {"receiver-1", "receiver-4"}
    assert hear([RECEIVERS["slack"]], "info") == hear([], "critical") == {"nobody"}


REFUSED = {
    "no host": {"kind": "webhook", "url": "http://"},
    "space": {"kind": "webhook", "url": "http://a b/"},
    "port of an url": {"kind": "slack", "url": "https://hooks:port/", "channel": "#fleet"},
    "no port": {"kind": "email", "to": "a@b", "from": "c@d", "smarthost": "mail"},
    "empty port": {"kind": "email", "to": "a@b", "from": "c@d", "smarthost": "mail:"},
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_amtool_refuses_is_a_sentence_before(amtool, monkeypatch, fault: str) -> None:
    [said] = monitoring_faults({"monitoring_receivers": [REFUSED[fault]]})
    assert said.startswith(("The url of a receiver of kind ", "The smarthost of a receiver of kind email must be HOST:PORT, not mail"))
    monkeypatch.setattr(alertmanager, "check", lambda _receiver: None)
    assert amtool(alertmanager.configuration([REFUSED[fault]]), *CHECK).returncode != 0


def test_amtool_renders_what_a_person_reads(amtool, tmp_path: Path) -> None:
    labels = {"alertname": "MusterDiskFull", "fleet": "local"}
    notes = [{"summary": f"Disk {each} is full.", "remedy": "Find what grows.", "runbook_url": "https://wiki#x"} for each in "ab"]
    told = [{"status": "firing", "labels": labels, "annotations": each, "startsAt": "2026-01-01T00:00:00Z"} for each in notes]
    (tmp_path / "data.json").write_text(json.dumps({"status": "firing", "alerts": told, "commonLabels": labels}))

    def rendered(text: str) -> str:
        argv = ("template", "render", f"--template.data={tmp_path}/data.json", "--template.glob={templates}/*.tmpl")
        # Braces of the template are none of the fixture's.
        done = amtool("", *argv, "--template.text=" + text.replace("{", "{{").replace("}", "}}"))
        assert done.returncode == 0, done
        return done.stdout

    assert rendered(alertmanager.TITLE).strip() == "[FIRING] MusterDiskFull in fleet local"
    lines = [line for each in "ab" for line in (f"Disk {each} is full.", "Find what grows.", "https://wiki#x")]
    assert rendered(alertmanager.TEXT).split("\n")[:6] == lines


def test_amtool_reads_the_definition_for_managed_prometheus(amtool) -> None:
    template = yaml.safe_load((ROOT / "cloudformation/observability.yaml").read_text())
    tells = template["Resources"]["Prometheus"]["Properties"]["AlertManagerDefinition"]["Fn::Sub"]
    tells = tells.replace("${Topic}", "arn:aws:sns:us-east-1:1:t").replace("${AWS::Region}", "us-east-1")
    done = amtool(yaml.safe_load(tells)["alertmanager_config"], *CHECK)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done


def test_targets_follow_from_the_inventory() -> None:
    files = {each["dest"]: each["content"] for each in monitoring_files(HOSTVARS, GROUPS, "f", SETTINGS)}
    read = {Path(dest).stem: json.loads(text) for dest, text in files.items() if "/targets/" in dest}
    assert [each["targets"] for each in read["f-node"]] == [["10.0.0.3:9100"], ["[fd00::4]:9100"], ["10.0.0.2:9100"]]
    assert read["f-node"][0]["labels"] == {"fleet": "f", "instance": "compute-1", "instance_type": "p5.48xlarge"}
    assert {job: len(entries) for job, entries in read.items() if entries} == {"f-node": 3, "f-muster": 1, "f-efa": 1, "f-dcgm": 1}
    with_slurm = scrape.targets(scrape.hosts(HOSTVARS, GROUPS, openmetrics=True), "f")
    assert with_slurm["slurm_jobs"] == [{"targets": ["10.0.0.2:6817"], "labels": {"fleet": "f", "instance": "controller-1"}}]


def test_what_leaves_its_host_has_tls_and_a_password() -> None:
    document = json.loads(scrape.configuration("f", "f.muster.internal", "controller-1"))
    for each in document["scrape_configs"]:
        plain = each["job_name"] in scrape.OWN  # slurmctld has no TLS
        assert (
            "basic_auth" in each and each["scheme"] == "https" and each["tls_config"]["server_name"] == "f.muster.internal"
        ) is not plain, each


BROKEN = {"prometheus.yml": '"scrape_configs"', "muster.rules.yml": '"expr"', "alertmanager.yml": '"receivers"'}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_is_read_by_its_program_before_it_is_written(tmp_path: Path, name: str) -> None:
    """By the command that the role runs. Prometheus writes to Managed Prometheus as docs/observe.md says."""
    [block] = re.findall(r"^monitoring_remote_write:\n(?:  .*\n)+", (ROOT / "docs/observe.md").read_text(), re.MULTILINE)
    remote = yaml.safe_load(block)["monitoring_remote_write"]
    assert remote[0]["sigv4"]["region"] in remote[0]["url"]
    settings = {**SETTINGS, "remote_write": remote, "receivers": [*RECEIVERS.values()]}
    [file] = [each for each in monitoring_files(HOSTVARS, GROUPS, "f", settings) if Path(each["dest"]).name == name]
    program = file["validate"][0]
    path = unpacked({"promtool": "prometheus", "amtool": "prometheus-alertmanager"}[program], program) / "usr/bin" / program
    for content, good in ((file["content"], True), (file["content"].replace(BROKEN[name], BROKEN[name].replace("e", "ee", 1)), False)):
        (tmp_path / name).write_text(content)
        argv = [path, *(each.replace("%s", str(tmp_path / name)) for each in file["validate"][1:])]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) is good, done


def test_an_alarm_of_one_fleet_is_none_of_another(tmp_path: Path) -> None:
    """Two fleets in one Prometheus, whose nodes have the same names: what fires in f is quiet in g."""
    promtool = unpacked("prometheus", "promtool") / "usr/bin/promtool"
    cases = []
    for alarm in alarms.ALARMS:
        both = {**alarm.fires, **{name.replace('fleet="f"', 'fleet="g"'): values for name, values in alarm.quiet.items()}}
        assert len(both) == len(alarm.fires) + len(alarm.quiet)
        expected = [{"labels": '{fleet="f"}', "value": 1}]
        asked = f'count by (fleet) (ALERTS{{alertname="{alarm.name}",alertstate="firing"}})'
        cases.append(
            {
                "name": alarm.name,
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in both.items()],
                "promql_expr_test": [{"expr": asked, "eval_time": f"{alarm.at}m", "exp_samples": expected}],
            }
        )
    (tmp_path / "muster.rules.yml").write_text(alarms.rules_file())
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["muster.rules.yml"], "evaluation_interval": "1m", "tests": cases}))
    done = subprocess.run([promtool, "test", "rules", "tests.yml"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_kubernetes_and_aws_have_the_same_alarms() -> None:
    objects = list(yaml.safe_load_all((ROOT / "kubernetes/monitoring/muster.yaml").read_text()))
    assert [each["kind"] for each in objects] == ["ServiceMonitor", "ServiceMonitor", "PrometheusRule"]
    assert objects[2]["spec"]["groups"] == alarms.groups()
    template = yaml.safe_load((ROOT / "cloudformation/observability.yaml").read_text())
    assert json.loads(template["Resources"]["Alarms"]["Properties"]["Data"])["groups"] == alarms.groups()
    tells = template["Resources"]["Prometheus"]["Properties"]["AlertManagerDefinition"]["Fn::Sub"]
    [inner] = [yaml.safe_load(tells)["alertmanager_config"]]
    assert json.loads(inner)["receivers"][0]["sns_configs"][0]["topic_arn"] == "${Topic}"
