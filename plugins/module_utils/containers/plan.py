# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes that a local fleet should have, and what must be done to bring its containers there. Pure: dicts in, plans out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.rehearsal import can_rehearse
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError, instance_type

NODE_NAME = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")
MOST_NODES = 200
RUNNING = ("running",)
NEVER_RAN = ("created", "configured", "initialized")
STARTABLE = (*NEVER_RAN, "exited", "stopped", "paused")


@dataclasses.dataclass(frozen=True)
class Node:
    """One node: its name, its groups and what it is given.

    `tmpfs` maps a path to its size (MiB); a mount is SOURCE:TARGET[:ro]; `type` is the EC2 instance type that the node rehearses, or "".
    """

    name: str
    groups: tuple[str, ...] = ()
    cpus: float = 1.0
    memory_mib: int = 2048
    tmpfs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    type: str = ""

    @classmethod
    def from_options(cls, options: Mapping) -> Node:
        """A checked node from `name` and any of groups, cpus, memory, tmpfs, mounts, type; NodeContainerError names the fault."""
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
            type=rehearsed_type(options.get("type") or "", name),
        )

    def spec(self, image: str) -> dict:
        """What its container is made from. A container that was made from another spec must be made again."""
        return {
            "image": image,
            "cpus": self.cpus,
            "memory_mib": self.memory_mib,
            "tmpfs": dict(self.tmpfs),
            "mounts": list(self.mounts),
            "type": self.type,
        }


def _or(value, default):
    return default if value is None else value


def rehearsed_type(kind: str, name: str) -> str:
    """The name of a type that a node can rehearse, "" for "". NodeContainerError names the nearest types of an unknown one."""
    if not kind:
        return ""
    try:
        have = instance_type(kind)
    except CatalogueError as error:
        raise NodeContainerError(f"Node {name} can rehearse only a type with GPUs or Neuron devices. {error}") from None
    if not can_rehearse(have["name"]):
        raise NodeContainerError(f"Node {name} cannot rehearse {kind}: a rehearsal needs a type with GPUs of NVIDIA or Neuron devices.")
    return have["name"]


def memory_mib(value: int | str, name: str) -> int:
    """MiB from 2048, "2048", "512m" or "2g"."""
    found = re.fullmatch(r"(\d+)([mg]?)", str(value).lower())
    size = int(found[1]) * (1024 if found[2] == "g" else 1) if found else 0
    if size < 16:
        raise NodeContainerError(f"Node {name} cannot have a size of {value!r}: give MiB such as 2048, or 512m or 2g.")
    return size


def check_nodes(options: Iterable[Mapping]) -> list[Node]:
    """Nodes from options; two nodes of one name are refused."""
    nodes = [Node.from_options(each) for each in options]
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise NodeContainerError(f"Two nodes are called {name}: give each node of a fleet its own name.")
    if len(nodes) > MOST_NODES:
        raise NodeContainerError(f"{len(nodes)} nodes are more than a local fleet can have: ask for {MOST_NODES} at most.")
    return nodes


def count(value: int | str, what: str, least: int) -> int:
    """The number of nodes that an option or a command line gives, such as 4 or "4"."""
    text = str(value).strip()
    if not re.fullmatch(r"\d{1,6}", text) or not least <= int(text) <= MOST_NODES:
        raise NodeContainerError(f"{what} must be a whole number from {least} to {MOST_NODES}, not {text!r}.")
    return int(text)


