# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health checks of a node without its accelerators: memory, disks, mounts, time, kernel, daemons. Each is `check(node) -> Found`."""

from __future__ import annotations

import os
import re

from ansible_collections.muster.fleet.plugins.module_utils.health.lookat import CannotRun, Found, NotHere
from ansible_collections.muster.fleet.plugins.module_utils.node import manifest, rehearsal

LEAST_MEMORY = 0.95  # of the type's nominal memory; the kernel keeps some for itself


def meminfo(node):
    """{key: kB} of /proc/meminfo."""
    return {key: int(value) for key, value in re.findall(r"(?m)^(\w+):\s+(\d+)", node.text("/proc/meminfo"))}


def memory_size(node):
    have = node.want["type"]
    mib = meminfo(node).get("MemTotal", 0) // 1024
    low = mib < LEAST_MEMORY * have["memory_mib"]
    return Found(
        "%d MiB" % mib, "%d MiB" % have["memory_mib"], ["the node has %d of %d MiB of memory" % (mib, have["memory_mib"])] if low else []
    )


def memory_available(node):
    """A program that the last job left, or a leak, has not taken the memory. In a container its own limit counts."""
    found = meminfo(node)
    total, left = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, now = node.value(limit), node.value(used)
        if most.isdigit() and now.isdigit() and 0 < int(most) // 1024 < total:
            # The kernel drops the file cache of a group that needs its memory.
            stat = node.value(limit.rsplit("/", 1)[0] + "/memory.stat")
            cache = sum(int(value) for value in re.findall(r"(?m)^(?:total_)?inactive_file (\d+)", stat)[-1:])
            total = int(most) // 1024
            left = min(left, total - (int(now) - cache) // 1024)
    if not total:
        raise CannotRun("/proc/meminfo has no MemTotal")
    percent = 100.0 * left / total
    least = node.want["limits"]["memory_available_percent"]
    return Found("%d%%" % percent, "%g%% or more" % least, ["%d%% of the memory is available" % percent] if percent < least else [])


def swap(node):
    used = meminfo(node).get("SwapTotal", 0)
    return Found("%d MiB" % (used // 1024), "off", ["swap is on"] if used else [])


def out_of_memory(node):
    """The kernel has not killed a process of the system for want of memory. A job that hits its own limit is not the node's fault."""
    killed = [line for line in node.kernel_log() if "Out of memory: Killed process" in line]
    return Found("%d kills" % len(killed), "none", [killed[-1][:120]] if killed else [])


def percent(total, free, available):
    """How full a file system is in percent, as df counts: what root keeps or a quota forbids is no part. None: it counts nothing."""
    used = total - free
    return 100.0 * used / (used + available) if used + available > 0 else None


def disk_space(node):
    most, faults, worst = node.want["limits"]["disk_percent"], [], 0.0
    for path in node.want["disks"]:
        space = node.space(path)
        used = percent(space.f_blocks, space.f_bfree, space.f_bavail)
        if used is None:
            raise CannotRun("the file system of %s counts no blocks" % path)
        worst = max(worst, used)
        faults += ["%s is %d%% full" % (path, used)] if used >= most else []
    return Found("%d%%" % worst, "less than %g%%" % most, faults)


def disk_inodes(node):
    most, faults, worst = node.want["limits"]["disk_percent"], [], 0.0
    spaces = {path: node.space(path) for path in node.want["disks"]}
    counted = {path: percent(space.f_files, space.f_ffree, space.f_favail) for path, space in spaces.items()}
    if set(counted.values()) <= {None}:
        raise NotHere("the file system of %s counts no inodes" % ", ".join(spaces))
    for path, used in counted.items():
        if used is None:
            continue
        worst = max(worst, used)
        faults += ["%d%% of the inodes of %s are used" % (used, path)] if used >= most else []
    return Found("%d%%" % worst, "less than %g%%" % most, faults)


def mounted(node):
    """{mount point: (type, options)}; the last one of a path is what the node sees."""
    rows = [line.split() for line in node.text("/proc/self/mounts").splitlines()]
    return {row[1].replace("\\040", " "): (row[2], row[3].split(",")) for row in rows if len(row) > 3}


def read_only(node):
    """The kernel has not made a file system of the node read-only after an error."""
    found, bad = mounted(node), []
    for path in node.want["disks"]:
        holder = os.path.normpath(path)
        while holder not in found and holder != "/":
            holder = os.path.dirname(holder)
        if holder not in found or not node.exists(path):
            raise CannotRun("%s is on no file system of the node" % path)
        bad += [path] if "ro" in found[holder][1] else []
    return Found(", ".join(bad) or "writable", "writable", ["%s is read-only" % path for path in bad])


# File systems that ask a server, which may not answer.
REMOTE = re.compile(r"^(nfs4?|lustre|cifs|ceph|fuse|fuse\..+|glusterfs|beegfs|9p)$")


def mounts(node):
    """What must be mounted is, and every network file system answers. A child looks, because the kernel may never let it return."""
    found = mounted(node)
    faults = ["%s is not mounted" % path for path in node.want["mounts"] if path not in found]
    gone = len(faults)
    ask = [path for path in node.want["mounts"] if path in found]
    ask += [path for path, (kind, _options) in found.items() if REMOTE.match(kind) and path not in ask]
    if not ask and not faults:
        raise NotHere("the node has no network file system, and its settings name no mount")
    for path in ask:
        try:
            rc, _out, err = node.answer(["stat", "--file-system", "--format=%T", path], 2)
        except CannotRun as error:
            if "did not end" not in str(error):
                raise
            faults.append("%s does not answer within 2 s" % path)
            continue
        if rc:
            faults.append("%s: %s" % (path, " ".join(err.split())[-100:]))
    return Found("%d of %d answer" % (len(ask) - len(faults) + gone, len(ask)), "mounted and answering", faults)


def clock(node):
    """chrony follows a time server, and the clock is right. Munge refuses credentials across a wrong clock."""
    rows = [line.split(",") for line in node.ask(["chronyc", "-n", "-c", "tracking"]).splitlines()]
    row = rows[0] if rows else []
    if len(row) not in (13, 14):  # chrony below 4.6 does not name the server
        raise CannotRun("chronyc tracking printed %d fields" % len(row))
    try:
        offset = abs(float(row[-10])) * 1000
    except ValueError:
        raise CannotRun("chronyc tracking printed the offset %r" % row[-10]) from None
    most = node.want["limits"]["clock_ms"]
    faults = ["the clock follows no time server"] if row[-1] != "Normal" or row[0] == "7F7F0101" else []
    faults += ["the clock is %.3g ms off" % offset] if offset > most else []
    return Found("%.3g ms off, %s" % (offset, row[-1]), "at most %g ms off" % most, faults)


def clock_source(node):
    now = node.value("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not now:
        raise CannotRun("the kernel names no clock source")
    good = ("tsc", "arch_sys_counter", "kvm-clock")
    return Found(now, " or ".join(good), [] if now in good else ["the clock source is %s, which is slow" % now])


def cpus(node):
    have = node.want["type"]
    online = node.value("/sys/devices/system/cpu/online")
    count = sum(int(last or first) - int(first) + 1 for first, last in re.findall(r"(\d+)(?:-(\d+))?", online))
    wanted = (have["cores"], have["cores"] * have["threads_per_core"])
    return Found(
        str(count), " or ".join(map(str, wanted)), ["%d of %d CPUs are online" % (count, wanted[1])] if count not in wanted else []
    )


def governor(node):
    path = "/sys/devices/system/cpu"
    found = {node.value("%s/%s/cpufreq/scaling_governor" % (path, name)) for name in node.names(path) if re.fullmatch(r"cpu\d+", name)}
    found.discard("")
    if not found:
        raise NotHere("the host sets the frequency, no CPU has a governor here")
    slow = sorted(found - {"performance"})
    return Found(", ".join(sorted(found)), "performance", ["the CPU governor is %s" % ", ".join(slow)] if slow else [])


def kernel(node):
    """The running kernel has its modules, and the loaded driver is the installed one."""
    release = node.ask(["uname", "-r"]).strip()
    faults = [] if node.exists("/lib/modules/" + release) else ["/lib/modules has no folder of the running kernel %s" % release]
    for module in ("nvidia", "efa") if not faults else ():
        loaded = node.value("/sys/module/%s/version" % module)
        if not loaded:
            continue
        rc, out, _err = node.answer(["modinfo", "-F", "version", module], 10)
        installed = out.strip()
        if rc or (installed and installed != loaded):
            faults.append("the kernel runs %s %s and %s is installed; restart the node" % (module, loaded, installed or "none"))
    return Found(release, "modules of the running kernel", faults)


def stuck_processes(node):
    """No process has waited in the kernel since the last look: a dead disk or file system."""
    stuck = {}
    for pid in node.names("/proc"):
        if pid.isdigit():
            head, _bracket, rest = node.value("/proc/%s/stat" % pid).rpartition(")")
            fields = rest.split()
            if fields[:1] == ["D"] and len(fields) > 19:
                stuck["%s/%s" % (pid, fields[19])] = head.partition("(")[2]
    before = node.state.get("stuck", {})
    node.state["stuck"] = stuck
    still = [name for key, name in stuck.items() if key in before]
    return Found("%d" % len(still), "none", ["%s waits in the kernel since the last check" % name for name in still[:5]])


def units(node):
    """The daemons that the node needs run."""
    wanted = node.want["units"]
    out = node.ask(["systemctl", "show", "--property=Id,ActiveState", "--", *wanted])
    parts = [dict(line.split("=", 1) for line in part.splitlines() if "=" in line) for part in out.strip().split("\n\n")]
    # It answers in the order of the names, and with the name behind an alias.
    if len(parts) != len(wanted):
        raise CannotRun("systemctl says something of %d units and not of %s" % (len(parts), ", ".join(wanted)))
    states = [(name, part.get("ActiveState", "")) for name, part in zip(wanted, parts)]
    good = ("active", "reloading", "activating")
    faults = ["%s is %s" % (name, state or "unknown") for name, state in states if state not in good]
    return Found("%d of %d run" % (len(wanted) - len(faults), len(wanted)), "all run", faults)


def drift(node):
    """What the manifest says is still installed."""
    text = node.text(manifest.PATH)
    try:
        document = manifest.parse(text)
    except manifest.ManifestError as error:
        raise CannotRun(str(error)) from None
    names = [name for entry in document["components"].values() for name in entry["packages"]]
    versions = {}
    if names:
        if node.exists("/usr/bin/dpkg-query"):
            versions = manifest.parse_dpkg(node.ask(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n"], 20))
        else:
            versions = manifest.parse_rpm(node.ask(["rpm", "-qa", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n"], 20))
    if not document["components"]:
        raise CannotRun("%s has no component" % manifest.PATH)
    faults = []
    for name, entry in sorted(document["components"].items()):
        node.saw(rehearsal.of_entry(entry) if node.rehearsed else [])
        faults += ["%s: %s" % (name, reason) for reason in manifest.differences(entry, None, node.exists, versions)]
    return Found("%d components" % len(document["components"]), "as installed", faults[:8])


def raid(node):
    """No array of local disks lacks one."""
    text = node.value("/proc/mdstat")
    arrays = len(re.findall(r"(?m)^md", text))
    if not arrays:
        raise NotHere("the node has no array")
    bad = [name for name, state in re.findall(r"(?m)^(md\S+) : .*\n.*\[([U_]+)\]", text) if "_" in state]
    bad += re.findall(r"(?m)^(md\S+) : inactive", text)
    return Found("%d arrays" % arrays, "no array lacks a disk", ["the array %s lacks a disk" % name for name in bad])


def mtu(node):
    """Every network card of the type's has jumbo frames."""
    sizes = {}
    for name in node.names("/sys/class/net"):
        if node.exists("/sys/class/net/%s/device" % name) and node.value("/sys/class/net/%s/operstate" % name) == "up":
            size = node.value("/sys/class/net/%s/mtu" % name)
            sizes.update({name: int(size)} if size.isdigit() else {})
    if not sizes:
        raise CannotRun("no network card of the node is up")
    small = ["%s has an MTU of %d" % pair for pair in sizes.items() if pair[1] < node.want["limits"]["mtu"]]
    return Found("; ".join(small) or "%d cards" % len(sizes), "%d or more" % node.want["limits"]["mtu"], small)


def verdict(node):
    """What the last periodic run said, for the prolog: it must not be old, and nothing in it may ask for a drain."""
    last = node.state.get("verdict")
    if not last:
        raise CannotRun("no periodic run has ended on this node yet")
    age = node.now - last["at"]
    faults = ["%s (%d s ago)" % (text, age) for text in last["drains"]]
    if age > node.want["verdict_seconds"]:
        faults.append("the last periodic run was %d s ago" % age)
    return Found(
        "%d s old, %d faults" % (age, len(last["drains"])), "without faults, at most %d s old" % node.want["verdict_seconds"], faults[:5]
    )
