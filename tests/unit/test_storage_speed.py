# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The speed of the shared file system beside its rate: the module with a stand-in of fio, the sum over nodes, the play of validate.yml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.node import storage_speed as logic
from ansible_collections.muster.fleet.plugins.modules import storage_speed as module

ROOT = Path(__file__).parents[2]
# The keys that fio 3.33's JSON has and the module reads; written by hand from fio's HOWTO.
RESULT = {"fio version": "fio-3.33", "jobs": [{"jobname": "muster", "error": 0, "write": {"bw_bytes": 0}, "read": {"bw_bytes": 0}}]}
FIO = """\
#!{python}
import json, os, sys
options = dict(each[2:].split("=", 1) for each in sys.argv[1:])
open(os.path.join(options["directory"], "muster.0.0"), "a").close()
open({log!r}, "a").write(json.dumps(options) + "\\n")
{more}
result = {result!r}
result["jobs"][0][options["rw"]]["bw_bytes"] = {{"write": 400_000_000, "read": 500_000_000}}[options["rw"]]
print("note: a warning of fio")
print(json.dumps(result))
"""


@pytest.fixture
def fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that puts a stand-in of fio first in PATH, and the folder that it measures."""
    (tmp_path / "fsx").mkdir()

    def put(more: str = "") -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        text = FIO.format(python=sys.executable, log=str(tmp_path / "asked"), result=RESULT, more=more)
        (tmp_path / "bin/fio").write_text(text)
        (tmp_path / "bin/fio").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(logic, "GRACE", 2)
    return put


def test_it_writes_then_reads_within_bounds_and_leaves_nothing(call, fio, tmp_path: Path) -> None:
    fio()
    result = call(module, path=str(tmp_path / "fsx"), seconds=3)
    assert (result["write"], result["read"], result["reason"], result["changed"]) == (400.0, 500.0, "", False)
    first, second = (json.loads(line) for line in (tmp_path / "asked").read_text().splitlines())
    assert (first["rw"], second["rw"], first["directory"]) == ("write", "read", second["directory"])
    for options in (first, second):
        assert (options["runtime"], options["time_based"], options["direct"]) == ("3", "1", "1"), "bounded, and past the page cache"
        assert int(options["numjobs"]) * int(options["size"].removesuffix("M")) == 1024
    assert os.listdir(tmp_path / "fsx") == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "sys.exit('fio: io_u error on file: Read-only file system')",
            "fio ended with code 1: fio: io_u error on file: Read-only file system",
        ),
        ("print('bad'); sys.exit(0)", "fio printed no result: bad"),
        (
            "result = 0; print(json.dumps({'jobs': [{'error': 5, 'write': {'bw_bytes': 9}}]})); sys.exit()",
            "fio ended with error 5 after 9e-06 MB/s",
        ),
        ("import time; time.sleep(60)", "fio did not end within 3 s"),
    ],
)
def test_what_kept_fio_from_its_work_is_the_reason(call, fio, tmp_path: Path, *, more: str, reason: str) -> None:
    fio(more)
    result = call(module, path=str(tmp_path / "fsx"), seconds=1)
    assert (result["reason"], "write" in result) == (reason, False)
    assert os.listdir(tmp_path / "fsx") == []


def test_without_fio_room_or_folder_nothing_was_measured(call, fio, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _name: None)
    assert call(module, path=str(tmp_path / "fsx"))["reason"] == "fio is not installed"
    monkeypatch.undo()
    assert call(module, path=str(tmp_path / "fsx"), check_mode=True)["reason"] == "a dry run measures nothing"
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    fio()
    assert call(module, path=str(tmp_path / "none"))["reason"] == f"{tmp_path}/none cannot be used: No such file or directory"
    monkeypatch.setattr(logic, "MIB", 1 << 40)
    assert "MiB free and the measurement asks for" in call(module, path=str(tmp_path / "fsx"))["reason"]
    assert not (tmp_path / "asked").exists()


GOOD = {"a": {"write": 300.0, "read": 400.0, "reason": ""}, "b": {"write": 500.0, "read": 300.0, "reason": ""}}


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        (GOOD, {"write": ("enough: 800 MB/s of all 2 nodes, the slowest is a with 300 MB/s", ""), "read": ("700 MB/s of all", "")}),
        (
            {**GOOD, "c": {"reason": "fio is not installed"}},
            {"write": ("", "c: fio is not installed"), "read": ("", "c: fio is not installed")},
        ),
        ({}, {"write": ("0 MB/s", "no node measured it"), "read": ("", "no node measured it")}),
    ],
)
def test_the_nodes_are_judged_together(measured: dict, wanted: dict) -> None:
    found = logic.verdicts(measured, 1000, 0.8)
    for kind, (value, not_run) in wanted.items():
        assert value in found[kind]["value"] and found[kind]["not_run"] == not_run
        assert found[kind]["expected"] == "at least 800 MB/s, 80 % of the rated 1000 MB/s"
    assert found["read"]["value"].startswith("enough: ") is False or not measured


@pytest.fixture
def play(tmp_path: Path, fio):
    """A function that runs the play of validate.yml on two hosts, and returns what it said."""
    plays = yaml.safe_load((ROOT / "playbooks/parts/validate.yml").read_text())
    [play] = [each for each in plays if each["name"] == "Measure the shared file system"]
    play["become"] = False
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"muster_compute": {"hosts": {"a": host, "b": host}}}))
    program = str(Path(sys.executable).with_name("ansible-playbook"))

    def run(**more: object) -> tuple[int, str]:
        command = [program, "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"), "-e", json.dumps(more)]
        env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, " ".join(done.stdout.split())

    fio()
    return run


def test_validate_judges_the_sum_of_the_nodes(play, tmp_path: Path) -> None:
    speed = {"path": str(tmp_path / "fsx"), "seconds": 1}
    code, said = play(muster_storage_speed={**speed, "rated": 1100})
    assert code == 2, said
    assert (
        "storage_speed.write_speed failed: the value differs (expected at least 880 MB/s, 80 % of the rated 1100 MB/s, found 800 MB/s of"
        in said
    )
    assert "storage_speed.read_speed" not in said, "1000 MB/s are enough"
    assert len((tmp_path / "asked").read_text().splitlines()) == 4
    code, said = play(muster_storage_speed={**speed, "rated": 900})
    assert code == 0, said


def test_validate_measures_nothing_that_is_not_rated(play, tmp_path: Path) -> None:
    assert play()[0] == 0
    assert not (tmp_path / "asked").exists()


def test_a_node_without_fio_is_not_run_and_allowed_only_by_name(play, tmp_path: Path) -> None:
    (tmp_path / "bin/fio").unlink()
    speed = {"path": str(tmp_path / "fsx"), "seconds": 1, "rated": 900}
    code, said = play(muster_storage_speed=speed)
    assert code == 2 and "storage_speed.write_speed could not run: a: fio is not installed; b: fio is not installed." in said, said
    names = ["storage_speed.write_speed", "storage_speed.read_speed"]
    assert play(muster_storage_speed=speed, muster_allow_not_run=names)[0] == 0
