# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets of node containers: systemd containers with fixed addresses, reached by SSH, that stand for the nodes of a real fleet.

The state folder records what a fleet should be before anything starts. So running again repairs a fleet whose run was killed half-way or
whose machine was restarted. Containers and the network carry the label `muster.fleet`; nothing without it is touched.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers import image as node_image
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import (
    Engine,
    Finished,
    NodeContainerError,
    free_disk_mib,
    locked,
    run_command,
)
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage
from ansible_collections.muster.fleet.plugins.module_utils.containers.network import (
    assign_addresses,
    choose_subnet,
    host_routes,
    mac_address,
    network_name,
    subnets_in,
)
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import NEVER_RAN, Container, Node, Plan, make_plan, transition
from ansible_collections.muster.fleet.plugins.module_utils.containers.rehearsal import FILES as REHEARSAL_FILES
from ansible_collections.muster.fleet.plugins.module_utils.containers.rehearsal import node_files
from ansible_collections.muster.fleet.plugins.module_utils.containers.ssh import make_key, ssh_answers
from ansible_collections.muster.fleet.plugins.module_utils.containers.state import SCHEMA, read_record, write_private, write_record
from ansible_collections.muster.fleet.plugins.module_utils.containers.systemd import learn_to_start, node_flags, recall, start_command
from ansible_collections.muster.fleet.plugins.module_utils.paths import check_fleet_name

# A container boots in a few seconds, and takes longer on a busy machine.
BOOT_SECONDS = 30
# The disk space that the packages of a node take.
NODE_DISK_MIB = 1000
NO_TIME = "0001-01-01"


def available_memory_mib(meminfo: str) -> int:
    """The available memory in MiB, from the text of /proc/meminfo."""
    return int(re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)[0]) // 1024


