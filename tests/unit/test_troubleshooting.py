# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""docs/troubleshooting.md: each check, rule, alarm and sentence exists, and where it is cheap the fault is made and found."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from doc_names import ROOT, plugins, table_rows
from test_health_checks import FAULTS, HOST, WANT, Machine, on_the_host
from test_role_checks import found_in
from test_stack_rules import EXAMPLES

from ansible_collections.muster.fleet.plugins.module_utils.aws import preflight, template_batch
from ansible_collections.muster.fleet.plugins.module_utils.hardware import kernel, nccl_plugin
from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose, settings
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_judge import judge
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import ResultsError, parse
from ansible_collections.muster.fleet.plugins.module_utils.node import check, packages
from ansible_collections.muster.fleet.plugins.module_utils.observe.alarms import ALARMS
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import judge as rules_say
from trainer.cli import Parser, UsageError
from trainer.hub import hub_errors

PAGE = ROOT / "docs/troubleshooting.md"
ROWS = list(table_rows(PAGE, "How to see it"))
FIXTURES = ROOT / "tests/fixtures"
JINJA = jinja2.Environment(autoescape=False)
JINJA.filters["regex_escape"] = re.escape
SOURCES = ("plugins", "roles", "playbooks", "trainer", "kubernetes", "cloudformation")


def names(cell: str) -> dict[str, list[str]]:
    """What a cell names, by kind: rule, sentence, alarm, plugin, file, check."""
    found: dict[str, list[str]] = {kind: [] for kind in ("rule", "sentence", "alarm", "plugin", "file", "check")}
    for before, name in re.findall(r"(\brule |\bsays )?`([^`]+)`", cell):
        kind = {"rule ": "rule", "says ": "sentence"}.get(before)
        if not kind:
            starts = {"Muster": "alarm", "muster.fleet.": "plugin", "playbooks/": "file"}
            kind = next((each for start, each in starts.items() if name.startswith(start)), "check")
        found[kind].append(name)
    return found


@functools.cache
def checks() -> list[re.Pattern[str]]:
    """component.check of every role's tasks and templates, as patterns, because templates fill in parts of some names."""
    found = [re.escape(f"node_health.{name}") for name in settings.NAMES]
    for role in sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()):
        texts = [path.read_text() for path in sorted(role.glob("t*/*")) if path.suffix in (".yml", ".j2")]
        everywhere = set(re.findall(r"^ *component: (\w+)$", "\n".join(texts), re.M))
        for text in texts:
            own = set(re.findall(r"^ *component: (\w+)$", text, re.M)) or everywhere
            for name in re.findall(r"\bcheck: ((?:\{\{.*?\}\}|[^,{}\n])+)", text):
                pattern = re.sub(r"\\\{\\\{.*?\\\}\\\}", r"\\w+", re.escape(name.strip()))
                found += [f"{component}\\.{pattern}" for component in own]
    return [re.compile(each) for each in dict.fromkeys(found)]


@functools.cache
def texts() -> str:
    """All sources that print sentences, with one space for each gap."""
    files = [path for name in SOURCES for path in sorted((ROOT / name).rglob("*")) if path.suffix in (".py", ".yml", ".yaml", ".j2", ".sh")]
    return re.sub(r"\s+", " ", "\n".join(path.read_text() for path in files if "tests" not in path.parts))


def test_thirty_symptoms_and_more() -> None:
    assert len(ROWS) >= 30
    assert len({cells[0] for _heading, cells in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("heading", "cells"), ROWS, ids=[f"{heading}: {cells[0][:50]}" for heading, cells in ROWS])
def test_what_finds_it_exists(heading: str, cells: list[str]) -> None:
    assert len(cells) == 4, f"{heading}: {cells[0]} has {len(cells)} cells"
    symptom, seen, finds, remedy = cells
    assert symptom, heading
    assert seen, symptom
    assert remedy, symptom
    named = names(finds)
    assert any(named.values()) or re.match(r"nothing(:| )", finds), f"{symptom}: name what finds it, or say nothing: and why"
    lost = [name for name in named["rule"] if name not in EXAMPLES and f'"{name}"' not in texts()]
    lost += [name for name in named["alarm"] if name not in {alarm.name for alarm in ALARMS}]
    lost += [name for name in named["plugin"] if name.removeprefix("muster.fleet.") not in plugins()]
    lost += [name for name in named["file"] if not (ROOT / name).exists()]
    lost += [name for name in named["check"] if not any(each.fullmatch(name) for each in checks())]
    lost += [name for name in named["sentence"] if name not in texts()]
    assert not lost, f"{symptom}: nothing is called {lost}"


@pytest.mark.parametrize(
    "wrong", ["`slurm.munge`", "rule `no-such-rule`", "`MusterNothing`", "`playbooks/no.yml`", "says `never says that`"]
)
def test_a_name_that_does_not_exist_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError, match="nothing is called"):
        test_what_finds_it_exists("x", ["a symptom", "somehow", wrong, "a remedy"])


