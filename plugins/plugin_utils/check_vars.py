# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variables belong to which role, and which of them the role does not know.

A variable belongs to the role with the longest name that it begins with: nccl_tests_version to nccl_tests and not to nccl. Variables that
begin with muster_ belong to the fleet. Names with a leading underscore are internal to a role. Muster ignores all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import closest

FLEET = "muster"


def known_options(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return owner -> option name -> its specification, over all entry points.

    `specs` maps the name of a role, or muster for the fleet, to the content of its argument_specs.yml. Options that begin with muster_
    belong to the fleet wherever they are specified.
    """
    known: dict[str, dict[str, Any]] = {FLEET: {}}
    for source, document in specs.items():
        options = known.setdefault(source, {})
        for entry_point in (document.get("argument_specs") or {}).values():
            for name, option in (entry_point.get("options") or {}).items():
                (known[FLEET] if name.startswith(f"{FLEET}_") else options)[name] = option
    return known


def owner(name: str, known: Mapping[str, Any]) -> str | None:
    """Return the owner of a variable, None for one that is not Muster's."""
    return max((role for role in known if name.startswith(f"{role}_")), key=len, default=None)


def find_unknown(names: Iterable[str], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the names that begin like an owner's option and are not one, each with the fault and the nearest option."""
    unknown = {}
    for name in sorted(names):
        role = owner(name, known)
        if role is None or name in known[role]:
            continue
        what = "of the fleet" if role == FLEET else f"of role {role}"
        unknown[name] = f"is not an option {what}{_nearest(name, known[role])}"
    return unknown


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = closest(name, known)
    return f"; the nearest is {nearest[0]}" if nearest else ""


def other_shape(value: Any, option: Mapping[str, Any], part: str = "it") -> str:
    """Return "PART must be a list" for the first part of an option that has the wrong type (list, mapping, text) or an unknown key.

    "" when there is none. Ansible's own validation converts the types, and then gives the role the unconverted value.
    """
    kind = option.get("type", "str")
    if value is None:
        return ""
    if kind in ("str", "path"):
        return f"{part} must be text" if isinstance(value, (list, Mapping)) else ""
    if kind == "list":
        if not isinstance(value, list):
            return f"{part} must be a list"
        members = {"type": option.get("elements", "raw"), "options": option.get("options")}
        return next(filter(None, (other_shape(each, members, f"each item of {part}") for each in value)), "")
    if kind == "dict":
        if not isinstance(value, Mapping):
            return f"{part} must be a mapping"
        known = option.get("options") or {}
        unknown = [key for key in value if key not in known] if known else []
        if unknown:
            return f"{part} has the unknown key {unknown[0]}{_nearest(unknown[0], known)}"
        return next(filter(None, (other_shape(value[key], known[key], key) for key in value if key in known)), "")
    return ""


def sentence(name: str, hosts: list[str], all_hosts: int, fault: str) -> str:
    """A sentence about a variable's fault and its hosts, with the names of at most three hosts."""
    where = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return f"Variable {name} ({'all hosts' if len(hosts) == all_hosts else where}) {fault}."
