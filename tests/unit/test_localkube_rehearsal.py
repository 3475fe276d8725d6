# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Nodes of localkube that rehearse an instance type, as far as they can be seen without a cluster.

tests/proof/rehearsed_kubernetes.py starts one.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.containers.rehearsal import can_rehearse
from ansible_collections.muster.fleet.plugins.module_utils.containers.rehearsal import rehearsal as document_of
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes import facts
from localkube import LocalKubeError, programs, rehearsal
from localkube.cluster import Cluster

ROOT = Path(__file__).parents[2]
TYPES = [kind for kind in catalogue.names() if can_rehearse(kind)]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("kind", TYPES)
def test_a_node_offers_what_a_job_on_its_type_asks_for(kind: str) -> None:
    limits = catalogue.k8s_resources(kind)["limits"]
    asked = {name: str(count) for name, count in limits.items() if "/" in name}
    assert rehearsal.allocatable(kind) == asked
    # The checks of role kubernetes count the same names.
    node = {"metadata": {"name": "node1", "labels": rehearsal.labels(kind)}, "status": {"allocatable": rehearsal.allocatable(kind)}}
    [found] = facts.nodes([node])
    assert (found["type"], found["stand_in"]) == (kind, rehearsal.PLUGIN)
    assert facts.lacking([found], "gpu") == facts.lacking([found], "efa") == ""


@pytest.mark.parametrize("kind", TYPES)
def test_each_device_is_a_file_of_the_node_and_belongs_to_one_resource(kind: str) -> None:
    found = rehearsal.resources(kind).values()
    files = [path for each in found for path in each["devices"].values()]
    control = [path for each in found for path in each["control"]]
    assert len({*files, *control}) == len(files) + len(control)
    assert {*files, *control} <= set(document_of(kind)["devices"])


def test_the_stand_in_says_what_it_is() -> None:
    config, daemon = rehearsal.manifest("p5.48xlarge")
    assert "rehearsal" in daemon["metadata"]["name"]
    template = daemon["spec"]["template"]
    for about in (config["metadata"], daemon["metadata"], template["metadata"]):
        assert about["annotations"]["muster/rehearses"] == "p5.48xlarge"
        assert about["annotations"]["muster/rehearsal"].startswith("a stand-in for the device plugins of p5.48xlarge; no hardware")
    program = (ROOT / "localkube/build/device-plugin/main.go").read_text()
    assert f'name     = "{rehearsal.PLUGIN}"' in program
    assert "is a stand-in for the device plugins of %s; no hardware is behind its devices" in program
    # It reads what the manifest mounts.
    places = {each["name"]: each["mountPath"] for each in template["spec"]["containers"][0]["volumeMounts"]}
    assert f'document = "{places["devices"]}/{next(iter(config["data"]))}"' in program
    assert f'node     = "{places["dev"].removesuffix("/dev")}"' in program
    assert f'faults   = "{places["faults"]}/{Path(rehearsal.node.FAULTS).name}"' in program


def test_the_stand_in_speaks_the_api_of_the_kubelet_that_runs() -> None:
    module = (ROOT / "localkube/build/device-plugin/go.mod").read_text()
    assert f"k8s.io/kubelet v0{programs.KUBERNETES[1:]}\n" in module


def test_huge_pages_are_those_of_a_pod(tmp_path: Path) -> None:
    for kind, pages in (("p5.48xlarge", 2560), ("g5.xlarge", 0)):
        rehearsal.write(kind, tmp_path / kind)
        assert int((tmp_path / kind / "huge-pages").read_text()) == pages
    assert catalogue.k8s_resources("p5.48xlarge")["limits"]["hugepages-2Mi"] == f"{2 * 2560}Mi"
    assert json.loads((tmp_path / "g5.xlarge/allocatable.json").read_text()) == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            "p5.48xlarg",
            "Node node1 can rehearse only a type with GPUs or Neuron devices. The catalogue has no instance type p5.48xlarg; the nearest",
        ),
        ("c7i.large", "Node node1 can rehearse only a type with GPUs or Neuron devices."),
    ],
)
def test_a_type_that_nobody_can_rehearse_is_refused(kind: str, sentence: str) -> None:
    with pytest.raises(LocalKubeError) as caught:
        rehearsal.checked(kind)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("has", "asked", "sentence"),
    [
        (
            "p5.48xlarge",
            "g5.xlarge",
            "The cluster a rehearses p5.48xlarge; run make down ON=kubernetes FLEET=a before you start it with g5.xlarge.",
        ),
        ("", "g5.xlarge", "The cluster a rehearses no type; run make down ON=kubernetes FLEET=a before you start it with g5.xlarge."),
        ("p5.48xlarge", "", ""),
        ("p5.48xlarge", "p5.48xlarge", ""),
    ],
)
def test_a_cluster_that_runs_keeps_its_type(has: str, asked: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cluster = Cluster("a")
    (cluster.folder / "n1").mkdir(parents=True)
    for name in ("kubelet.yaml", "ready"):
        (cluster.folder / "n1" / name).touch()
    if has:
        (cluster.folder / "type").write_text(f"{has}\n")
    with (cluster.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if sentence:
            with pytest.raises(LocalKubeError) as caught:
                cluster.up(1, [], kind=asked)
            assert str(caught.value) == sentence
        else:
            assert cluster.up(1, [], kind=asked) is False
            assert cluster.rehearses() == has
