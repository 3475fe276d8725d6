# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes (`muster.recipe/1`): how a framework trains its models on each instance type, as job documents for every launcher."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import LAUNCHERS, REQUIRED, JobError, filled

SCHEMA = "muster.recipe/1"
CPU = "cpu"  # stands for every instance type without accelerators
FIELDS: dict[str, tuple[type, Any]] = {
    "schema": (str, REQUIRED),
    "name": (str, REQUIRED),
    "about": (str, REQUIRED),
    "framework": (dict, REQUIRED),
    "requires": (list, []),
    "container": (dict, REQUIRED),
    "files": (list, []),
    "models": (dict, REQUIRED),
    "data": (dict, REQUIRED),
    "checkpoint": (dict, REQUIRED),
    "launchers": (list, REQUIRED),
    "command": (list, REQUIRED),
    "env": (dict, {}),
    "secrets": (list, []),
    "steps": (int, REQUIRED),
    "time_limit": (int, 60),
    "retries": (int, 0),
    "throughput": (dict, REQUIRED),
    "passes": (dict, REQUIRED),
    "ran": (str, REQUIRED),
}
FRAMEWORK: dict[str, tuple[type, Any]] = {"name": (str, REQUIRED), "version": (str, REQUIRED), "source": (str, REQUIRED)}
# kind: trainer (the environment of Muster's role trainer) or base (an image of somebody else, with what it loads); file: the Containerfile
# that adds the framework to the base.
CONTAINER: dict[str, tuple[type, Any]] = {"kind": (str, REQUIRED), "base": (str, ""), "file": (str, ""), "loads": (dict, {})}
LOADS: dict[str, tuple[type, Any]] = {"torch": (str, REQUIRED), "nccl": (str, REQUIRED)}
# tokens: of a set that the job makes itself, 0 for data that are brought; gated: whether a token must be given.
DATA: dict[str, tuple[type, Any]] = {"about": (str, REQUIRED), "tokens": (int, 0), "args": (list, []), "gated": (bool, False)}
CHECKPOINT: dict[str, tuple[type, Any]] = {"about": (str, REQUIRED), "args": (list, [])}
# estimate: the preset of the trainer whose memory the model needs, "" where Muster does not know it; context: tokens of a sample.
MODEL: dict[str, tuple[type, Any]] = {
    "args": (list, []),
    "estimate": (str, ""),
    "context": (int, 0),
    "gated": (bool, False),
    "data": (dict, {}),
    "sizes": (dict, REQUIRED),
}
# procs_per_node: 0 is a rank for each GPU.
SIZE: dict[str, tuple[type, Any]] = {"nodes": (int, REQUIRED), "procs_per_node": (int, 0), "batch": (int, 1), "args": (list, [])}
THROUGHPUT: dict[str, tuple[type, Any]] = {
    "pattern": (str, REQUIRED),
    "sample": (str, REQUIRED),
    "source": (str, REQUIRED),
    "reads": (dict, REQUIRED),
}
PASSES: dict[str, tuple[type, Any]] = {"from": (int, REQUIRED), "to": (int, REQUIRED), "ratio": (float, REQUIRED)}
# Groups of a throughput line beside step and loss; `_rank` is one rank's share, samples is the number of a step on all ranks.
RATES = ("samples_per_s", "tokens_per_s", "tokens_per_s_rank", "milliseconds", "seconds", "samples", "mfu")
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
VERSION = re.compile(r"v?\d[\w.+-]*|(core_)?v\d[\w.]*|[0-9a-f]{40}")
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?==\d[\w.+!-]*")
NUMBER = re.compile(r"(-?[\d,]*\.?\d+(?:[eE][+-]?\d+)?)([KMBT]?)")
RATE_HELP = "samples_per_s, tokens_per_s, tokens_per_s_rank, or samples with seconds or milliseconds"


class RecipeError(JobError):
    """A recipe or a request that cannot be run; its text is one sentence with the remedy."""


