# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What EFA devices a host has: sysfs, `fi_info` and the installer's record read, and compared with the catalogue."""

from __future__ import annotations

import os
import re

from ansible_collections.muster.fleet.plugins.module_utils.gpu import read

VENDOR = "0x1d0f"
RECORD = "opt/amazon/efa_installed_packages"


def mac_of(gid):
    """The MAC address in a link-local GID (EUI-64), empty for another one."""
    parts = gid.lower().split(":")
    if len(parts) != 8 or parts[0] != "fe80":
        return ""
    low = "".join(part.zfill(4) for part in parts[4:])
    if low[6:10] != "fffe":
        return ""
    octets = [low[place : place + 2] for place in (0, 2, 4, 10, 12, 14)]
    octets[0] = "%02x" % (int(octets[0], 16) ^ 2)
    return ":".join(octets)


def devices(root="/"):
    """The EFA devices in sysfs. Other devices of InfiniBand, as those of an NVLink subnet, are none."""
    folder = os.path.join(root, "sys/class/infiniband")
    out = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        at = os.path.join(folder, name)
        device = read(os.path.join(at, "device/device"))
        # The device's number is not the generation that AWS counts.
        if read(os.path.join(at, "device/vendor")) != VENDOR or not device.startswith("0xefa"):
            continue
        state = read(os.path.join(at, "ports/1/state"))
        out.append(
            {
                "name": name,
                "device": device,
                "bus": os.path.basename(os.path.realpath(os.path.join(at, "device"))),
                "state": state.split(":", 1)[-1].strip(),
                "mac": mac_of(read(os.path.join(at, "ports/1/gids/0"))),
                "p2p": read(os.path.join(at, "device/p2p")),
                "card": None,
            }
        )
    return out


def with_cards(found, cards):
    """The devices with their network card. cards: {MAC address: index}, from the instance's metadata."""
    return [{**device, "card": cards.get(device["mac"])} for device in found]


def parse_fi_info(text):
    """`fi_info -p efa` -> [{provider, fabric, domain, version, type, protocol}]."""
    out: list = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == "provider":
            out.append({})
        if colon and out:
            out[-1][key.strip()] = value.strip()
    return [each for each in out if each.get("provider", "").startswith("efa")]


def domains(infos):
    """Names of the devices that libfabric offers for reliable datagrams, without the end that says so."""
    return sorted({re.sub(r"-(rdm|dgrm|direct)$", "", each.get("domain", "")) for each in infos if each.get("type") == "FI_EP_RDM"})


def versions(root="/", fi_info=""):
    """{driver, installer, libfabric}, each empty where there is none. fi_info: what `fi_info --version` printed."""
    installer = re.search(r"EFA installer version:\s*([\d.]+)", read(os.path.join(root, RECORD)))
    libfabric = re.search(r"^libfabric:\s*(\S+)", fi_info, re.MULTILINE)
    return {
        "driver": read(os.path.join(root, "sys/module/efa/version")),
        "installer": installer.group(1) if installer else "",
        "libfabric": libfabric.group(1) if libfabric else "",
    }


def facts(found, infos, have_versions):
    """One dictionary of all that was found. infos: what parse_fi_info gave, None where fi_info did not run."""
    return {
        "count": len(found),
        "devices": found,
        "provider": (infos[0]["provider"] if infos else ""),
        "fabrics": sorted({each.get("fabric", "") for each in infos or []}),
        "domains": domains(infos or []),
        "versions": have_versions,
    }


def problems(found, have=None):
    """What is wrong, one sentence each with what was expected and what was found. have: the type from the catalogue, None if not said."""
    out = []
    names = [device["name"] for device in found["devices"]]
    if have and found["count"] != have["efa_cards"]:
        message = "Expected %d EFA devices of %s and found %d; compare the launch template's interfaces with ec2_interfaces."
        out.append(message % (have["efa_cards"], have["name"], found["count"]))
    cards = [device["card"] for device in found["devices"] if device["card"] is not None]
    if have and cards and len(cards) == found["count"]:
        missing = sorted({each["card"] for each in have["interfaces"] if each["type"] == "efa-only"} - set(cards))
        if missing and found["count"] < have["efa_cards"]:
            message = "Expected EFA on the network cards of %s and found none on %s."
            out.append(message % (have["name"], ", ".join(map(str, missing))))
    idle = [device for device in found["devices"] if device["state"] != "ACTIVE"]
    if idle:
        message = "Expected every EFA port ACTIVE and found %s %s; look for efa in the kernel's log."
        out.append(message % (idle[0]["name"], idle[0]["state"] or "without a state"))
    lacking = sorted(set(names) - set(found["domains"]))
    if lacking and not found["provider"]:
        out.append("Expected libfabric's provider efa for %d device(s) and fi_info gave none; see role efa." % len(names))
    elif lacking:
        out.append("Expected libfabric to offer every EFA device and found none for %s; see role efa." % ", ".join(lacking))
    return out
