# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep: one run of a recipe for each combination of values, and one table of what came of them."""

from __future__ import annotations

import csv
import io
import itertools

from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError

MOST = 64
COLUMNS = ("job", "verdict", "first_loss", "last_loss", "samples_per_s", "tokens_per_s", "mfu", "reason")


def points(sweep, asked=None):
    """[{label, values, asked}], one for each combination; asked is a muster_workload with its flags and an end of the job's name.

    sweep: {flag: [values]}; a flag that ends with = is one word with its value. asked: the user's muster_workload. Raises JobError.
    """
    asked = asked or {}
    if not isinstance(sweep, dict) or not sweep:
        raise JobError("muster_sweep must have a flag of the framework with a list of values, such as {--lr: [1e-4, 3e-4]}.")
    for flag, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise JobError("muster_sweep.%s must be a list of values, such as [1e-4, 3e-4]." % flag)
        if len(set(map(str, values))) < len(values):
            raise JobError("muster_sweep.%s has a value twice; remove one." % flag)
        if str(flag).rstrip("=") in [str(word).partition("=")[0] for word in asked.get("args", [])]:
            raise JobError("%s is in muster_sweep and in muster_workload.args; remove it from one of them." % str(flag).rstrip("="))
    found = list(itertools.product(*sweep.values()))
    if len(found) > MOST:
        raise JobError("muster_sweep has %d combinations, and %d can run at once; give fewer values." % (len(found), MOST))
    out = []
    for number, values in enumerate(found, 1):
        named = {str(flag).lstrip("-").rstrip("="): value for flag, value in zip(sweep, values)}
        args = [
            word for flag, value in zip(map(str, sweep), values) for word in ([flag + str(value)] if flag[-1] == "=" else [flag, value])
        ]
        more = {"args": [*asked.get("args", []), *args], "suffix": "%s-%d" % (asked.get("suffix", ""), number)}
        label = ", ".join("%s %s" % pair for pair in named.items())
        out.append({"label": label, "values": named, "asked": {**asked, **more}})
    return out


def row(point, job, result, reason=""):
    """What the table says of a point. result: its muster.workload/1, {} when it has none."""
    end = {name: (result.get(name) or {}).get("loss") for name in ("first", "last")}
    return {
        **point["values"],
        "job": job,
        "verdict": result.get("verdict", "failed"),
        "first_loss": end["first"],
        "last_loss": end["last"],
        **{name: result.get(name) for name in ("samples_per_s", "tokens_per_s", "mfu")},
        "reason": result.get("reason") or " ".join(reason.split()),
    }


def table(rows):
    """{csv, lines, failed}: the rows as CSV and for people, the lowest last loss first, and the jobs that failed."""
    names = [name for name in rows[0] if name not in COLUMNS]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names, *COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    good = sorted((each for each in rows if each["verdict"] == "passed"), key=lambda each: each["last_loss"])
    bad = [each for each in rows if each["verdict"] != "passed"]
    lines = []
    for each in (*good, *bad):
        values = ", ".join("%s %s" % (name, each[name]) for name in names)
        rate = " at %.1f tokens/s" % each["tokens_per_s"] if each["tokens_per_s"] is not None else ""
        ended = "loss %g to %g%s" % (each["first_loss"], each["last_loss"], rate) if each in good else "failed: " + each["reason"]
        lines.append("%s: %s (%s)" % (values, ended, each["job"]))
    return {"csv": text.getvalue(), "lines": lines, "failed": [each["job"] for each in bad]}