def load(data, folder):
    """The complete, checked recipe of `data`, a mapping as read from YAML; folder: the name of its folder. Raises JobError."""
    where = "Recipe %s" % folder
    if not isinstance(data, dict):
        raise RecipeError("%s: recipe.yml must be a mapping, not %s." % (where, type(data).__name__))
    recipe = filled(data, FIELDS, where)
    if recipe["schema"] != SCHEMA:
        raise RecipeError("%s has the schema %s; this version of Muster reads %s." % (where, recipe["schema"], SCHEMA))
    if recipe["name"] != folder:
        raise RecipeError("%s calls itself %s; give the folder that name." % (where, recipe["name"]))
    recipe["framework"] = filled(recipe["framework"], FRAMEWORK, "%s: framework" % where)
    recipe["container"] = filled(recipe["container"], CONTAINER, "%s: container" % where)
    recipe["data"] = filled(recipe["data"], DATA, "%s: data" % where)
    recipe["checkpoint"] = filled(recipe["checkpoint"], CHECKPOINT, "%s: checkpoint" % where)
    recipe["throughput"] = filled(recipe["throughput"], THROUGHPUT, "%s: throughput" % where)
    recipe["passes"] = filled(recipe["passes"], PASSES, "%s: passes" % where)
    if not 0 < recipe["passes"]["ratio"] <= 1 or not 1 <= recipe["passes"]["from"] < recipe["passes"]["to"] <= recipe["steps"]:
        raise RecipeError("%s: passes needs 1 <= from < to <= steps (%d) and a ratio up to 1." % (where, recipe["steps"]))
    _check_pins(recipe, where)
    for kind in recipe["launchers"]:
        if kind not in LAUNCHERS:
            raise RecipeError("%s: the launcher %s is unknown; %s" % (where, kind, nearest(kind, LAUNCHERS)))
    models = {}
    for name, given in recipe["models"].items():
        what = "%s: model %s" % (where, name)
        if not isinstance(given, dict):
            raise RecipeError("%s must be a mapping with sizes." % what)
        model = filled(given, MODEL, what)
        model["data"] = filled({**recipe["data"], **model["data"]}, DATA, "%s: data" % what)
        if model["data"]["tokens"] and recipe["container"]["kind"] != "trainer":
            raise RecipeError("%s: data.tokens are made by the trainer, and container.kind is %s." % (what, recipe["container"]["kind"]))
        sizes = {}
        for kind, size in model["sizes"].items():
            _check_type(kind, what)
            sizes[kind] = filled(size or {}, SIZE, "%s on %s" % (what, kind))
            if sizes[kind]["nodes"] < 1 or sizes[kind]["batch"] < 1 or sizes[kind]["procs_per_node"] < 0:
                raise RecipeError("%s on %s: nodes and batch must be at least 1." % (what, kind))
        if not sizes:
            raise RecipeError("%s has no sizes; give those of one instance type or of %s." % (what, CPU))
        models[name] = {**model, "sizes": sizes}
    if not models:
        raise RecipeError("%s has no models; add one with its sizes." % where)
    recipe["models"] = models
    groups = _compiled(recipe, where).groupindex
    rate = {"samples_per_s", "tokens_per_s", "tokens_per_s_rank"} & set(groups)
    timed = "samples" in groups and {"seconds", "milliseconds"} & set(groups)
    if not {"step", "loss"} <= set(groups) or not (rate or timed):
        raise RecipeError("%s: throughput.pattern needs the groups step and loss and a rate (%s)." % (where, RATE_HELP))
    for group in set(groups) - {"step", "loss", *RATES}:
        raise RecipeError("%s: throughput.pattern has the unknown group %s; %s" % (where, group, nearest(group, ["step", "loss", *RATES])))
    return recipe


def _check_type(kind, what):
    if kind == CPU:
        return
    try:
        catalogue.instance_type(kind)
    except catalogue.CatalogueError as error:
        raise RecipeError("%s: sizes: %s" % (what, error)) from error


def _check_pins(recipe, where):
    """Refuse whatever another day would give another version of."""
    version = recipe["framework"]["version"]
    if not VERSION.fullmatch(version):
        raise RecipeError("%s: framework.version %s is no version; pin a release such as 0.3.0 or a whole commit." % (where, version))
    for line in recipe["requires"]:
        if not REQUIREMENT.fullmatch(str(line)):
            raise RecipeError("%s: requires has %s, which is not pinned; write NAME==VERSION." % (where, line))
    container = recipe["container"]
    if container["kind"] not in ("trainer", "base"):
        raise RecipeError(
            "%s: container.kind %s is unknown; %s" % (where, container["kind"], nearest(container["kind"], ("trainer", "base")))
        )
    if container["kind"] == "trainer":
        if container["base"] or container["loads"]:
            raise RecipeError("%s: container.base is for the kind base; the trainer's environment has its own lock file." % where)
        return
    if not is_pinned(container["base"]):
        message = "%s: container.base %s is not pinned; give it a tag with a version, or a digest."
        raise RecipeError(message % (where, container["base"] or "(empty)"))
    container["loads"] = filled(container["loads"], LOADS, "%s: container.loads" % where)


def is_pinned(image):
    """Whether an image has a digest, or a tag that has a number and does not say latest or main."""
    if re.search(r"@sha256:[0-9a-f]{64}$", image):
        return True
    _name, _colon, tag = image.rpartition("/")[2].partition(":")
    return bool(re.search(r"\d", tag)) and not re.search(r"latest|nightly|\bmain\b|\bmaster\b", tag)


