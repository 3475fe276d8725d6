# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job document `muster.job/1`: what to run, on how many ranks, for how long; launchers turn it into their own language."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest

SCHEMA = "muster.job/1"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Slurm sets these for its commands and for the job; another value changes what srun asks for.
SLURMS_OWN = re.compile(r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN)_")
# A launcher sets these for each rank, or torchrun reads them as its own options (PET_*).
LAUNCHERS_OWN = re.compile(
    r"(PET|TORCHELASTIC|OMPI_COMM_WORLD|AWS_BATCH_JOB)_\w+|(LOCAL_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)"
)
SAGEMAKERS_OWN = re.compile(r"SM_\w+")
MINUTES = 366 * 24 * 60
# Linux starts no program with a longer word or variable (128 KiB), and few with more than 2 MiB of both together.
WORD_BYTES, START_BYTES = 128 << 10, 1 << 20

# Field -> (type, default); a field without a default (REQUIRED) must be given.
REQUIRED = object()
FIELDS: dict[str, tuple[type, Any]] = {
    "schema": (str, SCHEMA),
    "name": (str, REQUIRED),
    "command": (list, REQUIRED),
    "image": (str, ""),
    "venv": (str, ""),
    "nodes": (int, 1),
    "procs_per_node": (int, 1),
    "cpus_per_proc": (int, 1),
    "gpus_per_node": (object, "all"),
    "env": (dict, {}),
    "secrets": (dict, {}),
    "mounts": (list, []),
    "time_limit": (int, 60),
    "retries": (int, 0),
    "launcher": (dict, {}),
}
# Fields of a single launcher, beside `kind` and `profile`, which all have. A new launcher adds a line here and no field above.
LAUNCHERS: dict[str, dict[str, tuple[type, Any]]] = {
    "slurm": {"mpi": (str, "pmix"), "launch": (str, "srun"), "partition": (str, ""), "options": (dict, {})},
    "pytorchjob": {"rendezvous": (str, "c10d")},
    "trainjob": {},
    "mpijob": {},
    "jobset": {},
    "batch": {},
    "sagemaker": {"channels": (dict, {}), "spot": (bool, False)},
    "torchrun": {},
}
KUBERNETES = ("pytorchjob", "trainjob", "mpijob", "jobset")
CHOICES = {"mpi": ("pmix", "none"), "launch": ("srun", "torchrun"), "rendezvous": ("c10d", "etcd-v2")}
PROFILE: dict[str, tuple[type, Any]] = {"tool": (str, REQUIRED), "ranks": (list, [0]), "delay": (int, 30), "duration": (int, 30)}
PROFILERS = ("nsys", "torch")
# Where a secret may come from -> the fields that say which one. A document never holds the value itself.
SECRET_SOURCES = {"file": ("path",), "env": ("name",), "kubernetes": ("secret", "key"), "secretsmanager": ("id",)}
# Launcher -> the sources that it can take secrets from. In a container a file is one of a mount.
SECRETS_OF = {
    **dict.fromkeys(LAUNCHERS, ("file", "env")),
    **dict.fromkeys(KUBERNETES, ("kubernetes", "file")),
    "batch": ("secretsmanager", "file"),
    "sagemaker": ("secretsmanager", "file"),
}
SECRET_HELP = (
    "{from: file, path: ...}, {from: env, name: ...}, {from: kubernetes, secret: ..., key: ...} or {from: secretsmanager, id: ...}"
)
TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    list: "a list",
    dict: "a mapping",
    bool: "true or false",
    float: "a number",
    object: "all or a whole number",
}


class JobError(ValueError):
    """A job document that cannot be run; its text is one sentence with the remedy."""


def service_of(kind):
    """What runs the jobs of a launcher: kubernetes for those of its operators, else the launcher itself."""
    return "kubernetes" if kind in KUBERNETES else kind


