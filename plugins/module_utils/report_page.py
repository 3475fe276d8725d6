# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of a report (`muster.report/1`): one HTML file without scripts, which asks the network for nothing.

Plots are SVG drawn here, each twice, for a wide and for a narrow screen: a drawing that shrinks takes its letters with it.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Optional

from ansible_collections.muster.fleet.plugins.module_utils.nccl_results import human_size
from ansible_collections.muster.fleet.plugins.module_utils.report_plot import Plot, Series, swatch
from ansible_collections.muster.fleet.plugins.module_utils.report_plot import escaped as text
from ansible_collections.muster.fleet.plugins.module_utils.report_style import STYLE
from ansible_collections.muster.fleet.plugins.module_utils.run_record import named_hosts

LEVELS = {"image": "On the image", "node": "On each node", "fleet": "Across the fleet"}
VERDICTS = {"passed": "Passed", "failed": "Failed", "unfinished": "Not finished"}
# A browser draws some hundred points as well as thousands, and the page stays small.
MOST_POINTS = 500
MOST_LINES = 8


def render_html(report: dict[str, Any]) -> str:
    """Return the whole page of REPORT."""
    run = report["run"]
    title = "%s – fleet %s, %s" % (VERDICTS[run["verdict"]], run["fleet"], run["name"])
    parts = [
        _failures(report),
        _fleet(report),
        _checks(report["checks"]),
        _collectives(report["collectives"]),
        _training(report["training"]),
        _timings(report["timings"]),
        _jobs(report["jobs"]),
        _versions(report["fleet"]),
        _notes(report["notes"]),
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
            '<link rel="icon" href="data:,">',
            "<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n<main>" % (text(title), STYLE),
            _header(report),
            *(part for part in parts if part),
            "</main>\n</body>\n</html>\n",
        ]
    )


