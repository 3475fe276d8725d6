# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope stack about EFA: its installer, and what it brings."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import Broken, Missing, broken_unless, rule

NGC_FLAGS = ("--disable-ngc", "--disable-build-ngc")
# What each EFA installer brings, as far as its changelog says it.
_BUNDLE = ("driver", "libfabric", "rdma_core", "aws_ofi_nccl", "openmpi")
BUNDLES = {
    version: {name: value for name, value in zip(_BUNDLE, values) if value}
    for version, values in {
        "1.51.0": ("3.3.1", "2.7.0amzn2.0", "65.0", "1.22.0", "5.0.9"),
        "1.50.0": ("3.3.0", "2.6.0amzn1.0", "64.0", "1.21.1", ""),
        "1.49.0": ("3.1.0", "2.4.0amzn5.0", "63.0", "1.20.0", ""),
        "1.48.0": ("", "2.4.0amzn3.0", "", "1.19.0", ""),
        "1.47.0": ("3.0.0", "2.4.0amzn1.0", "61.0", "1.18.0", "5.0.9"),
        "1.46.0": ("", "2.3.1amzn4.0", "", "", ""),
        "1.45.1": ("", "2.3.1amzn3.0", "", "", ""),
        "1.45.0": ("", "2.3.1amzn2.0", "60", "1.17.2", ""),
        "1.44.0": ("", "2.3.1amzn1.0", "59", "1.17.1", "5.0.8"),
        "1.43.3": ("2.17.3", "", "", "", ""),
        "1.43.2": ("2.17.2", "2.1.0amzn5.0", "58", "1.16.3", ""),
        "1.43.1": ("", "2.1.0amzn5.0", "", "1.16.2", ""),
        "1.43.0": ("2.17.2", "2.1.0amzn4.0", "58", "1.16.1", ""),
        "1.42.0": ("2.15.3", "2.1.0amzn3.0", "57", "1.15.0", ""),
        "1.41.0": ("2.15.0", "2.1.0amzn2.0", "57", "1.14.2", "5.0.6"),
        "1.40.0": ("", "2.1.0amzn2.0", "56", "1.14.2", ""),
        "1.39.0": ("2.15.0", "2.1.0", "", "1.14.1", "5.0.6"),
        "1.38.1": ("2.13.0", "1.22.0amzn5.0", "54", "1.13.2", ""),
        "1.38.0": ("2.13.0", "1.22.0amzn4.0", "54", "1.13.2", ""),
        "1.37.0": ("2.13.0", "1.22.0amzn4.0", "54", "", "5.0.5"),
        "1.36.0": ("2.13.0", "1.22.0amzn3.0", "54", "", "5.0.5"),
        "1.35.0": ("2.12.1", "1.22.0amzn2.0", "", "", "5.0.5"),
    }.items()
}


@rule(
    "efa-missing",
    "stack",
    warn=True,
    reason="without it NCCL runs over TCP, or on the driver that the kernel happens to have",
    source="EFA user guide",
)
def efa_missing(case):
    return broken_unless("efa" in case.stack, "the stack should have efa") if case.type("efa") else None


@rule("efa-580", "stack", reason="the way to a GPU's memory changed with 580", source="EFA installer changelog, 1.43.3")
def efa_580(case):
    if not (case.nvidia and case.type("gpudirect_rdma") and case.branch >= 580):
        return None
    return case.at_least(("efa", "1.43.3"))


@rule(
    "efa-open-kernel",
    "stack",
    reason="kernels since September 2023 keep what EFA needs of the driver from closed modules",
    source="aws-parallelcluster#6015; EFA installer changelog, 1.29.0",
)
def efa_open_kernel(case):
    if not (case.nvidia and case.type("gpudirect_rdma") and "efa" in case.stack):
        return None
    if case.kernel_modules != "open":
        return broken_unless(False, "kernel_modules of nvidia_driver must be open")
    return case.at_least(("efa", "1.29.0"))


@rule("efa-p5en", "stack", reason="its EFA has the device id 0xefa3", source="EFA driver release notes, 2.12.0")
def efa_p5en(case):
    return case.at_least(("efa", "1.35.0")) if case.type("family") == "p5en" else None


def _efa_type(name, matches, oldest):
    @rule(name, "stack", reason="EFA installer %s is the first that knows the type" % oldest, source="EFA installer changelog, %s" % oldest)
    def function(case):
        return case.at_least(("efa", oldest)) if case.type("name").startswith(matches) and case.type("efa") else None

    return function


efa_b200 = _efa_type("efa-b200", "p6-b200", "1.42.0")
efa_g7e = _efa_type("efa-g7e", "g7e", "1.45.0")


