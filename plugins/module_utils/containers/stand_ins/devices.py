# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools of EFA, InfiniBand and Neuron: fi_info of libfabric, ibv_devices, ibv_devinfo and neuron-ls."""

from __future__ import annotations

import json
import sys

from .node import Refused, having, known_versions, option, say
from .system import mac_of

LIBFABRIC = "2.4.0amzn1.0"


def efa_of(document, faults):
    """The EFA devices that the kernel shows."""
    gone = having(faults, "efa_missing")
    return [each for each in document["efa"] if each["index"] not in gone]


def fi_info(document, faults, args):
    """fi_info -p efa [-t FI_EP_RDM], --version."""
    if "--version" in args:
        say("fi_info: %s\nlibfabric: %s\nlibfabric api: 2.4 (rehearsal)" % (LIBFABRIC, LIBFABRIC))
        return 0
    kinds = {"FI_EP_RDM": ("rdm", "FI_PROTO_EFA"), "FI_EP_DGRAM": ("dgrm", "FI_PROTO_EFA")}
    asked = option(args, "-t", "--ep_type")
    cards = [each for each in efa_of(document, faults) if each["index"] not in having(faults, "efa_down")]
    if not cards or (option(args, "-p", "--provider") or "efa") != "efa" or (asked and asked not in kinds):
        say("fi_getinfo: -61 (No data available)", file=sys.stderr)
        return 61
    for each in cards:
        for kind, (suffix, protocol) in kinds.items():
            if asked in (None, kind):
                say("provider: efa\n    fabric: efa\n    domain: %s-%s" % (each["name"], suffix))
                say("    version: 204.0\n    type: %s\n    protocol: %s" % (kind, protocol))
    return 0


def ibv_devices(document, faults, _args):
    say("    device          \t   node GUID\n    ------          \t----------------")
    for each in [*efa_of(document, faults), *document["switch_ports"]]:
        say("    %-16s\t%s" % (each["name"], "0000" + mac_of(each["name"]).hex()))
    return 0


def ibv_devinfo(document, faults, _args):
    down = having(faults, "efa_down")
    for each in [*efa_of(document, faults), *document["switch_ports"]]:
        state = "PORT_DOWN (1)" if each.get("index") in down else "PORT_ACTIVE (4)"
        say("hca_id:\t%s\n\ttransport:\t\t\tunspecified (4)\n\tfw_ver:\t\t\t\t0.0.0.0" % each["name"])
        say("\tnode_guid:\t\t\t0000:%s" % ":".join(mac_of(each["name"]).hex()[at : at + 4] for at in (0, 4, 8)))
        say("\tvendor_id:\t\t\t%s\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1" % ("0x1d0f" if "card" in each else "0x02c9"))
        say("\t\t\tstate:\t\t\t%s\n\t\t\tlink_layer:\t\tUnspecified\n" % state)
    return 0


def neuron_ls(document, faults, args):
    """neuron-ls, -j, --version."""
    versions = known_versions()
    if "--version" in args:
        say("neuron-ls %s (rehearsal)" % versions["neuron"])
        return 0
    gone = having(faults, "neuron_missing")
    devices = [each for each in document["neuron"] if each["index"] not in gone]
    if not devices:
        raise Refused("neuron-ls found no Neuron device.")
    have = document["hardware"]
    cores, count = have["neuron_cores"] // len(document["neuron"]), len(document["neuron"])
    rows = []
    for each in devices:
        beside = sorted({(each["index"] + step) % count for step in (-1, 1)} - {each["index"]} - gone)
        rows.append(
            {
                "neuron_device": each["index"],
                "bdf": each["bus"][5:],
                "connected_to": beside,
                "nc_count": cores,
                "memory_size": have["gpu_memory_mib"] << 20,
                "neuron_processes": [],
            }
        )
    if "-j" in args or "--json-output" in args:
        say(json.dumps(rows))
        return 0
    say("instance-type: %s\ninstance-id: rehearsal" % document["instance_type"])
    line = "+--------+--------+--------+-----------+--------------+"
    say(
        "%s\n| NEURON | NEURON | NEURON | CONNECTED | PCI          |\n| DEVICE | CORES  | MEMORY | DEVICES   | BDF          |\n%s"
        % (line, line)
    )
    for row in rows:
        memory = "%d GB" % (row["memory_size"] >> 30)
        others = ", ".join(map(str, row["connected_to"]))
        say("| %-6d | %-6d | %-6s | %-9s | %-12s |" % (row["neuron_device"], row["nc_count"], memory, others, row["bdf"]))
    say(line)
    return 0
