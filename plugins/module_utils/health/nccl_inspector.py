# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what NCCL's inspector writes, a JSON object a line and a file for each process: `summary(files)` gives `muster.nccl_inspector/1`.

    {"schema", "status": "passed"|"not_run", "reason", "files", "lines", "damaged", "examples": [str], "point_to_point", "communicators",
     "ranks", "hosts": [str], "rows": [row]}
    row: {"collective", "size", "ranks", "nodes", "calls", "busbw", "hosts": {host: busbw}, "slowest": {"rank", "host", "busbw"},
          "timing": [str]}

Sizes are bytes as nccl-tests counts them: all_gather and reduce_scatter of the inspector's lines have the part of one rank. Bandwidths are
1e9 bytes/s and medians: of all lines of a row, of a host, of a rank. A rank that starts late has a short time, because the others wait for
it in their kernels; so the slowest rank is the one that took, or waited, longest.

Read in the source of NCCL 2.28.3 to 2.30.7 (inspector_json.cc, format v4.0), and in files of 2.28.9 and 2.30.7. A line of p2p_perf is
counted and not judged.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, Optional

SCHEMA = "muster.nccl_inspector/1"
COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
# The other programs of nccl-tests send and receive, and then the inspector has lines of p2p_perf.
INSPECTED = tuple(COLLECTIVES.values())
_OF_ONE_RANK = ("all_gather", "reduce_scatter")
_EXAMPLES = 3


def _number(value: Any) -> float:
    """VALUE. Raises ValueError unless it is a number of at least 0; where the inspector divided by 0 it writes "nan"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError("%s is not a number" % json.dumps(value))
    return value


def event(line: str) -> Optional[dict[str, Any]]:
    """Return what LINE says of a call, None for one of point-to-point. ValueError when it cannot be read."""
    try:
        record = json.loads(line)
        if "p2p_perf" in record:
            return None
        head, call = record["header"], record["coll_perf"]
        kind = COLLECTIVES.get(call["coll"], str(call["coll"]))
        ranks = int(_number(head["n_ranks"]))
        found = {
            "communicator": str(head["id"]),
            "rank": int(_number(head["rank"])),
            "ranks": ranks,
            "nodes": int(_number(head["nnodes"])),
            "host": str(record["metadata"]["hostname"]).split(".", maxsplit=1)[0],
            "collective": kind,
            "number": int(_number(call["coll_sn"])),
            "size": int(_number(call["coll_msg_size_bytes"])) * (ranks if kind in _OF_ONE_RANK else 1),
            "time_us": _number(call["coll_exec_time_us"]),
            "busbw": _number(call["coll_busbw_gbs"]),
            "timing": str(call.get("coll_timing_source", "")),
        }
    except KeyError as error:
        raise ValueError("it has no %s" % error) from None
    except json.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    except (TypeError, AttributeError):
        raise ValueError("it is not of the inspector's form") from None
    if not found["time_us"]:
        raise ValueError("its time is 0")
    return found


def _events(files: Iterable[tuple[str, Iterable[str]]], count: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, lines in files:
        count["files"] += 1
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            count["lines"] += 1
            try:
                found = event(line)
            except ValueError as error:
                count["damaged"] += 1
                if len(count["examples"]) < _EXAMPLES:
                    count["examples"].append("%s line %d: %s" % (name, number, error))
                continue
            if found is None:
                count["point_to_point"] += 1
            else:
                yield found


def _row(key: tuple[str, int, int], calls: list[dict[str, Any]]) -> dict[str, Any]:
    collective, size, ranks = key
    of_host: dict[str, list[float]] = {}
    of_rank: dict[tuple[str, int, str], list[float]] = {}
    for call in calls:
        of_host.setdefault(call["host"], []).append(call["busbw"])
        of_rank.setdefault((call["communicator"], call["rank"], call["host"]), []).append(call["busbw"])
    busbw, (_communicator, rank, host) = min((statistics.median(found), who) for who, found in of_rank.items())
    return {
        "collective": collective,
        "size": size,
        "ranks": ranks,
        "nodes": max(call["nodes"] for call in calls),
        "calls": len({(call["communicator"], call["number"]) for call in calls}),
        "busbw": statistics.median(call["busbw"] for call in calls),
        "hosts": {name: statistics.median(of_host[name]) for name in sorted(of_host)},
        "slowest": {"rank": rank, "host": host, "busbw": busbw},
        "timing": sorted({call["timing"] for call in calls}),
    }


def not_run(reason: str) -> dict[str, Any]:
    """Return the document when the inspector did not run, for REASON."""
    return {"schema": SCHEMA, "status": "not_run", "reason": reason, "rows": []}


def summary(files: Iterable[tuple[str, Iterable[str]]], expect_ranks: Optional[int] = None) -> dict[str, Any]:
    """Return the document of FILES, a name and the lines of each."""
    count: dict[str, Any] = {"files": 0, "lines": 0, "damaged": 0, "examples": [], "point_to_point": 0}
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for found in _events(files, count):
        groups.setdefault((found["collective"], found["size"], found["ranks"]), []).append(found)
    everything = [call for calls in groups.values() for call in calls]
    ranks = {(call["communicator"], call["rank"]) for call in everything}
    # A communicator has each of its ranks once, and the largest ones are those of the job.
    most = max((call["ranks"] for call in everything), default=0)
    seen = max((sum(1 for name, _rank in ranks if name == each) for each in {name for name, _rank in ranks}), default=0)
    reason = ""
    if not count["files"]:
        reason = "no process wrote a file: look for NCCL's lines about the profiler plugin in the job's output (NCCL_DEBUG=INFO)"
    elif not everything:
        reason = "none of %d lines is of a collective" % count["lines"] + (": " + count["examples"][0] if count["examples"] else "")
    elif seen < (expect_ranks or most):
        reason = "%d of %d ranks wrote lines" % (seen, expect_ranks or most)
    return {
        **not_run(reason),
        "status": "not_run" if reason else "passed",
        **count,
        "communicators": len({name for name, _rank in ranks}),
        "ranks": seen,
        "hosts": sorted({call["host"] for call in everything}),
        "rows": [_row(key, groups[key]) for key in sorted(groups)],
    }
