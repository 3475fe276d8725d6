# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch script of a job document for Slurm."""

from __future__ import annotations

import re
import shlex

from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.start import profiled, secret_lines, secrets_of, venv_line
from ansible_collections.muster.fleet.plugins.module_utils.slurm.text import seconds

# Options that render_sbatch() sets from the fields of the document.
OWN_OPTIONS = {
    "job-name": "name",
    "nodes": "nodes",
    "ntasks": "procs_per_node",
    "ntasks-per-node": "procs_per_node",
    "cpus-per-task": "cpus_per_proc",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "time": "time_limit",
    "partition": "launcher.partition",
    "chdir": "the store",
    "output": "the store",
    "error": "the store",
    "open-mode": "the store",
    "requeue": "retries",
    "export": "env",
    "wrap": "command",
}
# Sent before the user's own env, so that env may replace any of it.
PREAMBLE = """\
set -euo pipefail
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# No DNS knows the nodes that Slurm starts, but Slurm knows their addresses. Elsewhere, and without an answer, the name is good.
node_addr=$(scontrol --oneliner show node "$MASTER_ADDR" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p') || true
MASTER_ADDR=${node_addr:-$MASTER_ADDR}
# Below the ephemeral ports, and another one for each job that may share the node.
MASTER_PORT=$((20000 + SLURM_JOB_ID %% 10000))
# The second at which Slurm ends the job. A program must have saved its state by then.
MUSTER_STOP_AT=${SLURM_JOB_END_TIME:-$(($(date +%%s) + 60 * %(time_limit)d))}
MUSTER_JOB_DIR=%(folder)s
MUSTER_RESTART=${SLURM_RESTART_COUNT:-0}
PYTHONUNBUFFERED=1
export MASTER_ADDR MASTER_PORT MUSTER_STOP_AT MUSTER_JOB_DIR MUSTER_RESTART PYTHONUNBUFFERED
"""
STOP_AT = """\
# The times at which nodes are taken away. A job that was requeued after such a time has other nodes.
for at in %s; do
  if [ "$(date +%%s)" -lt "$at" ] && [ "$at" -lt "$MUSTER_STOP_AT" ]; then MUSTER_STOP_AT=$at; fi
done"""
# Roles nccl and neuron write the variables of the node's instance type and stack into these files. The job's own env comes later and wins.
NODE_ENVIRONMENT = """\
for file in /etc/profile.d/muster-nccl.sh /etc/profile.d/muster-neuron.sh; do
  if [ -r "$file" ]; then . "$file"; fi
done"""
# In a container the image's own value of a variable would win, unless --container-env names it. `|| true`: most nodes have only one of the
# files, and sed fails for the other.
CONTAINER_ENVIRONMENT = """\
files="/etc/profile.d/muster-nccl.sh /etc/profile.d/muster-neuron.sh"
container_env=$({
  printf '%%s\\n' %s
  sed -n 's/.*export \\([A-Za-z0-9_]*\\)=.*/\\1/p' $files 2>/dev/null || true
} | sort -u | paste -sd,)"""
# The same names that torchrun gives to a rank, so a program need not know what started it.
RANK_ENVIRONMENT = 'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE=%d; %s'
RETRY = """\
if [ "$status" -ne 0 ] && [ "$MUSTER_RESTART" -lt %(retries)d ]; then
  echo "muster: the job ended with status $status; requeueing it ($MUSTER_RESTART of %(retries)d retries used)" >&2
  scontrol requeue "$SLURM_JOB_ID"
  sleep 60 # Slurm ends this script while it sleeps
fi
"""


def job_name(name, identity):
    """The name under which Slurm knows the job, and by which a later run finds it again."""
    return "muster:%s:%s" % (name, identity[:12])


def store_options(name, identity, folder):
    """The sbatch arguments that tie any batch script to its folder in the store; they override its #SBATCH lines."""
    return [
        "--job-name=" + job_name(name, identity),
        "--chdir=" + folder,
        "--output=%s/output.txt" % folder,
        "--error=%s/output.txt" % folder,
        "--open-mode=append",
    ]


