# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives a node the devices, /sys and /proc/driver of the type that it rehearses, and its programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import uuid

from .node import (
    DOCUMENT,
    FAULTS,
    SELF,
    Refused,
    check_faults,
    device_files,
    having,
    known_faults,
    known_versions,
    own,
    read_json,
    say,
    the_document,
)

HOME = "/usr/local/lib/muster-rehearsal"
LAYERS = "/run/muster-rehearsal"
EFA_DRIVER = "3.1.0"
XIDS = {48: "DBE (double bit error) ECC error", 63: "Row remapper event", 74: "NVLINK error", 79: "GPU has fallen off the bus."}
DEVICE_COUNTERS = """
    submitted_cmds completed_cmds cmds_err no_completion_cmds keep_alive_rcvd alloc_pd_err create_qp_err create_cq_err reg_mr_err
    alloc_ucontext_err create_ah_err mmap_err
"""
PORT_COUNTERS = """
    tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs rdma_read_bytes rdma_read_wr_err
    rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_wr_err rdma_write_recv_bytes retrans_bytes retrans_pkts
    retrans_timeout_events unresponsive_remote_events impaired_remote_conn_events
"""


def mac_of(name):
    """A hardware address that belongs to this host and a device."""
    octets = bytearray(uuid.uuid5(uuid.NAMESPACE_DNS, "%s/%s" % (socket.gethostname(), name)).bytes[:6])
    octets[0] = octets[0] & 0xFC | 2
    return octets


def gid_of(mac):
    """The link-local address of a hardware address, as sysfs prints a GID."""
    long = bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:]])
    return "fe80:0000:0000:0000:" + ":".join(long[at : at + 2].hex() for at in (0, 2, 4, 6))


