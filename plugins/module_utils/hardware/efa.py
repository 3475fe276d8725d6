# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The EFA devices of a host, read from sysfs, `fi_info` and the installer's record, and compared with the catalogue."""

from __future__ import annotations

import os
import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_attribute

VENDOR = "0x1d0f"
RECORD = "opt/amazon/efa_installed_packages"


def mac_of(gid):
    """The MAC address in a link-local GID (EUI-64), "" for another GID."""
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
    """The EFA devices in sysfs, without other InfiniBand devices such as those of an NVLink subnet."""
    folder = os.path.join(root, "sys/class/infiniband")
    out = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        at = os.path.join(folder, name)
        device = read_attribute(os.path.join(at, "device/device"))
        # The number in the device id is not AWS's generation of EFA.
        if read_attribute(os.path.join(at, "device/vendor")) != VENDOR or not device.startswith("0xefa"):
            continue
        state = read_attribute(os.path.join(at, "ports/1/state"))
        out.append(
            {
                "name": name,
                "device": device,
                "bus": os.path.basename(os.path.realpath(os.path.join(at, "device"))),
                "state": state.split(":", 1)[-1].strip(),
                "mac": mac_of(read_attribute(os.path.join(at, "ports/1/gids/0"))),
                "p2p": read_attribute(os.path.join(at, "device/p2p")),
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
    """Names of the devices that libfabric offers for reliable datagrams, without the suffix that says so."""
    return sorted({re.sub(r"-(rdm|dgrm|direct)$", "", each.get("domain", "")) for each in infos if each.get("type") == "FI_EP_RDM"})


def versions(root="/", fi_info=""):
    """{driver, installer, libfabric}, each "" when it is missing. fi_info: the output of `fi_info --version`."""
    installer = re.search(r"EFA installer version:\s*([\d.]+)", read_attribute(os.path.join(root, RECORD)))
    libfabric = re.search(r"^libfabric:\s*(\S+)", fi_info, re.MULTILINE)
    return {
        "driver": read_attribute(os.path.join(root, "sys/module/efa/version")),
        "installer": installer.group(1) if installer else "",
        "libfabric": libfabric.group(1) if libfabric else "",
    }


def facts(found, infos, have_versions):
    """All findings in one dictionary. infos: the result of parse_fi_info, None when fi_info did not run."""
    return {
        "count": len(found),
        "devices": found,
        "provider": (infos[0]["provider"] if infos else ""),
        "fabrics": sorted({each.get("fabric", "") for each in infos or []}),
        "domains": domains(infos or []),
        "versions": have_versions,
    }


def faults(found, have=None):
    """The faults, each a sentence with what was expected and found. have: the type from the catalogue, or None."""
    out = []
    names = [device["name"] for device in found["devices"]]
    if have and found["count"] not in have["efa_counts"]:
        message = "Expected %s EFA devices of %s and found %d; compare the launch template's interfaces with ec2_interfaces."
        out.append(message % (" or ".join(map(str, have["efa_counts"])), have["name"], found["count"]))
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
