# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment variables of a collective job on an instance type with a stack, each with its reason and source.

Variables that the plugin sets itself are left out, because a value from here would override it (aws-ofi-nccl, platform-aws.cpp).
"""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key

NEURON_GUIDE = "AWS Neuron, multi-node execution on trn1"
NET_CC = "NCCL 2.30.7, src/plugin/net.cc"
EFA_VARIABLES = "aws-ofi-nccl, doc/efa-env-var.md, 2026-08"
# Machines with several GPUs and without NVLink on which copies by the GPU were measured.
COPY_BY_GPU = ("g5", "g6")


def nccl_env(kind, stack):
    """[{name, value, reason, source}] for a type of the catalogue with a stack. Empty when there is nothing to set."""
    found = []

    def put(name, value, reason, source):
        found.append({"name": name, "value": value, "reason": reason, "source": source})

    def older(name, limit):
        """Whether the stack has an older version of a component. A missing component, or one of version *, is not old."""
        version = stack.get(name, {}).get("version", "*")
        return version != "*" and version_key(version) < version_key(limit)

    if kind["accelerator"] == "neuron":
        if kind["efa"]:
            put("FI_PROVIDER", "efa", "Neuron's collectives take the first provider that libfabric offers", NEURON_GUIDE)
            put("FI_EFA_USE_DEVICE_RDMA", "1", "Neuron's collectives write into devices", NEURON_GUIDE)
        return found
    if kind["accelerator"] != "nvidia":
        return found

    put(
        "NCCL_SOCKET_IFNAME",
        "^lo,docker,veth",
        "bridges have no peers; names of network cards differ by system",
        "awsome-distributed-ai, nccl-tests",
    )
    if kind["efa"] and "aws_ofi_nccl" in stack:
        put("NCCL_DEBUG", "INFO", "only then the log has the line with the provider", "aws-ofi-nccl; deep-learning-containers, EFA tests")
        name = "AWS Libfabric" if older("aws_ofi_nccl", "1.11.1") else "Libfabric"
        put("NCCL_NET", name, "a plugin that does not load ends the job; without it NCCL falls back to TCP and says nothing", NET_CC)
        if not older("aws_ofi_nccl", "1.15.0"):
            put("NCCL_NET_PLUGIN", "ofi", "NCCL opens libnccl-net-ofi.so, the name that every installer since 1.42 gives", NET_CC)
        if older("aws_ofi_nccl", "1.6.0"):
            put("FI_PROVIDER", "efa", "plugins up to 1.5 take the first provider that libfabric offers", EFA_VARIABLES)
            put("NCCL_PROTO", "simple", "plugins up to 1.5 do not keep the order that LL128 needs", EFA_VARIABLES)
        if older("aws_ofi_nccl", "1.7.0") and kind["rdma"]:
            put("FI_EFA_USE_DEVICE_RDMA", "1", "plugins up to 1.6 use RDMA only then", EFA_VARIABLES)
        if older("efa", "1.29.1") and not older("nccl", "2.19"):
            put(
                "FI_EFA_SET_CUDA_SYNC_MEMOPS",
                "0",
                "NCCL from 2.19 on registers memory that EFA before 1.29.1 refuses",
                "awsome-distributed-ai#203",
            )
    else:
        put("NCCL_DEBUG", "WARN", "NCCL prints warnings and errors only", "NCCL environment variables")
    if kind["nvlink_domain"] > kind["gpus"]:
        put("NCCL_MNNVL_ENABLE", "1", "nodes of an UltraServer share NVLink", "awsome-distributed-ai, nccl-tests-gb200")
        put("NCCL_NVLS_ENABLE", "1", "the switches of an UltraServer reduce by themselves", "awsome-distributed-ai, nccl-tests-gb200")
    if kind["family"] in COPY_BY_GPU and kind["gpus"] > 1:
        put(
            "NCCL_SHM_USE_CUDA_MEMCPY",
            "1",
            "twice the speed between GPUs of one node that have PCIe alone",
            "awsome-distributed-ai, EFA cheatsheet",
        )
    return found
