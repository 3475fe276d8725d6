# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The jobs that prove a fleet, from the instance types of its nodes: collectives and a short training.

A job runs on one type, so a fleet of several types has jobs for each. The nodes of a rehearsal have the devices of their type and no
GPU: they train the small model on their CPUs, and `real` is the document that nodes of the type would run.
On Kubernetes they measure on their CPUs, too, because pods have no stand-in of nccl-tests. One job has all collectives; `real` is a list.
"""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_inspector import INSPECTED
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import KUBERNETES, JobError

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"]
GLOO_TYPES = ["int8", "int32", "int64", "half", "bfloat16", "float", "double"]
NCCL_TYPES = [*GLOO_TYPES, "f8e4m3", "f8e5m2"]
COLLECTIVES = {"ops": OPS, "min_bytes": 8, "max_bytes": "64M", "iterations": 5, "backend": "gloo", "procs_per_node": 1, "time_limit": 30}
TRAINING = {
    "model": "tiny",
    "procs_per_node": 1,
    "cpus_per_proc": 1,
    "steps": 60,
    "batch_size": 8,
    "checkpoint_freq": 10,
    "backend": "gloo",
    "time_limit": 60,
    "retries": 3,
    "tokens": 2000000,
    "folder": "/fsx/home/muster/training",
    "lr": 3e-3,
    "args": [],
}
# The first that fits: memory of a GPU in GiB and GPUs of a node, both at least, and the model whose whole state and a sample they hold
# (python -m trainer estimate). It need not be the largest: the job proves the way to the GPUs, and writes its checkpoints in seconds.
MODELS = ((80, 4, "llama-3.1-8b"), (40, 1, "llama-3.2-1b"), (0, 1, "reference"))
NCCL_TESTS = "/opt/nccl-tests"  # the default of nccl_tests_prefix
LARGEST = 16 << 30  # bytes of the largest message, unless the network is fast only from larger ones on


def type_of(name):
    """The catalogue's entry of a node's type; None for one that it does not have, which has no accelerators."""
    try:
        return catalogue.instance_type(name) if name else None
    except catalogue.CatalogueError:
        return None


def kinds(hosts, types):
    """{instance type: its hosts}; "" is for hosts without one."""
    found: dict = {}
    for host in hosts:
        found.setdefault(types.get(host) or "", []).append(host)
    return found


def largest_message(have):
    """The largest message of a sweep in bytes: nccl-tests keeps three buffers of it on each GPU."""
    quarter = have["gpu_memory_mib"] << 18
    return min(1 << quarter.bit_length() - 1, max(LARGEST, have["full_speed_bytes"]))


def size(number):
    """Bytes as nccl-tests reads them: 16G."""
    for power, unit in ((30, "G"), (20, "M")):
        if number >> power and not number % (1 << power):
            return "%d%s" % (number >> power, unit)
    return str(number)


def settings(have):
    """({settings of the collectives}, {settings of the training}) on a type; those of CPUs for None and for types without NVIDIA GPUs."""
    if not have or have["accelerator"] != "nvidia":
        return COLLECTIVES, TRAINING
    gpus = have["gpus"]
    collectives = {"backend": "nccl", "procs_per_node": gpus, "max_bytes": size(largest_message(have)), "iterations": 20}
    model = next(model for memory, least, model in MODELS if have["gpu_memory_gib"] >= memory and gpus >= least)
    training = {"backend": "nccl", "model": model, "procs_per_node": gpus, "cpus_per_proc": max(have["vcpus"] // gpus, 1)}
    return {**COLLECTIVES, **collectives}, {**TRAINING, **training, "batch_size": 1, "checkpoint_freq": 30, "lr": 3e-4}


def partition_of(kind):
    """The name of the partition that a fleet of several types has for one of them (slurm.conf.compute_groups)."""
    return (kind if type_of(kind) else re.sub(r"\W", "_", kind)) or "compute"


def parts(everyone, types, hosts=None, rehearsed=(), gpu_hosts=()):
    """[{type, have, hosts, suffix, partition, options, rehearsed}] of the types whose nodes jobs may use.

    everyone: all compute hosts; types: {host: instance type or ""}; hosts: those that passed their checks; rehearsed: those of a rehearsal;
    gpu_hosts: those with GPUs. Raises JobError for a node whose GPUs no job would use.
    """
    usable = set(everyone if hosts is None else hosts)
    for host in everyone:
        if host in gpu_hosts and (type_of(types.get(host)) or {}).get("accelerator") != "nvidia":
            message = "The GPU node %s has the instance_type %s, from which no job follows; name its type as docs/catalogue.md does."
            raise JobError(message % (host, types.get(host) or "''"))
    groups = kinds(everyone, types)
    out = []
    for kind, members in groups.items():
        proven = [host for host in members if host in usable]
        if proven:
            several = len(groups) > 1
            # Slurm does not know which nodes failed their checks.
            failed = ",".join(host.split(".")[0] for host in members if host not in usable)
            out.append(
                {
                    "type": kind,
                    "have": type_of(kind),
                    "hosts": proven,
                    "suffix": "-" + partition_of(kind).lower() if several else "",
                    "partition": partition_of(kind) if several else "",
                    "options": {"exclude": failed} if failed else {},
                    "rehearsed": bool(set(proven) & set(rehearsed)),
                }
            )
    return out


def placed(part, asked, kind, mpi):
    """The launcher of a job, and where it places it."""
    if kind != "slurm":
        return {"kind": kind}
    return {"kind": kind, "mpi": mpi, "partition": asked.get("partition") or part["partition"], "options": part["options"]}


def combinations(part, want):
    """The settings of each job that a user's matrix asks for, with `nodes`, `datatype` ("": none asked for) and the `end` of its name."""
    have = len(part["hosts"])
    counts, datatypes = want.get("node_counts") or [], want.get("datatypes") or []
    for count in map(int, counts):
        if not 1 <= count <= have:
            message = "muster_collectives.node_counts has %d, and jobs may use %d nodes%s; give numbers from 1 to %d."
            raise JobError(message % (count, have, " of " + part["type"] if part["type"] else "", have))
    unknown = [name for name in datatypes if name not in (NCCL_TYPES if want["backend"] == "nccl" else GLOO_TYPES)]
    if unknown:
        message = "muster_collectives.datatypes has %s, which backend %s does not measure; take %s."
        raise JobError(message % (unknown[0], want["backend"], ", ".join(GLOO_TYPES if want["backend"] == "gloo" else NCCL_TYPES)))
    return [
        {**want, "nodes": count, "datatype": datatype, "end": ("-%dn" % count if counts else "") + ("-" + datatype if datatype else "")}
        for count in dict.fromkeys(map(int, counts or [have]))
        for datatype in dict.fromkeys(datatypes or [""])
    ]


