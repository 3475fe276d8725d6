# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope env: the environment that a job brings, on a type with a stack."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.stack.env_lint import lint
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import broken_unless, rule

NAMES = ("libfabric", "aws libfabric", "ofi")


@rule("algo-segv", "env", warn=True, reason="the tuner may crash with them", source="aws-ofi-nccl release notes, 1.20.0")
def algo_segv(case):
    if not ("NCCL_ALGO" in case.env or "NCCL_PROTO" in case.env):
        return None
    return case.at_least(("aws_ofi_nccl", "1.20.0"))


# Role nccl sets NCCL_NET on every node, so a job needs none of its own.
@rule("no-silent-tcp", "env", reason="NCCL takes the transport of that name alone, and EFA's is Libfabric", source="NCCL 2.30.7, net.cc")
def no_silent_tcp(case):
    if not (case.nvidia and case.type("efa")) or "NCCL_NET" not in case.env or case.nodes < 2 or not case.component("aws_ofi_nccl"):
        return None
    return broken_unless(str(case.env["NCCL_NET"]).lower() in NAMES, "NCCL_NET must be Libfabric")


@rule(
    "socket-ifname",
    "env",
    reason="no system on EC2 calls its interface eth0, and NCCL ends without one",
    source="NCCL environment variables",
)
def socket_ifname(case):
    value = str(case.env.get("NCCL_SOCKET_IFNAME", ""))
    if not value or value.startswith("^"):
        return None
    named = [each for each in value.lstrip("=").split(",") if each.startswith("eth")]
    return broken_unless(not named, "NCCL_SOCKET_IFNAME must exclude interfaces, such as ^lo,docker,veth, and names %s" % ", ".join(named))


@rule("p2p-disabled", "env", reason="GPUs of one host would leave NVLink unused", source="NCCL environment variables")
def p2p_disabled(case):
    if not (case.nvidia and case.type("nvlink")):
        return None
    return broken_unless(str(case.env.get("NCCL_P2P_DISABLE", "0")) in ("", "0"), "NCCL_P2P_DISABLE must go")


@rule("net-name-old", "env", reason="the plugin had this name up to 1.11.0", source="aws-ofi-nccl, nccl_ofi_interface_nvidia.cpp")
def net_name_old(case):
    if "NCCL_NET" not in case.env or version_key(case.version("aws_ofi_nccl")) > version_key("1.11.0"):
        return None
    return broken_unless(case.env["NCCL_NET"] == "AWS Libfabric", "NCCL_NET must be AWS Libfabric")


def _gin(case):
    return str(case.env.get("NCCL_GIN_ENABLE", "0")) not in ("0", "") or "NCCL_GIN_TYPE" in case.env


@rule("gin", "env", reason="the GPU's own network calls came with these", source="aws-ofi-nccl release notes, 1.21.0")
def gin(case):
    if not _gin(case):
        return None
    return case.at_least(("aws_ofi_nccl", "1.21.0"), ("nccl", "2.31.2"), ("gdrcopy", "2.5"), ("libfabric", "2.6.0"))


@rule("gin-efa", "env", reason="the installer has the libfabric of GIN from 1.50 on", source="EFA installer changelog; aws-ofi-nccl")
def gin_efa(case):
    return case.at_least(("efa", "1.50.0")) if _gin(case) else None


def _told(case, verdicts):
    return [each for each in lint(case.env, case.instance_type, case.stack) if each["verdict"] in verdicts]


@rule("env-aborts", "env", reason="the program ends at its start", source="libfabric 2.6, fi_efa(7)")
def env_aborts(case):
    told = _told(case, ("aborts",))
    return broken_unless(not told, "; ".join("%s must go: %s" % (each["variable"], each["why"]) for each in told))


@rule("env-harmful", "env", warn=True, reason="it costs speed or breaks", source="the table of env_lint.py")
def env_harmful(case):
    told = _told(case, ("harmful", "remove"))
    return broken_unless(not told, "; ".join("%s should go: %s" % (each["variable"], each["why"]) for each in told))
