# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a fleet's collectives once reached, and how a later run compares.

    baseline: {"schema", "entries": [entry]}
    entry: {"image", "stack", "instance_type", "nodes", "collective", "datatype", "hosts": [name], "points": [[size, placement, busbw]]}
           + "recorded" (a date)

`entries(documents, hosts)` makes entries of what a run measured, `record` keeps them, `compare` judges them.
A measurement is compared with the baseline of the same stack and instance type, of its own image where that has one, else of the newest.
Only sizes at which the baseline reached half of its highest busbw are judged: below, latency decides, which varies.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_bounds import FAIL_BELOW, WARN_BELOW
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import human_size

SCHEMA = "muster.nccl_baseline/1"
KEY = ("image", "stack", "instance_type", "nodes", "collective", "datatype")
SHAPE = ("nodes", "collective", "datatype")
RECORD = "record one with -e muster_baseline=record"


class BaselineError(ValueError):
    """The text is one sentence for the user."""


def entries(documents: dict[str, dict[str, Any]], hosts: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Return an entry for each collective and data type that DOCUMENTS ({job: muster.nccl_results/1}) measured and no stand-in printed.

    HOSTS: {host: {"image", "stack"}}.
    """
    known = {name.split(".")[0].lower(): have for name, have in hosts.items()}
    found = []
    for document in documents.values():
        for table in document.get("tables") or []:
            if table["verdict"] == "not_run" or not table["collective"]:
                continue
            names = sorted({host.split(".")[0].lower() for host in table["hosts"]})
            carried = {key: sorted({(known.get(name) or {}).get(key) or "unknown" for name in names}) for key in ("image", "stack")}
            for kind in dict.fromkeys(row["type"] for row in table["rows"]):
                found.append(
                    {
                        **{key: ", ".join(values) for key, values in carried.items()},
                        "instance_type": document.get("instance_type") or "",
                        "nodes": len(names),
                        "collective": table["collective"],
                        "datatype": kind,
                        "hosts": names,
                        "passed": table["verdict"] == "passed",
                        "points": [[row["size"], row["placement"], row["busbw"]] for row in table["rows"] if row["type"] == kind],
                    }
                )
    return found


def record(baseline: dict[str, Any], measured: list[dict[str, Any]], today: str) -> dict[str, Any]:
    """Return BASELINE with the entries that were MEASURED instead of earlier ones with their key. Raises BaselineError."""
    bad = sorted({label(entry) for entry in measured if not entry["passed"]})
    if bad:
        raise BaselineError("The baseline stays as it is, because the gate failed %s: correct that first." % ", ".join(bad))
    if not measured:
        raise BaselineError("The baseline stays as it is, because this run measured nothing: see the verdicts of its jobs.")
    new = {key(entry): {**{name: value for name, value in entry.items() if name != "passed"}, "recorded": today} for entry in measured}
    kept = [entry for entry in baseline.get("entries") or [] if key(entry) not in new]
    return {"schema": SCHEMA, "entries": sorted([*kept, *new.values()], key=lambda entry: [str(part) for part in key(entry)])}


def key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in KEY)


def label(entry: dict[str, Any]) -> str:
    return "%s %s on %d node%s" % (entry["collective"], entry["datatype"], entry["nodes"], "" if entry["nodes"] == 1 else "s")


def carries(entry: dict[str, Any]) -> str:
    return "%s with stack %s" % (entry["instance_type"] or "CPU nodes", entry["stack"])


def compare(
    baseline: dict[str, Any], measured: list[dict[str, Any]], fail_below: float = FAIL_BELOW, warn_below: float = WARN_BELOW
) -> dict[str, Any]:
    """Return {"reasons", "remarks", "refused", "compared": [{"label", "hosts", "image", "against", "fell", "points", "failed", "said"}]}.

    All but the last are sentences. refused says why something has nothing to be compared with.
    """
    found: dict[str, Any] = {"reasons": [], "remarks": [], "refused": [], "compared": []}
    lacks = []
    for entry in measured:
        shape = [one for one in baseline.get("entries") or [] if all(one[name] == entry[name] for name in SHAPE)]
        usable = [one for one in shape if (one["stack"], one["instance_type"]) == (entry["stack"], entry["instance_type"])]
        if not usable and shape:
            text = "The baseline is of %s, and the nodes are %s, which cannot be compared; %s."
            found["refused"].append(text % (carries(_newest(shape, entry)), carries(entry), RECORD))
        elif not usable:
            lacks.append(label(entry))
        else:
            found["compared"].append(_compared(entry, _newest(usable, entry), fail_below, warn_below))
    if lacks:
        found["refused"].append("No baseline has %s; %s." % (", ".join(lacks), RECORD))
    found["refused"] = list(dict.fromkeys(found["refused"]))
    for one in found["compared"]:
        found["reasons" if one["failed"] else "remarks"] += one["said"]
    found["reasons"] += cause(found["compared"])
    return found


def _newest(candidates: list[dict[str, Any]], entry: dict[str, Any]) -> dict[str, Any]:
    return max(candidates, key=lambda one: (one["image"] == entry["image"], one["recorded"]))


def _compared(entry: dict[str, Any], base: dict[str, Any], fail_below: float, warn_below: float) -> dict[str, Any]:
    least = max(busbw for _size, _placement, busbw in base["points"]) / 2
    wanted = {(size, placement): busbw for size, placement, busbw in base["points"] if busbw >= least and busbw > 0}
    parts = [
        (busbw / wanted[size, placement], size, placement, busbw)
        for size, placement, busbw in entry["points"]
        if (size, placement) in wanted
    ]
    slow = sorted(part for part in parts if part[0] < warn_below)
    fell = bool(slow) and slow[0][0] < fail_below
    texts = []
    if slow:
        part, size, placement, busbw = slow[0]
        text = "%s: busbw %g GB/s at %s %s is %.2f of the %g GB/s of the baseline (image %s, %s)"
        numbers = (busbw, human_size(size), placement.replace("_", "-"), part, wanted[size, placement], base["image"], base["recorded"])
        texts = [text % (label(entry), *numbers)]
    missing = [] if parts else ["%s: none of the sizes that the baseline judges was measured; measure up to its largest" % label(entry)]
    return {
        "label": label(entry),
        "hosts": entry["hosts"],
        "image": entry["image"],
        "against": base["image"],
        "fell": fell,
        "points": len(parts),
        "failed": fell or not parts,
        "said": texts + missing,
    }


def cause(compared: list[dict[str, Any]]) -> list[str]:
    """Return a sentence on what made measurements fall: a node, the image, or that these measurements do not tell."""
    fallen = [one for one in compared if one["fell"]]
    if not fallen:
        return []
    sets = {tuple(one["hosts"]) for one in fallen}
    held = {host for one in compared if tuple(one["hosts"]) not in sets for host in one["hosts"]}
    everybody = {host for hosts in sets for host in hosts}
    suspects = sorted(everybody - held)
    names = _names(suspects)
    if not suspects:
        return [
            "%s held in smaller tests and fell together: look at the network between them with diagnose.yml" % _names(sorted(everybody))
        ]
    if len(suspects) == 1:
        return ["%s is the one node that every test that fell has and no other has: drain it, and read its checks" % names]
    apart = any(not set(one) & set(other) for one in sets for other in sets)
    images = {one["image"] for one in fallen}
    others = {one["image"] for one in compared if tuple(one["hosts"]) not in sets}
    if len(images) == 1 and (apart or (others and not others & images)):
        [image] = images
        before = sorted({one["against"] for one in fallen} - images)
        if before:
            return ["%s fell on image %s, not one of them alone: an image regression; go back to image %s" % (names, image, before[0])]
        return ["%s fell on image %s, which had the baseline as well: look at what changed beside the image" % (names, image)]
    return ["%s fell together, which one slow node or the image may cause: diagnose.yml tests them in pairs" % names]


def _names(hosts: list[str]) -> str:
    return ", ".join(hosts[:6]) + (" and %d more" % (len(hosts) - 6) if len(hosts) > 6 else "")