def duration(seconds: float) -> str:
    """Return SECONDS for a person: 0.4 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 10:
        return "%.1f s" % seconds
    whole = round(seconds)
    if whole < 60:
        return "%d s" % whole
    if whole < 3600:
        return "%d min %02d s" % divmod(whole, 60)
    return "%d h %02d min" % divmod(whole // 60, 60)


def _moment(stamp: Optional[str]) -> str:
    return "%s, %s UTC" % (stamp[:10], stamp[11:16]) if stamp else "start unknown"


def _section(title: str, body: str, name: str) -> str:
    return '<section id="%s">\n<h2>%s</h2>\n%s\n</section>' % (name, text(title), body)


def _table(columns: list[tuple[str, str]], rows: Iterable[list[str]], kind: str = "") -> str:
    """Return a table; COLUMNS are (title, class), the cells of ROWS are HTML."""
    head = "".join('<th class="%s">%s</th>' % (style, text(title)) for title, style in columns)
    body = "\n".join(
        "<tr>%s</tr>"
        % "".join('<td class="%s" data-label="%s">%s</td>' % (style, text(title), cell) for (title, style), cell in zip(columns, row))
        for row in rows
    )
    return '<div class="scroll"><table class="%s"><thead><tr>%s</tr></thead>\n<tbody>\n%s\n</tbody></table></div>' % (kind, head, body)


def _tag(status: str, words: str) -> str:
    return '<span class="tag %s">%s</span>' % (text(status), text(words))


def _header(report: dict[str, Any]) -> str:
    run = report["run"]
    took = " · took %s" % duration(run["seconds"]) if run["seconds"] is not None else " · the run has not ended, or was killed"
    counts = report["checks"]["counts"]
    figures = []
    if report["fleet"]["hosts"]:
        groups: dict[str, int] = {}
        for host in report["fleet"]["hosts"]:
            for group in host.get("groups") or ["ungrouped"]:
                name = str(group).replace("muster_", "", 1)
                groups[name] = groups.get(name, 0) + 1
        figures.append(("Hosts", str(len(report["fleet"]["hosts"])), ", ".join("%d %s" % (n, name) for name, n in groups.items())))
    if any(counts.values()):
        figures.append(("Checks passed", str(counts["passed"]), "%(failed)d failed, %(not_run)d not run" % counts))
    best = max(
        (e for e in report["collectives"] if e["best"]), key=lambda e: (e["collective"] == "all_reduce", e["best"]["busbw"]), default=None
    )
    if best:
        figures.append(("busbw, %s" % best["collective"], "%.2f GB/s" % best["best"]["busbw"], "at %s" % human_size(best["best"]["size"])))
    for entry in report["training"][:1]:
        figures.append(
            ("Training loss", "%.3f → %.3f" % (entry["first_loss"], entry["last_loss"]), "steps %(first_step)d to %(last_step)d" % entry)
        )
        if entry["tokens_per_s"] is not None:
            figures.append(
                ("Training speed", "%s tokens/s" % _short(entry["tokens_per_s"]), "%.2f samples/s" % (entry["samples_per_s"] or 0))
            )
    tiles = "".join("<div><dt>%s</dt><dd>%s<small>%s</small></dd></div>" % (text(a), text(b), text(c)) for a, b, c in figures)
    messages = "".join("<p>%s</p>" % text(message) for message in run["messages"])
    return (
        '<header>\n<p>Muster · fleet %s</p>\n<h1><span class="%s">%s</span></h1>\n<p>%s%s<span class="whole">%s</span></p>\n%s%s\n</header>'
        % (
            text(run["fleet"]),
            run["verdict"],
            text(VERDICTS[run["verdict"]]),
            text(run["playbook"] + " · " if run["playbook"] else ""),
            text(_moment(run["started"])),
            text(took),
            messages,
            '<dl class="figures">%s</dl>' % tiles if tiles else "",
        )
    )


def _short(number: float) -> str:
    return "%.0f" % number if number >= 100 else "%.1f" % number


def _failures(report: dict[str, Any]) -> str:
    alike: dict[tuple[str, ...], list[str]] = {}
    for failure in report["failures"]:
        alike.setdefault(tuple(failure[key] for key in ("role", "task", "message", "remedy", "log")), []).append(failure["host"])
    items = []
    for (role, task, message, remedy, log), hosts in alike.items():
        where = " · ".join(part for part in (role, task) if part)
        lines = message.split("\n")
        shown = "\n".join(lines[:MOST_LINES]) + ("\n…" if lines[MOST_LINES:] else "")
        items.append('<div class="item failed"><p><b>%s</b> %s</p><p>%s</p>' % (text(named_hosts(hosts, 12)), text(where), text(shown)))
        if remedy:
            items.append("<p><b>Remedy:</b> %s</p>" % text(remedy))
        if log:
            items.append('<p class="soft">What the task said is in <code>%s</code>, beside this page.</p>' % text(log))
        items.append("</div>")
    return _section("What stopped the run", "\n".join(items), "failures") if items else ""


def _fleet(report: dict[str, Any]) -> str:
    hosts = report["fleet"]["hosts"]
    if not hosts:
        return ""
    done = report["run"]["hosts"]
    columns = [
        ("Host", ""),
        ("Role", ""),
        ("Address", ""),
        ("System", ""),
        ("CPUs", "number"),
        ("Memory", "number"),
        ("GPUs", ""),
        ("Tasks", ""),
    ]
    rows = []
    for host in hosts:
        gpus = host.get("gpus") or []
        tally = done.get(host["name"])
        state = ""
        if tally:
            bad = [name for name, key in (("failed", "failures"), ("unreachable", "unreachable")) if tally[key]]
            state = _tag("failed", bad[0]) if bad else "%d ok, %d changed" % (tally["ok"], tally["changed"])
        rows.append(
            [
                text(host["name"]),
                text(", ".join(str(group).replace("muster_", "", 1) for group in host.get("groups") or [])),
                "<code>%s</code>" % text(host["address"]) if host.get("address") else "",
                text(" · ".join(str(host[key]) for key in ("os", "arch", "kernel") if host.get(key))),
                text("%g" % host["cpus"] if host.get("cpus") else ""),
                text("%.1f GiB" % (host["memory_mib"] / 1024) if host.get("memory_mib") else ""),
                text("%d × %s" % (len(gpus), gpus[0] if isinstance(gpus[0], str) else gpus[0].get("name", "GPU")) if gpus else "none"),
                state,
            ]
        )
    engine = report["fleet"]["engine"]
    note = ""
    if engine:
        known = ["%s %s" % (label, engine[key]) for label, key in (("cgroup", "cgroup"), ("runtime", "runtime")) if engine.get(key)]
        name = "%s %s" % (engine.get("name", "an unknown engine"), engine.get("version", ""))
        note = '<p class="soft">The nodes are containers of %s.</p>' % text(", ".join([name.strip(), *known]))
    return _section("Fleet", _table(columns, rows, "stack") + note, "fleet")


def _checks(checks: dict[str, Any]) -> str:
    records = checks["records"]
    if not records:
        return ""
    known = [level for level in LEVELS if any(record["level"] == level for record in records)]
    levels = known + sorted({record["level"] for record in records} - set(known))
    # The level where something failed comes first.
    levels.sort(key=lambda level: not any(r["level"] == level and r["status"] == "failed" for r in records))
    parts = []
    for level in levels:
        here = [record for record in records if record["level"] == level]
        counts = [(status, sum(r["status"] == status for r in here)) for status in ("passed", "failed", "not_run")]
        tally = ", ".join("%d %s" % (number, status.replace("_", " ")) for status, number in counts if number)
        parts.append("<h3>%s <small>%s</small></h3>" % (text(LEVELS.get(level, level or "Other")), text(tally)))
        parts += [_check_item(group) for group in _groups(here, "failed", ("component", "check", "reason", "remedy"))]
        rows = [
            [
                "<b>%s</b>" % text(group[0]["component"]),
                text(", ".join(dict.fromkeys(record["check"] for record in group))),
                text(named_hosts(dict.fromkeys(record["host"] for record in group))),
                text(group[0]["reason"] or "no reason given"),
            ]
            for group in _groups(here, "not_run", ("component", "reason"))
        ]
        if rows:
            parts.append(_table([("Not run", ""), ("Checks", ""), ("Hosts", ""), ("Reason", "")], rows, "stack"))
        passed = _groups(here, "passed", ("component", "check"))
        if passed:
            rows = [
                [
                    text("%(component)s.%(check)s" % group[0]),
                    text(named_hosts(record["host"] for record in group)),
                    text(", ".join(dict.fromkeys(str(record["found"]) for record in group if record["found"]))[:200]),
                ]
                for group in passed
            ]
            body = _table([("Check", ""), ("Hosts", ""), ("Found", "")], rows, "stack")
            parts.append("<details><summary>The passed checks</summary>%s</details>" % body)
    return _section("Checks", "\n".join(parts), "checks")


def _groups(records: list[dict[str, Any]], status: str, keys: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Return the RECORDS of STATUS that agree in KEYS together: a fleet of thousands fails in a few ways."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        if record["status"] == status:
            found.setdefault(tuple(record[key] for key in keys), []).append(record)
    return list(found.values())


def _check_item(group: list[dict[str, Any]]) -> str:
    first = group[0]
    return (
        '<div class="item failed"><p><b>%s.%s</b> on %s</p><p>%s</p><p class="soft">expected %s, found %s</p><p><b>Remedy:</b> %s</p></div>'
    ) % (
        text(first["component"]),
        text(first["check"]),
        text(named_hosts((record["host"] for record in group), 12)),
        text(first["reason"]),
        text(first["expected"] or "success"),
        text(first["found"] or "nothing"),
        text(first["remedy"]),
    )


def _collectives(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return ""
    names = [entry["collective"] for entry in entries]
    labels = [entry["collective"] if names.count(entry["collective"]) == 1 else "%(collective)s (%(job)s)" % entry for entry in entries]
    series = []
    for index, (label, entry) in enumerate(zip(labels, entries)):
        rows = sorted((row for row in entry["rows"] if row["placement"] == "out_of_place" and row["size"]), key=lambda row: row["size"])
        notes = ["%s, %s: %.2f GB/s, %s µs" % (label, human_size(row["size"]), row["busbw"], _short(row["time_us"])) for row in rows]
        series.append(Series(label, [(row["size"], row["busbw"]) for row in rows], index, notes))
    drawn = [one for one in series if one.points]
    parts = []
    if drawn:
        legend = "".join("<li>%s%s</li>" % (swatch(one.colour), text(one.label)) for one in drawn)
        plot = Plot("Bus bandwidth against message size", drawn, y_title="busbw, GB/s", x_title="message size", log2=True, from_zero=True)
        parts.append('<figure><ul class="legend">%s</ul>%s' % (legend, plot.both("busbw", 1080, 340)))
        parts.append("<figcaption>Bus bandwidth, out-of-place. The in-place half is in report.json.</figcaption></figure>")
    columns = [
        ("Collective", ""),
        ("Ranks", "number"),
        ("Best busbw", "number"),
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
                _tag(entry["verdict"], entry["verdict"]) + "".join("<br>%s" % text(reason) for reason in entry["reasons"]),
            ]
        )
    parts.append(_table(columns, rows, "stack"))
    if drawn:
        sizes = sorted({size for one in drawn for size, _busbw in one.points})
        by_label = [dict(one.points) for one in drawn]
        cells = [[text(human_size(int(size))), *("%.2f" % by[size] if size in by else "" for by in by_label)] for size in sizes]
        body = _table([("Size", ""), *((one.label, "number") for one in drawn)], cells)
        parts.append("<details><summary>busbw in GB/s as a table</summary>%s</details>" % body)
    return _section("Collectives", "\n".join(parts), "collectives")


def _training(entries: list[dict[str, Any]]) -> str:
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
    return _section("Training", "\n".join(parts), "training") if parts else ""


def _attempts(entry: dict[str, Any], key: str, unit: str) -> list[Series]:
    """Return what counted of all attempts as one line, and of each attempt what the next one trained again."""
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
    digits: Callable[[float], str] = (lambda value: "%.4f" % value) if key == "loss" else _short
    notes = ["step %d: %s %s" % (step["step"], digits(step[key]), unit) for step in thin]
    return Series(unit, [(step["step"], step[key]) for step in thin], 0, notes, style)


def _timings(timings: dict[str, Any]) -> str:
    phases = {"install": 0, "configure": 1, "verify": 2, "": 5}
    roles: dict[str, dict[str, float]] = {}
    for entry in timings["roles"]:
        shares = roles.setdefault(entry["role"] or "playbook", dict.fromkeys(phases, 0.0))
        phase = entry["phase"].partition("_")[0]
        shares[phase if phase in phases else ""] += entry["seconds"]
    if not roles:
        return ""
    ordered = sorted(roles.items(), key=lambda item: -sum(item[1].values()))
    longest = max(sum(ordered[0][1].values()), 0.001)
    rows = []
    for role, shares in ordered:
        stripes = "".join(
            '<i class="c%d" style="width:%.2f%%" title="%s"></i>'
            % (phases[p], 100 * s / longest, text("%s: %s" % (p or "other", duration(s))))
            for p, s in shares.items()
            if s
        )
        rows.append([text(role), '<div class="bar">%s</div>' % stripes, text(duration(sum(shares.values())))])
    legend = "".join('<li><span class="key c%d"></span>%s</li>' % (colour, phase or "other") for phase, colour in phases.items())
    columns = [("Role", ""), ("", "wide"), ("Time", "number")]
    parts = ['<ul class="legend">%s</ul>' % legend, _table(columns, rows[:12])]
    if rows[12:]:
        parts.append("<details><summary>%d more</summary>%s</details>" % (len(rows) - 12, _table(columns, rows[12:])))
    for title, keys in (("Each phase", ("role", "phase", "tasks", "changed")), ("The slowest tasks", ("role", "task", "hosts", "changed"))):
        source = timings["roles"] if title == "Each phase" else timings["tasks"]
        titles = [(key.capitalize(), "number" if key in ("tasks", "changed", "hosts") else "") for key in keys]
        cells = [[*(text(entry[key]) for key in keys), text(duration(entry["seconds"]))] for entry in source]
        if cells:
            body = _table([*titles, ("Time", "number")], cells, "stack")
            parts.append("<details><summary>%s</summary>%s</details>" % (title, body))
    return _section("Time per role", "\n".join(parts), "timings")


def _jobs(jobs: list[dict[str, Any]]) -> str:
    rows = []
    for job in jobs:
        good = str(job["state"]).upper() == "COMPLETED"
        rows.append(
            [
                text(job["name"]),
                _tag("passed" if good else "failed", str(job["state"] or "unknown").lower()),
                text(named_hosts(job["nodes"] or [])),
                text(duration(job["elapsed_s"]) if job["elapsed_s"] is not None else ""),
                text(job["restarts"]),
                text("stored, of %s" % _moment(job["ended"]) if job["stored"] else "in this run"),
            ]
        )
    columns = [("Job", ""), ("State", ""), ("Nodes", ""), ("Took", "number"), ("Restarts", "number"), ("Ran", "")]
    return _section("Jobs", _table(columns, rows, "stack"), "jobs") if rows else ""


def _versions(fleet: dict[str, Any]) -> str:
    everywhere = len(fleet["hosts"])
    rows = [
        [
            text(entry["component"]),
            "<code>%s</code>" % text(entry["version"]),
            text("all" if len(entry["hosts"]) == everywhere else named_hosts(entry["hosts"])),
        ]
        for entry in fleet["versions"]
    ]
    return _section("Versions", _table([("Component", ""), ("Version", ""), ("Hosts", "")], rows), "versions") if rows else ""


def _notes(notes: list[str]) -> str:
    return _section("Notes on this report", "".join("<p>%s</p>" % text(note) for note in notes), "notes") if notes else ""
