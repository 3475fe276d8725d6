# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kernel modules, packages and module options NVIDIA's driver needs on a node."""

from __future__ import annotations

# From branch 620 on only open modules exist, and from 590 on the names of the packages for Ubuntu and Debian 12 have no branch.
OPEN_ONLY = 620
PLAIN_NAMES = 590
CLOSED_ONLY_ARCHES = ("volta", "pascal", "maxwell")
OPEN_ONLY_ARCHES = ("blackwell", "rubin")
# On these the firmware of the GPU's own processor (GSP) hangs with proprietary modules (EKS AMI).
WITHOUT_GSP = ("g4dn", "g5", "g5g")


class DriverError(ValueError):
    """The driver cannot work as asked; the text is one sentence for the user."""


def branch(version):
    return int(version.split(".", 1)[0])


def kernel_modules(wanted, version, kind=None):
    """`open` or `proprietary`. wanted: open, proprietary or by_gpu, as in the stack; kind: the type from the catalogue, or None."""
    arch = (kind or {}).get("gpu_arch", "")
    name = (kind or {}).get("name", "")
    if wanted not in ("open", "proprietary", "by_gpu"):
        raise DriverError("nvidia_driver_modules is %s and must be open, proprietary or by_gpu." % wanted)
    if wanted == "by_gpu":
        wanted = "proprietary" if arch in CLOSED_ONLY_ARCHES else "open"
    if wanted == "open" and arch in CLOSED_ONLY_ARCHES:
        raise DriverError(
            "The open kernel modules do not support the %s GPUs of %s; set nvidia_driver_modules to proprietary." % (arch, name)
        )
    if wanted == "proprietary" and arch in OPEN_ONLY_ARCHES:
        raise DriverError("Only the open kernel modules support the %s GPUs of %s; set nvidia_driver_modules to open." % (arch, name))
    if wanted == "proprietary" and branch(version) >= OPEN_ONLY:
        raise DriverError(
            "Driver %s has only open kernel modules; set nvidia_driver_modules to open, or use a branch before %d." % (version, OPEN_ONLY)
        )
    return wanted


def packages(source, version, modules, system):
    """What installs the driver: `first` locks its version, then `packages` in version `pin`, from dnf's module stream `stream`."""
    wanted = {"first": [], "packages": [], "pin": "", "stream": ""}
    if source["kind"] == "url":
        return wanted
    if source["kind"] == "distro":
        return {**wanted, "packages": list(source["distro"]), "pin": version + "*"}
    if system.startswith(("ubuntu", "debian")):
        suffix = "" if branch(version) >= PLAIN_NAMES or system == "debian13" else "-%d" % branch(version)
        name = "nvidia-open" if modules == "open" else "cuda-drivers"
        return {**wanted, "first": ["nvidia-driver-pinning-" + version], "packages": [name + suffix]}
    kmod = "kmod-nvidia-open-dkms" if modules == "open" else "kmod-nvidia-latest-dkms"
    stream = "nvidia-driver:%d-%s" % (branch(version), "open" if modules == "open" else "dkms")
    return {**wanted, "packages": [kmod, "nvidia-driver-cuda", "nvidia-persistenced"], "pin": version + "*", "stream": stream}


def module_options(asked, modules, kind=None):
    """The options of the module nvidia, with those that the GPU needs."""
    options = list(asked)
    family = (kind or {}).get("family", "")
    if modules == "proprietary" and family in WITHOUT_GSP:
        options.append("NVreg_EnableGpuFirmware=0")
    # On Grace the driver manages the GPU's memory itself (CDMM), which training without MIG and Kubernetes expect.
    if family.startswith("p6e-"):
        options.append("NVreg_CoherentGPUMemoryMode=driver")
    if modules == "open" and "NVreg_EnableGpuFirmware=0" in options:
        raise DriverError(
            "NVreg_EnableGpuFirmware=0 works only with proprietary kernel modules; remove it from nvidia_driver_module_options."
        )
    return sorted(set(options))