# The faults themselves.

NAMED = {kind: sorted({name for _heading, cells in ROWS for name in names(cells[2])[kind]}) for kind in names("")}


@pytest.mark.parametrize("name", [each for each in NAMED["rule"] if each in EXAMPLES])
def test_a_rule_finds_its_symptom(name: str) -> None:
    good, bad = EXAMPLES[name]
    for case, expected in ((good, {"passed", "not_applicable"}), (bad, {"refused", "warned"})):
        [told] = [each for each in rules_say(case) if each["rule"] == name]
        assert told["verdict"] in expected, told
    assert told["says"]
    assert told["reason"]


def patch_disk(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    space = type("Space", (), {"f_blocks": 100, "f_bfree": available, "f_bavail": available, "f_files": 100, "f_ffree": 50, "f_favail": 50})
    monkeypatch.setattr("os.statvfs", lambda _path: space)


def manager(version: str) -> Any:
    def make(machine: Machine) -> None:
        machine.file("sys/module/nvidia/version", "595.112.07")
        machine.said["systemctl show"] = "active\n"
        machine.said["nv-fabricmanager"] = f"Fabric Manager version is : {version}\n"

    return make


def later(change: Any) -> Any:
    """A change that the check compares with what it saw at its last look."""

    def make(machine: Machine) -> None:
        machine.now += 300
        change(machine)

    return make


COUNTER = "sys/class/infiniband/rdmap3s0/ports/1/hw_counters/retrans_pkts"
DIAGNOSIS = json.dumps(
    {
        "DCGM GPU Diagnostic": {
            "test_categories": [{"category": "x", "tests": [{"name": "Memory", "results": [{"gpu_ids": "0", "status": "%s"}]}]}]
        }
    }
)

# Check: how the node is well, the fault, words of the reason, and the settings that the check needs.
OTHERS: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
    "dcgm": (
        lambda m: m.said.update({"dcgmi": DIAGNOSIS % "PASS"}),
        lambda m: m.said.update({"dcgmi": (226, DIAGNOSIS % "FAIL", "")}),
        "Memory 0",
        {},
    ),
    "efa_counters": (lambda m: m.look("efa_counters"), later(lambda m: m.file(COUNTER, "100000")), "retrans_pkts of rdmap3s0 rose by", {}),
    "fabric_manager": (manager("595.112.07"), manager("595.91.07"), "has version 595.91.07 and the driver 595.112.07", {}),
    "gpu_remapped_rows": (
        lambda m: None,
        lambda m: m.log[1].update({"remapped_rows/remapped_row_pending": "Yes"}),
        "a row remapping of GPU 1 is pending",
        {},
    ),
    "stuck_processes": (
        on_the_host,
        later(lambda m: (m.file("proc/7/stat", "7 (cat) D " + "4 " * 26), m.look("stuck_processes"))),
        "cat waits in the kernel",
        {},
    ),
    "verdict": (
        lambda m: m.state.update({"verdict": {"at": m.now, "drains": []}}),
        lambda m: m.state.update({"verdict": {"at": m.now - 901, "drains": []}}),
        "the last periodic run was 901 s ago",
        {"verdict_seconds": 900},
    ),
}


@pytest.mark.parametrize("name", [each.partition(".")[2] for each in NAMED["check"] if each.startswith("node_health.")])
def test_a_health_check_finds_its_symptom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, want = Machine(tmp_path), {}
    if name in FAULTS:
        make, words, _severity = FAULTS[name]
    elif name in HOST:
        on_the_host(machine)
        (make, words), want = HOST[name], WANT
    elif name == "disk_space":
        patch_disk(monkeypatch, 50)
        make, words = (lambda _machine: patch_disk(monkeypatch, 2)), "/ is 98% full"
    elif name == "efa_memlock":
        make, words, want = (lambda _machine: want.update(memlock=64 << 10)), "the limit of locked memory is 0 MiB", {"memlock": 1 << 40}
    else:
        well, make, words, want = OTHERS[name]
        well(machine)
    assert machine.look(name, **want)["status"] == "passed", machine.look(name, **want)
    make(machine)
    found = machine.look(name, **want)
    assert found["status"] == "failed", found
    assert words in found["reason"]
    assert found["remedy"]


