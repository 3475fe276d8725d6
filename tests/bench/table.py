# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The table of docs/performance.md: read it, merge new rows into it, write it. A row leaves the table only when a person deletes it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from typing import NamedTuple

BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"
HEAD = ("What", "Ours", "Beside what", "Ratio", "Bound", "Date", "Command")
OVER, KEPT = " **over**", ", kept"


class Row(NamedTuple):
    """The cells of a row; `what` identifies it."""

    what: str
    ours: str
    beside: str
    ratio: str
    bound: str
    date: str
    command: str


def within(ratio: float, bound: str) -> bool:
    """Whether a ratio meets a bound such as `≤ 1.5` or `≥ 0.8`; no bound is always met."""
    if not bound:
        return True
    sign, limit = bound.split()
    return ratio <= float(limit) if sign == "≤" else ratio >= float(limit)


def row(what: str, ours: str, beside: str, ratio: float, bound: str = "") -> Row:
    """A row without its date and command; its ratio is marked when it is over its bound."""
    return Row(what, ours, beside, f"{ratio:.2f}" + ("" if within(ratio, bound) else OVER), bound, "", "")


def stamped(rows: Iterable[Row], command: str) -> list[Row]:
    """The rows with the day, the machine's cores and the command that made them."""
    return [each._replace(date=f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores", command=f"`{command}`") for each in rows]


def read(page: str) -> list[Row]:
    """The rows of a page that has the table between its two marks."""
    lines = page[page.index(BEGIN) : page.index(END)].splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("|")]
    if not cells or tuple(cells[0]) != HEAD:
        raise ValueError(f"docs/performance.md has no table with the columns {', '.join(HEAD)}; restore it from git.")
    return [Row(*each) for each in cells[2:]]


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All old rows in their order, each replaced by the new one of its name or marked as kept, then the rows that are new."""
    fresh = {each.what: each for each in new}
    merged = [fresh.pop(each.what, None) or each._replace(date=each.date.removesuffix(KEPT) + KEPT) for each in old]
    return merged + list(fresh.values())


def write(page: str, rows: Iterable[Row], parts: Iterable[str], not_measured: dict[str, str]) -> str:
    """The page with these rows, the parts that the run measured, and those that it could not measure, each with the reason."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    lines = [f"Last run: {time.strftime('%Y-%m-%d')}, {machine}. It measured {', '.join(parts) or 'nothing'}.", ""]
    if not_measured:
        lines = [f"{lines[0]} It did not measure {'; '.join(f'{part} ({reason})' for part, reason in not_measured.items())}.", ""]
    lines += [f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    return page[: page.index(BEGIN) + len(BEGIN)] + "\n" + "\n".join(lines) + "\n" + page[page.index(END) :]
