# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.basics import closest, nearest, read_attribute, read_text


def test_an_unknown_word_gets_the_nearest_or_all_that_are_known() -> None:
    assert nearest("comptue", {"login", "compute"}) == "did you mean compute?"
    assert nearest("x", {"login", "compute"}) == "known are compute, login."
    assert closest(26, [25, 26]) == ["26"]
    assert closest("x", ["login"], cutoff=0) == ["login"]


def test_a_missing_file_is_the_default_or_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_text(str(path), "") == ""
    assert read_text(str(path / "below"), "") == ""
    with pytest.raises(FileNotFoundError, match=str(path)):
        read_text(str(path))
    path.write_bytes(b"caf\xe9 \n")
    assert read_text(str(path)) == "caf\N{REPLACEMENT CHARACTER} \n"
    assert read_text(str(path), "") == read_text(str(path))
    with pytest.raises(NotADirectoryError, match="below"):
        read_text(str(path / "below"))


def test_only_a_missing_file_is_the_default(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_text(str(tmp_path), "")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        read_text(str(tmp_path / "loop"), "")


def test_an_attribute_of_the_kernel_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    (tmp_path / "vendor").write_text("0x10de\n", encoding="utf-8")
    assert read_attribute(str(tmp_path / "vendor")) == "0x10de"
    assert read_attribute(str(tmp_path)) == read_attribute(str(tmp_path / "none")) == ""
    assert read_attribute(f"/proc/{os.getpid()}/comm")
