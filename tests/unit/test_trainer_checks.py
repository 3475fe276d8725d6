# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The checks of role trainer, on what `python -m trainer environment` says of GPU nodes, which no test machine is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_role_variables import of, read

from ansible_collections.muster.fleet.plugins.module_utils.node.check import failing, run_checks

ROOT = Path(__file__).parents[2]
CPU = {
    "torch": "2.15.0", "cuda": "13.2", "backends": ["gloo", "nccl"], "cpu": ["mkl", "mkldnn", "openmp"], "cpu_capability": "AVX512",
    "nccl": {"version": "2.30.7", "of": "the wheel"}, "nccl_system": "",
    "two_ranks": {"gloo": "right", "nccl": "fewer than two GPUs"}, "cuda_available": False, "gpus": 0, "gpu_names": [], "without_code": [],
    "cudnn": 0, "kernel": "no GPU",
}  # fmt: skip
P5 = CPU | {
    "nccl_system": "2.30.7", "two_ranks": {"gloo": "right", "nccl": "right"}, "cuda_available": True, "gpus": 8,
    "gpu_names": ["NVIDIA H100 80GB HBM3"], "cudnn": 92600, "kernel": "right",
}  # fmt: skip
ON_GPU = ["cuda", "gpus", "gpu_code", "cudnn", "kernel", "nccl_system", "two_ranks_nccl"]


def records(found: dict[str, Any] | str, gpu: bool = True, rc: int = 0, **known: Any) -> list[dict[str, Any]]:
    said = {"rc": rc, "stdout": found if isinstance(found, str) else json.dumps(found), "stderr": "Traceback:\nOSError: libcudart.so.13\n"}
    pinned = {"__trainer_torch": "2.15.0", "__trainer_nccl": "2.30.7", "__trainer_said": said}
    pinned |= read("trainer", "tasks/verify_node.yml")[1]["vars"]
    asked = "{{ __trainer_checks + __trainer_gpu_checks }}" if gpu else "{{ __trainer_checks }}"
    rehearsed = {"instance_type": "p5.48xlarge"} if known.get("muster_rehearsal") else {}
    return run_checks(of("trainer", asked, **{"instance_type": "p5.48xlarge", **pinned, **known}), "trainer", "node", rehearsed=rehearsed)


def unlike(status: str, *args: Any, **known: Any) -> dict[str, str]:
    """{check: reason} of the records that have another status."""
    return {record["check"]: record["reason"] for record in records(*args, **known) if record["status"] != status}


def test_a_good_gpu_node_and_a_good_node_without_gpus_pass() -> None:
    assert unlike("passed", P5) == {}
    assert unlike("passed", CPU, gpu=False) == {}
    assert len(records(P5)) == 12


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({"torch": "2.14.0"}, "torch_loads"),
        ({"cpu": ["openmp"]}, "cpu_libraries"),
        ({"cpu_capability": "DEFAULT"}, "cpu_libraries"),
        ({"backends": ["gloo"]}, "backends"),
        ({"nccl": {"version": "2.29.7", "of": "the wheel"}}, "nccl_loaded"),
        ({"nccl": {"version": "2.30.7", "of": "/opt/nccl/lib/libnccl.so.2"}}, "nccl_loaded"),
        ({"nccl": {"version": "", "of": "no file"}}, "nccl_loaded"),
        ({"nccl": "OSError: no such file"}, "nccl_loaded"),
        ({"two_ranks": {"gloo": "no answer of a rank in 60 s", "nccl": "right"}}, "two_ranks_gloo"),
        ({"cuda_available": False}, "cuda"),
        ({"cuda": ""}, "cuda"),
        ({"gpus": 7}, "gpus"),
        ({"gpu_names": ["NVIDIA A100", "NVIDIA H100"]}, "gpus"),
        ({"without_code": ["9.0"]}, "gpu_code"),
        ({"cudnn": 0}, "cudnn"),
        ({"kernel": "GPU 3 computed a wrong result"}, "kernel"),
        ({"nccl_system": ""}, "nccl_system"),
        ({"two_ranks": {"gloo": "right", "nccl": "all_reduce gave a wrong result"}}, "two_ranks_nccl"),
    ],
)
def test_each_fault_fails_its_check(change: dict, fails: str) -> None:
    assert [record["check"] for record in records(P5 | change) if record["status"] == "failed"] == [fails]


@pytest.mark.parametrize("name", [name for name in P5 if name != "without_code"])
def test_a_value_that_the_program_does_not_say_fails(name: str) -> None:
    assert failing(records({key: value for key, value in P5.items() if key != name}))


def test_code_that_the_program_does_not_say_fails() -> None:
    assert [record["check"] for record in failing(records({key: value for key, value in P5.items() if key != "without_code"}))] == [
        "gpu_code"
    ]


def test_another_nccl_of_the_system_is_not_run_with_its_reason() -> None:
    says = "torch loads NCCL 2.30.7 and the system has 2.22.3, so nccl_tests.yml says nothing of torch's"
    assert unlike("passed", P5 | {"nccl_system": "2.22.3"}) == {"nccl_system": says}


def test_a_node_with_one_gpu_has_no_two_ranks() -> None:
    found = P5 | {"gpus": 1, "two_ranks": {"gloo": "right", "nccl": "fewer than two GPUs"}}
    assert unlike("passed", found, instance_type="g5.xlarge") == {"two_ranks_nccl": "the node has one GPU"}
    assert "two_ranks_nccl" not in {record["check"] for record in records(found) if record["status"] == "passed"}


def test_a_program_that_does_not_answer_passes_nothing() -> None:
    for found in (records("", rc=1), records("", rc=124, gpu=False)):
        assert (found[0]["status"], found[0]["found"]) == ("failed", "OSError: libcudart.so.13")
        assert {record["status"] for record in found[1:]} == {"not_run"}


def test_a_rehearsing_node_has_no_gpu_and_the_local_fleets_allow_exactly_that() -> None:
    found = records(CPU, muster_rehearsal=True)
    assert [record["check"] for record in found if record["status"] == "not_run"] == ON_GPU
    assert {record["reason"] for record in found if record["status"] == "not_run"} == {"the node rehearses its type and has no GPU"}
    allowed = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())["__local_rehearsed"]["muster_gpu"]
    assert [name for name in allowed if name.startswith("trainer.")] == [f"trainer.{name}" for name in ON_GPU]
    assert failing(found, allowed) == []


def test_the_requirements_name_the_nccl_of_the_wheel() -> None:
    text = (ROOT / "roles/trainer/files/requirements.txt").read_text()
    asked = yaml.safe_load((ROOT / "roles/trainer/vars/main.yml").read_text())["__trainer_nccl"]
    expression = re.search(r"regex_search\('(.*)', '\\1', multiline=true\) \| first }}$", asked)
    assert expression and re.search(expression[1], text, re.MULTILINE)[1] == "2.30.7"
