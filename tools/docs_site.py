#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes the source of the documentation site: the Markdown pages of the checkout under their own paths, and pages of modules, plugins,
rules, checks and recipes that it makes from what the code says. `make docs-site` runs it and then mkdocs.

docs_site.py FOLDER    the folder, which it makes anew; mkdocs.yml in it is the configuration
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from role_readmes import MARKUP, cell, code

from ansible_collections.muster.fleet.plugins.module_utils.health import settings
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import RULES

PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "roles/README.md", "roles/*/README.md", "trainer/README.md", "trainer/labs/*.md")
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r" *(```|~~~)")
REFERENCE = {"Modules": "module", "Inventory plugins": "inventory", "Lookups": "lookup", "Filters": "filter", "Recipes": "recipes"}
ITEM = re.compile(r"([*+-]|\d+\.) +")
CONFIGURATION = """\
site_name: Muster
theme: {name: readthedocs, highlightjs: false, navigation_depth: 3}
docs_dir: pages
use_directory_urls: false
markdown_extensions:
  - tables
  - pymdownx.superfences
  - toc: {slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}}
validation:
  omitted_files: warn
  absolute_links: warn
  unrecognized_links: warn
  anchors: warn
"""


def for_mkdocs(text: str) -> str:
    """A page of GitHub's Markdown as Python-Markdown reads it: a blank line before lists and tables, four spaces below an item."""
    out: list[str] = []
    fenced, width = False, 0  # of the marker of the item that the line is below
    for line in text.splitlines():
        if not fenced and line.strip() and not line.startswith(" "):
            item, before = ITEM.match(line), out[-1] if out else ""
            begins = (item and (not width or FENCE.match(before))) or (line.startswith("|") and not before.startswith("|"))
            if begins and before.strip():
                out.append("")
            width = len(item[0]) if item else 0
        below = width and line.strip() and line.startswith(" " * width)
        out.append(" " * (4 - width) + line if below else line)
        if FENCE.match(line):
            fenced = not fenced
    return "\n".join(out) + "\n"


def marked(text: str | list[str]) -> str:
    """A description of ansible-doc as Markdown in one line."""
    return MARKUP.sub(r"`\1`", " ".join(text) if isinstance(text, list) else text)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell(each) for each in line) + " |\n" for line in lines)


def option_rows(options: dict[str, dict[str, Any]], prefix: str = "") -> Iterator[tuple[str, ...]]:
    for name, option in options.items():
        kind = option.get("type", "str") + (f" of {option['elements']}" if "elements" in option else "")
        default = "required" if option.get("required") else code(option["default"]) if option.get("default") is not None else ""
        text = marked(option["description"])
        if "choices" in option:
            text += f" One of {', '.join(code(choice) for choice in option['choices'])}."
        yield f"`{prefix}{name}`", kind, default, text
        yield from option_rows(option.get("suboptions") or {}, f"{prefix}{name}.")


def return_rows(values: dict[str, dict[str, Any]], prefix: str = "") -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield f"`{prefix}{name}`", value.get("type", ""), marked(value.get("returned", "")), marked(value.get("description", ""))
        yield from return_rows(value.get("contains") or {}, f"{prefix}{name}.")


def plugin_page(name: str, found: dict[str, Any]) -> str:
    doc = found["doc"]
    parts = [f"# {name}\n", f"{doc['short_description'].rstrip('.')}.\n"]
    told = doc.get("description") or []
    parts += [f"* {marked(each)}" for each in ([told] if isinstance(told, str) else told)]
    if doc.get("options"):
        parts.append("\n## Options\n\n" + table(("Option", "Type", "Default", ""), [*option_rows(doc["options"])]))
    if found.get("examples"):
        parts.append("\n## Examples\n\n```yaml\n" + found["examples"].strip("\n") + "\n```\n")
    if found.get("return"):
        parts.append("\n## Returns\n\n" + table(("Value", "Type", "When", ""), [*return_rows(found["return"])]))
    return "\n".join(parts) + "\n"


def plugins() -> dict[str, dict[str, Any]]:
    """ansible-doc's answer: type of plugin → name → its documentation."""
    argv = [Path(sys.executable).parent / "ansible-doc", "--metadata-dump", "--no-fail-on-errors", "muster.fleet"]
    dump = json.loads(subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout)["all"]
    return {kind: {name.removeprefix("muster.fleet."): each for name, each in dump[kind].items()} for kind in dump}


def rules_page() -> str:
    rows = [(f"`{name}`", rule.scope, "warns" if rule.warn else "refuses", rule.reason, rule.source) for name, rule in RULES.items()]
    return "# Rules of stacks and launches\n\n[Stacks](../docs/stacks.md) says how they are asked and overridden.\n\n" + table(
        ("Rule", "Scope", "", "Because", "Source"), rows
    )


def probes(data: Any, component: str) -> Iterator[tuple[str, str, str]]:
    """(component, check, remedy) in the tasks of a role."""
    if isinstance(data, list):
        for each in data:
            yield from probes(each, component)
    elif isinstance(data, dict):
        if isinstance(data.get("check"), str) and "remedy" in data:
            yield component, data["check"], str(data["remedy"])
        for each in data.values():
            yield from probes(each, component)


