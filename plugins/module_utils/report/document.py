# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the report of a run from its run folder alone.

`build(folder)` gives `muster.report/1`, which docs/report.schema.json describes; `summary(report, folder)` gives its ten lines;
`write_report(folder)` writes report.json and report.html, and the results for other programs (results.py). A run that was killed leaves an
incomplete folder: everything readable is reported, and `notes` names the rest.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from pathlib import Path
from typing import Any, Iterable, Optional

from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import human_size
from ansible_collections.muster.fleet.plugins.module_utils.node.check import has_failed
from ansible_collections.muster.fleet.plugins.module_utils.report import results
from ansible_collections.muster.fleet.plugins.module_utils.report.html import duration
from ansible_collections.muster.fleet.plugins.module_utils.report.page import render_html
from ansible_collections.muster.fleet.plugins.module_utils.report.run_record import named_hosts

SCHEMA = "muster.report/1"
# Of a diagnosis, with what stands for a value that it lacks.
DIAGNOSIS: dict[str, Any] = {
    **{key: [] for key in ("bad", "links", "undecided", "untested", "proven", "rehearsed", "pairs", "between")},
    **{"left_alone": {}, "usual": {"near": None, "far": None}, "tests": 0, "rounds": 0, "size": "", "stopped": ""},
}
METRICS = "muster.metrics/2"
# How the report writes the units of a dashboard: (unit, factor).
SHOWN_UNITS = {
    "share": ("%", 100),
    "bytes": ("GiB", 2.0**-30),
    "Bps": ("MB/s", 1e-6),
    "ops": ("1/s", 1),
    "count": ("", 1),
    "celsius": ("°C", 1),
    "watt": ("W", 1),
}
STEP_KEYS = ("step", "loss", "samples_per_s", "tokens_per_s", "lr", "grad_norm")


class ReportError(ValueError):
    """The folder is not a run folder; the message is one sentence for the user."""


def build(folder: Path) -> dict[str, Any]:
    """Return the report of the run in FOLDER; raises ReportError when FOLDER has none."""
    if not (folder / "events.jsonl").is_file() and not (folder / "fleet.json").is_file():
        raise ReportError("%s has no run (neither events.jsonl nor fleet.json): give a folder below runs/." % folder)
    notes: list[str] = []
    events = _lines(folder, "events.jsonl", notes)
    fleet = _document(folder, "fleet.json", notes)
    jobs = sorted(path.name for path in (folder / "jobs").glob("*") if path.is_dir())
    last_start = max((index for index, event in enumerate(events) if event["event"] == "start"), default=0)
    # Several playbooks may write into a folder; the last gives the verdict, and all of them give checks.
    run = _run(folder, events[last_start:], fleet, _rehearsed_types(events, fleet))
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    return {
        "schema": SCHEMA,
        "run": run,
        "fleet": {
            "hosts": sorted(fleet.get("hosts") or [], key=_place),
            "versions": fleet.get("versions") or [],
            "engine": fleet.get("engine"),
        },
        "checks": _checks(by_kind.get("check", [])),
        "failures": _failures(events[last_start:], run["hosts"]),
        "collectives": [entry for job in jobs for entry in _collectives(folder, job, notes)],
        "training": [entry for job in jobs for entry in _training(folder, job, notes)],
        "jobs": [entry for job in jobs for entry in _job(folder, job, notes)],
        "diagnoses": _diagnoses(folder, notes),
        "metrics": _metrics(folder, notes),
        "timings": {
            "roles": _timings(by_kind.get("role", []), ("role", "phase", "seconds", "tasks", "changed")),
            "tasks": _timings(by_kind.get("task", []), ("role", "task", "path", "seconds", "changed", "hosts"))[:20],
        },
        "notes": notes,
    }


