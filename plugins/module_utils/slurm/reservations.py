# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reservations as `scontrol -o show reservation` prints them (SLURM_TIME_FORMAT=%s), and the commands that change them."""

from __future__ import annotations

import re
import time

from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm
from ansible_collections.muster.fleet.plugins.module_utils.slurm.accounting import minutes, plain

LISTS = ("users", "accounts", "groups", "licenses", "features", "flags")


def reservations(text):
    """{name: {key in lower case: text}}; what Slurm prints as (null) is empty."""
    found = {}
    for line in text.splitlines():
        pairs = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if "ReservationName" in pairs:
            found[pairs["ReservationName"]] = {key.lower(): "" if value == "(null)" else value for key, value in pairs.items()}
    return found


def epoch(text):
    """2027-01-10T08:00 in the node's time zone -> seconds; None for a time that Slurm computes, such as now+1hour."""
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            return int(time.mktime(time.strptime(text, form)))
        except ValueError:
            continue
    return None


def end(params):
    """When the reservation ends, in seconds; None when its times are not absolute."""
    low = {key.lower(): plain(value) for key, value in params.items()}
    if low.get("endtime"):
        return epoch(low["endtime"])
    start, length = epoch(low.get("starttime", "")), minutes(low.get("duration", ""))
    return start + int(length) if start and length.isdigit() else None


def same(key, want, have):
    """Whether a wanted value equals the present one. A value that only Slurm can compute counts as equal."""
    name = key.lower()
    if name in ("starttime", "endtime"):
        seconds = epoch(want)
        return seconds is None or str(seconds) == have
    if name == "duration":
        return minutes(want) == minutes(have)
    if name == "nodes":
        return want.upper() == "ALL" or set(slurm.expand(want)) == set(slurm.expand(have))
    if name in LISTS:
        wanted, there = ({part.strip().lower() for part in text.split(",") if part.strip()} for text in (want, have))
        # Slurm adds flags of its own.
        return wanted <= there if name == "flags" else wanted == there
    return want.lower() == have.lower()


def plan(wanted, have, now):
    """(commands, notes): what to run, and a sentence for each reservation that is over and therefore not created."""
    commands, notes = [], []
    for each in wanted:
        name, params = each["name"], {key: plain(value) for key, value in (each.get("params") or {}).items()}
        there = have.get(name)
        if there is None:
            over = end(params)
            if over is not None and over <= now:
                notes.append(
                    "The reservation %s is over since %s and is not made." % (name, time.strftime("%Y-%m-%d %H:%M", time.localtime(over)))
                )
            else:
                sets = ["%s=%s" % item for item in params.items()]
                commands.append(["scontrol", "create", "reservation", "ReservationName=" + name] + sets)
            continue
        # A reservation that has begun keeps its start.
        sets = [
            "%s=%s" % (key, value)
            for key, value in params.items()
            if not same(key, value, there.get(key.lower(), "")) and not (key.lower() == "starttime" and there.get("state") == "ACTIVE")
        ]
        if sets:
            commands.append(["scontrol", "update", "reservation", "ReservationName=" + name] + sets)
    return commands, notes


def refusal(text):
    """The error of scontrol as one sentence."""
    return re.sub(r"\s+", " ", text).strip().rstrip(".")
