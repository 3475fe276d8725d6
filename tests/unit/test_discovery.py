# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Targets that follow Slurm's nodes: what Slurm says, by way of muster-exporter and Prometheus, and what becomes of bad answers."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.filter.monitoring_files import monitoring_files
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms, muster_discovery, muster_endpoint, scrape

ROOT = Path(__file__).parents[2]
FILES = ROOT / "roles/monitoring/files"
RECORDED = json.loads((ROOT / "tests/fixtures/slurm/scontrol_nodes.json").read_text())["nodes"]
NOW = 1795260480
HOSTVARS = {
    "controller-1": {"ansible_host": "10.0.0.2"},
    "compute-1.site": {"ansible_host": "10.0.0.3", "instance_type": "p5.48xlarge"},
    "compute-2": {"ansible_host": "fd00::4"},
    "login-1": {"ansible_host": "10.0.0.5"},
}
GROUPS = {
    "all": list(HOSTVARS),
    "muster_controller": ["controller-1"],
    "muster_compute": ["compute-1.site", "compute-2", "controller-1"],
    "muster_efa": ["compute-1.site"],
    "muster_gpu": ["compute-1.site"],
    "muster_monitoring": ["controller-1"],
}
SETTINGS: dict[str, Any] = {
    "name": "controller-1",
    "interval": "15s",
    "alarms": {},
    "receivers": [],
    "runbooks": "https://wiki/runbooks",
    "remote_write": [],
    "openmetrics": False,
    "discovery": True,
    "slurm_nodes": GROUPS["muster_compute"],
    "waits": {},
}


def program(name: str) -> ModuleType:
    sys.modules.setdefault("muster_endpoint", muster_endpoint)
    sys.modules.setdefault("muster_discovery", muster_discovery)
    spec = importlib.util.spec_from_file_location(name.replace("-", "_") + "_of_discovery", FILES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXPORTER, WATCH = program("muster-exporter"), program("muster-watch")


def rendered(**changes: Any) -> dict[str, str]:
    return {Path(each["dest"]).name: each["content"] for each in monitoring_files(HOSTVARS, GROUPS, "f", {**SETTINGS, **changes})}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "targets").mkdir()
    return {**json.loads(rendered()["discovery.json"]), "folder": str(tmp_path / "targets")}


@pytest.fixture
def textfile(tmp_path: Path) -> str:
    return str(tmp_path / "muster_discovery.prom")


def slurm(name: str, *states: str, **more: Any) -> dict[str, Any]:
    """A node as Slurm's JSON has it."""
    [recorded, *_others] = RECORDED
    return {**recorded, "features": [], "active_features": [], "name": name, "address": name, "state": list(states), **more}


def answer(*nodes: dict[str, Any]) -> list[dict[str, Any]]:
    """What Prometheus answers when muster-exporter has read these nodes."""
    [samples] = [family[3] for family in EXPORTER.node_metrics(nodes) if family[0] == muster_discovery.METRIC]
    # Prometheus leaves out empty labels.
    return [
        {"metric": {"fleet": "f", **{key: each for key, each in labels.items() if each}}, "value": [NOW, str(value)]}
        for labels, value in samples
    ]


def addresses(settings: dict[str, Any], job: str = "node") -> dict[str, str]:
    entries = json.loads(Path(muster_discovery.target_file(settings, job)).read_text())
    return {each["labels"]["instance"]: each["targets"][0] for each in entries}


def follow(settings: dict[str, Any], result: Any, now: int, textfile: str, quiet: tuple[str, ...] = ()) -> str:
    """As the program does it; nothing listens at the endpoints in quiet."""
    return muster_discovery.follow(settings, result, now, lambda address: "%s:%d" % address not in quiet, textfile)


STILL = [slurm("compute-1", "IDLE"), slurm("compute-2", "ALLOCATED")]


