# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The instance types and what derives from them: interfaces, Slurm's node lines, sizes for Kubernetes and Batch, expected bandwidth.

`instance_type(name)` gives a dictionary:

    name, family, arch ("x86_64"|"arm64"), cpu, vcpus, cores, sockets, threads_per_core, memory_mib, bare_metal, markets, ebs_gbps
    boot_mode ("legacy-bios"|"uefi"|"both"), nvme {count, size_gb}, nvme_total_gb
    wire_gbps, topology_layers (0: DescribeInstanceTopology does not know the type)
    accelerator ("nvidia"|"neuron"), gpu_model, gpu_arch ("volta"..., "" for neuron), compute_capability, gpu_pci (devices of vendor 10de)
    gpus (or Neuron devices), neuron_cores, gpu_memory_mib and gpu_memory_gib (of one), gpu_memory_total_gib
    peak_flops {dtype: dense TFLOP/s of one}
    nvlink (GB/s of one GPU in both directions, 0 without), nvlinks, nvswitch (the host runs the fabric manager), nvlink_domain (GPUs)
    efa (generation, 0 without), efa_cards (EFA interfaces to attach), efa_gbps (of these), rdma (""|"read"|"read+write"), gpudirect_rdma
    network_cards [{card, max_interfaces, efa, gbps}]
    interfaces [{card, device, type}] as AWS recommends: type "interface" (ENA) or "efa-only"
    full_speed_bytes, busbw [{nodes, collective, bytes, gbps, source, date, stack}]
"""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import closest
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue_data import ACCELERATORS, BUSBW, TYPES

HUGE_PAGES_MIB = 2 * 5128  # the huge pages that EFA's installer reserves on a node (EKS user guide)
POD_HUGE_PAGES = "5120Mi"
GIB = 1 << 30
MARGIN = 0.85  # a healthy cluster must reach this part of the published bandwidth
RING_GBPS = 12  # GB/s of busbw for 100 Gbit/s of network, by NVIDIA's rule of thumb (nccl-tests#119)


class CatalogueError(ValueError):
    """A question that the catalogue cannot answer; the text is one sentence for the user."""


def instance_type(name):
    """A new dictionary that describes a type; the name is that of EC2 or of SageMaker (`ml.` before it)."""
    name = str(name)
    plain = name[3:] if name.startswith("ml.") else name
    if plain not in TYPES:
        near = [each for each in TYPES if plain and each.startswith(plain)] or closest(plain, TYPES, 3)
        remedy = "the nearest are " + ", ".join(near[:3]) if near else "docs/catalogue.md lists its types"
        raise CatalogueError("The catalogue has no instance type %s; %s." % (name or "''", remedy))
    row = TYPES[plain]
    device = ACCELERATORS[row["gpu_model"]]
    out = {key: value for key, value in row.items() if key not in ("cards", "efa_attach")}
    out["name"] = plain
    out["markets"] = list(row["markets"])
    out["nvme"] = dict(row["nvme"])
    out["nvme_total_gb"] = row["nvme"]["count"] * row["nvme"]["size_gb"]
    out["accelerator"] = device["vendor"]
    out["gpu_arch"] = device["arch"]
    out["compute_capability"] = device["compute_capability"]
    out["gpu_pci"] = list(device["pci"])
    out["peak_flops"] = dict(device["peak_flops"])
    out["gpu_memory_gib"] = round(row["gpu_memory_mib"] / 1024, 1)
    out["gpu_memory_total_gib"] = round(row["gpus"] * row["gpu_memory_mib"] / 1024, 1)
    out["network_cards"] = [
        {"card": card, "max_interfaces": most, "efa": efa, "gbps": gbps}
        for first, last, most, efa, gbps in row["cards"]
        for card in range(first, last + 1)
    ]
    attach = [card for first, last in row["efa_attach"] for card in range(first, last + 1)]
    out["efa_cards"] = len(attach)
    # The primary interface needs an address and efa-only has none, so card 0 carries ENA first and EFA beside it.
    out["interfaces"] = [{"card": 0, "device": 0, "type": "interface"}]
    out["interfaces"] += [{"card": card, "device": 0 if card else 1, "type": "efa-only"} for card in attach]
    out["busbw"] = [{key: value for key, value in point.items() if key != "type"} for point in BUSBW if point["type"] == plain]
    return out


def model_of(device):
    """The catalogue's model of a GPU that the driver calls, for example, `NVIDIA H100 80GB HBM3`; "" for an unknown GPU."""
    for model, each in ACCELERATORS.items():
        if any(re.search(r"\b%s\b" % re.escape(name), device) for name in each["names"]):
            return model
    return ""


