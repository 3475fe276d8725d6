# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""muster rehearsal: this program is a stand-in for the vendors' tools on a node that rehearses an instance type; it looks at no hardware.

rehearsal.py copies this file to the node, so it imports only the standard library. It has several names: those of `names()`, and
`muster-rehearsal`, which makes the node's devices and keeps its faults. It reads /etc/muster/rehearsal.json and rehearsal-faults.json.
The output has the forms of nvidia-smi (driver 595), DCGM 4, libfabric 1.19, neuron-ls and nccl-tests 2.19, as recorded in tests/fixtures.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import uuid

SCHEMA = "muster.rehearsal/1"
DOCUMENT = "/etc/muster/rehearsal.json"
FAULTS = "/etc/muster/rehearsal-faults.json"
MANIFEST = "/etc/muster/manifest.json"
HOME = "/usr/local/lib/muster-rehearsal"
LAYERS = "/run/muster-rehearsal"
SELF = "muster-rehearsal"
# Majors that Linux keeps for local and experimental use: no driver answers, also on a machine with a real GPU or InfiniBand.
MAJORS = {"nvidia": 60, "infiniband": 61, "neuron": 62, "nvidia-uvm": 63, "nvidia-caps": 120, "nvidia-nvswitch": 121}
# Versions where the node's manifest has none.
VERSIONS = {"nvidia_driver": "595.84", "cuda": "13.2", "dcgm": "4.5.2", "nccl": "2.28.9", "nccl_tests": "2.19.6", "neuron": "2.29.18.0"}
EFA_DRIVER = "3.1.0"
LIBFABRIC = "2.4.0amzn1.0"
# What a fault may have besides its name: of what kind its index is, and other keys with their types.
KINDS: dict = {
    "gpu_lost": ("gpus", {}),  # the driver lost it, the PCI bus still has it
    "gpu_missing": ("gpus", {}),  # the PCI bus lacks it
    "remapped_rows": ("gpus", {"failure": bool}),  # a remapping that is pending, or that failed
    "throttle": ("gpus", {}),
    "xid": ("gpus", {"code": int}),
    "efa_missing": ("efa", {}),
    "efa_down": ("efa", {}),
    "neuron_missing": ("neuron", {}),
    "slow": ("", {"factor": float}),  # collectives with this host reach this part of their bandwidth
}
COLLECTIVES = {
    "all_reduce": (2, "sum", -1),
    "all_gather": (1, "none", -1),
    "reduce_scatter": (1, "sum", -1),
    "alltoall": (1, "none", -1),
    "broadcast": (0, "none", 0),
    "reduce": (0, "sum", 0),
    "sendrecv": (0, "sum", -1),
}
SIZES = {"char": 1, "int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "int32": 4, "float": 4, "int64": 8, "double": 8}
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


def say(text, file=None, flush=False):
    """Print a line. The sanity tests of collections forbid `print`, because modules must not use it."""
    stream = file or sys.stdout
    stream.write(text + "\n")
    if flush:
        stream.flush()


def whole(value):
    """Tell whether a value of JSON is a whole number; in Python a truth value is one, too."""
    return isinstance(value, int) and not isinstance(value, bool)


class Refused(Exception):
    """An expected failure; the text is one sentence for the user."""


# What the node has


def names(document):
    """The programs that the node has stand-ins for."""
    out = ["nvidia-smi", "dcgmi"] + ["%s_perf" % each for each in COLLECTIVES] if document["gpus"] else ["neuron-ls"]
    if document["efa"]:
        out.append("fi_info")
    return sorted(out + (["ibv_devices", "ibv_devinfo"] if document["efa"] or document["switch_ports"] else []))


def check_faults(document, faults):
    """Refuse faults that the type cannot have."""
    if not isinstance(faults, list) or not all(isinstance(each, dict) for each in faults):
        raise Refused('Faults are a list such as [{"fault": "gpu_lost", "index": 3}], not %s.' % json.dumps(faults))
    for each in faults:
        if each.get("fault") not in KINDS:
            raise Refused("There is no fault %s; known are %s." % (each.get("fault"), ", ".join(KINDS)))
        where, keys = KINDS[each["fault"]]
        unknown = sorted(set(each) - {"fault", *keys} - ({"index"} if where else set()))
        if unknown:
            raise Refused("Fault %s has no %s." % (each["fault"], unknown[0]))
        have = len(document[where]) if where else 0
        what = {"gpus": "GPUs", "efa": "EFA devices", "neuron": "Neuron devices"}.get(where)
        index = each.get("index")
        if where and not (whole(index) and 0 <= index < have):
            raise Refused(
                "Fault %s cannot have index %s: %s has %d %s%s."
                % (each["fault"], json.dumps(index), document["instance_type"], have, what, ", from 0 to %d" % (have - 1) if have else "")
            )
    slow = [each.get("factor") for each in faults if each["fault"] == "slow"]
    wrong = [factor for factor in slow if not (isinstance(factor, float) or whole(factor)) or not 0 < factor <= 1]
    if wrong:
        raise Refused("Fault slow cannot have factor %s: give a number above 0 and at most 1." % json.dumps(wrong[0]))
    codes = [each.get("code") for each in faults if each["fault"] == "xid"]
    if not all(whole(code) for code in codes):
        raise Refused("Fault xid needs a code, such as 79.")


def own(faults):
    """The faults of this node; the others are of its neighbours."""
    return [each for each in faults if not each.get("host")]


def having(faults, *kinds):
    """The indexes with one of these faults on this node."""
    return {each["index"] for each in own(faults) if each["fault"] in kinds}


def device_files(document, faults):
    """[(path, major, minor)] of the device files."""
    out = []
    if document["gpus"]:
        gone = having(faults, "gpu_missing")
        out += [("/dev/nvidia%d" % gpu["index"], MAJORS["nvidia"], gpu["index"]) for gpu in document["gpus"] if gpu["index"] not in gone]
        out += [("/dev/nvidiactl", MAJORS["nvidia"], 255), ("/dev/nvidia-modeset", MAJORS["nvidia"], 254)]
        out += [("/dev/nvidia-uvm", MAJORS["nvidia-uvm"], 0), ("/dev/nvidia-uvm-tools", MAJORS["nvidia-uvm"], 1)]
        out += [("/dev/nvidia-caps/nvidia-cap%d" % each, MAJORS["nvidia-caps"], each) for each in (1, 2)]
    if document["switches"]:
        out += [("/dev/nvidia-nvswitch%d" % each["index"], MAJORS["nvidia-nvswitch"], each["index"]) for each in document["switches"]]
        out.append(("/dev/nvidia-nvswitchctl", MAJORS["nvidia-nvswitch"], 255))
    gone = having(faults, "neuron_missing")
    out += [("/dev/neuron%d" % each["index"], MAJORS["neuron"], each["index"]) for each in document["neuron"] if each["index"] not in gone]
    gone = having(faults, "efa_missing")
    cards = [each for each in document["efa"] if each["index"] not in gone]
    out += [("/dev/infiniband/uverbs%d" % each["index"], MAJORS["infiniband"], 192 + each["index"]) for each in cards]
    for index in range(len(document["switch_ports"])):
        number = len(document["efa"]) + index
        out.append(("/dev/infiniband/uverbs%d" % number, MAJORS["infiniband"], 192 + number))
        out += [("/dev/infiniband/umad%d" % index, MAJORS["infiniband"], index)]
        out += [("/dev/infiniband/issm%d" % index, MAJORS["infiniband"], 64 + index)]
    return out


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


def proc_files(document, versions):
    """{path below /proc/driver: text} of what the driver adds there."""
    if not document["gpus"]:
        return {}
    machine = "x86_64" if document["hardware"]["arch"] == "x86_64" else "aarch64"
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (rehearsal)\n" % (machine, versions["nvidia_driver"])
    return {"nvidia/version": text}


def xid_lines(document, faults):
    """The lines of the kernel's log that the faults leave, in the form of /dev/kmsg."""
    found = [
        (each["index"], 79 if each["fault"] == "gpu_lost" else each["code"]) for each in own(faults) if each["fault"] in ("xid", "gpu_lost")
    ]
    form = "4,%d,%d,-;NVRM: Xid (PCI:%s): %d, pid=<unknown>, name=<unknown>, %s\n"
    return "".join(
        form % (number, number * 1000, document["gpus"][index]["bus"][:-2], code, XIDS.get(code, "(rehearsal)"))
        for number, (index, code) in enumerate(found, 1)
    )


# Make it on the node


def apply(document, faults):
    """Give the node what the type has and the faults leave. Everything is in the node's own /dev, /run and mount namespace."""
    unmount()
    shutil.rmtree(LAYERS, ignore_errors=True)
    versions = known_versions()
    files, links = sys_files(document, faults, versions)
    write({os.path.join(LAYERS, "sys", path): text for path, text in files.items()})
    write({os.path.join(LAYERS, "proc", path): text for path, text in proc_files(document, versions).items()})
    write({os.path.join(LAYERS, "kmsg"): xid_lines(document, faults)})
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
    if os.path.realpath(__file__) != program:
        shutil.copy(__file__, program)
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


def read_json(path, missing):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return missing


def known_versions():
    """{component: version} from the node's manifest, else those that the forms of the output are from."""
    found = (read_json(MANIFEST, {}) or {}).get("components", {})
    return {name: str(found.get(name, {}).get("version") or version) for name, version in VERSIONS.items()}


def manage(args):
    """`muster-rehearsal boot FOLDER` at the start of the node, `faults [HOST] JSON` to replace the faults of a host, `apply`, `show`."""
    what, rest = (args or ["show"])[0], args[1:]
    if what == "boot" and len(rest) == 1:
        document = read_json(os.path.join(rest[0], "rehearsal.json"), None)
        install(document)
        apply(document, read_json(FAULTS, []))
        return 0
    document = the_document(SELF)
    faults = read_json(FAULTS, [])
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


def the_document(name):
    """What the node rehearses. Refused on a real node."""
    document = read_json(DOCUMENT, None)
    if not document:
        raise Refused("%s is a stand-in of a rehearsal and this node rehearses nothing: install the vendor's program." % name)
    return document


# The programs


def opened(path):
    """Whether this process may open a device file. No hardware is behind it, so the answer is ENXIO where it may."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT)
    return True


def gpus_of(document, faults):
    """The GPUs that the driver shows to this process. It numbers them from 0, whatever the number of their device file (`minor`)."""
    gone = having(faults, "gpu_lost", "gpu_missing")
    seen = [gpu for gpu in document["gpus"] if gpu["index"] not in gone and opened("/dev/nvidia%d" % gpu["index"])]
    return [{**gpu, "index": number, "minor": gpu["index"]} for number, gpu in enumerate(seen)]


def gpu_uuid(gpu):
    return "GPU-%s" % uuid.uuid5(uuid.NAMESPACE_DNS, "%s/gpu%d" % (socket.gethostname(), gpu["minor"]))


def gpu_values(document, faults, gpu, versions):
    """The values of --query-gpu by name."""
    have = document["hardware"]
    memory, hot = have["gpu_memory_mib"], gpu["minor"] in having(faults, "throttle")
    rows = [each for each in own(faults) if each["fault"] == "remapped_rows" and each["index"] == gpu["minor"]]
    fabric = have["nvlinks"] and have["gpu_arch"] in ("hopper", "blackwell")
    values = {
        "index": gpu["index"],
        "minor": gpu["minor"],
        "count": len(document["gpus"]),
        "name": document["gpu_name"],
        "gpu_name": document["gpu_name"],
        "uuid": gpu_uuid(gpu),
        "gpu_uuid": gpu_uuid(gpu),
        "pci.bus_id": "0000" + gpu["bus"].upper(),
        "gpu_bus_id": "0000" + gpu["bus"].upper(),
        "driver_version": versions["nvidia_driver"],
        "serial": "%d" % (1650000000000 + gpu["minor"]),
        "vbios_version": "96.00.rehearsal",
        "compute_cap": have["compute_capability"],
        "persistence_mode": "Enabled",
        "pstate": "P0",
        "mig.mode.current": "Disabled" if have["gpu_arch"] in ("ampere", "hopper", "blackwell") else "[N/A]",
        "ecc.mode.current": "Enabled",
        "memory.total": "%d MiB" % memory,
        "memory.used": "1 MiB",
        "memory.free": "%d MiB" % (memory - 1),
        "utilization.gpu": "0 %",
        "utilization.memory": "0 %",
        "temperature.gpu": 91 if hot else 34,
        "temperature.memory": 92 if hot else 40,
        "power.draw": "%s W" % ("350.00" if hot else "70.00"),
        "clocks.sm": "%d MHz" % (345 if hot else 1980),
        "clocks.max.sm": "1980 MHz",
        "pcie.link.gen.current": 5,
        "pcie.link.gen.max": 5,
        "pcie.link.width.current": 16,
        "pcie.link.width.max": 16,
        "remapped_rows.correctable": 0,
        "remapped_rows.uncorrectable": len(rows),
        "remapped_rows.pending": "Yes" if [row for row in rows if not row.get("failure")] else "No",
        "remapped_rows.failure": "Yes" if [row for row in rows if row.get("failure")] else "No",
        "fabric.state": "Completed" if fabric else "[N/A]",
        "fabric.status": "Success" if fabric else "[N/A]",
        "timestamp": datetime.datetime.now().strftime("%Y/%m/%d %H:%M:%S.000"),
    }
    for kind in ("corrected", "uncorrected"):
        for since in ("volatile", "aggregate"):
            values["ecc.errors.%s.%s.total" % (kind, since)] = 0
    for old in ("clocks_event_reasons", "clocks_throttle_reasons"):
        values[old + ".active"] = "0x0000000000000040" if hot else "0x0000000000000000"
        for reason in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap", "gpu_idle"):
            values["%s.%s" % (old, reason)] = "Active" if hot and reason in ("hw_slowdown", "hw_thermal_slowdown") else "Not Active"
    return values


XML = """\
 <gpu id="{pci.bus_id}">
  <product_name>{name}</product_name>
  <persistence_mode>{persistence_mode}</persistence_mode>
  <mig_mode>
   <current_mig>{mig.mode.current}</current_mig>
  </mig_mode>
  <serial>{serial}</serial>
  <uuid>{uuid}</uuid>
  <minor_number>{minor}</minor_number>
  <vbios_version>{vbios_version}</vbios_version>
  <gsp_firmware_version>{driver_version}</gsp_firmware_version>
  <pci>
   <pci_bus_id>{pci.bus_id}</pci_bus_id>
  </pci>
  <clocks_event_reasons>
   <clocks_event_reason_hw_slowdown>{clocks_event_reasons.hw_slowdown}</clocks_event_reason_hw_slowdown>
   <clocks_event_reason_hw_thermal_slowdown>{clocks_event_reasons.hw_thermal_slowdown}</clocks_event_reason_hw_thermal_slowdown>
  </clocks_event_reasons>
  <fb_memory_usage>
   <total>{memory.total}</total>
   <used>{memory.used}</used>
   <free>{memory.free}</free>
  </fb_memory_usage>
  <ecc_mode>
   <current_ecc>{ecc.mode.current}</current_ecc>
  </ecc_mode>
  <remapped_rows>
   <remapped_row_corr>{remapped_rows.correctable}</remapped_row_corr>
   <remapped_row_unc>{remapped_rows.uncorrectable}</remapped_row_unc>
   <remapped_row_pending>{remapped_rows.pending}</remapped_row_pending>
   <remapped_row_failure>{remapped_rows.failure}</remapped_row_failure>
  </remapped_rows>
  <temperature>
   <gpu_temp>{temperature.gpu} C</gpu_temp>
  </temperature>
  <fabric>
   <state>{fabric.state}</state>
   <status>{fabric.status}</status>
  </fabric>
 </gpu>
"""


def filled(template, values):
    """A template with values, whose names have dots, which str.format does not take."""
    return re.sub(r"\{([\w.]+)\}", lambda found: str(values[found[1]]).strip("[]"), template)


def nvidia_smi(document, faults, args):
    """nvidia-smi: -L, -q, -q -x, --query-gpu, nvlink -s, topo -m, --version, and the table without arguments."""
    versions = known_versions()
    gpus = gpus_of(document, faults)
    wanted = option(args, "-i", "--id")
    if wanted is not None:
        gpus = [gpu for gpu in gpus if wanted in (str(gpu["index"]), gpu_uuid(gpu))]
    values = [gpu_values(document, faults, gpu, versions) for gpu in gpus]
    query = option(args, "--query-gpu", "--query-gpu")
    driver, cuda = versions["nvidia_driver"], versions["cuda"]
    if "--version" in args:
        say(
            "NVIDIA-SMI version  : %s (rehearsal)\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %s"
            % (driver, driver, driver, cuda)
        )
        return 0
    if document["gpus"] and not gpus:
        say("No devices were found")
        return 6
    if args[:1] == ["nvlink"]:
        rate = document["hardware"]["nvlink"] / 2 / (document["hardware"]["nvlinks"] or 1)
        for each in values:
            say("GPU %d: %s (UUID: %s)" % (each["index"], each["name"], each["uuid"]))
            for link in range(document["hardware"]["nvlinks"]):
                say("\t Link %d: %.3f GB/s" % (link, rate))
    elif args[:1] == ["topo"]:
        say(topology(document, gpus))
    elif query is not None:
        return print_query(values, query.split(","), option(args, "--format", "--format") or "")
    elif "-L" in args or "--list-gpus" in args:
        for each in values:
            say("GPU %d: %s (UUID: %s)" % (each["index"], each["name"], each["uuid"]))
    elif "-q" in args or "--query" in args:
        print_log(values, versions, "-x" in args or "--xml-format" in args)
    elif [arg for arg in args if arg not in ("-i", "--id", wanted)]:
        raise Refused("This stand-in of nvidia-smi knows -L, -q, -q -x, --query-gpu, nvlink -s and topo -m, not %s." % " ".join(args))
    else:
        say("NVIDIA-SMI %s (rehearsal)    Driver Version: %s    CUDA Version: %s" % (driver, driver, cuda))
        for each in values:
            say(
                "| {index:>3}  {name}  {bus}  {used} / {total} |".format(
                    bus=each["pci.bus_id"],
                    used=each["memory.used"],
                    total=each["memory.total"],
                    **{key: each[key] for key in ("index", "name")},
                )
            )
    lost = sorted(having(faults, "gpu_lost"))
    if lost and wanted is None:
        bus = document["gpus"][lost[0]]["bus"].upper()
        say(
            "Unable to determine the device handle for GPU%d: 0000%s: GPU is lost.  Reboot the system to recover this GPU" % (lost[0], bus),
            file=sys.stderr,
        )
    return 0


def print_log(values, versions, xml):
    if xml:
        say('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>')
        say(" <timestamp>%s</timestamp>" % datetime.datetime.now().ctime())
        say(" <driver_version>%s</driver_version>\n <cuda_version>%s</cuda_version>" % (versions["nvidia_driver"], versions["cuda"]))
        say(" <attached_gpus>%d</attached_gpus>" % len(values))
        say("".join(filled(XML, each) for each in values) + "</nvidia_smi_log>")
        return
    say("\n==============NVSMI LOG (rehearsal)==============\n")
    for key, text in (("Driver Version", versions["nvidia_driver"]), ("CUDA Version", versions["cuda"]), ("Attached GPUs", len(values))):
        say("%-42s: %s" % (key, text))
    shown = {"Product Name": "name", "Persistence Mode": "persistence_mode", "GPU UUID": "uuid", "Minor Number": "minor"}
    for each in values:
        say("GPU %s" % each["pci.bus_id"])
        for key, name in shown.items():
            say("    %-38s: %s" % (key, each[name]))
        for title, pairs in (
            ("Remapped Rows", {"Pending": "remapped_rows.pending", "Remapping Failure Occurred": "remapped_rows.failure"}),
            ("Fabric", {"State": "fabric.state", "Status": "fabric.status"}),
            ("Clocks Event Reasons", {"HW Slowdown": "clocks_event_reasons.hw_slowdown"}),
        ):
            say("    " + title)
            for key, name in pairs.items():
                say("        %-34s: %s" % (key, str(each[name]).strip("[]")))


def print_query(values, fields, form):
    """The answer of --query-gpu as CSV."""
    styles = [each.strip() for each in form.split(",")]
    if "csv" not in styles:
        raise Refused("nvidia-smi --query-gpu needs --format=csv.")
    fields = [field.strip() for field in fields]
    unknown = [field for field in fields if values and field not in values[0]]
    if unknown:
        say('Field "%s" is not a valid field to query.' % unknown[0])
        return 2
    if "noheader" not in styles:
        say(", ".join(fields))
    for each in values:
        row = [str(each[field]) for field in fields]
        say(", ".join(re.sub(r" (MiB|MHz|W|%)$", "", text) for text in row) if "nounits" in styles else ", ".join(row))
    return 0


def topology(document, gpus):
    """The matrix of `nvidia-smi topo -m`."""
    have, nics = document["hardware"], document["efa"]
    inside = "NV%d" % have["nvlinks"] if have["nvlinks"] else ""
    titles = ["GPU%d" % gpu["index"] for gpu in gpus] + ["NIC%d" % nic["index"] for nic in nics]
    lines = ["\t".join(["", *titles, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    every = [("gpu", gpu["index"], gpu["numa"]) for gpu in gpus] + [("nic", nic["near"], nic["numa"]) for nic in nics]
    width = have["cores"] // have["sockets"]

    def between(one, other):
        if one is other:
            return " X "
        if one[0] == other[0] == "gpu" and inside:
            return inside
        return "PIX" if one[1] == other[1] else "NODE" if one[2] == other[2] else "SYS"

    for title, row in zip(titles, every):
        cpus = ["%d-%d" % (row[2] * width, (row[2] + 1) * width - 1), str(row[2]), "N/A"] if row[0] == "gpu" else []
        lines.append("\t".join([title, *(between(row, other) for other in every), *cpus]))
    legend = [
        "  X    = Self",
        "  SYS  = between NUMA nodes",
        "  NODE = within a NUMA node",
        "  PIX  = at most one PCIe bridge",
        "  NV#  = a number of NVLinks",
    ]
    return "\n".join(
        [*lines, "", "Legend:", "", *legend, "", "NIC Legend:", "", *("  NIC%d: %s" % (each["index"], each["name"]) for each in nics)]
    )


def dcgmi(document, faults, args):
    """dcgmi: discovery -l, diag -r N [-j], --version."""
    versions = known_versions()
    gpus = gpus_of(document, faults)
    if "--version" in args:
        say("dcgmi  version: %s (rehearsal)" % versions["dcgm"])
    elif args[:1] == ["discovery"]:
        say("%d GPU%s found." % (len(gpus), "" if len(gpus) == 1 else "s"))
        line = "+--------+----------------------------------------------------------------------+"
        say("%s\n| GPU ID | Device Information                                                   |\n%s" % (line, line))
        for gpu in gpus:
            texts = ("Name: " + document["gpu_name"], "PCI Bus ID: 0000" + gpu["bus"].upper(), "Device UUID: " + gpu_uuid(gpu))
            for number, text in enumerate(texts):
                say("| %-6s | %-68s |" % ("" if number else gpu["index"], text))
            say(line)
        say("%d NvSwitch%s found." % (len(document["switches"]), "" if len(document["switches"]) == 1 else "es"))
    elif args[:1] == ["diag"]:
        return diagnose(document, faults, versions, option(args, "-r", "--run") or "1", "-j" in args or "--json" in args)
    else:
        raise Refused("This stand-in of dcgmi knows discovery -l, diag -r and --version, not %s." % " ".join(args))
    return 0


def diagnose(document, faults, versions, level, as_json):
    """`dcgmi diag`; the exit code is 226 when a test failed, as DCGM's."""
    tests = {"software": "Deployment"}
    tests.update({"memory": "Hardware", "pcie": "Integration"} if level >= "2" else {})
    tests.update({"diagnostic": "Hardware", "nvbandwidth": "Integration"} if level >= "3" else {})
    gone, rows, hot = having(faults, "gpu_lost", "gpu_missing"), having(faults, "remapped_rows"), having(faults, "throttle")
    found = []
    for gpu in document["gpus"]:
        if gpu["index"] in gone:
            found.append(("software", gpu["index"], 28, "GPU %d is lost. Drain and reset the GPU, or restart the node." % gpu["index"]))
        if gpu["index"] in rows:
            found.append(("software", gpu["index"], 51, "GPU %d has a row remapping that is pending or failed." % gpu["index"]))
        if gpu["index"] in hot and "diagnostic" in tests:
            found.append(("diagnostic", gpu["index"], 24, "Thermal violations on GPU %d." % gpu["index"]))
    failed = {name for name, _gpu, _code, _text in found}
    if not as_json:
        say("Successfully ran diagnostic for group.\n| DCGM Version              | %s (rehearsal) |" % versions["dcgm"])
        for name in tests:
            say("| %-25s | %-46s |" % (name, "Fail" if name in failed else "Pass"))
        for _name, _gpu, _code, text in found:
            say("| %-25s | %-46s |" % ("Error", text))
        return 226 if failed else 0
    categories: dict = {}
    for name, category in tests.items():
        results = []
        for gpu in document["gpus"]:
            said = [(code, text) for each, index, code, text in found if each == name and index == gpu["index"]]
            result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu["index"], "status": "Fail" if said else "Pass"}
            if said:
                result["warnings"] = [{"error_category": 7, "error_id": code, "error_severity": 3, "warning": text} for code, text in said]
            results.append(result)
        test = {"name": name, "results": results, "test_summary": {"status": "Fail" if name in failed else "Pass"}}
        categories.setdefault(category, []).append(test)
    root = {
        "version": versions["dcgm"] + " (rehearsal)",
        "Driver Version Detected": versions["nvidia_driver"],
        "test_categories": [{"category": name, "tests": tests} for name, tests in categories.items()],
    }
    say(json.dumps({"DCGM Diagnostic": root}, indent=1))
    return 226 if failed else 0


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


