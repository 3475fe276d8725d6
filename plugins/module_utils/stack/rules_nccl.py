# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope stack about NCCL, its plugin for EFA, and GDRCopy."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import broken_unless, rule

P5 = ("p5", "p5e", "p5en")


def _over_efa(case):
    return case.nvidia and case.type("efa")


@rule("plugin-nccl", "stack", reason="the plugin's oldest interface is that of NCCL 2.17", source="aws-ofi-nccl release notes")
def plugin_nccl(case):
    return case.at_least(("nccl", "2.17.1")) if _over_efa(case) and case.component("aws_ofi_nccl") else None


@rule("plugin-libfabric", "stack", reason="the plugin's AWS build asks for it", source="aws-ofi-nccl release notes, 1.14")
def plugin_libfabric(case):
    return case.at_least(("libfabric", "1.22.0amzn4.0")) if _over_efa(case) and case.component("aws_ofi_nccl") else None


@rule(
    "plugin-missing",
    "stack",
    reason="NCCL reaches EFA through the plugin only, and falls back to TCP without it",
    source="NCCL 2.30.7, net.cc; EFA user guide",
)
def plugin_missing(case):
    if not (_over_efa(case) and case.type("gpudirect_rdma")):
        return None
    return broken_unless("aws_ofi_nccl" in case.stack, "the stack must have aws_ofi_nccl")


@rule(
    "plugin-old",
    "stack",
    reason="plugins before 1.9.0 have interface v7 at most, which is older than NCCL 2.20, and nobody tested them with NCCL 2.28",
    source="aws-ofi-nccl, exported symbols of 1.7.0 to 1.9.0 and release notes",
)
def plugin_old(case):
    if not _over_efa(case) or case.at_least(("nccl", "2.28")):
        return None
    return case.at_least(("aws_ofi_nccl", "1.9.0"))


@rule("nccl-blackwell", "stack", reason="code for Blackwell came with NCCL 2.25.1", source="NCCL release notes, 2.25.1")
def nccl_blackwell(case):
    return case.at_least(("nccl", "2.25.1")) if case.type("gpu_arch") == "blackwell" else None


@rule("nccl-cuda13", "stack", reason="NCCL 2.27.7 is the first for CUDA 13", source="NCCL, makefiles/common.mk; nvidia-nccl-cu13 on PyPI")
def nccl_cuda13(case):
    return case.at_least(("nccl", "2.27.7")) if case.nvidia and case.major("cuda") == 13 else None


@rule(
    "p5-plugin",
    "stack",
    reason="older ones do not know the type, or run it at a part of its speed",
    source="aws-ofi-nccl release notes, 1.7.3",
)
def p5_plugin(case):
    if case.type("family") not in P5:
        return None
    return case.at_least(("aws_ofi_nccl", "1.7.3"), ("nccl", "2.18.5"), ("efa", "1.29.0"))


@rule("p5-cuda12", "stack", reason="NCCL's path for H100 is made with CUDA 12", source="NCCL and aws-ofi-nccl release notes")
def p5_cuda12(case):
    return case.at_least(("cuda", "12")) if case.type("family") in P5 else None


def _plugin(name, matches, oldest, warn=False):
    @rule(name, "stack", warn=warn, reason="older plugins do not know the type", source="aws-ofi-nccl release notes, %s" % oldest)
    def function(case):
        return case.at_least(("aws_ofi_nccl", oldest)) if case.type("name").startswith(matches) and case.type("efa") else None

    return function


p54_plugin = _plugin("p54-plugin", "p5.4xlarge", "1.16.2")
b200_plugin = _plugin("b200-plugin", "p6-b200", "1.15.0")
b300_plugin = _plugin("b300-plugin", "p6-b300", "1.18.0")
g7e_plugin = _plugin("g7e-plugin", "g7e", "1.17.2")
gb200_plugin = _plugin("gb200-plugin", "p6e-", "1.19.0")


@rule("blackwell-tuner", "stack", warn=True, reason="earlier plugins have no tuner for it", source="aws-ofi-nccl release notes, 1.18.0")
def blackwell_tuner(case):
    return case.at_least(("aws_ofi_nccl", "1.18.0")) if case.type("gpu_model") in ("B200", "B300") else None


@rule("cuda13-plugin", "stack", reason="plugins before it are linked against CUDA 12", source="aws-ofi-nccl release notes, 1.17.0")
def cuda13_plugin(case):
    return case.at_least(("aws_ofi_nccl", "1.17.0")) if _over_efa(case) and case.major("cuda") == 13 else None


@rule("plugin-982", "stack", reason="together they end in a crash on A100", source="aws-ofi-nccl#982")
def plugin_982(case):
    if case.type("gpu_model") != "A100":
        return None
    bad = case.version("aws_ofi_nccl") == "1.16.2" and case.version("nccl") == "2.20.5"
    return broken_unless(not bad, "aws_ofi_nccl must not be 1.16.2 with nccl 2.20.5", aws_ofi_nccl=">= 1.16.3")


@rule(
    "nccl219-efa",
    "stack",
    reason="NCCL 2.19 registers memory as earlier EFA does not allow",
    source="aws-ofi-nccl issues; EFA installer 1.29",
)
def nccl219_efa(case):
    return case.at_least(("efa", "1.29.0")) if _over_efa(case) and not case.at_least(("nccl", "2.19")) else None


@rule(
    "gdrcopy-cuda13",
    "stack",
    reason="CUDA 13, Blackwell and coherent memory came with GDRCopy 2.5.1",
    source="gdrcopy release notes, 2.5.1",
)
def gdrcopy_cuda13(case):
    if not case.nvidia or not (case.gpu_at_least("blackwell") or case.major("cuda") >= 13):
        return None
    return case.at_least(("gdrcopy", "2.5.1"))


@rule("gdrcopy-k63", "stack", reason="earlier ones do not compile for kernel 6.3 and later", source="gdrcopy release notes, 2.4")
def gdrcopy_k63(case):
    if not case.nvidia or "gdrcopy" not in case.stack:
        return None
    return case.at_least(("gdrcopy", "2.4")) if version_key(case.kernel) >= version_key("6.3") else None


@rule("gdrcopy-k615", "stack", reason="earlier ones do not compile for kernel 6.15 and later", source="gdrcopy release notes, 2.5.2")
def gdrcopy_k615(case):
    if not case.nvidia or "gdrcopy" not in case.stack:
        return None
    return case.at_least(("gdrcopy", "2.5.2")) if version_key(case.kernel) >= version_key("6.15") else None
