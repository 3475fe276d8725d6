# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Streamed text, tokenised and packed into samples while it is read.

The data is cut into V streams, whatever the number of ranks. Global sample n is the next sample of stream n mod V. If the number D of data
ranks divides V, each rank reads its own streams only; for any other D the order is the same, but several ranks read the same text.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.cli import LocalError, UsageError
from trainer.config import DataFlags
from trainer.data.documents import Chosen, Documents, Streamed, reader_of
from trainer.data.tokenizer import Tokenizer
from trainer.hub import hub_errors
from trainer.loss import IGNORED

DATA = re.compile(r"\.(csv|tsv|json|jsonl|ndjson|parquet|txt)(\.(gz|bz2|xz|zst|lz4))?$")
DOCUMENTS = 32  # tokenised together: the tokenizer works on them in parallel


class Stream:
    """Samples of one stream: its documents in a row, each with the tokenizer's end token, cut into windows of equal length."""

    def __init__(self, documents: Documents, tokenizer: Tokenizer, context: int, name: str, offline: str) -> None:
        self.documents, self.tokenizer, self.context, self.name, self.offline = documents, tokenizer, context, name, offline
        self.samples = self.at = 0
        self.tokens = self.targets = np.empty(0, dtype=np.int32)
        # The states before each group of documents: samples so far, the documents' cursor, and the tokens and targets left over.
        self.marks: deque[tuple[int, Any, Any, Any]] = deque()

    def take(self) -> tuple[Any, Any]:
        """The next sample, context + 1 long: its tokens, and its targets, which are IGNORED where the loss does not count."""
        while len(self.tokens) - self.at <= self.context:
            self._refill()
        start, self.at, self.samples = self.at, self.at + self.context, self.samples + 1
        return self.tokens[start : self.at + 1], self.targets[start : self.at + 1]

    def _refill(self) -> None:
        left, targets = self.tokens[self.at :], self.targets[self.at :]
        self.marks.append((self.samples, self.documents.cursor(), left, targets))
        with hub_errors(f"{self.name}, after document {self.documents.given},", self.offline):
            documents = self.documents.read(DOCUMENTS)
            encoded = iter(self.tokenizer.encode([text for parts in documents for text, _ in parts]))
        tokens, goals = [left], [targets]
        for parts in documents:
            for _, counts in parts:
                ids = np.asarray(next(encoded), dtype=np.int32)
                tokens.append(ids)
                goals.append(ids if counts else np.full_like(ids, IGNORED))
            end = np.array([self.tokenizer.end], dtype=np.int32)
            tokens.append(end)
            goals.append(end)
        self.tokens, self.targets, self.at = np.concatenate(tokens), np.concatenate(goals), 0

    def forget(self, samples: int) -> None:
        while len(self.marks) > 1 and self.marks[1][0] <= samples:
            self.marks.popleft()

    def state(self, samples: int) -> str:
        """The state after `samples` samples, which may be fewer than were taken."""
        self.forget(samples)
        at, cursor, left, targets = self.marks[0]
        return json.dumps({"samples": at, "cursor": cursor, "tokens": left.tolist(), "targets": targets.tolist()})

    def restore(self, state: str) -> None:
        saved = json.loads(state)
        self.documents.seek(saved["cursor"])
        self.samples, self.at = saved["samples"], 0
        self.tokens, self.targets = (np.array(saved[name], dtype=np.int32) for name in ("tokens", "targets"))
        self.marks = deque([(self.samples, saved["cursor"], self.tokens, self.targets)])


