# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets of node containers: systemd containers with fixed addresses, reached by SSH, that stand for the nodes of a real fleet.

What a fleet should be is recorded in its state folder before anything is started, so that a run that was killed half-way, or a machine
that was restarted, is repaired by running again. Containers and the network carry the label `muster.fleet`; nothing without it is touched.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils import node_image
from ansible_collections.muster.fleet.plugins.module_utils.container_engine import (
    Engine,
    Finished,
    NodeContainerError,
    free_disk_mib,
    learn_to_start,
    locked,
    node_flags,
    recall,
    run_command,
    start_command,
    write_whole,
)
from ansible_collections.muster.fleet.plugins.module_utils.node_image import NodeImage
from ansible_collections.muster.fleet.plugins.module_utils.places import check_fleet_name

SCHEMA = "muster.local_fleet/1"
NODE_NAME = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")
# Each fleet gets a /24 of this range that no route and no other network uses.
# A container boots in a few seconds; a busy machine is given more.
BOOT_SECONDS = 30
SUBNET_RANGE = ipaddress.ip_network("10.213.0.0/16")
MOST_NODES = 200
# What the packages of a node take on disk.
NODE_DISK_MIB = 1000


@dataclasses.dataclass(frozen=True)
class Node:
    """One node: its name, its groups and what it is given. `tmpfs` maps a path to its size (MiB); a mount is SOURCE:TARGET[:ro]."""

    name: str
    groups: tuple[str, ...] = ()
    cpus: float = 1.0
    memory_mib: int = 2048
    tmpfs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    mounts: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, options: Mapping) -> Node:
        """A checked node from `name` and any of groups, cpus, memory, tmpfs, mounts; NodeContainerError names what is wrong."""
        name = str(options["name"])
        if not NODE_NAME.fullmatch(name):
            raise NodeContainerError(f"Node name {name!r} cannot be a host name: use lower-case letters, digits and dashes.")
        try:
            cpus = float(_or(options.get("cpus"), 1))
        except ValueError:
            cpus = 0.0
        if not cpus > 0:
            raise NodeContainerError(f"Node {name} cannot have {options['cpus']!r} CPUs: give a number above 0.")
        return cls(
            name=name,
            groups=tuple(options.get("groups") or ()),
            cpus=cpus,
            memory_mib=memory_mib(_or(options.get("memory"), 2048), name),
            tmpfs={path: memory_mib(size, name) for path, size in (options.get("tmpfs") or {}).items()},
            mounts=tuple(options.get("mounts") or ()),
        )

    def spec(self, image: str) -> dict:
        """What its container was made from; a container with another spec is another node."""
        return {
            "image": image,
            "cpus": self.cpus,
            "memory_mib": self.memory_mib,
            "tmpfs": dict(self.tmpfs),
            "mounts": list(self.mounts),
        }


def _or(value, default):
    return default if value is None else value


def memory_mib(value: int | str, name: str) -> int:
    """MiB from 2048, "2048", "512m" or "2g"."""
    found = re.fullmatch(r"(\d+)([mg]?)", str(value).lower())
    size = int(found[1]) * (1024 if found[2] == "g" else 1) if found else 0
    if size < 16:
        raise NodeContainerError(f"Node {name} cannot have a size of {value!r}: give MiB such as 2048, or 512m or 2g.")
    return size


def check_nodes(options: Iterable[Mapping]) -> list[Node]:
    """Nodes from options; two with one name are refused."""
    nodes = [Node.from_options(each) for each in options]
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise NodeContainerError(f"Two nodes are called {name}: give each node of a fleet its own name.")
    if len(nodes) > MOST_NODES:
        raise NodeContainerError(f"{len(nodes)} nodes are more than a local fleet can have: ask for {MOST_NODES} at most.")
    return nodes


def count(value: int | str, what: str, least: int) -> int:
    """A number of nodes from an option or a command line, such as 4 or "4"."""
    text = str(value).strip()
    if not re.fullmatch(r"\d{1,6}", text) or not least <= int(text) <= MOST_NODES:
        raise NodeContainerError(f"{what} must be a whole number from {least} to {MOST_NODES}, not {text!r}.")
    return int(text)


