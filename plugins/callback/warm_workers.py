# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
name: warm_workers
type: aggregate
short_description: Load once what every worker of Ansible would load again
version_added: 0.3.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Ansible forks a worker for each task and host, and each worker reads the filters, tests and lookups that its templates use from disk.
    What the parent has loaded before the first fork, no worker loads.
  - Muster's own stacks are read once, because each template that names one would read it again.
  - The C(vars_files) of a play, which Ansible parses again for each task and host, are parsed once. A name with a template in it is left to
    Ansible.
  - Changes no result, and prints nothing.
requirements:
  - Enabled by C(callbacks_enabled=muster.fleet.warm_workers).
"""

import gc

from ansible.errors import AnsibleError
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import action_loader, connection_loader, filter_loader, lookup_loader, shell_loader, test_loader

from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

# Loading one plugin of a file or collection loads all of them.
FILTERS = ["ansible.builtin.%s" % name for name in ("default", "b64decode", "log", "urldecode", "urlsplit")] + ["muster.fleet.components"]
TESTS = ["ansible.builtin.%s" % name for name in ("defined", "match", "file", "subset", "uri")]
LOOKUPS = ["ansible.builtin.file", "ansible.builtin.vars", "muster.fleet.path", "muster.fleet.role_inputs", "muster.fleet.stack"]


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.warm_workers"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook):
        for loader, names in ((filter_loader, FILTERS), (test_loader, TESTS)):
            for name in names:
                loader.get(name)
        for name in LOOKUPS:
            lookup_loader.get(name, class_only=True)
        action_loader.get("ansible.builtin.normal", class_only=True)
        connection_loader.get("ansible.builtin.ssh", class_only=True)
        shell_loader.get("sh")
        stack_files.warm()

    def v2_playbook_on_play_start(self, play):
        loader = play.get_loader()
        for name in play.get_vars_files():
            if isinstance(name, str) and "{{" not in name:
                try:
                    found = loader.path_dwim_relative_stack(play.get_search_path(), "vars", name)
                    loader.load_from_file(found, unsafe=True, trusted_as_template=True)  # the loader keeps it for the next caller
                except AnsibleError:
                    continue  # Ansible reports the error itself when it needs the file
        # A worker's garbage collector must not visit these objects, or the kernel would copy their pages.
        gc.collect()
        gc.freeze()
