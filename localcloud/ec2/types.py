# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Instance types: moto's EC2 gets those of the catalogue that it lacks."""

from __future__ import annotations

from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES, InstanceType, InstanceTypeBackend

from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import instance_type, names


def add_types() -> None:
    """Add the catalogue's types that moto's copy of DescribeInstanceTypes lacks."""
    for name in names():
        if name not in INSTANCE_TYPES:
            INSTANCE_TYPES[name] = described(instance_type(name))
            InstanceTypeBackend.instance_types.append(InstanceType(name))


def described(have: dict[str, Any]) -> dict[str, Any]:
    """A type of the catalogue in the form of DescribeInstanceTypes."""
    cards = [
        {
            "NetworkCardIndex": card["card"],
            "MaximumNetworkInterfaces": card["max_interfaces"],
            "NetworkPerformance": f"{card['gbps']} Gigabit",
            "BaselineBandwidthInGbps": float(card["gbps"]),
            "PeakBandwidthInGbps": float(card["gbps"]),
            "InterfaceTypes": ["interface", *(["efa", "efa-only"] if card["efa"] else [])],
        }
        for card in have["network_cards"]
    ]
    device = {"Count": have["gpus"], "Name": have["gpu_model"], "MemoryInfo": {"SizeInMiB": have["gpu_memory_mib"]}}
    total = have["gpus"] * have["gpu_memory_mib"]
    disks = have["nvme"]
    out = {
        "InstanceType": have["name"],
        "CurrentGeneration": True,
        "BareMetal": have["name"].endswith(".metal"),
        "Hypervisor": "nitro",
        "SupportedUsageClasses": list(have["markets"]),
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "SupportedBootModes": ["legacy-bios", "uefi"] if have["boot_mode"] == "both" else [have["boot_mode"]],
        "ProcessorInfo": {"SupportedArchitectures": [have["arch"]]},
        "VCpuInfo": {
            "DefaultVCpus": have["vcpus"],
            "DefaultCores": have["cores"],
            "DefaultThreadsPerCore": have["threads_per_core"],
        },
        "MemoryInfo": {"SizeInMiB": have["memory_mib"]},
        "NetworkInfo": {
            "MaximumNetworkCards": len(cards),
            "MaximumNetworkInterfaces": sum(card["MaximumNetworkInterfaces"] for card in cards),
            "DefaultNetworkCardIndex": 0,
            "NetworkCards": cards,
            "EfaSupported": bool(have["efa"]),
            "EfaInfo": {"MaximumEfaInterfaces": sum(card["efa"] for card in have["network_cards"])},
            "EnaSupport": "required",
        },
        "InstanceStorageSupported": disks["count"] > 0,
        "InstanceStorageInfo": {
            "TotalSizeInGB": disks["count"] * disks["size_gb"],
            "Disks": [{"Count": disks["count"], "SizeInGB": disks["size_gb"], "Type": "ssd"}],
        },
    }
    if have["accelerator"] == "nvidia":
        out["GpuInfo"] = {"Gpus": [{**device, "Manufacturer": "NVIDIA"}], "TotalGpuMemoryInMiB": total}
    else:
        out["NeuronInfo"] = {"NeuronDevices": [device], "TotalNeuronDeviceMemoryInMiB": total}
    return out
