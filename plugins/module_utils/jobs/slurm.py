# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs through Slurm's commands. Slurm knows a job as `muster:<name>:<identity[:12]>`, by which a later run finds it in the queue."""

from __future__ import annotations

import os
import re

from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import sbatch
from ansible_collections.muster.fleet.plugins.module_utils.jobs.ranks import SRUN_OWN, failed_ranks_of_slurm, with_rank
from ansible_collections.muster.fleet.plugins.module_utils.jobs.run import Refused, RunError, last_line
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

# slurmdbd records a job's end within seconds. When it is away for longer, slurmctld's own record is used.
ACCOUNTING_WAIT = 60
# torchrun's last words stand at the end of an output, which may be long.
LAST_BYTES = 1 << 20
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


def asked_gpus(script):
    """The GPUs on each node that a batch script asks for."""
    found = re.search(r"^#SBATCH --gpus-per-node=(?:\w+:)?(\d+)$", script, re.MULTILINE)
    return int(found.group(1)) if found else 0


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


class Slurm(jobs.Service):
    """One job of one user, through Slurm's commands.

    run(argv, as_user) -> (rc, stdout, stderr); as_user: whether to become the job's user.
    """

    title = "Slurm"
    remedies = slurm.REMEDIES

    def __init__(self, *, run, user, **settings):
        super().__init__(**settings)
        self.run, self.user = run, user
        self.slurm_name = sbatch.job_name(self.name, self.identity)

    def ask(self, *argv):
        """The stdout of a command that only reads. Tries again until the deadline while the controller does not answer."""
        while True:
            rc, out, err = self.run(list(argv), False)
            if rc == 0:
                return out
            if UNKNOWN_JOB in err:
                return ""
            if not any(text in err for text in TRANSIENT):
                raise RunError("%s failed: %s" % (argv[0], last_line(err)), "look at the Slurm controller: scontrol ping")
            self.pause("%s gets no answer: %s" % (argv[0], last_line(err)))

    def live(self):
        """The id of this job in the queue, or None."""
        return slurm.newest_live(self.ask("squeue", "-h", "-a", "--name=" + self.slurm_name, "-o", slurm.SQUEUE_FORMAT), self.slurm_name)

    def nodes(self):
        """What sinfo says of the nodes, as text."""
        return self.ask("sinfo", "-N", "-h", "-a", "-o", slurm.SINFO_FORMAT)

    def asked_gpus(self):
        """The GPUs on each node that the script in the store asks for."""
        return asked_gpus(self.store.read("job.sbatch"))

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
                raise Refused("Slurm refuses job %s: %s; %s." % (self.name, last_line(err), remedy), remedy)
            self.pause("sbatch gets no answer: %s" % last_line(err))
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
        found = slurm.job_record(text) if text.strip() else None
        return found and {**found, "ready": len(found["nodes"]) if found["state"] == "RUNNING" else 0}

    def row(self, job_id):
        """(row, enabled): the accounting row of a job or None, and whether it is worth asking again."""
        rc, out, err = self.run(["sacct", "-n", "-P", "-D", "-j", str(job_id), "--format=" + slurm.SACCT_FORMAT], False)
        return (slurm.accounting_record(out, job_id) if rc == 0 else None), "accounting storage is disabled" not in err

    def pending(self, record):
        """Whether the job can start, as Slurm's reason says."""
        return slurm.pending_problem(record["reason"])

    def lost(self, kind):
        """` (compute-2 drained: reason)` for the nodes that a job waited for in vain."""
        if kind != "unavailable":
            return ""
        nodes = slurm.node_records(self.nodes())
        lost = ["%s %s: %s" % (name, node["state"], node["reason"] or "no reason given") for name, node in sorted(nodes.items())]
        lost = [text for text in lost if text.split()[1].startswith(("down", "drain", "fail", "maint", "unk"))]
        return " (%s)" % "; ".join(lost[:10]) if lost else ""

    def over(self, job_id, record):
        """The last record, with the rank that failed first where torchrun names it in the output."""
        record = self._accounted(job_id, record)
        return with_rank(record, failed_ranks_of_slurm(self.store.read("output.txt", LAST_BYTES)), SRUN_OWN)

    def _accounted(self, job_id, record):
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
            raise RunError(
                "Slurm has forgotten job %s (%d), and accounting has no end of it; run it again with rerun." % (self.name, job_id),
                "look at slurmctld's StateSaveLocation and at slurmdbd",
            )
        return record
