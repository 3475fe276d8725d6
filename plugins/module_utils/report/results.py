# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The results of a run as files for other programs: `files(report, documents)` gives {name in the run folder: text}.

    junit.xml                 the run, the checks of each host, the collectives and their baseline, as JUnit XML
    jobs/JOB/COLLECTIVE.csv   each table of nccl-tests, under the column names of awsome-distributed-ai's nccl_to_csv.py

DOCUMENTS: {job: muster.nccl_results/1}. In JUnit a check or point that was not_run is skipped with its reason. One that stand-ins of a
rehearsal would have failed is a failure, as for the run.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any, Iterable, Optional
from xml.etree import ElementTree

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import human_size
from ansible_collections.muster.fleet.plugins.module_utils.node.check import has_failed, sentence

COLUMNS = ("Size_Bytes", "Size_KB", "Size_MB", "Count", "Data_Type", "Operation", "Root") + tuple(
    "%s_%s" % (side, name) for side in ("OOP", "IP") for name in ("Time_us", "AlgBW_GBps", "BusBW_GBps", "Errors")
)
# XML 1.0 has no other control characters, and no lone surrogates.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def files(report: dict[str, Any], documents: dict[str, dict[str, Any]], baseline: Optional[dict[str, Any]] = None) -> dict[str, str]:
    suites = [_of_run(report), *_of_checks(report["checks"]["records"])]
    if baseline is not None:
        suites.append(_of_baseline(baseline))
    texts: dict[str, str] = {}
    for job, document in sorted(documents.items()):
        suites += _of_collectives(job, document)
        # A name in the run folder; the text of an output may hold anything.
        names = [re.sub(r"\W", "_", _name(table)) for table in document.get("tables") or []]
        for number, table in enumerate(document.get("tables") or []):
            before = names[:number].count(names[number])
            texts["jobs/%s/%s%s.csv" % (job, names[number], "-%d" % (before + 1) if before else "")] = table_csv(table)
    texts["junit.xml"] = junit(suites, report["run"]["started"])
    return texts


def _name(table: dict[str, Any]) -> str:
    return str(table["collective"] or table["program"] or "unknown")


def table_csv(table: dict[str, Any]) -> str:
    """Return TABLE as CSV. A result that was not checked has the Errors N/A."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in table["rows"]:
        line = lines.setdefault(tuple(row[key] for key in ("size", "type", "redop", "root")), {})
        line.update(
            Size_Bytes=row["size"],
            Size_KB="%g" % (row["size"] / 1024),
            Size_MB="%g" % (row["size"] / (1 << 20)),
            Count=row["count"],
            Data_Type=row["type"],
            Operation=row["redop"],
            Root=row["root"],
        )
        side = "OOP" if row["placement"] == "out_of_place" else "IP"
        line.update({side + "_Time_us": row["time_us"], side + "_AlgBW_GBps": row["algbw"], side + "_BusBW_GBps": row["busbw"]})
        line[side + "_Errors"] = "N/A" if row["wrong"] is None else row["wrong"]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines.values())
    return text.getvalue()


def junit(suites: Iterable[tuple[str, list[dict[str, Any]]]], started: Optional[str] = None) -> str:
    """Return SUITES as JUnit XML: (name, cases); a case is {classname, name, status, text, seconds}."""
    root = ElementTree.Element("testsuites")
    for name, cases in suites:
        count = {status: str(sum(case["status"] == status for case in cases)) for status in ("failed", "not_run")}
        numbers = {"tests": str(len(cases)), "failures": count["failed"], "errors": "0", "skipped": count["not_run"]}
        seconds = "%.3f" % sum(case["seconds"] for case in cases)
        suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(name), **numbers, "time": seconds})
        if started:
            suite.set("timestamp", started.rstrip("Z"))
        for case in cases:
            element = ElementTree.SubElement(
                suite, "testcase", classname=_clean(case["classname"]), name=_clean(case["name"]), time="%.3f" % case["seconds"]
            )
            text = _clean(case["text"])
            if case["status"] == "failed":
                ElementTree.SubElement(element, "failure", message=" ".join(text.split())[:1000]).text = text
            elif case["status"] == "not_run":
                ElementTree.SubElement(element, "skipped", message=" ".join(text.split())[:1000])
    return '<?xml version="1.0" encoding="utf-8"?>\n%s\n' % ElementTree.tostring(root, encoding="unicode")


def _clean(text: Any) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))


def _case(classname: str, name: str, status: str, text: str = "", seconds: float = 0.0) -> dict[str, Any]:
    return {"classname": classname, "name": name, "status": status, "text": text, "seconds": seconds}


def _of_run(report: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the suite of the run itself, so that one that stopped before its checks does not look like one without faults."""
    run = report["run"]
    said = "; ".join(run["messages"]) or {"failed": "the run has failed"}.get(run["verdict"], "the run has not ended")
    passed = run["verdict"] == "passed"
    cases = [_case("run", run["playbook"] or "playbook", "passed" if passed else "failed", "" if passed else said, run["seconds"] or 0.0)]
    for failure in report["failures"]:
        name = " : ".join(part for part in (failure["role"], failure["task"]) if part) or "reachable"
        cases.append(_case("run.%s" % failure["host"], name, "failed", failure["message"]))
    cases += [_case("run", note, "failed", note) for note in report["notes"]]
    return "run", cases


