# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The three outputs of muster-health: a line for Nagios and people, JSON, and a textfile for Prometheus' node_exporter."""

from __future__ import annotations

import json

from ansible_collections.muster.fleet.plugins.module_utils.health.run import blocks, sentence
from ansible_collections.muster.fleet.plugins.module_utils.health.settings import DRAINING
from ansible_collections.muster.fleet.plugins.module_utils.node.check import has_failed

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
SCHEMA = "muster.health_run/1"


def code(records, level):
    """Nagios' exit code. For Slurm's prolog any other code than 0 drains the node, so stand-ins that would have passed give 0 there."""
    wrong = [record for record in records if blocks(record)]
    if any(record["severity"] in DRAINING and has_failed(record) for record in wrong):
        return 2
    unknown = [record for record in wrong if not has_failed(record) and record["severity"] in DRAINING]
    if unknown:
        return 3
    if level == "prolog":
        return 0
    if not records:
        return 3
    if any(record["severity"] != "info" for record in wrong):
        return 1
    return 3 if any(record.get("rehearsed") or record.get("stand_in") for record in records) else 0


def counts(records):
    return {status: sum(record["status"] == status for record in records) for status in ("passed", "failed", "not_run")}


def nagios(records, level, notes=()):
    """The first line says it all; the others say it of each check that is wrong."""
    wrong = [record for record in records if blocks(record)]
    found = counts(records)
    if wrong:
        first = "; ".join("%s: %s" % (record["check"], record["reason"]) for record in wrong[:3]) + (", and more" if len(wrong) > 3 else "")
    elif not records:
        first = "no check of level %s applies to this node" % level
    else:
        first = "%(passed)d checks passed, %(not_run)d did not run" % found
        first += "; stand-ins of a rehearsal cannot pass" if any(record.get("rehearsed") for record in records) else ""
    seconds = sum(record["seconds"] for record in records)
    line = "MUSTER %s - %s | passed=%d failed=%d not_run=%d seconds=%.3fs" % (
        WORDS[code(records, level)],
        first.replace("|", "/"),
        found["passed"],
        found["failed"],
        found["not_run"],
        seconds,
    )
    return "\n".join([line, *("[%s] %s" % (record["severity"], sentence(record)) for record in wrong), *notes]) + "\n"


def as_json(records, level, host, now, notes=()):
    document = {
        "schema": SCHEMA,
        "host": host,
        "level": level,
        "at": round(now, 3),
        "verdict": WORDS[code(records, level)].lower(),
        "notes": list(notes),
        "checks": [{"host": host, **record} for record in records],
    }
    return json.dumps(document, indent=1) + "\n"


def label(text):
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def prometheus(records, level, now, alarm=None):
    """A file for the textfile collector. Times are seconds, as Prometheus asks."""
    lines = [
        "# HELP muster_health_check Whether a health check passed (1), failed (0) or could not say (-1).",
        "# TYPE muster_health_check gauge",
    ]
    value = {"passed": 1, "failed": 0, "not_run": -1}
    for record in records:
        status = 0 if has_failed(record) else value[record["status"]]
        lines.append('muster_health_check{check="%s",severity="%s"} %d' % (label(record["check"]), label(record["severity"]), status))
    lines += ["# HELP muster_health_check_seconds How long a health check took.", "# TYPE muster_health_check_seconds gauge"]
    lines += ['muster_health_check_seconds{check="%s"} %g' % (label(record["check"]), record["seconds"]) for record in records]
    lines += ["# HELP muster_health_run_timestamp_seconds When the checks ran.", "# TYPE muster_health_run_timestamp_seconds gauge"]
    lines.append('muster_health_run_timestamp_seconds{level="%s"} %.3f' % (level, now))
    if alarm:
        lines += ["# HELP muster_health_image_alarm Nodes of one image that fail the same check.", "# TYPE muster_health_image_alarm gauge"]
        lines.append('muster_health_image_alarm{check="%s",image="%s"} %d' % (label(alarm["check"]), label(alarm["image"]), alarm["nodes"]))
    return "\n".join(lines) + "\n"
