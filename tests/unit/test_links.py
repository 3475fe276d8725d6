# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Links between the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("roles/*/README.md"), *ROOT.glob("trainer/**/*.md")})


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in addresses."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    wrong, seen = [], 0
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in link:
                continue
            seen += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert not wrong, wrong
    assert seen >= 80


def test_the_picture_of_the_architecture_names_files_that_exist() -> None:
    rows = re.findall(r"^\| (?!Box|---)([^|]+) \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs/architecture.md").read_text(), re.M)
    picture = ElementTree.parse(ROOT / "docs/architecture.svg").getroot()
    boxes = [each.text for each in picture.iter() if each.get("class") == "box"]
    assert sorted(boxes) == sorted(name for name, _files in rows) and len(boxes) >= 15
    for name, files in rows:
        named = re.findall(r"`([^`]+)`", files)
        assert named and not [each for each in named if not (ROOT / each).is_file()], f"{name}: {files}"
    arrows = [each.get("id", "").replace("_", " ").split("--") for each in picture.iter() if each.get("class") == "arrow"]
    assert set(boxes) == {end for arrow in arrows for end in arrow}, "each arrow leads from box to box, and each box has one"
