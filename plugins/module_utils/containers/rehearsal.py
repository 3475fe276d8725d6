# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node that rehearses an instance type carries: `rehearsal(type)` is the document that stand_in.py reads on the node.

The document says which devices the type has, where they are on the PCI bus, and what its collectives reach, all from the catalogue.
Bus addresses are made up: accelerators are spread over the buses, and each EFA device is beside the accelerator that it serves.
"""

from __future__ import annotations

import inspect
import json

from ansible_collections.muster.fleet.plugins.module_utils.containers import stand_in
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

# NVSwitch chips on the PCI bus of a host by GPU architecture: count and device id. Blackwell's are reached through InfiniBand devices.
SWITCHES = {"volta": (6, "1ac2"), "ampere": (6, "1af1"), "hopper": (4, "22a3")}
SWITCH_PORTS = 2  # InfiniBand devices by which a Blackwell host manages its NVSwitches
EFA_DEVICE = {1: "efa0", 2: "efa1", 3: "efa2", 4: "efa3"}
NODE_COUNTS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
FILES = ("rehearsal.json", "stand-in")


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
        "schema": stand_in.SCHEMA,
        "instance_type": have["name"],
        "hardware": {key: have[key] for key in have if key not in ("network_cards", "markets", "busbw", "peak_flops")},
        "gpu_name": f"NVIDIA {have['gpu_model']}",
        "gpus": gpus,
        "neuron": [] if gpus else accelerators,
        "switches": [{"index": index, "bus": f"0000:{2 + index:02x}:00.0", "device": switch} for index in range(count)],
        "switch_ports": [{"name": f"ibp{2 + index}s0", "bus": f"0000:{2 + index:02x}:00.0", "gbps": 400} for index in range(ports)],
        "efa": efa_devices(have),
        "reference": {str(nodes): reference(have, nodes) for nodes in NODE_COUNTS},
    }
    document["devices"] = [path for path, _major, _minor in stand_in.device_files(document, [])]
    document["stand_ins"] = stand_in.names(document)
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


def reference(have: dict, nodes: int) -> list[list[float]]:
    """[[bytes, busbw]] of all_reduce on so many nodes: what the catalogue has for these bytes and more, else an estimate by the wires."""
    points: list[list[float]] = []
    for size in (1 << power for power in range(20, 37)):
        found = catalogue.nccl_expectation(have["name"], nodes, "all_reduce", size)
        busbw = round(found["floor"] / catalogue.MARGIN, 2) if found else 0
        if found and (not points or points[-1][1] != busbw):
            points.append([size, busbw])
    estimate = have["nvlink"] / 2 or 20 if nodes == 1 else have["wire_gbps"] / 8 * 0.7
    return points or [[have["full_speed_bytes"], round(estimate, 2)]]


def node_files(name: str) -> dict[str, bytes]:
    """The files that a rehearsed node finds in /run/muster-node; its first process runs the program before systemd."""
    program = "#!/usr/bin/python3\n" + inspect.getsource(stand_in)
    return dict(zip(FILES, ((json.dumps(rehearsal(name), indent=1) + "\n").encode(), program.encode())))
