# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node that rehearses an instance type carries: `rehearsal(type)` is the document that the programs of stand_ins read on the node.

The document says which devices the type has, where they are on the PCI bus, and what its collectives reach, all from the catalogue.
Bus addresses are made up: accelerators are spread over the buses, and each EFA device is beside the accelerator that it serves.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import zipfile

from ansible_collections.muster.fleet.plugins.module_utils.containers import stand_ins
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import (
    collectives,
    dcgm,
    devices,
    node,
    nvidia,
    programs,
    system,
)
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

# NVSwitch chips on the PCI bus of a host by GPU architecture: count and device id. Blackwell's are reached through InfiniBand devices.
SWITCHES = {"volta": (6, "1ac2"), "ampere": (6, "1af1"), "hopper": (4, "22a3")}
SWITCH_PORTS = 2  # InfiniBand devices by which a Blackwell host manages its NVSwitches
EFA_DEVICE = {1: "efa0", 2: "efa1", 3: "efa2", 4: "efa3"}
MOST_NODES = 128  # the bandwidth of more nodes is that of so many
PCI_GBPS = 20  # GB/s between GPUs without NVLink
WIRE_PART = 0.7  # of the wires' bandwidth, where the catalogue has no reference
ACCELERATORS = ("nvidia", "neuron")
FILES = ("rehearsal.json", "stand-in")
MODULES = (stand_ins, collectives, dcgm, devices, node, nvidia, programs, system)  # Ansible sends a module only what it imports


def can_rehearse(name: str) -> bool:
    """Whether the catalogue has the type, and it has GPUs or Neuron devices that a node can rehearse."""
    return name in catalogue.names() and catalogue.instance_type(name)["accelerator"] in ACCELERATORS


@functools.cache
def rehearsal(name: str) -> dict:
    """The document of a type. CatalogueError when the catalogue lacks it."""
    have = catalogue.instance_type(name)
    accelerators = [
        {"index": index, "bus": f"0000:{bus(index, have['gpus']):02x}:1e.0", "numa": numa(index, have)} for index in range(have["gpus"])
    ]
    gpus = accelerators if have["accelerator"] == "nvidia" else []
    count, switch = SWITCHES.get(have["gpu_arch"], (0, "")) if have["nvswitch"] else (0, "")
    ports = SWITCH_PORTS if have["nvswitch"] and not count else 0
    document = {
        "schema": node.SCHEMA,
        "instance_type": have["name"],
        "hardware": {key: have[key] for key in have if key not in ("network_cards", "markets", "busbw", "peak_flops")},
        "gpu_name": f"NVIDIA {have['gpu_model']}",
        "gpus": gpus,
        "neuron": [] if gpus else accelerators,
        "switches": [{"index": index, "bus": f"0000:{2 + index:02x}:00.0", "device": switch} for index in range(count)],
        "switch_ports": [{"name": f"ibp{2 + index}s0", "bus": f"0000:{2 + index:02x}:00.0", "gbps": 400} for index in range(ports)],
        "efa": efa_devices(have),
        "reference": {each: references(have["name"], each) for each in node.COLLECTIVES} if gpus else {},
    }
    document["devices"] = [path for path, _major, _minor in node.device_files(document, [])]
    document["stand_ins"] = node.names(document)
    return document


def bus(index: int, count: int) -> int:
    """The PCI bus of an accelerator."""
    return 0x10 + index * 0xE0 // count


def numa(index: int, have: dict) -> int:
    """The NUMA node of an accelerator: one for each socket."""
    return index * have["sockets"] // have["gpus"]


def efa_devices(have: dict) -> list[dict]:
    """The EFA devices in the order of their network cards."""
    cards = [each["card"] for each in have["interfaces"] if each["type"] == "efa-only"]
    out: list[dict] = []
    for index, card in enumerate(cards):
        near = index * have["gpus"] // len(cards)
        slot = 0x1D - sum(each["near"] == near for each in out)
        at = bus(near, have["gpus"])
        out.append(
            {
                "index": index,
                "card": card,
                "near": near,
                "name": f"rdmap{at}s{slot}",
                "bus": f"0000:{at:02x}:{slot:02x}.0",
                "device": EFA_DEVICE.get(have["efa"], EFA_DEVICE[1]),
                "numa": numa(near, have),
                "gbps": have["efa_gbps"] // len(cards),
            }
        )
    return out


def references(name: str, collective: str) -> dict[str, list[list[float]]]:
    """{nodes: [[bytes, busbw], ...]} of a collective: each holds for larger numbers of nodes and bytes, until the next one."""
    out: dict[str, list[list[float]]] = {}
    last = None
    for nodes in range(1, MOST_NODES + 1):
        found = reference(name, nodes, collective)
        if found != last:
            out[str(nodes)] = last = found
    return out


def reference(name: str, nodes: int, collective: str) -> list[list[float]]:
    """[[bytes, busbw], ...] of a collective on so many nodes: the catalogue's reference, else what the wires or PCI Express should give."""
    points: list[list[float]] = []
    for size in catalogue.nccl_sizes(name, nodes, collective):
        found = catalogue.nccl_expectation(name, nodes, collective, size)
        points.append([size, found["reference"]])
    if points:
        return points
    have = catalogue.instance_type(name)
    known = catalogue.nccl_expectation(name, nodes, collective, have["full_speed_bytes"])
    ceiling = known["ceiling"] if known else None
    guess = PCI_GBPS if nodes == 1 else have["wire_gbps"] / 8
    return [[have["full_speed_bytes"], round(WIRE_PART * min(guess, ceiling or guess), 2)]]


def node_files(name: str) -> dict[str, bytes]:
    """The files that a rehearsed node finds in /run/muster-node; its first process runs the program before systemd."""
    return dict(zip(FILES, ((json.dumps(rehearsal(name), indent=1) + "\n").encode(), program())))


@functools.cache
def program() -> bytes:
    """The stand-ins as one file that Python runs: a ZIP archive that is not compressed, so that a reader finds in it what it is."""
    out = io.BytesIO()
    out.write(b"#!/usr/bin/python3\n")
    with zipfile.ZipFile(out, "w") as archive:
        for module in MODULES:
            name = module.__name__.rpartition(".")[2]
            archive.writestr(zipfile.ZipInfo(f"stand_ins/{'__init__' if module is stand_ins else name}.py"), inspect.getsource(module))
        archive.writestr(zipfile.ZipInfo("__main__.py"), "import sys\n\nfrom stand_ins.programs import main\n\nsys.exit(main(sys.argv))\n")
    return out.getvalue()