# Collectives


def expand(text):
    """Slurm's list of hosts as names: compute-[1-3,7],login-1."""
    out = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        found = re.match(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not found:
            out.append(part)
            continue
        for span in found[2].split(","):
            first, _dash, last = span.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            out += [name for number in numbers for name in expand("%s%0*d%s" % (found[1], len(first), number, found[3]))]
    return out


def tasks(text, hosts):
    """Ranks of each host from Slurm's 8(x2),4."""
    out = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        out += [int(found[1])] * int(found[2] or 1) if found else []
    return (out + [1] * len(hosts))[: len(hosts)]


def job(env):
    """(this rank, the local rank, [host of each rank]) of a step of Slurm, of Open MPI on one host, or of one process."""
    me = env.get("SLURMD_NODENAME") or socket.gethostname()
    if "SLURM_PROCID" in env:
        hosts = expand(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or me)
        counts = tasks(env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "1", hosts)
        return (
            int(env["SLURM_PROCID"]),
            int(env.get("SLURM_LOCALID") or 0),
            [host for host, count in zip(hosts, counts) for _each in range(count)],
        )
    size = int(env.get("OMPI_COMM_WORLD_SIZE") or 1)
    return int(env.get("OMPI_COMM_WORLD_RANK") or 0), int(env.get("OMPI_COMM_WORLD_LOCAL_RANK") or 0), [me] * size


def option(args, short, long):
    """The value of an option, as `-b 8`, `--minbytes 8` or `--minbytes=8`; None without it."""
    for index, arg in enumerate(args):
        if arg in (short, long) and index + 1 < len(args):
            return args[index + 1]
        if arg.startswith(long + "="):
            return arg[len(long) + 1 :]
    return None


def size_of(text):
    """Bytes from 8, 4K, 128M or 16G."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.upper())
    if not found:
        raise Refused("%s is not a size; give bytes such as 8, 128M or 16G." % text)
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def busbw(known, nodes, size, factor):
    """The bus bandwidth in GB/s for a size on so many nodes. known: the references of the collective."""
    points = known[max((each for each in known if int(each) <= nodes), key=int)]
    reached = [gbps for least, gbps in points if least <= size]
    full = reached[-1] if reached else points[0][1] * size / (size + min(points[0][0] // 4, 64 << 20))
    return full * factor


def slowest(faults, hosts):
    """The factor of the slowest host of a job."""
    me = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return min([each["factor"] for each in faults if each["fault"] == "slow" and (each.get("host") or me) in hosts] or [1])


def perf(name, document, faults, args):
    """nccl-tests: the first rank prints the table of all; each rank looks whether it may open its GPUs."""
    collective = name[: -len("_perf")]
    rank, local, hosts_of_tasks = job(os.environ)
    each = int(option(args, "-t", "--nthreads") or 1) * int(option(args, "-g", "--ngpus") or 1)
    hosts = [host for host in hosts_of_tasks for _each in range(each)]
    me = hosts_of_tasks[rank] if rank < len(hosts_of_tasks) else socket.gethostname()
    have = gpus_of(document, faults)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(have) if visible is None else min(len(have), len([one for one in visible.split(",") if one]))
    if not count:
        say("%s: Test CUDA failure common.cu:1005 'no CUDA-capable device is detected'" % me)
        return 2
    if (local + 1) * each > count:
        say("Invalid number of GPUs: %d requested but only %d were found." % ((local + 1) * each, count))
        return 1
    if rank:
        return 0
    low, high = (size_of(option(args, short, long) or "32M") for short, long in (("-b", "--minbytes"), ("-e", "--maxbytes")))
    step, factor = option(args, "-i", "--stepbytes"), option(args, "-f", "--stepfactor")
    kind = option(args, "-d", "--datatype") or "float"
    kind, iters = kind if kind in SIZES else "float", int(option(args, "-n", "--iters") or 20)
    print_perf_head(document, name, hosts, (low, high, step, factor), iters)
    print_perf_table(document, collective, hosts, sizes(low, high, step, factor), kind=kind, factor=slowest(faults, hosts))
    return 0


def sizes(low, high, step, factor):
    """The sizes of the rows."""
    out, grow = [low], int(factor or 1)
    while out[-1] < high:
        more = out[-1] * grow if factor and grow > 1 else out[-1] + (size_of(step) if step else 1048576)
        if more > high:
            break
        out.append(more)
    return out


def print_perf_head(document, name, hosts, asked, iters):
    versions = known_versions()
    low, high, step, factor = asked
    code = "".join("%02d" % int(part) for part in (versions["nccl"].split("-")[0].split("+")[0].split(".") + ["0"] * 3)[:3]).lstrip("0")
    say("# nccl-tests version %s nccl-headers=%s nccl-library=%s (rehearsal)" % (versions["nccl_tests"], code, code))
    say("# Collective test starting: %s" % name)
    stride = "%s(factor)" % factor if factor else "%d(bytes)" % (size_of(step) if step else 1048576)
    form = "# nThread 1 nGpus 1 minBytes %d maxBytes %d step: %s warmup iters: 1 iters: %d agg iters: 1 validation: 1 graph: 0"
    say(form % (low, high, stride, iters) + "\n#\n# Using devices")
    for rank, host in enumerate(hosts):
        at = hosts[:rank].count(host)
        gpu = document["gpus"][at % len(document["gpus"])]
        form = "#  Rank %2d Group  0 Pid %6d on %10s device %2d [%s] %s"
        say(form % (rank, os.getpid(), host, at, gpu["bus"][:-2], document["gpu_name"]))
    say("NCCL version %s+cuda%s" % (versions["nccl"], ".".join(versions["cuda"].split(".")[:2])))
    if os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        begin = "%s:%d:%d [0] NCCL INFO " % (hosts[0], os.getpid(), os.getpid())
        if document["efa"]:
            say(begin + "NET/OFI Selected provider is efa, fabric is efa (found %d nics)" % len(document["efa"]))
        say(begin + "Using network %s" % ("Libfabric" if document["efa"] else "Socket"))


def print_perf_table(document, collective, hosts, rows, *, kind, factor):
    weight, redop, root = COLLECTIVES[collective]
    ranks, nodes = len(hosts), len(set(hosts))
    share = weight * (ranks - 1) / ranks if weight else 1.0
    say("#\n#%59s%14s%33s" % ("out-of-place", "", "in-place"))
    head = "     time   algbw   busbw #wrong"
    say("# %10s  %12s  %8s  %6s  %6s%s%s" % ("size", "count", "type", "redop", "root", head, head))
    units = "     (us)  (GB/s)  (GB/s)       "
    say("# %10s  %12s  %8s  %6s  %6s%s%s" % ("(B)", "(elements)", "", "", "", units, units))
    total = 0.0
    for size in rows:
        # One rank sends nothing; nccl-tests prints a bus bandwidth of 0 for it.
        wanted = busbw(document["reference"][collective], nodes, size, factor) if ranks > 1 else 0.0
        time = size * share / (wanted * 1000) if ranks > 1 else 5.0
        algbw = size / (time * 1000)
        shown = "%.2f" % time if time < 100 else "%.1f" % time if time < 10000 else "%.0f" % time
        reached = algbw * share if ranks > 1 else 0.0
        total += reached
        side = "  %7s  %6.2f  %6.2f  %5d" % (shown, algbw, reached, 0)
        say("%12d  %12d  %8s  %6s  %6d%s%s" % (size, max(size // SIZES[kind], 1), kind, redop, root, side, side))
    say("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : %g \n#" % (total / len(rows)))
    say("# Collective test concluded: %s_perf\n#" % collective)


PROGRAMS = {
    "nvidia-smi": nvidia_smi,
    "dcgmi": dcgmi,
    "fi_info": fi_info,
    "ibv_devices": ibv_devices,
    "ibv_devinfo": ibv_devinfo,
    "neuron-ls": neuron_ls,
}


def main(argv):
    """Run as the program whose name this was called by."""
    name = os.path.basename(argv[0])
    try:
        if name not in PROGRAMS and not name.endswith("_perf"):
            return manage(argv[1:])
        document = the_document(name)
        if name not in document["stand_ins"]:
            raise Refused("%s has no devices for %s." % (document["instance_type"], name))
        if not int(os.environ.get("SLURM_PROCID") or 0):
            start = "muster rehearsal: %s"
            say(
                (start + " is a stand-in for %s; it looked at no hardware") % (name, document["instance_type"]), file=sys.stderr, flush=True
            )
        faults = read_json(FAULTS, [])
        return PROGRAMS[name](document, faults, argv[1:]) if name in PROGRAMS else perf(name, document, faults, argv[1:])
    except Refused as error:
        say(str(error), file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
