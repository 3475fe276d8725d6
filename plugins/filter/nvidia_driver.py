# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware import nvidia_driver as logic


def nvidia_driver(source, version, modules, system, *, instance_type="", options=()):
    """The driver's packages and their source."""
    try:
        kind = catalogue.instance_type(instance_type) if instance_type else None
        chosen = logic.kernel_modules(modules, version, kind)
        wanted = logic.packages(source, version, chosen, system)
        return {"modules": chosen, "options": logic.module_options(options, chosen, kind), **wanted}
    except (catalogue.CatalogueError, logic.DriverError) as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of the role nvidia_driver."""

    def filters(self):
        return {"nvidia_driver": nvidia_driver}
