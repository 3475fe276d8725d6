# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetches on the controller, in a process that outlives the task; the lock of each file in the cache is what later tasks wait for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.muster.fleet.plugins.module_utils import places, stack
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError, cached, cached_path

# What a host's stack and system are is said there, once.
DEFAULTS = Path(__file__).resolve().parents[2] / "roles/phases/defaults/main.yml"
NEEDED = ("phases_stack", "phases_system", "phases_arch", "phases_mirror")
# Of all other roles the component is called as the role is.
COMPONENTS = {"enroot_pyxis": ["pyxis", "enroot"], "cloud_tools": ["aws_cli", "kubectl", "eksctl", "helm"]}


def sources(roles, document, system, arch, mirror):
    """The files of the stack that these roles copy to a node."""
    names = [name for role in roles for name in COMPONENTS.get(role, [role])]
    found = [stack.source_of(document, name, system, arch) for name in names if not stack.refusal(document, name, system, arch)]
    return [stack.redirected(source, mirror) for source in found if source["kind"] == "url"]


def in_background(wanted, cache):
    """Fetch one after another in a process of its own, with nothing of this one's open."""
    if os.fork():
        return
    try:
        os.setsid()
        os.closerange(0, 1024)
        for _number in range(3):
            os.open(os.devnull, os.O_RDWR)
        for source in wanted:
            with suppress(DownloadError, OSError):  # the role that needs it tries again and says why
                cached(source, cache)
    finally:
        os._exit(0)  # whatever happened: this must never go on as a second worker of Ansible


class ActionModule(ActionBase):
    """Begins to fetch and does not wait."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Return what is fetched."""
        result = super().run(tmp, task_vars)
        arguments = self.validate_argument_spec({"roles": {"type": "list", "elements": "str", "required": True}})[1]
        known = {**self._loader.load_from_file(str(DEFAULTS), trusted_as_template=True), **(task_vars or {})}
        templar = self._templar.copy_with_new_env(available_variables=known)
        document, system, arch, mirror = (templar.template(known[name]) for name in NEEDED)
        cache = Path(templar.template(known.get("muster_cache_dir")) or places.cache_dir(os.environ))
        wanted = [each for each in sources(arguments["roles"], document, system, arch, mirror) if not cached_path(each, cache)[0].exists()]
        if wanted and not self._task.check_mode:
            in_background(wanted, cache)
        return {**result, "changed": False, "begun": [each["url"] for each in wanted]}
