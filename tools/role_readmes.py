# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes the tables of variables in the READMEs from the argument_specs.yml beside them, and finds where specs and defaults disagree.
Writes the list of components in roles/README.md.

The table stands between the lines <!-- options --> and <!-- /options -->. With --check nothing is written: what is not current is named.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- options -->\n", "<!-- /options -->\n"
# Ansible's markup with one argument, for example C(code), V(value), O(option).
MARKUP = re.compile(r"\b(?:[BCEIMOPV]|RV)\(([^)]*)\)")


def options_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of all entry points by name. Raises ValueError when two entry points describe one differently."""
    options: dict[str, dict[str, Any]] = {}
    for entry_point, spec in document["argument_specs"].items():
        for name, option in (spec.get("options") or {}).items():
            if options.setdefault(name, option) != option:
                raise ValueError(f"entry point {entry_point} describes {name} unlike another; write it once, with a YAML anchor")
    return options


def disagreements(options: dict[str, dict[str, Any]], defaults: dict[str, Any]) -> Iterator[str]:
    """Say where the defaults of a role are not those of its options. Fleet-wide options, muster_*, need no default of a role."""
    for name, option in options.items():
        if name in defaults:
            if option.get("required"):
                yield f"{name} is required and has a default"
            elif defaults[name] != option.get("default"):
                yield f"{name} is {defaults[name]!r} in defaults/main.yml and {option.get('default')!r} in meta/argument_specs.yml"
        elif not option.get("required") and not name.startswith("muster_"):
            yield f"{name} has no default in defaults/main.yml"
    for name in defaults.keys() - options.keys():
        yield f"{name} stands in defaults/main.yml and not in meta/argument_specs.yml"


def rows(options: dict[str, dict[str, Any]], prefix: str = "") -> Iterator[str]:
    """The lines of a table, an option's own options below it."""
    for name, option in options.items():
        kind = option.get("type", "str") + (f" of {option['elements']}" if "elements" in option else "")
        default = "required" if option.get("required") else code(option["default"]) if "default" in option else ""
        text = option["description"]
        text = MARKUP.sub(r"`\1`", " ".join(text) if isinstance(text, list) else text)
        if "choices" in option:
            text += f" One of {', '.join(code(choice) for choice in option['choices'])}."
        yield f"| `{prefix}{name}` | {kind} | {default} | {cell(text)} |"
        yield from rows(option.get("options") or {}, f"{prefix}{name}.")


def code(value: Any) -> str:
    text = value
    if not isinstance(value, str):
        text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("...\n")
    return f"`{cell(text)}`" if text else '`""`'


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def with_table(readme: str, options: dict[str, dict[str, Any]]) -> str:
    """The README with its table made anew. Raises ValueError when it has no place for one."""
    if BEGIN not in readme or END not in readme:
        raise ValueError(f"README has no lines {BEGIN.strip()} and {END.strip()}")
    before, rest = readme.split(BEGIN, 1)
    table = "\n".join(["| Variable | Type | Default | |", "| --- | --- | --- | --- |", *rows(options)])
    return f"{before}{BEGIN}{table}\n{END}{rest.split(END, 1)[1]}"


def targets(root: Path) -> Iterator[tuple[Path, Path, Path | None]]:
    """Specification, page and defaults of each role, then of the playbooks."""
    for specs in sorted(root.glob("roles/*/meta/argument_specs.yml")):
        role = specs.parents[1]
        yield specs, role / "README.md", role / "defaults/main.yml"
    yield root / "playbooks/meta/argument_specs.yml", root / "docs/variables.md", None


def component_list(root: Path) -> str:
    """roles/README.md, from the component table and the roles' own descriptions."""
    lines = [
        "# Components",
        "",
        "In the order in which they are installed. `make docs` writes this page; see [Add a role](../docs/add_a_role.md).",
        "",
    ]
    lines += ["| Component | Carried by | |", "| --- | --- | --- |"]
    for entry in yaml.safe_load((root / "playbooks/vars/components.yml").read_text())["component_table"]:
        name, groups = entry["name"], entry.get("groups", [])
        spec = yaml.safe_load((root / f"roles/{name}/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
        carried = ", ".join(code(group) for group in groups) if isinstance(groups, list) else "all groups of Slurm, in a fleet with GPUs"
        about = cell(MARKUP.sub(r"`\1`", spec["short_description"]))
        lines.append(f"| [{name}]({name}/README.md) | {carried or 'hosts that name it'} | {about} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(argv).check
    wrong = []
    for specs, page, defaults in targets(root):
        try:
            options = options_of(yaml.safe_load(specs.read_text()))
            old = page.read_text()
            new = with_table(old, options)
        except ValueError as error:
            wrong.append(f"{page.parent.relative_to(root)}: {error}")
            continue
        if defaults:
            found = yaml.safe_load(defaults.read_text()) if defaults.exists() else {}
            wrong += [f"{page.parent.relative_to(root)}: {what}" for what in disagreements(options, found or {})]
        if check and new != old:
            wrong.append(f"{page.relative_to(root)}: the table is not current; run `make docs`")
        elif new != old:
            page.write_text(new)
    page, new = root / "roles/README.md", component_list(root)
    if check and (page.read_text() if page.exists() else "") != new:
        wrong.append("roles/README.md: the list is not current; run `make docs`")
    elif not check:
        page.write_text(new)
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
