# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Text of the Hugging Face library `datasets`, tokenised and packed while it is read.

The data is cut into V virtual streams, whatever the number of ranks. Global sample n is the next one of stream n mod V, and data rank r
of D takes the samples n = r mod D: where D divides V, each rank reads its own streams and nothing else; for any other D the order is the
same, only some text is read by several ranks. A stream's place is where its reader stood, what was left over then, and how many samples it
has given since.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainer.config import LocalError, TrainConfig, UsageError

IGNORED = -100  # a target that the loss leaves out, as in F.cross_entropy
DOCUMENTS = 32  # tokenised together: the tokenizer works on them in parallel

# The tokenizer whose vocabulary a model of this size was trained with.
TOKENIZERS = {
    256: "bytes",
    32000: "hf-internal-testing/llama-tokenizer",
    32768: "mistralai/Mathstral-7B-v0.1",
    50432: "EleutherAI/gpt-neox-20b",
    128256: "meta-llama/Llama-3.1-8B",
}
ENDS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>")

# Columns of instruction sets: what is asked (the first that is there, with its addition), and what has to be answered.
QUESTIONS = (("prompt", None), ("instruction", "input"), ("question", "context"), ("query", None))
ANSWERS = ("completion", "response", "output", "answer")
TURNS = ("messages", "conversations")

# A document is its parts in their order, each with whether the loss counts it.
Parts = list[tuple[str, bool]]


def reader_of(columns: list[str], name: str) -> Callable[[Mapping[str, Any]], Parts]:
    """How a record of these columns becomes text; raises UsageError where none of them has any."""
    if "text" in columns:
        return lambda record: [(record["text"] or "", True)]
    for column in TURNS:
        if column in columns:
            return lambda record: conversation(record[column])
    for question, addition in QUESTIONS:
        for answer in ANSWERS:
            if question in columns and answer in columns:
                parts = [question] + ([addition] if addition in columns else [])

                def pair(record: Mapping[str, Any], answer: str = answer, parts: list[str] = parts) -> Parts:
                    asked = "\n\n".join(record[part] for part in parts if record[part])
                    return [(asked + "\n\n", False), (record[answer] or "", True)]

                return pair
    raise UsageError(f"data set {name} has no text: its columns are {', '.join(columns)}; wanted is text, messages, or prompt and response")


def conversation(turns: list[Mapping[str, Any]]) -> Parts:
    """The turns of a conversation; the loss counts the assistant's."""
    parts: Parts = []
    for turn in turns:
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value")) or ""
        parts += [(f"{role}:\n", False), (content + "\n", role in ("assistant", "gpt"))]
    return parts


class Tokenizer(Protocol):
    identity: str
    size: int
    end: int

    def encode(self, texts: list[str]) -> list[Any]: ...


class Bytes:
    """The bytes of the text; zero ends a document. Needs no file."""

    identity, size, end = "bytes", 256, 0

    def encode(self, texts: list[str]) -> list[Any]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]


class Fast:
    """A tokenizer.json. Special tokens are not added: the packing ends every document itself, once."""

    def __init__(self, file: Path, end: str | None) -> None:
        import tokenizers

        self.identity = hashlib.sha256(file.read_bytes()).hexdigest()
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        ids = [self.tokenizer.token_to_id(token) for token in ([end] if end else ENDS)]
        found = [number for number in ids if number is not None]
        if not found:
            raise UsageError(f"{file} has no token that ends a document ({end or ', '.join(ENDS)}): name another --tokenizer")
        self.end = found[0]

    def encode(self, texts: list[str]) -> list[Any]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


@contextlib.contextmanager
def hub_errors(what: str, offline: str) -> Iterator[None]:
    """Turns what the hub's libraries raise about `what` into one sentence. Their own texts are long, and name no remedy of ours."""
    try:
        yield
    except (UsageError, LocalError):
        raise
    except Exception as error:
        chain: list[Any] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
            chain.append(cause)
        names = [type(link).__name__ for link in chain]
        status = next((link.response.status_code for link in chain if getattr(link, "response", None) is not None), None)
        text = str(error)
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        if status in (401, 403) or "GatedRepoError" in names or "gated dataset" in text:
            token = "the HF_TOKEN of the environment may not read it" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
            raise UsageError(
                f"{what} is gated, private or not there for this user, and {token}: accept its terms on the hub and set HF_TOKEN"
            ) from None
        if status == 404 or {"RepositoryNotFoundError", "DatasetNotFoundError", "EntryNotFoundError", "FileNotFoundError"} & set(names):
            raise UsageError(f"{what} is not on {endpoint}: look at its name, or {offline}") from None
        if isinstance(error, ValueError) and "BuilderConfig" in text:
            raise UsageError(f"{what}: {text.splitlines()[0]}: choose one with --dataset_config_name") from None
        if isinstance(error, OSError) or {"ConnectError", "ConnectTimeout", "LocalEntryNotFoundError", "OfflineModeIsEnabled"} & set(names):
            raise LocalError(f"{what} cannot be read from {endpoint} ({names[-1]}): look at the network, or {offline}") from None
        raise


