# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi, in the forms that driver 580 had on an H200; those of NVLink and a fabric are of NVIDIA's documents."""

from __future__ import annotations

import datetime
import re
import socket
import sys
import uuid

from .node import Refused, having, known_versions, opened, option, own, say


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
    retires = have["gpu_arch"] in ("volta", "turing")
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
        "memory.used": "0 MiB",
        "memory.free": "%d MiB" % memory,
        "utilization.gpu": "0 %",
        "utilization.memory": "0 %",
        "temperature.gpu": 91 if hot else 34,
        "temperature.memory": 92 if hot else 40,
        "power.draw": "%s W" % ("350.00" if hot else "70.00"),
        "clocks.sm": "345 MHz",
        "clocks.max.sm": "1980 MHz",
        "pcie.link.gen.current": 5,
        "pcie.link.gen.max": 5,
        "pcie.link.width.current": 16,
        "pcie.link.width.max": 16,
        "remapped_rows.correctable": 0,
        "remapped_rows.uncorrectable": len(rows),
        "remapped_rows.pending": "Yes" if [row for row in rows if not row.get("failure")] else "No",
        "remapped_rows.failure": "Yes" if [row for row in rows if row.get("failure")] else "No",
        "retired_pages.single_bit_ecc.count": 0 if retires else "[N/A]",
        "retired_pages.double_bit.count": 0 if retires else "[N/A]",
        "retired_pages.pending": "No" if retires else "[N/A]",
        "fabric.state": "Completed" if fabric else "N/A",
        "fabric.status": "Success" if fabric else "N/A",
        "timestamp": datetime.datetime.now().strftime("%Y/%m/%d %H:%M:%S.000"),
    }
    for kind in ("corrected", "uncorrected"):
        for since in ("volatile", "aggregate"):
            values["ecc.errors.%s.%s.total" % (kind, since)] = 0
    for old in ("clocks_event_reasons", "clocks_throttle_reasons"):
        values[old + ".active"] = "0x0000000000000048" if hot else "0x0000000000000001"
        for reason in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap", "gpu_idle"):
            active = ("hw_slowdown", "hw_thermal_slowdown") if hot else ("gpu_idle",)
            values["%s.%s" % (old, reason)] = "Active" if reason in active else "Not Active"
    return values