def names():
    """All types, in the order of docs/catalogue.md."""
    return list(TYPES)


def count(nodes):
    """`nodes` as a whole number of at least one."""
    try:
        if int(nodes) >= 1:
            return int(nodes)
    except (TypeError, ValueError):
        pass
    raise CatalogueError("%r is not a number of nodes; give a whole number of at least 1." % (nodes,))


def ec2_interfaces(name, subnet, groups, layout="efa-only"):
    """NetworkInterfaces of RunInstances or of a launch template.

    layout: efa-only as AWS recommends; efa, where every interface has an address, for services that know no other (PCS); ena without EFA.
    """
    have = instance_type(name)
    wanted = [(each["card"], each["device"], each["type"]) for each in have["interfaces"]]
    if layout == "ena":
        wanted = wanted[:1]
    elif layout == "efa":
        cards = {each["card"]: each for each in have["network_cards"]}
        attach = [card for card, device, kind in wanted if kind == "efa-only"]
        first = "efa" if 0 in attach else "interface"
        # AWS's guides use device 1 when card 0 carries EFA too; otherwise the cards from 1 on have one device each.
        second = 1 if first == "efa" and attach and cards[attach[-1]]["max_interfaces"] > 1 else 0
        wanted = [(0, 0, first)] + [(card, second, "efa") for card in attach if card]
    elif layout != "efa-only":
        raise CatalogueError("%r is not a layout of interfaces; use efa-only, efa or ena." % (layout,))
    # No AssociatePublicIpAddress: EC2 refuses it with more than one interface.
    return [
        {
            "NetworkCardIndex": card,
            "DeviceIndex": device,
            "InterfaceType": kind,
            "SubnetId": subnet,
            "Groups": [groups] if isinstance(groups, str) else list(groups),
            "DeleteOnTermination": True,
        }
        for card, device, kind in wanted
    ]


