# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster's parts give their services and tools, as files: templates of CloudFormation, parameters and boot scripts."""

from __future__ import annotations

import json

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot, plan


def files(cluster):
    """{file name: text} of all parts of a checked cluster document."""
    found = {}
    for part in plan.parts(cluster):
        for each in plan.stacks(cluster, part):
            found["%s.template.json" % each["name"]] = _text(each["template"])
            found["%s.parameters.json" % each["name"]] = _text(each["parameters"])
    for group in cluster["nodes"]:
        found["boot-%s.sh" % group["name"]] = boot.script(cluster, group)
    return found


def _text(value):
    return json.dumps(value, indent=1) + "\n"
