# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The files of variables in packer/systems and packer/purposes, read without Packer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from component_table import TABLE

FOLDER = Path(__file__).parents[2] / "packer"


def read(folder: str) -> dict[str, dict[str, Any]]:
    """{name of a file: its variables}. Lists and texts of HCL are YAML."""
    found = {}
    for path in sorted((FOLDER / folder).iterdir()):
        rows = re.findall(r"^(\w+) *= (.*)$", path.read_text(), re.MULTILINE)
        found[path.name] = {name: yaml.safe_load(value.replace(" = ", ": ")) for name, value in rows}
    return found


SYSTEMS, PURPOSES = read("systems"), read("purposes")


def stands(system: str, purpose: str) -> bool:
    """Whether the base brings what the purpose needs."""
    return set(PURPOSES[purpose].get("needs", [])) <= set(SYSTEMS[system].get("brings", []))


def wanted(purpose: str) -> list[str]:
    """The components of a purpose, as ami.pkr.hcl derives them for the nodes of a fleet."""
    named = PURPOSES[purpose]["components"]
    groups = {"all", *PURPOSES[purpose].get("groups", [])} if PURPOSES[purpose].get("fleet_node") else set()
    carried = [
        entry["name"]
        for entry in TABLE
        if "when" not in entry and entry["name"] != "trainer" and isinstance(entry.get("groups"), list) and groups & set(entry["groups"])
    ]
    return carried + [each for each in named if each not in carried]


def installed(system: str, purpose: str) -> list[str]:
    """The components that the image gets beside those of its base."""
    return [each for each in wanted(purpose) if each not in SYSTEMS[system].get("brings", [])]


def once_each() -> list[tuple[str, str]]:
    """Pairs with every system and every purpose in them, which Packer takes."""
    pairs = [(next(system for system in SYSTEMS if stands(system, purpose)), purpose) for purpose in PURPOSES]
    done = {system for system, _purpose in pairs}
    return [*pairs, *((system, "base.pkrvars.hcl") for system in SYSTEMS if system not in done)]
