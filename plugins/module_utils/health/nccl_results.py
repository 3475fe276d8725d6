# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the output of nccl-tests: `parse(text)` gives one table for each run of a collective.

    table: {"program", "collective", "ranks", "ranks_proven", "ranks_between": [low, high|None], "hosts": [str],
            "rows": [row], "damaged": [{"line", "text", "reason"}], "problems": [str],
            "requested": {"min_bytes", "max_bytes", "step", "step_kind": "factor"|"bytes"} | None, "reduced_max_bytes",
            "cpu_time", "concluded", "average_busbw", "out_of_bounds"}
    row: {"size", "count", "type", "redop", "root", "placement": "out_of_place"|"in_place", "time_us", "algbw", "busbw",
          "wrong": int|None, + "error" (before 2.13), "i_min", "i_max", "i_p99", "i_cv" (-I)}

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s. The grammar is that of nccl-tests' src/util.cu (2.19) and, for the
`error` column, of the versions before its commit 51af557.
"""

from __future__ import annotations

import math
import re
from typing import Any, Optional

# busbw/algbw depends on the rank count n; for the other collectives the ratio is 1 and proves nothing (PERFORMANCE.md of nccl-tests).
TWICE = ("all_reduce",)
ONCE = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
COLLECTIVES = (*TWICE, *ONCE, "alltoallv", "broadcast", "reduce", "sendrecv", "hypercube")
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
    """The text has no result; the message is one sentence for the user."""


def parse(text: str, collective: Optional[str] = None) -> list[dict[str, Any]]:
    """Return the tables of TEXT in their order; COLLECTIVE is the collective of tables that do not name theirs.

    Lines with a task label (`srun -l`, Open MPI's --tag-output) are read as one stream per task, so that ranks which ran alone
    show as several tables. Raises ResultsError when there is no table.
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
    """Store what a `#` line says in TABLE; return whether it was one."""
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
    """Add the row of LINE to TABLE, or record it as damaged; skip lines of other origin (NCCL INFO).

    Columns are counted from the right, because a launcher's prefix has any number of fields and may touch the size.
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
    """Return a row per placement; raise ValueError with the reason when LINE is not a whole row."""
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
    """Return the measured values of one placement, and the rounding errors that `_rank_interval` needs (`_half`)."""
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
    """Return TEXT as a finite number, or None for nan and inf, which occur and are not valid JSON."""
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
    """Return the lowest and highest rank count that every row's busbw/algbw allows; (1, None) when the rows prove nothing.

    all_reduce: ratio 2(n-1)/n; the collectives of ONCE: (n-1)/n. Both numbers are rounded to their last digit, so each row allows
    an interval, which is narrower for larger bandwidths. low > high means that the rows contradict each other.
    """
    weight = 2.0 if collective in TWICE else 1.0
    low, high = 1, math.inf
    if collective not in TWICE + ONCE:
        return 1, None
    for row in rows:
        half_alg, half_bus = row["_half"]
        if row["algbw"] <= half_alg:
            continue
        shares = [(row["busbw"] - half_bus) / (row["algbw"] + half_alg), (row["busbw"] + half_bus) / (row["algbw"] - half_alg)]
        least, most = (max(0.0, share / weight) for share in shares)
        # 1e-9 keeps a bound that is an integer from floating-point errors.
        low = max(low, math.ceil(1 / (1 - least) - 1e-9)) if least < 1 else low
        high = min(high, math.floor(1 / (1 - most) + 1e-9)) if most < 1 else high
    return low, None if high == math.inf else int(high)


def human_size(size: int) -> str:
    """Return SIZE in the largest unit that is exact: 1073741824 → 1 GiB, 1000 → 1000 B."""
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << exponent and size % (1 << exponent) == 0:
            return "%d %s" % (size >> exponent, unit)
    return "%d B" % size
