# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what nccl-tests prints, and judge it.

`parse(text)` gives one table per run of a collective; `judge(tables, expect)` gives the document `muster.nccl_results/1`:

    {"schema", "verdict": "passed"|"failed", "reasons": [str], "tables": [table]}
    table: {"program", "collective", "ranks", "ranks_proven", "ranks_between": [low, high|None], "hosts": [str],
            "rows": [row], "damaged": [{"line", "text", "reason"}], "problems": [str],
            "requested": {"min_bytes", "max_bytes", "step", "step_kind": "factor"|"bytes"} | None, "reduced_max_bytes",
            "cpu_time", "concluded", "average_busbw", "out_of_bounds", "verdict", "reasons"}
    row: {"size", "count", "type", "redop", "root", "placement": "out_of_place"|"in_place", "time_us", "algbw", "busbw",
          "wrong": int|None, + "error" (before 2.13), "i_min", "i_max", "i_p99", "i_cv" (-I)}

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s. The grammar is that of nccl-tests' src/util.cu (2.19) and, for the
`error` column, of the versions before its commit 51af557. The average line is recorded and never judged: it is the mean over every
row, so it moves with the sweep's start.
"""

from __future__ import annotations

import math
import re
from typing import Any, Optional

SCHEMA = "muster.nccl_results/1"

# busbw/algbw as a function of the rank count n; the others have the ratio 1, which proves nothing (PERFORMANCE.md of nccl-tests).
_TWICE = ("all_reduce",)
_ONCE = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
COLLECTIVES = (*_TWICE, *_ONCE, "alltoallv", "broadcast", "reduce", "sendrecv", "hypercube")
# These round the count per rank down to 16 bytes, so the printed size may be up to 16 n below the one asked for, or 0.
_ROUNDED = (*_ONCE, "alltoallv", "hypercube")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_STREAM = re.compile(r"^\s*(?:(\d+): |\[\d+,(\d+)\]<std\w+>:)")
_HEADER = re.compile(r"^(?P<prefix>.*?)#\s+(?P<columns>size\s+count\s+.*)$")
_VERSION = re.compile(r"#\s*nccl-tests version\b")
_START = re.compile(r"#\s*Collective test starting: (?:\S*/)?(\w+)")
_END = re.compile(r"#\s*Collective test concluded: (?:\S*/)?(\w+)")
_PARAMETERS = re.compile(r"#\s*nThread \d+ .*?minBytes (\d+) maxBytes (\d+) step: (\d+)\s*\((factor|bytes)\)")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\b")
_REDUCED = re.compile(r"#\s*Reducing maxBytes to (\d+)")
_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_PROBLEM = re.compile(r"(Test (?:CUDA|NCCL) failure .*|\bTest failure .*|Test timeout .*|#\s*error: .*|Invalid number of GPUs: .*)$")
_TIMESTAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_ROW = re.compile(r"\d+\s+\d+\s+(?:u?int(?:8|32|64)|int|char|half|float|double|bfloat16|(?:f8|fp8_)e(?:4m3|5m2))\b")
_COLUMN = {"#wrong": "wrong", "i_cv%": "i_cv", "time": "time_us", "cputime": "time_us"}
_MEASURES = ("time", "cputime")


class ResultsError(ValueError):
    """The text holds no result at all; the message is one sentence for the user."""


def parse(text: str, collective: Optional[str] = None) -> list[dict[str, Any]]:
    """Return the tables of TEXT in their order; COLLECTIVE names the one of a table that does not say.

    Lines of several processes that carry a task label (`srun -l`, Open MPI's --tag-output) are read apart, so ranks that ran as
    singletons show as several tables. Raises ResultsError where there is no table.
    """
    if not text.strip():
        raise ResultsError("The output of the collective test is empty: read the job's error output for what stopped it.")
    tables: list[dict[str, Any]] = []
    current: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = _ANSI.sub("", raw).rstrip()
        label = _STREAM.match(line)
        stream = (label.group(1) or label.group(2)) if label else ""
        problem = _PROBLEM.search(line)
        if problem:
            problems.append(_printable(problem.group(1).lstrip("# ")))
        table = current.get(stream)
        header = _HEADER.match(line)
        opens = header or _VERSION.search(line) or _START.search(line) or _PARAMETERS.search(line)
        if table is None or (opens and table["columns"]):
            if not opens:
                continue
            table = current[stream] = _table()
            tables.append(table)
        if header:
            table["columns"] = [name for name in header.group("columns").split() if name != "timestamp"]
            table["prefix_fields"] = len(header.group("prefix").split())
        elif not _read_comment(table, line) and table["columns"]:
            _read_row(table, number, line)
    tables = [table for table in tables if table["columns"]]
    if not tables:
        found = "; it says: " + problems[0] if problems else ""
        raise ResultsError("The output contains no table of nccl-tests%s: read the job's whole output for what stopped it." % found)
    return [_finished(table, collective, problems) for table in tables]


def _table() -> dict[str, Any]:
    return {
        "program": None, "devices": [], "rows": [], "damaged": [], "requested": None, "reduced_max_bytes": None, "columns": [],
        "prefix_fields": 0, "concluded": False, "average_busbw": None, "out_of_bounds": None,
    }  # fmt: skip


def _read_comment(table: dict[str, Any], line: str) -> bool:
    """Take what a `#` line says into TABLE; tell whether it was one."""
    if "#" not in line:
        return False
    if match := _START.search(line):
        table["program"] = match.group(1)
    elif match := _PARAMETERS.search(line):
        table["requested"] = {
            "min_bytes": int(match.group(1)),
            "max_bytes": int(match.group(2)),
            "step": int(match.group(3)),
            "step_kind": match.group(4),
        }
    elif match := _RANK.search(line):
        table["devices"].append((int(match.group(1)), match.group(2), match.group(3)))
    elif match := _REDUCED.search(line):
        table["reduced_max_bytes"] = int(match.group(1))
    elif match := _BOUNDS.search(line):
        table["out_of_bounds"] = int(match.group(1))
        table["concluded"] = True
    elif match := _AVERAGE.search(line):
        table["average_busbw"] = _number(match.group(1))
        table["concluded"] = True
    elif match := _END.search(line):
        table["program"] = match.group(1)
        table["concluded"] = True
    return not _ROW.search(line)


def _read_row(table: dict[str, Any], number: int, line: str) -> None:
    """Add the row of LINE to TABLE, or name it as damaged; lines of other origin (NCCL INFO) are passed over.

    Columns are counted from the right, since what a launcher writes before a row has any number of fields and may touch the size.
    """
    line = _TIMESTAMP.sub("", line)
    fields = line.split()
    own = fields[table["prefix_fields"] :]
    cut = own and all(field.isdigit() for field in own[:2]) and not table["concluded"]
    if not cut and not _ROW.search(line):
        return
    try:
        table["rows"].extend(_row(table["columns"], line, fields))
    except ValueError as error:
        table["damaged"].append({"line": number, "text": _printable(line.strip()), "reason": str(error)})


def _row(columns: list[str], line: str, fields: list[str]) -> list[dict[str, Any]]:
    """Return a row per placement; raise ValueError with the reason where LINE is not a whole row."""
    if len(_ROW.findall(line)) > 1:
        raise ValueError("two rows on one line")
    if len(fields) < len(columns):
        raise ValueError("%d fields where %d are expected" % (len(fields), len(columns)))
    values = fields[-len(columns) :]
    size = re.search(r"\d+$", values[0])
    if not size:
        raise ValueError("the size is not a number")
    first = next(index for index, name in enumerate(columns) if name in _MEASURES)
    keys = dict(zip(columns[:first], [size.group(), *values[1:first]]))
    if not re.match(r"[a-z]", keys.get("type", "")):
        raise ValueError("%s stands where the data type is expected" % keys.get("type"))
    try:
        base = {
            "size": int(keys["size"]),
            "count": int(keys["count"]),
            "type": keys["type"],
            "redop": keys.get("redop", "none"),
            "root": int(keys.get("root", -1)),
        }
    except ValueError as error:
        raise ValueError("a size, count or root is not a number") from error
    names, measured = columns[first:], values[first:]
    width = len(names) // 2
    sides = zip(("out_of_place", "in_place"), (names[:width], names[width:]), (measured[:width], measured[width:]))
    return [{**base, "placement": placement, **_measures(side, texts)} for placement, side, texts in sides]


def _measures(names: list[str], texts: list[str]) -> dict[str, Any]:
    """Return the measured values of one placement, and the widths of rounding that the rank proof needs (`_half`)."""
    found: dict[str, Any] = {"wrong": None}
    printed = dict(zip(names, texts))
    for name, text in printed.items():
        key = _COLUMN.get(name, name)
        if key in ("wrong", "error") and text == "N/A":
            found[key] = None
            continue
        value = _number(text)
        if value is None:
            raise ValueError("%s is not a number (%s)" % (name, text[:20]))
        found[key] = int(value) if key == "wrong" else value
    missing = {"time_us", "algbw", "busbw"} - set(found)
    if missing:
        raise ValueError("the table has no column " + ", ".join(sorted(missing)))
    found["_half"] = (_half_unit(printed["algbw"]), _half_unit(printed["busbw"]))
    return found


def _number(text: str) -> Optional[float]:
    """Return TEXT as a finite number, or None (nan and inf do occur, and are no JSON)."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _half_unit(text: str) -> float:
    """Return half a unit of the last printed digit: 0.005 for 12.34, 5e4 for 1.0e+06."""
    mantissa, _unused, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode("utf-8"))[:200]


