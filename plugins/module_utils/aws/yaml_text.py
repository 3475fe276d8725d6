# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents as YAML for people to read. A node's Python may have no library of YAML, so that code of modules writes its own."""

from __future__ import annotations

import json
import re

PLAIN = re.compile(r"[A-Za-z/$][A-Za-z0-9_./:${}+-]*")
# Words that some reader of YAML 1.1 takes for true, false or nothing.
WORDS = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")


def dump(value):
    """The text of a mapping, or of a list of them as several documents. Values are text, numbers, booleans, mappings and lists."""
    documents = value if isinstance(value, list) else [value]
    return "".join("---\n" + "\n".join(_lines(each)) + "\n" for each in documents)


def _lines(value):
    """The lines of a mapping or a list that is not empty."""
    found = []
    if isinstance(value, dict):
        for key, each in value.items():
            found += _entry(_scalar(key) + ":", each, "  " if isinstance(each, (dict, str)) else "")
        return found
    for each in value:
        if isinstance(each, (dict, list)) and each:
            inner = _lines(each)
            found += ["- " + inner[0], *("  " + line for line in inner[1:])]
        else:
            found.append("- " + _scalar(each))
    return found


def _entry(head, value, indent):
    if isinstance(value, (dict, list)) and value:
        return [head, *(indent + line for line in _lines(value))]
    if isinstance(value, str) and value.endswith("\n") and not value.startswith((" ", "\n")) and not value.endswith("\n\n"):
        return [head + " |", *(indent + line if line else "" for line in value[:-1].split("\n"))]
    return ["%s %s" % (head, _scalar(value))]


def _scalar(value):
    if isinstance(value, str) and PLAIN.fullmatch(value) and value[-1] != ":" and value.lower() not in WORDS:
        return value
    return json.dumps(value)
