# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the output of nccl-tests: `parse(text)` gives one table for each run of a collective.

    table: {"program", "collective", "hosts": [str], "copies", "rows": [row],
            "ranks", "ranks_missing": [int], "ranks_proven", "ranks_between": [low, high|None], "ratio_tells_ranks",
            "damaged": [{"line", "text", "reason"}], "problems": [str], "failed_hosts": [str],
            "requested": {"min_bytes", "max_bytes", "step", "step_kind": "factor"|"bytes"} | None, "reduced_max_bytes",
            "cpu_time", "concluded", "average_busbw", "out_of_bounds"}
    row: {"size", "count", "type", "redop", "root", "placement": "out_of_place"|"in_place", "time_us", "algbw", "busbw",
          "wrong": int|None, + "error" (before 2.13), "i_min", "i_max", "i_p99", "i_cv" (-I)}

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s. copies: how often rank 0 is listed, which is once in a test of one job.

The grammars, read in the sources of nccl-tests (src/common.cu, later src/util.cu, and each collective's file):

    2.19 to 2.13      13 columns, `#wrong`. A redop is blank instead of `none` up to 2.13.9, and in hypercube always
    2.16.7 and later  begin and end with the program's name
    2.11 to 2.0       columns by collective: no root, no redop, or neither, and `error` instead of `#wrong`; alltoall's redop is blank
    before June 2020  algbw of all_gather and reduce_scatter leaves out the own part, so busbw/algbw is 1
    before 2019       columns `bytes N type op`, times in ms: refused
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Optional

# busbw/algbw depends on the rank count n; for the other collectives the ratio is 1 and proves nothing (PERFORMANCE.md of nccl-tests).
TWICE = ("all_reduce",)
ONCE = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
# algbw is size/time here. hypercube leaves out a rank's own part, and alltoallv counts what its matrix says.
_PLAIN = (*TWICE, *ONCE, "broadcast", "reduce", "sendrecv")
COLLECTIVES = (*TWICE, *ONCE, "alltoallv", "broadcast", "reduce", "sendrecv", "hypercube")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_STREAM = re.compile(r"^\s*(?:(\d+): |\[\d+,(\d+)\]<std\w+>:)")
_HEADER = re.compile(r"^(?P<prefix>.*?)#\s+(?P<columns>size\s+count\s+.*)$")
_ANCIENT = re.compile(r"#\s+bytes\s+N\s+type\b")
_VERSION = re.compile(r"#\s*nccl-tests version\b")
_START = re.compile(r"#\s*Collective test starting: (?:\S*/)?(\w+)")
_END = re.compile(r"#\s*Collective test concluded: (?:\S*/)?(\w+)")
_PARAMETERS = re.compile(r"#\s*nThread \d+ .*?minBytes (\d+) maxBytes (\d+) step: (\d+)\s*\((factor|bytes)\)")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\b")
_REDUCED = re.compile(r"#\s*Reducing maxBytes to (\d+)")
_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+) (?:OK|FAILED)\b")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_PROBLEM = re.compile(
    r"(?:(?P<host>[\w.-]+): )?(?P<text>Test (?:CUDA|NCCL) failure .*|Test timeout .*)$"
    r"|\.\. (?P<trace>[\w.-]+)(?: pid \d+)?: Test failure .*$"
    r"|(?P<other>#\s*error: .*|Invalid number of GPUs: .*)$"
)
_TIMESTAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_TYPES = r"(?:u?int(?:8|32|64)|int|char|half|float|double|bfloat16|(?:f8|fp8_)e(?:4m3|5m2))"
_ROW = re.compile(r"(?<!\d)(\d+)\s+(\d+)\s+(%s)(?!\S)" % _TYPES)
_BROKEN_ROW = re.compile(r"\d+\s+\d+\s+%s\b" % _TYPES)
_ERROR = re.compile(r"\d(?:\.\d+)?e[+-]\d{2,3}")
_COLUMN = {"#wrong": "wrong", "i_cv%": "i_cv", "time": "time_us", "cputime": "time_us"}
_KEYS = ("size", "count", "type", "redop", "root")
_SIDE = re.compile(r"(?:time|cputime) algbw busbw (?:#wrong(?: i_min i_max i_p99 i_cv%)?|error)")


