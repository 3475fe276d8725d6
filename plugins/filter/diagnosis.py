# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose


class FilterModule:
    """What a diagnosis says."""

    def filters(self):
        return {"diagnosis_lines": diagnose.lines, "diagnosis_faults": diagnose.faults}
