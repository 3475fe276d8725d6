# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health checks of NVIDIA's GPUs, their NVLink and their errors. Each is `check(node) -> Found`, see lookat.py."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

from ansible_collections.muster.fleet.plugins.module_utils.hardware import gpu
from ansible_collections.muster.fleet.plugins.module_utils.health import xids
from ansible_collections.muster.fleet.plugins.module_utils.health.lookat import CannotRun, Found, NotHere

# The fields that nvidia-smi prints. Drivers below 535 call the reasons of a slow clock by another name, and some lack a field at all.
# What only the log has is in XML_FIELDS.
FIELDS = [
    "index",
    "name",
    "vbios_version",
    "driver_version",
    "persistence_mode",
    "mig.mode.current",
    "memory.total",
    "memory.used",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pcie.link.gen.max",
    "temperature.gpu",
    "temperature.memory",
    "clocks_event_reasons.hw_slowdown",
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.hw_power_brake_slowdown",
    "clocks_event_reasons.sw_thermal_slowdown",
]
XML_FIELDS = {
    "sram_threshold": "ecc_errors/aggregate/sram_threshold_exceeded",
    "remap_correctable": "remapped_rows/remapped_row_corr",
    "remap_uncorrectable": "remapped_rows/remapped_row_unc",
    "remap_pending": "remapped_rows/remapped_row_pending",
    "remap_failure": "remapped_rows/remapped_row_failure",
    "fabric_state": "fabric/state",
    "fabric_status": "fabric/status",
    "recovery": "gpu_recovery_action",
}
UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
NOTHING = ("N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "")
# What NVIDIA's manual says of the exit codes of nvidia-smi.
EXIT_CODES = {
    2: "an argument or flag is not valid",
    4: "no permission",
    8: "a power cable of the GPU is not attached",
    9: "the driver is not loaded",
    10: "the kernel reports an interrupt problem of the GPU",
    12: "the library NVML is missing",
    14: "the information ROM of the GPU is corrupt",
    15: "the GPU has fallen off the bus",
}
REMAPPING = ("ampere", "ada", "hopper", "blackwell")
MOST_REMAPS = 512  # NVIDIA replaces the GPU from so many on
MOST_RETIRED = 60
DCGM_CONFIGURATION = 5  # the error_severity of a setting such as persistence mode
PCIE_GENERATION = {"ampere": 4, "hopper": 5, "blackwell": 5}
RECOVERY_SEVERITY = {"reset": "reset", "reboot": "reboot", "drain p2p": "reset", "drain and reset": "reset"}


def smi(node, argv, limit=20):
    """The stdout of nvidia-smi; CannotRun says what its exit code means."""
    rc, out, err = node.answer(["nvidia-smi", *argv], limit)
    if rc:
        said = " ".join((err or out).split())[:160]
        raise CannotRun("nvidia-smi ended with code %d: %s" % (rc, EXIT_CODES.get(rc, "") or said or "no reason given"))
    return out


def query(node):
    """[{field: text}] of all GPUs, without the fields that this driver does not know."""
    fields = list(FIELDS)
    for _try in FIELDS:
        argv = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
        rc, out, err = node.answer(argv, 20)
        unknown = UNKNOWN_FIELD.search(out + err)
        if not unknown or unknown[1] not in fields:
            break
        old = unknown[1].replace("clocks_event_reasons", "clocks_throttle_reasons")
        fields = [old if field == unknown[1] else field for field in fields if field != unknown[1] or old != field]
    text = smi(node, argv[1:])
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]
    short = [row for row in rows if len(row) != len(fields)]
    if short or not rows:
        raise CannotRun("nvidia-smi --query-gpu printed a row that is cut: %s" % (", ".join(short[0])[:120] if short else "nothing"))
    plain = [field.replace("clocks_throttle_reasons", "clocks_event_reasons") for field in fields]
    return [dict(zip(plain, row)) for row in rows]


def log(node):
    """[{field: text}] of all GPUs from `nvidia-smi -q -x`."""
    try:
        root = ET.fromstring(smi(node, ["-q", "-x"]))
    except ET.ParseError as error:
        raise CannotRun("nvidia-smi -q -x printed no XML: %s" % error) from None
    rows = []
    for index, one in enumerate(root.findall("gpu")):
        found = {key: one.findtext(path) for key, path in XML_FIELDS.items()}
        # An element that the driver's format lacks is no key.
        rows.append({"index": str(index), **{key: text.strip() for key, text in found.items() if text is not None}})
    if not rows:
        raise CannotRun("nvidia-smi -q -x lists no GPU")
    return rows


