# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What may go wrong with the metrics of a fleet: the cases that no other test has, and the list of where the others are tested."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import jinja2
import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import system as stand_in
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, dashboards, muster_endpoint

ROOT = Path(__file__).parents[2]
ROLES = ROOT / "roles"
# Each fault, and the files and tests that show what happens then. The proof observe runs the daemons for real.
FAULTS = {
    "exporter killed": [("tests/unit/test_observe_faults.py", "test_an_exporter_that_was_killed_comes_back")],
    "Prometheus killed while it writes": [("tests/proof/observe.py", "test_prometheus_killed_loses_nothing")],
    "disk of the metrics full": [
        ("tests/unit/test_observe_faults.py", "test_metrics_have_a_size_that_they_do_not_pass_and_a_full_disk_is_told"),
        ("tests/proof/observe.py", "test_disk_full"),
        ("tests/proof/observe.py", "test_a_full_disk_of_the_metrics_is_told"),
    ],
    "file of sysfs vanishes during a read": [
        ("tests/unit/test_efa_exporter.py", "test_a_file_that_vanishes_is_left_out_and_counted"),
        ("tests/unit/test_observe_faults.py", "test_a_device_that_vanishes_during_a_scrape_leaves_the_others"),
    ],
    "counter resets or wraps": [
        ("tests/unit/test_observe_faults.py", "test_a_counter_that_restarts_gives_right_rates"),
    ],
    "wrong password": [
        ("tests/unit/test_endpoint.py", "test_nobody_else_is_answered"),
        ("tests/proof/observe.py", "test_another_password_is_named"),
    ],
    "two fleets in one Prometheus": [
        ("tests/unit/test_dashboards.py", "test_every_query_is_of_one_fleet_and_has_no_variable_left"),
        ("tests/unit/test_alarms.py", "test_targets_follow_from_the_inventory"),
        ("tests/unit/test_alarms.py", "test_an_alarm_of_one_fleet_is_none_of_another"),
    ],
    "clock of a target is off": [("tests/unit/test_observe_faults.py", "test_a_target_s_clock_dates_no_sample_and_is_told_when_it_is_off")],
    "Slurm does not answer, or its list of nodes is malformed": [
        ("tests/unit/test_discovery.py", "test_a_bad_list_changes_nothing_and_says_since_when"),
        ("tests/proof/observe.py", "test_slurmctld_down"),
    ],
    "unknown receiver": [
        ("tests/unit/test_alarms.py", "test_faults_of_a_site_are_one_sentence"),
        ("tests/proof/observe.py", "test_a_receiver_that_there_is_not_changes_nothing"),
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_test(fault: str) -> None:
    for path, name in FAULTS[fault]:
        assert f"def {name}(" in (ROOT / path).read_text(), (path, name)


@pytest.fixture(scope="module")
def exporter() -> ModuleType:
    sys.modules.setdefault("muster_endpoint", muster_endpoint)
    spec = importlib.util.spec_from_file_location("muster_efa_exporter_faults", ROLES / "efa_exporter/files/muster-efa-exporter.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


UNITS = [path for role in ("efa_exporter", "monitoring") for path in sorted((ROLES / role / "templates").glob("*.service.j2"))]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_an_exporter_that_was_killed_comes_back(path: Path) -> None:
    """systemd starts it again after any end, without a number of tries after which it gives up."""
    lines = path.read_text().splitlines()
    if "Type=oneshot" in lines:
        assert "OnUnitActiveSec=" in path.with_name(path.name.replace(".service", ".timer")).read_text()
        return
    assert "Restart=always" in lines and "StartLimitIntervalSec=0" in lines
    [pause] = [line.partition("=")[2] for line in lines if line.startswith("RestartSec=")]
    assert 0 < int(pause) <= 10


def test_metrics_have_a_size_that_they_do_not_pass_and_a_full_disk_is_told() -> None:
    variables = yaml.safe_load((ROLES / "monitoring/vars/main.yml").read_text())
    defaults = yaml.safe_load((ROLES / "monitoring/defaults/main.yml").read_text())
    options = [jinja2.Template(each).render(**defaults) for each in variables["__monitoring_server_options"]]
    [size] = [each.partition("=")[2] for each in options if each.startswith("--storage.tsdb.retention.size=")]
    assert re.fullmatch(r"[1-9]\d*(MB|GB|TB)", size)
    full = next(alarm for alarm in alarms.ALARMS if alarm.name == "MusterDiskFull")
    [left_out] = {re.search(r'mountpoint!~"([^"]+)"', full.expr)[1]}  # type: ignore[index]
    assert not re.fullmatch(left_out, "/var/lib/prometheus") and not re.fullmatch(left_out, "/")


def test_a_device_that_vanishes_during_a_scrape_leaves_the_others(exporter: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """The driver is unloaded or a card resets: the exporter has listed the files, and then there are none."""
    files, links = stand_in.sys_files(rehearsal.rehearsal("p5.48xlarge"), [], {"nvidia_driver": "595.84", "neuron": ""})
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for path, target in links.items():
        os.symlink(tmp_path / target.removeprefix("/sys/"), tmp_path / path)
    efa = exporter.Efa(str(tmp_path))
    before = muster_endpoint.render(efa.collect()).decode()
    names = sorted({name for name in re.findall(r'\{device="([^"]+)"', before)})
    lost, kept = names[0], names[1]
    plain = exporter.listed

    def listed(folder: str) -> list:
        found = plain(folder)
        if folder.endswith(f"{lost}/hw_counters"):
            shutil.rmtree(tmp_path / "class/infiniband" / lost)
        return found

    monkeypatch.setattr(exporter, "listed", listed)
    after = muster_endpoint.render(efa.collect()).decode()
    errors = re.search(rf'read_errors_total{{device="{lost}"}} (\d+)', after)
    assert errors and int(errors[1]) == len(exporter.OF_DEVICES)
    assert f'node_amazonefa_tx_bytes{{device="{kept}",port="1"}} 0' in after
    assert f'node_amazonefa_tx_bytes{{device="{lost}"' not in after
    again = muster_endpoint.render(efa.collect()).decode()
    assert f"node_amazonefa_devices {len(names) - 1}\n" in again


def counters(exporter: ModuleType) -> set[str]:
    of_efa = {exporter.PREFIX + name for name in exporter.COUNTERS if name not in exporter.GAUGES}
    return of_efa | {"node_vmstat_oom_kill", "node_cpu_seconds_total"}


def bare_counters(expression: str, known: set[str]) -> list[str]:
    """The counters of an expression that no function reads which knows of restarts."""
    inside = re.sub(r"\b(?:rate|irate|increase|resets|changes)\([^()]*(?:\([^()]*\)[^()]*)*\)", "", expression)
    return [name for name in re.findall(r"\b[a-z]\w+", inside) if name in known or name.endswith("_total")]


def test_a_counter_that_restarts_gives_right_rates(exporter: ModuleType) -> None:
    """rate() and increase() take a smaller value for a restart. A difference of two values would be negative, or huge."""
    known = counters(exporter)
    asked = {alarm.name: alarm.expression() for alarm in alarms.ALARMS}
    asked.update({f"{board.uid}: {panel.title}": expression for board, panel, expression in dashboards.queries()})
    assert {name: found for name, expression in asked.items() if (found := bare_counters(expression, known))} == {}
    assert sum(name in expression for expression in asked.values() for name in known) > 10
    assert bare_counters("sum(node_amazonefa_tx_bytes - node_amazonefa_tx_bytes offset 5m) > rate(x_total[5m])", known) == [
        "node_amazonefa_tx_bytes",
        "node_amazonefa_tx_bytes",
    ]


def test_a_target_s_clock_dates_no_sample_and_is_told_when_it_is_off(exporter: ModuleType, tmp_path: Path) -> None:
    """Samples without a time get that of Prometheus, so that a target whose clock is off spoils no series."""
    lines = [line for line in muster_endpoint.render(exporter.Efa(str(tmp_path)).collect()).decode().splitlines() if line[0] != "#"]
    lines += muster_endpoint.render([("a", "gauge", "A.", [({"b": "c"}, 1)])]).decode().splitlines()[2:]
    assert len(lines) == 2 and all(re.fullmatch(r"\w+(\{.*\})? \S+", line) for line in lines)
    clock = next(alarm for alarm in alarms.ALARMS if alarm.name == "MusterClockOff")
    assert "abs(node_time_seconds - timestamp(node_time_seconds)) > 5" in clock.expression()