class ResultsError(ValueError):
    """The text has no result; the message is one sentence for the user. It keeps what the text says of hosts."""

    def __init__(self, message: str, hosts: Sequence[str] = (), failed_hosts: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hosts = list(hosts)
        self.failed_hosts = list(failed_hosts)


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
    failed_hosts: list[str] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = _ANSI.sub("", raw).rstrip()
        label = _STREAM.match(line)
        stream = (label.group(1) or label.group(2)) if label else ""
        if _ANCIENT.search(line):
            raise ResultsError(
                "The output is of an nccl-tests from before 2019 (its table begins with bytes and N), which Muster does not read: "
                "build nccl-tests 2.13 or later."
            )
        problem = _PROBLEM.search(line)
        if problem:
            problems.append(_printable(problem.group().lstrip("# ")))
            failed_hosts += [host for host in (problem.group("host"), problem.group("trace")) if host]
        table = current.get(stream)
        header = _HEADER.match(line)
        opens = header or _VERSION.search(line) or _START.search(line) or _PARAMETERS.search(line)
        if table is None or (opens and table["columns"]):
            if not opens and not _RANK.search(line):
                continue
            if table and not _concluded(table):
                table["damaged"].append(
                    {"line": number, "text": _printable(line.strip()), "reason": "a table begins where the one before has no end"}
                )
            table = current[stream] = _table()
            tables.append(table)
        if line.strip():
            table["last_line"] = number
        if header:
            table["columns"] = [name for name in header.group("columns").split() if name != "timestamp"]
            table["prefix_fields"] = len(header.group("prefix").split())
            if not _known(table["columns"]):
                table["damaged"].append({"line": number, "text": _printable(line.strip()), "reason": "no nccl-tests has these columns"})
        elif not _read_comment(table, number, line) and table["columns"]:
            _read_row(table, number, line)
    hosts = list(dict.fromkeys(host for table in tables for _rank, _group, host in table["devices"]))
    failed_hosts = list(dict.fromkeys(failed_hosts))
    tables = [table for table in tables if table["columns"]]
    if not tables:
        found = "; it says: " + problems[0] if problems else ""
        ranks = "; ranks are listed on " + ", ".join(hosts) if hosts else ""
        message = "The output contains no table of nccl-tests%s%s: read the job's whole output for what stopped it." % (found, ranks)
        raise ResultsError(message, hosts, failed_hosts)
    return [_finished(table, collective, problems, failed_hosts) for table in tables]


def _known(columns: list[str]) -> bool:
    """Return whether COLUMNS are those of a grammar: keys in their order, then the same measures twice."""
    keys = [name for name in columns if name in _KEYS]
    side = columns[len(keys) : len(keys) + (len(columns) - len(keys)) // 2]
    ordered = [name for name in _KEYS if name in keys]
    return columns == keys + 2 * side and keys == ordered and keys[:3] == list(_KEYS[:3]) and bool(_SIDE.fullmatch(" ".join(side)))


def _concluded(table: dict[str, Any]) -> bool:
    """Return whether TABLE has its last line. Without a line that names the program, the average must be followed by another line."""
    if table["out_of_bounds"] is None or table["average_line"] is None:
        return False
    return table["ended"] if table["started"] else table["last_line"] > table["average_line"]


def _table() -> dict[str, Any]:
    return {
        "program": None, "devices": [], "rows": [], "damaged": [], "requested": None, "reduced_max_bytes": None, "columns": [],
        "prefix_fields": 0, "started": False, "ended": False, "average_busbw": None, "average_line": None, "last_line": 0,
        "out_of_bounds": None,
    }  # fmt: skip


def _read_comment(table: dict[str, Any], number: int, line: str) -> bool:
    """Store what a `#` line says in TABLE; return whether it was one."""
    if "#" not in line:
        return False
    if match := _START.search(line):
        table["program"] = match.group(1)
        table["started"] = True
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
    elif match := _AVERAGE.search(line):
        table["average_busbw"] = _number(match.group(1))
        table["average_line"] = number
    elif match := _END.search(line):
        table["ended"] = table["program"] in (None, match.group(1))
        table["program"] = table["program"] or match.group(1)
    return not _BROKEN_ROW.search(line)


def _read_row(table: dict[str, Any], number: int, line: str) -> None:
    """Add the row of LINE to TABLE, or record it as damaged; skip lines of other origin (NCCL INFO).

    A row begins at its size, count and type, because a launcher's prefix has any number of fields and may touch the size.
    """
    line = _TIMESTAMP.sub("", line)
    own = line.split()[table["prefix_fields"] :]
    cut = own and all(field.isdigit() for field in own[:2]) and table["out_of_bounds"] is None
    if not cut and not _BROKEN_ROW.search(line):
        return
    try:
        place = {"line": number, "text": _printable(line.strip()), "reason": "its time, size and algbw contradict each other"}
        table["rows"] += [{**row, "_line": place} for row in _row(table["columns"], line)]
    except ValueError as error:
        table["damaged"].append({"line": number, "text": _printable(line.strip()), "reason": str(error)})


def _row(columns: list[str], line: str) -> list[dict[str, Any]]:
    """Return a row per placement; raise ValueError with the reason when LINE is not a whole row."""
    if not _known(columns):
        raise ValueError("its columns are not known")
    if len(_ROW.findall(line)) > 1:
        raise ValueError("two rows on one line")
    begin = _ROW.search(line)
    if not begin:
        raise ValueError("no size, count and data type")
    fields = line[begin.end() :].split()
    number = 3 + len(fields)
    redop = fields.pop(0) if "redop" in columns and fields and re.fullmatch("[a-z]+", fields[0]) else "none"
    root = fields.pop(0) if "root" in columns and fields else "-1"
    names = [name for name in columns if name not in _KEYS]
    if len(fields) != len(names):
        raise ValueError("%d fields where %d are expected" % (number, len(columns)))
    if not re.fullmatch(r"-?\d+", root):
        raise ValueError("the root is not a number (%s)" % root[:20])
    base = {
        "size": int(begin.group(1)),
        "count": int(begin.group(2)),
        "type": begin.group(3),
        "redop": redop,
        "root": int(root),
    }
    width = len(names) // 2
    sides = zip(("out_of_place", "in_place"), (names[:width], names[width:]), (fields[:width], fields[width:]))
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
        if key == "error" and not _ERROR.fullmatch(text):
            raise ValueError("%s is cut short (%s)" % (name, text[:20]))
        found[key] = int(value) if key == "wrong" else value
    found["_half"] = (_half_unit(printed["algbw"]), _half_unit(printed["busbw"]))
    found["_half_time"] = _half_unit(texts[0])
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


def _agree(row: dict[str, Any]) -> bool:
    """Return whether algbw is size/time, as far as the printed digits tell. A lost digit shows here."""
    least, most = row["time_us"] - row["_half_time"], row["time_us"] + row["_half_time"]
    half = row["_half"][0] + 1e-9
    return bool(row["size"] / 1e3 / most <= row["algbw"] + half and (least <= 0 or row["algbw"] - half <= row["size"] / 1e3 / least))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode("utf-8"))[:200]


def _finished(table: dict[str, Any], collective: Optional[str], problems: list[str], failed_hosts: list[str]) -> dict[str, Any]:
    named = re.sub(r"_perf$", "", table["program"] or "") or collective
    group = next((group for rank, group, _host in table["devices"] if rank == 0), None)
    ranks = {rank for rank, other, _host in table["devices"] if other == group}
    listed_first = sum(1 for rank, other, _host in table["devices"] if (rank, other) == (0, group))
    rows = table["rows"]
    # Before June 2020 both bandwidths of these two were the same.
    early = named in ("all_gather", "reduce_scatter") and all("error" in row and row["algbw"] == row["busbw"] > 0 for row in rows)
    listed = {rank for rank, _group, _host in table["devices"]}
    tells = named in TWICE + ONCE and not early
    low, high = _rank_interval(named, rows) if tells else (1, None)
    if not early and named in _PLAIN and "cputime" not in table["columns"]:
        table["damaged"] += [row["_line"] for row in rows if not _agree(row)]
    result = {
        "program": table["program"],
        "collective": named if named in COLLECTIVES else None,
        "ranks": len(ranks) or None,
        "ranks_missing": sorted(set(range(max(listed, default=-1))) - listed),
        "ranks_proven": low if low == high else None,
        "ranks_between": [low, high],
        "ratio_tells_ranks": tells,
        "hosts": list(dict.fromkeys(host for _rank, _group, host in table["devices"])),
        "copies": max(1, listed_first),
        "rows": [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows],
        "problems": list(dict.fromkeys(problems)),
        "failed_hosts": failed_hosts,
        "cpu_time": "cputime" in table["columns"],
        "concluded": _concluded(table),
    }
    for key in ("damaged", "requested", "reduced_max_bytes", "average_busbw", "out_of_bounds"):
        result[key] = table[key]
    return result


def _rank_interval(collective: Optional[str], rows: list[dict[str, Any]]) -> tuple[int, Optional[int]]:
    """Return the lowest and highest rank count that every row's busbw/algbw allows; (1, None) when the rows prove nothing.

    all_reduce: ratio 2(n-1)/n; the collectives of ONCE: (n-1)/n. Both numbers are rounded to their last digit, so each row allows
    an interval, which is narrower for larger bandwidths. low > high means that the rows contradict each other.
    """
    weight = 2.0 if collective in TWICE else 1.0
    low, high = 1, math.inf
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
