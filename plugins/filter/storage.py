# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.node import storage as logic


def storage_faults(variables, servers):
    """The faults, when the fleet has a server or names a file system."""
    options = {name: variables.get(f"storage_{name}") for name in ("path", "nconnect", "source")}
    return logic.faults(servers, options) if servers or options["source"] else []


class FilterModule:
    """Filters of the role storage."""

    def filters(self):
        return {"mount_unit": logic.mount_unit, "export_clients": logic.export_clients, "storage_faults": storage_faults}
