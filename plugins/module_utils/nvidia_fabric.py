# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host needs so that its GPUs speak over NVSwitch: which daemons, their packages, and that all are of the driver's version."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.nvidia_driver import PLAIN_NAMES, branch

UNITS = {"fabricmanager": "nvidia-fabricmanager", "imex": "nvidia-imex"}


class FabricError(ValueError):
    """Versions that cannot be; the text is one sentence for the user."""


def components(kind):
    """What a type needs: NVSwitch in the host, from Blackwell on with its subnet manager, or in the rack."""
    if kind["family"].startswith("p6e-"):
        return ["imex"]
    if kind["nvswitch"]:
        return ["fabricmanager"] + (["nvlsm"] if kind["gpu_arch"] == "blackwell" else [])
    return []


def packages(component, source, version, system):
    """(names, pin) of a component's packages; the source may name them."""
    is_deb = system.startswith(("ubuntu", "debian"))
    suffix = "-%d" % branch(version) if is_deb and component == "imex" and branch(version) < PLAIN_NAMES and system != "debian13" else ""
    names = source.get("packages") or [UNITS.get(component, component) + suffix]
    return names, version + "*" if is_deb and version != "*" else ""


def refuse_others(versions, driver):
    """Raise FabricError unless everything has the driver's version, to the last digit. versions: {component: version}; * is free."""
    for component, version in versions.items():
        if version not in ("*", driver):
            message = "%s %s and driver %s differ, and neither starts with another's version; give both the same in the stack."
            raise FabricError(message % (component, version, driver))
