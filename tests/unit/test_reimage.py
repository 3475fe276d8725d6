# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm's RebootProgram over the local cloud's API; slurmctld itself is not here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from local_cloud_api import AMI

PROGRAM = Path(__file__).parents[2] / "playbooks" / "files" / "reimage.py"


@pytest.fixture
def fleet(served, machines, ec2, tmp_path, monkeypatch) -> SimpleNamespace:
    """Two nodes, a newer AMI, and the program with a scontrol that records its arguments."""
    for key, value in served.env.items():
        monkeypatch.setenv(key, value)
    spec = importlib.util.spec_from_file_location("reimage", PROGRAM)
    assert spec and spec.loader
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    made = ec2.run_instances(ImageId=AMI, InstanceType="c6i.large", MinCount=2, MaxCount=2)["Instances"]
    nodes = {f"compute-{number}": each["InstanceId"] for number, each in enumerate(made, 1)}
    newer = ec2.create_image(InstanceId=made[0]["InstanceId"], Name="newer")["ImageId"]
    monkeypatch.setattr(program, "SETTINGS", str(tmp_path / "reimage.json"))
    told: list[tuple[str, ...]] = []

    def scontrol(*argv: str) -> str:
        told.append(argv)
        return "\n".join(nodes) if argv[1] == "hostnames" else ""

    monkeypatch.setattr(program, "scontrol", scontrol)

    def run(image: str, known: dict[str, str] = nodes) -> int:
        (tmp_path / "reimage.json").write_text(
            json.dumps({"region": "us-east-1", "image": image, "nodes": known, "told": str(tmp_path / "told")})
        )
        machines.done.clear()
        told.clear()
        return program.main(["compute-[1-2]"])

    came = tmp_path / "told"
    return SimpleNamespace(run=run, program=program, nodes=nodes, newer=newer, told=told, done=machines.done, machines=machines, came=came)


def replaced(fleet) -> list[tuple[str, object]]:
    return sorted((each[1], str(each[2])) for each in fleet.done if each[0] == "replace")


def test_every_node_gets_the_image_and_goes_back_the_same_way(fleet) -> None:
    assert fleet.run(fleet.newer) == 0
    assert [each[0] for each in replaced(fleet)] == sorted(fleet.nodes.values())
    assert all("image of " in str(each[1]) for each in replaced(fleet))
    assert fleet.run(AMI) == 0
    assert [each[0] for each in replaced(fleet)] == sorted(fleet.nodes.values())
    assert all("trixie" in str(each[1]) for each in replaced(fleet))
    assert {each.name: each.read_text() for each in fleet.came.iterdir()} == {node: f"{AMI}\n" for node in fleet.nodes}


@pytest.mark.parametrize("image", ["", AMI])
def test_what_has_the_image_is_rebooted(fleet, monkeypatch, image: str) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(fleet.machines, "stop", stopped.append)
    assert fleet.run(image) == 0
    assert (sorted(stopped), replaced(fleet)) == (sorted(fleet.nodes.values()), [])


def test_a_node_that_does_not_come_back_says_why(fleet, fault, capsys) -> None:
    fleet.machines.room = 0
    assert fleet.run(fleet.newer) == 1
    for node in fleet.nodes:
        resumed, drained = (each for each in fleet.told if each[1] == f"NodeName={node}")
        assert (resumed[2], drained[2]) == ("State=RESUME", "State=DRAIN")
        assert f"{fleet.newer} could not be put on i-" in drained[3]
        assert f"{fleet.newer} could not be put on i-" in (fleet.came / node).read_text()
    assert "compute-1: muster:reimage: " in capsys.readouterr().err


def test_an_unknown_node_is_drained_and_the_other_comes_back(fleet) -> None:
    assert fleet.run(fleet.newer, {"compute-1": fleet.nodes["compute-1"]}) == 1
    assert [each[0] for each in replaced(fleet)] == [fleet.nodes["compute-1"]]
    assert fleet.told[-1][1] == "NodeName=compute-2"
    assert "names no instance of compute-2; run playbooks/reimage.yml." in fleet.told[-1][3]


def test_the_playbook_hears_of_whatever_happens(fleet, monkeypatch) -> None:
    def broken(*_given: object) -> None:
        raise KeyError("TaskState")

    monkeypatch.setattr(fleet.program, "reimage", broken)
    assert fleet.run(fleet.newer) == 1
    assert (fleet.came / "compute-1").read_text() == "muster:reimage: KeyError: 'TaskState'\n"


def test_a_drain_that_fails_is_said_too(fleet, monkeypatch) -> None:
    fleet.machines.room = 0
    asked = fleet.program.scontrol

    def scontrol(*argv: str) -> str:
        if argv[0] == "update":
            raise fleet.program.ReimageError("scontrol update failed: no")
        return asked(*argv)

    monkeypatch.setattr(fleet.program, "scontrol", scontrol)
    assert fleet.run(fleet.newer) == 1
    assert (fleet.came / "compute-2").read_text().endswith(" It may not be drained: scontrol update failed: no\n")
