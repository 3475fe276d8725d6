# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a container can work on its host: the rules of stacks, on the host's drivers and the container's libraries."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import OF_THE_HOST, Case
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import judge, sentence


def together(host, container, instance_type=None):
    """One sentence for each rule that both break together and the host alone does not. Each: {component: {"version"}} (facts.installed)."""
    kernel = host.get("running_kernel", {}).get("version", "")

    def broken(found):
        # What is installed has no source.
        stack = {name: {"version": each["version"], "sources": []} for name, each in found.items()}
        told = judge(Case(stack, instance_type, kernel=kernel), ("stack",))
        return {each["rule"]: sentence(each) for each in told if each["verdict"] in ("refused", "warned")}

    own = {name: each for name, each in container.items() if name not in OF_THE_HOST}
    alone = broken(host)
    mixed = broken({**own, **{name: host[name] for name in OF_THE_HOST if name in host}})
    return [text for name, text in mixed.items() if text != alone.get(name)]
