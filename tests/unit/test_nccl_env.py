# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The environment of every type, what older software adds to it, and what the linter says of a user's own."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter import stack as filters
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.stack.env_lint import TABLE, VERDICTS, lint
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

AWS = stack_files.load("aws-2026.11")
IFNAME = {"NCCL_SOCKET_IFNAME": "^lo,docker,veth"}
EFA = {**IFNAME, "NCCL_DEBUG": "INFO", "NCCL_NET": "Libfabric", "NCCL_NET_PLUGIN": "ofi"}
NO_EFA = {**IFNAME, "NCCL_DEBUG": "WARN"}
# Kept by hand: the catalogue could be wrong as well.
WITHOUT_EFA = {
    *(f"{family}.{size}" for family in ("g4dn", "g5", "g6", "g6e") for size in ("xlarge", "2xlarge", "4xlarge")),
    *(f"g5g.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge", "metal")),
    *("g7.2xlarge", "g7.4xlarge", "g7e.2xlarge", "g7e.4xlarge", "gr6.4xlarge", "p3.2xlarge", "p3.8xlarge", "p3.16xlarge"),
}
COPY_BY_GPU = {"g5.12xlarge", "g5.24xlarge", "g5.48xlarge", "g6.12xlarge", "g6.24xlarge", "g6.48xlarge"}
NEURON = {"trn1.32xlarge", "trn1n.32xlarge", "trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"}


def env(kind: str, **versions: str | None) -> dict[str, str]:
    stack = {**AWS, **{name: {"version": version} for name, version in versions.items() if version}}
    for name in [name for name, version in versions.items() if version is None]:
        del stack[name]
    return {each["name"]: each["value"] for each in filters.nccl_env(kind, stack)}