def layout_nodes(layout: Mapping, record: Mapping | None = None, compute: str | int | None = None) -> list[Node]:
    """The nodes of a Slurm-shaped fleet: controller-1…, compute-1…, login-1….

    `layout` has controllers, compute, login, what each node is given (cpus, memory, tmpfs, mounts), and `nodes`, which overrides that by
    node name. The number of compute nodes is `compute` where given, else that of the live fleet (`record`), else the layout's.
    """
    number = compute
    if number in (None, ""):
        live = [node for node in (record or {}).get("nodes", ()) if "muster_compute" in node["groups"]]
        number = len(live) if live else _or(layout.get("compute"), 2)
    sizes = {
        "controller": count(_or(layout.get("controllers"), 1), "The number of controllers", 1),
        "compute": count(number, "The number of compute nodes (COMPUTE)", 1),
        "login": count(_or(layout.get("login"), 0), "The number of login nodes", 0),
    }
    names = [(f"{kind}-{index}", kind) for kind, size in sizes.items() for index in range(1, size + 1)]
    overrides = layout.get("nodes") or {}
    unknown = sorted(set(overrides) - {f"{kind}-{index}" for kind in sizes for index in range(1, MOST_NODES)})
    if unknown:
        raise NodeContainerError(f"The layout describes {unknown[0]}, which no fleet has: use names such as controller-1 or compute-2.")
    given = {key: layout.get(key) for key in ("cpus", "memory", "tmpfs", "mounts")}
    return check_nodes({**given, **overrides.get(name, {}), "name": name, "groups": [f"muster_{kind}"]} for name, kind in names)


@dataclasses.dataclass
class Container:
    """A node's container as the engine sees it."""

    node: str
    state: str
    spec: dict


@dataclasses.dataclass
class Plan:
    """What must be done to the nodes, by name."""

    create: list[str]
    start: list[str]
    remove: list[str]
    surplus: list[str]

    @property
    def changes(self) -> bool:
        """Whether anything must be done."""
        return bool(self.create or self.start or self.remove or self.surplus)


def make_plan(fleet: str, wanted: list[Node], record: Mapping | None, live: Mapping[str, Container], image: str, *, shrink: bool) -> Plan:
    """Compare what is wanted with what was recorded and what is there. NodeContainerError where going on would lose something."""
    if live and not record:
        raise NodeContainerError(
            f"Fleet {fleet} has containers but no record in its state folder: remove it with make down and bring it up anew."
        )
    names = [node.name for node in wanted]
    # A container that the record no longer has was agreed to go by a run that was killed.
    surplus = [node["name"] for node in (record or {}).get("nodes", ()) if node["name"] not in names]
    if surplus and not shrink:
        raise NodeContainerError(
            f"Fleet {fleet} is larger than asked for: {', '.join(surplus)} would go; say SHRINK=1 (shrink: true) to drain and remove."
        )
    for node in wanted:
        if node.name in live:
            found = differences(live[node.name].spec, node.spec(image))
            if found:
                raise NodeContainerError(
                    f"Node {node.name} of fleet {fleet} was made differently ({found}): remove the fleet with make down first."
                )
    broken = [name for name in names if name in live and live[name].state not in (*RUNNING, *STARTABLE)]
    return Plan(
        create=[name for name in names if name not in live or name in broken],
        start=[name for name in names if name in live and live[name].state in STARTABLE],
        remove=[name for name in live if name not in names or name in broken],
        surplus=surplus,
    )


RUNNING = ("running",)
NEVER_RAN = ("created", "configured", "initialized")
STARTABLE = (*NEVER_RAN, "exited", "stopped", "paused")
NO_TIME = "0001-01-01"


def differences(live: Mapping, wanted: Mapping) -> str:
    """Where two specs differ, in words; "" when they are the same."""
    return ", ".join(f"{key} is {live.get(key)!r}, wanted {wanted[key]!r}" for key in wanted if live.get(key) != wanted[key])


def assign_addresses(nodes: list[Node], record: Mapping | None, subnet: str) -> dict[str, str]:
    """An address for each node: its own as long as it stands in the record, else the lowest free one."""
    network = ipaddress.ip_network(subnet)
    known = {node["name"]: node["address"] for node in (record or {}).get("nodes", ()) if ipaddress.ip_address(node["address"]) in network}
    taken = set(known.values())
    # The first host address is the engine's gateway.
    free = (str(address) for address in list(network.hosts())[1:] if str(address) not in taken)
    return {node.name: known.get(node.name) or next(free) for node in nodes}


