# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's language: host lists, times, and the text that its commands print.

Everything is read from `-o` and `--parsable2` text with fields that Slurm 22.05 to 26.05 have alike: `--json` changes its layout with
every data_parser version and is a build option. The commands have to run with SLURM_TIME_FORMAT=%s (see ENVIRONMENT).
"""

from __future__ import annotations

import datetime
import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest


class SlurmError(ValueError):
    """Something that Slurm does not have, or a time that cannot be read; the text is one sentence with the remedy."""


# Times as seconds of the epoch and words in English, whatever the node's zone and language.
ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}

SACCT_FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "NodeList", "Submit", "Start", "End", "ElapsedRaw", "Reason")
SACCT_FORMAT = ",".join(SACCT_FIELDS)
SQUEUE_FORMAT = "%i|%T|%j"
# The reason is last because it is free text.
SINFO_FORMAT = "%N|%T|%c|%P|%E"
GRES_FORMAT = "%N|%P|%G"

# A job in one of these states is over; in any other (COMPLETING, REQUEUED, SUSPENDED ...) it is still Slurm's to end.
FINAL_STATES = {
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "CANCELLED",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
    "LAUNCH_FAILED",
    "REVOKED",
}

# Reasons for which a pending job will never start as it is -> what to do. Limits of the kind Max...PerJob belong here too.
IMPOSSIBLE = {
    "PartitionDown": "the partition is down: scontrol update PartitionName=... State=UP",
    "PartitionInactive": "the partition is inactive: scontrol update PartitionName=... State=UP",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows: lower nodes",
    "PartitionTimeLimit": "it asks for more time than the partition allows: lower time_limit",
    "PartitionConfig": "the partition cannot give what it asks for: lower nodes or ranks, or choose another partition",
    "BadConstraints": "no node has what it asks for: change launcher.options",
    "AccountNotAllowed": "the partition refuses the account: choose another partition",
    "QOSNotAllowed": "the partition refuses the quality of service: choose another partition",
    "InvalidAccount": "the user has no account in accounting: sacctmgr add user ... account=...",
    "InvalidQOS": "the quality of service does not exist: change launcher.options",
    "DependencyNeverSatisfied": "the job it depends on failed: remove the dependency",
    "JobHeldUser": "somebody holds it: scontrol release the job, or cancel it",
    "JobHeldAdmin": "an administrator holds it, as Slurm itself does after a prolog failed: read slurmctld's log",
    "JobHoldMaxRequeue": "it was requeued too often: read slurmctld's log",
    "launch failed requeued held": "its launch failed, and Slurm holds it: read the slurmd log of its nodes",
}
# Reasons that end when nodes come back; a fleet that is repairing itself passes through them.
UNAVAILABLE = ("ReqNodeNotAvail", "Nodes required for job are DOWN", "NodeDown")

# What to look at first when a job ended in such a state.
REMEDIES = {
    "OUT_OF_MEMORY": "give it more memory (launcher.options: {mem: ...}) or a smaller batch",
    "TIMEOUT": "raise time_limit or ask for less work",
    "NODE_FAIL": "look at the node (scontrol show node) and run it again with retry",
    "BOOT_FAIL": "look at the node's boot and run it again with retry",
    "CANCELLED": "run it again with retry if that was not meant",
    "PREEMPTED": "run it again with retry",
    "FAILED": "read its output",
}


def expand(hostlist):
    """`a[1-3,5],b` -> [a1, a2, a3, a5, b]; leading zeros are kept. ValueError when a bracket lacks its half or holds no number."""
    if not re.fullmatch(r"(?:[^\[\]]|\[[0-9,-]+\])*", hostlist):
        raise ValueError("%s is not a host list: each bracket holds numbers and ranges such as [1-3,5]." % hostlist)
    hosts = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hostlist):
        names = [""]
        for text, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            tails = [text] if text else [number for piece in ranges.split(",") for number in _range(piece)]
            names = [name + tail for name in names for tail in tails]
        hosts += names
    return hosts


def _range(piece):
    """`08-11` -> [08, 09, 10, 11]."""
    low, _dash, high = piece.partition("-")
    return ["%0*d" % (len(low), number) for number in range(int(low), int(high or low) + 1)]


def compress(hosts):
    """[a1, a2, a3, b] -> `a[1-3],b`: a short text that expand() turns into the same names; names with different padding stay apart."""
    numbers: dict[tuple[str, int], list[int]] = {}
    parts = []
    for host in sorted(set(hosts)):
        match = re.fullmatch(r"(.*?)(\d+)", host)
        if match:
            numbers.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            parts.append(host)
    for (prefix, width), found in sorted(numbers.items()):
        runs: list[list[int]] = []
        for number in sorted(found):
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        texts = ["%0*d" % (width, low) + ("-%0*d" % (width, high) if high > low else "") for low, high in runs]
        parts.append(prefix + (texts[0] if len(found) == 1 else "[%s]" % ",".join(texts)))
    return ",".join(parts)


def job_record(text):
    """One job from `scontrol -o show job ID`.

    Returns {job_id, name, state, reason, restarts, exit_code, signal, nodes, submitted, started, ended, output}, times in seconds of
    the epoch or None. ValueError when the text is no job.
    """
    fields: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)([A-Z][A-Za-z/:&]*)=(\S*)", text):
        fields.setdefault(key, value)  # a comment may hold text that looks like a field, and comes after those read here
    if "JobId" not in fields or "JobState" not in fields:
        raise ValueError("scontrol printed no job: %s" % text.strip()[:200])
    code, signal = exit_status(fields["ExitCode"])
    return {
        "job_id": int(fields["JobId"]),
        "name": fields.get("JobName", ""),
        "state": fields["JobState"],
        "reason": fields.get("Reason", "None").replace("_", " "),
        "restarts": int(fields.get("Restarts", 0)),
        "exit_code": code,
        "signal": signal,
        "nodes": _hosts(fields.get("NodeList", "")),
        "submitted": _seconds(fields.get("SubmitTime")),
        "started": _seconds(fields.get("StartTime")),
        "ended": _seconds(fields.get("EndTime")),
        "output": fields.get("StdOut", ""),
    }


def accounting_record(text, job_id):
    """The last run of job `job_id` in `sacct -n -P -D --format=SACCT_FORMAT`, as job_record() plus elapsed_s; None when there is none.

    Every requeue leaves a row of its own (-D prints them all), so their number less one is the number of restarts. The rows of steps
    tell what killed a job that its script could only report as FAILED; such a state becomes the reason.
    """
    rows = [line.split("|", len(SACCT_FIELDS) - 1) for line in text.splitlines()]
    runs, row = 0, {}
    steps: list[dict[str, str]] = []
    first_submit = ""
    for values in rows:
        found = {field: values[index] for index, field in enumerate(SACCT_FIELDS)}
        if found["JobIDRaw"] == str(job_id):
            runs, row, steps = runs + 1, found, []
            first_submit = first_submit or found["Submit"]
        elif found["JobIDRaw"].startswith("%s." % job_id):
            steps.append(found)
    if not row:
        return None
    state = row["State"].split()[0]  # CANCELLED by 2000
    killed = [step for step in steps if step["State"] in ("OUT_OF_MEMORY", "NODE_FAIL")]
    code, signal = exit_status(row["ExitCode"])
    return {
        "job_id": int(row["JobIDRaw"]),
        "name": row["JobName"],
        "state": state,
        "reason": killed[0]["State"] if killed and state == "FAILED" else row["Reason"],
        "restarts": runs - 1,
        "exit_code": code,
        "signal": signal,
        "nodes": _hosts(row["NodeList"]),
        "submitted": _seconds(first_submit),
        "started": _seconds(row["Start"]),
        "ended": _seconds(row["End"]),
        "elapsed_s": int(row["ElapsedRaw"]),
    }


def exit_status(text):
    """`3:0` -> (3, 0): exit status and signal. Slurm writes 0:125 for a job that ran out of memory."""
    code, _colon, signal = text.partition(":")
    return int(code), int(signal or 0)


def _seconds(text):
    return int(text) if (text or "").isdigit() else None


def _hosts(text):
    return [] if text in ("", "(null)", "None assigned") else expand(text)


def newest_live(text, name):
    """The highest id among the jobs called `name` that are not over, from `squeue -h -a -o SQUEUE_FORMAT`; None when there is none."""
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return max((int(row[0]) for row in rows if row[2] == name and row[1] not in FINAL_STATES and row[0].isdigit()), default=None)


def node_records(text):
    """{node: {state, cpus, partitions, reason}} from `sinfo -N -h -a -o SINFO_FORMAT`; a node stands there once for each partition.

    state is Slurm's long form in lower case: idle, mixed, allocated, draining, drained, down ...; a trailing * says that the node does
    not respond. reason is "" when there is none.
    """
    nodes: dict[str, dict] = {}
    for line in text.splitlines():
        name, state, cpus, partition, reason = line.split("|", 4)
        reason = reason.strip()
        node = nodes.setdefault(
            name, {"state": state.lower(), "cpus": int(cpus), "partitions": [], "reason": "" if reason == "none" else reason}
        )
        node["partitions"].append(partition.rstrip("*"))
    return nodes


def gpus_of(text, partition=""):
    """{node: GPUs} of a partition, the default one for "", from `sinfo -N -h -a -o GRES_FORMAT`; {} when it does not exist.

    A node's GRES are such as `gpu:h100:8(S:0-1),nvme:1`, `gpu:2` or `(null)`.
    """
    gpus = {}
    for line in text.splitlines():
        name, of, gres = line.split("|", 2)
        if of.rstrip("*") == partition if partition else of.endswith("*"):
            gpus[name] = sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))
    return gpus


def cpus_of(text, partition=""):
    """{node: CPUs} of a partition, the default one for "", from the same text as node_records(). SlurmError when it does not exist."""
    rows = [line.split("|", 4) for line in text.splitlines()]
    cpus = {row[0]: int(row[2]) for row in rows if (row[3].rstrip("*") == partition if partition else row[3].endswith("*"))}
    if not cpus:
        known = {row[3].rstrip("*") for row in rows}
        missing = "partition %s" % partition if partition else "default partition"
        raise SlurmError("Slurm has no %s; set launcher.partition, %s" % (missing, nearest(partition, known)))
    return cpus


def pending_problem(reason):
    """(kind, advice) of the reason for which a job waits; kind is impossible, unavailable or None (it will start in time)."""
    for text, advice in IMPOSSIBLE.items():
        if reason.startswith(text):
            return "impossible", advice
    if re.match(r"(Assoc|QOS)Max\w*Per(Job|Node)", reason) or re.match(r"(Assoc|QOS)Max\w*PerJobLimit", reason):
        return "impossible", "it is above a limit of its account or quality of service: lower what it asks for"
    if reason.startswith(UNAVAILABLE):
        return "unavailable", "look at the nodes that are out of service: sinfo -R"
    return None, ""


def seconds(text):
    """Seconds since 1970, from such a number or from a time such as 2026-11-22T06:00:00Z (UTC if it names no zone); raises SlurmError."""
    text = str(text).strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return int(float(text))
    try:
        when = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise SlurmError("muster_stop_at is %r; write seconds since 1970 or a time such as 2026-11-22T06:00:00Z." % text) from None
    return int((when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)).timestamp())
