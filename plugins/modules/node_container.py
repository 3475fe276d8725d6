#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: node_container
short_description: Bring up and take down a fleet of node containers
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Starts systemd containers on this machine that stand for the nodes of a fleet, with podman or docker, and waits until SSH answers.
  - Each node has a fixed address on the fleet's own network, CPU and memory limits, the fleet's shared folder at C(/fsx) and a host key
    that it keeps when it is made anew.
  - What is wanted is recorded in the fleet's state folder first. Running again repairs what a killed run or a restart left behind.
  - Runs on the controller, as root or with sudo that asks for no password.
options:
  fleet:
    description: The fleet's name. Containers and networks of other fleets are never touched.
    type: str
    default: local
  state:
    description:
      - V(present) creates what is missing and starts what is stopped. What runs is left untouched.
      - V(absent) removes the fleet with its network, or only the O(nodes) that are named.
      - V(image) only sees that the image of the nodes is there, also by the name C(localhost/muster-node:RELEASE), for images made on it.
      - V(started), V(stopped), V(killed) and V(paused) bring the named nodes, or all, into that state, as tests of faults need it.
    type: str
    choices: [present, absent, image, started, stopped, killed, paused]
    default: present
  nodes:
    description: The nodes. With another O(state) than V(present) only their names matter.
    type: list
    elements: dict
    suboptions:
      name:
        description: The host name.
        type: str
        required: true
      groups:
        description: The inventory groups the node belongs to.
        type: list
        elements: str
        default: []
      cpus:
        description: CPU quota.
        type: float
        default: 1
      memory:
        description: Memory limit, in MiB or such as V(2g).
        type: str
        default: "2048"
      tmpfs:
        description: File systems in memory, path to size (MiB or such as V(64m)).
        type: dict
        default: {}
      mounts:
        description: More folders, as C(SOURCE:TARGET) or C(SOURCE:TARGET:ro).
        type: list
        elements: str
        default: []
      type:
        description:
          - The EC2 instance type that the node rehearses, such as V(p5.48xlarge).
          - The node then carries the type's device files, sysfs entries and stand-ins for its tools. CPUs and memory stay those above.
          - See docs/rehearsed_nodes.md.
        type: str
        default: ""
  layout:
    description:
      - A fleet by size instead of by O(nodes), as the inventory plugin P(muster.fleet.local_fleet#inventory) gives it in C(muster_local).
      - Keys are C(controllers), C(compute), C(login), C(cpus), C(memory), C(tmpfs), C(mounts), C(types), which has an instance type by
        kind of node, and C(nodes), which overrides that by node name.
    type: dict
  compute:
    description: The number of compute nodes of a O(layout). Without it a fleet that is up keeps its size.
    type: str
  shrink:
    description: Allow nodes to be removed that are no longer wanted. Their work must have been drained before.
    type: bool
    default: false
  image:
    description: The image of the nodes.
    type: dict
    default: {}
    suboptions:
      release:
        description: The Debian release of the image that is built here.
        type: str
        default: trixie
      mirror:
        description: The Debian mirror. By default that of mmdebstrap.
        type: str
        default: ""
      reference:
        description: A ready image, which is pulled when it is missing, instead of one built here. It must have systemd, sshd and Python.
        type: str
        default: ""
  engine:
    description: V(podman), V(docker), or V(auto) for the first that can be used.
    type: str
    default: auto
  wait_timeout:
    description: Seconds to wait until SSH answers on all nodes.
    type: int
    default: 120
  state_dir:
    description: The fleet's state folder. The default is C($XDG_STATE_HOME/muster/FLEET).
    type: path
  remove_state:
    description: With O(state=absent), remove the state folder too, with the keys and the shared folder in it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Reports the plan and changes nothing.
  diff_mode:
    support: full
    description: Shows the containers with their states before and after.
"""

EXAMPLES = r"""
- name: Bring up two nodes
  muster.fleet.node_container:
    fleet: demo
    nodes:
      - name: controller-1
        groups: [muster_controller]
      - name: compute-1
        groups: [muster_compute]
        memory: 3g

- name: Give the fleet of an inventory four compute nodes
  muster.fleet.node_container:
    fleet: "{{ muster_fleet }}"
    layout: "{{ muster_local }}"
    compute: 4

- name: Kill a node
  muster.fleet.node_container:
    fleet: demo
    state: killed
    nodes:
      - name: compute-1

- name: Remove the fleet
  muster.fleet.node_container:
    fleet: demo
    state: absent
    remove_state: true
"""

RETURN = r"""
nodes:
  description: The fleet's nodes as recorded, with name, groups, address and limits.
  returned: always
  type: list
  elements: dict
plan:
  description: Names of the nodes to C(create), to C(start) and to C(remove), and of those no longer wanted (C(surplus)).
  returned: with O(state=present)
  type: dict
engine:
  description: The engine with its version, the cgroup version of the host, and the flags that start systemd here.
  returned: always
  type: dict
image:
  description: The name of the nodes' image.
  returned: always
  type: str
key:
  description: The private key for root on the nodes.
  returned: always
  type: str
known_hosts:
  description: The file with the nodes' host keys.
  returned: always
  type: str
commands:
  description: The commands that changed something, or would in check mode.
  returned: always
  type: list
  elements: str
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage, ensure_image, name_newest
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import check_nodes, layout_nodes
from ansible_collections.muster.fleet.plugins.module_utils.containers.state import read_record
from ansible_collections.muster.fleet.plugins.module_utils.containers.systemd import learn_to_start
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

NODE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "groups": {"type": "list", "elements": "str", "default": []},
    "cpus": {"type": "float", "default": 1},
    "memory": {"type": "str", "default": "2048"},
    "tmpfs": {"type": "dict", "default": {}},
    "mounts": {"type": "list", "elements": "str", "default": []},
    "type": {"type": "str", "default": ""},
}
IMAGE_OPTIONS = {
    "release": {"type": "str", "default": "trixie"},
    "mirror": {"type": "str", "default": ""},
    "reference": {"type": "str", "default": ""},
}
ARGUMENTS = {
    "fleet": {"type": "str", "default": "local"},
    "state": {
        "type": "str",
        "default": "present",
        "choices": ["present", "absent", "image", "started", "stopped", "killed", "paused"],
    },
    "nodes": {"type": "list", "elements": "dict", "options": NODE_OPTIONS},
    "layout": {"type": "dict"},
    "compute": {"type": "str"},
    "shrink": {"type": "bool", "default": False},
    "image": {"type": "dict", "default": {}, "options": IMAGE_OPTIONS, "apply_defaults": True},
    "engine": {"type": "str", "default": "auto"},
    "wait_timeout": {"type": "int", "default": 120},
    "state_dir": {"type": "path"},
    "remove_state": {"type": "bool", "default": False},
}


