# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nccl-tests 2.19 as it prints on a GPU: ranks of Slurm's step, and a table from the references in the document."""

from __future__ import annotations

import os
import re
import socket

from .node import COLLECTIVES, Refused, known_versions, option, say
from .nvidia import gpus_of

SIZES = {"char": 1, "int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "int32": 4, "float": 4, "int64": 8, "double": 8}


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
    form = "# nThread 1 nGpus 1 minBytes %d maxBytes %d step: %s warmup iters: 1 iters: %d agg iters: 1 validation: 1 graph: 0 unalign: 0"
    say(form % (low, high, stride, iters) + "\n#\n# Using devices")
    for rank, host in enumerate(hosts):
        at = hosts[:rank].count(host)
        gpu = document["gpus"][at % len(document["gpus"])]
        form = "#  Rank %2d Group  0 Pid %6d on %10s device %2d [%s] %s"
        say(form % (rank, os.getpid(), host, at, gpu["bus"][:-2], document["gpu_name"]))
    level, version = os.environ.get("NCCL_DEBUG", "").upper(), "NCCL version %s+cuda%s"
    version %= (versions["nccl"], ".".join(versions["cuda"].split(".")[:2]))
    if level in ("VERSION", "WARN"):
        say(version)
    if level in ("INFO", "TRACE"):
        begin = "%s:%d:%d [0] NCCL INFO " % (hosts[0], os.getpid(), os.getpid())
        say(begin + version)
        if document["efa"]:
            say(begin + "NET/OFI Selected provider is efa, fabric is efa (found %d nics)" % len(document["efa"]))
        say(begin + "Using network %s" % ("Libfabric" if document["efa"] else "Socket"))


def shown(value, width):
    """A number as getFloatStr of nccl-tests prints it: as many decimals as fit."""
    texts = ["%*.*f" % (width, digits, value) for digits in (2, 1, 0)]
    return next((text for text in texts if len(text) <= width), "%*.*e" % (width, width >= 7, value))


def checked(collective):
    """The column #wrong out of place and in place. nccl-tests does not check all of them in place."""
    return ("       0", "    N/A" if collective in ("alltoall", "sendrecv") else "       0")


def print_perf_table(document, collective, hosts, rows, *, kind, factor):
    weight, redop, root = COLLECTIVES[collective]
    ranks, nodes = len(hosts), len(set(hosts))
    share = weight * (ranks - 1) / ranks if weight else 1.0
    say("#\n#%74s%31s          " % ("out-of-place", "in-place"))
    head = "     time   algbw   busbw  #wrong"
    say("# %10s  %12s  %8s  %6s  %6s%s%s " % ("size", "count", "type", "redop", "root", head, head))
    units = "     (us)  (GB/s)  (GB/s)        "
    say("# %10s  %12s  %8s  %6s  %6s%s%s " % ("(B)", "(elements)", "", "", "", units, units))
    total = 0.0
    # These have a part for each rank, of whole 16 bytes.
    parts = ranks if weight == 1 else 1
    for asked in rows:
        count = asked // (parts * SIZES[kind])
        if parts > 1:
            count -= count % max(16 // SIZES[kind], 1)
        size = count * parts * SIZES[kind]
        # One rank sends nothing; nccl-tests prints a bus bandwidth of 0 for it.
        moves = ranks > 1 and size
        time = size * share / (busbw(document["reference"][collective], nodes, asked, factor) * 1000) if moves else 5.0
        algbw = size / (time * 1000)
        reached = algbw * share if moves else 0.0
        total += reached
        sides = ["  %s  %s  %s" % (shown(time, 7), shown(algbw, 6), shown(reached, 6)) + wrong for wrong in checked(collective)]
        say("%12d  %12d  %8s  %6s  %6d%s" % (size, count, kind, redop, root, "".join(sides)))
    say("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : %g \n#" % (total / len(rows)))
    say("# Collective test concluded: %s_perf\n#\n" % collective)
