# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Serves the metrics of a controller: Slurm's nodes, jobs and scheduler from its JSON, and trainings from the logs that the trainer writes.

Slurm 25.11 and later serve metrics of their own; these are the same for every version, so that dashboards and alarms need only one.
"""

from __future__ import annotations

import argparse
import calendar
import concurrent.futures
import glob
import json
import math
import os
import re
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, "/usr/lib/muster")
import muster_endpoint

COMMANDS = {
    "nodes": ["scontrol", "show", "nodes", "--json"],
    "jobs": ["squeue", "--all", "--json"],
    "statistics": ["sdiag", "--json"],
}
PATIENCE = 8  # seconds for slurmctld; Prometheus waits ten
KEEP = 10  # seconds for which an answer is good
MOST_LOGS = 500
RECENT = 86400  # a log that nobody wrote for so long is history
# Users write the logs, so that a scrape reads a part of them at most: bytes of a line, of one log, and of all.
LONGEST = 1 << 20
MOST_OF_LOG = 8 << 20
MOST_OF_ALL = 32 << 20
POWERED_OFF = {"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "FUTURE"}
GAUGES = {
    "server_thread_count": ("muster_slurm_server_threads", "Threads of slurmctld that serve requests."),
    "agent_queue_size": ("muster_slurm_agent_queue_size", "Messages that slurmctld has not sent to nodes yet."),
    "dbd_agent_queue_size": ("muster_slurm_dbd_queue_size", "Records that slurmctld keeps for slurmdbd."),
    "schedule_cycle_last": ("muster_slurm_schedule_cycle_microseconds", "Length of the last scheduling cycle."),
    "bf_cycle_last": ("muster_slurm_backfill_cycle_microseconds", "Length of the last backfill cycle."),
}
COUNTERS = {
    "jobs_submitted": ("muster_slurm_jobs_submitted_total", "Jobs submitted since slurmctld counts."),
    "jobs_started": ("muster_slurm_jobs_started_total", "Jobs started since slurmctld counts."),
    "jobs_completed": ("muster_slurm_jobs_completed_total", "Jobs completed since slurmctld counts."),
    "jobs_failed": ("muster_slurm_jobs_failed_total", "Jobs failed since slurmctld counts."),
}
OF_TRAINING = {
    "step": ("muster_training_step", "Last optimizer step."),
    "loss": ("muster_training_loss", "Loss of the last step."),
    "loss_finite": ("muster_training_loss_finite", "Whether the loss of the last step is a number."),
    "tokens_per_s": ("muster_training_tokens_per_second", "Tokens a second over all ranks."),
    "samples_per_s": ("muster_training_samples_per_second", "Samples a second over all ranks."),
    "mfu": ("muster_training_mfu", "Model FLOPs utilisation, from 0 to 1."),
    "grad_norm": ("muster_training_gradient_norm", "Norm of the gradient."),
    "data_share": ("muster_training_data_share", "Share of the time that waits for data."),
    "world_size": ("muster_training_world_size", "Ranks."),
    "resumes": ("muster_training_resumes", "Starts after the first one."),
    "began": ("muster_training_start_time_seconds", "When the last start began."),
    "seen": ("muster_training_last_record_time_seconds", "When the trainer last wrote a step."),
    "checkpoint": (
        "muster_training_last_checkpoint_time_seconds",
        "When the last checkpoint was whole; without one, when the last start began.",
    ),
    "checkpoint_s": ("muster_training_checkpoint_seconds", "How long the last checkpoint took."),
    "goodput": ("muster_training_goodput", "Share of the time in steps that count, from 0 to 1."),
    "wall": ("muster_training_wall_seconds", "Time since the first start."),
    "running": ("muster_training_running", "Whether Slurm runs the job now."),
}


def number(value):
    """A number of Slurm's JSON, which may be {set, infinite, number}; None without one."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def states(value):
    """The states of a node or job, a list or, before Slurm 23.11, a word."""
    return [value] if isinstance(value, str) else list(value or [])


def listed(value):
    """A list that some versions of Slurm print as text with commas."""
    return [each for each in value.split(",") if each] if isinstance(value, str) else [str(each) for each in value or []]


