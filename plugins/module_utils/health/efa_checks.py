# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health checks of EFA and of Neuron devices. Each is `check(node) -> Found`, see lookat.py."""

from __future__ import annotations

import os
import re
import resource

from ansible_collections.muster.fleet.plugins.module_utils.hardware import efa
from ansible_collections.muster.fleet.plugins.module_utils.health.lookat import CannotRun, Found
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal

# Counters that rise when something is wrong: how fast they may (a second), and how much at once, after aws/eks-node-monitoring-agent
# at 51af549.
LIMITS = {
    "rx_drops": (1, 100),
    "rdma_read_wr_err": (1, 100),
    "rdma_write_wr_err": (1, 100),
    "unresponsive_remote_events": (1, 100),
    "impaired_remote_conn_events": (1, 100),
    "retrans_timeout_events": (1, 100),
    "retrans_pkts": (1, 1000),
    "retrans_bytes": (1, 1000000),
}
MODULES = ("efa", "ib_uverbs", "ib_core")
PLUGIN = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/amazon/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/lib")
LEAST_MEMLOCK = 16 << 30


def devices(node):
    node.path("/sys/class/infiniband")
    return efa.devices(node.path("/"))


def some_devices(node):
    """The EFA devices; CannotRun when there is none: a check of no device has not passed."""
    found = devices(node)
    if not found:
        raise CannotRun("the node has no EFA device")
    return found


def efa_count(node):
    """The type's EFA devices. p5en shows them late after boot, so the caller looks again."""
    have = node.want["type"]
    found = len(devices(node))
    wanted = " or ".join(map(str, have["efa_counts"]))
    return Found(str(found), wanted, ["%d of %s EFA devices are there" % (found, wanted)] if found not in have["efa_counts"] else [])


def efa_ports(node):
    found = some_devices(node)
    idle = [(each["name"], each["state"] or "without a state") for each in found if each["state"] != "ACTIVE"]
    return Found("%d idle of %d" % (len(idle), len(found)), "every port ACTIVE", ["the port of %s is %s" % pair for pair in idle])


def efa_modules(node):
    """The kernel has EFA's modules."""
    lacking = [name for name in MODULES if not node.exists("/sys/module/" + name)]
    return Found(
        ", ".join(lacking) + " missing" if lacking else "loaded", "loaded", ["the module %s is not loaded" % name for name in lacking]
    )


def efa_provider(node):
    """libfabric offers every device by its provider efa, so that no collective falls back to TCP."""
    program = "/opt/amazon/efa/bin/fi_info"
    rc, out, err = node.answer([program if node.exists(program) else "fi_info", "-p", "efa", "-t", "FI_EP_RDM"], 20)
    offered = efa.domains(efa.parse_fi_info(out))
    lacking = sorted({each["name"] for each in devices(node)} - set(offered))
    faults = ["libfabric does not offer %s" % ", ".join(lacking)] if lacking else []
    if offered:
        some_devices(node)
    else:
        faults = ["libfabric has no provider efa: %s" % (" ".join((err or out).split())[-120:] or "fi_info ended with code %d" % rc)]
    return Found("%d domains" % len(offered), "a domain for each device", faults)


def efa_plugin(node):
    """NCCL's plugin for EFA is where NCCL looks."""
    names = [os.path.join(folder, name) for folder in PLUGIN for name in node.names(folder) if re.match(r"libnccl-net.*\.so", name)]
    for name in names:
        node.saw(rehearsal.in_file(node.path(name)))
    return Found(names[0] if names else "none", "libnccl-net*.so", [] if names else ["no libnccl-net*.so in %s" % ", ".join(PLUGIN)])


def bucket(before, value, seconds, rate, burst):
    """(tokens, whether the counter rose too fast) of a token bucket. before: {value, tokens} of the last look, or None."""
    if before is None or value < before["value"]:
        return burst, False  # the first look, or the counter began again
    tokens = min(burst, before["tokens"] + rate * seconds) - (value - before["value"])
    return max(tokens, 0), tokens < 0


