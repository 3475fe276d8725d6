# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Text that the ranks of a job tokenise into one folder: nothing lost or twice, the same on any number of ranks, continued after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.cli import LocalError, UsageError
from trainer.tests.conftest import HUB
from trainer.tests.hub import Hub, text_of, write_c4
from trainer.tests.ranks import NO_TORCH

pytest.importorskip("torch", reason=NO_TORCH)
pytest.importorskip("tokenizers", reason="datasets and tokenizers are not installed: `pip install ./trainer[hf]` brings them")

import numpy as np

from trainer.config import DataFlags
from trainer.data import prepare, tokenise, tokens
from trainer.data.loader import open_source

FILES, DOCUMENTS = 3, 20


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of json files, and their documents."""
    folder = tmp_path / "text"
    folder.mkdir()
    for part in range(FILES):
        lines = [json.dumps({"text": text_of(part, number)}) for number in range(DOCUMENTS)]
        (folder / f"part-{part}.json").write_text("\n".join(lines))
    return folder


def run(monkeypatch: pytest.MonkeyPatch, out: Path, rank: int, ranks: int, *words: str) -> int:
    for name, value in {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    return prepare.main(["--out", str(out), "--timeout", "1", *words])


def content(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(out.glob("part-*.bin"))]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_document_is_there_once_on_any_number_of_ranks(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    for rank in reversed(range(ranks)):
        assert run(monkeypatch, tmp_path / "out", rank, ranks, "--dataset_path", str(text), "--tokenizer", "bytes") == 0
    found = content(tmp_path / "out")
    assert len(found) == FILES
    for part, each in enumerate(found):
        documents = bytes(np.frombuffer(each, dtype="<u2").astype(np.uint8)).split(b"\0")
        assert documents == [text_of(part, number).encode() for number in range(DOCUMENTS)] + [b""]
    index = tokens.read_index(tmp_path / "out")
    assert index["tokens"] == sum(len(each) // 2 for each in found) and index["vocab_size"] == 256


def test_a_run_reads_windows_of_one_file_each(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, tmp_path / "out", 0, 1, "--dataset_path", str(text), "--vocab_size", "256")
    source = open_source(DataFlags(dataset_path=str(tmp_path / "out"), validation_freq=None), 256, 32)
    files = [np.frombuffer(each, dtype="<u2").astype(np.int64) for each in content(tmp_path / "out")]
    whole = sorted(file[at : at + 33].tolist() for file in files for at in range(0, len(file) - 32, 32))
    assert source.windows == len(whole)
    rows, nothing = source.rows(list(range(source.windows)))
    assert nothing is None and sorted(rows.tolist()) == whole


def test_a_killed_job_continues_with_the_parts_that_it_lacks(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, write_part, out = ("--dataset_path", str(text), "--tokenizer", "bytes"), tokenise.write_part, tmp_path / "out"

    def killed(*arguments: Any) -> dict[str, Any]:
        path, asked, groups, *more = arguments
        return write_part(path, asked, dying(groups) if path.name == "part-00001.bin" else groups, *more)

    def dying(groups: Any) -> Any:
        yield next(groups)
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenise, "write_part", killed)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, out, 0, 1, *words)
    assert sorted(path.name for path in out.iterdir()) == ["part-00000.bin", "part-00000.json"]
    with pytest.raises(LocalError, match="holds no data set"):
        tokens.read_index(out)
    before = (out / "part-00000.bin").stat().st_mtime_ns
    monkeypatch.setattr(tokenise, "write_part", write_part)
    assert run(monkeypatch, out, 0, 1, *words) == 0
    assert (out / "part-00000.bin").stat().st_mtime_ns == before and len(content(out)) == FILES


def test_a_large_vocabulary_has_wide_tokens(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Large:
        identity, size, end = "large", 128256, 128001

        def encode(self, texts: list[str]) -> list[Any]:
            return [[len(each), 100_000 + len(each)] for each in texts]

    monkeypatch.setattr(tokenise, "open_tokenizer", lambda *_arguments: Large())
    run(monkeypatch, tmp_path / "out", 0, 1, "--dataset_path", str(text), "--tokenizer", "large")
    source = open_source(DataFlags(dataset_path=str(tmp_path / "out"), validation_freq=None), 128256, 3)
    rows, _nothing = source.rows(list(range(source.windows)))
    assert {tuple(row[:3]) for row in rows.tolist()} == {
        (size, 100_000 + size, 128001) for part in range(FILES) for size in [len(text_of(part, number)) for number in range(DOCUMENTS - 1)]
    }
    with pytest.raises(UsageError, match="is below the 128256"):
        open_source(DataFlags(dataset_path=str(tmp_path / "out")), 32000, 3)


def test_a_set_of_the_hub_and_a_saved_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    import datasets

    server: Hub = request.config.stash[HUB]
    write_c4(server.folder / "datasets/other/c4", 8, 90)
    words = ("--dataset", "other/c4", "--dataset_config_name", "en", "--vocab_size", "256", "--parts", "4", "--tokens", "4000")
    run(monkeypatch, tmp_path / "hub", 0, 1, *words)
    assert [len(each) for each in content(tmp_path / "hub")] == [2000] * 4
    texts = [text_of(9, number) for number in range(10)]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "saved"))
    run(monkeypatch, tmp_path / "out", 0, 1, "--dataset_path", str(tmp_path / "saved"), "--tokenizer", "bytes", "--parts", "3")
    found = b"".join(bytes(np.frombuffer(each, dtype="<u2").astype(np.uint8)) for each in content(tmp_path / "out"))
    assert sorted(found.split(b"\0")[:-1]) == sorted(each.encode() for each in texts)


def test_what_cannot_be_tokenised_is_refused(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, out = ("--dataset_path", str(text), "--tokenizer", "bytes"), tmp_path / "out"
    with pytest.raises(UsageError, match="no tokenizer is named: give --tokenizer, or --vocab_size of the model"):
        run(monkeypatch, out, 0, 1, *words[:2])
    with pytest.raises(LocalError, match="out lacks 1 parts after 1 s, part 1 first: look at the other ranks"):
        run(monkeypatch, out, 0, 2, *words)
    with pytest.raises(UsageError, match=r"holds another data set \(text//train bytes 3\): choose another --out"):
        run(monkeypatch, out, 0, 2, *words, "--tokens", "100")
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked/data.json").write_text('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(UsageError, match="has questions and answers, and tokens do not say which count: train from it directly"):
        run(monkeypatch, out, 0, 1, "--dataset_path", str(tmp_path / "asked"), "--tokenizer", "bytes")
    with pytest.raises(LocalError, match=r"--out .*part-0.json/out cannot be written \(Not a directory\)"):
        run(monkeypatch, text / "part-0.json" / "out", 0, 1, *words)
