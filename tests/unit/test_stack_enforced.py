# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Provisioning, images and jobs refuse what the rules refuse, before anything is installed; a site overrides a rule with a reason."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from playbook import run_playbook

from ansible_collections.muster.fleet.plugins.filter.stack import stack_overrides
from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import launch_from
from ansible_collections.muster.fleet.plugins.module_utils.aws.instances import Ec2Error
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError
from ansible_collections.muster.fleet.plugins.modules import manifest
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files, stack_hosts
from ansible_collections.muster.fleet.plugins.plugin_utils.stack_hosts import Host, host_of, judge_fleet, types_of

GPU = ("muster_gpu", "muster_efa")
OLD = "aws-2026.11-580"
G7_SAID = "nvidia_driver must be 595 or later and is 580.178.04, because RTX PRO 4500 Server came with branch 595 (rule g7-driver)."
WHERE = {"groups": GPU, "system": "ubuntu24.04", "arch": "x86_64"}
OVERRIDE = {"g7-driver": "vendor's hotfix, ticket 12"}


def host(name: str = "n-1", kind: str = "g7.8xlarge", stack: Any = OLD, system: str = "ubuntu24.04", **more: Any) -> Host:
    return Host(name, **{"groups": GPU, "instance_type": kind, "stack": stack, "system": system, "arch": "x86_64", **more})


def test_one_sentence_says_which_hosts_a_rule_refuses() -> None:
    told = judge_fleet([host("n-1"), host("n-2"), host("p5", "p5.48xlarge")])
    assert told["refused"] == [f"g7.8xlarge with stack aws-2026.11-580 on ubuntu24.04 (n-1, n-2): {G7_SAID}"]


@pytest.mark.parametrize("scopes", [(), ("stack", "launch")])
def test_a_stack_that_does_not_exist_is_refused_once_for_hosts_of_every_kind(scopes: tuple[str, ...]) -> None:
    told = judge_fleet([host("n-1", stack="nosuch"), Host("cpu", stack="nosuch"), host("n-2")], scopes=scopes)
    [said] = told["refused"]
    assert said.startswith("n-1, cpu: There is no stack nosuch; there are aws-2026.11, ")


def test_without_scopes_no_rule_is_asked() -> None:
    assert not any(judge_fleet([host()], scopes=()).values())


def test_hosts_that_are_alike_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    judge = stack_hosts.judge
    monkeypatch.setattr(stack_hosts, "judge", lambda *words: calls.append(1) or judge(*words))
    judge_fleet([host(f"n-{number}", ("p5.48xlarge", "p5en.48xlarge")[number % 2]) for number in range(500)])
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("variables", "facts", "stack", "system"),
    [
        ({}, {}, None, ""),
        ({"muster_stack_name": "own.yml"}, {}, "own.yml", ""),
        ({"muster_stack": {"name": "own"}, "muster_stack_name": "x"}, {}, {"name": "own"}, ""),
        ({}, {"distribution": "Debian", "distribution_major_version": "13"}, "debian-13", "debian13"),
        ({}, {"distribution": "Ubuntu", "distribution_version": "24.04", "distribution_major_version": "24"}, "aws-2026.11", "ubuntu24.04"),
        ({}, {"distribution": "Amazon", "distribution_major_version": "2023"}, "aws-2026.11", "amzn2023"),
        ({}, {"distribution": "RedHat", "distribution_major_version": "9"}, "aws-2026.11", "rhel9"),
    ],
)
def test_the_stack_and_the_system_of_a_host(variables: dict, facts: dict, stack: Any, system: str) -> None:
    found = host_of("n-1", GPU, variables, facts)
    assert (found.stack, found.system) == (stack, system)


def test_a_host_without_accelerators_is_not_judged() -> None:
    assert types_of(host(kind="c7i.large", groups=("muster_controller",))) == []
    assert types_of(host(kind="", groups=("muster_controller",))) == []
    with pytest.raises(CatalogueError, match=r"no instance type p5\.49xlarge; the nearest are p5"):
        types_of(host(kind="p5.49xlarge"))