def gpus(text):
    """The number of GPUs in a list of generic resources such as gpu:h100:8(S:0-1)."""
    return sum(int(count) for count in re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", text or ""))


def node_metrics(nodes):
    """Families about nodes."""
    words: dict = {}
    down, drained, sizes = [], [], {"cpus": [], "cpus_allocated": [], "gpus": [], "gpus_allocated": []}
    for node in nodes:
        label, found = {"node": node.get("name") or ""}, states(node.get("state"))
        words[(found or ["UNKNOWN"])[0].lower()] = words.get((found or ["UNKNOWN"])[0].lower(), 0) + 1
        reason = " ".join(str(node.get("reason") or "").split())[:100]
        off = (POWERED_OFF | {"CLOUD"}) & set(found) and "NOT_RESPONDING" not in found
        down.append(({**label, "reason": reason}, int(bool({"DOWN", "FAIL", "NOT_RESPONDING"} & set(found)) and not off)))
        drained.append(({**label, "reason": reason}, int("DRAIN" in found)))
        for key, value in (
            ("cpus", number(node.get("cpus"))),
            ("cpus_allocated", number(node.get("alloc_cpus"))),
            ("gpus", gpus(node.get("gres"))),
            ("gpus_allocated", gpus(node.get("gres_used"))),
        ):
            sizes[key].append((label, value or 0))
    yield "muster_slurm_nodes", "gauge", "Nodes by state.", [({"state": word}, count) for word, count in sorted(words.items())]
    yield "muster_slurm_node_down", "gauge", "Whether Slurm cannot use the node.", down
    yield "muster_slurm_node_drained", "gauge", "Whether the node is drained or drains.", drained
    # The monitoring host's targets follow from it (muster_discovery.py). A state in a label would make a new series for each job.
    yield (
        "muster_slurm_node_on",
        "gauge",
        "Whether the node is on: 0 while its power is off, or is turned on or off.",
        [
            (
                {
                    "node": node.get("name") or "",
                    "address": node.get("address") or "",
                    "features": ",".join(listed(node.get("active_features") or node.get("features"))),
                    "cloud": "true" if "CLOUD" in states(node.get("state")) else "false",
                },
                int(not POWERED_OFF & set(states(node.get("state")))),
            )
            for node in nodes
        ],
    )
    for key, samples in sizes.items():
        yield (
            "muster_slurm_node_" + key,
            "gauge",
            "%s of the node." % key.replace("_", " ").upper().replace(" ALLOCATED", " that jobs have"),
            samples,
        )


def job_metrics(jobs, now):
    """Families about jobs."""
    counts: dict = {}
    info, starts, waits = [], [], []
    for job in jobs:
        state = (states(job.get("job_state")) or ["UNKNOWN"])[0].lower()
        key = (state, job.get("partition") or "")
        counts[key] = counts.get(key, 0) + 1
        label = {"job_id": str(job.get("job_id"))}
        if state == "running":
            names = {
                "name": job.get("name") or "",
                "user": job.get("user_name") or "",
                "nodes": job.get("nodes") or "",
                "partition": key[1],
            }
            info.append(({**label, **names}, 1))
            starts.append((label, number(job.get("start_time")) or 0))
        elif state == "pending":
            waits.append(now - (number(job.get("submit_time")) or now))
    each = [({"state": state, "partition": partition}, count) for (state, partition), count in sorted(counts.items())]
    yield "muster_slurm_jobs", "gauge", "Jobs by state and partition.", each or [({"state": "running", "partition": ""}, 0)]
    yield "muster_slurm_job_info", "gauge", "A running job; always 1.", info
    yield "muster_slurm_job_start_time_seconds", "gauge", "When the job started.", starts
    yield "muster_slurm_oldest_pending_seconds", "gauge", "How long the job that waits longest has waited.", [({}, max(waits, default=0))]


def scheduler_metrics(statistics):
    """Families about slurmctld."""
    for table, kind in ((GAUGES, "gauge"), (COUNTERS, "counter")):
        for key, (name, text) in table.items():
            value = number(statistics.get(key))
            yield name, kind, text, [] if value is None else [({}, value)]


class Slurm:
    """Slurm's answers, asked for at most every KEEP seconds."""

    def __init__(self, run=subprocess.run, clock=time.time):
        self.run, self.clock = run, clock
        self.lock = threading.Lock()
        self.asked = 0.0
        self.answers: dict = {}
        self.jobs: dict = {}  # {job_id: state} of the last answer, None while slurmctld does not answer

    def ask(self, key):
        """The answer to one command, None when there is none."""
        try:
            done = self.run(COMMANDS[key], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
            document = json.loads(done.stdout.decode(errors="replace")) if done.returncode == 0 else None
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        return document.get(key) if isinstance(document, dict) else None

    def collect(self):
        """Families of metrics."""
        with self.lock:
            if self.clock() - self.asked >= KEEP or not self.answers:
                with concurrent.futures.ThreadPoolExecutor(len(COMMANDS)) as pool:
                    self.answers = dict(pool.map(lambda key: (key, self.ask(key)), COMMANDS))
                self.asked = self.clock()
                jobs = self.answers["jobs"]
                self.jobs = None if jobs is None else {str(job.get("job_id")): (states(job.get("job_state")) or [""])[0] for job in jobs}
            answers = self.answers
        up = all(answer is not None for answer in answers.values())
        yield "muster_slurm_up", "gauge", "Whether slurmctld answers.", [({}, int(up))]
        if answers["nodes"] is not None:
            yield from node_metrics(answers["nodes"])
        if answers["jobs"] is not None:
            yield from job_metrics(answers["jobs"], self.clock())
        if answers["statistics"] is not None:
            yield from scheduler_metrics(answers["statistics"])


def seconds(text):
    """A time of the trainer's log, 2026-11-21T11:27:28.754Z, since 1970."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z?$", text, re.ASCII) if isinstance(text, str) else None
    try:
        return calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) + float(found[2] or 0) if found else None
    except ValueError:
        return None


def figure(value):
    """A number of a user's file as a sample can have it; None without one."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def opened(path):
    """A user's file, open for reading. The exporter may read every file, so it follows no link, and it waits for no FIFO."""
    raw = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(raw).st_mode):
        os.close(raw)
        raise OSError("%s is no file" % path)
    return open(raw, "rb")


class Log:
    """A training's log, of which each look reads only what is new."""

    def __init__(self, path):
        self.path = path
        self.offset, self.inode, self.rest = 0, None, b""
        self.state: dict = {}

    def look(self, most=MOST_OF_LOG):
        """Read what was written since the last look, and at most so many bytes; the number of bytes that were read."""
        with opened(self.path) as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self.inode or found.st_size < self.offset:
                self.offset, self.inode, self.rest, self.state = 0, found.st_ino, b"", {}
            file.seek(self.offset)
            new = file.read(most)
            self.offset += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")  # the trainer may be in the middle of a line
        if len(self.rest) > LONGEST:
            self.rest = b"x"  # no line of the trainer; its end is skipped with it
        for line in lines:
            try:
                record = json.loads(line) if len(line) <= LONGEST else None
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                self.take(record)
        return len(new)

    def take(self, record):
        """Note a record."""
        state, when = self.state, seconds(record.get("time"))
        event = record.get("event")
        if event in ("start", "resume"):
            state.update(began=when, seen=when, checkpoint=when, resumes=state.get("resumes", -1) + 1)
        elif event == "checkpoint":
            state.update(checkpoint=when, checkpoint_s=figure(record.get("seconds")))
        if event is None and "step" in record:
            # The trainer writes null for what is no number.
            loss = figure(record.get("loss"))
            state.update(seen=when, loss=loss, loss_finite=int(loss is not None and math.isfinite(loss)))
            for key in ("tokens_per_s", "samples_per_s", "mfu", "grad_norm", "data_share"):
                state[key] = figure(record.get(key))
        for key in ("step", "world_size"):
            if isinstance(record.get(key), int):
                state[key] = figure(record[key])


def goodput(folder):
    """{goodput, wall} of the ledger beside a log."""
    try:
        with opened(os.path.join(folder, "goodput.json")) as file:
            summary = json.loads(file.read(LONGEST))["summary"]
        return {"goodput": figure(summary.get("goodput")), "wall": figure(summary.get("wall"))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


class Trainings:
    """The logs below some patterns."""

    def __init__(self, patterns, jobs=lambda: None, clock=time.time):
        self.patterns, self.jobs, self.clock = patterns, jobs, clock
        self.logs: dict = {}
        self.lock = threading.Lock()
        self.errors = 0

    def collect(self):
        """Families of metrics."""
        with self.lock:
            found = self.look()
            errors = self.errors
        yield "muster_training_read_errors_total", "counter", "Logs that could not be read, since the exporter started.", [({}, errors)]
        yield "muster_training_logs", "gauge", "Logs of trainings that were written lately or whose job runs.", [({}, len(found))]
        for key, (name, text) in OF_TRAINING.items():
            yield name, "gauge", text, [(labels, state[key]) for labels, state in found if state.get(key) is not None]

    def look(self):
        """[(labels, state)] of the logs that count."""
        jobs = self.jobs()
        paths = []
        for path in {path for pattern in self.patterns for path in glob.glob(pattern)}:
            try:
                paths.append((os.stat(path, follow_symlinks=False).st_mtime, path))
            except OSError:
                self.errors += 1
        out, kept, left = [], {}, MOST_OF_ALL
        for written, path in sorted(paths, reverse=True)[:MOST_LOGS]:
            folder = os.path.dirname(path)
            job_id = (re.findall(r"\d+$", folder) or [""])[0]
            running = None if jobs is None or not job_id else int(jobs.get(job_id) == "RUNNING")
            if self.clock() - written > RECENT and not running:
                continue
            log = kept[path] = self.logs.get(path) or Log(path)
            try:
                left -= log.look(min(left, MOST_OF_LOG))
            except OSError:
                self.errors += 1
                continue
            run = os.path.basename(os.path.dirname(folder)).encode(errors="replace").decode()  # a name may be no UTF-8
            labels = {"job_id": job_id, "run": run}
            if log.state:
                out.append((labels, {**log.state, **goodput(folder), "running": running}))
        self.logs = kept
        return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:9341", help="HOST:PORT")
    parser.add_argument("--secrets", default="", help="folder with cert.pem, key.pem and password, needed for an address that others reach")
    parser.add_argument("--slurm", action="store_true", help="ask Slurm")
    parser.add_argument("--training", action="append", default=[], metavar="PATTERN", help="logs of trainings, as a pattern of paths")
    given = parser.parse_args()
    slurm = Slurm() if given.slurm else None
    trainings = Trainings(given.training, lambda: slurm.jobs if slurm else None)

    def collect():
        families = list(slurm.collect()) if slurm else []
        return families + list(trainings.collect())

    return muster_endpoint.serve("muster-exporter", collect, given.listen, given.secrets)


if __name__ == "__main__":
    sys.exit(main())
