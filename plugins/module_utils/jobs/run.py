# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run one job at most once: find it, submit it, wait for it, keep its result. The same for every service that runs jobs.

Each job has a folder `<store>/<name>-<identity[:12]>`: job.json (the document), what the service was given, output.txt and result.json
(`muster.job_result/1`). The service knows the job by a name with the identity in it, so that a run that was killed finds it again. The
results of an earlier run of the job stay beside them as output-ID.txt and result-ID.json.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import stat
import tempfile
import time

from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

SCHEMA = "muster.job_result/1"
TAIL_BYTES = 2000
# Of a longer output the begin and the end are kept; no job may fill the memory or the disk of the host that fetches its output.
OUTPUT_BYTES = 64 << 20
LEFT_OUT = "muster: the middle of the output is left out here"
# Every launcher uses Slurm's words for states; these end a job.
FINAL_STATES = slurm.FINAL_STATES
REMEDIES = {
    "OUT_OF_MEMORY": "give it more memory or a smaller batch",
    "TIMEOUT": "raise time_limit or ask for less work",
    "NODE_FAIL": "look at the node and run it again with retry",
    "CANCELLED": "run it again with retry if that was not meant",
}
STATES = ("finished", "awaited", "submitted", "cancelled", "queried")


class RunError(Exception):
    """A job that could not be run to its end; the text is one sentence, `facts` its result() and `changed` whether it was submitted."""

    def __init__(self, message, remedy="", facts=None, changed=False):
        super().__init__(message)
        self.remedy, self.facts, self.changed = remedy, facts or {}, changed


class Refused(RunError):
    """A job that the service did not take, so nothing of it runs."""


def decide(state, stored, live, rerun, retry):
    """What to do with a job: wait, stored, refuse, submit, cancel, missing or none.

    state: finished | awaited (as finished, but never submitted) | submitted | cancelled | queried; stored: its result.json or None;
    live: the id of the job in the queue or None.
    """
    if state == "cancelled":
        return "cancel" if live else "none"
    if state == "queried":
        return "none" if live or stored else "missing"
    if live:
        return "wait" if state in ("finished", "awaited") else "none"
    if state == "awaited":
        return "missing" if stored is None else "stored"
    if stored is None or rerun:
        return "submit"
    if stored["state"] == "COMPLETED":
        return "stored"
    if stored["state"] == "CANCELLED" and not stored["nodes"]:
        return "submit"  # the cluster had no room for it, so it never ran
    return "submit" if retry else "refuse"


def result(name, identity, output, record, *, stored=False, gpus=0):
    """The `muster.job_result/1` of a record as Service says it; times as ISO 8601 in UTC.

    On Kubernetes it has pods, {pod: node}. failed_rank is the rank whose exit status it has, where the service knows it.
    """
    elapsed = record.get("elapsed_s")
    if elapsed is None and record["started"] and record["ended"]:
        elapsed = record["ended"] - record["started"]
    code, signal = record["exit_code"], record["signal"]
    if code == 0 and signal:
        code = 128 + signal if signal < 65 else signal  # above 64 there are no signals: Slurm writes 0:125 for out of memory
    return {
        "schema": SCHEMA,
        "name": name,
        "identity": identity,
        "job_id": record["job_id"],
        "state": record["state"],
        "reason": record["reason"],
        "exit_code": code,
        "nodes": record["nodes"],
        "gpus_per_node": gpus,
        "submitted": _iso(record["submitted"]),
        "started": _iso(record["started"]),
        "ended": _iso(record["ended"]),
        "elapsed_s": elapsed,
        "restarts": record["restarts"],
        "output": output,
        "stored": stored,
        **{key: record[key] for key in ("pods", "failed_rank") if key in record},
    }