def test_a_type_without_support_is_refused_for_every_host() -> None:
    [said] = judge_fleet([host(kind="dl1.24xlarge", groups=("muster_compute",))])["refused"]
    assert said.startswith("n-1: Muster does not support dl1.24xlarge (Gaudi): no role installs Habana's driver")


def test_a_stack_that_does_not_exist_is_refused_for_its_hosts() -> None:
    [said] = judge_fleet([host(stack="aws-2026.12")])["refused"]
    assert said.startswith("n-1: There is no stack aws-2026.12; there are aws-2026.11")


def test_a_host_with_gpus_and_no_type_must_work_as_one_type() -> None:
    told = judge_fleet([host(kind="")])
    assert told["refused"] == [] and told["judged"]
    assert f"g7.8xlarge with stack aws-2026.11-580 on ubuntu24.04: {G7_SAID}" in told["unfit"]
    [said] = judge_fleet([host(kind="", stack="debian-13", system="debian13")])["refused"]
    assert re.match(r"Stack debian-13 works as none of the \d+ types that n-1 may be: nvidia_driver \S+ is refused on debian13", said)


def test_a_stack_that_is_not_known_yet_has_not_passed() -> None:
    told = judge_fleet([host(stack=None, system="")])
    assert told["not_run"][0] == "The stack of n-1 is not known before its system is."
    assert not told["refused"]


def test_a_container_has_the_driver_of_its_host() -> None:
    debian = {"kind": "", "stack": "debian-13", "system": "debian13"}
    assert judge_fleet([host(**debian)])["refused"]
    assert not judge_fleet([host(**debian)], container=True)["refused"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (OVERRIDE, ""),
        ({"g7-drivr": "a reason"}, "muster_rule_overrides names the unknown rule g7-drivr; the nearest is g7-driver."),
        ({"g7-driver": " "}, "muster_rule_overrides gives no reason for rule g7-driver; say why it does not count here."),
        ({"g7-driver": True}, "muster_rule_overrides gives no reason for rule g7-driver; say why it does not count here."),
        (["g7-driver"], "muster_rule_overrides must be a mapping of rules to reasons, and is ['g7-driver']."),
    ],
)
def test_an_override_needs_a_rule_and_a_reason(overrides: Any, said: str) -> None:
    told = judge_fleet([host(overrides=overrides)])
    assert told["refused"][:1] == ([said] if said else [])
    if not said:
        where = "g7.8xlarge with stack aws-2026.11-580 on ubuntu24.04 (n-1)"
        assert told["overridden"] == [f"Rule g7-driver is overridden for {where}: vendor's hotfix, ticket 12."]


def test_only_overrides_in_force_are_recorded() -> None:
    both = {**OVERRIDE, "efa-580": "not needed here"}
    stack = stack_files.load(OLD)
    assert stack_overrides(stack, both, ["g7.8xlarge"], **WHERE) == OVERRIDE
    assert stack_overrides(stack, both, ["p5.48xlarge"], **WHERE) == {}
    assert stack_overrides(stack, both, [], **{**WHERE, "groups": ["muster_controller"]}) == {}


