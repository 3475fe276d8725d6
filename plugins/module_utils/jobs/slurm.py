# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run one job at most once: find it, submit it, wait for it, keep its result.

Each job has a folder `<store>/<name>-<identity[:12]>` on the shared file system: job.json (the document), job.sbatch (the script),
output.txt and result.json (`muster.job_result/1`). Slurm knows it as `muster:<name>:<identity[:12]>`, so that a run that was killed
finds it again in the queue. The results of an earlier run of the job stay beside them as output-ID.txt and result-ID.json.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import re
import stat
import tempfile
import time

from ansible_collections.muster.fleet.plugins.module_utils.jobs import sbatch
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

SCHEMA = "muster.job_result/1"
# slurmdbd records a job's end within seconds. When it is away for longer, slurmctld's own record is used.
ACCOUNTING_WAIT = 60
TAIL_BYTES = 2000
# Errors of Slurm's commands while the controller restarts, is busy or is unreachable.
TRANSIENT = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Connection reset",
    "Zero Bytes were transmitted",
    "temporarily unable",
    "standby mode",
    "Unexpected message received",
)
UNKNOWN_JOB = "Invalid job id"
REFUSALS = {
    "Invalid account": "give the user an account: sacctmgr add user %(user)s account=...",
    "Invalid partition": "name a partition that `sinfo -s` lists",
    "node configuration is not available": "ask for no more nodes, CPUs and memory than `sinfo -N -l` lists",
    "time limit is invalid": "lower time_limit to what the partition allows",
    "Access/permission denied": "submit as a user whom the partition allows",
    "Zero Bytes": "look at munge on the controller",
}


class SlurmJobError(Exception):
    """A job that could not be run to its end; the text is one sentence, `facts` its result() and `changed` whether it was submitted."""

    def __init__(self, message, remedy="", facts=None, changed=False):
        super().__init__(message)
        self.remedy, self.facts, self.changed = remedy, facts or {}, changed


class Refused(SlurmJobError):
    """A job that Slurm did not take, so nothing of it runs."""


def decide(state, stored, live, rerun, retry):
    """What to do with a job: wait, stored, refuse, submit, cancel or none.

    state: finished | submitted | cancelled; stored: its result.json or None; live: the id of the job in the queue or None.
    """
    if state == "cancelled":
        return "cancel" if live else "none"
    if live:
        return "wait" if state == "finished" else "none"
    if stored is None or rerun:
        return "submit"
    if stored["state"] == "COMPLETED":
        return "stored"
    if stored["state"] == "CANCELLED" and not stored["nodes"]:
        return "submit"  # the cluster had no room for it, so it never ran
    return "submit" if retry else "refuse"


def asked_gpus(script):
    """The GPUs on each node that a batch script asks for."""
    found = re.search(r"^#SBATCH --gpus-per-node=(?:\w+:)?(\d+)$", script, re.MULTILINE)
    return int(found.group(1)) if found else 0


def result(name, identity, output, record, *, stored=False, gpus=0):
    """The `muster.job_result/1` of a record from slurm.job_record() or slurm.accounting_record(); times as ISO 8601 in UTC."""
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
    }


