# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope stack: which versions work with each other, with a type and with an operating system."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nvidia_driver import PLAIN_NAMES
from ansible_collections.muster.fleet.plugins.module_utils.stack.document import refusal, source_of
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import Broken, Missing, broken_unless, rule

RPM = ("amzn2023", "rhel9", "rocky9")
ENDED = (535, 550, 560, 570, 575, 590, 610)
OPEN_ONLY = 620
P5 = ("p5", "p5e", "p5en")
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

# The neuronx-cc of each Neuron release.
NEURON_COMPILERS = {
    **{"2.26": "2.21", "2.27": "2.22", "2.28": "2.23", "2.29": "2.24"},
    **{"2.30": "2.25", "2.31": "2.26", "2.32": "2.27", "2.33": "2.28"},
}

# --- GPU and driver


@rule("driver-source", "stack", reason="without a driver no GPU is seen", source="the stack document")
def driver_source(case):
    if not case.nvidia:
        return None
    case.component("nvidia_driver")
    said = refusal(case.stack, "nvidia_driver", case.system, case.type("arch"))
    return broken_unless(not said, said.rstrip("."))


@rule("blackwell-open", "stack", reason="Blackwell and Grace have no proprietary kernel modules", source="NVIDIA driver guide, R615")
def blackwell_open(case):
    if not case.gpu_at_least("blackwell"):
        return None
    return broken_unless(case.kernel_modules == "open", "kernel_modules of nvidia_driver must be open")


@rule("open-turing", "stack", reason="open kernel modules need the GSP, which came with Turing", source="NVIDIA driver guide, R615")
def open_turing(case):
    if not case.nvidia:
        return None
    return broken_unless(
        case.kernel_modules != "open" or case.gpu_at_least("turing"), "kernel_modules of nvidia_driver must be proprietary"
    )


@rule("proprietary-620", "stack", reason="branch 620 removed the proprietary kernel modules", source="NVIDIA driver guide, 2026-11-09")
def proprietary_620(case):
    if not case.nvidia:
        return None
    return "" if case.kernel_modules == "open" or case.branch < OPEN_ONLY else case.at_most("nvidia_driver", "619")


def _driver(name, gpus, oldest, source):
    @rule(name, "stack", reason="%s came with branch %s" % (" and ".join(gpus), oldest), source=source)
    def function(case):
        return case.at_least(("nvidia_driver", oldest)) if case.type("gpu_model") in gpus else None

    return function


b200_driver = _driver("b200-driver", ("B200", "GB200"), "570", "NVIDIA driver release notes, 570")
g7e_driver = _driver("g7e-driver", ("RTX PRO 6000 Server",), "575", "NVIDIA driver release notes, 575")
b300_driver = _driver("b300-driver", ("B300",), "580", "NVIDIA driver release notes, 580")
g7_driver = _driver("g7-driver", ("RTX PRO 4500 Server",), "595", "NVIDIA driver release notes, 595; EKS AMI documentation")


@rule("hopper-driver", "stack", reason="Hopper came with branch 525", source="NVIDIA driver release notes, 525")
def hopper_driver(case):
    return case.at_least(("nvidia_driver", "525")) if case.type("gpu_arch") == "hopper" else None


@rule("h200-driver", "stack", reason="H200 came with branch 550", source="NVIDIA driver release notes, 550")
def h200_driver(case):
    return case.at_least(("nvidia_driver", "550")) if case.type("gpu_model") == "H200" else None


@rule(
    "volta-last",
    "stack",
    reason="580 is the last branch with Volta, and its open modules leave Volta out",
    source="NVIDIA driver guide, R580",
)
def volta_last(case):
    if case.type("gpu_arch") != "volta":
        return None
    if case.branch > 580:
        return Broken(
            "nvidia_driver must be of branch 580 or earlier and is %s" % case.version("nvidia_driver"), nvidia_driver="<= 580.999"
        )
    return broken_unless(case.kernel_modules == "proprietary", "kernel_modules of nvidia_driver must be proprietary")


@rule("driver-595-left", "stack", reason="branch 595 left P3 and P3dn out", source="EKS AMI documentation, 2026-07")
def driver_595_left(case):
    if not case.nvidia:
        return None
    return case.at_most("nvidia_driver", "594") if case.type("family") in ("p3", "p3dn") else ""


