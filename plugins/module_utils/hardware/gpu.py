# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host, read from the PCI bus, `nvidia-smi -q -x` and `nvidia-smi nvlink -s`, and compared with the catalogue."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_attribute
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

VENDOR = "0x10de"
# 3D controllers and VGA; an NVSwitch is a bridge (0x0680) of the same vendor.
GPU_CLASSES = ("0x0302", "0x0300")
# ECC uses a sixteenth of a T4's memory, and the driver uses some.
LEAST_MEMORY = 0.9
NOTHING = ("N/A", "[N/A]", "")


class GpuError(ValueError):
    """The output of nvidia-smi cannot be read; the text is one sentence for the user."""


def on_the_bus(root="/"):
    """The PCI addresses of NVIDIA's GPUs, {address: device id}; this needs no driver."""
    folder = os.path.join(root, "sys/bus/pci/devices")
    found = {}
    for address in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        kind = read_attribute(os.path.join(folder, address, "class"))
        if read_attribute(os.path.join(folder, address, "vendor")) == VENDOR and kind.startswith(GPU_CLASSES):
            found[address] = read_attribute(os.path.join(folder, address, "device"))[2:]
    return found


def text_of(node, path):
    """The text of an element, "" when it is missing or does not apply."""
    text = (node.findtext(path) or "").strip()
    return "" if text in NOTHING else text