def _iso(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def merged(record, row):
    """slurmctld's last word on a job and its accounting row in one record; either may be None, not both.

    The controller knows the state at once. Accounting knows the time that the job used, and keeps the record longer than the controller.
    """
    if record is None or row is None:
        return record or row
    reason = row["reason"] if row["reason"] in slurm.REMEDIES else record["reason"]
    restarts = max(record["restarts"], row["restarts"])
    # A requeue gives the job a new SubmitTime in slurmctld; the first row of accounting keeps the real one.
    return {**record, "reason": reason, "submitted": row["submitted"], "elapsed_s": row["elapsed_s"], "restarts": restarts}


def failure_sentence(found, tail):
    """(message, remedy) for a job that did not complete, from its result() and the tail of its output."""
    remedy = slurm.REMEDIES.get(found["reason"]) or slurm.REMEDIES.get(found["state"], "read its output")
    reason = "" if found["reason"] in ("None", "", None) else " (%s)" % found["reason"]
    message = "Job %s (%s) ended %s%s with exit status %s on %s after %s s and %s restarts; %s: %s" % (
        found["name"],
        found["job_id"],
        found["state"],
        reason,
        found["exit_code"],
        slurm.compress(found["nodes"]) or "no node",
        found["elapsed_s"],
        found["restarts"],
        remedy,
        found["output"],
    )
    return message + (", which ends:\n" + tail if tail else " (it is empty)."), remedy


class Store:
    """The folder of one job on the shared file system. It belongs to the job's user, so no link in it is ever followed."""

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
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchown(handle, self.uid, self.gid)
                os.fchmod(handle, 0o640)  # env may hold values that other users must not see
            os.replace(temporary, os.path.join(self.folder, name))

    def remove(self):
        """Delete the folder of a job that was never submitted."""
        for name in (".lock", "job.json", "job.sbatch"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)  # where somebody put a file of his own into it, it stays

    def put_aside(self, job_id):
        """Rename the files of the run `job_id`, because Slurm would append to its output."""
        for name, ending in (("output", "txt"), ("result", "json")):
            with contextlib.suppress(FileNotFoundError):
                old = os.path.join(self.folder, "%s.%s" % (name, ending))
                os.rename(old, os.path.join(self.folder, "%s-%s.%s" % (name, job_id or "unknown", ending)))

    def tail(self):
        """The last lines of the output."""
        return "\n".join(self.read("output.txt", TAIL_BYTES).splitlines()[-20:])

    @contextlib.contextmanager
    def locked(self):
        """Keep a second run from submitting the same job meanwhile, except on a file system without locks."""
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        handle = os.open(os.path.join(self.folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class Runner:
    """One job of one user, through Slurm's commands.

    run(argv, as_user) -> (rc, stdout, stderr); as_user: whether to become the job's user; sleep and clock are those of `time`.
    """

    def __init__(self, *, run, name, identity, store, user, timeout, poll, pending_timeout, sleep=time.sleep, clock=time.monotonic):
        self.run, self.name, self.identity, self.store, self.user = run, name, identity, store, user
        self.timeout, self.poll, self.pending_timeout = timeout, poll, pending_timeout
        self.sleep, self.clock = sleep, clock
        self.deadline = clock() + timeout
        self.slurm_name = sbatch.job_name(name, identity)

    def ask(self, *argv):
        """The stdout of a command that only reads. Tries again until the deadline while the controller does not answer."""
        while True:
            rc, out, err = self.run(list(argv), False)
            if rc == 0:
                return out
            if UNKNOWN_JOB in err:
                return ""
            if not any(text in err for text in TRANSIENT):
                raise SlurmJobError("%s failed: %s" % (argv[0], _last_line(err)), "look at the Slurm controller: scontrol ping")
            self.pause("%s gets no answer: %s" % (argv[0], _last_line(err)))

    def pause(self, waiting_for):
        """Sleep one poll. After the deadline raise an error that names `waiting_for`."""
        if self.clock() >= self.deadline:
            raise SlurmJobError(
                "Job %s is not over after %d s: %s; it goes on, and the next run finds it again." % (self.name, self.timeout, waiting_for),
                "raise timeout, or cancel it with state=cancelled",
            )
        self.sleep(self.poll)

    def live(self):
        """The id of this job in the queue, or None."""
        return slurm.newest_live(self.ask("squeue", "-h", "-a", "--name=" + self.slurm_name, "-o", slurm.SQUEUE_FORMAT), self.slurm_name)

    def nodes(self):
        """What sinfo says of the nodes, as text."""
        return self.ask("sinfo", "-N", "-h", "-a", "-o", slurm.SINFO_FORMAT)

    def gpus(self, partition):
        """{node: GPUs} of a partition."""
        return slurm.gpus_of(self.ask("sinfo", "-N", "-h", "-a", "-o", slurm.GRES_FORMAT), partition)

    def submit(self, options):
        """Submit job.sbatch and return its id. A controller that died while it answered may have the job: look before trying again."""
        argv = ["sbatch", "--parsable", *options, os.path.join(self.store.folder, "job.sbatch")]
        while True:
            rc, out, err = self.run(argv, True)
            if rc == 0:
                return int(out.strip().split(";")[0])  # ID or ID;CLUSTER
            if not any(text in err for text in TRANSIENT):
                remedy = next((advice for text, advice in REFUSALS.items() if text in err), "change what it asks for") % {"user": self.user}
                raise Refused("Slurm refuses job %s: %s; %s." % (self.name, _last_line(err), remedy), remedy)
            self.pause("sbatch gets no answer: %s" % _last_line(err))
            found = self.live()
            if found:
                return found

    def cancel(self, job_id):
        """Cancel the job and wait until it has left Slurm's queue."""
        self.run(["scancel", str(job_id)], False)
        while True:
            found = self.record(job_id)
            if found is None or found["state"] in slurm.FINAL_STATES:
                return
            self.pause("Slurm is cancelling it (%s)" % found["state"])

    def record(self, job_id):
        """slurmctld's record of a job, or None once it has forgotten it."""
        text = self.ask("scontrol", "-o", "show", "job", str(job_id))
        return slurm.job_record(text) if text.strip() else None

    def row(self, job_id):
        """(row, enabled): the accounting row of a job or None, and whether it is worth asking again."""
        rc, out, err = self.run(["sacct", "-n", "-P", "-D", "-j", str(job_id), "--format=" + slurm.SACCT_FORMAT], False)
        return (slurm.accounting_record(out, job_id) if rc == 0 else None), "accounting storage is disabled" not in err

    def wait(self, job_id):
        """The record of the job once it is over. A job that cannot start is cancelled, and its reason raised as SlurmJobError."""
        unavailable_since = None
        while True:
            found = self.record(job_id)
            if found is None or found["state"] in slurm.FINAL_STATES:
                return self.accounted(job_id, found)
            kind, advice = slurm.pending_problem(found["reason"]) if found["state"] == "PENDING" else (None, "")
            if kind != "unavailable":
                unavailable_since = None
            elif unavailable_since is None:
                unavailable_since = self.clock()
            patience_over = unavailable_since is not None and self.clock() - unavailable_since >= self.pending_timeout
            if kind == "impossible" or patience_over:
                self.cancel(job_id)
                message = "Job %s (%d) cannot start and was cancelled: Slurm says %s; %s" % (self.name, job_id, found["reason"], advice)
                raise SlurmJobError(message + self.out_of_service(kind) + ".", advice)
            self.pause("Slurm says %s (%s)" % (found["state"], found["reason"]))

    def out_of_service(self, kind):
        """` (compute-2 drained: reason)` for the nodes that a job waited for in vain."""
        if kind != "unavailable":
            return ""
        nodes = slurm.node_records(self.nodes())
        lost = ["%s %s: %s" % (name, node["state"], node["reason"] or "no reason given") for name, node in sorted(nodes.items())]
        lost = [text for text in lost if text.split()[1].startswith(("down", "drain", "fail", "maint", "unk"))]
        return " (%s)" % "; ".join(lost[:10]) if lost else ""

    def accounted(self, job_id, record):
        """`record` with the accounting row. Waits for the row a bounded time, because the job's end reaches the database a little later."""
        give_up = self.clock() + ACCOUNTING_WAIT
        while True:
            row, enabled = self.row(job_id)
            if row is not None and row["ended"] and row["state"] in slurm.FINAL_STATES:
                return merged(record, row)
            if not enabled or self.clock() >= give_up:
                break
            self.sleep(min(self.poll, 2))
        if record is None:
            raise SlurmJobError(
                "Slurm has forgotten job %s (%d), and accounting has no end of it; run it again with rerun." % (self.name, job_id),
                "look at slurmctld's StateSaveLocation and at slurmdbd",
            )
        return record


def bring(runner, *, state, files, options=(), rerun=False, retry=False, check_mode=False, check=lambda: None):
    """Bring a job to `state`: (changed, result or None, files that a submission wrote or would write).

    files: {name: text} of the store, job.sbatch among them; options: further arguments of sbatch; check: called before a submission,
    raises when the cluster cannot run the job. Raises SlurmJobError, with the result as its facts, for a job that did not complete.
    """
    store = runner.store
    kept = None

    def say(record, stored=False):
        return result(runner.name, runner.identity, store.output, record, stored=stored, gpus=asked_gpus(store.read("job.sbatch")))

    def end(job_id):
        found = say(runner.wait(job_id))
        store.prepare({"result.json": json.dumps(found, indent=1) + "\n"})
        return found

    new = not check_mode and not os.path.isdir(store.folder)
    lock = contextlib.nullcontext() if check_mode else store.locked()
    with lock:
        live, kept = runner.live(), store.stored()
        if kept and not live and kept["state"] not in slurm.FINAL_STATES and not check_mode:
            kept = end(kept["job_id"])  # it ended while nobody watched
        action = decide(state, kept, live, rerun, retry)
        if action == "submit":
            submitting = False
            try:
                check()
                if check_mode:
                    return True, None, files
                store.put_aside(kept and kept["job_id"])
                store.prepare(files)
                submitting = True
                live = runner.submit(options)
            except Exception as error:
                # A submission without an answer may have given a job, which needs its folder.
                if new and (not submitting or isinstance(error, Refused)):
                    store.remove()
                raise
            found = say(_submitted(live))
            store.prepare({"result.json": json.dumps(found, indent=1) + "\n"})
            if state == "submitted":
                return True, found, files
    if action == "none":
        return False, say(runner.record(live) or _submitted(live)) if live else kept and {**kept, "stored": True}, {}
    if action == "cancel":
        if not check_mode:
            runner.cancel(live)
            return True, end(live), {}
        return True, None, {}
    if action in ("stored", "refuse"):
        found = {**kept, "stored": True}
    elif check_mode:
        return False, say(runner.record(live) or _submitted(live)), {}
    else:
        found = end(live)
    if found["state"] != "COMPLETED":
        message, remedy = failure_sentence(found, store.tail())
        if action == "refuse":
            message, remedy = "It failed before, and retry was not given. " + message, "set retry to run it again"
        raise SlurmJobError(message, remedy, found, action == "submit")
    return action == "submit", found, files if action == "submit" else {}


def _submitted(job_id):
    """The record of a job whose id alone is known."""
    times = dict.fromkeys(("submitted", "started", "ended", "elapsed_s"))
    return {"job_id": job_id, "state": "PENDING", "reason": "None", "exit_code": 0, "signal": 0, "nodes": [], "restarts": 0, **times}


def _last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