def layout_nodes(layout: Mapping, record: Mapping | None = None, compute: str | int | None = None) -> list[Node]:
    """The nodes of a Slurm-shaped fleet: controller-1…, compute-1…, login-1….

    `layout` has controllers, compute, login, the options of every node (cpus, memory, tmpfs, mounts), `types` by kind of node, and `nodes`,
    which overrides options by node name. The number of compute nodes is `compute` when given, else that of the live fleet (`record`), else
    the layout's. A live fleet also keeps its types when the layout gives none.
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
    types = layout.get("types") or {}
    if set(types) - set(sizes):
        raise NodeContainerError(f"The layout gives {min(set(types) - set(sizes))} a type: its kinds of nodes are {', '.join(sizes)}.")
    given = {key: layout.get(key) for key in ("cpus", "memory", "tmpfs", "mounts")}
    known = {kind: types.get(kind) or live_type(record, kind) for kind in sizes}
    own = {node["name"]: node.get("type") for node in (record or {}).get("nodes", ())}
    return check_nodes(
        {
            **given,
            "type": types.get(kind) or own.get(name, known[kind]),
            **overrides.get(name, {}),
            "name": name,
            "groups": [f"muster_{kind}"],
        }
        for name, kind in names
    )


def live_type(record: Mapping | None, kind: str) -> str:
    """The type that all nodes of a kind have in a live fleet, and that its next node gets; "" when they differ."""
    types = {node.get("type", "") for node in (record or {}).get("nodes", ()) if f"muster_{kind}" in node["groups"]}
    return types.pop() if len(types) == 1 else ""


@dataclasses.dataclass
class Container:
    """A node's container as the engine sees it."""

    node: str
    state: str
    spec: dict


@dataclasses.dataclass
class Plan:
    """The nodes to create, to start and to remove, and the surplus ones of the record, by name."""

    create: list[str]
    start: list[str]
    remove: list[str]
    surplus: list[str]

    @property
    def changes(self) -> bool:
        """Whether anything must be done."""
        return bool(self.create or self.start or self.remove or self.surplus)


def make_plan(fleet: str, wanted: list[Node], record: Mapping | None, live: Mapping[str, Container], image: str, *, shrink: bool) -> Plan:
    """Compare the wanted nodes with the record and the live containers. NodeContainerError where a change would lose data."""
    if live and not record:
        raise NodeContainerError(
            f"Fleet {fleet} has containers but no record in its state folder: remove it with make down and bring it up again."
        )
    names = [node.name for node in wanted]
    # A live container that the record lacks needs no SHRINK=1: an earlier run was allowed to remove it, and was killed first.
    surplus = [node["name"] for node in (record or {}).get("nodes", ()) if node["name"] not in names]
    if surplus and not shrink:
        raise NodeContainerError(
            f"Fleet {fleet} is larger than asked for: {', '.join(surplus)} would be removed; "
            "set SHRINK=1 (shrink: true) to drain and remove them."
        )
    for node in wanted:
        if node.name in live:
            found = differences(live[node.name].spec, node.spec(image))
            if found:
                raise NodeContainerError(
                    f"Node {node.name} of fleet {fleet} was made with other settings ({found}): remove the fleet with make down first."
                )
    broken = [name for name in names if name in live and live[name].state not in (*RUNNING, *STARTABLE)]
    return Plan(
        create=[name for name in names if name not in live or name in broken],
        start=[name for name in names if name in live and live[name].state in STARTABLE],
        remove=[name for name in live if name not in names or name in broken],
        surplus=surplus,
    )


def differences(live: Mapping, wanted: Mapping) -> str:
    """How two specs differ, in words; "" when they are the same."""
    # A container of an older version has no type in its spec.
    had = {"type": "", **live}
    return ", ".join(f"{key} is {had.get(key)!r}, wanted {wanted[key]!r}" for key in wanted if had.get(key) != wanted[key])


def transition(state: str, wanted: str) -> list[list[str]]:
    """The engine's commands that bring a container from its state to started, stopped, killed or paused; [] when it is in that state."""
    wake = [["unpause"]] if state == "paused" else []
    up = state in ("running", "paused")
    if wanted == "started":
        return wake or ([] if up else [["start"]])
    if wanted == "stopped":
        return [*wake, ["stop", "-t", "20"]] if up else []
    if wanted == "killed":
        return [*wake, ["kill", "--signal=KILL"]] if up else []
    return [["pause"]] if state == "running" else []