def filled(data, fields, where):
    """`data` with defaults from `fields`, {field: (type, default)}; refuses a field that is unknown, missing or of another type."""
    for field in data:
        if field not in fields:
            raise JobError("%s has the unknown field %s; %s" % (where, field, nearest(field, fields)))
    out = {}
    for field, (kind, default) in fields.items():
        value = data.get(field)
        if value is None:
            if default is REQUIRED:
                raise JobError("%s has no %s; add it." % (where, field))
            value = copy.deepcopy(default)
        # YAML's `true` is an int in Python, but never a count.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise JobError("%s: %s must be %s, not %r." % (where, field, TYPE_NAMES[kind], value))
        out[field] = value
    return out


def _check_text(value, what):
    """Refuse what would start a new line in a batch script."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise JobError("%s must be text, not %r; quote it." % (what, value))
    if "\n" in str(value) or "\0" in str(value):
        raise JobError("%s holds a line break or a NUL; remove it." % what)


def _check_size(job, where):
    """Refuse a command and an environment with which Linux would not start the program."""
    parts = {"env %s" % name: "%s=%s" % (name, value) for name, value in job["env"].items()}
    parts.update(("word %d of command" % number, word) for number, word in enumerate(job["command"], 1))
    sizes = {what: len(text.encode()) + 1 for what, text in parts.items()}
    for what, size in sizes.items():
        if size > WORD_BYTES:
            raise JobError("%s: %s has %d bytes, and Linux takes %d; write it to a file." % (where, what, size, WORD_BYTES))
    together = sum(sizes.values())
    if together > START_BYTES:
        raise JobError("%s: command and env have %d bytes, and %d are allowed; write them to a file." % (where, together, START_BYTES))


def shared_secrets(document, store):
    """{secret: path} of a document's secrets in files that the folder `store` shares a file system with, as far as paths tell it."""
    files = {name: each["path"] for name, each in document["secrets"].items() if each["from"] == "file"}
    return {name: path for name, path in sorted(files.items()) if os.path.commonpath([os.path.normpath(path), store]) != "/"}


def _check_own(name, where, field):
    if SLURMS_OWN.match(name):
        raise JobError("%s: %s has %s, which Slurm sets itself; use the document's fields or launcher.options." % (where, field, name))
    if LAUNCHERS_OWN.fullmatch(name):
        raise JobError("%s: %s has %s, which the launcher sets itself; remove it." % (where, field, name))


def check_secrets(secrets, where):
    """Refuse secrets that are not references, {variable: {from: ..., ...}}; where: what has them, for the JobError."""
    for name, reference in secrets.items():
        source = str(reference.get("from")) if isinstance(reference, dict) else ""
        fields = SECRET_SOURCES.get(source, ())
        whole = fields and set(reference) == {"from", *fields} and all(reference[field] for field in fields)
        if not VARIABLE.fullmatch(str(name)) or not whole:
            # The message does not repeat the value, because it may be a secret instead of a reference.
            raise JobError("%s: the secret %s must be a reference, %s." % (where, name, SECRET_HELP))
        _check_own(name, where, "secrets")
        for field in fields:
            _check_text(reference[field], "%s: the secret %s" % (where, name))
        if source == "file" and not str(reference["path"]).startswith("/"):
            raise JobError("%s: the secret %s needs the absolute path of a file on the node." % (where, name))
        if source == "env" and not VARIABLE.fullmatch(str(reference["name"])):
            raise JobError("%s: the secret %s names no environment variable." % (where, name))


def _check_profile(profile, where):
    """The complete `profile` of a launcher; an empty one asks for none."""
    if not profile:
        return {}
    whole = filled(profile, PROFILE, "%s: launcher.profile" % where)
    if whole["tool"] not in PROFILERS:
        raise JobError("%s: launcher.profile.tool %s is unknown; %s" % (where, whole["tool"], nearest(whole["tool"], PROFILERS)))
    ranks = whole["ranks"]
    if not ranks or not all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in ranks):
        raise JobError("%s: launcher.profile.ranks must be a list of ranks such as [0], not %r." % (where, ranks))
    if whole["delay"] < 0 or whole["duration"] < 1:
        raise JobError("%s: launcher.profile needs a delay of 0 or more seconds and a duration of 1 or more." % where)
    return whole


