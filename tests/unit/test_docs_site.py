# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The source of the documentation site has a page for everything, and its links lead somewhere."""

from __future__ import annotations

from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

import docs_site
import pytest
from doc_names import ROOT

from ansible_collections.muster.fleet.plugins.module_utils.health import settings
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import RULES


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {**docs_site.written(), **docs_site.generated()}


def test_everything_has_a_page(pages: dict[str, str]) -> None:
    for kind, folder in (("module", "modules"), ("inventory", "inventory"), ("lookup", "lookup"), ("filter", "filter")):
        names = {
            path.stem for path in (ROOT / "plugins" / folder).glob("*.py" if kind == "module" else "*") if path.suffix in (".py", ".yml")
        }
        made = {name.split("/")[-1].removesuffix(".md") for name in pages if name.startswith(f"reference/{kind}/")} - {"README"}
        # A file of filters may have several, each with a .yml of its own.
        assert made and made - names == set() and (kind == "filter" or made == names), kind
    roles = {path.parent.name for path in ROOT.glob("roles/*/README.md")}
    assert roles and roles == {name.split("/")[1] for name in pages if name.startswith("roles/") and name.count("/") == 2}
    recipes = {path.parent.name for path in ROOT.glob("recipes/*/recipe.yml")}
    assert recipes and recipes == {name.split("/")[-1][:-3] for name in pages if name.startswith("reference/recipes/")} - {"README"}


def test_all_rules_and_checks_stand_on_their_pages(pages: dict[str, str]) -> None:
    assert len(RULES) > 30 and not [name for name in RULES if f"| `{name}` |" not in pages["reference/rules.md"]]
    checks = pages["reference/checks.md"]
    assert not [each.name for each in settings.CHECKS if f"| `{each.name}` |" not in checks]
    for name in ("common.limits_file", "common.hugepages", "slurm.munge_active"):
        assert f"| `{name}` |" in checks, name
    assert "{{" not in checks


def test_links_of_the_site_lead_somewhere(pages: dict[str, str]) -> None:
    known = {*pages, *docs_site.linked(pages)}
    wrong, seen = [], 0
    for name, text in pages.items():
        for link, _anchor in docs_site.LINK.findall(text):
            if "://" not in link:
                seen += 1
                if normpath(PurePosixPath(name).parent / link) not in known:
                    wrong.append(f"{name}: {link}")
    assert not wrong
    assert seen > 300
    assert not [name for name in known - set(pages) if name.endswith(".md")], "a Markdown file is a page"


def test_each_page_stands_once_in_the_navigation(pages: dict[str, str]) -> None:
    def leaves(tree: Any) -> list[str]:
        if isinstance(tree, str):
            return [tree]
        return [leaf for each in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(each)]

    assert sorted(leaves(docs_site.navigation(pages))) == sorted(pages)


def test_options_and_values_of_a_module_are_tables(pages: dict[str, str]) -> None:
    page = pages["reference/module/job_document.md"]
    assert "| `path` | path | required | The file. |" in page
    assert "| `identity` | str | success | The sha256 of the document, by which a job is known. |" in page
    assert "With `render` the answer has" in page, "V(render) is code"


@pytest.mark.parametrize(
    ("github", "mkdocs"),
    [
        ("Text:\n* a\n* b\n", "Text:\n\n* a\n* b\n"),
        ("Text:\n| a |\n|---|\n", "Text:\n\n| a |\n|---|\n"),
        ("* a\n  more\n  ```sh\n  x\n  ```\n* b\n", "* a\n    more\n    ```sh\n    x\n    ```\n\n* b\n"),
        ("1. a\n   more\n\ntext\n  indented\n", "1. a\n    more\n\ntext\n  indented\n"),
        ("```sh\nx\n* no list\n```\n", "```sh\nx\n* no list\n```\n"),
    ],
)
def test_markdown_of_github_becomes_that_of_mkdocs(github: str, mkdocs: str) -> None:
    assert docs_site.for_mkdocs(github) == mkdocs