def sys_files(document, faults, versions):
    """({path below /sys: text}, {path below /sys: target of the link}) of what the type adds to /sys."""
    files: dict = {}
    links: dict = {}

    def pci(bus, vendor, device, kind, node=0, **more):
        at = "bus/pci/devices/%s/" % bus
        for key, text in {"vendor": vendor, "device": device, "class": kind, "numa_node": node, **more}.items():
            files[at + key] = "%s\n" % text

    gone = having(faults, "gpu_missing")
    lanes = {"current_link_width": 16, "max_link_width": 16, "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    for gpu in document["gpus"]:
        if gpu["index"] not in gone:
            pci(gpu["bus"], "0x10de", "0x" + document["hardware"]["gpu_pci"][0], "0x030200", gpu["numa"], **lanes)
    for each in document["switches"]:
        pci(each["bus"], "0x10de", "0x" + each["device"], "0x068000")
    gone = having(faults, "neuron_missing")
    for each in document["neuron"]:
        if each["index"] not in gone:
            pci(each["bus"], "0x1d0f", "0x7164", "0x120000", each["numa"])
            at = "class/neuron_device/neuron%d/" % each["index"]
            files[at + "core_count"] = "%d\n" % (document["hardware"]["neuron_cores"] // len(document["neuron"]))
            files[at + "info/architecture/instance_type"] = document["instance_type"] + "\n"
    gone, down = having(faults, "efa_missing"), having(faults, "efa_down")
    for each in document["efa"]:
        if each["index"] not in gone:
            pci(each["bus"], "0x1d0f", "0x" + each["device"], "0x020000", each["numa"], p2p="NVIDIA" if document["gpus"] else "NEURON")
            infiniband(files, links, each, each["index"], "1: DOWN" if each["index"] in down else "4: ACTIVE")
    for index, each in enumerate(document["switch_ports"]):
        pci(each["bus"], "0x15b3", "0x1021", "0x020700")
        infiniband(files, links, each, len(document["efa"]) + index, "4: ACTIVE")
        files["class/infiniband_mad/umad%d/ibdev" % index] = each["name"] + "\n"
    if document["gpus"]:
        for module in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
            files["module/%s/version" % module] = versions["nvidia_driver"] + "\n"
    if document["neuron"]:
        files["module/neuron/version"] = versions["neuron"] + "\n"
    if document["efa"]:
        files["module/efa/version"] = EFA_DRIVER + "\n"
    for module in ("ib_core", "ib_uverbs") if document["efa"] else ():
        files["module/%s/refcnt" % module] = "%d\n" % len(document["efa"])
    return files, links


def infiniband(files, links, device, number, state):
    """Add an InfiniBand device to what sys_files gives."""
    at, mac = "class/infiniband/%s/" % device["name"], mac_of(device["name"])
    guid = ":".join(part.hex() for part in (bytes([0, 0]), mac[:2], mac[2:4], mac[4:]))
    rate = "%d Gb/sec" % device["gbps"]
    port = {
        "state": state,
        "phys_state": "3: Disabled" if "DOWN" in state else "5: LinkUp",
        "rate": rate,
        "lid": "0x0",
        "link_layer": "Unspecified",
    }
    for key, text in {"node_guid": guid, "node_type": "7: unspecified", "fw_ver": "0.0.0.0"}.items():
        files[at + key] = text + "\n"
    for key, text in {**port, "gids/0": gid_of(mac), "pkeys/0": "0xffff"}.items():
        files[at + "ports/1/" + key] = text + "\n"
    for folder, counters in (("hw_counters/", DEVICE_COUNTERS), ("ports/1/hw_counters/", PORT_COUNTERS)):
        files.update({at + folder + counter: "0\n" for counter in counters.split()})
    files["class/infiniband_verbs/uverbs%d/ibdev" % number] = device["name"] + "\n"
    files["class/infiniband_verbs/uverbs%d/abi_version" % number] = "1\n"
    for link in (at, "class/infiniband_verbs/uverbs%d/" % number):
        links[link + "device"] = "/sys/bus/pci/devices/" + device["bus"]


def driver_name(document, versions):
    """What the kernel's driver calls itself."""
    machine = "x86_64" if document["hardware"]["arch"] == "x86_64" else "aarch64"
    return "NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (rehearsal)\n" % (machine, versions["nvidia_driver"])


def proc_files(document, versions):
    """{path below /proc/driver: text} of what the driver adds there."""
    return {"nvidia/version": "NVRM version: " + driver_name(document, versions)} if document["gpus"] else {}


def kernel_log(document, faults, versions):
    """The node's kernel log, in the form of /dev/kmsg. That of a node that runs is never empty."""
    head = "5,0,0,-;Linux version (rehearsal)\n"
    loaded = "3,1,1000,-;NVRM: loading " + driver_name(document, versions) if document["gpus"] else ""
    return head + loaded + xid_lines(document, faults)


def xid_lines(document, faults):
    """The lines of the kernel's log that the faults leave."""
    found = [
        (each["index"], 79 if each["fault"] == "gpu_lost" else each["code"]) for each in own(faults) if each["fault"] in ("xid", "gpu_lost")
    ]
    form = "4,%d,%d,-;NVRM: Xid (PCI:%s): %d, pid=<unknown>, name=<unknown>, %s\n"
    return "".join(
        form % (number, number * 1000, document["gpus"][index]["bus"][:-2], code, XIDS.get(code, "(rehearsal)"))
        for number, (index, code) in enumerate(found, 2)
    )


def apply(document, faults):
    """Give the node what the type has and the faults leave. Everything is in the node's own /dev, /run and mount namespace."""
    unmount()
    shutil.rmtree(LAYERS, ignore_errors=True)
    versions = known_versions()
    files, links = sys_files(document, faults, versions)
    write({os.path.join(LAYERS, "sys", path): text for path, text in files.items()})
    write({os.path.join(LAYERS, "proc", path): text for path, text in proc_files(document, versions).items()})
    write({os.path.join(LAYERS, "kmsg"): kernel_log(document, faults, versions)})
    for path, target in links.items():
        os.symlink(target, os.path.join(LAYERS, "sys", path))
    # The machine's own devices of these kinds are not the type's, so an opaque folder hides them.
    for path in ("bus/pci/devices", "class/infiniband", "class/infiniband_verbs"):
        folder = os.path.join(LAYERS, "sys", path)
        os.makedirs(folder, exist_ok=True)
        os.setxattr(folder, "trusted.overlay.opaque", b"y")
    for name in sorted(os.listdir(os.path.join(LAYERS, "sys"))):
        must("mount", "-t", "overlay", SELF, "-o", "ro,lowerdir=%s/sys/%s:/sys/%s" % (LAYERS, name, name), "/sys/" + name)
    if os.path.isdir(os.path.join(LAYERS, "proc")):
        must("mount", "--bind", os.path.join(LAYERS, "proc"), "/proc/driver")
    if os.path.exists("/dev/kmsg"):
        must("mount", "--bind", os.path.join(LAYERS, "kmsg"), "/dev/kmsg")
    remove_devices()
    for path, major, minor in device_files(document, faults):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(path, 0o666)


def unmount():
    """Undo the mounts of an earlier run."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        rows = [line.split() for line in file]
    for row in reversed(rows):
        source = row[row.index("-") + 2]
        # A file bound from /run shows its path there as the root of the mount.
        if source == SELF or row[3].endswith(("/muster-rehearsal/proc", "/muster-rehearsal/kmsg")):
            must("umount", "--lazy", row[4])


def remove_devices():
    """Remove device files of these kinds from the node's /dev, also those that the engine took from this machine."""
    for name in os.listdir("/dev"):
        if re.fullmatch(r"nvidia.*|neuron\d+", name):
            path = os.path.join("/dev", name)
            (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
    shutil.rmtree("/dev/infiniband", ignore_errors=True)


def install(document):
    """Put the document and the programs where the stand-ins look and a shell finds them."""
    program = os.path.join(HOME, "stand-in")
    os.makedirs(HOME, exist_ok=True)
    if os.path.realpath(sys.argv[0]) != program:
        shutil.copy(sys.argv[0], program)
        os.chmod(program, 0o755)
    write({DOCUMENT: json.dumps(document, indent=1) + "\n"})
    for name in [SELF, *document["stand_ins"]]:
        path = os.path.join("/usr/local/bin", name)
        if os.path.lexists(path):
            os.remove(path)
        os.symlink(program, path)


def write(files):
    """Write texts by path."""
    for path, text in files.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def must(*argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode:
        raise Refused("The node cannot rehearse its type, because %s failed: %s." % (" ".join(argv), done.stdout.strip()))


def manage(args):
    """`muster-rehearsal boot FOLDER` at the start of the node, `faults [HOST] JSON` to replace the faults of a host, `apply`, `show`."""
    what, rest = (args or ["show"])[0], args[1:]
    if what == "boot" and len(rest) == 1:
        document = read_json(os.path.join(rest[0], "rehearsal.json"), None)
        install(document)
        apply(document, known_faults())
        return 0
    document = the_document(SELF)
    faults = known_faults()
    if what == "faults" and 1 <= len(rest) <= 2:
        host = rest[0] if len(rest) == 2 else ""
        try:
            wanted = json.loads(rest[-1])
        except ValueError:
            wanted = rest[-1]
        check_faults(document, wanted)
        former = faults
        wanted = [{**each, "host": host} if host else each for each in wanted]
        faults = [each for each in faults if each.get("host", "") != host] + wanted
        if faults == former:
            say("unchanged")
            return 0
        write({FAULTS: json.dumps(faults, indent=1) + "\n"})
        apply(document, faults)
    elif what == "apply" and not rest:
        apply(document, faults)
    elif what != "show" or rest:
        raise Refused("%s knows show, apply and faults [HOST] JSON, not %s." % (SELF, " ".join(args)))
    say(json.dumps({"instance_type": document["instance_type"], "faults": faults}))
    return 0