def slurm_hardware(name):
    """The keys of a node line that `slurmd -C` would print, before slurm_memory_fraction.

    RealMemory is the nominal memory; a node registers a few per cent less, and the default of the fraction allows for that.
    """
    have = instance_type(name)
    return {
        "Boards": "1",
        "SocketsPerBoard": str(have["sockets"]),
        "CoresPerSocket": str(have["cores"] // have["sockets"]),
        "ThreadsPerCore": str(have["threads_per_core"]),
        "RealMemory": str(have["memory_mib"]),
    }


def slurm_gres_type(have):
    """The part of the driver's GPU name that Slurm's AutoDetect matches: h100, rtx_pro_6000."""
    return have["gpu_model"].lower().replace(" server", "").replace(" ", "_")


def slurm_gres(name):
    """The gres of a node line, "" for a type without NVIDIA GPUs."""
    have = instance_type(name)
    return "gpu:%s:%d" % (slurm_gres_type(have), have["gpus"]) if have["accelerator"] == "nvidia" else ""


def slurm_gres_line(name):
    """The same GPUs as a line of gres.conf; None for a type without NVIDIA GPUs."""
    have = instance_type(name)
    if have["accelerator"] != "nvidia":
        return None
    last = have["gpus"] - 1
    return {"Name": "gpu", "Type": slurm_gres_type(have), "File": "/dev/nvidia%s" % ("[0-%d]" % last if last else "0")}


def spare_memory_mib(have):
    """The memory of a node that one job may use: all but EFA's huge pages and a tenth for the system and its agents."""
    return int((have["memory_mib"] - (HUGE_PAGES_MIB if have["efa"] else 0)) * 0.9)


def k8s_resources(name):
    """`resources` of a container that uses the whole node."""
    have = instance_type(name)
    devices = {"nvidia": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}
    limits = {devices[have["accelerator"]]: have["gpus"]}
    if have["efa"]:
        limits["vpc.amazonaws.com/efa"] = have["efa_cards"]
        limits["hugepages-2Mi"] = POD_HUGE_PAGES
    return {"limits": limits, "requests": {"cpu": str(int(have["vcpus"] * 0.9) or 1), "memory": "%dMi" % spare_memory_mib(have)}}


def batch_resources(name, nodes):
    """The node count, ranks and keys of containerProperties for a multi-node parallel job of AWS Batch."""
    have = instance_type(name)
    nodes = count(nodes)
    memory = spare_memory_mib(have)
    needs = [{"type": "VCPU", "value": str(have["vcpus"])}, {"type": "MEMORY", "value": str(memory)}]
    paths = ["/dev/infiniband/uverbs%d" % each for each in range(have["efa_cards"])]
    if have["accelerator"] == "nvidia":
        needs.append({"type": "GPU", "value": str(have["gpus"])})
    else:
        paths += ["/dev/neuron%d" % each for each in range(have["gpus"])]
    return {
        "instanceType": have["name"],
        "numNodes": nodes,
        "processes": nodes * (have["neuron_cores"] or have["gpus"]),
        "resourceRequirements": needs,
        "linuxParameters": {
            "devices": [{"hostPath": path, "containerPath": path, "permissions": ["READ", "WRITE", "MKNOD"]} for path in paths],
            # 8 GiB for each GPU, shared by NCCL and the data loaders of its rank.
            "sharedMemorySize": min(8192 * have["gpus"], memory // 2),
        },
        "ulimits": [
            {"name": "memlock", "softLimit": -1, "hardLimit": -1},
            {"name": "stack", "softLimit": 67108864, "hardLimit": 67108864},
            {"name": "nofile", "softLimit": 1024000, "hardLimit": 1024000},
        ],
    }


def nccl_expectation(name, nodes, collective, size):
    """{floor, ceiling, source} of the busbw in 1e9 bytes/s, or None when nothing is known for that many nodes and bytes.

    A published point holds for its size and larger ones, because busbw grows with the size. It holds for its number of nodes; one of
    four or more nodes also holds for larger numbers. Without a point, four and more nodes are compared with the network's bandwidth,
    from full_speed_bytes on. Two and three nodes may exceed the bandwidth of a ring, because a tree sends each byte over the network once.
    """
    have = instance_type(name)
    nodes = count(nodes)
    try:
        size = int(size)
    except (TypeError, ValueError):
        raise CatalogueError("%r is not a message size; give it in bytes." % (size,)) from None
    if collective != "all_reduce" or have["accelerator"] != "nvidia":
        return None
    ranks = nodes * have["gpus"]
    tree = 2 * (ranks - 1) / ranks
    inside = have["nvlink"] / 2 * (tree if have["nvswitch"] and have["gpu_arch"] in ("hopper", "blackwell") else 1)
    ring = RING_GBPS * have["efa_gbps"] / 100 if have["gpudirect_rdma"] else 0
    ceiling = inside if nodes == 1 else ring if nodes >= 4 else min(tree * ring, inside or tree * ring)
    points = [
        point
        for point in have["busbw"]
        if point["collective"] == collective and point["bytes"] <= size and (point["nodes"] == nodes or 4 <= point["nodes"] <= nodes)
    ]
    if points:
        # The largest published size, and the lower of two figures for it.
        point = min(points, key=lambda point: (-point["bytes"], point["gbps"]))
        floor = MARGIN * point["gbps"]
        source = "%d%% of %s GB/s at %d MiB on %d node(s): %s, %s" % (
            100 * MARGIN,
            point["gbps"],
            point["bytes"] >> 20,
            point["nodes"],
            point["source"],
            point["date"],
        )
    elif nodes >= 4 and ring and size >= have["full_speed_bytes"]:
        floor = MARGIN * ring
        source = "derived: %d%% of %d GB/s for each 100 Gbit/s of EFA" % (100 * MARGIN, RING_GBPS)
    else:
        return None
    return {"floor": round(floor, 1), "ceiling": round(ceiling, 1), "source": source}
