# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope stack about CUDA."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import broken_unless, rule


@rule("cuda13", "stack", reason="CUDA 13 runs on driver 580 and later", source="CUDA release notes 13.0")
def cuda13(case):
    return case.at_least(("nvidia_driver", "580.65.06")) if case.nvidia and case.major("cuda") == 13 else None


@rule("cuda12", "stack", reason="CUDA 12 runs on driver 525 and later", source="CUDA release notes 12.0")
def cuda12(case):
    return case.at_least(("nvidia_driver", "525.60.13")) if case.nvidia and case.major("cuda") == 12 else None


def _cuda(name, capabilities, oldest, source):
    code = " and ".join("sm_" + each.replace(".", "") for each in capabilities)

    @rule(name, "stack", reason="code for %s came with CUDA %s" % (code, oldest), source=source)
    def function(case):
        return case.at_least(("cuda", oldest)) if case.type("compute_capability") in capabilities else None

    return function


cuda_blackwell = _cuda("cuda-blackwell", ("10.0", "12.0"), "12.8", "CUDA release notes 12.8; NCCL makefiles")
cuda_b300 = _cuda("cuda-b300", ("10.3",), "12.9", "CUDA release notes 12.9; NCCL makefiles")
cuda_hopper = _cuda("cuda-hopper", ("9.0",), "11.8", "CUDA release notes 11.8")


@rule("cuda13-volta", "stack", reason="CUDA 13 left Volta out", source="CUDA release notes 13.0")
def cuda13_volta(case):
    return case.at_most("cuda", "12") if case.type("gpu_arch") == "volta" else None


@rule(
    "no-max-rule",
    "stack",
    reason="drivers run the programs of all earlier CUDA; the compatibility page's maximum is none",
    source="CUDA compatibility guide",
)
def no_max_rule(case):
    if not case.nvidia:
        return None
    limit = case.component("cuda").get("driver_max")
    return broken_unless(
        not limit or case.branch < int(limit.split(".")[0]), "driver_max of cuda must go, because it refuses a driver that works"
    )
