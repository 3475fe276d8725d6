# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each launcher gives its service, as files: for the store of a job, and for people who hand it over themselves."""

from __future__ import annotations

import datetime
import json
import re
import shlex

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.jobs import batch, kubernetes, sagemaker, sbatch, torchrun
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import KUBERNETES, JobError

# What a user asks of job.yml -> the state that a job module brings the job to.
VERBS = {
    "run": "finished",
    "submit": "submitted",
    "wait": "awaited",
    "status": "queried",
    "logs": "queried",
    "result": "queried",
    "stop": "cancelled",
    "render": "",
}
STEP = re.compile(r"Batch (\d+) Loss: ([\d.]+), Speed: ([\d.]+) samples/sec")
BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")


def state_of(verb):
    """The state for a verb; raises JobError that names the nearest."""
    if verb not in VERBS:
        raise JobError("The verb %s is unknown; %s" % (verb, nearest(verb, VERBS)))
    return VERBS[verb]


def status_line(found, nodes, now):
    """One sentence about a job from its `muster.job_result/1`. nodes: how many it asks for; now: a time such as 2026-11-25T04:00:00Z."""
    ready = found.get("ready", 0)
    age = _seconds(now) - _seconds(found["submitted"]) if found.get("submitted") else 0
    reason = "" if found["reason"] in ("None", None, "") else "; " + found["reason"]
    return "%s (%s): %s, submitted %d min ago, %d of %d nodes run, %d restarts%s" % (
        found["name"],
        found["job_id"],
        found["state"],
        age // 60,
        ready,
        nodes,
        found["restarts"],
        reason,
    )


def _seconds(text):
    return datetime.datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").timestamp()


def outcome(text):
    """What the output of a job says last: its loss and speed, or the bandwidth of its collectives, as one sentence."""
    steps, bandwidths = STEP.findall(text), BANDWIDTH.findall(text)
    if steps:
        return "batch %s: loss %s, %s samples/sec" % steps[-1]
    if bandwidths:
        return "average bus bandwidth %s GB/s" % bandwidths[-1]
    return "its output has no loss and no bandwidth"


def files(document, identity, target):
    """{file name: text} of a job that does not run here: manifest.json, request.json, job.sbatch and such. Raises JobError.

    document, identity: as document.load() and identity() give them; target: as target.load() gives it.
    """
    kind = document["launcher"]["kind"]
    if kind == "slurm":
        gpus = 0 if document["gpus_per_node"] == "all" else document["gpus_per_node"]
        folder = "/fsx/muster/jobs/%s-%s" % (document["name"], identity[:12])
        return {"job.sbatch": sbatch.render_sbatch(document, identity, folder, (), gpus)}
    if kind in KUBERNETES:
        values = kubernetes.manifest_values(document, target)
        exports = ["export %s=%s\n" % (name, shlex.quote(value)) for name, value in values.items()]
        return {"manifest.json": _text(kubernetes.render(document, identity, target)), "env_vars": "".join(exports)}
    if kind == "batch":
        return {"%s.json" % name: _text(request) for name, request in batch.render(document, identity, target).items()}
    if kind == "sagemaker":
        return {"request.json": _text(sagemaker.render(document, identity, target))}
    scripts = {"%s.sh" % each["host"]: each["script"] for each in torchrun.render(document, identity, target)}
    return {**scripts, "hostfile": torchrun.hostfile(document, target)}


def _text(value):
    return json.dumps(value, indent=1) + "\n"