def _place(host: dict[str, Any]) -> tuple[Any, ...]:
    """Where a host stands among the others: controllers first, and node-10 behind node-9."""
    groups = host.get("groups") or []
    first = next((number for number, group in enumerate(("muster_controller", "muster_login", "muster_compute")) if group in groups), 3)
    return first, version_key(host["name"]), host["name"]


def _document(folder: Path, name: str, notes: list[str]) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        return {}
    try:
        document = _finite(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        notes.append("%s cannot be read: it is not a JSON object." % name)
        return {}
    return document


def _lines(folder: Path, name: str, notes: list[str]) -> list[dict[str, Any]]:
    path = folder / name
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else [], 1):
        try:
            record = _finite(json.loads(line)) if line.strip() else None
        except ValueError:
            record = None
        if isinstance(record, dict) and ("event" in record or "step" in record):
            records.append(record)
        elif line.strip():
            notes.append("Line %d of %s cannot be read." % (number, name))
    return records


def _finite(value: Any) -> Any:
    """Return VALUE with None for NaN and infinities, which Python writes and JSON does not allow."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def _rehearsed_types(events: list[dict[str, Any]], fleet: dict[str, Any]) -> list[str]:
    """Return the instance types that the nodes rehearse. A check that met a stand-in makes any run a rehearsal."""
    named = [name for event in events if event["event"] == "rehearsal" for name in event.get("instance_types") or []]
    named += [host["rehearses"] for host in fleet.get("hosts") or [] if host.get("rehearses")]
    met = any(event.get("rehearsed") for event in events if event["event"] == "check")
    return sorted(set(named)) or (["an unknown type"] if met else [])


def _run(folder: Path, events: list[dict[str, Any]], fleet: dict[str, Any], rehearses: list[str]) -> dict[str, Any]:
    start = next((event for event in events if event["event"] == "start"), {})
    end = next((event for event in events if event["event"] == "end"), None)
    return {
        "fleet": start.get("fleet") or fleet.get("fleet") or folder.resolve().parent.name,
        "name": folder.resolve().name,
        "rehearses": rehearses,
        "playbook": start.get("playbook") or "",
        "argv": start.get("argv") or [],
        "started": start.get("time"),
        "ended": end["time"] if end else None,
        "seconds": end["seconds"] if end else None,
        "verdict": "unfinished" if not end or end.get("interrupted") else "passed" if end["ok"] else "failed",
        "hosts": end["hosts"] if end else {},
        "messages": list(dict.fromkeys(event["text"] for event in events if event["event"] == "message"))
        + ["%s ended the run." % end["interrupted"] for end in [end or {}] if end.get("interrupted")],
    }


def _checks(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last record of each check, worst first, and the number of each status."""
    latest = {(event["host"], event["component"], event["level"], event["check"]): event for event in events}
    order = {"failed": 0, "not_run": 1, "passed": 2}
    records = sorted(latest.values(), key=lambda r: (not has_failed(r) and order.get(r["status"], 0), r["component"], r["check"]))
    counts = {status: sum(record["status"] == status for record in records) for status in ("passed", "failed", "not_run")}
    return {"counts": counts, "records": [{key: value for key, value in r.items() if key not in ("event", "time")} for r in records]}