def _of_checks(records: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return a suite for each host."""
    hosts: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        status = "failed" if has_failed(record) else record["status"]
        text = sentence(record) if status == "failed" else record["reason"] or "no reason given"
        classname = "%(component)s.%(level)s" % record
        hosts.setdefault(record["host"], []).append(_case(classname, record["check"], status, text, float(record["seconds"] or 0)))
    return [("checks of %s" % host, cases) for host, cases in sorted(hosts.items())]


def _of_collectives(job: str, document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return a suite for each collective and data type of a job, and one for what concerns the whole job."""
    on = "%s nodes of %s" % (document.get("nodes") or "?", document.get("instance_type") or "CPUs")
    tables = document.get("tables") or []
    told = {"%s: %s" % (table["collective"] or "collective unknown", text) for table in tables for text in table["reasons"]}
    suites = []
    for table in tables:
        skipped = "" if table["verdict"] != "not_run" else "stand-ins printed it: %s" % ", ".join(document.get("stand_ins") or ["unknown"])
        of_rows = {text for row in table["rows"] for text in row.get("reasons") or []}
        rest = [text for text in table["reasons"] if text not in of_rows]
        for kind in dict.fromkeys(row["type"] for row in table["rows"]) or [""]:
            cases = [_judged(job, "whole test", rest, skipped)]
            for row in table["rows"]:
                if row["type"] == kind:
                    point = "%s %s" % (human_size(row["size"]), row["placement"].replace("_", "-"))
                    cases.append(_judged(job, point, row.get("reasons") or [], skipped))
            suites.append((" ".join(part for part in (_name(table), kind, "on", on) if part), cases))
    rest = [text for text in document.get("reasons") or [] if text not in told]
    verdict = document.get("rehearsed") or document.get("verdict")
    if rest or not tables:
        nothing = "" if verdict != "not_run" else "; ".join(rest) or "no reason given"
        suites.append((job, [_judged(job, "whole job", [] if nothing else rest or ["the job has no verdict"], nothing)]))
    return suites


def _of_baseline(found: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the suite of what module nccl_baseline found: a case for each comparison, and one for the whole."""
    compared = found.get("compared") or []
    told = {text for one in compared for text in one["said"]}
    cases = [_case("baseline", one["label"], "failed" if one["failed"] else "passed", "; ".join(one["said"])) for one in compared]
    rest = [text for text in found.get("reasons") or [] if text not in told]
    remarks = [text for text in found.get("remarks") or [] if text not in told]
    verdict = found.get("verdict")
    if verdict not in ("recorded", "passed", "not_run"):
        cases.append(_case("baseline", "whole", "failed", "; ".join(rest or told) or "the baseline has no verdict"))
    else:
        cases.append(
            _case("baseline", "whole", "not_run" if verdict == "not_run" else "passed", "; ".join(remarks) or "nothing was compared")
        )
    return "baseline", cases


def _judged(job: str, name: str, reasons: list[str], skipped: str) -> dict[str, Any]:
    status = "failed" if reasons else "not_run" if skipped else "passed"
    return _case("collectives.%s" % job, name, status, "; ".join(reasons) or skipped)