def each(rows, field, since=0):
    """[(GPU, value)] of a field; CannotRun when a GPU has none. since: the driver's branch that began to give it."""
    if not any(field in row for row in rows):
        if since:
            raise NotHere("drivers below %d do not give %s" % (since, field))
        raise CannotRun("the driver does not give %s" % field)
    lacking = [row for row in rows if row.get(field, "") in NOTHING]
    if lacking:
        said = " and ".join(sorted({row.get(field) or "nothing" for row in lacking}))
        where = "" if len(lacking) == len(rows) else " of %s" % some([row["index"] for row in lacking])
        raise CannotRun("nvidia-smi says %s where %s%s belongs" % (said, field, where))
    return [(row["index"], row[field]) for row in rows]


def number(text):
    try:
        return float(text)
    except ValueError:
        raise CannotRun("nvidia-smi printed %r where a number belongs" % text) from None


def some(gpus):
    return ("GPU %s" if len(gpus) == 1 else "GPUs %s") % ", ".join(gpus)


def gpu_bus(node):
    """Every GPU of the type is on the PCI bus. This needs no driver."""
    have = node.want["type"]
    node.path("/sys/bus/pci/devices")
    count = len(gpu.on_the_bus(node.path("/")))
    fault = "%d of %d GPUs are on the PCI bus" % (count, have["gpus"])
    return Found(str(count), str(have["gpus"]), [fault] if count != have["gpus"] else [])


def gpu_count(node):
    """The driver lists every GPU of the type."""
    have = node.want["type"]
    rc, out, err = node.answer(["nvidia-smi", "-L"], 20)
    names = re.findall(r"(?m)^GPU \d+: (.+?) \(UUID", out)
    if rc and not names and "No devices" not in out + err:
        smi(node, ["-L"])
    lost = re.search(r"Unable to determine the device handle for GPU\s*(\S+?):", out + err)
    faults = ["the driver lists %d of %d GPUs%s" % (len(names), have["gpus"], " and lost GPU %s" % lost[1] if lost else "")]
    return Found(str(len(names)), str(have["gpus"]), faults if len(names) != have["gpus"] or lost else [])


def gpu_model(node):
    have = node.want["type"]
    rows = query(node)
    models = {row["index"]: gpu.catalogue.model_of(row["name"]) or row["name"] for row in rows}
    strange = [index for index, model in models.items() if model != have["gpu_model"]]
    faults = ["%s is %s and not %s" % (some(strange), models[strange[0]], have["gpu_model"])] if strange else []
    memory = {row["index"]: number(row["memory.total"]) for row in rows}
    small = [index for index, mib in memory.items() if mib < gpu.LEAST_MEMORY * have["gpu_memory_mib"]]
    if small:
        faults.append("%s has %d MiB of memory and not %d" % (some(small), memory[small[0]], have["gpu_memory_mib"]))
    return Found(", ".join(sorted(set(models.values()))), have["gpu_model"], faults)


def gpu_uniform(node):
    """All GPUs have one firmware."""
    found = sorted({value for _index, value in each(query(node), "vbios_version")})
    return Found(
        ", ".join(found), "one VBIOS", ["the GPUs have %d VBIOS versions: %s" % (len(found), ", ".join(found))] if len(found) > 1 else []
    )


def gpu_ecc_mode(node):
    off = [index for index, value in each(query(node), "ecc.mode.current") if value != "Enabled"]
    return Found("off on %s" % some(off) if off else "Enabled", "Enabled", ["ECC is off on %s" % some(off)] if off else [])


def gpu_ecc(node):
    """No uncorrected ECC error since the driver was loaded."""
    counts = [(index, int(number(value))) for index, value in each(query(node), "ecc.errors.uncorrected.volatile.total")]
    bad = ["GPU %s has %d uncorrected ECC errors" % pair for pair in counts if pair[1]]
    return Found(str(sum(count for _index, count in counts)), "0", bad)