def open_tokenizer(name: str | None, vocab_size: int) -> Tokenizer:
    """The tokenizer called `name`, or the one for the vocabulary; raises UsageError where it does not fit into `vocab_size`."""
    name = name or TOKENIZERS.get(vocab_size)
    if name is None:
        raise UsageError(f"no tokenizer is known for a vocabulary of {vocab_size}: name one with --tokenizer")
    tokenizer: Tokenizer
    if name == "bytes":
        tokenizer = Bytes()
    else:
        place = Path(name)
        if place.suffix == ".json" or place.is_dir():
            file = place / "tokenizer.json" if place.is_dir() else place
            settings = file.with_name("tokenizer_config.json")
            if not file.exists():
                raise LocalError(f"{file} is not there: --tokenizer wants a tokenizer.json, or a folder with one")
        else:
            from huggingface_hub import hf_hub_download

            with hub_errors(f"tokenizer {name}", "give a local one with --tokenizer FOLDER"):
                file = Path(hf_hub_download(name, "tokenizer.json"))
                settings = Path(hf_hub_download(name, "tokenizer_config.json"))
        end = json.loads(settings.read_text()).get("eos_token") if settings.exists() else None
        tokenizer = Fast(file, end["content"] if isinstance(end, dict) else end)
    if tokenizer.size > vocab_size:
        raise UsageError(
            f"tokenizer {name} has {tokenizer.size} tokens, the model {vocab_size}: raise --vocab_size or choose another --tokenizer"
        )
    return tokenizer


class Documents(Protocol):
    """The endless documents of one stream: after the last comes the first again."""

    def read(self, count: int) -> list[Parts]: ...
    def cursor(self) -> Any: ...
    def seek(self, cursor: Any) -> None: ...


class Streamed:
    """Documents of a shard of an IterableDataset, in its order: its own cursor is exact because nothing is shuffled in memory."""

    def __init__(self, shard: Callable[[], Any], parts: Callable[[Mapping[str, Any]], Parts], name: str) -> None:
        self.shard, self.parts, self.name = shard, parts, name
        self.passes = self.given = 0
        self._open(None)

    def _open(self, state: dict[str, Any] | None) -> None:
        self.dataset = self.shard()
        if state is not None:
            self.dataset.load_state_dict(state)
        self.records = iter(self.dataset)

    def read(self, count: int) -> list[Parts]:
        documents: list[Parts] = []
        with hub_errors(f"data set {self.name}", "use --dataset_path"):
            while len(documents) < count:
                record = next(self.records, None)
                if record is not None:
                    documents.append(self.parts(record))
                    self.given += 1
                elif self.given:
                    self.passes, self.given = self.passes + 1, 0
                    self._open(None)
                else:
                    raise UsageError(f"data set {self.name} has a part without a single document: lower --data_streams")
        return documents

    def cursor(self) -> Any:
        return {"passes": self.passes, "given": self.given, "state": self.dataset.state_dict()}

    def seek(self, cursor: Any) -> None:
        self.passes, self.given = cursor["passes"], cursor["given"]
        self._open(cursor["state"])


class Chosen:
    """Documents of a Dataset in a folder: in each pass all of them once over all streams, in the order of the seed."""

    def __init__(self, dataset: Any, parts: Callable[[Mapping[str, Any]], Parts], seed: int, stream: int, streams: int) -> None:
        self.dataset, self.parts, self.seed, self.stream, self.streams = dataset, parts, seed, stream, streams
        self.given = 0

    def read(self, count: int) -> list[Parts]:
        from trainer.data import window_of

        numbers = [number * self.streams + self.stream for number in range(self.given, self.given + count)]
        self.given += count
        columns = self.dataset[[window_of(self.seed, number, len(self.dataset)) for number in numbers]]
        return [self.parts({name: values[place] for name, values in columns.items()}) for place in range(count)]

    def cursor(self) -> Any:
        return self.given

    def seek(self, cursor: Any) -> None:
        self.given = cursor