def collectives(fleet, asked, trainer, prefix="", kind="slurm"):
    """The jobs that measure the collectives: [{document, op, type, datatype, hosts, ranks, floors, real, skip, inspector}].

    fleet: from parts(); asked: the user's muster_collectives; trainer: what of a document lets a rank find the trainer (venv or image,
    mounts, env); prefix: folder of nccl-tests, "" for that of role nccl_tests; kind: the launcher.
    type: whose bandwidths the job must reach, "" without GPUs; skip: why nothing is measured, "" otherwise.
    inspector: {run: whether NCCL's inspector runs, reason: why it does not although the user asked}.
    """
    out = []
    for part in fleet:
        real = [
            job
            for want in combinations(part, {**settings(part["have"])[0], **asked})
            for job in _collectives(part, want, trainer, prefix or NCCL_TESTS, kind)
        ]
        if part["rehearsed"] and kind in KUBERNETES:
            documents = [job["real"] for job in real if job["real"]]
            for want in combinations(part, {**COLLECTIVES, **asked, "backend": "gloo"}):
                out += [{**job, "real": documents} for job in _collectives(part, want, trainer, "", kind)]
        else:
            out += real
    return out


def _collectives(part, want, trainer, prefix, kind):
    """The jobs of one combination."""
    nodes, datatype, ranks = want["nodes"], want["datatype"], int(want["procs_per_node"])
    base = {"nodes": nodes, "time_limit": int(want["time_limit"])}
    judged = part["type"] if want["backend"] == "nccl" else ""
    common = {"type": judged, "datatype": datatype or "float", "hosts": part["hosts"], "ranks": nodes * ranks, "real": None}
    common["floors"] = want.get("floors") or []
    common["inspector"] = {"run": False, "reason": ""}
    common["skip"] = "one rank: nothing crossed a wire" if nodes * ranks == 1 else ""
    sweep = ["-b", str(want["min_bytes"]), "-e", str(want["max_bytes"]), "-f", "2", "-n", str(want["iterations"])]
    sweep += ["-d", datatype] if datatype else []
    if want["backend"] == "gloo":
        command = ["python", "-m", "trainer.collectives", "--ops", ",".join(want["ops"]), *sweep, "--backend", "gloo"]
        document = {
            **base,
            "name": "collectives" + part["suffix"] + want["end"],
            "procs_per_node": ranks,
            **trainer,
            "command": command,
            "launcher": placed(part, want, kind, "pmix"),
        }
        return [{**common, "op": "", "document": document}]
    # nccl-tests starts its ranks by MPI. Under Slurm it needs nothing of the trainer's.
    launcher = placed(part, want, "mpijob" if kind in KUBERNETES else kind, "pmix")
    found = {} if kind == "slurm" else trainer
    out = []
    for op in want["ops"]:
        document = {
            **base,
            "name": "nccl%s-%s%s" % (part["suffix"], op, want["end"]),
            "procs_per_node": ranks,
            "gpus_per_node": ranks,
            **found,
            "command": ["%s/bin/%s_perf" % (prefix, op), *sweep, "-g", "1", "-c", "1"],
            "launcher": launcher,
        }
        inspector = _inspector(part, want.get("inspector"), op, kind)
        if inspector["run"]:
            document["command"] = [want["inspector"]["prefix"] + "/bin/nccl-inspector", *document["command"]]
        job = {**common, "op": op, "document": document, "inspector": inspector}
        if part["rehearsed"]:
            # One process for all GPUs of a node, because each rank would need a CPU. The stand-in is on PATH.
            short = {**document, "procs_per_node": 1, "command": ["%s_perf" % op, *sweep, "-g", str(ranks), "-c", "1"]}
            job = {**job, "document": short, "real": document}
        out.append(job)
    return out


