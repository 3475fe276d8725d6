# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The instance types and what derives from them: interfaces, Slurm's node lines, sizes for Kubernetes and Batch, expected bandwidth.

`instance_type(name)` gives a dictionary:

    name, family, arch ("x86_64"|"arm64"), vcpus, cores, sockets, threads_per_core, memory_mib, markets
    boot_mode ("legacy-bios"|"uefi"|"both"), nvme {count, size_gb}
    wire_gbps, topology_layers (0: DescribeInstanceTopology does not know the type)
    accelerator ("nvidia"|"neuron"), gpu_model, gpu_arch ("volta"..., "" for neuron), compute_capability, gpu_pci (devices of vendor 10de)
    fabric_pci (devices of vendor 10de that only a host with NVLink switches has, its own or the rack's)
    gpus (or Neuron devices), neuron_cores, gpu_memory_mib and gpu_memory_gib (of one)
    peak_flops {dtype: dense TFLOP/s of one}
    nvlink (GB/s of one GPU in both directions, 0 without), nvlinks, nvswitch (the host runs the fabric manager), nvlink_domain (GPUs)
    efa (generation, 0 without), efa_cards (EFA interfaces to attach), efa_counts (all numbers that work), efa_gbps (of efa_cards)
    rdma (""|"read"|"read+write"), gpudirect_rdma
    network_cards [{card, max_interfaces, efa, gbps}]
    interfaces [{card, device, type}] as AWS recommends: type "interface" (ENA) or "efa-only"
    full_speed_bytes, busbw [{nodes, collective, bytes, gbps, source, date, stack}]
"""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import closest
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue_data import ACCELERATORS, BUSBW, TYPES, UNSUPPORTED

HUGE_PAGES_MIB = 2 * 5128  # the huge pages that EFA's installer reserves on a node (EKS user guide)
POD_HUGE_PAGES = "5120Mi"
GIB = 1 << 30
FLOOR_PART = 0.90  # a healthy cluster reaches this part of the published bandwidth
RING_GBPS = 12  # GB/s of busbw for 100 Gbit/s of network, by NVIDIA's rule of thumb (nccl-tests#119)
NVLINK_PART = 0.80  # of one direction; published are 0.77 (A100) and 1.07 (H100, whose switches reduce)


class CatalogueError(ValueError):
    """A question that the catalogue cannot answer; the text is one sentence for the user."""


def instance_type(name):
    """A new dictionary that describes a type; the name is that of EC2 or of SageMaker (`ml.` before it)."""
    name = str(name)
    plain = name[3:] if name.startswith("ml.") else name
    if plain in UNSUPPORTED:
        message = "Muster does not support %s (%s): %s; docs/catalogue.md lists the types that it supports."
        raise CatalogueError(message % (plain, *UNSUPPORTED[plain]))
    if plain not in TYPES:
        near = [each for each in TYPES if plain and each.startswith(plain)] or closest(plain, TYPES, 3)
        remedy = "the nearest are " + ", ".join(near[:3]) if near else "docs/catalogue.md lists its types"
        raise CatalogueError("The catalogue has no instance type %s; %s." % (name or "''", remedy))
    row = TYPES[plain]
    device = ACCELERATORS[row["gpu_model"]]
    out = {key: value for key, value in row.items() if key not in ("cards", "efa_attach", "efa_also")}
    out["name"] = plain
    out["markets"] = list(row["markets"])
    out["nvme"] = dict(row["nvme"])
    out["accelerator"] = device["vendor"]
    out["gpu_arch"] = device["arch"]
    out["compute_capability"] = device["compute_capability"]
    out["gpu_pci"] = list(device["pci"])
    out["fabric_pci"] = list(device.get("fabric_pci", ()))
    out["peak_flops"] = dict(device["peak_flops"])
    out["gpu_memory_gib"] = round(row["gpu_memory_mib"] / 1024, 1)
    out["network_cards"] = [
        {"card": card, "max_interfaces": most, "efa": efa, "gbps": gbps}
        for first, last, most, efa, gbps in row["cards"]
        for card in range(first, last + 1)
    ]
    attach = [card for first, last in row["efa_attach"] for card in range(first, last + 1)]
    out["efa_cards"] = len(attach)
    out["efa_counts"] = [len(attach), *row["efa_also"]]
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


def described(name):
    """Whether the catalogue says anything of a type, be it that Muster does not support it. Others have no accelerator."""
    return name in TYPES or name in UNSUPPORTED


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


def nodes_of_nvlink(name):
    """How many nodes share one NVLink domain: 1, or those of an UltraServer."""
    have = instance_type(name)
    return max(have["nvlink_domain"] // have["gpus"], 1)


def spare_memory_mib(have):
    """The memory of a node that one job may use: all but EFA's huge pages and a tenth for the system and its agents."""
    return int((have["memory_mib"] - (HUGE_PAGES_MIB if have["efa"] else 0)) * 0.9)


def k8s_resources(name, gpus=None):
    """`resources` of a container with `gpus` of the node's GPUs or Neuron devices and its share of the rest; None is the whole node."""
    have = instance_type(name)
    gpus = have["gpus"] if gpus is None else gpus
    limits = {}
    if gpus:
        limits[{"nvidia": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}[have["accelerator"]]] = gpus
        efa = have["efa_cards"] * gpus // have["gpus"]
        if efa:
            limits.update({"vpc.amazonaws.com/efa": efa, "hugepages-2Mi": POD_HUGE_PAGES})
    share = gpus / have["gpus"]
    cpus, memory = int(have["vcpus"] * 0.9 * share) or 1, int(spare_memory_mib(have) * share)
    return {"limits": limits, "requests": {"cpu": str(cpus), **({"memory": "%dMi" % memory} if gpus else {})}}


def shared_memory_mib(have, gpus):
    """The size of /dev/shm in MiB: 8 GiB for each GPU, which NCCL and the data loaders of its rank share, and 1 GiB without GPUs."""
    return min(8192 * gpus, spare_memory_mib(have) // 2) if have and gpus else 1024


def batch_resources(name, gpus=None):
    """The keys of containerProperties that depend on the type, for a job of AWS Batch that has its nodes alone and `gpus` of their GPUs."""
    have = instance_type(name)
    gpus = have["gpus"] if gpus is None else gpus
    needs = [{"type": "VCPU", "value": str(have["vcpus"])}, {"type": "MEMORY", "value": str(spare_memory_mib(have))}]
    paths = ["/dev/infiniband/uverbs%d" % each for each in range(have["efa_cards"])]
    if have["accelerator"] == "nvidia" and gpus:
        needs.append({"type": "GPU", "value": str(gpus)})
    elif have["accelerator"] == "neuron":
        paths += ["/dev/neuron%d" % each for each in range(gpus)]
    return {
        "resourceRequirements": needs,
        "linuxParameters": {
            "devices": [{"hostPath": path, "containerPath": path, "permissions": ["READ", "WRITE", "MKNOD"]} for path in paths],
            "sharedMemorySize": shared_memory_mib(have, gpus),
        },
        "ulimits": [
            {"name": "memlock", "softLimit": -1, "hardLimit": -1},
            {"name": "stack", "softLimit": 67108864, "hardLimit": 67108864},
            {"name": "nofile", "softLimit": 1024000, "hardLimit": 1024000},
        ],
    }


def nccl_expectation(name, nodes, collective, size):
    """{floor, reference, ceiling, published, source} of the busbw in 1e9 bytes/s, or None when nothing is known. Each may be None.

    reference: a published point, or what NVLink and EFA should give (published is False then). floor: FLOOR_PART of it. ceiling: no
    collective that crosses the wires is faster.
    """
    have = instance_type(name)
    nodes = count(nodes)
    try:
        size = int(size)
    except (TypeError, ValueError):
        raise CatalogueError("%r is not a message size; give it in bytes." % (size,)) from None
    if have["accelerator"] != "nvidia":
        return None
    ceiling = _ceiling(have, nodes, collective)
    reference, published, source = _reference(have, nodes, collective, size)
    if reference is None and ceiling is None:
        return None
    return {
        "floor": None if reference is None else round(FLOOR_PART * reference, 1),
        "reference": reference,
        "ceiling": None if ceiling is None else round(ceiling, 1),
        "published": published,
        "source": source,
    }


def nccl_sizes(name, nodes, collective):
    """The sizes from which `nccl_expectation` has another reference, in order."""
    have = instance_type(name)
    if have["accelerator"] != "nvidia":
        return []
    sizes = {have["full_speed_bytes"], *(point["bytes"] for point in have["busbw"])}
    references = [(size, _reference(have, count(nodes), collective, size)) for size in sorted(sizes)]
    found = [references[index] for index in range(len(references)) if not index or references[index][1] != references[index - 1][1]]
    return [size for size, (reference, _published, _source) in found if reference is not None]


def _domains(have, nodes):
    """The nodes of each NVLink domain, as [number, ...]: as few domains as possible. EFA carries only what leaves a domain."""
    span = max(1, have["nvlink_domain"] // have["gpus"])
    return [span] * (nodes // span) + ([nodes % span] if nodes % span else [])


def _reference(have, nodes, collective, size):
    """(reference, published, source); the reference is None where nothing is known.

    A published point holds for its size and larger ones, because busbw grows with the size. It holds for its number of nodes; one of
    four or more nodes also holds for larger numbers. Without a point, all_reduce is compared with the slower of NVLink and EFA, from
    full_speed_bytes on. Where EFA is slower, two and three domains may exceed the bandwidth of a ring, because a tree sends each byte
    over the network once: they have no reference.
    """
    points = [
        point
        for point in have["busbw"]
        if point["collective"] == collective and point["bytes"] <= size and (point["nodes"] == nodes or 4 <= point["nodes"] <= nodes)
    ]
    if points:
        # The nearest number of nodes, the largest published size, and the lower of two figures for it.
        point = min(points, key=lambda point: (-point["nodes"], -point["bytes"], point["gbps"]))
        facts = (point["gbps"], point["bytes"] >> 20, point["nodes"], point["source"], point["date"])
        return point["gbps"], True, "%s GB/s at %d MiB on %d node(s): %s, %s" % facts
    if collective == "all_reduce" and size >= have["full_speed_bytes"] and nodes * have["gpus"] > 1:
        domains = _domains(have, nodes)
        inside = NVLINK_PART * have["nvlink"] / 2
        ring = domains[-1] * RING_GBPS * have["efa_gbps"] / 100 if have["gpudirect_rdma"] else 0
        if inside and (len(domains) == 1 or ring > inside):
            return inside, False, "derived: %d%% of NVLink's %g GB/s in one direction" % (100 * NVLINK_PART, have["nvlink"] / 2)
        if len(domains) >= 4 and ring:
            return ring, False, "derived: %d GB/s for each 100 Gbit/s of EFA" % RING_GBPS
    return None, False, ""


def _ceiling(have, nodes, collective):
    """The busbw above which the collective would have sent more than the wires carry; None where no wire is known.

    A collective of S bytes on n ranks sends at least so much from domain to domain, all together: all_reduce 2 (d-1) S, all_gather and
    reduce_scatter (d-1) S, where d is the number of domains; alltoall S for each rank, less the part that stays in its domain. A
    broadcast or reduce passes S through one domain's wires, and a sendrecv through those of one node.
    """
    domains = _domains(have, nodes)
    ranks = nodes * have["gpus"]
    link = have["nvlink"] / 2
    # Switches from Hopper on reduce by themselves, so each byte of an all_reduce passes a link once.
    reducing = have["nvlink_domain"] > 1 and have["gpu_arch"] in ("hopper", "blackwell")
    inside = link * (2 * (ranks - 1) / ranks if collective == "all_reduce" and reducing else 1) if ranks > 1 else 0
    if len(domains) == 1:
        return inside or None
    wire = have["wire_gbps"] / 8
    most = nodes * wire * (ranks - 1) / ranks  # busbw is this part of algbw, twice for all_reduce
    leaving = sum(part * (nodes - part) for part in domains) / nodes * have["gpus"]
    outside = {
        "all_reduce": most / (len(domains) - 1),
        "all_gather": most / (len(domains) - 1),
        "reduce_scatter": most / (len(domains) - 1),
        "alltoall": most / leaving,
        "broadcast": domains[0] * wire,
        "reduce": domains[0] * wire,
        "sendrecv": wire,
    }.get(collective)
    return min(outside, inside) if outside and inside and collective == "all_reduce" else outside