# Check: variables of its role, the tools that it asks with what they print on a node that is well, and one with the fault.
ROLE_CHECKS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, str]]] = {
    "common.clock_synchronised": ({}, {"timedatectl": "echo yes"}, {"timedatectl": "echo no"}),
    "dcgm.sees_gpus": ({"__dcgm_gpus": {"gpu": {"count": 8}}}, {"dcgmi": "echo 8 GPUs found."}, {"dcgmi": "echo 0 GPUs found."}),
    "efa.huge_pages": ({}, {"cat": "echo 5128"}, {"cat": "echo 0"}),
    "enroot_pyxis.built_for": (
        {"__enroot_pyxis_ask": "srun --version"},
        {"srun": "echo slurm 25.11.7", "cat": "echo slurm 25.11.7"},
        {"srun": "echo slurm 26.05.0", "cat": "echo slurm 25.11.7"},
    ),
    "enroot_pyxis.slurm_knows_it": ({}, {"srun": "echo '      --container-image=[USER@]'"}, {"srun": "echo Usage: srun"}),
    "enroot_pyxis.users_import": ({}, {"getcap": "echo /x/enroot-mksquashovlfs cap_sys_admin=p"}, {"getcap": "true"}),
    "lustre_client.kernel_module": ({"__lustre_client_kernel": "6.8.0"}, {"modinfo": "echo 2.15.6"}, {"modinfo": "exit 1"}),
    "lustre_client.running_kernel": ({"__lustre_client_kernel": "6.8.0"}, {"uname": "echo 6.8.0"}, {"uname": "echo 6.14.0"}),
    "nccl_tests.has_mpi": ({}, {"ldd": "echo 'libmpi.so.40 => /opt/amazon'"}, {"ldd": "echo 'libc.so.6 => /lib'"}),
    "nvidia_container_toolkit.cdi_not_baked": ({}, {"find": "true"}, {"find": "echo /etc/cdi/nvidia.yaml"}),
    "nvidia_container_toolkit.version": (
        {"__nvidia_container_toolkit_version": "1.20.1"},
        {"nvidia-ctk": "echo NVIDIA Container Toolkit CLI version 1.20.1"},
        {"nvidia-ctk": "echo NVIDIA Container Toolkit CLI version 1.18.1"},
    ),
    "slurm_cluster.accounting_row": ({"slurm_test_user": "verify"}, {"sacct": "echo 'COMPLETED|verify'"}, {"sacct": "true"}),
    "slurm_cluster.nodes_registered": (
        {},
        {"scontrol": "echo NodeName=n1 State=IDLE"},
        {"scontrol": "echo 'NodeName=n1 State=IDLE+DRAIN+INVALID_REG Reason=Low RealMemory (reported:900 < 100.00%) [slurm@x]'"},
    ),
}


