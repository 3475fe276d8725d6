# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of a recipe: its job document on some nodes of an instance type, whether the model fits there, and what came of it."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.jobs import fleet
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import check_secrets, filled
from ansible_collections.muster.fleet.plugins.module_utils.jobs.recipe import CPU, RecipeError, check_launcher, choose_model, steps

# What a user may change for one run (muster_workload).
ASKED: dict[str, tuple[type, Any]] = {
    "image": (str, ""),
    "venv": (str, ""),
    "folder": (str, ""),
    "partition": (str, ""),
    "steps": (int, 0),
    "time_limit": (int, 0),
    "args": (list, []),
    "secrets": (dict, {}),
    "suffix": (str, ""),
}
# A file system that all nodes share, on launchers whose programs see the node's own paths.
FOLDER = "/fsx/home/muster/workloads"
SHARED = ("slurm", "torchrun")
# Flags of the trainer that also `estimate` has: the memory depends on them.
# With the trainer's own defaults; "" is a flag that is left to `estimate`.
ESTIMATED = {
    "--sharding_strategy": "full",
    "--hybrid_shard_degree": "",
    "--tensor_parallel_degree": "1",
    "--pipeline_parallel_degree": "1",
    "--context_parallel_degree": "1",
    "--expert_parallel_degree": "1",
    "--gradient_accumulation_steps": "1",
    "--activation_checkpointing": "none",
    "--adamw": "",
    "--moments": "",
    "--offload": "",
    "--max_context_width": "",
}
GROWTH = (2, 4, 8, 16, 32, 64)  # times the nodes, in search of what would fit