class Stream:
    """Samples of one stream: documents, each ended by the tokenizer's end, cut into windows without regard to where they end."""

    def __init__(self, documents: Documents, tokenizer: Tokenizer, context: int) -> None:
        self.documents, self.tokenizer, self.context = documents, tokenizer, context
        self.samples = self.at = 0
        self.tokens = self.targets = np.empty(0, dtype=np.int32)
        self.marks: deque[tuple[int, Any, Any, Any]] = deque()

    def take(self) -> tuple[Any, Any]:
        """The next sample, context + 1 long: its tokens, and the same with IGNORED where the loss does not count."""
        while len(self.tokens) - self.at <= self.context:
            self._refill()
        start, self.at, self.samples = self.at, self.at + self.context, self.samples + 1
        return self.tokens[start : self.at + 1], self.targets[start : self.at + 1]

    def _refill(self) -> None:
        left, targets = self.tokens[self.at :], self.targets[self.at :]
        self.marks.append((self.samples, self.documents.cursor(), left, targets))
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
        """Where the stream was after `samples` samples, which may lie behind what was taken since."""
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

    def __init__(
        self, make: Callable[[int], Documents], count: int, tokenizer: Tokenizer, context: int, *, identity: str, masked: bool
    ) -> None:
        self.make, self.count, self.tokenizer, self.context, self.identity = make, count, tokenizer, context, identity
        self.masked = masked
        self.streams: dict[int, Stream] = {}

    def stream(self, number: int) -> Stream:
        if number not in self.streams:
            self.streams[number] = Stream(self.make(number), self.tokenizer, self.context)
        return self.streams[number]

    def rows(self, numbers: list[int]) -> tuple[Any, Any]:
        """The samples of these numbers: (samples, context + 1) tokens, or inputs and what is wanted for each where not all tokens count."""
        tokens, targets = (np.empty((len(numbers), self.context + 1), dtype=np.int64) for _ in range(2))
        for row, number in enumerate(numbers):
            stream = self.stream(number % self.count)
            wanted = number // self.count
            assert stream.samples <= wanted, "samples are asked for in rising order"
            while stream.samples <= wanted:
                tokens[row], targets[row] = stream.take()
        return (tokens[:, :-1], targets[:, 1:]) if self.masked else (tokens, None)

    def before(self, number: int, stream: int) -> int:
        """How many of the samples before `number` are of this stream."""
        return max(0, -(-(number - stream) // self.count))

    def keys(self, rank: int, ranks: int) -> list[str]:
        """The streams that data rank `rank` of `ranks` reads."""
        return [f"stream-{number}" for number in sorted({(rank + turn * ranks) % self.count for turn in range(self.count)})]

    def state(self, number: int) -> dict[str, str]:
        """Where each stream that this rank reads stood when all samples before `number` were taken."""
        return {
            f"stream-{key}": stream.state(before)
            for key, stream in self.streams.items()
            if (before := self.before(number, key)) and stream.marks
        }

    def taken(self, number: int) -> list[str]:
        """The streams of all ranks that have given samples before `number`."""
        return [f"stream-{key}" for key in range(self.count) if self.before(number, key)]

    def forget(self, number: int) -> None:
        """Places before the sample `number` will not be asked for any more."""
        for key, stream in self.streams.items():
            stream.forget(self.before(number, key))

    def restore(self, states: Mapping[str, str]) -> None:
        for key, state in states.items():
            self.stream(int(key.removeprefix("stream-"))).restore(state)

    def where(self, number: int) -> str:
        return f"sample {number // self.count} of stream {number % self.count}"


def open_streams(config: TrainConfig, split: str, tokenizer: Tokenizer, context: int) -> Streams:
    """The split of the data set of the hub, or of the folder, that `config` names; raises UsageError or LocalError."""
    import datasets

    dataset, config_name, path, streams, seed = (
        config.dataset,
        config.dataset_config_name,
        config.dataset_path,
        config.data_streams,
        config.seed,
    )

    datasets.disable_progress_bars()
    name = path or dataset
    with hub_errors(f"data set {name}", "use --dataset_path"):
        if path and any((Path(path) / file).exists() for file in ("dataset_dict.json", "state.json")):
            whole = datasets.load_from_disk(path)
            if isinstance(whole, datasets.DatasetDict):
                whole = split_of(whole, split, name)
        else:
            if path and not Path(path).is_dir():
                raise LocalError(f"{path} holds no data set: make one with `python -m trainer prepare-data --out {path} …`")
            configuration = config_name or ("en" if dataset == "allenai/c4" and not path else None)
            try:
                whole = split_of(datasets.load_dataset(name, None if path else configuration, streaming=True), split, name)
            except FileNotFoundError:
                if not path:
                    raise
                raise UsageError(
                    f"{name} holds no data set: neither tokens, nor a saved one, nor json, parquet, csv or text files"
                ) from None
        identity = f"{Path(path).name if path else dataset}/{config_name or ''}/{split} {tokenizer.identity}"
        if isinstance(whole, datasets.Dataset):
            if not len(whole):
                raise UsageError(f"data set {name} has no documents")
            parts = reader_of(whole.column_names, name)
            return Streams(
                lambda number: Chosen(whole, parts, seed, number, streams),
                streams,
                tokenizer,
                context,
                identity=f"{identity} {seed} {streams}",
                masked="text" not in whole.column_names,
            )
        columns = whole.column_names or list(next(iter(whole), {}))
        parts = reader_of(columns, name)
    count = min(streams, whole.num_shards)
    return Streams(
        lambda number: Streamed(lambda: whole.shard(num_shards=count, index=number), parts, name),
        count,
        tokenizer,
        context,
        identity=f"{identity} {count}",
        masked="text" not in columns,
    )


def split_of(splits: Mapping[str, Any], wanted: str, name: str) -> Any:
    """The split called `wanted`; for `validation` also one called test."""
    for split in (wanted, "test") if wanted == "validation" else (wanted,):
        if split in splits:
            return splits[split]
    raise UsageError(f"data set {name} has no split {wanted}, it has {', '.join(splits)}: {remedy(wanted)}")


def remedy(wanted: str) -> str:
    return "leave --validation_freq out" if wanted == "validation" else "choose another data set"
