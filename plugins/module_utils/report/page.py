# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of a report (`muster.report/1`): one HTML file without scripts, which loads nothing over the network."""

from __future__ import annotations

from typing import Any, Iterable

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import human_size
from ansible_collections.muster.fleet.plugins.module_utils.node.check import has_failed
from ansible_collections.muster.fleet.plugins.module_utils.report.curves import collectives, training
from ansible_collections.muster.fleet.plugins.module_utils.report.heat import diagnoses
from ansible_collections.muster.fleet.plugins.module_utils.report.html import duration, moment, section, short, table, tag
from ansible_collections.muster.fleet.plugins.module_utils.report.plot import escaped as text
from ansible_collections.muster.fleet.plugins.module_utils.report.run_record import named_hosts
from ansible_collections.muster.fleet.plugins.module_utils.report.style import STYLE
from ansible_collections.muster.fleet.plugins.module_utils.report.watched import during

LEVELS = {"image": "On the image", "node": "On each node", "fleet": "Across the fleet"}
VERDICTS = {"passed": "Passed", "failed": "Failed", "unfinished": "Not finished"}
MOST_LINES = 8


def render_html(report: dict[str, Any]) -> str:
    """Return the whole page of REPORT."""
    run = report["run"]
    title = "%s%s – fleet %s, %s" % ("REHEARSAL · " if run["rehearses"] else "", VERDICTS[run["verdict"]], run["fleet"], run["name"])
    parts = [
        _failures(report),
        _fleet(report),
        _checks(report["checks"]),
        collectives(report["collectives"]),
        diagnoses(report["diagnoses"]),
        training(report["training"]),
        during(report),
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
        of = " of stand-ins" if best.get("rehearsed") else ""
        figures.append(
            ("busbw%s, %s" % (of, best["collective"]), "%.2f GB/s" % best["best"]["busbw"], "at %s" % human_size(best["best"]["size"]))
        )
    for entry in report["training"][:1]:
        figures.append(
            ("Training loss", "%.3f → %.3f" % (entry["first_loss"], entry["last_loss"]), "steps %(first_step)d to %(last_step)d" % entry)
        )
        if entry["tokens_per_s"] is not None:
            figures.append(
                ("Training speed", "%s tokens/s" % short(entry["tokens_per_s"]), "%.2f samples/s" % (entry["samples_per_s"] or 0))
            )
    tiles = "".join("<div><dt>%s</dt><dd>%s<small>%s</small></dd></div>" % (text(a), text(b), text(c)) for a, b, c in figures)
    messages = "".join("<p>%s</p>" % text(message) for message in run["messages"])
    rehearsal = "REHEARSAL of %s on stand-ins · " % " and ".join(run["rehearses"]) if run["rehearses"] else ""
    return '<header>\n<p>%s</p>\n<h1><span class="%s">%s</span></h1>\n<p>%s%s<span class="whole">%s</span></p>\n%s%s\n</header>' % (
        text("%sMuster · fleet %s" % (rehearsal, run["fleet"])),
        run["verdict"],
        text(VERDICTS[run["verdict"]]),
        text(run["playbook"] + " · " if run["playbook"] else ""),
        text(moment(run["started"])),
        text(took),
        messages,
        '<dl class="figures">%s</dl>' % tiles if tiles else "",
    )


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
    return section("What stopped the run", "\n".join(items), "failures") if items else ""


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
            state = tag("failed", bad[0]) if bad else "%d ok, %d changed" % (tally["ok"], tally["changed"])
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
    return section("Fleet", table(columns, rows, "stack") + note, "fleet")


def _checks(checks: dict[str, Any]) -> str:
    records = checks["records"]
    if not records:
        return ""
    known = [level for level in LEVELS if any(record["level"] == level for record in records)]
    levels = known + sorted({record["level"] for record in records} - set(known))
    # The level where something failed comes first.
    levels.sort(key=lambda level: not any(r["level"] == level and has_failed(r) for r in records))
    parts = []
    for level in levels:
        here = [record for record in records if record["level"] == level]
        counts = [(status, sum(r["status"] == status for r in here)) for status in ("passed", "failed", "not_run")]
        tally = ", ".join("%d %s" % (number, status.replace("_", " ")) for status, number in counts if number)
        parts.append("<h3>%s <small>%s</small></h3>" % (text(LEVELS.get(level, level or "Other")), text(tally)))
        bad = [record for record in here if has_failed(record)]
        parts += [_check_item(group) for group in _groups(bad, ("component", "check", "reason", "remedy"))]
        rows = [
            [
                "<b>%s</b>" % text(group[0]["component"]),
                text(", ".join(dict.fromkeys(record["check"] for record in group))),
                text(named_hosts(dict.fromkeys(record["host"] for record in group))),
                text(group[0]["reason"] or "no reason given"),
            ]
            for group in _groups([r for r in here if r["status"] == "not_run" and r not in bad], ("component", "reason"))
        ]
        if rows:
            parts.append(table([("Not run", ""), ("Checks", ""), ("Hosts", ""), ("Reason", "")], rows, "stack"))
        passed = _groups([r for r in here if r["status"] == "passed"], ("component", "check"))
        if passed:
            rows = [
                [
                    text("%(component)s.%(check)s" % group[0]),
                    text(named_hosts(record["host"] for record in group)),
                    text(", ".join(dict.fromkeys(str(record["found"]) for record in group if record["found"]))[:200]),
                ]
                for group in passed
            ]
            body = table([("Check", ""), ("Hosts", ""), ("Found", "")], rows, "stack")
            parts.append("<details><summary>The passed checks</summary>%s</details>" % body)
    return section("Checks", "\n".join(parts), "checks")


def _groups(records: list[dict[str, Any]], keys: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Group the RECORDS by KEYS, because thousands of hosts fail in a few ways."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
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
    parts = ['<ul class="legend">%s</ul>' % legend, table(columns, rows[:12])]
    if rows[12:]:
        parts.append("<details><summary>%d more</summary>%s</details>" % (len(rows) - 12, table(columns, rows[12:])))
    for title, keys in (("Each phase", ("role", "phase", "tasks", "changed")), ("The slowest tasks", ("role", "task", "hosts", "changed"))):
        source = timings["roles"] if title == "Each phase" else timings["tasks"]
        titles = [(key.capitalize(), "number" if key in ("tasks", "changed", "hosts") else "") for key in keys]
        cells = [[*(text(entry[key]) for key in keys), text(duration(entry["seconds"]))] for entry in source]
        if cells:
            body = table([*titles, ("Time", "number")], cells, "stack")
            parts.append("<details><summary>%s</summary>%s</details>" % (title, body))
    return section("Time per role", "\n".join(parts), "timings")


def _jobs(jobs: list[dict[str, Any]]) -> str:
    rows = []
    for job in jobs:
        good = str(job["state"]).upper() == "COMPLETED"
        rows.append(
            [
                text(job["name"]),
                tag("passed" if good else "failed", str(job["state"] or "unknown").lower()),
                text(named_hosts(job["nodes"] or [])),
                text(duration(job["elapsed_s"]) if job["elapsed_s"] is not None else ""),
                text(job["restarts"]),
                text("stored, of %s" % moment(job["ended"]) if job["stored"] else "in this run"),
            ]
        )
    columns = [("Job", ""), ("State", ""), ("Nodes", ""), ("Took", "number"), ("Restarts", "number"), ("Ran", "")]
    return section("Jobs", table(columns, rows, "stack"), "jobs") if rows else ""


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
    return section("Versions", table([("Component", ""), ("Version", ""), ("Hosts", "")], rows), "versions") if rows else ""


def _notes(notes: list[str]) -> str:
    return section("Notes on this report", "".join("<p>%s</p>" % text(note) for note in notes), "notes") if notes else ""