def host_routes(table: str) -> list[ipaddress.IPv4Network]:
    """The networks of the text of /proc/net/route, without the default route."""
    rows = [line.split() for line in table.splitlines()[1:]]
    words = [(int(row[1], 16), int(row[7], 16)) for row in rows if len(row) > 7]
    # The kernel prints addresses in the byte order of the machine; in a mask only the number of ones counts.
    return [ipaddress.IPv4Network((address.to_bytes(4, sys.byteorder), bin(mask).count("1"))) for address, mask in words if mask]


def subnets_in(networks: object) -> list[ipaddress.IPv4Network]:
    """All IPv4 subnets named anywhere in what `network inspect` answers; podman, its CNI and docker nest them differently."""
    if isinstance(networks, list):
        return [subnet for each in networks for subnet in subnets_in(each)]
    if not isinstance(networks, dict):
        return []
    own = [value for key, value in networks.items() if key.lower() == "subnet" and isinstance(value, str) and ":" not in value]
    return [ipaddress.IPv4Network(value, strict=False) for value in own if value] + subnets_in(list(networks.values()))


def choose_subnet(fleet: str, used: Iterable[ipaddress.IPv4Network]) -> str:
    """A free /24 of the range; the fleet's name decides where the search begins, so that a fleet mostly gets the same one again."""
    taken = list(used)
    candidates = [ipaddress.IPv4Network(each) for each in SUBNET_RANGE.subnets(new_prefix=24)]
    first = zlib.crc32(fleet.encode()) % len(candidates)
    for candidate in candidates[first:] + candidates[:first]:
        if not any(candidate.overlaps(other) for other in taken):
            return str(candidate)
    raise NodeContainerError(f"No free network for fleet {fleet}: routes or container networks use all of {SUBNET_RANGE}.")


def mac_address(address: str) -> str:
    """A locally administered hardware address that belongs to an IP address."""
    return "02:6d:" + ":".join(f"{part:02x}" for part in ipaddress.ip_address(address).packed)