UNIT = re.compile(r" (MiB|MHz|W|%)$")
XML = """\
\t<gpu id="{pci.bus_id}">
\t\t<product_name>{name}</product_name>
\t\t<persistence_mode>{persistence_mode}</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>{mig.mode.current}</current_mig>
\t\t</mig_mode>
\t\t<serial>{serial}</serial>
\t\t<uuid>{uuid}</uuid>
\t\t<minor_number>{minor}</minor_number>
\t\t<vbios_version>{vbios_version}</vbios_version>
\t\t<gpu_recovery_action>None</gpu_recovery_action>
\t\t<gsp_firmware_version>{driver_version}</gsp_firmware_version>
\t\t<pci>
\t\t\t<pci_bus_id>{pci.bus_id}</pci_bus_id>
\t\t</pci>
\t\t<clocks_event_reasons>
\t\t\t<clocks_event_reason_hw_slowdown>{clocks_event_reasons.hw_slowdown}</clocks_event_reason_hw_slowdown>
\t\t\t<clocks_event_reason_hw_thermal_slowdown>{clocks_event_reasons.hw_thermal_slowdown}</clocks_event_reason_hw_thermal_slowdown>
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>{memory.total}</total>
\t\t\t<used>{memory.used}</used>
\t\t\t<free>{memory.free}</free>
\t\t</fb_memory_usage>
\t\t<ecc_mode>
\t\t\t<current_ecc>{ecc.mode.current}</current_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<aggregate>
\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>{remapped_rows.correctable}</remapped_row_corr>
\t\t\t<remapped_row_unc>{remapped_rows.uncorrectable}</remapped_row_unc>
\t\t\t<remapped_row_pending>{remapped_rows.pending}</remapped_row_pending>
\t\t\t<remapped_row_failure>{remapped_rows.failure}</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>{temperature.gpu} C</gpu_temp>
\t\t</temperature>
\t\t<fabric>
\t\t\t<state>{fabric.state}</state>
\t\t\t<status>{fabric.status}</status>
\t\t</fabric>
\t</gpu>
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
            % (driver, ".".join(driver.split(".")[:2]), driver, cuda)
        )
        return 0
    listing = "-L" in args or "--list-gpus" in args
    if listing and wanted is not None:
        say("ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n")
        return 2
    if document["gpus"] and not gpus:
        say("No devices were found")
        return 6
    if args[:1] == ["nvlink"]:
        rate = document["hardware"]["nvlink"] / 2 / (document["hardware"]["nvlinks"] or 1)
        for each in values if document["hardware"]["nvlinks"] else []:
            say("GPU %d: %s (UUID: %s)" % (each["index"], each["name"], each["uuid"]))
            for link in range(document["hardware"]["nvlinks"]):
                say("\t Link %d: %.3f GB/s" % (link, rate))
    elif args[:1] == ["topo"]:
        say(topology(document, gpus))
    elif query is not None:
        return print_query(values, query.split(","), option(args, "--format", "--format") or "")
    elif listing:
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
        say("\t<timestamp>%s</timestamp>" % datetime.datetime.now().ctime())
        say("\t<driver_version>%s</driver_version>\n\t<cuda_version>%s</cuda_version>" % (versions["nvidia_driver"], versions["cuda"]))
        say("\t<attached_gpus>%d</attached_gpus>" % len(values))
        say("".join(filled(XML, each) for each in values) + "</nvidia_smi_log>")
        return
    say("\n==============NVSMI LOG (rehearsal)==============\n")
    said = {"Timestamp": datetime.datetime.now().ctime(), "Driver Version": versions["nvidia_driver"], "CUDA Version": versions["cuda"]}
    for key, text in said.items():
        say("%-55s: %s" % (key, text))
    say("\n%-55s: %d" % ("Attached GPUs", len(values)))
    shown = {"Product Name": "name", "Persistence Mode": "persistence_mode", "GPU UUID": "uuid", "Minor Number": "minor"}
    for each in values:
        say("GPU %s" % each["pci.bus_id"])
        for key, name in shown.items():
            say("    %-51s: %s" % (key, each[name]))
        for title, pairs in (
            ("Clocks Event Reasons", {"HW Slowdown": "clocks_event_reasons.hw_slowdown"}),
            ("Remapped Rows", {"Pending": "remapped_rows.pending", "Remapping Failure Occurred": "remapped_rows.failure"}),
            ("Fabric", {"State": "fabric.state", "Status": "fabric.status"}),
        ):
            say("    " + title)
            for key, name in pairs.items():
                say("        %-47s: %s" % (key, each[name]))


def print_query(values, fields, form):
    """The answer of --query-gpu as CSV."""
    styles = [each.strip() for each in form.split(",")]
    if "csv" not in styles:
        raise Refused("nvidia-smi --query-gpu needs --format=csv.")
    fields = [field.strip() for field in fields]
    # The driver has the number of the device file in its log alone.
    unknown = [field for field in fields if values and (field not in values[0] or field == "minor")]
    if unknown:
        say('Field "%s" is not a valid field to query.\n' % unknown[0])
        return 2
    if "noheader" not in styles:
        units = [UNIT.search(str(values[0][field])) if values else None for field in fields]
        say(", ".join(field + (" [%s]" % unit[1] if unit else "") for field, unit in zip(fields, units)))
    for each in values:
        row = [str(each[field]) for field in fields]
        say(", ".join(UNIT.sub("", text) for text in row) if "nounits" in styles else ", ".join(row))
    return 0


def topology(document, gpus):
    """The matrix of `nvidia-smi topo -m`."""
    have, nics = document["hardware"], document["efa"]
    inside = "NV%d" % have["nvlinks"] if have["nvlinks"] else ""
    titles = ["GPU%d" % gpu["index"] for gpu in gpus] + ["NIC%d" % nic["index"] for nic in nics]
    # It underlines its head, in a pipe as well.
    lines = ["\t\033[4m" + "\t".join([*titles, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\033[0m"]
    every = [("gpu", gpu["index"], gpu["numa"]) for gpu in gpus] + [("nic", nic["near"], nic["numa"]) for nic in nics]
    width = have["cores"] // have["sockets"]

    def between(one, other):
        if one is other:
            return " X "
        if one[0] == other[0] == "gpu" and inside:
            return inside
        return "PIX" if one[1] == other[1] else "NODE" if one[2] == other[2] else "SYS"

    for title, row in zip(titles, every):
        cpus = ["%d-%d" % (row[2] * width, (row[2] + 1) * width - 1), str(row[2]), "", "N/A"] if row[0] == "gpu" else []
        lines.append("\t".join([title, *(between(row, other) for other in every), *cpus]))
    legend = [
        "  X    = Self",
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
        "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
        "  PIX  = Connection traversing at most a single PCIe bridge",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
    ]
    return "\n".join(
        [*lines, "", "Legend:", "", *legend, "", "NIC Legend:", "", *("  NIC%d: %s" % (each["index"], each["name"]) for each in nics)]
    )