def check_name(name):
    """Refuse a name that could not be a folder and a part of Slurm's job name."""
    if not NAME.fullmatch(name):
        raise JobError("Job %s: a name is 1 to 40 of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit." % name)


def load(data, kind=None):
    """The complete, checked document of `data`, a mapping as read from YAML or JSON.

    kind: the launcher, for a document that names none; without both it is slurm. Every field is there afterwards, with its default where
    none was given; env values are text.
    Raises JobError with one sentence for the first thing that is wrong.
    """
    if not isinstance(data, dict):
        raise JobError("A job document is a mapping with name and command, not %s." % type(data).__name__)
    where = "Job %s" % data.get("name", "without a name")
    job = filled(data, FIELDS, where)
    if job["schema"] != SCHEMA:
        raise JobError("%s has the schema %s; this version of Muster reads %s." % (where, job["schema"], SCHEMA))
    check_name(job["name"])
    if not job["command"]:
        raise JobError("%s: command is empty; give a list such as [python, -m, trainer, train]." % where)
    for word in job["command"]:
        _check_text(word, "%s: each word of command" % where)
    job["command"] = [str(word) for word in job["command"]]
    for field in ("nodes", "procs_per_node", "cpus_per_proc", "time_limit"):
        if job[field] < 1:
            raise JobError("%s: %s must be at least 1, not %d." % (where, field, job[field]))
    gpus = job["gpus_per_node"]
    if gpus != "all" and (not isinstance(gpus, int) or gpus < 0):
        raise JobError("%s: gpus_per_node must be all or a number from 0 on, not %r." % (where, gpus))
    if job["time_limit"] > MINUTES:
        raise JobError("%s: time_limit must be at most %d minutes (366 days), not %d." % (where, MINUTES, job["time_limit"]))
    if job["retries"] < 0:
        raise JobError("%s: retries must be 0 or more, not %d." % (where, job["retries"]))
    if job["image"] and job["venv"]:
        raise JobError("%s has both image and venv; keep one." % where)
    if job["mounts"] and not job["image"]:
        raise JobError("%s has mounts without an image; without a container the node's own paths are seen." % where)
    for value in [job["image"], job["venv"], *job["mounts"]]:
        _check_text(value, "%s: each of image, venv and mounts" % where)
    if job["venv"] and not job["venv"].startswith("/"):
        raise JobError("%s: venv must be an absolute path on the nodes, not %s." % (where, job["venv"]))
    for name, value in job["env"].items():
        if not VARIABLE.fullmatch(str(name)):
            raise JobError("%s: env has %s, which is not a name of an environment variable." % (where, name))
        _check_own(name, where, "env")
        _check_text(value, "%s: env %s" % (where, name))
    job["env"] = {name: str(value) for name, value in job["env"].items()}
    _check_size(job, where)
    check_secrets(job["secrets"], where)

    named = job["launcher"].get("kind")
    if named and kind and named != kind:
        raise JobError("%s is for the launcher %s (launcher.kind), and %s was asked for; remove launcher.kind." % (where, named, kind))
    kind = named or kind or "slurm"
    check_kind(kind, "%s: launcher.kind" % where)
    _check_launcher_fields(job["launcher"], kind, where)
    for field in ("env", "secrets") if kind == "sagemaker" else ():
        for name in filter(SAGEMAKERS_OWN.fullmatch, job[field]):
            raise JobError("%s: %s has %s, which SageMaker sets itself; remove it." % (where, field, name))
    fields = {"kind": (str, kind), **LAUNCHERS[kind], "profile": (dict, {})}
    job["launcher"] = filled(job["launcher"], fields, "%s: launcher" % where)
    job["launcher"]["profile"] = _check_profile(job["launcher"]["profile"], where)
    if job["launcher"]["profile"] and max(job["launcher"]["profile"]["ranks"]) >= job["nodes"] * job["procs_per_node"]:
        raise JobError("%s: launcher.profile.ranks must be below %d, the number of ranks." % (where, job["nodes"] * job["procs_per_node"]))
    for field, known in CHOICES.items():
        value = job["launcher"].get(field, known[0])
        if value not in known:
            raise JobError("%s: launcher.%s %s is unknown; %s" % (where, field, value, nearest(value, known)))
    for field, value in job["launcher"].items():
        if isinstance(value, str):
            _check_text(value, "%s: launcher.%s" % (where, field))
    return job


