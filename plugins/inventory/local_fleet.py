# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: local_fleet
short_description: The nodes of a fleet of containers on this machine
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Gives the nodes of the local fleet that M(muster.fleet.node_container) brings up, with their addresses, keys and groups.
  - While the fleet is up its nodes come from its state folder, and before that from the options, so that the hosts are always known.
  - All hosts get C(muster_fleet), the options as the dictionary C(muster_local), and C(muster_local_engine) once the fleet is up.
  - A node that rehearses an instance type also gets C(muster_rehearsal), C(instance_type), and the groups of its type,
    with the same names and values as P(muster.fleet.aws_fleet#inventory) gives them.
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [muster.fleet.local_fleet]
  fleet:
    description: The fleet's name, which may be a template. The extra variable C(muster_fleet) overrides it.
    type: str
    default: local
  controllers:
    description: Number of controllers. The first is Slurm's primary, the others are its backups.
    type: int
    default: 1
  compute:
    description: Number of compute nodes of a fleet that is not up yet.
    type: int
    default: 2
  login:
    description: Number of login nodes.
    type: int
    default: 0
  cpus:
    description: CPU quota of each node.
    type: float
    default: 1
  memory:
    description: Memory limit of each node, in MiB or such as V(2g).
    type: str
    default: "2048"
  tmpfs:
    description: File systems in memory of each node, path to size.
    type: dict
    default: {}
  mounts:
    description: More folders of each node, as C(SOURCE:TARGET).
    type: list
    elements: str
    default: []
  types:
    description:
      - EC2 instance types that nodes rehearse, by kind of node. The kinds are C(controller), C(compute) and C(login).
      - The extra variable C(muster_local_type) overrides that of the compute nodes. A fleet that is up keeps its types.
    type: dict
    default: {}
  nodes:
    description: Other C(cpus), C(memory), C(tmpfs), C(mounts) or C(type) by node name.
    type: dict
    default: {}
  release:
    description: The Debian release of the nodes.
    type: str
    default: trixie
  mirror:
    description: The Debian mirror for the nodes' image. By default that of mmdebstrap.
    type: str
    default: ""
  reference:
    description: A ready image, instead of one that is built here.
    type: str
    default: ""
  engine:
    description: V(podman), V(docker) or V(auto).
    type: str
    default: auto
"""

EXAMPLES = r"""
# local_fleet.yml: a controller and two compute nodes
plugin: muster.fleet.local_fleet

# the same fleet with more memory on one node, on Debian 12
# plugin: muster.fleet.local_fleet
# release: bookworm
# nodes:
#   compute-1: {memory: 4g}

# four compute nodes that rehearse p5.48xlarge
# plugin: muster.fleet.local_fleet
# compute: 4
# types: {compute: p5.48xlarge}
"""

import os

from ansible.errors import AnsibleError
from ansible.plugins.inventory import BaseInventoryPlugin, to_safe_group_name
from ansible.template import trust_as_template
from ansible.utils.vars import load_extra_vars

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import type_groups
from ansible_collections.muster.fleet.plugins.module_utils.basics import closest
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import layout_nodes
from ansible_collections.muster.fleet.plugins.module_utils.containers.state import read_record
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import instance_type
from ansible_collections.muster.fleet.plugins.module_utils.paths import state_dir

GROUPS = ("muster_controller", "muster_compute", "muster_login")
OPTIONS = (
    *("controllers", "compute", "login", "cpus", "memory", "tmpfs", "mounts", "types", "nodes"),
    *("release", "mirror", "reference", "engine"),
)


class InventoryModule(BaseInventoryPlugin):
    """Hosts of one local fleet."""

    NAME = "muster.fleet.local_fleet"

    def verify_file(self, path):
        """Accept files called local_fleet.yml or ending in .local_fleet.yml."""
        return super().verify_file(path) and path.endswith(("local_fleet.yml", "local_fleet.yaml"))

    def parse(self, inventory, loader, path, cache=True):
        """Fill the inventory, or end Ansible with one sentence."""
        super().parse(inventory, loader, path, cache)
        try:
            self._fill(loader, path)
        except (NodeContainerError, ValueError, AnsibleError) as error:
            # After an error of a plugin Ansible would try all other plugins, print their errors too, and continue without hosts.
            raise SystemExit(f"{path}: {error}") from error

    def _fill(self, loader, path):
        unknown = sorted(set(self._read_config_data(path)) - {"plugin", "fleet", *OPTIONS})
        if unknown:
            near = closest(unknown[0], ["fleet", *OPTIONS], cutoff=0)
            raise ValueError(f"unknown option {unknown[0]}; the nearest is {near[0]}.")
        extra = load_extra_vars(loader)
        fleet = extra.get("muster_fleet") or self.templar.template(self.get_option("fleet"))
        layout = {name: self.get_option(name) for name in OPTIONS}
        if extra.get("muster_local_type"):
            layout["types"] = {**layout["types"], "compute": str(extra["muster_local_type"])}
        state = state_dir(fleet, os.environ)
        record = read_record(state)
        nodes = record["nodes"] if record else [{"name": n.name, "groups": n.groups, "type": n.type} for n in layout_nodes(layout)]
        for group in GROUPS:
            self.inventory.add_group(group)
        engine = record["engine"] if record else None
        for name, value in (("muster_fleet", fleet), ("muster_local", layout), ("muster_local_engine", engine)):
            self.inventory.set_variable("all", name, trusted(value))
        for node in nodes:
            self.inventory.add_host(node["name"])
            for group in node["groups"]:
                self.inventory.add_child(self.inventory.add_group(group), node["name"])
            for name, value in host_variables(node, state, record).items():
                self.inventory.set_variable(node["name"], name, trusted(value))
        self._add_types({node["name"]: node["type"] for node in nodes if node.get("type")})

    def _add_types(self, types):
        """Give each host that rehearses a type the variables and groups that the inventory of EC2 would give it."""
        for host, kind in types.items():
            for name, value in (("muster_rehearsal", True), ("instance_type", kind)):
                self.inventory.set_variable(host, name, trusted(value))
            have = instance_type(kind)
            for title in type_groups(kind, have["accelerator"], have["efa"]):
                self.inventory.add_child(self.inventory.add_group(to_safe_group_name(title)), host)


def trusted(value):
    """Mark text as trusted: ansible-inventory prints other text in a form that testinfra does not read."""
    if isinstance(value, dict):
        return {key: trusted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


def host_variables(node, state, record):
    """How Ansible reaches a node, and the node's size when the fleet is up."""
    variables = {
        "ansible_user": "root",
        "ansible_become": False,  # it is root already, and sudo would add a quarter to every task's time
        "ansible_ssh_private_key_file": str(state / "ssh" / "id_ed25519"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={state}/ssh/known_hosts -o IdentitiesOnly=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    if record:
        variables |= {
            "ansible_host": node["address"],
            "muster_cpus": node["cpus"],
            "muster_memory_mib": node["memory_mib"],
            "muster_image": record["image"]["name"],
        }
    return variables