def checks_page() -> str:
    health = [(f"`{each.name}`", ", ".join(each.levels), each.severity, each.remedy) for each in settings.CHECKS]
    own = []
    for path in sorted(ROOT.glob("roles/*/tasks/verify_*.yml")):
        for component, check, remedy in probes(yaml.safe_load(path.read_text()), path.parts[-3]):
            text = re.sub(r"\{\{.*?\}\}", "…", f"{component}.{check}")
            own.append((f"`{text}`", path.stem.removeprefix("verify_"), re.sub(r"\{\{.*?\}\}", "…", remedy)))
    page = "# Checks\n\n[Health](../docs/health.md) explains the checks of `muster-health`. `…` stands for what a role fills in.\n"
    page += "\n## muster-health\n\n" + table(("Check", "Levels", "Severity", "Remedy"), health)
    return page + "\n## Of roles\n\n" + table(("Check", "Phase", "Remedy"), own)


def recipe_page(name: str, recipe: dict[str, Any]) -> str:
    framework = recipe["framework"]
    models = recipe["models"].items()
    rows = [(f"`{model}`", str(each.get("context", "")), ", ".join(f"`{size}`" for size in each["sizes"])) for model, each in models]
    page = f"# {name}\n\n{recipe['about']}\n\n{framework['name']} {framework['version']}. "
    page += "[Recipes](../../docs/recipes.md) says how to run it, and "
    page += f"[recipe.yml](../../recipes/{name}/recipe.yml) has all of it.\n\nLaunchers: {', '.join(recipe['launchers'])}.\n\n"
    return page + table(("Model", "Context", "Sizes for"), rows)


def folder_page(folder: Path) -> str:
    """A page for a link to a folder: its files."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return f"# {folder.relative_to(ROOT)}\n\n" + "".join(
        f"## {path.relative_to(folder)}\n\n```\n{path.read_text()}```\n\n" for path in files
    )


def generated() -> dict[str, str]:
    """{path: text} of the pages made from the code."""
    found = plugins()
    pages = {"reference/rules.md": rules_page(), "reference/checks.md": checks_page()}
    for title, kind in REFERENCE.items():
        if kind == "recipes":
            continue
        rows = []
        for name, each in sorted(found[kind].items()):
            pages[f"reference/{kind}/{name}.md"] = plugin_page(f"muster.fleet.{name}", each)
            rows.append((f"[{name}]({name}.md)", each["doc"]["short_description"]))
        pages[f"reference/{kind}/README.md"] = f"# {title}\n\n" + table(("Name", ""), rows)
    rows = []
    for path in sorted(ROOT.glob("recipes/*/recipe.yml")):
        recipe = yaml.safe_load(path.read_text())
        pages[f"reference/recipes/{path.parent.name}.md"] = recipe_page(path.parent.name, recipe)
        rows.append((f"[{path.parent.name}]({path.parent.name}.md)", recipe["about"]))
    pages["reference/recipes/README.md"] = "# Recipes\n\n" + table(("Recipe", ""), rows)
    return pages


def written() -> dict[str, str]:
    """{path: text} of the pages of the checkout. A link to a folder leads to its README, or to a page with its files."""
    pages = {}
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        text = path.read_text()
        for link, _anchor in LINK.findall(text):
            target = (path.parent / link).resolve()
            if "://" not in link and target.is_dir():
                text = text.replace(f"]({link})", f"]({link.rstrip('/')}/README.md)")
                readme = target / "README.md"
                if not readme.exists():
                    pages[str(readme.relative_to(ROOT))] = folder_page(target)
        pages[str(path.relative_to(ROOT))] = text
    return pages


def linked(pages: dict[str, str]) -> dict[str, Path]:
    """{path: file} of what pages link to and is no page: pictures, recipes, templates."""
    found = {}
    for name, text in pages.items():
        for link, _anchor in LINK.findall(text):
            target = (ROOT / name).parent.joinpath(link).resolve()
            if "://" not in link and target.is_file() and str(target.relative_to(ROOT)) not in pages:
                found[str(target.relative_to(ROOT))] = target
    return found


def navigation(pages: dict[str, str]) -> list[Any]:
    """What the side of each page shows."""

    def below(folder: str) -> list[str]:
        names = sorted(name for name in pages if name.startswith(folder) and "/" not in name.removeprefix(folder))
        return sorted(names, key=lambda name: not name.endswith("README.md"))

    reference = [{title: below(f"reference/{kind}/")} for title, kind in REFERENCE.items()]
    roles = [name for name in pages if name.startswith("roles/")]
    ends = ("README.md", "CONTRIBUTING.md")
    rest = [name for name in pages if name not in ends and not name.startswith(("docs/", "roles/", "trainer/", "reference/"))]
    return [
        "README.md",
        {"Walk-throughs": below("docs/walkthroughs/")},
        {"How to": below("docs/")},
        {"Trainer": [*below("trainer/"), *below("trainer/labs/")]},
        {"Roles": sorted(roles, key=lambda name: (name != "roles/README.md", name))},
        {"Reference": [*below("reference/"), *reference, *rest]},
        "CONTRIBUTING.md",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="where the pages go; it is made anew")
    folder = parser.parse_args().folder
    pages = {**written(), **generated()}
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages.items():
        (folder / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pages" / name).write_text(for_mkdocs(text))
    for name, path in linked(pages).items():
        (folder / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / "pages" / name)
    (folder / "mkdocs.yml").write_text(CONFIGURATION + yaml.safe_dump({"nav": navigation(pages)}, sort_keys=False))
    print(f"{len(pages)} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