def at_home(data, home):
    """`data` with the fields of `home`, {image, venv, mounts, env}, when it has neither image nor venv: there its ranks find the trainer.

    Its own variables win. What is no document, or has no variables where they belong, is left to load().
    """
    if not isinstance(data, dict) or data.get("image") or data.get("venv") or not isinstance(data.get("env") or {}, dict):
        return data
    own = {field: data[field] for field in ("mounts",) if data.get(field)}
    return {**data, **home, **own, "env": {**home.get("env", {}), **(data.get("env") or {})}}


def check_kind(kind, where):
    """Refuse a launcher that does not exist; where: what names it, for the JobError."""
    if kind not in LAUNCHERS:
        raise JobError("%s %s is unknown; %s" % (where, kind, nearest(kind, LAUNCHERS)))


def _check_launcher_fields(launcher, kind, where):
    """Refuse a field of another launcher by that one's name."""
    for field in launcher:
        owners = [other for other, fields in LAUNCHERS.items() if field in fields]
        if owners and kind not in owners:
            raise JobError("%s: launcher.%s is for %s, and %s has no such field; remove it." % (where, field, ", ".join(owners), kind))


def canonical(value):
    """JSON that is the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def identity(document):
    """The sha256 (64 hexadecimal digits) of a document from load(): documents that would run the same have the same sha256."""
    # A job that completed before launchers knew `profile` keeps its identity, and does not run again.
    launcher = {field: value for field, value in document["launcher"].items() if field != "profile" or value}
    document = {**document, "launcher": launcher}
    return hashlib.sha256(canonical(document).encode()).hexdigest()


def check_fits(document, cpus):
    """Refuse a document that asks for more than the cluster has.

    cpus: {node name: CPUs} of the nodes that the job may use, whatever their present state. Raises JobError.
    """
    wanted = document["procs_per_node"] * document["cpus_per_proc"]
    fitting = sum(1 for count in cpus.values() if count >= wanted)
    if fitting < document["nodes"]:
        raise JobError(
            "Job %s wants %d ranks of %d CPUs on each of %d nodes, and %d of the %d nodes there have so many CPUs (the largest has %d); "
            "lower nodes, procs_per_node or cpus_per_proc."
            % (
                document["name"],
                document["procs_per_node"],
                document["cpus_per_proc"],
                document["nodes"],
                fitting,
                len(cpus),
                max(cpus.values(), default=0),
            )
        )


def gpus_per_node(document, gpus):
    """How many GPUs a job gets on each node; `all` is what as many nodes as it wants have at least.

    gpus: {node name: GPUs} of the nodes that the job may use.
    """
    if document["gpus_per_node"] != "all":
        return document["gpus_per_node"]
    counts = sorted(gpus.values(), reverse=True)
    return counts[document["nodes"] - 1] if len(counts) >= document["nodes"] else 0


def check_gpus(document, gpus):
    """Refuse a document that asks for more GPUs than its nodes have; gpus as for gpus_per_node(). Raises JobError."""
    wanted = document["gpus_per_node"]
    if wanted in ("all", 0):
        return
    fitting = sum(1 for count in gpus.values() if count >= wanted)
    if fitting < document["nodes"]:
        raise JobError(
            "Job %s wants %d GPUs on each of %d nodes, and %d of the %d nodes there have so many (the largest has %d); lower nodes or "
            "gpus_per_node." % (document["name"], wanted, document["nodes"], fitting, len(gpus), max(gpus.values(), default=0))
        )
