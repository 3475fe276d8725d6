# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The data set: the same bytes for the same seed, nothing overwritten, every window once per pass."""

import json
import os
from pathlib import Path

import pytest

from trainer.cli import LocalError, UsageError
from trainer.data import prepare, tokens


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert tokens.prepare(tmp_path / name, 5000, seed, 256)
    a, b, c = ((tmp_path / name / "tokens.bin").read_bytes() for name in "abc")
    assert a == b != c
    # The data of a published run must be the same next year.
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert index["sha256"] == "c7c46f3bacea094c72931e529b493cea51393809b8801b0614208b7316195161"


def test_a_second_run_says_that_it_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--out", str(tmp_path / "d"), "--tokens", "1000", "--seed", "3"]
    prepare.main(argv)
    written = (tmp_path / "d" / "tokens.bin").stat().st_mtime_ns
    prepare.main(argv)
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/d: 1000 tokens written",
        f"{tmp_path}/d: 1000 tokens are already there",
    ]
    assert (tmp_path / "d" / "tokens.bin").stat().st_mtime_ns == written


def test_damaged_tokens_are_written_again(tmp_path: Path) -> None:
    tokens.prepare(tmp_path, 1000, 3, 256)
    content = (tmp_path / "tokens.bin").read_bytes()
    (tmp_path / "tokens.bin").write_bytes(b"\0\0" + content[2:])
    assert tokens.prepare(tmp_path, 1000, 3, 256)
    assert (tmp_path / "tokens.bin").read_bytes() == content


def test_two_writers_of_one_data_set_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As jobs of a sweep whose first ranks make the data: the second begins and ends while the first has yet to rename its file."""
    rename = os.replace

    def replace(old: Path, new: Path) -> None:
        monkeypatch.setattr(os, "replace", rename)
        assert tokens.prepare(tmp_path, 4096, 1, 256)
        rename(old, new)

    monkeypatch.setattr(os, "replace", replace)
    assert tokens.prepare(tmp_path, 4096, 1, 256)
    assert not tokens.prepare(tmp_path, 4096, 1, 256)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["index.json", "tokens.bin"]


def test_another_data_set_is_not_overwritten(tmp_path: Path) -> None:
    tokens.prepare(tmp_path, 1000, 3, 256)
    with pytest.raises(UsageError, match="holds another data set"):
        tokens.prepare(tmp_path, 1000, 4, 256)


def test_a_cut_or_missing_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="holds no data set"):
        tokens.read_index(tmp_path)
    tokens.prepare(tmp_path, 1000, 3, 256)
    (tmp_path / "tokens.bin").write_bytes(b"\0" * 100)
    with pytest.raises(LocalError, match="damaged"):
        tokens.read_index(tmp_path)


@pytest.mark.parametrize("windows", [1, 2, 3, 17, 64, 1000])
def test_each_pass_reads_every_window_once(windows: int) -> None:
    passes = [[tokens.window_of(7, sample, windows) for sample in range(turn * windows, (turn + 1) * windows)] for turn in range(2)]
    assert all(sorted(order) == list(range(windows)) for order in passes)
    if windows >= 17:
        assert passes[0] != passes[1] != sorted(passes[1])
        assert passes[0] != [tokens.window_of(8, sample, windows) for sample in range(windows)]