def gpu_sram(node):
    """The count of SRAM errors is below NVIDIA's threshold. Drivers below 545 do not tell."""
    bad = [index for index, value in each(log(node), "sram_threshold", 545) if value != "No"]
    return Found(
        "exceeded" if bad else "not exceeded", "not exceeded", ["%s exceeded the threshold of SRAM errors" % some(bad)] if bad else []
    )


def gpu_remapped_rows(node):
    """Ampere and later: no remapping is pending (a reset ends it), none failed, and there are fewer than what NVIDIA replaces."""
    rows = log(node)
    pending = [index for index, value in each(rows, "remap_pending") if value != "No"]
    failed = [index for index, value in each(rows, "remap_failure") if value != "No"]
    total = {index: int(number(value)) for index, value in each(rows, "remap_uncorrectable")}
    for index, value in each(rows, "remap_correctable"):
        total[index] += int(number(value))
    many = [index for index, count in total.items() if count >= MOST_REMAPS]
    faults = ["a row remapping of %s failed" % some(failed)] if failed else []
    faults += ["%s has %d remapped rows" % (some(many), total[many[0]])] if many else []
    faults += ["a row remapping of %s is pending" % some(pending)] if pending else []
    return Found("%d remapped" % sum(total.values()), "none pending, none failed", faults, "replace" if failed or many else "reset")


def gpu_retired_pages(node):
    """Before Ampere: no page is waiting for its retirement, and few are retired."""
    rows = query(node)
    pending = [index for index, value in each(rows, "retired_pages.pending") if value != "No"]
    total = {index: int(number(value)) for index, value in each(rows, "retired_pages.single_bit_ecc.count")}
    for index, value in each(rows, "retired_pages.double_bit.count"):
        total[index] += int(number(value))
    many = [index for index, count in total.items() if count >= MOST_RETIRED]
    faults = ["a page of %s waits for its retirement" % some(pending)] if pending else []
    faults += ["%s has %d retired pages" % (some(many), total[many[0]])] if many else []
    return Found("%d retired" % sum(total.values()), "none pending", faults, "replace" if many else "reset")


def gpu_pcie(node):
    """The lanes of each GPU. Its generation falls while the GPU is idle, so only the highest one tells."""
    have = node.want["type"]
    rows = query(node)
    now, most = dict(each(rows, "pcie.link.width.current")), dict(each(rows, "pcie.link.width.max"))
    generation = dict(each(rows, "pcie.link.gen.max"))
    faults = [
        "GPU %s has %s of %s PCIe lanes" % (index, now[index], most[index]) for index in now if number(now[index]) < number(most[index])
    ]
    if have["nvlinks"]:
        faults += ["GPU %s has %s PCIe lanes and not 16" % (index, width) for index, width in most.items() if number(width) < 16]
        least = PCIE_GENERATION.get(have["gpu_arch"], 3)
        faults += ["GPU %s has PCIe generation %s and not %d" % (*pair, least) for pair in generation.items() if number(pair[1]) < least]
    return Found("%s lanes" % "/".join(sorted(set(now.values()))), "all lanes", faults)


def gpu_throttle(node):
    """No hardware slows a GPU down. The driver's power cap, idleness and application clocks are normal."""
    rows, faults = query(node), []
    for reason in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"):
        slow = [index for index, value in each(rows, "clocks_event_reasons." + reason) if value != "Not Active"]
        faults += ["%s is active on %s" % (reason, some(slow))] if slow else []
    return Found("; ".join(faults) or "none", "none", faults)


def gpu_temperature(node):
    limits, rows = node.want["limits"], query(node)
    hot = ["GPU %s has %s °C" % pair for pair in each(rows, "temperature.gpu") if number(pair[1]) >= limits["gpu_celsius"]]
    memory = [(row["index"], row["temperature.memory"]) for row in rows if row.get("temperature.memory", "") not in NOTHING]
    hot += ["the memory of GPU %s has %s °C" % pair for pair in memory if number(pair[1]) >= limits["gpu_memory_celsius"]]
    return Found("; ".join(hot) or "as it should be", "below %g °C" % limits["gpu_celsius"], hot)


def gpu_persistence(node):
    off = [index for index, value in each(query(node), "persistence_mode") if value != "Enabled"]
    return Found("off on %s" % some(off) if off else "Enabled", "Enabled", ["persistence is off on %s" % some(off)] if off else [])


