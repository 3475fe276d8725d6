# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The tables of variables in the READMEs, and the agreement of specs and defaults."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("role_readmes", ROOT / "tools/role_readmes.py")
assert SPEC and SPEC.loader
role_readmes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(role_readmes)

SPECS = """
argument_specs:
  main: &main
    short_description: x
    options:
      efa_version: {type: str, required: true, description: Its version.}
      efa_users:
        type: list
        elements: dict
        default: [{name: a}]
        description: [Who may., "See C(a|b), and O(efa_version)."]
        options:
          name: {description: A name., required: true, choices: [a, b]}
  install: *main
"""
TABLE = r"""<!-- options -->
| Variable | Type | Default | |
| --- | --- | --- | --- |
| `efa_version` | str | required | Its version. |
| `efa_users` | list of dict | `[{name: a}]` | Who may. See `a\|b`, and `efa_version`. |
| `efa_users.name` | str | required | A name. One of `a`, `b`. |
<!-- /options -->
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("roles/efa/meta", "roles/efa/defaults", "playbooks/meta", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "roles/efa/meta/argument_specs.yml").write_text(SPECS)
    (tmp_path / "roles/efa/defaults/main.yml").write_text("efa_users: [{name: a}]\n")
    (tmp_path / "roles/efa/README.md").write_text("# efa\n\n<!-- options -->\nold\n<!-- /options -->\nafter\n")
    (tmp_path / "playbooks/meta/argument_specs.yml").write_text("argument_specs: {site: {options: {}}}\n")
    (tmp_path / "playbooks/vars").mkdir()
    (tmp_path / "playbooks/vars/components.yml").write_text("component_table: [{name: efa, groups: [muster_efa]}]\n")
    (tmp_path / "docs/variables.md").write_text("<!-- options -->\n<!-- /options -->\n")
    return tmp_path


def test_table_is_written_once_and_checked(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert role_readmes.main(["--check"], checkout) == 1
    assert "roles/efa/README.md: the table is not current; run `make docs`" in capsys.readouterr().out
    assert role_readmes.main([], checkout) == 0
    assert (checkout / "roles/efa/README.md").read_text() == f"# efa\n\n{TABLE}after\n"
    assert role_readmes.main(["--check"], checkout) == 0


@pytest.mark.parametrize(
    ("defaults", "fault"),
    [
        (
            "efa_users: [{name: b}]",
            "roles/efa: efa_users is [{'name': 'b'}] in defaults/main.yml and [{'name': 'a'}] in meta/argument_specs.yml",
        ),
        ("{}", "roles/efa: efa_users has no default in defaults/main.yml"),
        ("{efa_users: [{name: a}], efa_version: 1}", "roles/efa: efa_version is required and has a default"),
        ("{efa_users: [{name: a}], efa_old: 1}", "roles/efa: efa_old stands in defaults/main.yml and not in meta/argument_specs.yml"),
    ],
)
def test_disagreements_are_named(checkout: Path, capsys: pytest.CaptureFixture[str], defaults: str, fault: str) -> None:
    (checkout / "roles/efa/defaults/main.yml").write_text(defaults)
    assert role_readmes.main([], checkout) == 1
    assert fault in capsys.readouterr().out


def test_entry_points_share_one_block(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(SPECS)
    document["argument_specs"]["install"] = {"options": {"efa_version": {"description": "Another."}}}
    (checkout / "roles/efa/meta/argument_specs.yml").write_text(yaml.safe_dump(document))
    assert role_readmes.main([], checkout) == 1
    assert "roles/efa: entry point main describes efa_version unlike another" in capsys.readouterr().out
