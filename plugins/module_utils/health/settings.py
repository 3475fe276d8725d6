# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the health checks, /etc/muster/health.json (muster.health/1), and the table of checks.

    {"schema": "muster.health/1", "instance_type": "p5.48xlarge", "units": ["slurmd"], "mounts": ["/fsx"], "disks": ["/"],
     "limits": {"disk_percent": 90}, "allow_not_run": ["clock"],
     "off": [{"check": "swap", "owner": "alice", "until": "2026-12-31", "reason": "..."}],
     "severity": [{"check": "mtu", "severity": "warning", "owner": ..., "until": ..., "reason": ...}], "drain": {...}}

All keys but schema are optional. Without instance_type the node's firmware names it, as EC2's does.
"""

from __future__ import annotations

import datetime
import json
from collections import namedtuple

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.health import efa_checks, gpu_checks, host_checks

SCHEMA = "muster.health/1"
PATH = "/etc/muster/health.json"
LEVELS = ("prolog", "periodic", "full")
SEVERITIES = ("info", "warning", "drain", "reset", "reboot", "replace")
DRAINING = SEVERITIES[2:]
LIMITS = {
    "disk_percent": 90,
    "memory_available_percent": 5,
    "clock_ms": 50,
    "gpu_celsius": 90,
    "gpu_memory_celsius": 95,
    "gpu_stray_mib": 2048,
    "efa_loopback_mbps": 0,
    "mtu": 8000,
}
DRAIN = {"part": 0.05, "seconds": 3600, "reboots": 2, "reboot": False, "image_nodes": 3, "features": True, "requeue": "reset"}
# From which severity on the jobs of a drained node are requeued.
REQUEUE = (*DRAINING, "never")
KEYS = {
    "schema": str,
    "instance_type": str,
    "units": list,
    "mounts": list,
    "disks": list,
    "limits": dict,
    "allow_not_run": list,
    "off": list,
    "severity": list,
    "xid_severity": dict,
    "drain": dict,
    "mig": bool,
    "container": bool,
    "dcgm_level": int,
    "verdict_seconds": int,
    "image": str,
    "textfile": str,
}
DCGM_SECONDS = {1: 120, 2: 1800, 3: 3600, 4: 10800}

# levels: where it runs. limit: seconds. when: whether a node has what it looks at. container: whether a container can answer.
Check = namedtuple("Check", "name run levels limit severity remedy when container")


class SettingsError(ValueError):
    """The settings cannot be used; the text is one sentence for the user."""


def nvidia(want):
    return bool(want["type"]) and want["type"]["accelerator"] == "nvidia"


def neuron(want):
    return bool(want["type"]) and want["type"]["accelerator"] == "neuron"


def efa(want):
    return bool(want["type"]) and bool(want["type"]["efa"])


def architecture(*names):
    return lambda want: nvidia(want) and want["type"]["gpu_arch"] in names


def linked(want):
    return nvidia(want) and bool(want["type"]["nvlinks"])


def typed(want):
    return bool(want["type"])


def always(_want):
    return True


PERIODIC, FULL, EVERY = ("periodic", "full"), ("full",), LEVELS
GPU_RESET = "Reset the GPU or restart the node; replace the node when it comes back."
GPU_GONE = "Stop and start the instance, or replace it; a reboot keeps the hardware."
ROLE = "Run the configure phase of the role that owns it again, or replace the node."
CHECKS = [
    Check(
        "verdict",
        host_checks.verdict,
        ("prolog",),
        2,
        "drain",
        "Read muster-health --level periodic on the node.",
        lambda want: want["verdict_seconds"] > 0,
        True,
    ),
    Check("gpu_bus", gpu_checks.gpu_bus, EVERY, 5, "replace", GPU_GONE, nvidia, True),
    Check("gpu_count", gpu_checks.gpu_count, EVERY, 25, "reboot", GPU_RESET, nvidia, True),
    Check("gpu_model", gpu_checks.gpu_model, PERIODIC, 25, "drain", "Correct the instance type, or replace the node.", nvidia, True),
    Check("gpu_uniform", gpu_checks.gpu_uniform, PERIODIC, 25, "warning", "Replace the node when its GPUs differ.", nvidia, True),
    Check("gpu_ecc_mode", gpu_checks.gpu_ecc_mode, PERIODIC, 25, "reboot", "Run nvidia-smi -e 1 and restart the node.", nvidia, True),
    Check("gpu_ecc", gpu_checks.gpu_ecc, PERIODIC, 25, "reset", GPU_RESET, nvidia, True),
    Check("gpu_sram", gpu_checks.gpu_sram, PERIODIC, 25, "replace", GPU_GONE, architecture("hopper", "blackwell"), True),
    Check("gpu_remapped_rows", gpu_checks.gpu_remapped_rows, PERIODIC, 25, "reset", GPU_RESET, architecture(*gpu_checks.REMAPPING), True),
    Check("gpu_retired_pages", gpu_checks.gpu_retired_pages, PERIODIC, 25, "reset", GPU_RESET, architecture("volta", "turing"), True),
    Check("gpu_pcie", gpu_checks.gpu_pcie, PERIODIC, 25, "reset", GPU_GONE, nvidia, True),
    Check(
        "gpu_throttle",
        gpu_checks.gpu_throttle,
        PERIODIC,
        25,
        "drain",
        "Let the node cool down; replace it when it slows down again.",
        nvidia,
        True,
    ),
    Check(
        "gpu_temperature",
        gpu_checks.gpu_temperature,
        PERIODIC,
        25,
        "drain",
        "Let the node cool down; replace it when it is hot again.",
        nvidia,
        True,
    ),
    Check("gpu_persistence", gpu_checks.gpu_persistence, PERIODIC, 25, "warning", "Start nvidia-persistenced.", nvidia, True),
    Check(
        "gpu_mig",
        gpu_checks.gpu_mig,
        PERIODIC,
        25,
        "drain",
        "Run nvidia-smi -mig 0, or say node_health_mig.",
        architecture("ampere", "hopper", "blackwell"),
        True,
    ),
    Check(
        "gpu_recovery",
        gpu_checks.gpu_recovery,
        PERIODIC,
        25,
        "reset",
        "Do what the driver asks for.",
        architecture("hopper", "blackwell"),
        True,
    ),
    Check("gpu_strays", gpu_checks.gpu_strays, PERIODIC, 25, "drain", "End the processes that nvidia-smi shows.", nvidia, True),
    Check(
        "nvlink", gpu_checks.nvlink, PERIODIC, 25, "reset", "Look for XID 74 and SXid; reset the GPUs or replace the node.", linked, True
    ),
    Check(
        "nvlink_errors",
        gpu_checks.nvlink_errors,
        PERIODIC,
        25,
        "warning",
        "Watch the link; replace the node when it grows on.",
        linked,
        True,
    ),
    Check(
        "fabric_state",
        gpu_checks.fabric_state,
        PERIODIC,
        25,
        "reboot",
        "Look at nvidia-fabricmanager or nvidia-imex.",
        lambda want: linked(want) and want["type"]["gpu_arch"] in ("hopper", "blackwell"),
        True,
    ),
    Check(
        "fabric_manager",
        gpu_checks.fabric_manager,
        PERIODIC,
        10,
        "drain",
        "Start nvidia-fabricmanager, of the driver's version.",
        lambda want: nvidia(want) and want["type"]["nvswitch"],
        True,
    ),
    Check("xid", gpu_checks.xid, EVERY, 5, "drain", "Do what docs/health.md says of the code.", nvidia, True),
    Check("sxid", gpu_checks.sxid, PERIODIC, 5, "reset", "Restart the node; replace it when it comes back.", linked, True),
    Check(
        "nccl_crash",
        gpu_checks.nccl_crash,
        PERIODIC,
        5,
        "warning",
        "Look at the job that ran; compare its NCCL with the stack.",
        nvidia,
        True,
    ),
    Check("dcgm", gpu_checks.dcgm, FULL, 10860, "drain", "Do what DCGM says of the test.", nvidia, True),
    Check(
        "gdrcopy",
        efa_checks.gdrcopy,
        FULL,
        60,
        "drain",
        "Load gdrdrv; run role gdrcopy again.",
        lambda want: nvidia(want) and efa(want) and want["type"]["gpudirect_rdma"],
        True,
    ),
    Check(
        "efa_count",
        efa_checks.efa_count,
        EVERY,
        5,
        "replace",
        "Compare the launch template's interfaces; stop and start the instance.",
        efa,
        True,
    ),
    Check("efa_ports", efa_checks.efa_ports, PERIODIC, 5, "drain", "Look for efa in the kernel's log.", efa, True),
    Check("efa_modules", efa_checks.efa_modules, PERIODIC, 5, "drain", "Load the module efa; run role efa again.", efa, True),
    Check("efa_provider", efa_checks.efa_provider, EVERY, 25, "drain", "Run fi_info -p efa on the node; see role efa.", efa, True),
    Check(
        "efa_plugin",
        efa_checks.efa_plugin,
        EVERY,
        5,
        "drain",
        "Run role aws_ofi_nccl again.",
        lambda want: nvidia(want) and efa(want),
        True,
    ),
    Check(
        "efa_counters",
        efa_checks.efa_counters,
        PERIODIC,
        10,
        "drain",
        "Look at the peers of the node; replace it when they are well.",
        efa,
        True,
    ),
    Check("efa_memlock", efa_checks.efa_memlock, ("prolog",), 2, "drain", "Give slurmd LimitMEMLOCK=infinity.", efa, False),
    Check("efa_loopback", efa_checks.efa_loopback, FULL, 1200, "drain", "Look for efa in the kernel's log.", efa, True),
    Check("neuron_count", efa_checks.neuron_count, EVERY, 5, "replace", GPU_GONE, neuron, True),
    Check("memory_size", host_checks.memory_size, PERIODIC, 2, "replace", "Stop and start the instance, or replace it.", typed, False),
    Check(
        "memory_available",
        host_checks.memory_available,
        PERIODIC,
        2,
        "drain",
        "End what the last job left; restart the node.",
        always,
        True,
    ),
    Check("swap", host_checks.swap, PERIODIC, 2, "warning", "Run swapoff -a.", always, False),
    Check("out_of_memory", host_checks.out_of_memory, PERIODIC, 5, "warning", "Look at the job that ran.", always, False),
    Check(
        "disk_space", host_checks.disk_space, PERIODIC, 5, "drain", "Free space on the file system.", lambda want: bool(want["disks"]), True
    ),
    Check(
        "disk_inodes",
        host_checks.disk_inodes,
        PERIODIC,
        5,
        "drain",
        "Remove files from the file system.",
        lambda want: bool(want["disks"]),
        True,
    ),
    Check(
        "read_only",
        host_checks.read_only,
        PERIODIC,
        5,
        "replace",
        "Look at the kernel's log; replace the disk or the node.",
        lambda want: bool(want["disks"]),
        True,
    ),
    Check("mounts", host_checks.mounts, PERIODIC, 60, "drain", "Mount it again; look at its server.", always, True),
    Check("clock", host_checks.clock, PERIODIC, 10, "drain", "Run chronyc sources on the node.", always, False),
    Check("clock_source", host_checks.clock_source, PERIODIC, 2, "warning", "Boot with clocksource=tsc.", always, False),
    Check("cpus", host_checks.cpus, PERIODIC, 2, "drain", "Stop and start the instance.", typed, False),
    Check("governor", host_checks.governor, PERIODIC, 5, "warning", "Set the governor performance.", always, False),
    Check("kernel", host_checks.kernel, PERIODIC, 10, "reboot", "Restart the node.", always, False),
    Check("stuck_processes", host_checks.stuck_processes, PERIODIC, 10, "warning", "Look at the file systems and the disks.", always, True),
    Check("units", host_checks.units, PERIODIC, 10, "drain", "Start the daemon; read its journal.", lambda want: bool(want["units"]), True),
    Check("drift", host_checks.drift, PERIODIC, 30, "drain", ROLE, always, True),
    Check("raid", host_checks.raid, PERIODIC, 5, "drain", "Replace the node; its local disks go with it.", always, False),
    Check("mtu", host_checks.mtu, PERIODIC, 5, "warning", "Set the MTU to 9001.", efa, False),
]
NAMES = [check.name for check in CHECKS]


def read(text, now, path=PATH):
    """The settings of a text: (want, notes). `now` is a date. SettingsError names what is wrong and the remedy."""
    try:
        given = json.loads(text) if text.strip() else {"schema": SCHEMA}
    except ValueError as error:
        raise SettingsError("%s is not JSON (%s); run the configure phase of role node_health again." % (path, error)) from error
    if not isinstance(given, dict) or given.get("schema") != SCHEMA:
        raise SettingsError("%s is not of schema %s; run the configure phase of role node_health again." % (path, SCHEMA))
    for key, value in given.items():
        if key not in KEYS:
            raise SettingsError("%s has the unknown key %s; %s" % (path, key, nearest(key, KEYS)))
        if not isinstance(value, KEYS[key]) or (KEYS[key] is int and isinstance(value, bool)):
            raise SettingsError("%s: %s is not of type %s." % (path, key, KEYS[key].__name__))
    for key, known in (("limits", LIMITS), ("drain", DRAIN)):
        for name, value in given.get(key, {}).items():
            if name not in known:
                raise SettingsError("%s: %s has the unknown key %s; %s" % (path, key, name, nearest(name, known)))
            if (key, name) == ("drain", "requeue"):
                if value not in REQUEUE:
                    raise SettingsError("%s: drain.requeue %s is none of %s." % (path, value, ", ".join(REQUEUE)))
            elif not isinstance(value, (int, float)) or value < 0:
                raise SettingsError("%s: %s.%s is not a number of at least 0." % (path, key, name))
    for name in given.get("allow_not_run", []):
        if name not in NAMES:
            raise SettingsError("%s: allow_not_run names the check %s, which does not exist; %s" % (path, name, nearest(name, NAMES)))
    for code, severity in given.get("xid_severity", {}).items():
        if not code.isdigit() or severity not in SEVERITIES:
            raise SettingsError("%s: xid_severity has %s: %s; write a code and one of %s." % (path, code, severity, ", ".join(SEVERITIES)))
    notes: list = []
    want = {
        "units": given.get("units", []),
        "mounts": given.get("mounts", []),
        "disks": given.get("disks", ["/"]),
        "limits": {**LIMITS, **given.get("limits", {})},
        "allow_not_run": given.get("allow_not_run", []),
        "xid_severity": given.get("xid_severity", {}),
        "drain": {**DRAIN, **given.get("drain", {})},
        "mig": given.get("mig", False),
        "container": given.get("container", False),
        "dcgm_level": given.get("dcgm_level", 2),
        "verdict_seconds": given.get("verdict_seconds", 0),
        "image": given.get("image", ""),
        "textfile": given.get("textfile", ""),
        "off": overrides(given.get("off", []), "off", now, notes, path),
        "severity": overrides(given.get("severity", []), "severity", now, notes, path),
        "instance_type": given.get("instance_type", ""),
    }
    if want["dcgm_level"] not in DCGM_SECONDS:
        raise SettingsError("%s: dcgm_level %s is none of 1, 2, 3 and 4." % (path, want["dcgm_level"]))
    want["dcgm_seconds"] = DCGM_SECONDS[want["dcgm_level"]]
    return want, notes


def overrides(rows, key, now, notes, path):
    """{check: row} of those that are in force. Each needs an owner and a day on which it ends, so that nothing stays off for ever."""
    out = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("check") not in NAMES:
            name = row.get("check") if isinstance(row, dict) else row
            raise SettingsError("%s: %s names the check %s, which does not exist; %s" % (path, key, name, nearest(name, NAMES)))
        lacking = [each for each in ("owner", "until", *(("severity",) if key == "severity" else ())) if not row.get(each)]
        if lacking:
            raise SettingsError("%s: the entry of %s in %s has no %s; give one." % (path, row["check"], key, lacking[0]))
        if key == "severity" and row["severity"] not in SEVERITIES:
            raise SettingsError(
                "%s: %s is no severity of %s; take one of %s." % (path, row["severity"], row["check"], ", ".join(SEVERITIES))
            )
        try:
            until = datetime.datetime.strptime(str(row["until"]), "%Y-%m-%d").date()
        except ValueError:
            raise SettingsError("%s: %s of %s is no day; write until as 2026-12-31." % (path, row["until"], row["check"])) from None
        if until < now:
            notes.append(
                "the entry of %s in %s ended on %s and no longer counts; its owner is %s" % (row["check"], key, until, row["owner"])
            )
        else:
            out[row["check"]] = row
    return out


def with_type(want, firmware):
    """The settings with the catalogue's entry of the node's type, or None. firmware: what the node's firmware calls itself."""
    name = want["instance_type"] or (firmware if firmware in catalogue.names() else "")
    try:
        kind = catalogue.instance_type(name) if name else None
    except catalogue.CatalogueError as error:
        if catalogue.described(name):
            raise SettingsError("%s: %s" % (PATH, error)) from error
        kind = None  # the catalogue has only types with accelerators
    return {**want, "type": kind, "instance_type": name}
