# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPUs need to communicate over NVSwitch: the daemons, their packages, and the driver's version for all of them."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.hardware.nvidia_driver import PLAIN_NAMES, branch

UNITS = {"fabricmanager": "nvidia-fabricmanager", "imex": "nvidia-imex"}
# What an image gets that does not know its type. Each daemon decides at boot by the devices on the PCI bus.
ALL = "all"


class FabricError(ValueError):
    """Versions that do not work together; the text is one sentence for the user."""


def components(kind):
    """What a type needs: NVSwitch in the host (from Blackwell on with a subnet manager), NVSwitch in the rack, or nothing."""
    if kind["family"].startswith("p6e-"):
        return ["imex"]
    if kind["nvswitch"]:
        return ["fabricmanager"] + (["nvlsm"] if kind["gpu_arch"] == "blackwell" else [])
    return []


def chosen(asked, kinds, arch, offered):
    """The components that are asked for. `all` stands for those that any of `kinds` of the architecture needs and the stack offers."""
    if ALL not in asked:
        return list(asked)
    needed = [name for kind in kinds if kind["arch"] == arch for name in components(kind)]
    return [name for name in ("fabricmanager", "nvlsm", "imex") if name in needed and name in offered]


def devices(component, kinds):
    """The PCI devices of vendor 10de on whose hosts the daemon of a component runs."""
    return sorted({device for kind in kinds if component in components(kind) for device in kind["fabric_pci"]})


def packages(component, source, version, system):
    """(names, pin) of a component's packages; the stack's source may name the packages."""
    is_deb = system.startswith(("ubuntu", "debian"))
    suffix = "-%d" % branch(version) if is_deb and component == "imex" and branch(version) < PLAIN_NAMES and system != "debian13" else ""
    names = source.get("packages") or [UNITS.get(component, component) + suffix]
    return names, "" if version == "*" else version + "*"


def refuse_others(versions, driver):
    """Raise FabricError unless all components have exactly the driver's version. versions: {component: version}; * fits any."""
    for component, version in versions.items():
        if version not in ("*", driver):
            message = "%s %s and driver %s differ and do not work together; give both the same version in the stack."
            raise FabricError(message % (component, version, driver))