@rule(
    "gsp-turing-a10",
    "stack",
    warn=True,
    reason="T4 and A10G had trouble with the GSP's firmware",
    source="EKS AMI, nvidia-kmod-load.sh, 2026-07",
)
def gsp_turing_a10(case):
    if case.type("family") not in ("g4dn", "g5", "g5g"):
        return None
    off = "NVreg_EnableGpuFirmware=0" in case.component("nvidia_driver").get("module_options", [])
    return broken_unless(case.kernel_modules == "open" or off, "module_options of nvidia_driver should have NVreg_EnableGpuFirmware=0")


@rule(
    "nvswitch-fm",
    "stack",
    reason="the fabric manager speaks to its own driver only",
    source="NVIDIA fabric manager guide; every image project",
)
def nvswitch_fm(case):
    return case.same_version("fabricmanager", "nvidia_driver") if case.type("nvswitch") else None


@rule("nscq", "stack", reason="the switch library speaks to its own driver only", source="NVIDIA fabric manager guide; every image project")
def nscq(case):
    return case.same_version("nscq", "nvidia_driver") if case.type("nvswitch") and case.component("nscq") else None


@rule(
    "nvlsm",
    "stack",
    reason="NVLink 5 switches need the subnet manager beside the fabric manager",
    source="NVIDIA fabric manager guide, B200",
)
def nvlsm(case):
    if case.type("gpu_model") not in ("B200", "B300"):
        return None
    return broken_unless(case.has("nvlsm"), "the stack must have nvlsm")


@rule("imex", "stack", reason="IMEX speaks to its own driver only", source="NVIDIA IMEX guide; aws-parallelcluster 3.16")
def imex(case):
    return case.same_version("imex", "nvidia_driver") if case.type("family").startswith("p6e-") else None


@rule("driver-eol", "stack", warn=True, reason="NVIDIA mends this branch no more", source="NVIDIA driver branches, 2026-10")
def driver_eol(case):
    if not case.nvidia:
        return None
    return broken_unless(case.branch not in ENDED, "nvidia_driver should be of branch 580 or 595 and is %s" % case.version("nvidia_driver"))


@rule(
    "fm-pkg-name",
    "stack",
    reason="the package lost a dash at 580 on RPM systems, and its branch at 590 on Ubuntu and Debian 12",
    source="aws-parallelcluster, install-nvidia-driver.sh; NVIDIA driver installation guide, R590",
)
def fm_pkg_name(case):
    if not case.type("nvswitch"):
        return None
    case.component("fabricmanager")
    named = (source_of(case.stack, "fabricmanager", case.system, case.type("arch")) or {}).get("packages")
    if not named:
        raise Missing("the stack names no package of the fabric manager for %s" % case.system)
    if case.system in RPM:
        right = "nvidia-fabric-manager" if case.branch < 580 else "nvidia-fabricmanager"
        # The role names the version beside the package; a site's stack may have it in the name.
        named = [name.partition("-" + case.version("fabricmanager"))[0] for name in named]
    else:
        right = "nvidia-fabricmanager" + ("-%d" % case.branch if case.branch < PLAIN_NAMES and case.system != "debian13" else "")
    return broken_unless(right in named, "the package of fabricmanager must be %s on %s" % (right, case.system))


@rule(
    "gb200-cdmm",
    "stack",
    reason="coherent memory is given to the driver from 580 on",
    source="azhpc-images; NVIDIA driver release notes, 580",
)
def gb200_cdmm(case):
    return case.at_least(("nvidia_driver", "580")) if case.type("family").startswith("p6e-") else None


@rule("stack-arch", "stack", reason="software of another architecture does not start", source="Amazon EC2, DescribeInstanceTypes")
def stack_arch(case):
    if "architectures" not in case.stack:
        raise Missing("the stack names no architectures")
    return broken_unless(case.type("arch") in case.stack["architectures"], "architectures must have %s" % case.type("arch"))


# --- CUDA


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


# --- EFA


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


# --- plugin and NCCL


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


# --- the rest


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