def test_recorded_nodes_of_slurm_24_11_are_the_inventory_s_targets(settings, textfile) -> None:
    said = follow(settings, answer(*RECORDED), NOW, textfile)
    assert said == "2 of Slurm's 2 nodes are on; new targets for node, efa, dcgm"
    assert addresses(settings) == {"compute-1.site": "10.0.0.3:9100", "compute-2": "[fd00::4]:9100"}
    assert addresses(settings, "efa") == {"compute-1.site": "10.0.0.3:9109"}
    static = json.loads(rendered()["f-node.json"]) + json.loads(Path(muster_discovery.target_file(settings, "node")).read_text())
    plain = json.loads(rendered(discovery=False)["f-node.json"])
    assert sorted(static, key=str) == sorted(plain, key=str), "the same targets by another way"
    assert follow(settings, answer(*RECORDED), NOW + 60, textfile).endswith("; no change")
    assert muster_discovery.succeeded(textfile) == NOW + 60


def test_hosts_that_are_no_node_of_slurm_stay(settings, textfile) -> None:
    """The controller runs jobs too; its targets are the inventory's, whatever Slurm says."""
    nodes = [*STILL, slurm("controller-1", "IDLE", "POWERED_DOWN"), slurm("login-1", "IDLE")]
    follow(settings, answer(*nodes), NOW, textfile)
    assert set(addresses(settings)) == {"compute-1.site", "compute-2"}
    assert {each["labels"]["instance"] for each in json.loads(rendered()["f-node.json"])} == {"controller-1", "login-1"}


def test_a_node_comes_and_goes(settings, textfile) -> None:
    cloud = {"address": "10.0.9.9", "features": ["p5.48xlarge"]}
    follow(settings, answer(*STILL, slurm("gpu-1", "IDLE", "CLOUD", "POWERED_DOWN")), NOW, textfile)
    assert set(addresses(settings)) == {"compute-1.site", "compute-2"}
    follow(settings, answer(*STILL, slurm("gpu-1", "ALLOCATED", "CLOUD", "POWERING_UP", **cloud)), NOW, textfile)
    assert "gpu-1" not in addresses(settings), "its exporters do not run yet"
    follow(settings, answer(*STILL, slurm("gpu-1", "ALLOCATED", "CLOUD", **cloud)), NOW, textfile)
    assert addresses(settings)["gpu-1"] == "10.0.9.9:9100"
    assert addresses(settings, "efa")["gpu-1"] == "10.0.9.9:9109" and addresses(settings, "dcgm")["gpu-1"] == "10.0.9.9:9400"
    [entry] = [each for each in json.loads(Path(muster_discovery.target_file(settings, "node")).read_text()) if "gpu" in str(each)]
    assert entry["labels"] == {"fleet": "f", "instance": "gpu-1", "instance_type": "p5.48xlarge"}
    follow(settings, answer(slurm("compute-2", "IDLE"), slurm("gpu-1", "IDLE", "CLOUD", "POWERING_DOWN")), NOW, textfile)
    assert set(addresses(settings)) == {"compute-2"}, "Slurm has compute-1 no more, and powers gpu-1 down"


def unwatched(textfile: str) -> str:
    [line] = [line for line in Path(textfile).read_text().splitlines() if line.startswith(muster_discovery.UNWATCHED)]
    return line.partition(" ")[2]


def test_a_new_node_is_a_target_when_its_exporter_has_answered(settings, textfile) -> None:
    """The image of a node that configures itself may have no exporter; that is no node that is down."""
    nodes = answer(*STILL, slurm("gpu-1", "IDLE", "CLOUD", address="fd00::9", features=["p5.48xlarge"]))
    none = ("fd00::9:9100", "fd00::9:9109", "fd00::9:9400")
    said = follow(settings, nodes, NOW, textfile, none)
    assert said.startswith("3 of Slurm's 3 nodes are on; 1 have no node exporter (gpu-1); new targets")
    assert "gpu-1" not in addresses(settings) and unwatched(textfile) == "1"
    follow(settings, nodes, NOW, textfile, none[1:])
    assert addresses(settings)["gpu-1"] == "[fd00::9]:9100" and "gpu-1" not in addresses(settings, "efa")
    assert unwatched(textfile) == "0", "a node without EFA's exporter is watched"
    follow(settings, nodes, NOW, textfile, none)
    assert "gpu-1" in addresses(settings), "it answered once, so it is down now"
    follow(settings, answer(*STILL), NOW, textfile)
    follow(settings, nodes, NOW, textfile, none)
    assert "gpu-1" not in addresses(settings), "another life of the node"


