# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue as logic


def clear(function):
    """Turn the sentence of a CatalogueError into Ansible's error."""

    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except logic.CatalogueError as error:
            raise AnsibleFilterError(str(error)) from error

    return wrapped


class FilterModule:
    """Filters that derive from the catalogue of instance types."""

    def filters(self):
        return {
            "instance_type": clear(logic.instance_type),
            "ec2_interfaces": clear(logic.ec2_interfaces),
        }