def gpu_mig(node):
    want = "Enabled" if node.want["mig"] else "Disabled"
    bad = [index for index, value in each(query(node), "mig.mode.current") if value != want]
    return Found("other on %s" % some(bad) if bad else want, want, ["MIG is not %s on %s" % (want, some(bad))] if bad else [])


def gpu_recovery(node):
    """What the driver itself asks for, since 570."""
    asked = [(index, value) for index, value in each(log(node), "recovery", 570) if value.lower() != "none"]
    severities = [RECOVERY_SEVERITY.get(value.lower(), "reset") for _index, value in asked]
    severity = "reboot" if "reboot" in severities else "reset"
    return Found(
        ", ".join(value for _index, value in asked) or "None",
        "None",
        ["the driver asks for %s: %s" % (v, some([i])) for i, v in asked],
        severity,
    )


def jobs_of_slurm(node):
    """The steps that run here, by the titles of their slurmstepd."""
    found = []
    for pid in node.names("/proc"):
        if pid.isdigit():
            step = re.match(r"slurmstepd: \[([^\]]+)\]", node.value("/proc/%s/cmdline" % pid).replace("\0", " "))
            found += [step[1]] if step else []
    return found


def gpu_strays(node):
    """Between jobs nobody holds GPU memory."""
    rows = query(node)
    held = [(index, number(value)) for index, value in each(rows, "memory.used") if number(value) > node.want["limits"]["gpu_stray_mib"]]
    if held and jobs_of_slurm(node):
        return Found("a job runs", "no memory in use between jobs")
    faults = ["no job runs and GPU %s has %d MiB in use" % pair for pair in held]
    return Found("%d GPUs in use" % len(held), "no memory in use between jobs", faults)


def nvlink(node):
    have = node.want["type"]
    up = gpu.parse_nvlink(smi(node, ["nvlink", "-s"]))
    if not up:
        raise CannotRun("nvidia-smi nvlink -s lists no link")
    for row in query(node):
        up.setdefault(int(row["index"]), 0)  # nvidia-smi leaves out a GPU without links
    down = {index: count for index, count in up.items() if count < have["nvlinks"]}
    faults = ["GPU %d has %d of %d NVLinks up" % (index, count, have["nvlinks"]) for index, count in sorted(down.items())]
    return Found("%d of %d" % (sum(up.values()), have["nvlinks"] * len(up)), "all up", faults)


def nvlink_errors(node):
    """Replay, recovery and CRC errors have not grown since the last look."""
    counts: dict = {}
    index = link = ""
    for line in smi(node, ["nvlink", "-e"]).splitlines():
        head = re.match(r"\s*GPU (\d+):", line)
        index = head[1] if head else index
        found = re.match(r"\s*Link (\d+): ([A-Za-z ]+?)(?: Errors?)?: (\d+)", line)
        if found:
            link = found[1]
            counts["%s.%s.%s" % (index, link, found[2].strip().lower())] = int(found[3])
    if not counts:
        raise CannotRun("nvidia-smi nvlink -e lists no counter")
    before = node.state.get("nvlink", {})
    node.state["nvlink"] = counts
    grown = {key: value - before[key] for key, value in counts.items() if value > before.get(key, value)}
    faults = []
    for key, more in sorted(grown.items()):
        gpu_index, number_of, kind = key.split(".", 2)
        faults.append("link %s of GPU %s has %d more errors of kind %s" % (number_of, gpu_index, more, kind))
    return Found("%d more errors" % sum(grown.values()), "no more errors", faults[:8])


def fabric_state(node):
    rows = log(node)
    states = {index: (value, dict(each(rows, "fabric_status"))[index]) for index, value in each(rows, "fabric_state")}
    bad = {index: pair for index, pair in states.items() if pair != ("Completed", "Success")}
    faults = ["the NVLink fabric of GPU %s is %s, %s" % (index, *pair) for index, pair in bad.items()]
    return Found("; ".join(faults) or "Completed, Success", "Completed, Success", faults)