def _finished(table: dict[str, Any], collective: Optional[str], problems: list[str]) -> dict[str, Any]:
    named = re.sub(r"_perf$", "", table["program"] or "") or collective
    group = next((group for rank, group, _host in table["devices"] if rank == 0), None)
    ranks = {rank for rank, other, _host in table["devices"] if other == group}
    low, high = _rank_interval(named, table["rows"])
    result = {
        "program": table["program"],
        "collective": named if named in COLLECTIVES else None,
        "ranks": len(ranks) or None,
        "ranks_proven": low if low == high else None,
        "ranks_between": [low, high],
        "hosts": list(dict.fromkeys(host for _rank, _group, host in table["devices"])),
        "rows": [{key: value for key, value in row.items() if key != "_half"} for row in table["rows"]],
        "problems": list(dict.fromkeys(problems)),
        "cpu_time": "cputime" in table["columns"],
    }
    for key in ("damaged", "requested", "reduced_max_bytes", "concluded", "average_busbw", "out_of_bounds"):
        result[key] = table[key]
    return result


def _rank_interval(collective: Optional[str], rows: list[dict[str, Any]]) -> tuple[int, Optional[int]]:
    """Return the lowest and highest rank count that every row's busbw/algbw allows; (1, None) where nothing is proven.

    all_reduce: ratio 2(n-1)/n; the collectives of _ONCE: (n-1)/n. Both numbers are rounded to their last digit, so a row allows
    an interval; small rows allow a wide one, large rows a narrow one, and all must agree. low > high says that they contradict.
    """
    weight = 2.0 if collective in _TWICE else 1.0
    low, high = 1, math.inf
    if collective not in _TWICE + _ONCE:
        return 1, None
    for row in rows:
        half_alg, half_bus = row["_half"]
        if row["algbw"] <= half_alg:
            continue
        shares = [(row["busbw"] - half_bus) / (row["algbw"] + half_alg), (row["busbw"] + half_bus) / (row["algbw"] - half_alg)]
        least, most = (max(0.0, share / weight) for share in shares)
        # 1e-9: a bound that is an integer but for floating point stays one.
        low = max(low, math.ceil(1 / (1 - least) - 1e-9)) if least < 1 else low
        high = min(high, math.floor(1 / (1 - most) + 1e-9)) if most < 1 else high
    return low, None if high == math.inf else int(high)


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
    """Return the document of an output without any table."""
    return {"schema": SCHEMA, "verdict": "failed", "reasons": [str(error)], "tables": []}


