# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.stack import stack_refusals, stack_source
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware import nvidia_fabric as logic


def nvidia_fabric(instance_type):
    """The components that a type needs; `all` without a type."""
    try:
        return logic.components(catalogue.instance_type(instance_type)) if instance_type else [logic.ALL]
    except catalogue.CatalogueError as error:
        raise AnsibleFilterError(str(error)) from error


def nvidia_fabric_packages(components, stack, driver, system, arch, *, mirror=""):
    """The source, names and pin of each component, or an error."""
    try:
        logic.refuse_others({name: stack[name]["version"] for name in components if name in stack}, driver)
    except logic.FabricError as error:
        raise AnsibleFilterError(str(error)) from error
    out = []
    for name in components:
        source = stack_source(stack, name, system, arch, mirror)
        names, pin = logic.packages(name, source, stack[name]["version"], system)
        out.append({"component": name, "source": source, "names": names, "pin": pin})
    return out


def nvidia_fabric_chosen(components, stack, system, arch):
    """The components without `all`, which stands for what the types of the architecture need and the stack has for the system."""
    kinds = [catalogue.instance_type(name) for name in catalogue.names()]
    offered = [name for name in ("fabricmanager", "nvlsm", "imex") if not stack_refusals(stack, [name], system, arch)]
    return logic.chosen(components, kinds, arch, offered)


def nvidia_fabric_devices(component):
    """The PCI devices, of vendor 10de, on whose hosts the component's daemon runs."""
    return logic.devices(component, [catalogue.instance_type(name) for name in catalogue.names()])


class FilterModule:
    """Filters of the role nvidia_fabric."""

    def filters(self):
        return {
            "nvidia_fabric": nvidia_fabric,
            "nvidia_fabric_chosen": nvidia_fabric_chosen,
            "nvidia_fabric_devices": nvidia_fabric_devices,
            "nvidia_fabric_packages": nvidia_fabric_packages,
        }