def _failures(events: list[dict[str, Any]], hosts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return why each host stopped. A failure that a rescue handled does not count: its host ends without failures."""
    last: dict[str, dict[str, Any]] = {}
    for event in events:
        stopped = (
            hosts.get(str(event.get("host")), {"failures": 1, "unreachable": 1}) if event["event"] in ("failure", "unreachable") else {}
        )
        if event["event"] == "failure" and stopped["failures"]:
            last[event["host"]] = {key: event[key] for key in ("host", "role", "task", "message", "remedy", "log")}
        elif event["event"] == "unreachable" and stopped["unreachable"]:
            unreached = {"role": "", "task": "", "remedy": "", "log": ""}
            last[event["host"]] = {"host": event["host"], **unreached, "message": "unreachable: %s" % event["message"]}
    return [last[host] for host in sorted(last)]


def _nccl(folder: Path, job: str, notes: list[str]) -> dict[str, Any]:
    return _document(folder, "jobs/%s/nccl.json" % job, notes)


def _collectives(folder: Path, job: str, notes: list[str]) -> list[dict[str, Any]]:
    document = _nccl(folder, job, notes)
    found = []
    for table in document.get("tables") or []:
        rows = [{key: row[key] for key in ("size", "placement", "time_us", "algbw", "busbw", "wrong")} for row in table["rows"]]
        kept = {key: table[key] for key in ("program", "collective", "ranks", "ranks_proven", "hosts", "verdict", "reasons")}
        # Documents of earlier releases lack these.
        if table.get("rehearsed"):
            kept["rehearsed"] = table["rehearsed"]
        kept.update(floors=table.get("floors") or [], ceiling=table.get("ceiling"), remarks=table.get("remarks") or [])
        # Prefer the out-of-place rows, which the plot shows.
        best = max(rows, key=lambda row: (row["placement"] == "out_of_place", row["busbw"]), default=None)
        found.append({"job": job, **kept, "collective": table["collective"] or table["program"] or "unknown", "best": best, "rows": rows})
    if document and not found:
        blank: dict[str, Any] = {
            "program": None,
            "collective": "unknown",
            "ranks": None,
            "ranks_proven": None,
            "hosts": [],
            "floors": [],
            "ceiling": None,
            "remarks": [],
            "best": None,
            "rows": [],
        }
        said = {"verdict": document.get("verdict") or "failed", "reasons": document.get("reasons") or []}
        if document.get("rehearsed"):
            said["rehearsed"] = document["rehearsed"]
        found.append({"job": job, **blank, **said})
    return found


def _training(folder: Path, job: str, notes: list[str]) -> list[dict[str, Any]]:
    """Return the training of JOB as attempts: one for each start or resume, each with its steps in order."""
    records = _lines(folder, "jobs/%s/train.jsonl" % job, notes)
    attempts: list[dict[str, Any]] = []
    checkpoints = []
    for record in records:
        kind = record.get("event")
        if kind in ("start", "resume") or not attempts:
            begins = {key: record.get(key) for key in ("time", "world_size", "restart", "host")}
            from_step = record.get("step") if kind in ("start", "resume") else None
            attempts.append({"event": kind or "start", "from_step": from_step or 0, **begins, "steps": []})
        if kind == "checkpoint":
            checkpoints.append(record.get("step"))
        elif kind is None and record.get("loss") is not None:
            attempts[-1]["steps"].append({key: record.get(key) for key in STEP_KEYS})
    # After a restart the steps since the checkpoint appear twice; the last record of a step counts.
    final = {step["step"]: step for attempt in attempts for step in attempt["steps"]}
    if not final:
        return []
    steps = [final[number] for number in sorted(final)]
    speeds = {key: [step[key] for step in steps if step[key] is not None] for key in ("samples_per_s", "tokens_per_s")}
    return [
        {
            "job": job,
            "world_size": attempts[-1]["world_size"],
            "first_step": steps[0]["step"],
            "last_step": steps[-1]["step"],
            "first_loss": steps[0]["loss"],
            "last_loss": steps[-1]["loss"],
            "samples_per_s": statistics.median(speeds["samples_per_s"]) if speeds["samples_per_s"] else None,
            "tokens_per_s": statistics.median(speeds["tokens_per_s"]) if speeds["tokens_per_s"] else None,
            "resumes": len(attempts) - 1,
            "checkpoints": checkpoints,
            "attempts": attempts,
        }
    ]


def _job(folder: Path, job: str, notes: list[str]) -> list[dict[str, Any]]:
    result = _document(folder, "jobs/%s/result.json" % job, notes)
    if not result:
        return []
    keys = ("job_id", "state", "exit_code", "nodes", "submitted", "started", "ended", "elapsed_s", "restarts", "stored")
    return [{"name": job, **{key: result.get(key) for key in keys}}]


def _diagnoses(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Return what diagnose.yml found, one entry for each instance type: {type (empty for CPUs), and what module diagnose returns}."""
    found = []
    for path in sorted(folder.glob("diagnose*.json")):
        document = _document(folder, path.name, notes)
        # A dry run tests nothing.
        if "tests" in document:
            found.append({"type": path.stem.partition("-")[2], **{key: document.get(key, empty) for key, empty in DIAGNOSIS.items()}})
    return found


def _metrics(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Return what Prometheus knew of the time of the run.

    [{board, title, unit, kind (timeseries, stat or table), empty, series: [{label, points: [[seconds since 1970, value]]}]}]
    """
    document, charts = _document(folder, "metrics.json", notes), []
    if document and document.get("schema") != METRICS:
        notes.append("metrics.json is %s, of another version of Muster: its plots are left out." % document.get("schema"))
        return []
    for chart in document.get("charts") or []:
        unit, factor = SHOWN_UNITS.get(chart["unit"], (chart["unit"], 1))
        series = []
        for one in chart["series"]:
            # Prometheus also sends NaN and infinities, which no plot can draw.
            points = [[when, value * factor] for when, value in one["points"] if value is not None and math.isfinite(value)]
            if points:
                series.append({"label": _label(one), "points": points})
        charts.append({**{key: chart[key] for key in ("board", "title", "kind", "empty")}, "unit": unit, "series": series})
    return charts


def _label(one: dict[str, Any]) -> str:
    """Return the legend of a series, such as "{{job_id}} {{run}}", with the values of its labels."""
    return re.sub(r"{{(\w+)}}", lambda found: str(one["labels"].get(found[1], "")), one["legend"]).strip()


def _timings(events: Iterable[dict[str, Any]], keys: Iterable[str]) -> list[dict[str, Any]]:
    found = [{key: event[key] for key in keys} for event in events]
    return sorted(found, key=lambda entry: -entry["seconds"])


def summary(report: dict[str, Any], folder: Optional[Path] = None) -> list[str]:
    """Return at most ten lines for the terminal; FOLDER is the path of the run folder as the user would type it."""
    run, hosts, counts = report["run"], report["fleet"]["hosts"], report["checks"]["counts"]
    took = " in %s" % duration(run["seconds"]) if run["seconds"] is not None else ""
    failed = len(report["failures"])
    rehearsal = "REHEARSAL of %s, " % " and ".join(run["rehearses"]) if run["rehearses"] else ""
    stopped = ", %s stopped" % _plural(failed, "host") if failed else ""
    lines = ["%sfleet %s: %s%s%s" % (rehearsal, run["fleet"], run["verdict"], took, stopped)]
    lines[0] += ", %s" % run["messages"][-1].rstrip(".") if run["verdict"] == "unfinished" and run["messages"] else ""
    if hosts:
        lines.append("hosts: %d (%s)" % (len(hosts), named_hosts((host["name"] for host in hosts), 6)))
    if run["hosts"]:
        changed = sum(host["changed"] for host in run["hosts"].values())
        lines.append("tasks: %d ok, %d changed" % (sum(host["ok"] for host in run["hosts"].values()), changed))
    lines += run["messages"] if run["verdict"] != "unfinished" else run["messages"][:-1]
    if any(counts.values()):
        lines.append("checks: %(passed)d passed, %(failed)d failed, %(not_run)d not run" % counts)
    stored = {job["name"]: job["stored"] for job in report["jobs"]}
    bests = [
        "%s %.2f GB/s at %s" % (entry["collective"], entry["best"]["busbw"], human_size(entry["best"]["size"]))
        for entry in report["collectives"]
        if entry["best"]
    ]
    if bests:
        stood_in = " of stand-ins" if any(entry.get("rehearsed") for entry in report["collectives"]) else ""
        lines.append("busbw%s: %s%s" % (stood_in, ", ".join(bests), _origin(stored, (entry["job"] for entry in report["collectives"]))))
    for entry in report["training"][:1]:
        speed = ", %.2f samples/s" % entry["samples_per_s"] if entry["samples_per_s"] is not None else ""
        again = ", resumed %s" % _plural(entry["resumes"], "time") if entry["resumes"] else ""
        losses = (entry["first_loss"], entry["last_loss"], entry["last_step"])
        lines.append("training: loss %.3f → %.3f at step %d%s%s%s" % (*losses, speed, again, _origin(stored, [entry["job"]])))
    room = 9 - len(lines)
    bad = _stops(report)
    lines += bad[:room] if len(bad) <= room else [*bad[: room - 1], "… and %d more in the report" % (len(bad) - room + 1)]
    if folder is not None:
        logs = sorted({failure["log"] for failure in report["failures"] if failure["log"]})
        lines.append("report: %s%s" % (folder / "report.html", "".join("  log: %s" % (folder / log) for log in logs)))
    return lines


def _stops(report: dict[str, Any]) -> list[str]:
    """Return a line for each way in which a check failed and for each host that stopped for another reason."""
    failed = [record for record in report["checks"]["records"] if has_failed(record)]
    alike: dict[tuple[Any, ...], list[str]] = {}
    for record in failed:
        reason = " ".join(str(record["reason"]).split()).rstrip(".")
        if reason.endswith("the value differs"):
            # The reason names no value, so show what was found.
            reason += ", found " + " ".join(str(record["found"]).split()).rstrip(".")
        alike.setdefault((record["component"], record["check"], reason[:300], record["remedy"]), []).append(record["host"])
    lines = [(hosts, "FAILED %s: %s.%s: %s. Remedy: %s" % (named_hosts(hosts), *texts)) for texts, hosts in alike.items()]
    named = {record["host"] for record in failed}
    for failure in report["failures"]:
        message = " ".join(failure["message"].split())
        # The task that fails a host for its checks would repeat them.
        if failure["host"] in named and any("%(component)s.%(check)s" % record in message for record in failed):
            continue
        task = "%s: " % " : ".join(part for part in (failure["role"], failure["task"]) if part) if failure["task"] else ""
        remedy = " Remedy: %s" % failure["remedy"] if failure["remedy"] not in message else ""
        lines.append(([failure["host"]], "FAILED %s: %s%s%s" % (failure["host"], task, message[:300], remedy)))
    # The terminal shows some of the lines, so each host has one before any has two.
    first: list[str] = []
    rest: list[str] = []
    seen: set[str] = set()
    for hosts, line in lines:
        (rest if seen.issuperset(hosts) else first).append(line)
        seen.update(hosts)
    return first + rest


def _origin(stored: dict[str, Any], jobs: Iterable[str]) -> str:
    known = [stored[job] for job in jobs if stored.get(job) is not None]
    return "" if not known else " (stored)" if all(known) else " (run now)" if not any(known) else " (partly stored)"


def _plural(number: int, noun: str) -> str:
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")


def write_report(folder: Path) -> dict[str, Any]:
    """Write the report and the results into FOLDER and return the report."""
    report = build(folder)
    write_files(folder, rendered(folder, report))
    return report


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write FILES (name → text) into FOLDER; a reader sees the old or the new text of each, whole."""
    for name, text in files.items():
        part = folder / (name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, folder / name)


def rendered(folder: Path, report: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the files by name."""
    document = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # Bytes that were not UTF-8 arrive as lone surrogates, which cannot be written.
    found = {job: _nccl(folder, job, []) for job in (path.parent.name for path in (folder / "jobs").glob("*/nccl.json"))}
    baseline = _document(folder, "baseline.json", []) if (folder / "baseline.json").is_file() else None
    texts = {"report.json": document, "report.html": render_html(report), **results.files(report, found, baseline)}
    return {name: text.encode("utf-8", "replace").decode("utf-8") for name, text in texts.items()}
