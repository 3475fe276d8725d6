# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs health checks and makes their records: the check record of docs/health.md with `severity` and `allowed`.

A check that could not look is not_run, and blocks its node like a failed one unless it is allowed by name. A check that looked at a
stand-in is not_run too; `rehearsed` has what it would have been.
"""

from __future__ import annotations

import signal
import time

from ansible_collections.muster.fleet.plugins.module_utils.health.lookat import CannotRun, NotHere
from ansible_collections.muster.fleet.plugins.module_utils.health.settings import CHECKS, DRAINING, SEVERITIES
from ansible_collections.muster.fleet.plugins.module_utils.node.check import STOOD_IN, has_failed

COMPONENT = "node_health"
# These compare with the last run, so a second look at once would hide what they found.
STATEFUL = ("efa_counters", "nvlink_errors", "stuck_processes")
# What may be wrong for a moment. These, and checks that could not look, drain only when two runs agree.
FLICKERING = (*STATEFUL, "gpu_throttle", "gpu_temperature", "gpu_strays", "clock", "memory_available", "mounts", "units")
STRIKES = 2
PAUSE = 1.0


class OutOfTime(Exception):
    """A check took longer than its limit."""


class limited:
    """Ends what runs inside after so many seconds with OutOfTime. Only the main thread gets signals."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def end(_number, _frame):
            raise OutOfTime

        self.former = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_error):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.former)


def look(check, node, seconds):
    """What one look gives: {status, found, expected, reason, severity, remedy, absent}."""
    node.looked = []
    try:
        with limited(seconds):
            got = check.run(node)
    except CannotRun as error:
        return not_run(str(error), absent=isinstance(error, NotHere))
    except OutOfTime:
        return not_run("it took longer than %g s" % seconds)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        # An answer that no recording has; that must not end the other checks, and not pass.
        return not_run("it could not read what it found (%s: %s)" % (type(error).__name__, error))
    status, reason = "failed" if got.faults else "passed", "; ".join(got.faults)
    return {
        **not_run(reason),
        "status": status,
        "found": got.found,
        "expected": got.expected,
        "severity": got.severity,
        "remedy": got.remedy,
    }


def not_run(reason, absent=False):
    return {"status": "not_run", "found": "", "expected": "", "reason": reason, "severity": "", "remedy": "", "absent": absent}


def record_of(check, node, want, seconds, clock=time.monotonic):
    """The record of one check."""
    start = clock()
    allowed = True
    off = want["off"].get(check.name)
    node.looked = []
    if off:
        seen = not_run("it is off until %s (%s)%s" % (off["until"], off["owner"], ": " + off["reason"] if off.get("reason") else ""))
    elif want["container"] and not check.container:
        seen = not_run("in a container it belongs to the host")
    else:
        seen = look(check, node, min(check.limit, seconds)) if seconds > 0 else not_run("no time was left for it")
        allowed = check.name in want["allow_not_run"] or seen["absent"]
    more: dict = {}
    if node.looked and seen["status"] != "not_run":
        more["rehearsed"] = seen["status"]
        seen["reason"] = STOOD_IN % (", ".join(node.looked), seen["status"]) + (": " + seen["reason"] if seen["reason"] else "")
        seen["status"] = "not_run"
    elif node.looked:
        more["stand_in"] = True
        seen["reason"] = "a stand-in (%s) cannot show it: %s" % (", ".join(node.looked), seen["reason"])
    override = want["severity"].get(check.name)
    return {
        "component": COMPONENT,
        "level": "node",
        "check": check.name,
        "status": seen["status"],
        "expected": seen["expected"],
        "found": seen["found"],
        "reason": seen["reason"],
        "remedy": seen["remedy"] or check.remedy,
        "seconds": round(clock() - start, 3),
        "severity": override["severity"] if override else seen["severity"] or check.severity,
        "allowed": allowed,
        **more,
    }


def blocks(record):
    """Whether a record says that something is wrong, or that nobody can know: then its severity counts."""
    if has_failed(record):
        return True
    return record["status"] == "not_run" and not (record["allowed"] or record.get("rehearsed") or record.get("stand_in"))


def wanted_checks(level, want, only=()):
    """The checks of a level that this node can have."""
    return [check for check in CHECKS if (check.name in only if only else level in check.levels) and check.when(want)]


def run_checks(level, node, *, only=(), seconds=None, pause=time.sleep, again=None):
    """The records of a level. again: makes a node that has asked nothing yet, for a second look at what is wrong."""
    want, clock = node.want, time.monotonic
    end = None if seconds is None else clock() + seconds

    def left():
        return 1e9 if end is None else end - clock()

    checks = wanted_checks(level, want, only)
    records = [record_of(check, node, want, left()) for check in checks]
    doubtful = [index for index, record in enumerate(records) if blocks(record) and record["check"] not in STATEFUL]
    if again and doubtful and left() > 2 * PAUSE:
        pause(PAUSE)
        fresh = again()
        for index in doubtful:
            second = record_of(checks[index], fresh, want, left())
            if left() > 0:
                records[index] = {**second, "seconds": round(records[index]["seconds"] + second["seconds"], 3)}
    return records


def confirmed(records, state):
    """The records for which a node is drained now. state: that of the node; it counts in how many runs a check was wrong."""
    before, strikes, out = state.get("strikes", {}), {}, []
    for record in records:
        if not blocks(record):
            continue
        strikes[record["check"]] = count = before.get(record["check"], 0) + 1
        doubt = record["check"] in FLICKERING or not has_failed(record)
        if record["severity"] in DRAINING and count >= (STRIKES if doubt else 1):
            out.append(record)
    state["strikes"] = strikes
    return sorted(out, key=lambda record: -SEVERITIES.index(record["severity"]))


def sentence(record):
    """One line: what is wrong, and what to do."""
    if has_failed(record):
        text = record["reason"] or "expected %s, found %s" % (record["expected"], record["found"])
    else:
        text = "could not run: %s" % record["reason"]
    return "%s: %s. %s" % (record["check"], text.rstrip("."), record["remedy"])
