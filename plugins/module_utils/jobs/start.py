# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shell that starts the ranks of a job on one of its nodes; launchers share it."""

from __future__ import annotations

import os
import re
import shlex

from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import SECRETS_OF, JobError

# Reads as sitecustomize, before the program. The hook runs in the thread that trains, because torch's profiler sees the CPU operations of
# its own thread only.
TORCH_PROFILER = """\
import atexit, os, sys, threading, time

trace, delay, duration = os.environ.pop("MUSTER_PROFILE", ""), %(delay)d, %(duration)d
began, state = time.monotonic(), {}


def finish():
    profiler = state.pop("profiler", None)
    if profiler:
        profiler.stop()
        profiler.export_chrome_trace(trace)
        state["done"] = True
    elif "done" not in state:
        sys.stderr.write("muster: launcher.profile: no optimizer step after %%d s, so there is no trace\\n" %% delay)


def step(*_args):
    now = time.monotonic()
    if "profiler" in state:
        if now >= state["until"]:
            finish()
    elif "done" not in state and now >= began + delay:
        import torch.profiler

        state["profiler"], state["until"] = torch.profiler.profile(), now + duration
        state["profiler"].start()


def hook():
    while not hasattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook"):
        time.sleep(0.1)
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(step)


if trace:
    atexit.register(finish)
    threading.Thread(target=hook, daemon=True).start()
"""
PROFILES = {
    "nsys": """\
  if ! command -v nsys >/dev/null; then
    echo "muster: launcher.profile: $(hostname) has no nsys; install Nsight Systems or use the tool torch" >&2
    exit 78
  fi
  exec nsys profile --output="$folder/rank-$RANK" --force-overwrite=true --delay=%(delay)d --duration=%(duration)d --kill=none --wait=all \\
    --trace=cuda,nvtx,osrt "$@\"""",
    "torch": """\
  mkdir -p "$folder/rank-$RANK"
  printf %%s %(code)s > "$folder/rank-$RANK/sitecustomize.py"
  export MUSTER_PROFILE="$folder/rank-$RANK.json" PYTHONPATH="$folder/rank-$RANK${PYTHONPATH:+:$PYTHONPATH}\"""",
}


def profiled(document):
    """Bash that runs its arguments as one rank, under the profiler that `launcher.profile` asks for; "" without one."""
    want = document["launcher"]["profile"]
    if not want:
        return ""
    code = shlex.quote(TORCH_PROFILER % want) if want["tool"] == "torch" else ""
    body = PROFILES[want["tool"]] % {"delay": want["delay"], "duration": want["duration"], "code": code}
    ranks = " ".join(str(rank) for rank in sorted(set(want["ranks"])))
    return 'if [[ " %s " == *" $RANK "* ]]; then\n  folder="$MUSTER_JOB_DIR/profile"\n  mkdir -p "$folder"\n%s\nfi\nexec "$@"' % (
        ranks,
        body,
    )


def environment(document, target, folder):
    """{variable: value} of a job on the instance type and stack of the target; the document's own values win."""
    have = target["have"]
    collective = nccl_env(have, target["stack"]) if have and target["stack"] else []
    out = {each["name"]: each["value"] for each in collective}
    out.update(PYTHONUNBUFFERED="1", MUSTER_JOB_DIR=folder)
    out.update(document["env"])
    return out


def secrets_of(document, target):
    """{variable: reference} of the document's secrets; the target may say where they are kept there. Raises JobError for another source."""
    kind = document["launcher"]["kind"]
    out = {}
    for name, reference in sorted(document["secrets"].items()):
        found = target["secrets"].get(name, reference)
        if found["from"] not in SECRETS_OF[kind]:
            remedy = "name such a source" if kind == "slurm" else "say where it is kept there in muster_target.secrets.%s" % name
            raise JobError(
                "Job %s: %s takes secrets from %s, and %s is from %s; %s."
                % (document["name"], kind, " or ".join(SECRETS_OF[kind]), name, found["from"], remedy)
            )
        if found["from"] == "file" and kind not in ("slurm", "torchrun") and not _mounted(found["path"], document, target):
            raise JobError(
                "Job %s: the secret %s is the file %s, which no mount brings into the container; add a mount."
                % (document["name"], name, found["path"])
            )
        out[name] = found
    return out


def _mounted(path, document, target):
    folders = [pair.split(":")[1] for pair in document["mounts"] if ":" in pair] + [target.get("checkpoints_at") or ""]
    return any(each and os.path.normpath(path).startswith(os.path.normpath(each) + "/") for each in folders)


def secret_lines(name, reference):
    """Bash that exports a secret from where it lies; its value is in no script, no argument and no output."""
    if reference["from"] == "file":
        path = shlex.quote(reference["path"])
        lost = shlex.quote("muster: secret %s: %s cannot be read on" % (name, reference["path"]))
        return '[ -r %s ] || { echo %s "$(hostname)" >&2; exit 78; }\n%s=$(<%s)\nexport %s' % (path, lost, name, path, name)
    if reference["from"] == "secretsmanager":
        lost = shlex.quote("muster: secret %s: Secrets Manager does not give %s; allow it to the job's role" % (name, reference["id"]))
        ask = "aws secretsmanager get-secret-value --secret-id %s --query SecretString --output text" % shlex.quote(reference["id"])
        return "%s=$(%s) || { echo %s >&2; exit 78; }\nexport %s" % (name, ask, lost, name)
    source = reference["name"]
    return ': "${%s:?muster: secret %s: it is not in the environment of the node}"\nexport %s="$%s"' % (source, name, name, source)


def venv_line(venv):
    """Bash that puts an environment first in PATH."""
    return 'export VIRTUAL_ENV=%s PATH=%s/bin:"$PATH"' % (shlex.quote(venv), shlex.quote(venv))


def node_script(document, secrets, meeting, before=()):
    """Bash that starts a node's ranks by torchrun; the words of the command are its arguments.

    secrets: {variable: reference} of those that the shell has to read itself; meeting: torchrun's arguments that say where the nodes meet;
    before: further lines.
    """
    lines = ["set -euo pipefail", *before]
    # A program saves its state before the service ends the job.
    lines.append("export MUSTER_STOP_AT=${MUSTER_STOP_AT:-$(($(date +%%s) + 60 * %d))}" % document["time_limit"])
    if document["venv"]:
        lines.append(venv_line(document["venv"]))
    lines += [secret_lines(name, reference) for name, reference in secrets.items()]
    lines.append("export OMP_NUM_THREADS=${OMP_NUM_THREADS:-%d}" % document["cpus_per_proc"])
    start = [
        "exec torchrun",
        "--nnodes=%d" % document["nodes"],
        "--nproc-per-node=%d" % document["procs_per_node"],
        *meeting,
        "--no-python",
        "--",
    ]
    profile = profiled(document)
    if profile:
        start.append("bash -c %s rank" % shlex.quote(profile))
    lines.append(" ".join(start) + ' "$@"')
    return "\n".join(lines) + "\n"


def plain_name(document, identity, limit=53):
    """A name of lower-case letters, digits and hyphens that begins with a letter and ends with the identity's first digits."""
    name = re.sub(r"[^a-z0-9]+", "-", document["name"]).strip("-")
    if not name[:1].isalpha():
        name = "job-" + name
    return "%s-%s" % (name[: limit - 13].rstrip("-"), identity[:12])
