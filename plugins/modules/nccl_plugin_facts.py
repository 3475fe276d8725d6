#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_plugin_facts
short_description: Whether NCCL will load its network plugin
version_added: 0.2.0
description:
  - Finds the library that NCCL will look for, as the loader does, and asks what NCCL asks - whether it has all its libraries, exports a
    version of the interface that this NCCL knows, loads, and how its transport is called.
  - Nothing is started and no GPU is needed.
author:
  - The Muster developers (@muster-fleet)
options:
  environment:
    description: The environment of jobs, of which C(NCCL_NET_PLUGIN) and C(NCCL_NET) count.
    type: dict
    default: {}
  environment_file:
    description: A file of lines NAME=VALUE on the node, such as C(/etc/nccl.conf), for what O(environment) does not have.
    type: path
  nccl:
    description: Name of NCCL's library.
    type: str
    default: libnccl.so.2
attributes:
  check_mode:
    description: Changes nothing at all.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  facts:
    description: Returns what it found and sets no facts.
    support: none
"""

EXAMPLES = r"""
- name: Look at the plugin
  muster.fleet.nccl_plugin_facts:
    environment:
      NCCL_NET_PLUGIN: ofi
      NCCL_NET: Libfabric
  register: plugin
"""

RETURN = r"""
library:
  description: The file name that NCCL looks for.
  returned: always
  type: str
path:
  description: Where the loader finds it, empty when it does not.
  returned: always
  type: str
interfaces:
  description: The versions of the interface that the plugin has.
  returned: always
  type: list
  elements: int
nccl_interfaces:
  description: The versions that NCCL asks for.
  returned: always
  type: list
  elements: int
transport:
  description: What the plugin calls itself.
  returned: always
  type: str
problems:
  description: One sentence each under C(found), C(libraries), C(interface), C(loads) and C(transport); empty when it is well.
  returned: always
  type: dict
"""

import os
import sys

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils import nccl_plugin as logic

# In a process of its own, for a library may do anything when it is loaded. The first member of the interface is the name.
LOAD = """
import ctypes, sys
plugin = ctypes.CDLL(sys.argv[1], mode=2)
print(ctypes.c_char_p.in_dll(plugin, sys.argv[2]).value.decode())
"""


def read(path):
    with open(path, "rb") as handle:
        return handle.read()


def look(module, environment, nccl):
    """(what was found, what is wrong under its heading). It ends at the first thing without which the next cannot be asked."""
    problems = dict.fromkeys(("found", "libraries", "interface", "loads", "transport"), "")
    found = {"library": logic.library_name(environment), "path": "", "interfaces": [], "nccl_interfaces": [], "transport": ""}
    ldconfig = module.run_command([module.get_bin_path("ldconfig", True, ["/sbin", "/usr/sbin"]), "-p"])[1]
    found["path"] = path = (
        found["library"] if os.path.isabs(found["library"]) and os.path.exists(found["library"]) else logic.find(found["library"], ldconfig)
    )
    if not path:
        problems["found"] = "The loader has no %s, which NCCL will look for; install the plugin or run ldconfig." % found["library"]
        return found, problems
    library = logic.find(nccl, ldconfig)
    if not library:
        problems["found"] = "The loader has no %s; install role nccl first." % nccl
        return found, problems
    try:
        found["interfaces"] = logic.offered(logic.exported(read(path), path))
    except logic.PluginError as error:
        problems["found"] = str(error)
        return found, problems
    found["nccl_interfaces"] = logic.known(read(library))
    missing = logic.missing_libraries(module.run_command(["ldd", path])[1])
    if missing:
        problems["libraries"] = "%s needs %s, which the loader does not find." % (path, ", ".join(missing))
    problems["interface"] = logic.interface_problem(path, found["interfaces"], library, found["nccl_interfaces"])
    if missing or problems["interface"]:
        return found, problems
    newest = max(set(found["interfaces"]) & set(found["nccl_interfaces"]))
    code, out, err = module.run_command([sys.executable, "-c", LOAD, path, "ncclNetPlugin_v%d" % newest])
    if code != 0:
        said = (err.strip().splitlines() or ["signal %d" % -code])[-1]
        problems["loads"] = "%s does not load: %s." % (path, said.rstrip("."))
        return found, problems
    found["transport"] = out.strip()
    problems["transport"] = logic.transport_problem(environment, found["transport"])
    return found, problems


def main():
    module = AnsibleModule(
        argument_spec={
            "environment": {"type": "dict", "default": {}},
            "environment_file": {"type": "path"},
            "nccl": {"type": "str", "default": "libnccl.so.2"},
        },
        supports_check_mode=True,
    )
    environment = dict(module.params["environment"])
    path = module.params["environment_file"]
    if path and os.path.exists(path):
        environment = dict(logic.settings(read(path).decode(errors="replace")), **environment)
    found, problems = look(module, environment, module.params["nccl"])
    module.exit_json(changed=False, problems=problems, **found)


if __name__ == "__main__":
    main()