def archive(files):
    """Base64 of a tar.gz of {name: text}, the same text for the same files."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return base64.b64encode(packed.getvalue()).decode()


def estimate_words(recipe, name, kind, nodes, args=()):
    """The arguments of `python -m trainer` that tell whether a model fits; [] where Muster does not know the model or the type."""
    model, have = recipe["models"][name], fleet.type_of(kind)
    if not model["estimate"] or not have or have["accelerator"] != "nvidia":
        return []
    words = ["estimate", "--json", "--instance_type", kind, "--nodes", str(nodes), "--model", model["estimate"]]
    if recipe["container"]["kind"] != "trainer":
        # Another framework has its own flags, and needs at least the memory of the best layout.
        return words
    size = model["sizes"][kind]
    given = [*map(str, recipe["command"]), *map(str, model["args"]), *map(str, size["args"]), *map(str, args)]
    flags = {**ESTIMATED, **{flag: value for flag, value in zip(given, given[1:]) if flag in ESTIMATED}}
    words += ["--train_batch_size", str(size["batch"])]
    return words + [word for pair in flags.items() if pair[1] for word in pair]


def check_fits(recipe, chosen, kind, answers):
    """Refuse a model that the nodes cannot hold.

    answers: the `muster.estimate/1` of the wanted nodes first, then of more nodes until one fits. Raises RecipeError.
    """
    first = answers[0]
    if first["fits"]:
        return
    need = first["memory_gib"]["total"]
    fitting = next((each["nodes"] for each in answers if each["fits"]), None)
    remedy = (
        "%d nodes would do: set workload_nodes" % fitting
        if fitting
        else "not even %d nodes would do: choose a type with more memory, or a smaller model" % answers[-1]["nodes"]
    )
    raise RecipeError(
        "Recipe %s: %s needs %.1f GiB on each %s of %d x %s, and %.1f GiB can be used; %s."
        % (recipe["name"], chosen, need, first["device"], first["nodes"], kind, first["usable_gib"], remedy)
    )


def plan(recipe, asked, *, model="", part=None, kind="slurm", instance_type="", nodes=None, trainer=None, target=None, texts=None):
    """What one run of a recipe is: {document, real, model, type, nodes, ranks, context, folder, data, tokens, estimate}.

    asked: the user's muster_workload; part: the nodes of a fleet (an entry of fleet.parts()), None for a service that has its own;
    launcher; instance_type: of such a service; trainer: what of a document lets a rank find the trainer (venv or image, mounts,
    env); target: muster_target; texts: {name: text} of the recipe's files. Raises RecipeError with one sentence.
    """
    where = "Recipe %s" % recipe["name"]
    asked = filled(asked or {}, ASKED, "muster_workload")
    check_launcher(recipe, kind)
    kind_of = part["type"] if part else instance_type
    rehearsed = bool(part and part["rehearsed"])
    real = None
    if rehearsed:
        # The nodes have the type's devices and no GPU; they train on their CPUs, and `real` is the document that the type would run.
        real_model, real_name, real_size = choose_model(recipe, model, kind_of)
        context = _Context(where, recipe, asked, kind, trainer or {}, target or {}, texts or {}, part)
        real = _document(context, real_name, real_model, real_size, kind_of, nodes or len(part["hosts"]))
        on_cpu = model if model and CPU in recipe["models"][model]["sizes"] else ""
        model, kind_of = on_cpu, CPU
    chosen, name, size = choose_model(recipe, model, kind_of)
    wanted = size["nodes"] if nodes is None else nodes
    if wanted < 1:
        raise RecipeError("workload_nodes must be at least 1, not %d." % wanted)
    if part and wanted > len(part["hosts"]):
        raise RecipeError(
            "%s wants %d nodes of %s for %s, and %d may run jobs; set workload_nodes to at most that."
            % (where, wanted, part["type"] or "the fleet", name, len(part["hosts"]))
        )
    context = _Context(where, recipe, asked, kind, trainer or {}, target or {}, texts or {}, part)
    document = _document(context, name, chosen, size, kind_of, wanted)
    estimated = "" if rehearsed else kind_of
    return {
        "document": document,
        "real": real,
        "model": name,
        "type": kind_of or CPU,
        "nodes": wanted,
        "ranks": wanted * document["procs_per_node"],
        "context": chosen["context"],
        "folder": context.folder,
        "data": context.data(chosen),
        "tokens": chosen["data"]["tokens"],
        "estimate": [estimate_words(recipe, name, estimated, wanted * times, asked["args"]) for times in (1, *GROWTH)],
    }


class _Context:
    """What a run's documents have in common."""

    def __init__(self, where, recipe, asked, kind, trainer, target, texts, part):  # noqa: PLR0917
        self.where, self.recipe, self.asked, self.kind, self.part = where, recipe, asked, kind, part
        self.trainer, self.target, self.texts = trainer, target, texts
        self.folder = asked["folder"] or (FOLDER if kind in SHARED else "/checkpoints/workloads")
        self.steps = asked["steps"] or recipe["steps"]

    def data(self, model):
        """The folder of the data that the job or the playbook makes, "" for data that are brought."""
        tokens = model["data"]["tokens"]
        if tokens and self.kind == "sagemaker":
            message = "%s makes its data in a folder that all nodes share, which SageMaker does not have; use another launcher or model."
            raise RecipeError(message % self.where)
        return "%s/data-%d" % (self.folder, tokens) if tokens else ""

    def environment(self):
        """The fields of a document that say where the framework is: venv or image, mounts and env. Raises RecipeError without one."""
        container, image = self.recipe["container"], self.asked["image"] or self.target.get("image") or ""
        if self.asked["venv"]:
            return {"venv": self.asked["venv"], "env": self.trainer.get("env", {}) if container["kind"] == "trainer" else {}}
        if container["kind"] == "trainer":
            if self.kind in SHARED and not self.asked["image"]:
                return self.trainer
            if not image:
                message = (
                    "%s has no container, and %s runs containers; build that of the trainer (docs/images.md) and set muster_workload.image."
                )
                raise RecipeError(message % (self.where, self.kind))
            return {"image": image, "mounts": self.trainer.get("mounts", []) + self.own_mounts()}
        if self.kind == "torchrun":
            raise RecipeError("%s runs in a container, and the launcher torchrun has none; set muster_workload.venv." % self.where)
        if not image and container["file"]:
            message = (
                "%s has no container; build recipes/%s/%s (docs/recipes.md) and set muster_workload.image, or set muster_workload.venv."
            )
            raise RecipeError(message % (self.where, self.recipe["name"], container["file"]))
        return {
            "image": pyxis(image or container["base"]) if self.kind == "slurm" else image or container["base"],
            "mounts": self.own_mounts(),
        }

    def own_mounts(self):
        return ["%s:%s" % (self.folder, self.folder)] if self.kind == "slurm" else []

    def secrets(self, name, model):
        """{variable: reference} of the job's secrets; raises RecipeError when gated weights or data have no token."""
        check_secrets(self.asked["secrets"], "muster_workload")
        given = {**(self.target.get("secrets") or {}), **self.asked["secrets"]}
        if model["gated"] or model["data"]["gated"]:
            for variable in self.recipe["secrets"]:
                if variable not in given:
                    message = "%s: %s needs %s that its maker gates, and no %s is given; "
                    message += "set muster_workload.secrets.%s to a reference such as {from: file, path: /PATH}."
                    what = "weights or a tokenizer" if model["gated"] else "data"
                    raise RecipeError(message % (self.where, name, what, variable, variable))
        from_target = {
            variable: each for variable, each in (self.target.get("secrets") or {}).items() if variable in self.recipe["secrets"]
        }
        return {**from_target, **self.asked["secrets"]}


