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
  - Finds the library that NCCL will open, as the loader does, and checks what NCCL checks - whether it has all its libraries, exports
    a version of the interface that this NCCL knows, and loads - and reads the name of its transport.
  - Nothing is started and no GPU is needed.
author:
  - The Muster developers (@muster-fleet)
options:
  environment:
    description: The environment of jobs; C(NCCL_NET_PLUGIN) and C(NCCL_NET) are used.
    type: dict
    default: {}
  environment_file:
    description: A file of lines NAME=VALUE on the node, such as C(/etc/nccl.conf), with variables that O(environment) lacks.
    type: path
  nccl:
    description: Name of NCCL's library.
    type: str
    default: libnccl.so.2
attributes:
  check_mode:
    description: Changes nothing.
    support: full
  diff_mode:
    description: The module changes nothing that a diff could show.
    support: none
  facts:
    description: Returns results and sets no facts.
    support: none
"""

EXAMPLES = r"""
- name: Check the plugin
  muster.fleet.nccl_plugin_facts:
    environment:
      NCCL_NET_PLUGIN: ofi
      NCCL_NET: Libfabric
  register: plugin
"""

RETURN = r"""
library:
  description: The file name that NCCL opens.
  returned: always
  type: str
path:
  description: The path at which the loader finds it, empty when it does not.
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
  description: The name that the plugin gives its transport.
  returned: always
  type: str
rehearsed:
  description: The stand-ins among the plugin and NCCL's library; empty on a real host.
  returned: always
  type: list
  elements: str
faults:
  description: One sentence each under C(found), C(libraries), C(interface), C(loads) and C(transport); empty when there is no fault.
  returned: always
  type: dict
"""

import os
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.hardware import nccl_plugin as logic
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal

# In a process of its own, because a library may do anything when it is loaded. The first member of the interface is the name.
LOAD = """
import ctypes, sys
plugin = ctypes.CDLL(sys.argv[1], mode=2)
print(ctypes.c_char_p.in_dll(plugin, sys.argv[2]).value.decode())
"""


def look(module, environment, nccl):
    """Return (findings, faults by heading). It stops at the first fault that prevents the next check."""
    faults = dict.fromkeys(("found", "libraries", "interface", "loads", "transport"), "")
    found = {"library": logic.library_name(environment), "path": "", "interfaces": [], "nccl_interfaces": [], "transport": ""}
    found["rehearsed"] = []
    ldconfig = module.run_command([module.get_bin_path("ldconfig", True, ["/sbin", "/usr/sbin"]), "-p"])[1]
    found["path"] = path = (
        found["library"] if os.path.isabs(found["library"]) and os.path.exists(found["library"]) else logic.find(found["library"], ldconfig)
    )
    if not path:
        faults["found"] = "The loader has no %s, which NCCL will look for; install the plugin or run ldconfig." % found["library"]
        return found, faults
    library = logic.find(nccl, ldconfig)
    found["rehearsed"] = sorted({name for each in (path, library) if each for name in rehearsal.in_file(each)})
    if not library:
        faults["found"] = "The loader has no %s; install role nccl first." % nccl
        return found, faults
    try:
        found["interfaces"] = logic.offered(logic.exported(Path(path).read_bytes(), path))
    except logic.PluginError as error:
        faults["found"] = str(error)
        return found, faults
    found["nccl_interfaces"] = logic.known(Path(library).read_bytes())
    missing = logic.missing_libraries(module.run_command(["ldd", path])[1])
    if missing:
        faults["libraries"] = "%s needs %s, which the loader does not find." % (path, ", ".join(missing))
    faults["interface"] = logic.interface_fault(path, found["interfaces"], library, found["nccl_interfaces"])
    if missing or faults["interface"]:
        return found, faults
    newest = max(set(found["interfaces"]) & set(found["nccl_interfaces"]))
    code, out, err = module.run_command([sys.executable, "-c", LOAD, path, "ncclNetPlugin_v%d" % newest])
    if code != 0:
        said = (err.strip().splitlines() or ["signal %d" % -code])[-1]
        faults["loads"] = "%s does not load: %s." % (path, said.rstrip("."))
        return found, faults
    found["transport"] = out.strip()
    faults["transport"] = logic.transport_fault(environment, found["transport"])
    return found, faults


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
    if path:
        environment = dict(logic.settings(read_text(path, "")), **environment)
    found, faults = look(module, environment, module.params["nccl"])
    module.exit_json(changed=False, faults=faults, **found)


if __name__ == "__main__":
    main()
