# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sections of a report's page that have plots: bandwidth of collectives, loss and speed of training.

Each SVG is drawn twice, for wide and for narrow screens, because a drawing that shrinks also shrinks its letters.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import human_size
from ansible_collections.muster.fleet.plugins.module_utils.report.html import section, short, table, tag
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import Plot, Series, swatch
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import escaped as text

# A plot of 500 points looks like one of thousands, and the page stays small.
MOST_POINTS = 500


def collectives(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return ""
    names = [entry["collective"] for entry in entries]
    labels = [entry["collective"] if names.count(entry["collective"]) == 1 else "%(collective)s (%(job)s)" % entry for entry in entries]
    series = []
    for index, (label, entry) in enumerate(zip(labels, entries)):
        # A busbw of 0.00, as of small messages, is on no logarithmic scale; the table below has it.
        rows = [row for row in entry["rows"] if row["placement"] == "out_of_place" and row["size"] and row["busbw"]]
        rows.sort(key=lambda row: row["size"])
        notes = ["%s, %s: %.2f GB/s, %s µs" % (label, human_size(row["size"]), row["busbw"], short(row["time_us"])) for row in rows]
        series.append(Series(label, [(row["size"], row["busbw"]) for row in rows], index, notes))
    drawn = [one for one in series if one.points]
    limits = [limit for one, entry in zip(series, entries) if one.points for limit in _limits(one, entry)]
    parts = []
    if drawn:
        legend = "".join("<li>%s%s</li>" % (swatch(one.colour), text(one.label)) for one in drawn)
        lines = limits + drawn
        plot = Plot("Bus bandwidth against message size", lines, y_title="busbw, GB/s", x_title="message size", log2=True, log10=True)
        parts.append('<figure><ul class="legend">%s</ul>%s' % (legend, plot.both("busbw", 1080, 340)))
        dashed = " Dashed: the floor that a collective must reach, and the ceiling that its wires carry." if limits else ""
        caption = "Bus bandwidth, out-of-place, on logarithmic scales.%s The in-place half is in report.json." % dashed
        parts.append("<figcaption>%s</figcaption></figure>" % caption)
    columns = [
        ("Collective", ""),
        ("Ranks", "number"),
        ("Best busbw", "number"),
        ("Floor", "number"),
        ("Ceiling", "number"),
        ("Verdict", ""),
    ]
    rows = []
    for label, entry in zip(labels, entries):
        best = entry["best"]
        proven = entry["ranks_proven"]
        rows.append(
            [
                text(label),
                text("%s%s" % (entry["ranks"] or proven or "?", " (proven)" if proven else "")),
                text("%.2f GB/s at %s" % (best["busbw"], human_size(best["size"])) if best else "none"),
                text(_gbps(_floor(entry, best["size"]) if best else None)),
                text(_gbps(entry["ceiling"])),
                tag(entry["verdict"], _verdict(entry)) + "".join("<br>%s" % text(said) for said in entry["reasons"] + entry["remarks"]),
            ]
        )
    parts.append(table(columns, rows, "stack"))
    if any(entry["ranks_proven"] for entry in entries):
        parts.append('<p class="soft">Proven: each rank named itself in the output, so as many took part as were asked for.</p>')
    if drawn:
        sizes = sorted({size for one in drawn for size, _busbw in one.points})
        by_label = [dict(one.points) for one in drawn]
        cells = [[text(human_size(int(size))), *("%.2f" % by[size] if size in by else "" for by in by_label)] for size in sizes]
        body = table([("Size", ""), *((one.label, "number") for one in drawn)], cells)
        parts.append("<details><summary>busbw in GB/s as a table</summary>%s</details>" % body)
    return section("Collectives", "\n".join(parts), "collectives")


def _verdict(entry: dict[str, Any]) -> str:
    """Return the verdict in words, and what it would have been where stand-ins printed the table."""
    return "rehearsal, would have %s" % entry["rehearsed"] if entry.get("rehearsed") else entry["verdict"]


def _floor(entry: dict[str, Any], size: int) -> Any:
    """Return the highest floor for out-of-place rows of SIZE, or None."""
    floors = [
        floor["floor"]
        for floor in entry["floors"]
        if floor["floor"] is not None and floor["placement"] != "in_place"
        if floor["min_size"] <= size and (floor["below"] is None or size < floor["below"])
    ]
    return max(floors, default=None)


def _gbps(value: Any) -> str:
    return "none" if value is None else "%g GB/s" % value


def _limits(one: Series, entry: dict[str, Any]) -> list[Series]:
    """Return the lines of floor and ceiling in the colour of the collective that they bound."""
    floors = [(size, _floor(entry, int(size))) for size, _busbw in one.points]
    low = [(size, floor) for size, floor in floors if floor]
    high = [(size, entry["ceiling"]) for size, _busbw in one.points if entry["ceiling"]]
    found = []
    for name, points in (("floor", low), ("ceiling", high)):
        notes = ["%s of %s, %s: %g GB/s" % (name, one.label, human_size(int(size)), value) for size, value in points]
        if points:
            found.append(Series("%s of %s" % (name, one.label), points, one.colour, notes, "limit"))
    return found


def training(entries: list[dict[str, Any]]) -> str:
    parts = []
    for number, entry in enumerate(entries):
        plots = []
        for key, name, unit in (("loss", "Loss", "loss"), ("tokens_per_s", "Speed", "tokens/s")):
            series = _attempts(entry, key, unit)
            if not any(one.points for one in series):
                continue
            marks = [(a["from_step"], "resumed after %d" % a["from_step"]) for a in entry["attempts"][1:]]
            plot = Plot("%s against step" % name, series, unit, "step", marks=marks, ticks=entry["checkpoints"], from_zero=key != "loss")
            plots.append("<figure>%s</figure>" % plot.both("train%d-%s" % (number, key), 520, 290))
        legend = ["Thick ticks on the axis are checkpoints."] if entry["checkpoints"] else []
        if entry["resumes"]:
            legend.append("Dashed: steps that a restart lost and trained again.")
        losses = (entry["first_loss"], entry["last_loss"], entry["first_step"], entry["last_step"])
        facts = ["loss %.4f → %.4f, steps %d to %d" % losses]
        if entry["world_size"]:
            facts.append("%d ranks" % entry["world_size"])
        if entry["samples_per_s"] is not None:
            facts.append("median %.2f samples/s" % entry["samples_per_s"])
        facts.append("%d resumes" % entry["resumes"] if entry["resumes"] != 1 else "1 resume")
        parts.append("<h3>%s <small>%s</small></h3>" % (text(entry["job"]), text(" · ".join(facts))))
        parts.append('<div class="pair">%s</div>\n<p class="soft">%s</p>' % ("".join(plots), text(" ".join(legend))))
    return section("Training", "\n".join(parts), "training") if parts else ""


def _attempts(entry: dict[str, Any], key: str, unit: str) -> list[Series]:
    """Return the steps that count as one line, and for each attempt a line of the steps that the next attempt repeated."""
    attempts = entry["attempts"]
    ends = [min([later["from_step"] for later in attempts[index + 1 :]], default=math.inf) for index in range(len(attempts))]
    series = []
    kept: list[dict[str, Any]] = []
    for attempt, end in zip(attempts, ends):
        steps = [step for step in attempt["steps"] if step[key] is not None]
        kept += [step for step in steps if step["step"] <= end]
        lost = [step for step in steps if step["step"] > end]
        series.append(_curve(lost, key, unit, "past"))
    return [one for one in series if one.points] + [_curve(kept, key, unit, "")]


def _curve(steps: list[dict[str, Any]], key: str, unit: str, style: str) -> Series:
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    thin = steps[::-stride][::-1]
    digits: Callable[[float], str] = (lambda value: "%.4f" % value) if key == "loss" else short
    notes = ["step %d: %s %s" % (step["step"], digits(step[key]), unit) for step in thin]
    return Series(unit, [(step["step"], step[key]) for step in thin], 0, notes, style)