def pyxis(image):
    """An image's name as enroot reads it: `#` stands behind the registry."""
    registry, slash, rest = image.partition("/")
    return "%s#%s" % (registry, rest) if slash and ("." in registry or ":" in registry) and not image.startswith(("/", ".")) else image


def _document(context, name, model, size, kind_of, nodes):  # noqa: PLR0917
    """The job document of one model on `nodes` nodes of a type."""
    recipe, asked, kind, part = context.recipe, context.asked, context.kind, context.part
    have = fleet.type_of(kind_of) if kind_of not in ("", CPU) else None
    devices = (have["gpus"] or have["neuron_cores"]) if have and have["accelerator"] == "nvidia" else have["neuron_cores"] if have else 1
    ranks = size["procs_per_node"] or devices
    data = context.data(model)
    static = {
        "data": data,
        "folder": context.folder,
        "batch": size["batch"],
        "nodes": nodes,
        "procs_per_node": ranks,
        "ranks": nodes * ranks,
        "steps": context.steps,
    }
    given = [*recipe["command"], *model["args"], *model["data"]["args"], *recipe["checkpoint"]["args"], *size["args"], *asked["args"]]
    words = [_placed(str(word), static) for word in given]
    document: dict[str, Any] = {
        "name": re.sub(r"[^a-z0-9._-]", "-", "%s-%s" % (recipe["name"], name.lower()))[: 40 - len(asked["suffix"])] + asked["suffix"],
        "nodes": nodes,
        "procs_per_node": ranks,
        "cpus_per_proc": max(have["vcpus"] // ranks, 1) if have else 1,
        "time_limit": asked["time_limit"] or recipe["time_limit"],
        # A TrainJob leaves restarts to its runtime.
        "retries": 0 if kind == "trainjob" else recipe["retries"],
        **context.environment(),
        "command": _start(context, words, data, model["data"]["tokens"]),
    }
    document["env"] = {**document.get("env", {}), **recipe["env"]}
    secrets = context.secrets(name, model)
    if secrets:
        document["secrets"] = secrets
    if have and have["accelerator"] == "nvidia":
        document["gpus_per_node"] = "all" if ranks >= have["gpus"] else ranks
    document["launcher"] = {"kind": kind}
    if kind == "slurm":
        placed = part or {"partition": "", "options": {}}
        document["launcher"] = fleet.placed(placed, asked, kind, "none")
    return document


def _placed(word, static):
    """A word of the command with the values that are known before the job starts. @checkpoints@ and @recipe@ are known on the node."""
    for name, value in static.items():
        word = word.replace("@%s@" % name, str(value))
    left = re.search(r"@(?!checkpoints@|recipe@)[a-z_]+@", word)
    if left:
        raise RecipeError(
            "The word %s has the unknown placeholder %s; %s"
            % (word, left.group(), nearest(left.group().strip("@"), [*static, "checkpoints", "recipe"]))
        )
    return word


def _start(context, words, data, tokens):
    """The command: bash that brings the recipe's files to the node, makes data where nobody could before, and becomes the program."""
    kind, script = context.kind, ""
    files = {name: context.texts[name] for name in context.recipe["files"] if name in context.texts}
    if files:
        script += 'recipe=$(mktemp -d); printf %s "$1" | base64 -d | tar -xz -C "$recipe"; shift; set -- "${@//@recipe@/$recipe}"; '
        words = [archive(files), *words]
    if data and kind != "slurm":
        script += fleet.PREPARE % {"data": data, "tokens": tokens}
    if kind == "slurm":
        script += "checkpoints=%s/checkpoints-$SLURM_JOB_ID; " % context.folder
    elif kind == "torchrun":
        script += 'checkpoints=%s/checkpoints-$(basename "$MUSTER_JOB_DIR"); ' % context.folder
    else:
        script += 'checkpoints="$MUSTER_JOB_DIR"; '
    return ["bash", "-c", script + 'exec "${@//@checkpoints@/$checkpoints}"', "recipe", *words]


def middle(values):
    """The median, None of nothing."""
    values = sorted(value for value in values if value is not None)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 if values else None


def judge(recipe, text, *, model, ranks=1, context=0, asked_steps=0):
    """What a run was: `muster.workload/1` with verdict passed or failed, reason, rates (medians of the second half) and the steps.

    text: the output of the job; asked_steps: the user's number of steps, 0 for the recipe's own.
    """
    rule = recipe["passes"]
    last_step = min(rule["to"], asked_steps) if asked_steps else rule["to"]
    read = steps(recipe, text, ranks, context)
    late = read[len(read) // 2 :]
    first = next((each for each in read if each["step"] >= rule["from"]), None)
    last = next((each for each in reversed(read) if each["step"] <= last_step), None)
    reason = ""
    if not read:
        lines = [line.rstrip() for line in text.splitlines() if line.strip()][-5:]
        said = "its last lines are: %s" % " / ".join(lines) if lines else "it is empty"
        reason = "Recipe %s: no line of the output has the throughput of %s (throughput.pattern); %s" % (
            recipe["name"],
            recipe["framework"]["name"],
            said,
        )
    elif first is None or last is None or last["step"] <= first["step"] or read[-1]["step"] < last_step:
        reason = "Recipe %s: the output ends at step %d, and the loss is judged from step %d to step %d; look at output.txt." % (
            recipe["name"],
            read[-1]["step"],
            rule["from"],
            last_step,
        )
    elif not last["loss"] < rule["ratio"] * first["loss"]:
        reason = (
            "Recipe %s: the loss did not fall enough, it was %g at step %d and %g at step %d, and must be below %g times the first; "
            "look at data and learning rate." % (recipe["name"], first["loss"], first["step"], last["loss"], last["step"], rule["ratio"])
        )
    return {
        "schema": "muster.workload/1",
        "recipe": recipe["name"],
        "framework": "%(name)s %(version)s" % recipe["framework"],
        "model": model,
        "ranks": ranks,
        "verdict": "failed" if reason else "passed",
        "reason": reason,
        "first": first and {"step": first["step"], "loss": first["loss"]},
        "last": last and {"step": last["step"], "loss": last["loss"]},
        "samples_per_s": middle(each["samples_per_s"] for each in late),
        "tokens_per_s": middle(each["tokens_per_s"] for each in late),
        "mfu": middle(each["mfu"] for each in late),
        "steps": read,
    }


def summary(result):
    """One sentence about a `muster.workload/1`."""
    if not result["first"]:
        return result["reason"]
    rates = [
        "%.1f %s" % (result[key], unit)
        for key, unit in (("samples_per_s", "samples/s"), ("tokens_per_s", "tokens/s"), ("mfu", "% MFU"))
        if result[key] is not None
    ]
    return "%s %s: %s, loss %g at step %d, %g at step %d, %s" % (
        result["recipe"],
        result["model"],
        result["verdict"],
        result["first"]["loss"],
        result["first"]["step"],
        result["last"]["loss"] if result["last"] else result["first"]["loss"],
        result["last"]["step"] if result["last"] else result["first"]["step"],
        ", ".join(rates) or "no rates",
    )


def log_lines(result, nodes):
    """The steps as the lines of train.jsonl that the report reads."""
    lines = [{"event": "start", "step": 0, "world_size": result["ranks"], "nodes": nodes}]
    for each in result["steps"]:
        lines.append({key: each[key] for key in ("step", "loss", "samples_per_s", "tokens_per_s")})
    return "".join(json.dumps(line) + "\n" for line in lines)