def test_the_manifest_records_overrides_and_forgets_them(call, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"

    def compare(overrides: dict, **more: Any) -> bool:
        return call(manifest, state="compare", component="common", path=str(path), rule_overrides=overrides, check_mode=True, **more)[
            "changed"
        ]

    assert compare(OVERRIDE) and not path.exists()
    path.write_text(
        json.dumps({"schema": "muster.manifest/1", "stack": None, "components": {}, "packages": {}, "rule_overrides": OVERRIDE})
    )
    assert not compare(OVERRIDE)
    assert compare({})


# The playbooks. Each is stopped by the rules, and would otherwise be stopped by a later task that changes nothing.

P3 = {"instance_type": "p3dn.24xlarge"}


def play(folder: Path, playbook: str, *words: str, variables: dict | None = None, **node: Any) -> tuple[str, int]:
    """The output of a playbook over one node, which is this machine."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False, **node}
    groups = ["muster_controller", "muster_compute", "muster_gpu", "muster_efa"]
    groups += ["muster_type_" + re.sub(r"\W", "_", node["instance_type"])] if "instance_type" in node else []
    inventory = {"all": {"children": {group: {"hosts": {"n-1": local}} for group in groups}}}
    (folder / "hosts.json").write_text(json.dumps(inventory))
    given = {
        "muster_state_dir": str(folder / "state"),
        "muster_cache_dir": str(folder / "cache"),
        "muster_fleet": "rules",
        **(variables or {}),
    }
    done = run_playbook(folder, "-i", folder / "hosts.json", playbook, "-e", json.dumps(given), *words)
    return re.sub(r"\s+", " ", done.stdout + done.stderr), done.returncode


def test_begin_refuses_before_any_node_is_asked(tmp_path: Path) -> None:
    said, code = play(tmp_path, "playbooks/begin.yml", instance_type="g7.8xlarge", muster_stack_name=OLD)
    assert code != 0
    assert f"g7.8xlarge with stack aws-2026.11-580 (n-1): {G7_SAID}" in said
    assert "muster_rule_overrides: {RULE: reason}" in said
    assert "Let no other run change the fleet" not in said


P5 = ["{card}.{device} {type}".format(**each) for each in catalogue.instance_type("p5.48xlarge")["interfaces"]]
LAUNCH = {
    "market": "capacity-block",
    "availability_zones": ["us-east-1a"],
    "subnets": ["subnet-1"],
    "placement_group": "",
    "interfaces": ", ".join(P5),
    "threads_per_core": 2,
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        (
            {"interfaces": ", ".join(P5[:17])},
            "the launch must have 32 EFA interfaces and has 16, because a rail that is missing slows every collective",
        ),
        ({"interfaces": P5[0]}, "the launch must have 32 EFA interfaces and has 0, because"),
        ({"interfaces": "eth0"}, "muster_launch has the interfaces 'eth0'; write them as 0.0 interface, 0.1 efa-only: CARD.DEVICE TYPE."),
        ({"threads_per_core": 1}, "the launch must leave 2 threads per core, because jobs ask for the type's own CPUs"),
    ],
)
def test_live_nodes_are_refused_by_how_they_were_launched(tmp_path: Path, changes: dict, says: str) -> None:
    node = {"instance_type": "p5.48xlarge", "muster_stack_name": "aws-2026.11", "muster_launch": {**LAUNCH, **changes}}
    said, code = play(tmp_path, "playbooks/begin.yml", **node)
    assert (code == 0) == (not says), said
    assert says in said
    assert not says or "Let no other run change the fleet" not in said


def test_the_threads_of_nodes_of_another_slurm_are_not_judged() -> None:
    groups = {own: host_of("n-1", own, {"muster_launch": {**LAUNCH, "threads_per_core": 1}}, {}) for own in ((), ("muster_compute",))}
    assert [host.launch.get("threads_per_core") for host in groups.values()] == [None, 1]


def test_interfaces_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(Ec2Error, match=r"muster_launch has the interfaces 'eth0'; write them as 0\.0 interface, 0\.1 efa-only"):
        host_of("n-1", (), {"muster_launch": {"interfaces": "eth0"}}, {})


def test_nodes_of_one_type_are_in_one_zone_and_subnet() -> None:
    launch = launch_from(LAUNCH)
    hosts = [host("a", "p5.48xlarge", launch=launch), host("b", "p5.48xlarge", launch={**launch, "availability_zones": ["us-east-1b"]})]
    [said] = judge_fleet([*hosts, host("c", "p5en.48xlarge")], scopes=["launch"])["refused"]
    assert "p5.48xlarge with stack" in said and "(a, b): all nodes must be in one availability zone and one subnet" in said
    assert not judge_fleet(hosts[:1], scopes=["launch"])["refused"]


def test_an_override_is_in_the_summary_and_the_report(tmp_path: Path) -> None:
    said, code = play(tmp_path, "playbooks/begin.yml", instance_type="g7.8xlarge", muster_stack_name=OLD, muster_rule_overrides=OVERRIDE)
    assert code == 0, said
    text = "Rule g7-driver is overridden for g7.8xlarge with stack aws-2026.11-580 (n-1): vendor's hotfix, ticket 12."
    assert text in said.partition("SUMMARY")[2]
    assert json.loads((tmp_path / "runs/rules/latest/report.json").read_text())["run"]["messages"] == [text]


def test_provisioning_refuses_what_only_the_system_tells(tmp_path: Path) -> None:
    said, code = play(tmp_path, "playbooks/provision.yml", "--check", **P3)
    assert code != 0
    assert re.search(r"p3dn\.24xlarge with stack \S+ on \S+ \(n-1\): [^:]+, because .*\(rule [a-z0-9-]+\)\.", said)
    assert "Drain nodes that left the inventory" not in said


def test_an_image_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    said, code = play(
        tmp_path,
        "playbooks/image.yml",
        variables={"muster_components": ["common"], "muster_image_apt_proxy": "stop here", "muster_image_types": ["p3dn.24xlarge"]},
    )
    assert code != 0
    assert re.search(r"p3dn\.24xlarge with stack \S+ on \S+: [^:]+, because .*\(rule [a-z0-9-]+\)\.", said)
    assert "Use the site's cache of packages" not in said


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("g5g.xlarge", {}, "g5g.xlarge with stack aws-2026.11 on ubuntu24.04 (localhost): the image must be for arm64,"),
        ("p4d.24xlarge", {"boot_mode": "uefi"}, "the image must not be for uefi only,"),
        ("p3.2xlarge", {}, "nvidia_driver must be 594 or earlier and is 595.112.07,"),
        ("inf2.xlarge", {}, "Muster does not support inf2.xlarge (Inferentia2): it is made for inference and has no EFA;"),
        ("p5.48xlarge", {}, ""),
        ("c7i.large", {}, ""),
    ],
)
def test_an_image_is_refused_before_it_is_launched(tmp_path: Path, kind: str, more: dict, sentence: str) -> None:
    image = {"architecture": "x86_64", "tags": {"muster:stack": "aws-2026.11", "muster:system": "ubuntu-24.04"}, **more}
    include = {"ansible.builtin.include_tasks": str(Path(__file__).parents[2] / "playbooks/tasks/image_rules.yml")}
    task = {**include, "vars": {"image_rules_image": image, "image_rules_type": kind}}
    (tmp_path / "launch.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    said, code = play(tmp_path, str(tmp_path / "launch.yml"))
    assert (code == 0) == (not sentence), said
    assert sentence in said


def test_what_launches_images_asks_the_rules() -> None:
    for path in ("playbooks/image_verify.yml", "tests/e2e/image_fleet/launch.yml"):
        text = (Path(__file__).parents[2] / path).read_text()
        assert 0 < text.index("tasks/image_rules.yml") < text.index("amazon.aws.ec2_instance:"), path


def test_a_job_s_variables_are_refused_before_it_is_submitted(tmp_path: Path) -> None:
    include = {"ansible.builtin.include_tasks": str(Path(__file__).parents[2] / "playbooks/tasks/run_job.yml")}
    document = {"name": "x", "command": ["true"], "nodes": 2, "env": {"FI_EFA_USE_DEVICE_RDMA": "1"}}
    plays = [{"hosts": "muster_controller[0]", "gather_facts": False, "tasks": [{**include, "vars": {"run_job_document": document}}]}]
    (tmp_path / "job.yml").write_text(json.dumps(plays))
    said, code = play(tmp_path, str(tmp_path / "job.yml"), instance_type="g5.48xlarge", muster_stack_name="aws-2026.11")
    assert code != 0
    assert "FI_EFA_USE_DEVICE_RDMA must go: libfabric ends the program on g5.48xlarge, whose EFA has no RDMA" in said
    assert "Run and wait for the end of job" not in said
