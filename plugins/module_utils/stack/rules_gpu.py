# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope stack about the driver of a GPU and the daemons of NVSwitch."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.hardware.nvidia_driver import PLAIN_NAMES
from ansible_collections.muster.fleet.plugins.module_utils.stack.document import refusal, source_of
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import Broken, Missing, broken_unless, rule

RPM = ("amzn2023", "rhel9", "rocky9")
ENDED = (535, 550, 560, 570, 575, 590, 610)
OPEN_ONLY = 620


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
