# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A check that looked at a stand-in is not_run, with what it would have said, and fails its host where it would have failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.node import check, manifest, rehearsal

ROOT = Path(__file__).parents[2]
NODE = {"instance_type": "p5.48xlarge", "stand_ins": ["nvidia-smi"], "devices": ["/dev/nvidia0", "/dev/neuron0"]}
SAYS = "muster rehearsal: {} is a stand-in for p5.48xlarge; it looked at no hardware"


def record(probe: dict, out: str = "", err: str = "", code: int = 0, node: dict | None = None) -> dict:
    """The record of one check whose command prints `out` and `err`."""
    return check.run_check(
        {"check": "it", "remedy": "Mend it.", **probe}, "dcgm", "node", run=lambda _argv, **_more: (code, out, err), rehearsed=node
    )


def test_a_program_that_names_itself_as_a_stand_in_has_not_passed() -> None:
    found = record({"argv": ["tool"], "matches": "^8 GPUs"}, "8 GPUs found", SAYS.format("dcgmi"))
    assert (found["status"], found["rehearsed"], found["found"]) == ("not_run", "passed", "8 GPUs found")
    assert found["reason"] == "it looked at a stand-in (dcgmi) and would have passed"


def test_the_reason_of_a_failure_is_kept() -> None:
    found = record({"argv": ["tool"], "matches": "^8 GPUs"}, "7 GPUs found", SAYS.format("dcgmi"))
    assert (found["status"], found["rehearsed"], found["found"]) == ("not_run", "failed", "7 GPUs found")
    assert found["reason"].endswith("(dcgmi) and would have failed: tool printed something else: 7 GPUs found")


def test_a_program_of_the_system_has_passed_also_on_a_node_that_rehearses() -> None:
    found = record({"argv": ["uname", "-r"], "matches": "6"}, "6.12", node=NODE)
    assert found["status"] == "passed"
    assert "rehearsed" not in found