def fabric_manager(node):
    """The daemon of the NVSwitches runs and has the driver's version."""
    if node.rehearsed:
        node.saw(["NVSwitches of " + node.rehearsed["instance_type"]])
        raise CannotRun("it needs NVSwitches")
    state = node.ask(["systemctl", "show", "--property=ActiveState", "--value", "nvidia-fabricmanager"]).strip()
    faults = [] if state == "active" else ["nvidia-fabricmanager is %s" % state]
    version = re.search(r"(\d+\.\d+[\d.]*)", node.ask(["nv-fabricmanager", "--version"]))
    driver = node.value("/sys/module/nvidia/version")
    if not faults and (not version or version[1] != driver):
        faults.append("the fabric manager has version %s and the driver %s" % (version[1] if version else "unknown", driver or "none"))
    return Found(state, "active, of the driver's version", faults)


WORST = ("info", "warning", "drain", "reset", "reboot", "replace")


def xid(node):
    """The XIDs of this boot, judged by the table in xids.py."""
    events = xids.parse(node.kernel_log())[0]
    own = node.want["xid_severity"]
    judged = [(xids.severity_of(event["code"], event["text"], own), event) for event in events]
    worst = max((severity for severity, _event in judged), key=WORST.index, default="info")
    bad = [event for severity, event in judged if severity != "info"]
    faults = list(dict.fromkeys(xids.describe(event) for event in bad))
    counted = len(events) - len(bad)
    return Found("%d XIDs%s" % (len(events), ", %d of programs" % counted if counted else ""), "none of hardware", faults[:8], worst)


def sxid(node):
    """The SXids of the NVSwitches. Together with XID 74 the switch is the suspect, not the GPU."""
    gpus, switches = xids.parse(node.kernel_log())
    judged = [(xids.switch_severity(event["code"], event["text"]), event) for event in switches]
    worst = max((severity for severity, _event in judged), key=WORST.index, default="info")
    faults = list(dict.fromkeys(xids.describe(event, "SXid") for severity, event in judged if severity != "info"))
    if faults and any(event["code"] == 74 for event in gpus):
        faults.append("with XID 74 the switch is the suspect")
    return Found("%d SXids" % len(switches), "none that is fatal", faults[:8], worst)


def nccl_crash(node):
    """No program died inside NCCL since boot."""
    lines = [line for line in node.kernel_log() if "libnccl" in line and "segfault" in line]
    return Found("%d crashes" % len(lines), "none", ["a program crashed in libnccl: %s" % lines[-1][:120]] if lines else [])


def parse_dcgm(text):
    """`dcgmi diag -j` of DCGM 3 and 4 -> (number of results, [faults], whether only settings are wrong). No result is no pass."""
    start = text.find("{")
    try:
        document = json.loads(text[start:]) if start >= 0 else {}
    except ValueError as error:
        raise CannotRun("dcgmi diag printed no JSON: %s" % error) from None
    roots = [document[key] for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if key in document]
    root = roots[0] if roots else None
    if not isinstance(root, dict):
        raise CannotRun("dcgmi diag printed JSON without a diagnostic that Muster knows")
    count, faults, severities = 0, [], set()
    for category in root.get("test_categories") or []:
        for test in category.get("tests") or []:
            for result in test.get("results") or []:
                status = str(result.get("status", "")).lower()
                if status in ("skip", "skipped", "not run"):
                    continue
                count += 1
                if status != "pass":
                    entity = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", "")))
                    severities |= {warn.get("error_severity") for warn in result.get("warnings") or [{}] if isinstance(warn, dict)}
                    said = [warn.get("warning", "") if isinstance(warn, dict) else str(warn) for warn in result.get("warnings") or []]
                    faults.append("%s %s: %s" % (test.get("name", "test"), entity, (said or [status or "no status"])[0][:160]))
    if not count:
        raise CannotRun("dcgmi diag ran no test")
    return count, faults, severities == {DCGM_CONFIGURATION}


def dcgm(node):
    """DCGM's diagnostic of the level that the settings name."""
    level = node.want["dcgm_level"]
    rc, out, err = node.answer(["dcgmi", "diag", "-r", str(level), "-j"], node.want["dcgm_seconds"])
    if rc and "{" not in out:
        raise CannotRun("dcgmi diag ended with code %d: %s" % (rc, " ".join((err or out).split())[:160]))
    count, faults, settings_alone = parse_dcgm(out)
    if rc and not faults:
        faults = ["dcgmi diag ended with code %d and names no failed test" % rc]
    return Found("%d results" % count, "all pass", faults[:8], "warning" if settings_alone else "")