def with_variables(value: Any, variables: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [with_variables(each, variables) for each in value]
    return JINJA.from_string(str(value)).render(variables)


@pytest.mark.parametrize("name", ROLE_CHECKS)
def test_a_check_of_a_role_finds_its_symptom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check as its role has it, with tools that print what a node prints."""
    assert name in NAMED["check"]
    variables, well, broken = ROLE_CHECKS[name]
    component, _, only = name.partition(".")
    files = sorted((ROOT / "roles" / component.removesuffix("_cluster") / "tasks").glob("verify_*.yml"))
    [asked] = [each for path in files for each in found_in(yaml.safe_load(path.read_text())) if each.get("check") == only]
    rendered = {key: with_variables(asked[key], variables) for key in ("argv", "matches", "equals") if key in asked}
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for tools, status in ((well, "passed"), (broken, "failed")):
        for tool, script in tools.items():
            (tmp_path / tool).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / tool).chmod(0o755)
        record = check.run_check({**rendered, "check": only, "remedy": asked["remedy"]}, component, "node")
        assert record["status"] == status, record
    assert asked["remedy"]


class Apt:
    """A node whose apt-get fails."""

    check_mode = False

    def __init__(self, error: str) -> None:
        self.error = error

    def run_command(self, _argv: list[str], **_options: Any) -> tuple[int, str, str]:
        return 100, "", f"E: {self.error}\n"


def packages_fail(error: str, lists_are_young: bool) -> str:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(packages.PackageError) as failed:
        patch.setattr(packages, "lists_are_young", lambda _age: lists_are_young)
        patch.setattr(packages, "stale", lambda _reason: False)
        patch.setattr(packages, "SYSTEMD", "/nonexistent")
        packages.apt(Apt(error), ["nvidia-container-toolkit=1.20.1-1"], lock_timeout=0)
    return str(failed.value)


WHOLE = (FIXTURES / "nccl/constructed-2.19.txt").read_text()
BLOCK = {"CapacityReservationId": "cr-1", "State": "active", "InstanceType": "p5.48xlarge", "ReservationType": "capacity-block"}
GROUP = {"name": "gpu", "type": "p5.48xlarge", "count": 2, "market": "capacity-block"}


def verdict(text: str, **expect: Any) -> str:
    return "; ".join(judge(parse(text, "all_reduce"), expect)["reasons"])


def ran_alone() -> str:
    """Two nodes of eight ranks that never met: busbw is 1.75 times algbw."""

    def alone(row: re.Match[str]) -> str:
        fields = row.group().split()
        for at in (7, 11):
            fields[at] = f"{float(fields[at - 1]) * 1.75:.2f}"
        return " ".join(fields)

    return verdict(re.sub(r"^ +\d+ +\d+ +float .*$", alone, WHOLE, flags=re.M), ranks=16)


def without_table() -> str:
    with pytest.raises(ResultsError) as failed:
        parse("srun: error: compute-1: task 0: Exited with exit code 2\n")
    return str(failed.value)


def denied() -> str:
    answers = [{"EvalActionName": "fsx:DescribeFileSystems", "EvalDecision": "implicitDeny"}]
    region: Any = type("Region", (), {"every": lambda self, *_names, **_options: answers})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight.plan, "parts", lambda _cluster: [])
        return str(preflight._permissions(region, {"nodes": []}, "arn:aws:iam::1:role/x"))


def without_exports() -> str:
    region: Any = type("Region", (), {"name": "us-east-1", "every": lambda self, *_names, **_options: []})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight.survey, "stack", lambda _region, _name: {"StackStatus": "CREATE_COMPLETE"})
        patch.setattr(preflight.plan, "parts", lambda _cluster: [])
        return str(preflight._exports(region, {"vpc": {"stack": "net"}}))


def first_container(**variables: str) -> str:
    """What the first container of a manifest prints."""
    manifest = yaml.safe_load((ROOT / "kubernetes/llama3_1_8b-fsdp.yaml").read_text())
    [container] = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["initContainers"]
    command = [sys.executable, *container["command"][1:], *container.get("args", [])]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False).stderr


def start_of_batch(tmp_path: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_BATCH_JOB_NUM_NODES": "2", "MUSTER_PROCS_PER_NODE": "8"}
    environment |= {"MUSTER_COMMAND": "true", "MUSTER_SSH_KEY": template_batch.PLACEHOLDER}
    done = subprocess.run(
        ["bash", "-c", template_batch.START_MPI], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 69
    return done.stderr


def mistyped_flag() -> str:
    parser = Parser(prog="train")
    parser.add_argument("--max_steps", type=int)
    with pytest.raises(UsageError) as failed:
        parser.parse(["--max_step", "5"])
    return str(failed.value)


def gated() -> str:
    """The hub answers 403."""
    refused = OSError("403 Client Error")
    refused.response = type("Response", (), {"status_code": 403})  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as failed, hub_errors("model meta-llama/Llama-3.2-1B", "--init_from a folder"):
        raise refused
    return str(failed.value)


# A part of a sentence on the page, and how the fault is made.
SENTENCES: dict[str, Callable[[Path], str]] = {
    "The package lists could not be read": lambda _tmp: packages_fail("Failed to fetch http://deb.debian.org/x", False),
    "apt-get cannot install": lambda _tmp: packages_fail("Unable to correct problems, you have held broken packages.", True),
    "DKMS did not build": lambda _tmp: kernel.dkms_fault(
        "nvidia",
        "6.12.117+deb13-amd64",
        kernel.parse_dkms("nvidia-current-open/550.163.01: added\n"),
        {"/make.log": (FIXTURES / "kernel/make-550-on-6.12.log").read_text()},
    ),
    "of the interface and": lambda _tmp: nccl_plugin.interface_fault("libnccl-net-ofi.so", [6, 7], "libnccl.so.2", [8, 9, 10]),
    "is below the floor of": lambda _tmp: verdict(WHOLE, floors=[{"min_size": 1 << 33, "busbw": 480.0}]),
    "processes ran alone, each as the only rank of its own test": lambda _tmp: verdict((FIXTURES / "nccl/singletons.txt").read_text()),
    "the ranks did not run as one job": lambda _tmp: ran_alone(),
    "the test did not end": lambda _tmp: verdict(WHOLE.rpartition("# Out of bounds")[0]),
    "expected, the output lists": lambda _tmp: verdict(WHOLE, ranks=32),
    "The output contains no table of nccl-tests": lambda _tmp: without_table(),
    "and the cluster in": lambda _tmp: preflight.reservation_fault({**BLOCK, "AvailabilityZone": "us-east-1b"}, GROUP, ["us-east-1a"]),
    "name one that is active": lambda _tmp: preflight.reservation_fault({**BLOCK, "State": "expired"}, GROUP, ["us-east-1a"]),
    "; set market to": lambda _tmp: preflight.reservation_fault(BLOCK, {**GROUP, "market": "reservation"}, ["us-east-1a"]),
    "ask for an increase of": lambda _tmp: str(preflight._quota("P instances", 384, {"Value": 96, "QuotaCode": "L-1"}, "ec2")),
    "allow it (docs/architectures.md has the policy)": lambda _tmp: denied(),
    "has no export": lambda _tmp: without_exports(),
    "these variables are empty in the manifest": lambda _tmp: first_container(IMAGE_URI="x", NUM_NODES="2", EFA_PER_NODE=""),
    "the secret of the stack holds no private key": start_of_batch,
    "(--help lists all flags)": lambda _tmp: mistyped_flag(),
    "accept its terms on the hub and set HF_TOKEN": lambda _tmp: gated(),
    "To go on without it, name": lambda _tmp: check.sentence(
        {"component": "dcgm", "check": "sees_gpus", "status": "not_run", "reason": "there is no GPU here", "remedy": "Add one."}
    ),
}


@pytest.mark.parametrize("part", SENTENCES)
def test_a_sentence_is_said_of_its_symptom(part: str, tmp_path: Path) -> None:
    assert part in NAMED["sentence"]
    assert part in SENTENCES[part](tmp_path)


def test_an_alarm_has_its_page() -> None:
    page = (ROOT / "docs/runbooks.md").read_text()
    known = {alarm.name: alarm for alarm in ALARMS}
    for name in NAMED["alarm"]:
        assert re.search(rf"^#+ {name}$", page, re.M), name
        assert known[name].fires, "promtool sees it fire on these series"
        assert known[name].remedy


def test_the_diagnosis_names_the_bad_node() -> None:
    """What playbooks/diagnose.yml does with eight nodes of which one is slow."""
    state = diagnose.start([f"n{index}" for index in range(8)])
    while pairs := diagnose.plan(state):
        diagnose.record(state, [{"nodes": list(pair), "value": 20.0 if "n5" in pair else 48.0, "error": ""} for pair in pairs])
    assert [each["node"] for each in diagnose.verdict(state)["bad"]] == ["n5"]


def test_a_job_that_would_fall_back_to_tcp() -> None:
    """What aws_ofi_nccl.no_silent_tcp is told."""
    assert nccl_plugin.transport_fault({"NCCL_NET": "Libfabric"}, "Libfabric") == ""
    assert "would be replaced by TCP" in nccl_plugin.transport_fault({}, "Libfabric")
    assert "every job would fail" in nccl_plugin.transport_fault({"NCCL_NET": "AWS Libfabric"}, "Libfabric")


def test_how_many_symptoms_are_made() -> None:
    """Symptoms of which at least one name on the page saw its fault in this file."""
    made = {f"node_health.{name}" for name in settings.NAMES} | set(EXAMPLES) | set(SENTENCES) | set(ROLE_CHECKS)
    assert len([cells for _heading, cells in ROWS if made & {name for each in names(cells[2]).values() for name in each}]) >= 55
