# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A fleet of node containers as a whole: added nodes, memory and disk of the machine, and its record."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from node_container_fakes import FakeRun, engine, node, record

from ansible_collections.muster.fleet.plugins.module_utils.containers import engine as container_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers import fleet as fleets
from ansible_collections.muster.fleet.plugins.module_utils.containers import network, ssh, state, systemd
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Finished, NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage

# Nodes that come one by one


def test_a_node_is_added_from_its_own_image_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "available_memory_mib", lambda _text: 10**6)
    monkeypatch.setattr(fleets, "free_disk_mib", lambda _path: 10**6)
    monkeypatch.setattr(fleets, "recall", lambda *_: True)
    monkeypatch.setattr(systemd, "recall", lambda *_: True)
    network = Finished(0, json.dumps([{"name": "muster-demo", "subnets": [{"subnet": "10.213.9.0/24"}]}]), "")
    run = FakeRun({"podman ps": Finished(0, "", ""), "podman network inspect": network, "podman image inspect": Finished(0, "[]", "")})
    run.answers["podman network ls"] = Finished(0, "muster-demo\n", "")
    run.answers["podman run"] = Finished(0, "id", "")
    fleet = Fleet("demo", engine(run=run), tmp_path / "state", tmp_path / "cache")
    assert fleet.add(node("i-1"), NodeImage(), {"user-data": b"#!/bin/sh"}) == "10.213.9.2"
    assert fleet.add(node("i-2"), NodeImage(reference="localhost/saved:1"), {}) == "10.213.9.3"
    assert [(each["name"], each["address"]) for each in state.read_record(tmp_path / "state")["nodes"]] == [
        ("i-1", "10.213.9.2"),
        ("i-2", "10.213.9.3"),
    ]
    started = [argv for argv in run.seen if argv[1] == "run"]
    assert [argv[-4] for argv in started] == [NodeImage().name, "localhost/saved:1"]
    data = tmp_path / "state/hostkeys/i-1/user-data"
    assert (data.read_bytes(), stat.S_IMODE(data.stat().st_mode)) == (b"#!/bin/sh", 0o700)


def test_images_of_a_fleet_are_removed_by_its_label_alone(tmp_path: Path) -> None:
    run = FakeRun({"podman images": Finished(0, "localhost/a:1\n<none>:<none>\nlocalhost/b:2\n", ""), "podman rmi": Finished(0, "", "")})
    Fleet("demo", engine(run=run), tmp_path, tmp_path).remove_images()
    assert "label=muster.fleet=demo" in run.seen[0]
    assert run.seen[1:] == [["podman", "rmi", "--force", "localhost/a:1", "localhost/b:2"]]


RACED = {
    "images": Finished(125, "", 'Error: retrieving label for image "1a2b": image not known\n'),
    "container": Finished(125, "", "Error: inspecting object: no such container 4d7f74cecb01\n"),
    "network": Finished(
        125, "", "Error: inspecting object: network gone: unable to find network with name or ID gone: network not found\n"
    ),
}
FOUND = {
    "images": (lambda podman: podman.image_names("muster.fleet=demo"), [], [Finished(0, "localhost/a:1\n", "")], ["localhost/a:1"]),
    "container": (
        lambda podman: podman.containers("muster.fleet=demo"),
        [Finished(0, "aa bb\n", "")],
        [Finished(0, "bb\n", ""), Finished(0, '[{"Id": "bb"}]', "")],
        [{"Id": "bb"}],
    ),
    "network": (
        lambda podman: podman.networks(),
        [Finished(0, "podman gone\n", "")],
        [Finished(0, "podman\n", ""), Finished(0, '[{"name": "podman"}]', "")],
        [{"name": "podman"}],
    ),
}


@pytest.mark.parametrize("what", RACED)
def test_a_look_at_many_is_taken_again_where_one_went_meanwhile(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded from podman 4.3 on Debian 12, where another process removed one between its own two looks or ours."""
    monkeypatch.setattr(container_engine.time, "sleep", lambda _seconds: None)
    look, before, after, found = FOUND[what]
    raced = [*before, RACED[what]]
    answers = raced * 4 + after + raced * 5
    podman = engine(run=lambda _argv, timeout=0: answers.pop(0))
    assert look(podman) == found
    with pytest.raises(NodeContainerError, match=f"podman {what} failed: {re.escape(RACED[what].stderr.strip())}"):
        look(podman)
    assert not answers


# Room on the machine


def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, disk: int) -> list[list[str]]:
    run = FakeRun({"podman ps": Finished(0, "", ""), "podman image inspect": Finished(0, "[]", "")})
    monkeypatch.setattr(fleets, "available_memory_mib", lambda _text: memory)
    monkeypatch.setattr(fleets, "free_disk_mib", lambda _path: disk)
    try:
        Fleet("demo", engine(run=run), tmp_path / "state", tmp_path / "cache").present([node("a"), node("b")], NodeImage())
    finally:
        assert not (tmp_path / "state").exists()
    return run.seen


def test_too_little_memory_is_refused_before_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeContainerError, match="Fleet demo needs 4096 MiB of memory, 1000 MiB are free"):
        room(tmp_path, monkeypatch, memory=1000, disk=100000)


def test_too_little_disk_is_refused_before_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeContainerError, match="Fleet demo needs 2000 MiB of disk in /, 900 MiB are free"):
        room(tmp_path, monkeypatch, memory=100000, disk=900)


def test_available_memory() -> None:
    assert fleets.available_memory_mib("MemTotal: 1 kB\nMemAvailable:   23541000 kB\n") == 22989


# State


def test_dry_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun({"podman ps": Finished(0, "", ""), "podman image inspect": Finished(0, "[]", "")})
    monkeypatch.setattr(fleets, "available_memory_mib", lambda _text: 10**6)
    monkeypatch.setattr(fleets, "free_disk_mib", lambda _path: 10**6)
    fleet = Fleet("demo", engine(run=run, dry=True), tmp_path / "state", tmp_path / "cache")
    assert fleet.present([node("a")], NodeImage()).create == ["a"]
    assert not (tmp_path / "state").exists()
    assert {argv[1] for argv in run.seen} == {"ps", "image"}


def test_damaged_record(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{")
    with pytest.raises(NodeContainerError, match="is damaged"):
        state.read_record(tmp_path)


def test_hosts_file_is_rewritten_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    state.rewrite(path, network.hosts_text(record("a", "b")["nodes"]))
    before = path.stat().st_ino
    state.rewrite(path, network.hosts_text(record("a")["nodes"]))
    assert path.stat().st_ino == before
    assert path.read_text().splitlines()[2:] == ["10.213.5.2 a"]


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = tmp_path / "ssh/id_ed25519"
    ssh.make_key(key, "muster-demo")
    first = key.read_bytes()
    ssh.make_key(key, "muster-demo")
    assert key.read_bytes() == first
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.with_name("id_ed25519.pub").read_text().endswith("muster-demo\n")
    assert len(list(key.parent.iterdir())) == 2
