# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judge the tables of nccl-tests: `judge(tables, expect)` gives the document `muster.nccl_results/1`:

    {"schema", "verdict": "passed"|"failed", "reasons": [str], "tables": [table]}
    table: that of nccl_results.py + "verdict", "reasons"

The average line of a table is not judged: it is the mean over all rows, so it changes with the smallest size of the sweep.
"""

from __future__ import annotations

from typing import Any, Optional

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import ONCE, TWICE, ResultsError, human_size

SCHEMA = "muster.nccl_results/1"
# These round the count per rank down to 16 bytes, so the printed size may be up to 16 n below the one asked for, or 0.
_ROUNDED = (*ONCE, "alltoallv", "hypercube")


def judge(tables: list[dict[str, Any]], expect: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """Return the document with a verdict on each of TABLES.

    EXPECT (all optional): collective, hosts [names], ranks, min_bytes, max_bytes, step_factor,
    floors [{min_size, busbw (GB/s), placement?, collective?}].
    """
    expect = expect or {}
    judged = []
    for table in tables:
        reasons = [reason for check in _CHECKS for reason in check(table, expect)]
        judged.append({**table, "verdict": "failed" if reasons else "passed", "reasons": reasons})
    reasons = ["%s: %s" % (table["collective"] or "collective unknown", reason) for table in judged for reason in table["reasons"]]
    return {"schema": SCHEMA, "verdict": "failed" if reasons else "passed", "reasons": reasons, "tables": judged}


def refused(error: ResultsError) -> dict[str, Any]:
    """Return the document of an output that has no table."""
    return {"schema": SCHEMA, "verdict": "failed", "reasons": [str(error)], "tables": []}


def _whole(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    reasons = list(table["problems"])
    wanted = expect.get("collective")
    if table["collective"] is None:
        known = table["program"] and "Muster does not know the collective %s" % table["program"]
        reasons.append("%s: name it by `collective`" % (known or "the output does not name its collective"))
    elif wanted and wanted != table["collective"]:
        reasons.append("the output is not of the collective %s" % wanted)
    if not table["concluded"]:
        reasons.append("the output is incomplete: it has no concluding line (`# Out of bounds values`), so the test did not end")
    for damaged in table["damaged"]:
        reasons.append("line %(line)d is damaged (%(reason)s): %(text)s" % damaged)
    return reasons


def _correct(table: dict[str, Any], _expect: dict[str, Any]) -> list[str]:
    reasons = []
    for row in table["rows"]:
        if row["wrong"]:
            reasons.append("%d wrong values at %s %s" % (row["wrong"], human_size(row["size"]), row["placement"].replace("_", "-")))
    if table["out_of_bounds"] and not reasons:
        reasons.append("%d values are out of bounds" % table["out_of_bounds"])
    sides = {side: [row for row in table["rows"] if row["placement"] == side] for side in ("out_of_place", "in_place")}
    for side, rows in sides.items():
        # Old versions print an `error` per row, and only the concluding line says whether it is within bounds. Older
        # versions of alltoall_perf do not check their in-place half.
        old = any(row.get("error") is not None for row in rows) and table["out_of_bounds"] is not None
        excused = side == "in_place" and table["collective"] == "alltoall" and all(r["wrong"] is not None for r in sides["out_of_place"])
        if not old and not excused and any(row["wrong"] is None for row in rows):
            reasons.append("the %s results were not checked (#wrong is N/A): run the test with -c 1" % side.replace("_", "-"))
    return reasons


def requested_sizes(requested: dict[str, Any]) -> list[int]:
    """Return the sizes of a sweep {min_bytes, max_bytes, step, step_kind}; a step that does not grow gives the first size alone."""
    sizes, size = [], requested["min_bytes"]
    while size <= requested["max_bytes"]:
        sizes.append(size)
        following = size * requested["step"] if requested["step_kind"] == "factor" else size + requested["step"]
        if following <= size:
            break
        size = following
    return sizes


def _complete(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    requested = dict(table["requested"] or {"step": 2, "step_kind": "factor"})
    for key in ("min_bytes", "max_bytes"):
        if expect.get(key) is not None:
            requested[key] = expect[key]
    if expect.get("step_factor") is not None:
        requested.update(step=expect["step_factor"], step_kind="factor")
    if "min_bytes" not in requested or "max_bytes" not in requested:
        return ["the output does not say which sizes were asked for: give min_bytes and max_bytes"]
    ranks = expect.get("ranks") or table["ranks"] or table["ranks_proven"] or 1
    slack = 16 * ranks if table["collective"] in _ROUNDED else 8
    blocks: dict[tuple[Any, ...], list[int]] = {}
    for row in table["rows"]:
        blocks.setdefault((row["type"], row["redop"], row["root"], row["placement"]), []).append(row["size"])
    missing = {size for found in list(blocks.values()) or [[]] for size in _not_found(requested_sizes(requested), sorted(found), slack)}
    if not missing:
        return []
    names = [human_size(size) for size in sorted(missing)]
    shown = ", ".join(names[:6]) + (" and %d more" % (len(names) - 6) if len(names) > 6 else "")
    reduced = table["reduced_max_bytes"]
    why = " (the test reduced its largest size to %s for want of memory)" % human_size(reduced) if reduced else ""
    return ["not measured: %s%s" % (shown, why)]


def _not_found(wanted: list[int], found: list[int], slack: int) -> list[int]:
    """Return the sizes of WANTED that have no row in the sorted FOUND; a row counts for one size, which is at most SLACK above it."""
    left, missing = list(found), []
    for size in wanted:
        row = next((candidate for candidate in left if size - slack < candidate <= size), None)
        if row is None:
            missing.append(size)
        else:
            left.remove(row)
    return missing


def _ranks(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    """Refuse a rank count that is not proven, because ranks that never communicated print tables too."""
    listed, wanted = table["ranks"], expect.get("ranks") or table["ranks"]
    low, high = table["ranks_between"]
    reasons = []
    if listed is not None and listed != wanted:
        reasons.append("%s expected, the output lists %d" % (_count(wanted, "rank"), listed))
    if table["collective"] not in TWICE + ONCE:
        # The ratio of these collectives is always 1, so only the list of ranks tells the number.
        return reasons if listed is not None else ["the rank count is not proven: the output lists no ranks"]
    if high is not None and low > high:
        return [*reasons, "the rank count is not proven: the rows' busbw/algbw contradict each other"]
    if wanted is None and low != high:
        return ["the rank count is not proven: the output lists no ranks, so give expect_ranks"]
    wanted = wanted or low
    if wanted < low or (high is not None and wanted > high):
        span = "%d" % low if low == high else "at least %d" % low if high is None else "%d to %d" % (low, high)
        return [*reasons, "%s expected, but busbw/algbw proves %s: the ranks did not run as one job" % (_count(wanted, "rank"), span)]
    # When ranks split into separate jobs of equal size, each has at most half of the ranks; excluding that half is proof enough.
    if wanted > 1 and 2 * low <= wanted:
        reasons.append("the rank count %d is not proven: the bandwidths are too small or too coarse, so raise max_bytes" % wanted)
    return reasons


def _hosts(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    # nccl-tests prints host names up to the first dot.
    seen = {host.split(".")[0].lower() for host in table["hosts"]}
    missing = [host for host in expect.get("hosts") or [] if host.split(".")[0].lower() not in seen]
    return ["no rank ran on %s" % ", ".join(missing)] if missing else []


def _fast(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    reasons = []
    for floor in expect.get("floors") or []:
        if floor.get("collective") not in (None, table["collective"]):
            continue
        sides = [floor["placement"]] if floor.get("placement") else ["out_of_place", "in_place"]
        rows = [row for row in table["rows"] if row["size"] >= floor["min_size"] and row["placement"] in sides]
        if not rows:
            reasons.append("not measured: %s and above, where the floor is %g GB/s" % (human_size(floor["min_size"]), floor["busbw"]))
        elif table["cpu_time"]:
            reasons.append("the times are the CPU's (-C), which no floor can judge: run the test without -C")
        for row in rows:
            if row["busbw"] < floor["busbw"]:
                where = "%s %s" % (human_size(row["size"]), row["placement"].replace("_", "-"))
                reasons.append("busbw %g GB/s at %s is below the floor of %g GB/s" % (row["busbw"], where, floor["busbw"]))
    return reasons


_CHECKS = (_whole, _correct, _complete, _ranks, _hosts, _fast)


def _count(number: int, noun: str) -> str:
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")