def _efa_system(name, system, limit, value, source="EFA installer changelog"):
    what = "came with" if limit == ">=" else "was left after"

    @rule(name, "stack", reason="%s %s EFA installer %s" % (system, what, value), source=source)
    def function(case):
        if case.system != system:
            return None
        return case.at_least(("efa", value)) if limit == ">=" else case.at_most("efa", value)

    return function


efa_al2 = _efa_system("efa-al2", "amzn2", "<=", "1.49.0")
efa_u2004 = _efa_system("efa-u2004", "ubuntu20.04", "<=", "1.42.0")
efa_deb11 = _efa_system("efa-deb11", "debian11", "<=", "1.50.0")
efa_deb10 = _efa_system("efa-deb10", "debian10", "<=", "1.39.0")
efa_u2404 = _efa_system("efa-u2404", "ubuntu24.04", ">=", "1.33.0")
efa_rhel10 = _efa_system("efa-rhel10", "rhel10", ">=", "1.48.0")


@rule(
    "efa-ngc",
    "stack",
    warn=True,
    reason="in a container of NGC's the installer would leave its libraries out",
    source="awsome-distributed-ai#1153; EFA installer changelog, 1.48.0",
)
def efa_ngc(case):
    if "efa" not in case.stack or case.at_least(("efa", "1.48.0")):
        return None
    if "container_flags" not in case.stack["efa"]:
        raise Missing("the stack names no container_flags of efa")
    lacking = [flag for flag in NGC_FLAGS if flag not in case.stack["efa"]["container_flags"]]
    return broken_unless(not lacking, "container_flags of efa should have %s" % " and ".join(lacking))


def _bundled(case):
    return any("bundled_in" in each for each in case.component("aws_ofi_nccl")["sources"])


@rule(
    "efa-plugin-el9", "stack", reason="the installer has the plugin for RHEL 9 and Rocky 9 from 1.46.0 on", source="EFA installer changelog"
)
def efa_plugin_el9(case):
    return case.at_least(("efa", "1.46.0")) if case.system in ("rhel9", "rocky9") and _bundled(case) else None


@rule("efa-plugin-el8", "stack", reason="the installer has no plugin for RHEL 8 and Rocky 8", source="EFA installer changelog")
def efa_plugin_el8(case):
    return broken_unless(not _bundled(case), "aws_ofi_nccl must come from source") if case.system in ("rhel8", "rocky8") else None


@rule("efa-plugin-arm", "stack", reason="the installer has the plugin for ARM from 1.40.0 on", source="EFA installer changelog")
def efa_plugin_arm(case):
    return case.at_least(("efa", "1.40.0")) if case.type("arch") == "arm64" and _bundled(case) else None


@rule("efa-1.47-hang", "stack", warn=True, reason="large broadcasts between nodes hang", source="deep-learning-containers#6668, 2026-08-27")
def efa_147_hang(case):
    if not case.type("efa"):
        return None
    bad = case.version("efa") == "1.47.0" and case.version("aws_ofi_nccl") == "1.18.0"
    return broken_unless(not bad, "efa should be 1.49.0 or later", efa=">= 1.49.0")


@rule("efa-rdma-core", "stack", reason="mixed, the loader ends with EFA_1.4 not found", source="prime-rl#3454")
def efa_rdma_core(case):
    case.component("efa")
    wrong = [
        name for name in ("rdma_core", "libfabric") if any(each.get("bundled_in") != "efa" for each in case.component(name)["sources"])
    ]
    return broken_unless(not wrong, "%s must come with efa, from the same installer" % " and ".join(wrong))


@rule("efa-bundle", "stack", reason="the installer brings its own versions of these", source="EFA installer changelog")
def efa_bundle(case):
    if "efa" not in case.stack:
        return None
    installer = case.version("efa")
    if installer not in BUNDLES:
        raise Missing("what EFA installer %s brings is not known" % installer)
    said = {"driver": case.stack["efa"].get("driver", "*")}
    for name in _BUNDLE[1:]:
        if any(each.get("bundled_in") == "efa" for each in case.stack.get(name, {}).get("sources", [])):
            said[name] = case.stack[name]["version"]
    for name, brought in BUNDLES[installer].items():
        key = version_key(brought)
        if said.get(name, "*") != "*" and version_key(said[name])[: len(key)] != key:
            what = "driver of efa" if name == "driver" else name
            works = {} if name == "driver" else {name: "= " + brought}
            return Broken("%s must be %s with EFA installer %s, and is %s" % (what, brought, installer, said[name]), **works)
    return ""
