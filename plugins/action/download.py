# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads on the controller, which has the network and the cache, and copies the file with the module copy."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.plugins.action import ActionBase

from ansible_collections.muster.fleet.plugins.module_utils import paths
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import DownloadError, cached, cached_path


class ActionModule(ActionBase):
    """Copies the file of a stack's source to a node."""

    TRANSFERS_FILES = True
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp=None, task_vars=None):
        """Return the file's paths on the controller and the node, or fail with one sentence."""
        result = super().run(tmp, task_vars)
        arguments = self.validate_argument_spec(
            {
                "source": {"type": "dict", "required": True},
                "dest": {"type": "path"},
                "mode": {"type": "str", "default": "0644"},
            }
        )[1]
        source, dest = arguments["source"], arguments["dest"]
        if source.get("kind") not in ("url", "repository"):
            return {**result, "failed": True, "msg": f"A source of kind {source.get('kind')} has no file; name a url or repository."}
        folder = self._templar.template((task_vars or {}).get("muster_cache_dir")) or paths.cache_dir(os.environ)
        here, _key = cached_path(source, Path(folder))
        # Check mode does not download gigabytes: a file that is missing here counts as a change.
        if self._task.check_mode and not here.exists():
            return {**result, "changed": True, "file": str(here)}
        lock_file = self._templar.template((task_vars or {}).get("muster_lock_file")) or paths.lock_file(os.environ)
        try:
            here = cached(source, Path(folder), Path(lock_file).expanduser())
        except DownloadError as error:
            return {**result, "failed": True, "msg": str(error)}
        if not dest:
            return {**result, "changed": False, "file": str(here)}
        task = self._task.copy()
        task.args = {"src": str(here), "dest": dest, "mode": arguments["mode"]}
        copy = self._shared_loader_obj.action_loader.get(
            "ansible.legacy.copy",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        return {**result, **copy.run(task_vars=task_vars), "file": str(here)}