@pytest.mark.parametrize(
    "probe",
    [
        # The shell hides what the stand-in says on stderr, and the pipe its name's answer.
        {"argv": ["sh", "-c", "nvidia-smi -L 2>/dev/null | wc -l"]},
        {"argv": ["sh", "-c", "ls /dev/nvidia0 >/dev/null && echo there"]},
        {"argv": ["sh", "-c", "ls -d /dev/neuron[0-9]* | wc -l"]},
        {"file": "/dev/nvidia0"},
        {"value": "8", "equals": "8", "rehearsed": ["devices of p5.48xlarge"]},
        # Where the value comes from is not said, so it may be a stand-in.
        {"value": "8", "equals": "8"},
    ],
)
def test_what_a_check_names_counts_where_nothing_is_said(probe: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setitem(check.PROBES, "file", lambda *_args: check.outcome("passed", "present"))
    monkeypatch.setattr(rehearsal.in_command, "__defaults__", (rehearsal.shutil.which,))
    assert record(probe, "8", node=NODE)["status"] == "not_run"
    if not probe.get("rehearsed"):
        assert record(probe, "8")["status"] == "passed"


def test_stand_ins_by_their_content(tmp_path: Path) -> None:
    label = SAYS.format("libnccl")
    library, tool, build = tmp_path / "libnccl.so.2", tmp_path / "tool", tmp_path / "build"
    library.write_bytes(b"\x7fELF" + b"\0" * 20000 + label.encode() + b"\0")
    tool.write_text("#!/bin/sh\nexit 0\n")
    (build / "bin").mkdir(parents=True)
    (build / "bin/perf").write_text(f"#!/bin/sh\n# {label}\n")
    assert rehearsal.in_file(str(library)) == ["libnccl"]
    assert rehearsal.in_file(str(tool)) == rehearsal.in_file(str(tmp_path / "missing")) == []
    # A folder counts as one thing only where a role built it.
    assert rehearsal.in_file(str(build)) == []
    (build / ".muster-build").write_text("nccl_tests-1\n")
    assert rehearsal.in_file(str(build)) == rehearsal.in_file(str(build / ".muster-build")) == ["libnccl"]
    assert record({"argv": ["sh", "-c", 'cd "$0" && sha256sum --check .muster-files', str(build)]})["rehearsed"] == "passed"
    assert record({"file": str(library)})["reason"] == "it looked at a stand-in (libnccl) and would have passed"


@pytest.mark.parametrize("path", ["/sys/module/nvidia/version", "/proc/driver/nvidia/version"])
def test_what_is_laid_over_the_kernel_s_file_systems(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = {"argv": ["cat", path], "matches": "595"}
    real_stat, real_exists = rehearsal.os.stat, rehearsal.os.path.exists

    def laid_over(name, *args, **more):
        return type("Stat", (), {"st_dev": -1}) if name == path else real_stat(name, *args, **more)

    monkeypatch.setattr(rehearsal.os.path, "exists", lambda name: name == path or real_exists(name))
    monkeypatch.setattr(rehearsal.os, "stat", laid_over)
    monkeypatch.setattr(rehearsal, "in_file", lambda _path: [])
    assert record(probe, "595.1", node=NODE)["reason"] == "it looked at a stand-in (version) and would have passed"
    assert record(probe, "595.1")["status"] == "passed"
    assert record({"argv": ["cat", "/proc/uptime"], "matches": "1"}, "1", node=NODE)["status"] == "passed"


def test_a_file_system_of_the_kernel_is_no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's control groups lie on a file system of their own, so the check of its memory must not count as a look at a stand-in."""
    real_stat = rehearsal.os.stat
    others = ("/sys/fs/cgroup/memory.max", "/sys/module/nvidia/version")

    def mounted(name, *args, **more):
        return type("Stat", (), {"st_dev": -1}) if name in others else real_stat(name, *args, **more)

    monkeypatch.setattr(rehearsal.os.path, "exists", lambda name: True)
    monkeypatch.setattr(rehearsal.os, "stat", mounted)
    assert [rehearsal.is_device(path, NODE) for path in others] == [False, True]


def test_a_unit_of_a_stand_in(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-dcgm.service"
    path.write_text(f"# {SAYS.format('DCGM')}\n[Service]\n")
    said = f"LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nFragmentPath={path}"
    assert record({"unit": "nvidia-dcgm"}, said)["rehearsed"] == "passed"
    path.write_text("[Service]\n")
    assert record({"unit": "nvidia-dcgm"}, said)["status"] == "passed"


def test_a_manifest_with_packages_of_a_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"inputs_sha256": "1", "artefacts": [], "packages": {"nvidia-open": "595-1", "jq": "1.7"}, "version": "595"}
    document = tmp_path / "manifest.json"
    document.write_text(manifest.render({**manifest.empty(), "components": {"dcgm": entry}}))
    monkeypatch.setattr(manifest, "PATH", str(document))
    monkeypatch.setattr(manifest, "installed_packages", lambda _which: entry["packages"])
    monkeypatch.setattr(rehearsal.of_packages, "__defaults__", (str(tmp_path / "packages"),))
    assert record({"manifest": "dcgm"})["status"] == "passed"
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/nvidia-open").touch()
    assert record({"manifest": "dcgm"})["reason"] == "it looked at a stand-in (nvidia-open) and would have passed"


def test_what_needs_a_check_on_a_stand_in_is_rehearsed_too() -> None:
    def run(argv, **_more):
        return 0, argv[0], SAYS.format(argv[0])

    def probes(wanted: str) -> list[dict]:
        first = {"check": "first", "argv": ["a"], "equals": wanted, "remedy": "Mend it."}
        return [first, {"check": "second", "argv": ["b"], "needs": "first", "remedy": "Mend it."}]

    good = check.run_checks(probes("a"), "dcgm", "node", run=run)
    assert [each["rehearsed"] for each in good] == ["passed", "passed"]
    bad = check.run_checks(probes("x"), "dcgm", "node", run=run)
    assert (bad[1]["status"], bad[1]["reason"]) == ("not_run", "it needs first, which failed")


def test_the_verdict_on_rehearsed_checks() -> None:
    passed, failed = (record({"argv": ["tool"], "equals": wanted}, "8", SAYS.format("dcgmi")) for wanted in ("8", "9"))
    assert check.failing([passed]) == [passed]
    assert check.failing([passed], ["dcgm.it"]) == []
    # A lost GPU of a rehearsal fails its node, also where the inventory allows the check to be not_run.
    assert check.failing([failed], ["dcgm.it"]) == [failed]
    assert check.sentence(failed).startswith("dcgm.it failed: it looked at a stand-in (dcgmi) and would have failed: tool printed")


def test_every_value_of_a_role_says_whether_it_comes_from_stand_ins() -> None:
    """Without the field a check of a value is not_run on every node that rehearses."""
    found = {}
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/templates/*.j2")]:
        for probe in re.findall(r"^( *)(?:- )?value: .*\n((?:\1(?:  )?\S.*\n| *[a-z_]+: .*\n)*)", path.read_text(), re.MULTILINE):
            # One that says itself when it cannot run looks at real things when it runs.
            fields = probe[1].split("- check:")[0]
            found.setdefault(path.relative_to(ROOT).as_posix(), []).append("rehearsed:" in fields or "not_run:" in fields)
    assert len(found) >= 7
    assert {name: seen for name, seen in found.items() if not all(seen)} == {}
    assert yaml.safe_load((ROOT / "roles/efa/tasks/verify_node.yml").read_text())[1]["muster.fleet.check"]["checks"][0]["rehearsed"]
