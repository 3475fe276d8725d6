# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The errors that NVIDIA's driver writes to the kernel's log: XIDs of GPUs and SXids of NVSwitches, as data with one severity map.

The buckets are those of NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, driver branch 590), the fatal ones also those of
aws/eks-node-monitoring-agent at 51af549. docs/health.md says how to change the severity of one code.
"""

from __future__ import annotations

import re

VERSION = "NVIDIA XID catalogue r590, aws/eks-node-monitoring-agent 51af549"

# What the codes of a bucket ask for -> the severity of a node that has one.
SEVERITY = {
    "restart_app": "info",
    "ignore": "info",
    "unknown": "warning",
    "power_smoothing": "warning",
    "update_software": "warning",
    "check_uvm": "warning",
    "watch_memory": "warning",
    "nvlink": "reset",
    "memory_workflow": "reset",
    "reset_gpu": "reset",
    "restart_node": "reboot",
    "remap_failed": "replace",
    "check_mechanics": "replace",
    "contact_support": "replace",
}
BUCKETS = {
    "restart_app": "8 11 13 25 31 32 39-41 45 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    "ignore": "37 38 43 44 66 67 92 93 106 107 121 137 141 152 153 157 160 161",
    "watch_memory": "63 168",
    "reset_gpu": "46 62 95 109 110 119 120 136 140 143 155 156 158 171 172",
    "memory_workflow": "48",
    "nvlink": "74",
    "remap_failed": "64",
    "restart_node": "79 151",
    "check_mechanics": "54",
    "update_software": "78",
    "contact_support": "142",
    "check_uvm": "159",
    "power_smoothing": "162-165",
}
MEANING = {
    13: "a program's fault in a graphics or compute engine",
    31: "a program's access to memory that it does not have",
    43: "the driver reset a channel after a program's fault",
    45: "the driver cleaned up after a program that ended",
    46: "the GPU stopped processing",
    48: "an ECC error of two bits",
    54: "a power cable or auxiliary power is not connected",
    62: "a microcontroller of the GPU halted",
    63: "rows of GPU memory were remapped or retired",
    64: "a row of GPU memory could not be remapped or retired",
    74: "an error of NVLink",
    78: "the vGPU software does not fit",
    79: "the GPU has fallen off the bus",
    92: "many ECC errors of one bit",
    94: "a contained memory error",
    95: "an uncontained memory error",
    109: "a context switch took too long",
    110: "a security fault",
    119: "the GPU's system processor did not answer",
    120: "an error of the GPU's system processor",
    121: "a corrected error of the link between CPU and GPU",
    136: "a link of NVLink could not be trained",
    140: "an ECC error that was not corrected",
    142: "a fault of the video engine",
    143: "the GPU could not be initialised",
    151: "the keys of confidential computing could not be rotated",
    154: "the driver asks for a recovery",
    155: "a software error of NVLink",
    156: "a resource of the GPU was retired",
    158: "a fatal time-out of the GPU",
    159: "an error of unified memory",
    168: "the GPU has less memory than before",
    171: "an ECC error in DRAM that was not corrected",
    172: "an ECC error in SRAM that was not corrected",
}
# XID 154 says itself what to do.
RECOVERY = (
    ("node reboot required", "reboot"),
    ("drain and reset", "reset"),
    ("drain p2p", "reset"),
    ("gpu reset required", "reset"),
    ("none", "info"),
)
# The blocks of NVLink 5; their lines carry a severity of their own.
NVLINK5 = range(144, 151)

SXID_FATAL = "10003 12020 22003 22011 23001-23017"
SXID_MAY_BE_FATAL = """
    10001 10002 10004 10005 11001 11009 11013 11018-11020 12001 12002 12022 12024-12027 12030-12032 14017 15001 15006 15009 15010 15012
    15013 19047 19048 19054 19056 19058 19060 19061 19063 19064 19066 19067 19069 19070 20034 22012 24004-24007
"""
SXID_HARMLESS = """
    11004 11012 11021-11023 12021 12023 12028 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 19084 20001 20009 20012 22013
    24001-24003
"""

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
SXID = re.compile(r"nvidia-nvswitch(\d+): SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")


def codes(text):
    """`8 39-41` -> {8, 39, 40, 41}."""
    found = set()
    for part in text.split():
        first, _dash, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


BUCKET_OF = {code: bucket for bucket, text in BUCKETS.items() for code in codes(text)}
FATAL, MAY_BE_FATAL, HARMLESS = codes(SXID_FATAL), codes(SXID_MAY_BE_FATAL), codes(SXID_HARMLESS)


def severity_of(code, text="", own=None):
    """The severity of an XID. own: {code as text: severity} of the site."""
    if own and str(code) in own:
        return own[str(code)]
    low = text.lower()
    if code == 154:
        now = low.rpartition(" to ")[2]  # from 0x0 (None) to 0x2 (Node Reboot Required)
        return next((severity for words, severity in RECOVERY if words in now), "reset")
    if code in NVLINK5:
        return "reset" if re.search(r"\bfatal\b", low.replace("non-fatal", "")) else "warning"
    return SEVERITY[BUCKET_OF.get(code, "unknown")]


def switch_severity(code, text=""):
    """The severity of an SXid. The line says Fatal or Non-fatal since driver 450; the table decides where it does not."""
    low = text.lower()
    if code in FATAL or re.match(r"fatal\b", low):
        return "reset"
    if re.match(r"non-?fatal\b", low) or code in HARMLESS:
        return "info"
    return "warning"


def parse(lines):
    """Lines of the kernel's log -> ([{bus, code, text}] of GPUs, the same of switches)."""
    gpus, switches = [], []
    for line in lines:
        found = XID.search(line)
        if found:
            gpus.append({"bus": found[1], "code": int(found[2]), "text": (found[3] or "").strip()})
        found = SXID.search(line)
        if found:
            switches.append({"bus": found[2], "code": int(found[3]), "text": (found[4] or "").strip()})
    return gpus, switches


def describe(event, kind="XID"):
    """One event as words: `XID 79 of 0000:53:00 (the GPU has fallen off the bus)`."""
    meaning = MEANING.get(event["code"], "") if kind == "XID" else event["text"][:60]
    if event["code"] == 154:
        meaning = event["text"] or meaning
    return "%s %d of %s%s" % (kind, event["code"], event["bus"], " (%s)" % meaning if meaning else "")