def _iso(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def failure_sentence(found, tail, remedies):
    """(message, remedy) for a job that did not complete, from its result(), the tail of its output and {reason or state: remedy}."""
    remedy = remedies.get(found["reason"]) or remedies.get(found["state"], "read its output")
    reason = "" if found["reason"] in ("None", "", None) else " (%s)" % found["reason"]
    rank = " of rank %d" % found["failed_rank"] if "failed_rank" in found else ""
    message = "Job %s (%s) ended %s%s with exit status %s%s on %s after %s s and %s restarts; %s: %s" % (
        found["name"],
        found["job_id"],
        found["state"],
        reason,
        found["exit_code"],
        rank,
        slurm.compress(found["nodes"]) or "no node",
        found["elapsed_s"],
        found["restarts"],
        remedy,
        found["output"],
    )
    return message + (", which ends:\n" + tail if tail else " (it is empty)."), remedy


class Store:
    """The folder of one job. It may belong to the job's user, so no link in it is ever followed."""

    def __init__(self, folder, uid=-1, gid=-1):
        self.folder, self.uid, self.gid = folder, uid, gid
        self.output = os.path.join(folder, "output.txt")

    def read(self, name, last=None):
        """The text of a file, or of its `last` bytes; "" when there is no regular file."""
        try:
            # A pipe that somebody put there would block.
            number = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(number, "rb") as file:
                info = os.fstat(number)
                if not stat.S_ISREG(info.st_mode):
                    return ""
                file.seek(max(0, info.st_size - last) if last else 0)
                return file.read().decode("utf-8", "replace")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                return ""
            raise

    def stored(self):
        """The result.json as a mapping, or None; a damaged one counts as none, and the job runs again."""
        try:
            found = json.loads(self.read("result.json"))
        except ValueError:
            return None
        return found if isinstance(found, dict) and {"state", "job_id"} <= set(found) else None

    def prepare(self, files):
        """Make the folder and write {name: text}, each whole or not at all."""
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        os.chown(self.folder, self.uid, self.gid)
        for name, text in files.items():
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            # An output may hold what UTF-8 cannot express.
            with open(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                os.fchown(handle, self.uid, self.gid)
                os.fchmod(handle, 0o640)  # env may hold values that other users must not see
            os.replace(temporary, os.path.join(self.folder, name))

    def remove(self, files):
        """Delete the folder of a job that was never submitted, with `files`."""
        for name in (".lock", *files):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)  # where somebody put a file of his own into it, it stays

    def put_aside(self, job_id):
        """Rename the files of the run `job_id`, because the next run appends to its output."""
        for name, ending in (("output", "txt"), ("result", "json")):
            with contextlib.suppress(FileNotFoundError):
                old = os.path.join(self.folder, "%s.%s" % (name, ending))
                os.rename(old, os.path.join(self.folder, "%s-%s.%s" % (name, job_id or "unknown", ending)))

    def tail(self):
        """The last lines of the output."""
        return "\n".join(self.read("output.txt", TAIL_BYTES).splitlines()[-20:])

    @contextlib.contextmanager
    def locked(self, wait):
        """Keep a second run from submitting the same job meanwhile, except on a file system without locks.

        wait(): what to do while another process has the lock. It raises an error once that takes too long.
        """
        path = os.path.join(self.folder, ".lock")
        while True:
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                if _lock(handle) and _is_at(handle, path):
                    yield
                    return
            finally:
                os.close(handle)
            wait()


def _lock(handle):
    """Lock an open file; False when another process has the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _is_at(handle, path):
    """Whether an open file is still the one at its path; the run that had the lock may have removed it, or the job's user replaced it."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


class Service:
    """One job in a service. A subclass says how the service is asked; bring() and wait() are the same for all.

    A record is {job_id, state, reason, exit_code, signal, nodes, submitted, started, ended, elapsed_s, restarts} with times in seconds
    since 1970; it may also have `ready`, how many nodes of the job run, and `failed_rank`. sleep and clock are those of `time`.
    """

    title = "The service"
    remedies = REMEDIES
    asked = 0  # GPUs on each node

    def __init__(self, *, name, identity, store, timeout, poll, pending_timeout, sleep=time.sleep, clock=time.monotonic):
        self.name, self.identity, self.store = name, identity, store
        self.timeout, self.poll, self.pending_timeout = timeout, poll, pending_timeout
        self.sleep, self.clock = sleep, clock
        self.deadline = clock() + timeout

    def live(self):
        """The id of this job where it waits or runs, or None."""
        raise NotImplementedError

    def submit(self, options):
        """Submit the files in the store and return the job's id. Raises Refused when the service does not take them."""
        raise NotImplementedError

    def cancel(self, job_id):
        """End the job and wait until it has ended."""
        raise NotImplementedError

    def record(self, job_id):
        """The service's record of a job, or None once the service has forgotten it."""
        raise NotImplementedError

    def over(self, job_id, record):
        """The last record of a job that has ended, after its output was fetched into the store."""
        raise NotImplementedError

    def pending(self, record):
        """(kind, advice) of a job that waits: `impossible` never starts, `unavailable` waits for what is out of service, None is normal."""
        return None, ""

    def lost(self, kind):
        """What the job waited for in vain, as ` (...)`."""
        return ""

    def fetch_output(self, job_id):
        """Bring the output of a job that still runs into the store, where the service keeps it elsewhere."""

    def asked_gpus(self):
        """The GPUs on each node that the submitted job asks for."""
        return self.asked

    def pause(self, waiting_for):
        """Sleep one poll. After the deadline raise an error that names `waiting_for`."""
        if self.clock() >= self.deadline:
            raise RunError(
                "Job %s is not over after %d s: %s; it goes on, and the next run finds it again." % (self.name, self.timeout, waiting_for),
                "raise timeout, or cancel it with state=cancelled",
            )
        self.sleep(self.poll)

    def locked(self):
        """The store's lock, for which this waits until the deadline."""

        def wait():
            if self.clock() >= self.deadline:
                message = "Job %s cannot be looked at: another process has held the lock %s for %d s; let it end, or end it."
                raise RunError(message % (self.name, os.path.join(self.store.folder, ".lock"), self.timeout), "end the other process")
            self.sleep(min(self.poll, 1))

        return self.store.locked(wait)

    def wait(self, job_id):
        """The record of the job once it is over. A job that cannot start is cancelled, and its reason raised as RunError."""
        unavailable_since = None
        while True:
            found = self.record(job_id)
            if found is None or found["state"] in FINAL_STATES:
                return self.over(job_id, found)
            kind, advice = self.pending(found) if found["state"] == "PENDING" else (None, "")
            if kind != "unavailable":
                unavailable_since = None
            elif unavailable_since is None:
                unavailable_since = self.clock()
            patience_over = unavailable_since is not None and self.clock() - unavailable_since >= self.pending_timeout
            if kind == "impossible" or patience_over:
                self.cancel(job_id)
                message = "Job %s (%s) cannot start and was cancelled: %s says %s; %s" % (
                    self.name,
                    job_id,
                    self.title,
                    found["reason"],
                    advice,
                )
                raise RunError(message + self.lost(kind) + ".", advice)
            self.pause("%s says %s (%s)" % (self.title, found["state"], found["reason"]))


def bring(service, *, state, files, options=(), rerun=False, retry=False, check_mode=False, check=lambda: None):
    """Bring a job to `state`: (changed, result or None, files that a submission wrote or would write).

    state: one of STATES; files: {name: text} for the store; options: what submit() gets; check: called before a submission, raises when
    the service cannot run the job. A queried job that waits or runs has `ready` in its result, the number of its nodes that run.
    Raises RunError, with the result as its facts, for a job that did not complete.
    """
    store = service.store
    kept = None

    def say(record, stored=False):
        return result(service.name, service.identity, store.output, record, stored=stored, gpus=service.asked_gpus())

    def end(job_id):
        found = say(service.wait(job_id))
        store.prepare({"result.json": json.dumps(found, indent=1) + "\n"})
        return found

    new = not check_mode and not os.path.isdir(store.folder)
    unlocked = check_mode or (new and state not in ("finished", "submitted"))
    lock = contextlib.nullcontext() if unlocked else service.locked()
    with lock:
        # Another run that had the lock meanwhile may have submitted the job.
        new = new and not unlocked and os.listdir(store.folder) == [".lock"]
        submitting = False
        try:
            live, kept = service.live(), store.stored()
            if kept and not live and kept["state"] not in FINAL_STATES and not check_mode:
                kept = end(kept["job_id"])  # it ended while nobody watched
            action = decide(state, kept, live, rerun, retry)
            if action == "submit":
                check()
                if check_mode:
                    return True, None, files
                store.put_aside(kept and kept["job_id"])
                store.prepare(files)
                submitting = True
                live = service.submit(options)
        except Exception as error:
            # A submission without an answer may have given a job, which needs its folder.
            if new and (not submitting or isinstance(error, Refused)):
                store.remove(files)
            raise
        if action == "submit":
            found = say(_submitted(live))
            store.prepare({"result.json": json.dumps(found, indent=1) + "\n"})
            if state == "submitted":
                return True, found, files
    if action == "missing":
        known = "it was not submitted, or its document has changed since then; submit it first"
        raise RunError("Job %s (%s) is not known: %s." % (service.name, service.identity[:12], known), "submit it first")
    if action == "none" and state == "queried" and live:
        service.fetch_output(live)
        record = service.record(live) or _submitted(live)
        return False, {**say(record), "ready": record.get("ready", 0)}, {}
    if action == "none":
        return False, say(service.record(live) or _submitted(live)) if live else kept and {**kept, "stored": True}, {}
    if action == "cancel":
        if not check_mode:
            service.cancel(live)
            return True, end(live), {}
        return True, None, {}
    if action in ("stored", "refuse"):
        found = {**kept, "stored": True}
    elif check_mode:
        return False, say(service.record(live) or _submitted(live)), {}
    else:
        found = end(live)
    if found["state"] != "COMPLETED":
        message, remedy = failure_sentence(found, store.tail(), service.remedies)
        if action == "refuse":
            message, remedy = "It failed before, and retry was not given. " + message, "set retry to run it again"
        raise RunError(message, remedy, found, action == "submit")
    return action == "submit", found, files if action == "submit" else {}


def _submitted(job_id):
    """The record of a job whose id alone is known."""
    times = dict.fromkeys(("submitted", "started", "ended", "elapsed_s"))
    return {"job_id": job_id, "state": "PENDING", "reason": "None", "exit_code": 0, "signal": 0, "nodes": [], "restarts": 0, **times}


def last_line(text):
    """The last line of what a command printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