class Streams:
    """All streams of a data set, opened when a rank first needs them."""

    def __init__(self, name: str, make: Callable[[int], Documents], count: int, tokenizer: Tokenizer, context: int, **more: Any) -> None:
        self.name, self.make, self.count, self.tokenizer, self.context = name, make, count, tokenizer, context
        self.identity, self.masked, self.offline = more["identity"], more["masked"], more["offline"]
        self.streams: dict[int, Stream] = {}

    def stream(self, number: int) -> Stream:
        if number not in self.streams:
            name = f"part {number} of data set {self.name}"
            self.streams[number] = Stream(self.make(number), self.tokenizer, self.context, name, self.offline)
        return self.streams[number]

    def rows(self, numbers: list[int]) -> tuple[Any, Any]:
        """The samples `numbers`: (samples, context + 1) tokens and None, or inputs and targets if not all tokens count."""
        tokens, targets = (np.empty((len(numbers), self.context + 1), dtype=np.int64) for _ in range(2))
        for row, number in enumerate(numbers):
            stream = self.stream(number % self.count)
            wanted = number // self.count
            assert stream.samples <= wanted, "samples must be read in rising order"
            while stream.samples <= wanted:
                tokens[row], targets[row] = stream.take()
        return (tokens[:, :-1], targets[:, 1:]) if self.masked else (tokens, None)

    def before(self, number: int, stream: int) -> int:
        """How many of the samples before `number` this stream gives."""
        return max(0, -(-(number - stream) // self.count))

    def keys(self, rank: int, ranks: int) -> list[str]:
        """The streams that data rank `rank` of `ranks` reads."""
        return [f"stream-{number}" for number in sorted({(rank + turn * ranks) % self.count for turn in range(self.count)})]

    def state(self, number: int) -> dict[str, str]:
        """The state of each stream of this rank after all samples before `number`."""
        return {
            f"stream-{key}": stream.state(before)
            for key, stream in self.streams.items()
            if (before := self.before(number, key)) and stream.marks
        }

    def taken(self, number: int) -> list[str]:
        """The streams of all ranks that give samples before `number`."""
        return [f"stream-{key}" for key in range(self.count) if self.before(number, key)]

    def forget(self, number: int) -> None:
        """Drop the states from before the sample `number`."""
        for key, stream in self.streams.items():
            stream.forget(self.before(number, key))

    def restore(self, states: Mapping[str, str]) -> None:
        for key, state in states.items():
            self.stream(int(key.removeprefix("stream-"))).restore(state)

    def where(self, number: int) -> str:
        return f"sample {number // self.count} of stream {number % self.count}"


def open_streams(config: DataFlags, split: str, tokenizer: Tokenizer, context: int) -> Streams:
    """A split of the hub's data set, or of the folder, that `config` names; raises UsageError or LocalError."""
    import datasets

    datasets.disable_progress_bars()
    path, count = config.dataset_path, config.data_streams
    name = path or config.dataset
    offline = "" if path else "use --dataset_path"
    with hub_errors(f"data set {name}", offline):
        if path and any((Path(path) / file).exists() for file in ("dataset_dict.json", "state.json")):
            whole = datasets.load_from_disk(path)
            if isinstance(whole, datasets.DatasetDict):
                whole = split_of(whole, split, name)
        elif path:
            whole = split_of(open_files(Path(path)), split, name)
        else:
            configuration = config.dataset_config_name or ("en" if name == "allenai/c4" else None)
            whole = split_of(streamed(datasets.load_dataset_builder(name, configuration)), split, name)
        columns = whole.column_names or list(next(iter(whole), {}))
        saved = isinstance(whole, datasets.Dataset)
        if not columns or (saved and not len(whole)):
            raise UsageError(f"data set {name} has no documents")
        parts = reader_of(columns, name)
    identity = f"{Path(path).resolve().name if path else name}/{config.dataset_config_name or ''}/{split} {tokenizer.identity}"
    if not saved:
        count = min(count, whole.num_shards)

    def make(number: int) -> Documents:
        if saved:
            return Chosen(whole, parts, config.seed, number, count)
        return Streamed(lambda: whole.shard(num_shards=count, index=number), parts, name)

    identity += f" {config.seed} {count}" if saved else f" {count}"
    return Streams(name, make, count, tokenizer, context, identity=identity, masked="text" not in columns, offline=offline)


def streamed(builder: Any) -> Any:
    """The splits of a data set, which are read when they are needed. A file of plain text is one document."""
    if builder.name == "text":
        builder.config.sample_by = "document"
    return builder.as_streaming_dataset()


def open_files(folder: Path) -> Any:
    """The splits of a folder of files; raises UsageError if `datasets` would leave a file of data out."""
    import datasets

    if not folder.is_dir():
        raise LocalError(f"{folder} holds no data set: make one with `python -m trainer prepare-data --out {folder} …`")
    try:
        # `datasets` takes a relative name such as `csv` for a format.
        builder = datasets.load_dataset_builder(str(folder.resolve()))
    except FileNotFoundError:
        raise UsageError(
            f"{folder} holds no data set: give a folder with tokens, a saved set, or json, parquet, csv or text files"
        ) from None
    read = {Path(file).resolve() for files in builder.config.data_files.values() for file in files}
    there = [file for file in sorted(folder.rglob("*")) if DATA.search(file.name) and not file.name.startswith((".", "dataset_info"))]
    left = [file for file in there if file.resolve() not in read]
    # A README may choose the files.
    if left and "data_files" not in ((folder / "README.md").read_text() if (folder / "README.md").exists() else ""):
        raise UsageError(f"{folder}: {left[0].name} would not be read beside {min(read).name}: put it into a folder of its own")
    return streamed(builder)


def split_of(splits: Mapping[str, Any], wanted: str, name: str) -> Any:
    """The split `wanted`; `test` also serves as validation."""
    for split in (wanted, "test") if wanted == "validation" else (wanted,):
        if split in splits:
            return splits[split]
    remedy = "leave --validation_freq out" if wanted == "validation" else "choose another data set"
    raise UsageError(f"data set {name} has no split {wanted}, it has {', '.join(splits)}: {remedy}")