def hosts_text(nodes: Iterable[Mapping]) -> str:
    """/etc/hosts of every node."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return "\n".join(lines + [f"{node['address']} {node['name']}" for node in nodes]) + "\n"


def available_memory_mib(meminfo: str) -> int:
    """MiB available from the text of /proc/meminfo."""
    return int(re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)[0]) // 1024


def read_record(state: Path) -> dict | None:
    """The fleet's record, or None when it is not up."""
    try:
        return json.loads((state / "fleet.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise NodeContainerError(f"{state / 'fleet.json'} is damaged: remove the fleet with make down and bring it up anew.") from None


class Fleet:
    """One fleet's containers, network and state folder."""

    def __init__(self, name: str, engine: Engine, state: Path, cache: Path) -> None:
        self.name = check_fleet_name(name)
        self.engine = engine
        self.state = state
        self.cache = cache
        self.network = f"muster-{name}"
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
        # Podman goes on to call a container running whose watcher (conmon) was killed with it, and can then only remove it.
        if self.engine.name == "podman" and state["Status"] == "running" and not alive(state["Pid"]):
            return "lost"
        # After a restart of the machine podman calls what has run before created as well; it holds all that the node had.
        if state["Status"] in NEVER_RAN and not state.get("StartedAt", NO_TIME).startswith(NO_TIME):
            return "exited"
        return state["Status"]

    def lock(self):
        """Held while the fleet is changed."""
        return locked(self.cache / "locks" / f"fleet-{self.name}")

    def present(self, wanted: list[Node], image: NodeImage, shrink: bool = False, patience: float = 120) -> Plan:
        """Bring the fleet into the wanted shape; what runs and fits is left untouched. Return what was done (in a dry run: would be)."""
        with self.lock():
            live, record = self.containers(), read_record(self.state)
            plan = make_plan(self.name, wanted, record, live, image.name, shrink=shrink)
            self._check_room(plan, wanted, image)
            if self.engine.dry:
                return plan
            subnet = self._ensure_network(live)
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
        """Make a node, from an image of its own, and start it; the others are left as they are. Return its address.

        One of its name goes first, and its address is the new one's. `files` lie in its folder /run/muster-node.
        """
        with self.lock():
            record = read_record(self.state)
            live = self.containers()
            self._check_room(Plan([node.name], [], [], []), [node], image)
            subnet = self._ensure_network(live)
            fields = [each.name for each in dataclasses.fields(Node)]
            others = [Node(**{key: each[key] for key in fields}) for each in (record or {}).get("nodes", ())]
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
        """Remove the fleet, or only the named nodes of it; return the nodes whose containers went."""
        with self.lock():
            live = self.containers()
            going = [name for name in live if names is None or name in names]
            record = None if names is None else read_record(self.state)
            if names is not None and record and not self.engine.dry:
                self._write_record({**record, "nodes": [node for node in record["nodes"] if node["name"] not in names]})
            if going:
                self._remove(going)
            if names is None:
                if self._network_exists():
                    self.engine.change("network", "rm", self.network)
                if not self.engine.dry:
                    (self.state / "fleet.json").unlink(missing_ok=True)
                if remove_state and self.state.exists():
                    self._remove_state()
            return going

    def set_state(self, state: str, names: list[str] | None, patience: float = 120) -> list[str]:
        """Start, stop, kill or pause nodes (all when None) for fault tests; return the nodes that this changed."""
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
        """Make an image of a node's file system."""
        self.engine.change("commit", self.container_name(node), image)

    def remove_images(self, names: list[str] | None = None) -> None:
        """Remove images made by `commit`; without names all those of this fleet, which have its containers' label."""
        if names is None:
            names = self.engine.image_names(f"muster.fleet={self.name}")
        if names:
            self.engine.change("rmi", "--force", *names)

    def gateway(self) -> str:
        """This machine's address on the fleet's network, which is made when it is not there."""
        with self.lock():
            return str(next(ipaddress.ip_network(self._ensure_network(self.containers())).hosts()))

    def address(self, node: str) -> str:
        """A node's address on the fleet's network."""
        for each in (read_record(self.state) or {}).get("nodes", ()):
            if each["name"] == node:
                return each["address"]
        raise NodeContainerError(f"Fleet {self.name} has no node {node}: bring the fleet up first.")

    def wait_for_ssh(self, addresses: Mapping[str, str], patience: float, fresh: Iterable[str]) -> None:
        """Wait until each node's sshd answers; NodeContainerError names the fresh nodes that do not.

        A node that ran before may still be booting, for a run that was killed. One that stays silent does not hold the others up:
        the playbooks name it.
        """
        waiting = dict(addresses)
        began = time.monotonic()
        deadline = began + patience
        while waiting:
            if time.monotonic() > began + BOOT_SECONDS:
                waiting = {name: address for name, address in waiting.items() if name in fresh}
            waiting = {name: address for name, address in waiting.items() if not _ssh_answers(address)}
            states = self.containers() if waiting else {}
            gone = [name for name in waiting if name not in states or states[name].state != "running"]
            if gone:
                logs = self.engine.run(self.engine.argv("logs", "--tail=5", self.container_name(gone[0])))
                raise NodeContainerError(
                    f"Node {gone[0]} of fleet {self.name} ended while it started ({logs.reason}): use another image or engine."
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
                f"The node image {image.name} must be made and mmdebstrap is not installed: install it with the system's package manager, "
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

    def _network_exists(self) -> bool:
        return self.engine.run(self.engine.argv("network", "inspect", self.network)).code == 0

    def _ensure_network(self, live: Mapping[str, Container]) -> str:
        """The fleet's subnet, from its network, which is made when it is not there. One run at a time chooses."""
        with locked(self.cache / "locks" / "network"):
            if self._network_exists():
                return str(subnets_in(json.loads(self.engine.ask("network", "inspect", self.network)))[0])
            used = subnets_in(self.engine.networks())
            used += host_routes(Path("/proc/net/route").read_text(encoding="utf-8"))
            subnet = choose_subnet(self.name, used)
            # Nodes find each other by a hosts file, the same with every engine; podman's own DNS knows container names only.
            dns = ["--disable-dns"] if self.engine.name == "podman" else []
            self.engine.change("network", "create", *dns, f"--subnet={subnet}", f"--label=muster.fleet={self.name}", self.network)
            return subnet

    def _write_state(self, wanted: list[Node], addresses: Mapping[str, str], subnet: str, image: NodeImage) -> None:
        """Keys, host keys, names and the record. The keys stay as long as the state folder does."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.state / "fsx", self.cache / "shared"):
            folder.mkdir(parents=True, exist_ok=True)
        make_key(self.state / "ssh" / "id_ed25519", f"muster-{self.name}")
        public = (self.state / "ssh" / "id_ed25519.pub").read_text(encoding="utf-8")
        for node in wanted:
            folder = self.state / "hostkeys" / node.name
            make_key(folder / "ssh_host_ed25519_key", node.name)
            (folder / "authorized_keys").write_text(public, encoding="utf-8")
        record = {
            "schema": SCHEMA,
            "fleet": self.name,
            "engine": {"name": self.engine.name, "version": self.engine.version, "cgroup": self.engine.cgroup},
            "subnet": subnet,
            "image": {"name": image.name, **dataclasses.asdict(image)},
            "nodes": [{**dataclasses.asdict(node), "address": addresses[node.name]} for node in wanted],
        }
        self._write_record(record)

    def _write_record(self, record: dict) -> None:
        known = []
        for node in record["nodes"]:
            key = (self.state / "hostkeys" / node["name"] / "ssh_host_ed25519_key.pub").read_text(encoding="utf-8").split()
            known.append(f"{node['address']},{node['name']} {key[0]} {key[1]}\n")
        write_whole(self.state / "ssh" / "known_hosts", "".join(known), 0o600)
        # Running nodes have this very file mounted: it must be rewritten in place, never replaced.
        rewrite(self.state / "hosts", hosts_text(record["nodes"]))
        write_whole(self.state / "fleet.json", json.dumps(record, indent=1) + "\n")

    def _start(self, node: Node, address: str, image: NodeImage, state: str) -> None:
        try:
            self.engine.change("unpause" if state == "paused" else "start", self.container_name(node.name))
        except NodeContainerError:
            # A container whose creation was cut off may not start; it holds nothing yet that could be lost.
            if state not in NEVER_RAN:
                raise
            self._remove([node.name])
            self._create(node, address, image)

    def _create(self, node: Node, address: str, image: NodeImage) -> None:
        self.engine.change(*self.create_args(node, address, image.name))

    def create_args(self, node: Node, address: str, image: str) -> list[str]:
        """The engine's arguments that make and start a node."""
        return [
            "run",
            f"--name={self.container_name(node.name)}",
            f"--hostname={node.name}",
            *node_flags(self.engine),
            f"--network={self.network}",
            f"--ip={address}",
            # A node that comes back with another hardware address is out of reach until its neighbours forget the old one, about 30 s.
            f"--mac-address={mac_address(address)}",
            f"--cpus={node.cpus:g}",
            # A quota and no set of cores: Slurm counts all cores of the machine, and a step bound to one outside of the set would fail.
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
            # Nodes write as root into the shared folder.
            done = run_command([*self.engine.prefix, "rm", "-rf", "--", str(self.state)])
            if done.code != 0:
                raise NodeContainerError(f"State folder {self.state} could not be removed ({done.reason}): remove it as root.") from None


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone reads and runs."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
    with open(handle, "wb") as file:
        file.write(content)


def rewrite(path: Path, text: str) -> None:
    """Write a file in its place, so that bind mounts of it show the new text; readers see no gap."""
    data = text.encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)


def alive(pid: int) -> bool:
    """Whether a process is there, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def transition(state: str, wanted: str) -> list[list[str]]:
    """The engine's commands that bring a container from its state to started, stopped, killed or paused; [] when it is there."""
    wake = [["unpause"]] if state == "paused" else []
    up = state in ("running", "paused")
    if wanted == "started":
        return wake or ([] if up else [["start"]])
    if wanted == "stopped":
        return [*wake, ["stop", "-t", "20"]] if up else []
    if wanted == "killed":
        return [*wake, ["kill", "--signal=KILL"]] if up else []
    return [["pause"]] if state == "running" else []


def make_key(path: Path, comment: str) -> None:
    """An ed25519 key pair without a pass phrase, unless it is there; the private half appears last."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    done = run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(new)])
    if done.code != 0:
        raise NodeContainerError(f"No SSH key could be made at {path} ({done.reason}): install the OpenSSH client.")
    new.with_name(new.name + ".pub").replace(path.with_name(path.name + ".pub"))
    new.replace(path)


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
