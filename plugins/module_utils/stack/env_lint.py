# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds stale and harmful variables of NCCL, libfabric and the plugin in a user's environment."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key

# Worst first. A variable that aborts a job is refused; the others are reported.
VERDICTS = ("aborts", "harmful", "remove", "obsolete", "avoid", "redundant", "no effect", "situational", "fine")
PARAMETERS = "aws-ofi-nccl, include/nccl_ofi_param.h, 2026-08"
CHEATSHEET = "awsome-distributed-ai, EFA cheatsheet, 2025-08-31"
EFA_VARIABLES = "aws-ofi-nccl, doc/efa-env-var.md, 2026-08"
NOTES = "aws-ofi-nccl, release notes"
PLATFORM = "aws-ofi-nccl, platform-aws.cpp, 2026-08"
NCCL_NET_CC = "NCCL 2.30.7, src/plugin/net.cc"
NCCL_GUIDE = "NCCL environment variables"
FI_EFA = "libfabric 2.6, fi_efa(7)"

# Name (a pattern), value (a pattern, "" for any), verdict, why, source. The first that matches counts.
TABLE = (
    ("FI_PROVIDER", "efa", "redundant", "the plugin chooses it since 1.6; fi_info and fi_pingpong take it as an option", EFA_VARIABLES),
    ("FI_PROVIDER", "", "harmful", "another provider than efa is not what NCCL's plugin is made for", EFA_VARIABLES),
    ("FI_EFA_USE_DEVICE_RDMA", "1", "remove", "plugin 1.7 and libfabric 1.18 use RDMA where there is some", EFA_VARIABLES),
    ("FI_EFA_USE_DEVICE_RDMA", "", "harmful", "it turns RDMA off, and collectives to a part of their speed", EFA_VARIABLES),
    ("FI_EFA_FORK_SAFE", "", "redundant", "the plugin sets it, and kernel 5.15 needs it no more", EFA_VARIABLES),
    ("RDMAV_(FORK_SAFE|HUGEPAGES_SAFE)", "", "harmful", "it breaks on newer kernels", EFA_VARIABLES),
    ("FI_EFA_USE_HUGE_PAGE", "0", "situational", "only against 'Cannot allocate memory' after a fork", EFA_VARIABLES),
    ("FI_EFA_SET_CUDA_SYNC_MEMOPS", "", "obsolete", "only for EFA before 1.29.1 with NCCL 2.19 and later", "awsome-distributed-ai#203"),
    ("FI_EFA_ENABLE_SHM_TRANSFER", "", "no effect", "NCCL does not use it; 0 is for a fi_pingpong within one host", CHEATSHEET),
    ("FI_EFA_(TX_MIN_CREDITS|MR_CACHE_ENABLE|RX_.*|TX_.*)|FI_MR_CACHE_.*", "", "avoid", "the provider knows better", FI_EFA),
    ("NCCL_PROTO", "", "harmful", "it was needed up to plugin 1.5 and keeps LL128 off", EFA_VARIABLES),
    ("NCCL_ALGO", "", "avoid", "plugins before 1.20.0 crash with it, and it overrules the tuner", NOTES),
    ("NCCL_TUNER_PLUGIN", "", "avoid", "NCCL 2.21 finds the tuner itself, and a wrong path turns it off silently", EFA_VARIABLES),
    ("NCCL_BUFFSIZE|NCCL_P2P_NET_CHUNKSIZE", "", "avoid", "the plugin sets it for the type", PLATFORM),
    ("NCCL_MIN_N?CHANNELS", "", "avoid", "more channels than network cards starve EFA with small messages", CHEATSHEET),
    ("NCCL_SOCKET_IFNAME", "\\^.*", "fine", "it excludes interfaces without peers", CHEATSHEET),
    ("NCCL_SOCKET_IFNAME", "", "situational", "names of interfaces differ by system; exclude some instead: ^lo,docker,veth", CHEATSHEET),
    ("NCCL_P2P_DISABLE", "(?!0$).+", "harmful", "it keeps GPUs of one host from NVLink and PCIe", NCCL_GUIDE),
    ("NCCL_SOCKET_NTHREADS|NCCL_NSOCKS_PERTHREAD", "", "no effect", "it is for TCP", CHEATSHEET),
    ("NCCL_NVLS_ENABLE", "0", "situational", "a way around a fabric manager in trouble; costs 110 GB/s on H100", "nccl-tests#212"),
    ("NCCL_NET_FORCE_FLUSH", "", "avoid", "the plugin sets it for the type", PLATFORM),
    ("NCCL_IB_.*", "", "no effect", "it is for NCCL's own InfiniBand transport", NCCL_GUIDE),
    ("NCCL_NET_GDR_LEVEL|NCCL_CROSS_NIC", "", "avoid", "NCCL's search and the plugin's topology choose", NCCL_GUIDE),
    ("NCCL_NET", "(?i)libfabric|aws libfabric|ofi", "fine", "a plugin that is missing ends the job instead of slowing it", NCCL_NET_CC),
    ("NCCL_NET", "", "harmful", "NCCL takes a transport of that name alone; EFA's is Libfabric", NCCL_NET_CC),
    ("NCCL_NET_PLUGIN", "none", "harmful", "it turns the plugin off, and NCCL falls back to TCP", NCCL_NET_CC),
    ("NCCL_NET_PLUGIN", "", "fine", "it picks the file; it does not forbid TCP", NCCL_NET_CC),
    ("OFI_NCCL_NIC_DUP_CONNS", "", "obsolete", "for P3dn alone, where the plugin sets it", PARAMETERS),
    ("OFI_NCCL_PROTOCOL", "", "avoid", "the plugin chooses by type, and RDMA fails on EFA without RDMA write", PARAMETERS),
    ("OFI_NCCL_DISABLE_DMABUF", "", "situational", "1 falls back to the peer memory module", NOTES),
    ("OFI_NCCL_FORCE_NUM_RAILS", "", "situational", "for GIN on P5 with plugin 1.16 and 1.17; it turns the tuner off", "aws-ofi-nccl#1061"),
    ("OFI_NCCL_RDMA_(MIN|MAX)_POSTED_BOUNCE_BUFFERS", "", "obsolete", "renamed to EAGER_BUFFERS and CONTROL_BUFFERS", PARAMETERS),
    ("OFI_NCCL_ENDPOINT_PER_COMM", "", "obsolete", "deprecated by the plugin", PARAMETERS),
    ("NCCL_GIN_(TYPE|ENABLE)", "", "situational", "new with plugin 1.21 and NCCL 2.31.2", NOTES),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "", "fine", "PyTorch's own default", "PyTorch documentation"),
    ("NCCL_ASYNC_ERROR_HANDLING", "", "obsolete", "PyTorch calls it TORCH_NCCL_ASYNC_ERROR_HANDLING now", "PyTorch documentation"),
)  # fmt: skip


