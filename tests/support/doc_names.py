# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Whether what a page names exists: files, variables, flags, plugins, parameters of templates, health checks."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from ansible_collections.muster.fleet.plugins.module_utils.health import settings

ROOT = Path(__file__).parents[2]
STACKS = ("stacks/aws-2026.11.yml",)


def table_rows(page: Path, second: str) -> Iterator[tuple[str, list[str]]]:
    """(heading, cells) of each row of the tables of PAGE whose second column is called SECOND."""
    heading, wanted = "", False
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            wanted = False
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if number + 1 < len(lines) and re.fullmatch(r"\|[ :|-]+\|", lines[number + 1]):
            wanted = cells[1] == second
        elif wanted and not re.fullmatch(r"\|[ :|-]+\|", line):
            yield heading, cells


@functools.cache
def specified() -> set[str]:
    """Variables of roles and playbooks."""
    found: set[str] = set()
    for path in (*ROOT.glob("roles/*/meta/argument_specs.yml"), ROOT / "playbooks/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            found |= set(entry.get("options") or {})
    return found


@functools.cache
def flags() -> set[str]:
    """Flags of `python -m trainer train`; trainer/tests compares the file with the parser."""
    train = json.loads((ROOT / "trainer/tests/flags.json").read_text())["train"]
    return {name for each in train.values() for name in each["names"]}


@functools.cache
def of_templates() -> set[str]:
    """Parameters and outputs of the templates of CloudFormation."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)  # type: ignore[attr-defined]
    found: set[str] = set()
    for path in ROOT.glob("cloudformation/*.yaml"):
        document = yaml.load(path.read_text(), loader)
        found |= set(document.get("Parameters") or {}) | set(document.get("Outputs") or {})
    return found


@functools.cache
def of_packer() -> set[str]:
    return {name for path in ROOT.glob("packer/**/*.hcl") for name in re.findall(r'^variable "(\w+)"', path.read_text(), re.M)}


@functools.cache
def components() -> set[str]:
    return {name for path in STACKS for name in yaml.safe_load((ROOT / path).read_text())}


@functools.cache
def plugins() -> set[str]:
    folders = ("modules", "filter", "lookup", "inventory", "action", "callback")
    return {path.stem for folder in folders for path in (ROOT / "plugins" / folder).glob("*") if path.suffix in (".py", ".yml")}


@functools.cache
def manifests() -> str:
    return "\n".join(path.read_text() for path in ROOT.glob("kubernetes/*.yaml"))


def missing(cell: str) -> list[str]:
    """One sentence for each name of a cell that does not exist; what stands in backquotes must be something that is known."""
    said = []
    of_stack = set(re.findall(r"stack `(\w+)`", cell))
    said += [f"the stack has no component {name}" for name in of_stack - components()]
    for name in [each for each in re.findall(r"`([^`]+)`", cell) if each not in of_stack]:
        if name.startswith("--"):
            known = name in flags()
        elif name.startswith("muster.fleet."):
            known = name.removeprefix("muster.fleet.") in plugins()
        elif name.startswith("make "):
            known = bool(re.search(rf"^{name[5:]}:", (ROOT / "Makefile").read_text(), re.M))
        elif name.startswith("${") or name.isupper():
            known = bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", manifests())) or name in of_templates()
        elif "/" in name or "." in name:
            known = (ROOT / name).exists()
        elif name[0].isupper():
            known = name in of_templates()
        else:
            known = name in specified() | of_packer() | set(settings.NAMES)
        if not known:
            said.append(f"nothing is called {name}")
    return said