def _inspector(part, asked, op, kind):
    """Whether NCCL's inspector runs. asked: {prefix, lacks}, the folder of NCCL on the nodes and the hosts without it, or nothing."""
    if not asked or op not in INSPECTED:
        return {"run": False, "reason": ""}
    if kind != "slurm":
        return {"run": False, "reason": "it writes files, which Muster reads from jobs of Slurm alone"}
    if part["rehearsed"]:
        return {"run": False, "reason": "a rehearsal has no NCCL that measures"}
    lacking = [host for host in part["hosts"] if host in asked["lacks"]]
    if lacking:
        return {"run": False, "reason": "%s without it; set nccl_inspector and provision again" % ", ".join(lacking)}
    return {"run": True, "reason": ""}


def training(fleet, asked, trainer, kind="slurm"):
    """The jobs that train: [{document, type, hosts, settings, data, real}]; arguments as for collectives()."""
    out = []
    shared: dict = {} if kind == "slurm" else {"folder": "/checkpoints/training"}
    if kind == "trainjob":
        shared["retries"] = 0  # its runtime has them
    for part in fleet:
        real = {**settings(part["have"])[1], **shared, **asked}
        runs = {**TRAINING, **shared, **asked, "backend": "gloo"} if part["rehearsed"] else real
        document, data = _training(part, runs, trainer, asked, kind)
        job = {"type": part["type"], "hosts": part["hosts"], "settings": runs, "data": data, "document": document, "real": None}
        if part["rehearsed"]:
            job["real"] = _training(part, real, trainer, asked, kind)[0]
        out.append(job)
    return out


# Where no node of the inventory could do it before, the first rank makes the data and the others wait. A word of a command has one line.
PREPARE = (
    'if [ "$RANK" = 0 ]; then [ -e %(data)s/index.json ] || python -m trainer prepare-data --out %(data)s --tokens %(tokens)s; '
    "else for _ in $(seq 900); do [ ! -e %(data)s/index.json ] || break; sleep 1; done; fi; "
)


def _training(part, want, trainer, asked, kind):
    """(document, folder of its data)."""
    data, rate = "%s/data-%s" % (want["folder"], want["tokens"]), float(want["lr"])
    # A requeued job keeps its number or its folder, so it resumes from its checkpoints; RERUN gets a new one and starts again.
    own = "%s/checkpoints-$SLURM_JOB_ID" % want["folder"] if kind == "slurm" else '"$MUSTER_JOB_DIR"'
    prepare = "" if kind == "slurm" else PREPARE % {"data": data, "tokens": want["tokens"]}
    command = [
        "bash",
        "-c",
        '%sexec "$@" --checkpoint_dir %s' % (prepare, own),
        "train",
        *["python", "-m", "trainer", "train"],
        *["--model", want["model"], "--dataset_path", data, "--checkpoint_freq", str(want["checkpoint_freq"])],
        *[
            "--train_batch_size",
            str(want["batch_size"]),
            "--max_steps",
            str(want["steps"]),
            "--lr",
            "%g" % rate,
            "--min_lr",
            "%g" % (rate / 10),
        ],
        *["--warmup", "0.1", "--backend", want["backend"]],
        *map(str, want["args"]),
    ]
    document = {
        "name": "train" + part["suffix"],
        "nodes": len(part["hosts"]),
        "procs_per_node": int(want["procs_per_node"]),
        "cpus_per_proc": int(want["cpus_per_proc"]),
        "time_limit": int(want["time_limit"]),
        "retries": int(want["retries"]),
        **trainer,
        "command": command,
        "launcher": placed(part, asked, kind, "none"),
    }
    if want["backend"] == "nccl":
        document["gpus_per_node"] = int(want["procs_per_node"])
    return document, data