def lint(env, instance_type=None, stack=None):
    """[{variable, value, verdict, why, source}] for what of `env` the table knows, worst first.

    The type and the stack sharpen the verdict where it depends on them.
    """
    found = []
    for name, value in env.items():
        for names, values, verdict, why, source in TABLE:
            if re.fullmatch(names, name) and (not values or re.fullmatch(values, str(value))):
                told = _sharpened(name, str(value), (verdict, why), instance_type, stack or {})
                found.append({"variable": name, "value": str(value), "verdict": told[0], "why": told[1], "source": source})
                break
    return sorted(found, key=lambda each: (VERDICTS.index(each["verdict"]), each["variable"]))


def _sharpened(name, value, told, instance_type, stack):
    """What the type and the versions change in (verdict, why)."""
    kind = instance_type or {}
    plugin = stack.get("aws_ofi_nccl", {}).get("version", "")
    nccl = stack.get("nccl", {}).get("version", "")
    neuron = kind.get("accelerator") == "neuron"
    if name == "FI_EFA_USE_DEVICE_RDMA" and value == "1" and kind.get("efa") and not kind.get("rdma"):
        return "aborts", "libfabric ends the program on %s, whose EFA has no RDMA" % kind["name"]
    if name in ("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA") and neuron and told[0] in ("redundant", "remove"):
        return "fine", "Neuron's guide asks for it"
    if name == "NCCL_NVLS_ENABLE" and value == "0" and kind.get("family", "").startswith("p6e-"):
        return "harmful", "NVLink between nodes needs it"
    if plugin and version_key(plugin) < version_key("1.6.0"):
        if (name, value) in (("FI_PROVIDER", "efa"), ("NCCL_PROTO", "simple")):
            return "fine", "plugin %s needs it" % plugin
    elif plugin and version_key(plugin) < version_key("1.7.0") and (name, value) == ("FI_EFA_USE_DEVICE_RDMA", "1"):
        return "fine", "plugin %s needs it" % plugin
    if name == "NCCL_TUNER_PLUGIN" and nccl and version_key("2.19") <= version_key(nccl) < version_key("2.21"):
        return "fine", "NCCL %s does not find the tuner itself" % nccl
    return told