def parse_smi(text):
    """`nvidia-smi -q -x` of drivers 515 to 595 (v11 to v13 of the format) -> {driver, cuda, attached, gpus}."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise GpuError("nvidia-smi -q -x printed no XML (%s) but %r; run it by hand on the host." % (error, text.strip()[:120])) from error
    gpus: list = []
    for gpu in root.findall("gpu"):
        memory = re.match(r"\d+", text_of(gpu, "fb_memory_usage/total"))
        name = text_of(gpu, "product_name")
        rows = "remapped_rows/remapped_row_"
        gpus.append(
            {
                "index": len(gpus),
                "name": name,
                "model": catalogue.model_of(name),
                "uuid": text_of(gpu, "uuid"),
                # The driver prints the PCI domain with eight digits, sysfs with four.
                "bus": text_of(gpu, "pci/pci_bus_id").lower()[4:],
                "memory_mib": int(memory.group()) if memory else 0,
                "persistence": text_of(gpu, "persistence_mode"),
                "mig": text_of(gpu, "mig_mode/current_mig"),
                "ecc": text_of(gpu, "ecc_mode/current_ecc"),
                "gsp": text_of(gpu, "gsp_firmware_version"),
                "remap_pending": text_of(gpu, rows + "pending") == "Yes",
                "remap_failure": text_of(gpu, rows + "failure") == "Yes",
                "fabric_state": text_of(gpu, "fabric/state"),
                "fabric_status": text_of(gpu, "fabric/status"),
            }
        )
    attached = text_of(root, "attached_gpus")
    return {
        "driver": text_of(root, "driver_version"),
        "cuda": text_of(root, "cuda_version"),
        "attached": int(attached) if attached.isdigit() else len(gpus),
        "gpus": gpus,
    }


def parse_nvlink(text):
    """`nvidia-smi nvlink -s` -> {GPU index: number of links that are up}; empty when no GPU has links."""
    up: dict = {}
    index = None
    for line in text.splitlines():
        gpu = re.match(r"\s*GPU (\d+):", line)
        if gpu:
            index = int(gpu.group(1))
        link = re.match(r"\s*Link \d+: (.*)", line)
        if link and index is not None:
            rate = re.match(r"([\d.]+) GB/s", link.group(1))
            up[index] = up.get(index, 0) + bool(rate and float(rate.group(1)))
    return up


def facts(bus, smi, nvlink):
    """All findings in one dictionary. smi and nvlink are the results of the parsers, None when the tool did not run."""
    gpus = [{**gpu, "nvlinks": None if nvlink is None else nvlink.get(gpu["index"], 0)} for gpu in (smi or {}).get("gpus", [])]
    return {
        # Without a driver only the bus lists them.
        "count": (smi or {}).get("attached", len(bus)),
        "on_bus": len(bus),
        "bus_devices": sorted(set(bus.values())),
        "driver": (smi or {}).get("driver", ""),
        "cuda": (smi or {}).get("cuda", ""),
        "models": sorted({gpu["model"] or gpu["name"] for gpu in gpus}),
        "gpus": gpus,
    }


def some(gpus):
    """A list of GPUs as `GPU 3` or `GPUs 1, 3`."""
    return ("GPU %s" if len(gpus) == 1 else "GPUs %s") % ", ".join(str(gpu["index"]) for gpu in gpus)


def faults(found, have=None):
    """The faults, each a sentence with what was expected and found. have: the type from the catalogue, or None."""
    out = []
    gpus = found["gpus"]
    if have and have["accelerator"] == "nvidia":
        expected = "%d x %s of %s" % (have["gpus"], have["gpu_model"], have["name"])
        if found["on_bus"] != have["gpus"]:
            out.append("Expected %s on the PCI bus and found %d; stop and start the instance, or replace it." % (expected, found["on_bus"]))
        # With a driver their names tell; AWS may have further devices of a model.
        strange = [] if gpus else [each for each in found["bus_devices"] if each not in have["gpu_pci"]]
        if strange:
            message = "Expected %s on the PCI bus and found the device 10de:%s; correct the instance type."
            out.append(message % (expected, strange[0]))
        others = [gpu for gpu in gpus if gpu["model"] != have["gpu_model"]]
        if others:
            out.append("Expected %s and found %s (%s); correct the instance type." % (expected, others[0]["name"], some(others)))
        small = [gpu for gpu in gpus if gpu["memory_mib"] < LEAST_MEMORY * have["gpu_memory_mib"] and gpu not in others]
        if small:
            message = "Expected %d MiB of memory on each GPU and found %d MiB (%s); replace the instance."
            out.append(message % (have["gpu_memory_mib"], small[0]["memory_mib"], some(small)))
        down = [gpu for gpu in gpus if gpu["nvlinks"] is not None and gpu["nvlinks"] < have["nvlinks"]]
        if down:
            message = "Expected %d NVLinks up on each GPU and found %d (%s); look for XID 74 and SXid in the kernel's log."
            out.append(message % (have["nvlinks"], down[0]["nvlinks"], some(down)))
        split = [gpu for gpu in gpus if gpu["mig"] == "Enabled"]
        if split and have["nvlink_domain"] > have["gpus"]:
            message = "Expected MIG off on %s, whose NVLink joins several hosts, and found it on (%s); run nvidia-smi -mig 0."
            out.append(message % (have["name"], some(split)))
        # Ampere reports N/A also while its fabric manager works.
        if have["nvlinks"] and have["gpu_arch"] in ("hopper", "blackwell"):
            remedy = "nvidia-fabricmanager" if have["nvswitch"] else "nvidia-imex"
            bad = [gpu for gpu in gpus if (gpu["fabric_state"], gpu["fabric_status"]) != ("Completed", "Success")]
            if bad:
                said = "%s, %s" % (bad[0]["fabric_state"] or "N/A", bad[0]["fabric_status"] or "N/A")
                out.append("Expected the NVLink fabric Completed, Success and found %s (%s); see the unit %s." % (said, some(bad), remedy))
    elif have and found["on_bus"]:
        out.append("Expected no GPU of NVIDIA on %s and found %d; correct the instance type." % (have["name"], found["on_bus"]))
    if found["on_bus"] and not found["driver"]:
        out.append("Expected a driver for %d GPU(s) on the PCI bus and nvidia-smi gave none; see role nvidia_driver." % found["on_bus"])
    elif found["driver"] and found["count"] < found["on_bus"]:
        message = "Expected the driver to have all %d GPUs of the PCI bus and found %d; look for XID 79 in the kernel's log."
        out.append(message % (found["on_bus"], found["count"]))
    for key, what in (("remap_pending", "pending; restart the node"), ("remap_failure", "failed; replace the instance")):
        bad = [gpu for gpu in gpus if gpu[key]]
        if bad:
            out.append("Expected no row remapping of GPU memory and found one of %s %s." % (some(bad), what))
    return out
