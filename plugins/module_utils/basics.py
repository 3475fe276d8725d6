# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers that all packages here share: the nearest known words, a sort key for versions, and files as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

# What open() or read() raises when the file, a folder above it or the process of a file in /proc does not exist.
MISSING = (FileNotFoundError, NotADirectoryError, ProcessLookupError)


def closest(word: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The entries of `known` that are most like `word`, the best first; with cutoff=0 as many as `count`."""
    return get_close_matches(str(word), [str(each) for each in known], n=count, cutoff=cutoff)


def nearest(word: object, known: Iterable[str]) -> str:
    """The end of an error about the unknown `word`: "did you mean X?", or all that is known when nothing is near."""
    known = sorted(known)
    close = closest(word, known)
    return "did you mean %s?" % close[0] if close else "known are %s." % ", ".join(known)


def version_key(version: object) -> list[tuple[int, int, str]]:
    """A key that sorts versions: 2.7.0amzn2.0 is later than 2.7.0, and 2.10 is later than 2.9."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[a-z]+", str(version).lower())]


def read_text(path: str, missing: str | None = None) -> str:
    """The text of a file, or `missing` when the file does not exist. Without `missing` that raises OSError, as every other error does."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except MISSING:
        if missing is None:
            raise
        return missing


def read_attribute(path: str) -> str:
    """The value in a file of the kernel's (/sys, /proc), without the newline; "" when the kernel does not give it."""
    try:
        return read_text(path, "").strip()
    except OSError:  # an attribute that the device does not support can be opened and not read
        return ""