def _compiled(recipe, where):
    try:
        return re.compile(recipe["throughput"]["pattern"])
    except re.error as error:
        raise RecipeError("%s: throughput.pattern is no regular expression (%s); mend it." % (where, error)) from error


def choose_model(recipe, name, kind):
    """(model, its name, its size) of a recipe on an instance type. Without a name it is the first model that has a size for the type.

    kind: an instance type, or CPU or "" for one without accelerators. Raises RecipeError that names the nearest.
    """
    where = "Recipe %s" % recipe["name"]
    kind = size_key(kind, where)
    shown = kind if kind != CPU else "CPUs"
    able = [each for each, model in recipe["models"].items() if kind in model["sizes"]]
    if name and name not in recipe["models"]:
        raise RecipeError("%s has no model %s; %s" % (where, name, nearest(name, recipe["models"])))
    if not name and not able:
        types = ", ".join(sorted({each for one in recipe["models"].values() for each in one["sizes"]}))
        message = "%s has no sizes for %s, but for %s; choose one of them with workload_type, or add sizes to recipe.yml."
        raise RecipeError(message % (where, shown, types))
    chosen = name or able[0]
    model = recipe["models"][chosen]
    if kind not in model["sizes"]:
        types = ", ".join(sorted(model["sizes"]))
        instead = "; on %s it has %s" % (shown, ", ".join(able)) if able else ""
        raise RecipeError(
            "%s has no sizes of %s for %s, but for %s%s; choose one of them, or add sizes to recipe.yml."
            % (where, chosen, shown, types, instead)
        )
    return model, chosen, model["sizes"][kind]


def size_key(kind, where):
    """The key of `sizes` for an instance type; raises RecipeError with the nearest for a type that nobody knows."""
    if kind in ("", CPU):
        return CPU
    try:
        have = catalogue.instance_type(kind) if catalogue.described(kind) else None
    except catalogue.CatalogueError as error:
        raise RecipeError("%s: %s" % (where, error)) from error
    if have:
        return kind
    # Such as c7i.large: the catalogue has the types with accelerators. A typing error in one of those has their family or a near one.
    family = kind.partition(".")[0]
    if any(name.partition(".")[0] == family for name in catalogue.names()) or not re.fullmatch(r"[a-z][a-z0-9-]+\.[a-z0-9-]+", kind):
        raise RecipeError("%s: the instance type %s is unknown; %s" % (where, kind, nearest(kind, catalogue.names())))
    return CPU


def check_launcher(recipe, kind):
    """Refuse a launcher that the recipe does not name."""
    if kind not in recipe["launchers"]:
        close = nearest(kind, recipe["launchers"]) if kind not in LAUNCHERS else "it has %s." % ", ".join(recipe["launchers"])
        raise RecipeError("Recipe %s does not run with the launcher %s; %s" % (recipe["name"], kind, close))


def steps(recipe, text, ranks=1, context=0):
    """[{step, loss, samples_per_s, tokens_per_s, mfu}] that the output of a job says, in order; the last line of a step counts.

    ranks: of the job, for frameworks that print the speed of one; context: tokens of a sample, 0 where unknown. Rates are of all ranks,
    MFU is in percent; what the framework does not say is None.
    """
    found: dict[int, dict[str, Any]] = {}
    for match in _compiled(recipe, "Recipe %s" % recipe["name"]).finditer(re.sub(r"\x1b\[[0-9;]*m", "", text)):
        read = {group: number(value) for group, value in match.groupdict().items() if value is not None}
        seconds = read.get("seconds") or read.get("milliseconds", 0) / 1000
        samples, tokens = read.get("samples_per_s"), read.get("tokens_per_s")
        if samples is None and seconds and "samples" in read:
            samples = read["samples"] / seconds
        if tokens is None and "tokens_per_s_rank" in read:
            tokens = read["tokens_per_s_rank"] * ranks
        if tokens is None and samples is not None and context:
            tokens = samples * context
        if samples is None and tokens is not None and context:
            samples = tokens / context
        step = int(read["step"])
        found.pop(step, None)
        found[step] = {"step": step, "loss": read["loss"], "samples_per_s": samples, "tokens_per_s": tokens, "mfu": read.get("mfu")}
    return sorted(found.values(), key=lambda each: each["step"])


def number(text):
    """A number as frameworks print it: 7,084 and 1.2K too. A text that is none, such as nan, is not a number."""
    match = NUMBER.fullmatch(text.strip())
    return float(match.group(1).replace(",", "")) * SUFFIXES.get(match.group(2), 1) if match else float("nan")
