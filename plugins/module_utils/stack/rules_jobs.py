# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope stack about what jobs run with: containers, DCGM, Neuron and wheels."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.stack.document import refusal
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import Missing, broken_unless, rule

# The neuronx-cc of each Neuron release.
NEURON_COMPILERS = {
    **{"2.26": "2.21", "2.27": "2.22", "2.28": "2.23", "2.29": "2.24"},
    **{"2.30": "2.25", "2.31": "2.26", "2.32": "2.27", "2.33": "2.28"},
}


@rule(
    "toolkit-cve",
    "stack",
    reason="a container could take over its host (CVE-2025-23266)",
    source="NVIDIA security bulletin, July 2025; nvidia-container-toolkit 1.17.8",
)
def toolkit_cve(case):
    if not case.nvidia or "nvidia_container_toolkit" not in case.stack:
        return None
    return case.at_least(("nvidia_container_toolkit", "1.17.8"))


@rule("dcgm-cuda13", "stack", reason="DCGM 3 has nothing for CUDA 13", source="DCGM 4 release notes")
def dcgm_cuda13(case):
    if not case.nvidia or "dcgm" not in case.stack or case.major("cuda") < 13:
        return None
    return case.at_least(("dcgm", "4"))


@rule("dcgm-cuda", "stack", reason="DCGM 4 has a package for each major of CUDA", source="DCGM 4 release notes")
def dcgm_cuda(case):
    if not case.nvidia:
        return None
    if case.major("dcgm") < 4:
        return None
    right = "datacenter-gpu-manager-4-cuda%d" % (13 if case.branch >= 580 else 12)
    named = [each["packages"] for each in case.component("dcgm")["sources"] if "packages" in each]
    return broken_unless(named and all(right in each for each in named), "the package of dcgm must be %s" % right)


@rule("neuron", "stack", reason="Trainium is seen by Neuron's driver alone", source="AWS Neuron documentation")
def neuron(case):
    if case.type("accelerator") != "neuron":
        return None
    said = refusal(case.stack, "neuron", case.system, case.type("arch"))
    return broken_unless(not said, said.rstrip("."))


@rule("neuron-trn2", "stack", reason="Trn2 came with Neuron 2.21", source="AWS Neuron release notes, 2.21.0")
def neuron_trn2(case):
    return case.at_least(("neuron", "2.21.0")) if case.type("family").startswith("trn2") else None


@rule(
    "neuron-wheels",
    "stack",
    reason="compiler, runtime and driver of a Neuron release belong together",
    source="AWS Neuron release content, 2.26 to 2.33",
)
def neuron_wheels(case):
    if case.type("accelerator") != "neuron":
        return None
    compiler, release = case.wheel("neuronx-cc"), ".".join(case.version("neuron").split(".")[:2])
    if release not in NEURON_COMPILERS:
        raise Missing("which neuronx-cc belongs to Neuron %s is not known" % release)
    right = NEURON_COMPILERS[release]
    said = "the wheel neuronx-cc must be %s with neuron %s, and is %s" % (right, release, compiler)
    return broken_unless(version_key(compiler)[:2] == version_key(right), said)


@rule("neuron-python", "stack", reason="its wheels are for Python 3.12 and later", source="AWS Neuron, TorchNeuron support matrix, 2.33.0")
def neuron_python(case):
    if case.type("accelerator") != "neuron" or version_key(case.wheel("torch-neuronx")) < version_key("2.14"):
        return None
    if "python" not in case.stack:
        raise Missing("the stack names no python")
    said = "python must be 3.12 or later with torch-neuronx %s, and is %s" % (case.wheel("torch-neuronx"), case.stack["python"])
    return broken_unless(version_key(case.stack["python"]) >= version_key("3.12"), said)


@rule("wheel-cuda", "stack", reason="PyTorch loads the libraries of its wheels, not those of the node", source="PyTorch; NVIDIA wheels")
def wheel_cuda(case):
    if not case.nvidia:
        return None
    named = [name for name in case.stack.get("wheels", {}) if re.search(r"-cu\d+$", name)]
    if not named:
        raise Missing("the stack names no wheel for a CUDA")
    wrong = [name for name in named if not name.endswith("-cu%d" % case.major("cuda"))]
    return broken_unless(not wrong, "%s must be for CUDA %d" % (" and ".join(wrong), case.major("cuda")))
