# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judge the tables of nccl-tests: `judge(tables, expect)` gives the document `muster.nccl_results/1`:

    {"schema", "verdict": "passed"|"failed"|"not_run", "reasons": [str], "remarks": [str], "failed_hosts": [str], "tables": [table],
     "instance_type": str|None, "nodes": int|None}
    table: that of nccl_results.py + "verdict", "reasons", "remarks", "floors", "ceiling" (nccl_bounds.py); each row + "reasons"

A reason fails the run, a remark does not. The reasons of a row are those of its table that are about this row.
failed_hosts: those whose processes reported a failure.
When stand-ins of a rehearsal printed the output, the verdicts are not_run, "rehearsed" has what they would have been, and "stand_ins" names
the stand-ins.

The average line of a table is not judged: it is the mean over all rows, so it changes with the smallest size of the sweep.
"""

from __future__ import annotations

from typing import Any, Optional

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_bounds import ASKED, bounds
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import ONCE, ResultsError, human_size

SCHEMA = "muster.nccl_results/1"
# These round the count per rank down to 16 bytes, so the printed size may be up to 16 n below the one asked for, or 0.
_ROUNDED = (*ONCE, "alltoallv", "hypercube")


def judge(tables: list[dict[str, Any]], expect: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """Return the document with a verdict on each of TABLES.

    EXPECT (all optional): collective, datatype, hosts [names], ranks, min_bytes, max_bytes, step_factor, and what nccl_bounds.py reads:
    floors [{min_size, busbw (GB/s), placement?, collective?}], instance_type, nodes, fail_below, warn_below.
    listed: the list of ranks is enough where the bandwidths are too small to prove their number, as those of a slow pair.
    """
    expect = expect or {}
    judged = []
    for table in tables:
        bound = bounds(table, expect)
        rows = [{**row, "reasons": []} for row in table["rows"]]
        bounded = {**table, "rows": rows, "floors": bound["floors"], "ceiling": bound["ceiling"]}
        reasons = [reason for check in _CHECKS for reason in check(bounded, expect)]
        remarks = bound["remarks"] + _nearly_slow(bounded)
        judged.append({**bounded, "verdict": "failed" if reasons else "passed", "reasons": reasons, "remarks": remarks})
    reasons = _singletons(tables) + _named(judged, "reasons")
    return {
        "schema": SCHEMA,
        "verdict": "failed" if reasons else "passed",
        "reasons": reasons,
        "remarks": _named(judged, "remarks"),
        "failed_hosts": list(dict.fromkeys(host for table in tables for host in table["failed_hosts"])),
        "tables": judged,
        **_fleet(expect),
    }


def _fleet(expect: dict[str, Any]) -> dict[str, Any]:
    return {"instance_type": expect.get("instance_type"), "nodes": expect.get("nodes")}


def rehearsed(document: dict[str, Any], stand_ins: list[str]) -> dict[str, Any]:
    """Return DOCUMENT as one of a rehearsal, when STAND_INS (names) printed what it judges."""
    if not stand_ins:
        return document
    would = document["verdict"]
    tables = [{**table, "verdict": "not_run", "rehearsed": table["verdict"]} for table in document["tables"]]
    return {**document, "verdict": "not_run", "rehearsed": would, "stand_ins": stand_ins, "tables": tables}


def inspected(document: dict[str, Any], inspector: dict[str, Any], warn_below: float = 0.95) -> dict[str, Any]:
    """Return DOCUMENT with the document of nccl_inspector.py as "inspector". It changes no verdict.

    Its largest size is a remark of the table of its collective. A rank below WARN_BELOW of the median is a remark of the document as well.
    """
    if not inspector:
        return document
    remarks, tables = list(document["remarks"]), []
    for table in document["tables"]:
        rows = [row for row in inspector["rows"] if row["collective"] == table["collective"]]
        said = []
        if rows:
            row = max(rows, key=lambda each: each["size"])
            slow = row["slowest"]
            text = "NCCL's inspector: busbw %g GB/s at %s, the median of %s on %d ranks; the slowest is rank %d on %s with %g GB/s"
            text %= (
                row["busbw"],
                human_size(row["size"]),
                _count(row["calls"], "call"),
                row["ranks"],
                slow["rank"],
                slow["host"],
                slow["busbw"],
            )
            said.append(text)
            if slow["busbw"] < warn_below * row["busbw"]:
                remarks.append("%s: %s" % (table["collective"], text))
        tables.append({**table, "remarks": table["remarks"] + said})
    if inspector["status"] == "not_run":
        remarks.append("NCCL's inspector did not run: %s" % inspector["reason"])
    return {**document, "remarks": remarks, "tables": tables, "inspector": inspector}


def _named(tables: list[dict[str, Any]], key: str) -> list[str]:
    """Return the sentences of all TABLES, each once, with the collective before it."""
    return list(dict.fromkeys("%s: %s" % (table["collective"] or "collective unknown", text) for table in tables for text in table[key]))


def refused(error: ResultsError, expect: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """Return the document of an output that has no table."""
    reasons = [str(error)]
    if error.hosts:
        reasons += _hosts({"hosts": error.hosts}, expect or {})
    return {
        "schema": SCHEMA,
        "verdict": "failed",
        "reasons": reasons,
        "remarks": [],
        "failed_hosts": error.failed_hosts,
        "tables": [],
        **_fleet(expect or {}),
    }


def _whole(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    reasons = list(table["problems"])
    wanted = expect.get("collective")
    if table["collective"] is None:
        known = table["program"] and "Muster does not know the collective %s" % table["program"]
        reasons.append("%s: name it by `collective`" % (known or "the output does not name its collective"))
    elif wanted and wanted != table["collective"]:
        reasons.append("the output is not of the collective %s" % wanted)
    # nccl-tests measures float when it does not know a type.
    strange = sorted({row["type"] for row in table["rows"]} - {expect.get("datatype")})
    if expect.get("datatype") and strange:
        reasons.append("the output has data type %s, and the job asked for %s" % (", ".join(strange), expect["datatype"]))
    if not table["concluded"]:
        reasons.append("the output is incomplete: it has no concluding line (`# Out of bounds values`), so the test did not end")
    for damaged in table["damaged"]:
        reasons.append("line %(line)d is damaged (%(reason)s): %(text)s" % damaged)
    return reasons


def _of_row(row: dict[str, Any], text: str) -> str:
    """Return TEXT, and keep it with the ROW that it is about."""
    row["reasons"].append(text)
    return text


def _crossed(table: dict[str, Any], _expect: dict[str, Any]) -> list[str]:
    if (table["ranks"] or table["ranks_proven"]) == 1:
        return ["one rank: nothing crossed a wire"]
    return []


def _singletons(tables: list[dict[str, Any]]) -> list[str]:
    """Return a reason for processes that each ran a test of their own: as many tables as processes, or rank 0 listed for each."""
    alone: dict[Any, int] = {}
    for table in tables:
        if (table["ranks"] or table["ranks_proven"]) == 1:
            alone[table["collective"]] = alone.get(table["collective"], 0) + table["copies"]
    most = max(alone.values(), default=0)
    if most < 2:
        return []
    remedy = "MPI was not used: build nccl-tests with MPI=1, and start it by a launcher that its MPI knows, such as srun --mpi=pmix"
    return ["%d processes ran alone, each as the only rank of its own test. %s" % (most, remedy)]


def _correct(table: dict[str, Any], _expect: dict[str, Any]) -> list[str]:
    reasons = []
    for row in table["rows"]:
        if row["wrong"] and not _unchecked(table, row["placement"]):
            text = "%d wrong values at %s %s" % (row["wrong"], human_size(row["size"]), row["placement"].replace("_", "-"))
            reasons.append(_of_row(row, text))
    if table["out_of_bounds"] and not reasons:
        reasons.append("%d values are out of bounds" % table["out_of_bounds"])
    sides = {side: [row for row in table["rows"] if row["placement"] == side] for side in ("out_of_place", "in_place")}
    for side, rows in sides.items():
        # Old versions print an `error` per row, and only the concluding line says whether it is within bounds.
        old = any(row.get("error") is not None for row in rows) and table["out_of_bounds"] is not None
        excused = _unchecked(table, side) and all(row["wrong"] is not None for row in sides["out_of_place"])
        if not old and not excused and any(row["wrong"] is None for row in rows):
            reasons.append("the %s results were not checked (#wrong is N/A): run the test with -c 1" % side.replace("_", "-"))
    return reasons


def _unchecked(table: dict[str, Any], side: str) -> bool:
    """Return whether nccl-tests itself does not check SIDE. 2.13.0 prints a number there that it does not count, later versions N/A."""
    return side == "in_place" and table["collective"] in ("alltoall", "alltoallv", "sendrecv") and not table["out_of_bounds"]


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
    if table["ranks_missing"]:
        reasons.append("the list of ranks is cut: it lacks %s" % ", ".join("rank %d" % rank for rank in table["ranks_missing"][:6]))
    if listed is not None and listed != wanted:
        reasons.append("%s expected, the output lists %d" % (_count(wanted, "rank"), listed))
    if not table["ratio_tells_ranks"]:
        # busbw and algbw are always equal here, so only the list of ranks tells the number.
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
    if wanted > 1 and 2 * low <= wanted and not (expect.get("listed") and listed == wanted):
        reasons.append("the rank count %d is not proven: the bandwidths are too small or too coarse, so raise max_bytes" % wanted)
    return reasons


def _hosts(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    # nccl-tests prints host names up to the first dot.
    seen = {host.split(".")[0].lower() for host in table["hosts"]}
    missing = [host for host in expect.get("hosts") or [] if host.split(".")[0].lower() not in seen]
    return ["no rank ran on %s" % ", ".join(missing)] if missing else []


def _judged_by(table: dict[str, Any], floor: dict[str, Any]) -> list[dict[str, Any]]:
    sides = [floor["placement"]] if floor["placement"] else ["out_of_place", "in_place"]
    return [
        row
        for row in table["rows"]
        if row["placement"] in sides and floor["min_size"] <= row["size"] and (floor["below"] is None or row["size"] < floor["below"])
    ]


def _measured(row: dict[str, Any]) -> str:
    return "busbw %g GB/s at %s %s" % (row["busbw"], human_size(row["size"]), row["placement"].replace("_", "-"))


def _fast(table: dict[str, Any], _expect: dict[str, Any]) -> list[str]:
    floors = [floor for floor in table["floors"] if floor["floor"] is not None]
    if (floors or table["ceiling"]) and table["cpu_time"]:
        return ["the times are the CPU's (-C), which no floor can judge: run the test without -C"]
    reasons = []
    unmet = [floor for floor in floors if not _judged_by(table, floor)]
    asked = [floor for floor in unmet if floor["source"] == ASKED]
    # Of the catalogue's floors, which stand for one size after the other, a sweep need meet only one.
    for floor in asked or (unmet[:1] if unmet == floors else []):
        reasons.append("not measured: %s and above, where the floor is %g GB/s" % (human_size(floor["min_size"]), floor["floor"]))
    for floor in floors:
        for row in _judged_by(table, floor):
            if row["busbw"] < floor["floor"]:
                source = "" if floor["source"] == ASKED else " (%s)" % floor["source"]
                reasons.append(_of_row(row, "%s is below the floor of %g GB/s%s" % (_measured(row), floor["floor"], source)))
    for row in table["rows"]:
        if table["ceiling"] and row["busbw"] > table["ceiling"]:
            text = "%s is above the ceiling of %g GB/s: the wires carry less, so the data did not cross them"
            reasons.append(_of_row(row, text % (_measured(row), table["ceiling"])))
    return reasons


def _nearly_slow(table: dict[str, Any]) -> list[str]:
    """Return a remark for each row that no floor fails but that is slower than its reference."""
    return [
        "%s is below %g GB/s (%s)" % (_measured(row), floor["warn"], floor["source"])
        for floor in table["floors"]
        if floor["warn"] is not None and not table["cpu_time"]
        for row in _judged_by(table, floor)
        if (floor["floor"] or 0) <= row["busbw"] < floor["warn"]
    ]


_CHECKS = (_whole, _crossed, _correct, _complete, _ranks, _hosts, _fast)


def _count(number: int, noun: str) -> str:
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")