def test_a_node_of_the_inventory_is_a_target_although_it_never_answered(settings, textfile) -> None:
    follow(settings, answer(*STILL), NOW, textfile, ("10.0.0.3:9100", "fd00::4:9100"))
    assert set(addresses(settings)) == {"compute-1.site", "compute-2"}


def test_a_knock_needs_somebody_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert muster_discovery.knock(address)
    assert not muster_discovery.knock(address)
    assert not muster_discovery.knock(("no-such-host.invalid", 9100)) and not muster_discovery.knock(("a" * 70, 9100))


@pytest.mark.parametrize("states", [["DOWN", "NOT_RESPONDING"], ["DOWN", "CLOUD", "NOT_RESPONDING"], ["IDLE", "DRAIN"], ["UNKNOWN"]])
def test_a_node_that_is_lost_stays_a_target(settings, textfile, states) -> None:
    follow(settings, answer(slurm("compute-2", *states)), NOW, textfile)
    assert set(addresses(settings)) == {"compute-2"}


def test_a_node_of_the_inventory_has_slurm_s_address_only_in_the_cloud(settings, textfile) -> None:
    nodes = [slurm("compute-1", "IDLE", "CLOUD", address="10.0.9.9"), slurm("compute-2", "IDLE", address="192.168.0.4")]
    follow(settings, answer(*nodes), NOW, textfile)
    assert addresses(settings) == {"compute-1.site": "10.0.9.9:9100", "compute-2": "[fd00::4]:9100"}


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ([], "Prometheus knows no node of Slurm; look at muster-exporter and scontrol ping"),
    "no list": ({"a": 1}, "Prometheus knows no node of Slurm"),
    "a page": (["<html>"], "Prometheus answers with an entry that is no node: '<html>'."),
    "no address": ([{"metric": {"node": "a"}, "value": [0, "1"]}], "Prometheus answers with an entry that is no node"),
    "a path": (answer(slurm("../a", "IDLE", address="a")), "Slurm names a node '../a', which is no name of a host"),
    "a line": (answer(slurm("a\n", "IDLE", address="a")), "Slurm names a node"),
    "an address": (answer(slurm("a", "IDLE", address="a:22/x?")), "Slurm gives node a the address 'a:22/x?', which is none"),
    "twice": (answer(slurm("a", "IDLE"), slurm("a", "IDLE", address="b")), "Two controllers have node a"),
    "no number": ([{"metric": {"node": "a", "address": "a"}, "value": [0, "NaN"]}], "Prometheus says 'NaN' of node a"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_list_changes_nothing_and_says_since_when(settings, textfile, case: str) -> None:
    """One bad entry among good ones, too."""
    result, sentence = BAD[case]
    follow(settings, answer(*STILL), NOW, textfile)
    before = {path.name: path.read_text() for path in Path(settings["folder"]).iterdir()}
    mixed = [result, [*answer(*STILL), *result]] if isinstance(result, list) and result else [result]
    for each in mixed:
        with pytest.raises(muster_discovery.DiscoveryError) as caught:
            follow(settings, each, NOW + 600, textfile)
        assert str(caught.value).startswith(sentence)
        assert {path.name: path.read_text() for path in Path(settings["folder"]).iterdir()} == before
    assert muster_discovery.succeeded(textfile) == NOW


def test_until_slurm_has_answered_the_inventory_counts(settings, textfile) -> None:
    with pytest.raises(muster_discovery.DiscoveryError):
        follow(settings, [], NOW, textfile)
    assert set(addresses(settings)) == {"compute-1.site", "compute-2"} and muster_discovery.succeeded(textfile) == 0
    with pytest.raises(muster_discovery.DiscoveryError, match="have never followed Slurm's nodes"):
        muster_discovery.current(settings, 180, NOW, 0, textfile)


def test_the_check_wants_a_list_that_is_new(settings, textfile) -> None:
    with pytest.raises(muster_discovery.DiscoveryError, match="have never followed"):
        muster_discovery.current(settings, 180, NOW, 0, textfile)
    follow(settings, answer(*STILL), NOW, textfile)
    assert muster_discovery.current(settings, 180, NOW + 180, NOW - 5.5, textfile) == "current: 4 targets of Slurm's nodes, 180 s old"
    with pytest.raises(muster_discovery.DiscoveryError, match="last followed Slurm's nodes 181 s ago; look at journalctl"):
        muster_discovery.current(settings, 180, NOW + 181, 0, textfile)
    with pytest.raises(muster_discovery.DiscoveryError, match="since the inventory changed"):
        muster_discovery.current(settings, 180, NOW, NOW + 1.5, textfile)
    Path(muster_discovery.target_file(settings, "efa")).unlink()
    with pytest.raises(muster_discovery.DiscoveryError, match=r"f-efa\.json does not exist"):
        muster_discovery.current(settings, 180, NOW, 0, textfile)


def test_a_file_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    assert muster_discovery.write(str(path), "[]\n") and not muster_discovery.write(str(path), "[]\n")
    assert path.stat().st_mode & 0o777 == 0o644, "Prometheus reads it as another user"

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(muster_discovery.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        muster_discovery.write(str(path), "[1]\n")
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"] and path.read_text() == "[]\n"


def test_the_program_waits_for_an_answer_and_gives_up(settings, textfile, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [OSError("refused"), [], answer(*STILL)]
    asked = []

    def ask(path: str, **query: str) -> dict[str, Any]:
        asked.append((path, query["query"]))
        found = answers.pop(0) if answers else []
        if isinstance(found, Exception):
            raise found
        return {"result": found}

    monkeypatch.setattr(WATCH, "ask", ask)
    monkeypatch.setattr(muster_discovery.follow, "__defaults__", (lambda _address: True, textfile))
    monkeypatch.setattr(muster_discovery.start, "__defaults__", (textfile,))
    assert WATCH.discover(settings, patience=60, pause=0).startswith("2 of Slurm's 2 nodes are on")
    assert asked == [("query", 'muster_slurm_node_on{job="muster",fleet="f"}')] * 3
    with pytest.raises(muster_discovery.DiscoveryError, match="knows no node"):
        WATCH.discover(settings, patience=0, pause=0)


def test_prometheus_reads_both_lists_only_where_nodes_are_discovered() -> None:
    def files(**changes: Any) -> dict[str, list[str]]:
        document = json.loads(rendered(**changes)["prometheus.yml"])
        return {each["job_name"]: each["file_sd_configs"][0]["files"] for each in document["scrape_configs"] if "file_sd_configs" in each}

    assert files()["efa"] == [f"{scrape.TARGETS}/f-efa.json", f"{scrape.DISCOVERED}/f-efa.json"]
    assert files()["muster"] == [f"{scrape.TARGETS}/f-muster.json"]
    plain = rendered(discovery=False)
    assert "discovery.json" not in plain and scrape.DISCOVERED not in plain["prometheus.yml"]
    assert len(json.loads(plain["f-node.json"])) == len(HOSTVARS)


def test_the_paths_of_the_role_are_the_program_s() -> None:
    variables = yaml.safe_load((ROOT / "roles/monitoring/vars/main.yml").read_text())
    assert variables["__monitoring_discovered"] == scrape.DISCOVERED
    assert WATCH.DISCOVERY == scrape.SETTINGS == "/etc/prometheus/muster/discovery.json"
    assert muster_discovery.TEXTFILE in str(variables["__monitoring_server_files"])
    service = (ROOT / "roles/monitoring/templates/muster-discovery.service.j2").read_text()
    [writes] = [line.partition("=")[2] for line in service.splitlines() if line.startswith("ReadWritePaths=")]
    assert scrape.DISCOVERED.startswith(writes + "/") and muster_discovery.TEXTFILE.startswith(writes + "/")


def test_a_list_that_nobody_renews_is_an_alarm() -> None:
    [alarm] = [each for each in alarms.ALARMS if each.name == "MusterDiscoveryStale"]
    assert alarm.expression() == f"time() - {muster_discovery.SUCCESS} > 600"