@pytest.mark.parametrize("kind", catalogue.names())
def test_a_type_gets_exactly_its_set(kind: str) -> None:
    expected = NO_EFA if kind in WITHOUT_EFA else EFA
    if kind in COPY_BY_GPU:
        expected = {**expected, "NCCL_SHM_USE_CUDA_MEMCPY": "1"}
    if kind == "p6e-gb200.36xlarge":
        expected = {**expected, "NCCL_MNNVL_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}
    if kind.startswith("trn"):
        expected = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"} if kind in NEURON else {}
    assert env(kind) == expected
    assert all(each["reason"] and each["source"] for each in filters.nccl_env(kind, AWS))


@pytest.mark.parametrize("kind", catalogue.names())
def test_the_linter_has_nothing_against_our_own_set(kind: str) -> None:
    told = lint(env(kind), catalogue.instance_type(kind), AWS)
    assert [each for each in told if each["verdict"] != "fine"] == []


@pytest.mark.parametrize(
    ("kind", "versions", "more", "less"),
    [
        ("p4d.24xlarge", {"aws_ofi_nccl": "1.11.0"}, {"NCCL_NET": "AWS Libfabric"}, ["NCCL_NET_PLUGIN"]),
        ("p4d.24xlarge", {"aws_ofi_nccl": "1.14.2"}, {}, ["NCCL_NET_PLUGIN"]),
        (
            "p4d.24xlarge",
            {"aws_ofi_nccl": "1.5.0"},
            {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa", "NCCL_PROTO": "simple", "FI_EFA_USE_DEVICE_RDMA": "1"},
            ["NCCL_NET_PLUGIN"],
        ),
        ("p4d.24xlarge", {"aws_ofi_nccl": "1.6.0"}, {"NCCL_NET": "AWS Libfabric", "FI_EFA_USE_DEVICE_RDMA": "1"}, ["NCCL_NET_PLUGIN"]),
        ("p3dn.24xlarge", {"aws_ofi_nccl": "1.6.0"}, {"NCCL_NET": "AWS Libfabric"}, ["NCCL_NET_PLUGIN"]),
        ("p4d.24xlarge", {"efa": "1.29.0", "nccl": "2.19.3"}, {"FI_EFA_SET_CUDA_SYNC_MEMOPS": "0"}, []),
        ("p4d.24xlarge", {"efa": "1.29.0", "nccl": "2.18.5"}, {}, []),
        ("p4d.24xlarge", {"aws_ofi_nccl": None}, {"NCCL_DEBUG": "WARN"}, ["NCCL_NET", "NCCL_NET_PLUGIN"]),
    ],
)
def test_older_software_needs_more(kind: str, versions: dict, more: dict, less: list[str]) -> None:
    expected = {name: value for name, value in {**EFA, **more}.items() if name not in less}
    assert env(kind, **versions) == expected


def test_a_stack_without_the_plugin_asks_for_none() -> None:
    told = filters.nccl_env("p5.48xlarge", stack_files.load("debian-12"))
    assert {each["name"] for each in told} == set(NO_EFA)


def test_an_unknown_type_is_one_sentence() -> None:
    with pytest.raises(AnsibleFilterError, match=r"The catalogue has no instance type p5\.49xlarge; the nearest are "):
        filters.nccl_env("p5.49xlarge", AWS)


@pytest.mark.parametrize(
    ("kind", "variable", "value", "verdict", "stack"),
    [
        ("p5.48xlarge", "FI_PROVIDER", "efa", "redundant", {}),
        ("p5.48xlarge", "FI_PROVIDER", "tcp", "harmful", {}),
        ("p5.48xlarge", "FI_PROVIDER", "efa", "fine", {"aws_ofi_nccl": {"version": "1.5.0"}}),
        ("trn1.32xlarge", "FI_PROVIDER", "efa", "fine", {}),
        ("p5.48xlarge", "FI_EFA_USE_DEVICE_RDMA", "1", "remove", {}),
        ("p5.48xlarge", "FI_EFA_USE_DEVICE_RDMA", "0", "harmful", {}),
        ("p4d.24xlarge", "FI_EFA_USE_DEVICE_RDMA", "1", "fine", {"aws_ofi_nccl": {"version": "1.6.0"}}),
        *((kind, "FI_EFA_USE_DEVICE_RDMA", "1", "aborts", {}) for kind in ("g4dn.8xlarge", "g5.48xlarge", "p3dn.24xlarge")),
        ("g5.xlarge", "FI_EFA_USE_DEVICE_RDMA", "1", "remove", {}),
        ("p5.48xlarge", "FI_EFA_FORK_SAFE", "1", "redundant", {}),
        ("p5.48xlarge", "RDMAV_FORK_SAFE", "1", "harmful", {}),
        ("p5.48xlarge", "RDMAV_HUGEPAGES_SAFE", "1", "harmful", {}),
        ("p5.48xlarge", "FI_EFA_USE_HUGE_PAGE", "0", "situational", {}),
        ("p5.48xlarge", "FI_EFA_SET_CUDA_SYNC_MEMOPS", "0", "obsolete", {}),
        ("p5.48xlarge", "FI_EFA_ENABLE_SHM_TRANSFER", "1", "no effect", {}),
        ("p5.48xlarge", "FI_MR_CACHE_MONITOR", "userfaultfd", "avoid", {}),
        ("p5.48xlarge", "NCCL_PROTO", "simple", "harmful", {}),
        ("p4d.24xlarge", "NCCL_PROTO", "simple", "fine", {"aws_ofi_nccl": {"version": "1.5.0"}}),
        ("p5.48xlarge", "NCCL_ALGO", "Ring", "avoid", {}),
        ("p5.48xlarge", "NCCL_TUNER_PLUGIN", "ofi", "avoid", {}),
        ("p5.48xlarge", "NCCL_TUNER_PLUGIN", "ofi", "fine", {"nccl": {"version": "2.20.5"}}),
        ("p5.48xlarge", "NCCL_BUFFSIZE", "1", "avoid", {}),
        ("p5.48xlarge", "NCCL_MIN_NCHANNELS", "8", "avoid", {}),
        ("p5.48xlarge", "NCCL_SOCKET_NTHREADS", "8", "no effect", {}),
        ("p5.48xlarge", "NCCL_NVLS_ENABLE", "0", "situational", {}),
        ("p6e-gb200.36xlarge", "NCCL_NVLS_ENABLE", "0", "harmful", {}),
        ("p5.48xlarge", "NCCL_IB_HCA", "mlx5", "no effect", {}),
        ("p5.48xlarge", "NCCL_NET_GDR_LEVEL", "PHB", "avoid", {}),
        ("p5.48xlarge", "NCCL_NET", "aws libfabric", "fine", {}),
        ("p5.48xlarge", "NCCL_NET", "Socket", "harmful", {}),
        ("p5.48xlarge", "NCCL_NET_PLUGIN", "none", "harmful", {}),
        ("p5.48xlarge", "OFI_NCCL_NIC_DUP_CONNS", "4", "obsolete", {}),
        ("p5.48xlarge", "OFI_NCCL_PROTOCOL", "RDMA", "avoid", {}),
        ("p5.48xlarge", "OFI_NCCL_FORCE_NUM_RAILS", "4", "situational", {}),
        ("p5.48xlarge", "OFI_NCCL_RDMA_MIN_POSTED_BOUNCE_BUFFERS", "64", "obsolete", {}),
        ("p5.48xlarge", "NCCL_ASYNC_ERROR_HANDLING", "1", "obsolete", {}),
    ],
)
def test_the_linter_knows_the_table(kind: str, variable: str, value: str, verdict: str, stack: dict) -> None:
    [told] = lint({variable: value, "PATH": "/bin"}, catalogue.instance_type(kind), stack)
    assert (told["variable"], told["verdict"]) == (variable, verdict)
    assert told["why"] and told["source"]


def test_the_worst_comes_first_and_nothing_needs_a_type() -> None:
    told = lint({"NCCL_NET": "OFI", "FI_PROVIDER": "efa", "RDMAV_FORK_SAFE": 1, "NCCL_ALGO": "Tree"})
    assert [each["verdict"] for each in told] == ["harmful", "avoid", "redundant", "fine"]
    assert {row[2] for row in TABLE} <= set(VERDICTS)