def _whole(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    reasons = list(table["problems"])
    wanted = expect.get("collective")
    if table["collective"] is None:
        known = table["program"] and "%s is no collective this gate knows" % table["program"]
        reasons.append("%s: name it by `collective`" % (known or "the output does not name its collective"))
    elif wanted and wanted != table["collective"]:
        reasons.append("the output is of another collective than %s" % wanted)
    if not table["concluded"]:
        reasons.append("the output is cut: it has no concluding line (`# Out of bounds values`), so the test did not end")
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
        # Old versions print an `error` per row and say in the concluding line alone whether it is within bounds; older
        # alltoall_perf does not check its in-place half.
        old = any(row.get("error") is not None for row in rows) and table["out_of_bounds"] is not None
        excused = side == "in_place" and table["collective"] == "alltoall" and all(r["wrong"] is not None for r in sides["out_of_place"])
        if not old and not excused and any(row["wrong"] is None for row in rows):
            reasons.append("the %s results were not checked (#wrong is N/A): run the test with -c 1" % side.replace("_", "-"))
    return reasons


def requested_sizes(requested: dict[str, Any]) -> list[int]:
    """Return the sizes that a sweep {min_bytes, max_bytes, step, step_kind} visits; a step that does not grow visits the first."""
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
    """Return the sizes of WANTED that no member of the sorted FOUND serves; a row serves one size, at most SLACK below it."""
    left, missing = list(found), []
    for size in wanted:
        row = next((candidate for candidate in left if size - slack < candidate <= size), None)
        if row is None:
            missing.append(size)
        else:
            left.remove(row)
    return missing


def _ranks(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    """Refuse a rank count that is not proven: ranks that never met print a table too, each of its own little world."""
    listed, wanted = table["ranks"], expect.get("ranks") or table["ranks"]
    low, high = table["ranks_between"]
    reasons = []
    if listed is not None and listed != wanted:
        reasons.append("%s expected, the output lists %d" % (_count(wanted, "rank"), listed))
    if table["collective"] not in _TWICE + _ONCE:
        # The ratio of these is 1 whatever the rank count, so the list of ranks is all there is.
        return reasons if listed is not None else ["the rank count is not proven: the output lists no ranks"]
    if high is not None and low > high:
        return [*reasons, "the rank count is not proven: the rows' busbw/algbw contradict each other"]
    if wanted is None and low != high:
        return ["the rank count is not proven: the output lists no ranks, so give expect_ranks"]
    wanted = wanted or low
    if wanted < low or (high is not None and wanted > high):
        span = "%d" % low if low == high else "at least %d" % low if high is None else "%d to %d" % (low, high)
        return [*reasons, "%s expected, but busbw/algbw proves %s: the ranks did not run as one job" % (_count(wanted, "rank"), span)]
    # Ranks that fell apart into equal worlds have at most half the size, so excluding that half is proof enough.
    if wanted > 1 and 2 * low <= wanted:
        reasons.append("the rank count %d is not proven: the bandwidths are too small or too coarse, so raise max_bytes" % wanted)
    return reasons


def _hosts(table: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    # nccl-tests cuts a host's name at its first dot.
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


def human_size(size: int) -> str:
    """Return SIZE in bytes as people write it where that is exact: 1073741824 → 1 GiB, 1000 → 1000 B."""
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << exponent and size % (1 << exponent) == 0:
            return "%d %s" % (size >> exponent, unit)
    return "%d B" % size
