# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Asks the fleet's Prometheus on this host: its targets, its rules, a query, or series over time for the report of a run.

`discover` brings the targets in line with Slurm's nodes, which Prometheus knows from muster-exporter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.parse

sys.path.insert(0, "/usr/lib/muster")
import muster_discovery
import muster_endpoint

SECRETS = "/etc/prometheus/muster"
DISCOVERY = SECRETS + "/discovery.json"
PATIENCE = 30  # seconds for the first scrape of a Prometheus that has just started
ADDRESS = "https://127.0.0.1:9090/api/v1/"


class Failed(Exception):
    """What was asked is not so; the text is one sentence for the user."""


def ask(path, **query):
    """The data of an answer of Prometheus."""
    text = muster_endpoint.fetch(ADDRESS + path + ("?" + urllib.parse.urlencode(query) if query else ""), SECRETS)
    answer = json.loads(text)
    if answer.get("status") != "success":
        raise Failed("Prometheus refuses %s: %s" % (path, answer.get("error")))
    return answer["data"]


def targets(expected, found):
    """A sentence about the targets, or Failed with those that are not up."""
    active = found["activeTargets"]
    named = [
        "%s of %s (%s)" % (each["labels"]["job"], each["labels"].get("instance"), each["lastError"] or each["health"])
        for each in active
        if each["health"] != "up"
    ]
    if named:
        raise Failed("%d of %d targets are not up: %s." % (len(named), len(active), "; ".join(named[:5])))
    if len(active) != expected:
        raise Failed("Prometheus has %d targets, and its files have %d." % (len(active), expected))
    return "all %d targets are up" % len(active)


def rules(found):
    """A sentence about the rules, or Failed with those that cannot be evaluated."""
    have = [rule for group in found["groups"] for rule in group["rules"]]
    named = ["%s (%s)" % (rule["name"], rule.get("lastError") or rule["health"]) for rule in have if rule["health"] != "ok"]
    if named or not have:
        raise Failed("%d of %d rules are not evaluated: %s." % (len(named), len(have), "; ".join(named[:5])))
    return "all %d rules are evaluated" % len(have)


def ranges(asked):
    """What the report draws: the charts, each with series: [{labels, legend, points}] instead of its queries.

    asked: {start, end, step, charts: [{..., queries: [{expr, legend}]}]}.
    """
    out = []
    for chart in asked["charts"]:
        series = []
        for query in chart.pop("queries"):
            found = ask("query_range", query=query["expr"], start=asked["start"], end=asked["end"], step=asked["step"])
            for each in found["result"]:
                points = [[when, float(value)] for when, value in each["values"]]
                series.append({"labels": each["metric"], "legend": query["legend"], "points": points})
        out.append({**chart, "series": series})
    return out


def discovery():
    """The settings of the discovery of Slurm's nodes."""
    with open(DISCOVERY, encoding="utf-8") as file:
        return json.load(file)


def discover(settings, patience=PATIENCE, pause=3):
    """Bring the targets in line with Slurm's nodes; a sentence. Nothing changes when there is no good list of them in time."""
    end = time.monotonic() + patience
    while True:
        try:
            return muster_discovery.follow(settings, ask("query", query=muster_discovery.query(settings))["result"], time.time())
        except (Failed, OSError, ValueError):
            muster_discovery.start(settings)
            if time.monotonic() >= end:
                raise
        time.sleep(pause)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="what", required=True)
    kind = kinds.add_parser("targets", help="whether all targets are up")
    kind.add_argument("--expected", type=int, required=True, help="how many targets there are beside those of Slurm's nodes")
    kind.add_argument("--discovered", action="store_true", help="add the targets of Slurm's nodes")
    kinds.add_parser("discover", help="bring the targets in line with Slurm's nodes")
    kind = kinds.add_parser("discovered", help="whether the targets follow Slurm's nodes")
    kind.add_argument("--within", type=int, required=True, metavar="SECONDS", help="how old the list may be")
    kinds.add_parser("rules", help="whether all rules are evaluated")
    kinds.add_parser("query", help="the result of an expression").add_argument("expression")
    kinds.add_parser("ranges", help="series over time, asked for by JSON on stdin")
    given = parser.parse_args()
    try:
        if given.what == "targets":
            more = muster_discovery.count(discovery()) if given.discovered else 0
            said = targets(given.expected + more, ask("targets", state="active"))
        elif given.what == "discover":
            said = discover(discovery())
        elif given.what == "discovered":
            said = muster_discovery.current(discovery(), given.within, time.time(), os.stat(DISCOVERY).st_mtime)
        elif given.what == "rules":
            said = rules(ask("rules"))
        elif given.what == "query":
            said = json.dumps(ask("query", query=given.expression)["result"])
        else:
            said = json.dumps(ranges(json.load(sys.stdin)))
    except (Failed, OSError, ValueError, muster_endpoint.EndpointError) as error:
        print(error, file=sys.stderr)
        return 1
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