def render_sbatch(document, identity, folder, stop_at=(), gpus=0):
    """The batch script of a document from job.load(), as text.

    identity: job.identity() of it; folder: the absolute path of its folder in the store, which the nodes see too; stop_at: times at which
    nodes are taken away; gpus: how many the job gets on each node. Raises JobError for a launcher option that the document sets elsewhere,
    SlurmError for a time that cannot be read.
    """
    launcher, ranks = document["launcher"], document["procs_per_node"]
    torchrun = launcher["launch"] == "torchrun"
    tasks, cpus = (1, ranks * document["cpus_per_proc"]) if torchrun else (ranks, document["cpus_per_proc"])
    options = {
        "nodes": document["nodes"],
        "ntasks-per-node": tasks,
        "cpus-per-task": cpus,
        # Slurm's constraint of devices hides the GPUs that a job did not ask for.
        "gpus-per-node": gpus or None,
        "time": document["time_limit"],
        "partition": launcher["partition"] or None,
        "requeue": True,
    }
    for option, value in sorted(launcher["options"].items()):
        if option in OWN_OPTIONS or not re.fullmatch(r"[a-z][a-z0-9-]+", option) or not re.fullmatch(r"[^\s#'\"\\]*", str(value)):
            raise JobError(
                "Job %s: launcher.options cannot hold %s: %s; use %s."
                % (document["name"], option, value, OWN_OPTIONS.get(option, "a long option of sbatch and a value without spaces or quotes"))
            )
        options[option] = value
    lines = ["#!/bin/bash"] + ["#SBATCH " + option for option in store_options(document["name"], identity, folder)]
    for option, value in options.items():
        if value is not None and value is not False:
            lines.append("#SBATCH --%s%s" % (option, "" if value is True else "=%s" % value))
    lines.append(PREAMBLE.rstrip() % {"time_limit": document["time_limit"], "folder": shlex.quote(folder)})
    lines.append(NODE_ENVIRONMENT)
    if stop_at:
        lines.append(STOP_AT % " ".join(str(at) for at in sorted(set(map(seconds, stop_at)))))
    if document["venv"]:
        lines.append(venv_line(document["venv"]))
    lines += ["export %s=%s" % (name, shlex.quote(value)) for name, value in sorted(document["env"].items())]
    lines += [secret_lines(name, reference) for name, reference in secrets_of(document, {"secrets": {}}).items()]

    # --cpus-per-task is repeated because srun inherits it from sbatch in some versions only (not from 22.05 to 23.11).
    srun = ["srun", "--mpi=%s" % launcher["mpi"], "--kill-on-bad-exit=1", "--cpus-per-task=%d" % cpus]
    if gpus:
        # Each rank takes the GPU of its local number, and NCCL reaches the others' memory only where the rank may open them.
        srun.append("--gpu-bind=none")
        # The ranks of a socket are neighbours, so that a rank's CPUs are near its GPU and NIC.
        srun += ["--distribution=block:block", "--cpu-bind=cores"] if tasks > 1 else []
    if document["image"]:
        srun.append("--container-image=%s" % document["image"])
    if document["mounts"]:
        srun.append("--container-mounts=%s" % ",".join(document["mounts"]))
    start = " ".join(shlex.quote(word) for word in srun)
    if document["image"]:
        names = sorted([*document["env"], *document["secrets"], "MASTER_ADDR"])
        lines.append(CONTAINER_ENVIRONMENT % " ".join(names))
        start += ' --container-env="$container_env"'
    profile = profiled(document)
    if torchrun:
        start += ' torchrun --nnodes=%d --nproc-per-node=%d --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"' % (document["nodes"], ranks)
        start += ' --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --no-python --'
        start += " bash -c %s rank" % shlex.quote(profile) if profile else ""
    else:
        start += " bash -c %s rank" % shlex.quote(RANK_ENVIRONMENT % (ranks, profile or 'exec "$@"'))
    lines.append("status=0")
    lines.append("%s %s || status=$?" % (start, " ".join(shlex.quote(word) for word in document["command"])))
    if document["retries"]:
        lines.append(RETRY.rstrip() % {"retries": document["retries"]})
    lines.append('exit "$status"')
    return "\n".join(lines) + "\n"