def efa_counters(node):
    """The counters of errors and repetitions rise no faster than AWS's limits."""
    state = node.state.setdefault("efa", {})
    boot = node.value("/proc/sys/kernel/random/boot_id")
    if state.get("boot") != boot:
        state.clear()
        state.update(boot=boot, at=node.now, counters={})
    seconds, faults, looked = max(node.now - state["at"], 0), [], 0
    for device in devices(node):
        ports = "/sys/class/infiniband/%s/ports" % device["name"]
        for port in node.names(ports):
            for name, (rate, burst) in LIMITS.items():
                text = node.value("%s/%s/hw_counters/%s" % (ports, port, name))
                if not text.isdigit():
                    continue  # older drivers lack some
                looked += 1
                key = "%s/%s/%s" % (device["name"], port, name)
                before = state["counters"].get(key)
                tokens, fast = bucket(before, int(text), seconds, rate, burst)
                if fast:
                    faults.append("%s of %s rose by %d in %d s" % (name, device["name"], int(text) - before["value"], seconds))
                state["counters"][key] = {"value": int(text), "tokens": tokens}
    state["at"] = node.now
    if not looked:
        raise CannotRun("no EFA port has counters")
    return Found("%d counters" % looked, "no counter rises fast", faults[:8])


def efa_memlock(node):
    """EFA registers the memory of a job, so its limit must be high. Slurm's daemon hands its own limit to jobs."""
    limit = node.want.get("memlock")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    words = "unlimited" if soft == resource.RLIM_INFINITY else "%d MiB" % (soft >> 20)
    low = soft != resource.RLIM_INFINITY and soft < LEAST_MEMLOCK
    return Found(words, "16 GiB or more", ["the limit of locked memory is %s" % words] if low else [])


def parse_pingpong(text):
    """The highest MB/s of the rows of fi_pingpong: bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec."""
    rows = [line.split() for line in text.splitlines()]
    return max([float(row[5]) for row in rows if len(row) == 8 and re.fullmatch(r"[\d.]+", row[5])], default=0.0)


def efa_loopback(node):
    """Each EFA device sends to itself, without shared memory."""
    script = (
        "export FI_EFA_ENABLE_SHM_TRANSFER=0 FI_EFA_IFACE=$1; command -v fi_pingpong >/dev/null || exit 127; "
        "fi_pingpong -p efa -e rdm -d $1-rdm -S 1048576 -I 200 >/dev/null 2>&1 & server=$!; sleep 0.5; "
        "fi_pingpong -p efa -e rdm -d $1-rdm -S 1048576 -I 200 localhost; code=$?; kill $server 2>/dev/null; exit $code"
    )
    least, rates, faults = node.want["limits"]["efa_loopback_mbps"], [], []
    for device in some_devices(node):
        rc, out, err = node.answer(["sh", "-c", script, "efa-loopback", device["name"]], 30)
        if rc == 127:
            raise CannotRun("fi_pingpong is not installed")
        rate = parse_pingpong(out)
        rates.append(rate)
        if rc or not rate:
            faults.append("%s did not reach itself: %s" % (device["name"], " ".join((err or out).split())[-120:] or "code %d" % rc))
        elif rate < least:
            faults.append("%s sends %g MB/s to itself" % (device["name"], rate))
    return Found("%g to %g MB/s" % (min(rates), max(rates)), "%g MB/s or more" % least, faults[:8])


def gdrcopy(node):
    """The driver gdrdrv is loaded and copies."""
    if not node.exists("/sys/module/gdrdrv"):
        return Found("not loaded", "gdrdrv loaded", ["the module gdrdrv is not loaded"])
    rc, out, err = node.answer(["gdrcopy_sanity"], 60)
    return Found("loaded", "gdrcopy_sanity passes", ["gdrcopy_sanity ended with code %d: %s" % (rc, (err or out)[-120:])] if rc else [])


def neuron_count(node):
    have = node.want["type"]
    found = len([name for name in node.names("/sys/class/neuron_device") if re.fullmatch(r"neuron\d+", name)])
    return Found(
        str(found), str(have["gpus"]), ["%d of %d Neuron devices are there" % (found, have["gpus"])] if found != have["gpus"] else []
    )