# The engine's name of each state.
REACHED = {"started": "running", "stopped": "exited", "killed": "exited", "paused": "paused"}


def listing(states: dict) -> str:
    """The containers and their states, a line each, for a diff."""
    return "".join(f"{name} {state}\n" for name, state in sorted(states.items()))


def known_record(folder: Path, state: str) -> dict | None:
    """The fleet's record. With state absent a damaged record counts as none, so that the fleet can be removed."""
    try:
        return read_record(folder)
    except NodeContainerError:
        if state != "absent":
            raise
        return None


def apply(params: dict, check_mode: bool) -> dict:
    """Apply the parameters and return the module's result; raises NodeContainerError or ValueError."""
    state, cache = params["state"], cache_dir(os.environ)
    folder = Path(params["state_dir"]) if params["state_dir"] else state_dir(params["fleet"], os.environ)
    record = known_record(folder, state)
    image = NodeImage(**params["image"])
    wanted = []
    if state == "present":
        wanted = layout_nodes(params["layout"], record, params["compute"]) if params["layout"] else check_nodes(params["nodes"] or ())
        if not wanted:
            raise NodeContainerError(f"Fleet {params['fleet']} would have no nodes: give nodes or a layout.")
    engine = find_engine(params["engine"] if params["engine"] != "auto" or not record else record["engine"]["name"])
    engine.dry = check_mode
    fleet = Fleet(params["fleet"], engine, folder, cache)
    before = {each.node: each.state for each in fleet.containers().values()}
    names = [node["name"] for node in params["nodes"]] if params["nodes"] else None
    result = {}
    if state == "present":
        plan = fleet.present(wanted, image, params["shrink"], params["wait_timeout"])
        changed, after = plan.changes, {node.name: "running" for node in wanted}
        result["plan"] = {"create": plan.create, "start": plan.start, "remove": plan.remove, "surplus": plan.surplus}
    elif state == "absent":
        gone = fleet.absent(names, params["remove_state"])
        changed, after = bool(gone), {name: before[name] for name in before if name not in gone}
    elif state == "image":
        changed, after = ensure_image(engine, image, cache), before
        name_newest(engine, image)
        learn_to_start(engine, image.name, cache)
    else:
        touched = fleet.set_state(state, names, params["wait_timeout"])
        changed, after = bool(touched), {**before, **dict.fromkeys(touched, REACHED[state])}
    return {
        **result,
        "changed": changed or bool(engine.commands),
        "nodes": (known_record(folder, state) or {}).get("nodes", []),
        "engine": engine.facts(),
        "image": image.name,
        "key": str(folder / "ssh" / "id_ed25519"),
        "known_hosts": str(folder / "ssh" / "known_hosts"),
        "commands": engine.commands,
        "diff": {"before": listing(before), "after": listing(after)},
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        ARGUMENTS, supports_check_mode=True, mutually_exclusive=[("nodes", "layout")], required_by={"compute": ["layout"]}
    )
    try:
        module.exit_json(**apply(module.params, module.check_mode))
    except (NodeContainerError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