class Fleet:
    """One fleet's containers, network and state folder."""

    def __init__(self, name: str, engine: Engine, state: Path, cache: Path) -> None:
        self.name = check_fleet_name(name)
        self.engine = engine
        self.state = state
        self.cache = cache
        self.network = ""  # its name, once it was found or created
        recall(engine, cache)

    def container_name(self, node: str) -> str:
        """What the engine calls a node's container."""
        return f"muster-{self.name}-{node}"

    def containers(self) -> dict[str, Container]:
        """The fleet's containers by node name."""
        found = {}
        for each in self.engine.containers(f"muster.fleet={self.name}"):
            labels = each["Config"]["Labels"]
            spec = json.loads(labels.get("muster.spec", "{}"))
            found[labels["muster.node"]] = Container(labels["muster.node"], self._state(each["State"]), spec)
        return found

    def _state(self, state: Mapping) -> str:
        # When a container's monitor (conmon) is killed with it, podman still calls the container running and can only remove it.
        if self.engine.name == "podman" and state["Status"] == "running" and not alive(state["Pid"]):
            return "lost"
        # After a restart of the machine, podman reports a container that ran before as created; it still holds all files of the node.
        if state["Status"] in NEVER_RAN and not state.get("StartedAt", NO_TIME).startswith(NO_TIME):
            return "exited"
        return state["Status"]

    def lock(self):
        """A lock to hold while the fleet is changed."""
        return locked(self.cache / "locks" / f"fleet-{self.name}")

    def present(self, wanted: list[Node], image: NodeImage, shrink: bool = False, patience: float = 120) -> Plan:
        """Create, start and remove nodes until the fleet is as wanted. Return the plan, which a dry run does not carry out."""
        with self.lock():
            live, record = self.containers(), read_record(self.state)
            plan = make_plan(self.name, wanted, record, live, image.name, shrink=shrink)
            self._check_room(plan, wanted, image)
            if self.engine.dry:
                return plan
            subnet = self._ensure_network()
            addresses = assign_addresses(wanted, record, subnet)
            self._write_state(wanted, addresses, subnet, image)
            if plan.create:
                node_image.ensure_image(self.engine, image, self.cache)
            if plan.create or plan.start:
                learn_to_start(self.engine, image.name, self.cache)
                node_image.check_reference(self.engine, image)
            if plan.remove:
                self._remove(plan.remove)
            by_name = {node.name: node for node in wanted}
            for name in plan.start:
                self._start(by_name[name], addresses[name], image, live[name].state)
            for name in plan.create:
                self._create(by_name[name], addresses[name], image)
            self.wait_for_ssh(addresses, patience, fresh=[*plan.start, *plan.create])
            return plan

    def add(self, node: Node, image: NodeImage, files: Mapping[str, bytes]) -> str:
        """Make and start one node, which may have another image than the other nodes. Return its address.

        A node of the same name is removed first, and the new one gets its address. The node finds `files` in /run/muster-node.
        """
        with self.lock():
            record = read_record(self.state)
            live = self.containers()
            self._check_room(Plan([node.name], [], [], []), [node], image)
            subnet = self._ensure_network()
            fields = [each.name for each in dataclasses.fields(Node)]
            others = [Node(**{key: each[key] for key in fields if key in each}) for each in (record or {}).get("nodes", ())]
            others = [each for each in others if each.name != node.name]
            addresses = assign_addresses([*others, node], record, subnet)
            self._write_state([*others, node], addresses, subnet, image)
            for name, content in files.items():
                write_private(self.state / "hostkeys" / node.name / name, content)
            node_image.ensure_image(self.engine, image, self.cache)
            learn_to_start(self.engine, image.name, self.cache)
            if node.name in live:
                self._remove([node.name])
            self._create(node, addresses[node.name], image)
            return addresses[node.name]

    def absent(self, names: list[str] | None = None, remove_state: bool = False) -> list[str]:
        """Remove the fleet, or only the named nodes; return the nodes whose containers were removed."""
        with self.lock():
            live = self.containers()
            going = [name for name in live if names is None or name in names]
            record = None if names is None else read_record(self.state)
            if names is not None and record and not self.engine.dry:
                write_record(self.state, {**record, "nodes": [node for node in record["nodes"] if node["name"] not in names]})
            if going:
                self._remove(going)
            if names is None:
                if self._find_network():
                    self.engine.change("network", "rm", self.network)
                if not self.engine.dry:
                    (self.state / "fleet.json").unlink(missing_ok=True)
                if remove_state and self.state.exists():
                    self._remove_state()
            return going

    def set_state(self, state: str, names: list[str] | None, patience: float = 120) -> list[str]:
        """Start, stop, kill or pause nodes (None: all of them); return the nodes whose state changed."""
        with self.lock():
            live = self.containers()
            for name in names or ():
                if name not in live:
                    raise NodeContainerError(f"Fleet {self.name} has no node {name}: its nodes are {', '.join(sorted(live)) or 'none'}.")
            chosen = [live[name] for name in (names if names is not None else live)]
            changed = []
            for each in chosen:
                commands = transition(each.state, state)
                for command in commands:
                    self.engine.change(*command, self.container_name(each.node))
                changed += [each.node] if commands else []
            if state == "started" and not self.engine.dry:
                addresses = {node["name"]: node["address"] for node in (read_record(self.state) or {}).get("nodes", ())}
                names = [each.node for each in chosen]
                self.wait_for_ssh({name: addresses[name] for name in names}, patience, fresh=names)
            return changed

    def run_in(self, node: str, argv: list[str], timeout: float = 120) -> Finished:
        """Run a command inside a node, as root and without SSH."""
        return self.engine.run(self.engine.argv("exec", self.container_name(node), *argv), timeout=timeout)

    def commit(self, node: str, image: str) -> None:
        """Make an image from a node's file system."""
        self.engine.change("commit", self.container_name(node), image)

    def remove_images(self, names: list[str] | None = None) -> None:
        """Remove images made by `commit`. Without names, remove all images that carry the label of this fleet."""
        if names is None:
            names = self.engine.image_names(f"muster.fleet={self.name}")
        if names:
            self.engine.change("rmi", "--force", *names)

    def gateway(self) -> str:
        """This machine's address on the fleet's network; the network is created when it does not exist."""
        with self.lock():
            return str(next(ipaddress.ip_network(self._ensure_network()).hosts()))

    def address(self, node: str) -> str:
        """A node's address on the fleet's network."""
        for each in (read_record(self.state) or {}).get("nodes", ()):
            if each["name"] == node:
                return each["address"]
        raise NodeContainerError(f"Fleet {self.name} has no node {node}: bring the fleet up first.")

    def wait_for_ssh(self, addresses: Mapping[str, str], patience: float, fresh: Iterable[str]) -> None:
        """Wait until each node's sshd answers; NodeContainerError names the fresh nodes whose sshd does not.

        A node that is not fresh gets only BOOT_SECONDS: an earlier run that was killed may have started it just now. When it does not
        answer in that time, the playbooks report it as unreachable.
        """
        waiting = dict(addresses)
        began = time.monotonic()
        deadline = began + patience
        while waiting:
            if time.monotonic() > began + BOOT_SECONDS:
                waiting = {name: address for name, address in waiting.items() if name in fresh}
            waiting = {name: address for name, address in waiting.items() if not ssh_answers(address)}
            states = self.containers() if waiting else {}
            gone = [name for name in waiting if name not in states or states[name].state != "running"]
            if gone:
                logs = self.engine.run(self.engine.argv("logs", "--tail=5", self.container_name(gone[0])))
                raise NodeContainerError(
                    f"Node {gone[0]} of fleet {self.name} stopped while it booted ({logs.reason}): use another image or engine."
                )
            if waiting and time.monotonic() > deadline:
                raise NodeContainerError(
                    f"sshd of {', '.join(waiting)} in fleet {self.name} did not answer within {patience:.0f} s: "
                    f"see {self.engine.name} exec {self.container_name(next(iter(waiting)))} journalctl -b."
                )
            if waiting:
                time.sleep(0.2)

    def _check_room(self, plan: Plan, wanted: list[Node], image: NodeImage) -> None:
        building = not image.reference and bool(plan.create) and not node_image.have_image(self.engine, image.name)
        if building and not shutil.which("mmdebstrap"):
            raise NodeContainerError(
                f"The node image {image.name} must be built and mmdebstrap is not installed: install it with the system's package manager, "
                "or name a ready image by reference."
            )
        need = NODE_DISK_MIB * len(plan.create) + (node_image.DISK_MIB if building else 0)
        free = free_disk_mib(self.engine.storage)
        if need > free:
            raise NodeContainerError(
                f"Fleet {self.name} needs {need} MiB of disk in {self.engine.storage}, {free} MiB are free: make room there."
            )
        need = sum(node.memory_mib for node in wanted if node.name in (*plan.create, *plan.start))
        free = available_memory_mib(Path("/proc/meminfo").read_text(encoding="utf-8"))
        if need > free:
            raise NodeContainerError(
                f"Fleet {self.name} needs {need} MiB of memory, {free} MiB are free: ask for fewer nodes or less memory for each."
            )

    def _find_network(self) -> str:
        """The subnet of the fleet's network; empty when it does not exist."""
        found = self.engine.networks(f"muster.fleet={self.name}")
        if not found:
            return ""
        self.network = next(value for key, value in found[0].items() if key.lower() == "name")
        return str(subnets_in(found)[0])

    def _ensure_network(self) -> str:
        """The subnet of the fleet's network, which is created when it does not exist. The lock lets one run at a time choose a subnet."""
        with locked(self.cache / "locks" / "network"):
            subnet = self._find_network()
            if subnet:
                return subnet
            used = subnets_in(self.engine.networks())
            used += host_routes(Path("/proc/net/route").read_text(encoding="utf-8"))
            subnet = choose_subnet(self.name, used)
            self.network = network_name(self.name, subnet)
            # Nodes find each other by a hosts file, which works with every engine; podman's DNS knows container names only.
            dns = ["--disable-dns"] if self.engine.name == "podman" else []
            self.engine.change("network", "create", *dns, f"--subnet={subnet}", f"--label=muster.fleet={self.name}", self.network)
            return subnet

    def _write_state(self, wanted: list[Node], addresses: Mapping[str, str], subnet: str, image: NodeImage) -> None:
        """Write the keys that are missing, and the record."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.state / "fsx", self.cache / "shared"):
            folder.mkdir(parents=True, exist_ok=True)
            # Users of the nodes read them, whatever umask made them.
            folder.chmod(folder.stat().st_mode | 0o055)
        make_key(self.state / "ssh" / "id_ed25519", f"muster-{self.name}")
        public = (self.state / "ssh" / "id_ed25519.pub").read_text(encoding="utf-8")
        for node in wanted:
            folder = self.state / "hostkeys" / node.name
            make_key(folder / "ssh_host_ed25519_key", node.name)
            (folder / "authorized_keys").write_text(public, encoding="utf-8")
            for name in REHEARSAL_FILES:
                (folder / name).unlink(missing_ok=True)
            for name, content in (node_files(node.type) if node.type else {}).items():
                write_private(folder / name, content)
        record = {
            "schema": SCHEMA,
            "fleet": self.name,
            "engine": {"name": self.engine.name, "version": self.engine.version, "cgroup": self.engine.cgroup},
            "subnet": subnet,
            "image": {"name": image.name, **dataclasses.asdict(image)},
            "nodes": [{**dataclasses.asdict(node), "address": addresses[node.name]} for node in wanted],
        }
        write_record(self.state, record)

    def _start(self, node: Node, address: str, image: NodeImage, state: str) -> None:
        try:
            self.engine.change("unpause" if state == "paused" else "start", self.container_name(node.name))
        except NodeContainerError:
            # A container whose creation was interrupted may not start. It never ran, so nothing is lost when it is made again.
            if state not in NEVER_RAN:
                raise
            self._remove([node.name])
            self._create(node, address, image)

    def _create(self, node: Node, address: str, image: NodeImage) -> None:
        self.engine.change(*self.create_args(node, address, image.name))

    def create_args(self, node: Node, address: str, image: str) -> list[str]:
        """The engine's arguments that create and start a node."""
        return [
            "run",
            f"--name={self.container_name(node.name)}",
            f"--hostname={node.name}",
            *node_flags(self.engine),
            f"--network={self.network}",
            f"--ip={address}",
            # With a new hardware address a node would be unreachable for about 30 s, until its neighbours forget the old one.
            f"--mac-address={mac_address(address)}",
            # A CPU quota, not a set of cores: Slurm counts all cores of the machine, and a step bound to a core outside the set would fail.
            f"--cpus={node.cpus:g}",
            f"--memory={node.memory_mib}m",
            f"--memory-swap={node.memory_mib}m",
            f"--shm-size={node.memory_mib // 2}m",
            *(f"--tmpfs={path}:rw,mode=755,size={size}m" for path, size in node.tmpfs.items()),
            f"--volume={self.state / 'hosts'}:/etc/hosts:ro",
            f"--volume={self.state / 'hostkeys' / node.name}:/run/muster-node:ro",
            f"--volume={self.state / 'fsx'}:/fsx",
            f"--volume={self.cache / 'shared'}:/var/cache/muster",
            *(f"--volume={mount}" for mount in node.mounts),
            f"--label=muster.fleet={self.name}",
            f"--label=muster.node={node.name}",
            f"--label=muster.spec={json.dumps(node.spec(image))}",
            *start_command(image),
        ]

    def _remove(self, names: list[str]) -> None:
        at_once = ["--time=0"] if self.engine.name == "podman" else []
        self.engine.change("rm", "--force", "--volumes", *at_once, *map(self.container_name, names))

    def _remove_state(self) -> None:
        self.engine.commands.append(f"rm -rf {self.state}")
        if self.engine.dry:
            return
        try:
            shutil.rmtree(self.state)
        except PermissionError:
            # The nodes write into the shared folder as root.
            done = run_command([*self.engine.prefix, "rm", "-rf", "--", str(self.state)])
            if done.code != 0:
                raise NodeContainerError(f"State folder {self.state} could not be removed ({done.reason}): remove it as root.") from None


def alive(pid: int) -> bool:
    """Whether a process exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
