# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The module that asks the rules; what each of them says is tested with test_stack_rules.py."""

from __future__ import annotations

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import RULES
from ansible_collections.muster.fleet.plugins.modules import stack_check as module
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

AWS, LONG_TERM = stack_files.load("aws-2026.11"), stack_files.load("aws-2026.11-580")


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_works_passes(call, check_mode: bool) -> None:
    result = call(module, stack=AWS, instance_types=["p5.48xlarge", "ml.p6-b200.48xlarge"], system="amzn2023", check_mode=check_mode)
    assert result["changed"] is False
    assert [each["verdict"] for each in result["results"]] == ["passed", "passed"]
    assert {each["rule"] for each in result["results"][0]["rules"]} == {name for name, rule in RULES.items() if rule.scope == "stack"}


def test_what_cannot_work_is_refused_with_the_version_that_would(call) -> None:
    others = [AWS, {**LONG_TERM, "name": "refused-too"}, stack_files.load("debian-12")]
    result = call(module, stack=LONG_TERM, instance_types=["g7.8xlarge"], system="ubuntu24.04", others=others)
    assert result["failed"]
    assert result["msg"] == (
        "g7.8xlarge with stack aws-2026.11-580: nvidia_driver must be 595 or later and is 580.178.04, "
        "because RTX PRO 4500 Server came with branch 595 (rule g7-driver)."
    )
    assert result["results"][0]["stacks_that_work"] == ["aws-2026.11"]
    assert result["text"][0] == "g7.8xlarge does not work with stack aws-2026.11-580 on ubuntu24.04."
    assert [line for line in result["text"] if line.startswith("  would work: nvidia_driver >= 595 (rule g7-driver; ")]
    assert result["text"][-2] == "  Stacks with which it works: aws-2026.11."


def test_explaining_refuses_nothing(call) -> None:
    result = call(module, stack=LONG_TERM, instance_types=["g7.8xlarge"], refuse=False)
    assert result["results"][0]["verdict"] == "refused" and "failed" not in result
    assert "  not run: driver-source, because no operating system is given." in result["text"]


def test_an_environment_is_looked_at_variable_by_variable(call) -> None:
    env = {"NCCL_NET": "Libfabric", "NCCL_PROTO": "simple", "FI_EFA_USE_DEVICE_RDMA": "1", "HOME": "/root"}
    result = call(module, stack=AWS, instance_types=["g5.48xlarge"], scopes=["env"], env=env, nodes=2)
    assert "FI_EFA_USE_DEVICE_RDMA must go: libfabric ends the program on g5.48xlarge" in result["msg"]
    told = [(each["variable"], each["verdict"]) for each in result["results"][0]["variables"]]
    assert told == [("FI_EFA_USE_DEVICE_RDMA", "aborts"), ("NCCL_PROTO", "harmful"), ("NCCL_NET", "fine")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instance_types": []}, "No instance type is named; give instance_types one of the catalogue at least."),
        ({"instance_types": ["p5.49xlarge"]}, "The catalogue has no instance type p5.49xlarge; the nearest are p5"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_one_sentence(call, options: dict, said: str) -> None:
    result = call(module, **{"stack": AWS, "instance_types": ["p5.48xlarge"], **options})
    assert result["failed"]
    assert result["msg"].startswith(said)
