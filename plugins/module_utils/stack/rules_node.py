# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of scope node: what a booted node, or a container on it, must be. A node is a mapping of what was found there:

kernel, boot_kernel, boot_kernel_modules [name], lustre_kernels [version], held [package], gpl_symbols_blocked
services [enabled unit], modules [loaded name], mig, memlock_gib (0: unlimited), huge_pages_2m, efa_devices, threads_per_core
slurm_threads_per_core (what Slurm's line of the node has, if not that of the type)
container, files [path], efa_flags [flag], pyxis_slurm, slurm {slurmdbd, slurmctld, slurmd}, gres_autodetect, jwks_keys
"""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import Missing, broken_unless, rule

FABRIC_MANAGER = "nvidia-fabricmanager"
ENTRYPOINT = "/opt/nvidia/nvidia_entrypoint.sh"
NGC_FLAGS = ("--disable-ngc", "--disable-build-ngc")


@rule("fm-service", "node", reason="without it no GPU behind NVSwitch can be used", source="NVIDIA fabric manager guide")
def fm_service(case):
    if not case.type("nvswitch"):
        return None
    return broken_unless(FABRIC_MANAGER in case.found("services"), "the service %s must be enabled" % FABRIC_MANAGER)


@rule("no-fm", "node", reason="without an NVSwitch of the host it fails", source="NVIDIA fabric manager guide")
def no_fm(case):
    if case.type("nvswitch") or not case.nvidia:
        return None
    return broken_unless(FABRIC_MANAGER not in case.found("services"), "the service %s must not be enabled" % FABRIC_MANAGER)


@rule("nvlsm-module", "node", reason="the subnet manager of NVLink 5 speaks through it", source="NVIDIA fabric manager guide, B200")
def nvlsm_module(case):
    if case.type("gpu_model") not in ("B200", "B300"):
        return None
    return broken_unless("ib_umad" in case.found("modules"), "the module ib_umad must be loaded")


@rule("imex-mig", "node", reason="with coherent memory in the driver's hands there is no MIG", source="NVIDIA driver release notes, 580")
def imex_mig(case):
    return broken_unless(not case.found("mig"), "MIG must be off") if case.type("family").startswith("p6e-") else None


@rule("efa-open-kernel", "node", reason="the kernel keeps its symbols from closed modules", source="aws-parallelcluster#6015")
def efa_open_kernel(case):
    if not (case.nvidia and case.type("gpudirect_rdma") and case.found("gpl_symbols_blocked")):
        return None
    if case.kernel_modules != "open":
        return broken_unless(False, "kernel_modules of nvidia_driver must be open")
    return case.at_least(("efa", "1.29.0"))


@rule("efa-ngc", "node", reason="the installer takes the image for NGC's and leaves its libraries out", source="awsome-distributed-ai#1153")
def efa_ngc(case):
    if not case.found("container") or ENTRYPOINT not in case.found("files") or case.at_least(("efa", "1.48.0")):
        return None
    return broken_unless(all(flag in case.found("efa_flags") for flag in NGC_FLAGS), "the installer must get %s" % " ".join(NGC_FLAGS))


@rule("efa-memlock", "node", reason="EFA registers memory, which must stay where it is", source="EFA user guide; EKS user guide")
def efa_memlock(case):
    if not case.type("efa"):
        return None
    limit = case.found("memlock_gib")
    return broken_unless(limit == 0 or limit >= 16, "memlock must be unlimited, or 16 GiB at least")


@rule("efa-count", "node", reason="a rail that is missing slows every collective", source="Amazon EC2, DescribeInstanceTypes; catalogue")
def efa_count(case):
    found, right = case.found("efa_devices"), case.type("efa_counts")
    return broken_unless(found in right, "there must be %s EFA devices and are %d" % (" or ".join(str(each) for each in right), found))


@rule("efa-hugepages", "node", reason="libfabric allocates its buffers there", source="EFA installer; EKS user guide, EFA")
def efa_hugepages(case):
    if not case.type("efa"):
        return None
    return broken_unless(case.found("huge_pages_2m") > 0, "there must be huge pages of 2 MiB; the installer reserves 5128")


@rule(
    "node-threads",
    "node",
    reason="Slurm's line of the node has the type's own threads, and drains a node with fewer",
    source="Slurm slurm.conf manual; catalogue",
)
def node_threads(case):
    found, right = case.found("threads_per_core"), case.node.get("slurm_threads_per_core") or case.type("threads_per_core")
    return broken_unless(found == right, "a core must have %d threads and has %d" % (right, found))


@rule("gdrcopy-k615", "node", reason="earlier ones do not compile there", source="gdrcopy release notes, 2.5.2")
def gdrcopy_k615(case):
    return case.at_least(("gdrcopy", "2.5.2")) if version_key(case.found("kernel")) >= version_key("6.15") else None


@rule("lustre-kernel", "node", reason="the client's modules are for one kernel exactly", source="FSx for Lustre user guide")
def lustre_kernel(case):
    case.component("lustre_client")
    kernel = case.found("kernel")
    if kernel not in case.found("lustre_kernels"):
        return broken_unless(False, "there must be Lustre modules for the kernel %s" % kernel)
    return broken_unless("kernel" in case.found("held"), "the kernel must be held")


@rule("kernel-hold", "node", reason="after the next boot what was built for the old kernel is gone", source="every image project")
def kernel_hold(case):
    wanted = []
    if case.nvidia:
        wanted += ["nvidia", *(["gdrdrv"] if "gdrcopy" in case.stack else [])]
    wanted += [module for component, module in (("efa", "efa"), ("lustre_client", "lustre")) if component in case.stack]
    lacking = [module for module in wanted if module not in case.found("boot_kernel_modules")]
    return broken_unless(not lacking, "the kernel that boots next must have %s" % ", ".join(lacking))


@rule("pyxis-slurm", "node", reason="a plugin of another version ends slurmd's steps", source="pyxis documentation")
def pyxis_slurm(case):
    built, runs = case.found("pyxis_slurm"), case.found("slurm", "slurmd")
    return broken_unless(built == runs, "pyxis must be built against Slurm %s and is built against %s" % (runs, built))


@rule("slurm-order", "node", reason="daemons understand older ones, not newer ones", source="Slurm upgrade guide")
def slurm_order(case):
    order = ("slurmdbd", "slurmctld", "slurmd")
    versions = [version_key(case.found("slurm", daemon)) for daemon in order]
    said = "slurmdbd must be as new as slurmctld, and that as slurmd, at least"
    return broken_unless(versions[0] >= versions[1] >= versions[2], said)


def _slurm_from(case, oldest, what):
    runs = case.found("slurm", "slurmd")
    return broken_unless(version_key(runs) >= version_key(oldest), "%s needs Slurm %s, and this is %s" % (what, oldest, runs))


@rule("slurm-autodetect", "node", reason="this way of finding GPUs came with 24.11", source="Slurm gres.conf manual")
def slurm_autodetect(case):
    return _slurm_from(case, "24.11", "AutoDetect=nvidia") if case.found("gres_autodetect") == "nvidia" else None


@rule("slurm-jwks", "node", reason="several keys in slurm.jwks came with 24.05", source="Slurm authentication manual")
def slurm_jwks(case):
    try:
        keys = case.found("jwks_keys")
    except Missing:
        return None
    return _slurm_from(case, "24.05", "a slurm.jwks with several keys") if keys > 1 else None
