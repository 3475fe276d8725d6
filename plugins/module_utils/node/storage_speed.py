# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast nodes write to the shared file system and read from it, all at once, beside the rate that somebody paid for.

A measurement is bounded in time and in bytes. It goes past the page cache (O_DIRECT), because a node's memory is no file system.
"""

from __future__ import annotations

import json

KINDS = ("write", "read")
JOBS = 4  # processes of fio on a node
MIB = 256  # of each process; they write it again and again
ROOM = 2  # times what is written must be free
GRACE = 60  # seconds for fio beside its run time


class SpeedError(Exception):
    """Nothing could be measured; the text is the reason."""


def command(fio, kind, folder, seconds):
    """The argv of fio for a kind of KINDS. The files of `write` are those that `read` reads."""
    options = {
        "name": "muster",
        "directory": folder,
        "rw": kind,
        "bs": "1M",
        "size": "%dM" % MIB,
        "numjobs": JOBS,
        "direct": 1,
        "ioengine": "psync",
        "fallocate": "none",
        "end_fsync": 1,
        "runtime": seconds,
        "time_based": 1,
        "group_reporting": 1,
        "output-format": "json",
    }
    return [fio, *("--%s=%s" % each for each in options.items())]


def lacks_room(free_bytes):
    """Why the file system has too little room, or an empty text."""
    need, free = ROOM * JOBS * MIB, free_bytes >> 20
    return "it has %d MiB free and the measurement asks for %d MiB" % (free, need) if free < need else ""


def rate(text, kind):
    """MB/s of fio's JSON (version 3 and later). SpeedError when it has no such value, or fio met an error."""
    try:
        # fio prints its warnings before the JSON.
        [job] = json.loads(text[text.index("{") :])["jobs"]
        error, value = job["error"], job[kind]["bw_bytes"] / 1e6
    except (ValueError, KeyError, TypeError):
        raise SpeedError("fio printed no result: %s" % (" ".join(text.split())[:200] or "nothing")) from None
    if error or value <= 0:
        raise SpeedError("fio ended with error %s after %g MB/s" % (error, value))
    return value


def verdicts(measured, rated, share):
    """A dictionary with value, expected and not_run for each kind, from what each host said: {host: {write, read, reason}}."""
    reasons = ["%s: %s" % (host, found["reason"]) for host, found in sorted(measured.items()) if found.get("reason")]
    floor = rated * share
    out = {}
    for kind in KINDS:
        total = sum(found.get(kind) or 0 for found in measured.values())
        slowest = min(measured, key=lambda host: measured[host].get(kind) or 0) if measured else ""
        text = "%.0f MB/s of all %d nodes" % (total, len(measured))
        if slowest and not reasons:
            text += ", the slowest is %s with %.0f MB/s" % (slowest, measured[slowest][kind])
        out[kind] = {
            "value": "enough: " + text if total >= floor else text,
            "expected": "at least %.0f MB/s, %g %% of the rated %g MB/s" % (floor, 100 * share, rated),
            "not_run": "; ".join(reasons) if reasons else "" if measured else "no node measured it",
        }
    return out
