# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Documents of the Hugging Face library `datasets`: the text of their records, and the endless documents of one stream."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from trainer.cli import UsageError
from trainer.data.tokens import window_of

# Columns of instruction sets: the question (with its addition), and the answer. The first column that a set has counts.
QUESTIONS = (("prompt", None), ("instruction", "input"), ("question", "context"), ("query", None))
ANSWERS = ("completion", "response", "output", "answer")
TURNS = ("messages", "conversations")

# The parts of a document in order, each with whether the loss counts it.
Parts = list[tuple[str, bool]]


def reader_of(columns: list[str], name: str) -> Callable[[Mapping[str, Any]], Parts]:
    """The function that makes text of a record with these columns; raises UsageError if none of them has text."""
    if "text" in columns:
        return lambda record: [(text_in(record, "text"), True)]
    for column in TURNS:
        if column in columns:
            return lambda record: conversation(record[column])
    for question, addition in QUESTIONS:
        for answer in ANSWERS:
            if question in columns and answer in columns:
                parts = [question] + ([addition] if addition in columns else [])

                def pair(record: Mapping[str, Any], answer: str = answer, parts: list[str] = parts) -> Parts:
                    asked = "\n\n".join(text for part in parts if (text := text_in(record, part)))
                    return [(asked + "\n\n", False), (text_in(record, answer), True)]

                return pair
    raise UsageError(
        f"data set {name} has no text: its columns are {', '.join(columns)}; use one with text, messages, or prompt and response"
    )


def text_in(record: Mapping[str, Any], column: str) -> str:
    """The text of a column, which may be missing; raises TypeError if it holds something else."""
    text = record.get(column)
    if not isinstance(text, str | None):
        raise TypeError(f"{column} holds a {type(text).__name__} and no text")
    return text or ""


def conversation(turns: list[Mapping[str, Any]]) -> Parts:
    """The turns of a conversation; the loss counts only the assistant's."""
    parts: Parts = []
    for turn in turns:
        role, content = turn.get("role", turn.get("from")), text_in(turn, "content" if "content" in turn else "value")
        parts += [(f"{role}:\n", False), (content + "\n", role in ("assistant", "gpt"))]
    return parts


class Documents(Protocol):
    """The endless documents of one stream: after the last one it starts again with the first. `given` counts those of this pass.

    `once` gives those of one pass.
    """

    given: int

    def once(self) -> Iterator[Parts]: ...
    def read(self, count: int) -> list[Parts]: ...
    def cursor(self) -> Any: ...
    def seek(self, cursor: Any) -> None: ...


class Streamed:
    """Documents of a shard of an IterableDataset, in its order. Nothing is shuffled in memory, so the cursor of `datasets` is exact."""

    def __init__(self, shard: Callable[[], Any], parts: Callable[[Mapping[str, Any]], Parts], name: str) -> None:
        self.shard, self.parts, self.name = shard, parts, name
        self.passes = self.given = 0
        self._open(None)

    def _open(self, state: dict[str, Any] | None) -> None:
        self.dataset, self.loaded = self.shard(), state
        if state is not None:
            self.dataset.load_state_dict(state)
        self.records = iter(self.dataset)

    def once(self) -> Iterator[Parts]:
        return (parts for parts in map(self.parts, self.shard()) if any(text for text, _ in parts))

    def read(self, count: int) -> list[Parts]:
        documents: list[Parts] = []
        while len(documents) < count:
            record, self.loaded = next(self.records, None), None
            if record is not None:
                parts = self.parts(record)
                if any(text for text, _ in parts):
                    documents.append(parts)
                    self.given += 1
            elif self.given:
                self.passes, self.given = self.passes + 1, 0
                self._open(None)
            else:
                raise UsageError(f"data set {self.name} has a part without a single document: lower --data_streams")
        return documents

    def cursor(self) -> Any:
        # A set that has not read since it loaded a state still tells its initial one.
        return {"passes": self.passes, "given": self.given, "state": self.loaded or self.dataset.state_dict()}

    def seek(self, cursor: Any) -> None:
        self.passes, self.given = cursor["passes"], cursor["given"]
        self._open(cursor["state"])


class Chosen:
    """Documents of a Dataset in a folder. In each pass all streams together read every document once, in an order that the seed decides."""

    def __init__(self, dataset: Any, parts: Callable[[Mapping[str, Any]], Parts], seed: int, stream: int, streams: int) -> None:
        self.dataset, self.parts, self.seed, self.stream, self.streams = dataset, parts, seed, stream, streams
        self.given = 0

    def once(self) -> Iterator[Parts]:
        return (self.parts(self.dataset[number]) for number in range(self.stream, len(self.dataset), self.streams))

    def read(self, count: int) -> list[Parts]:
        numbers = [number * self.streams + self.stream for number in range(self.given, self.given + count)]
        self.given += count
        columns = self.dataset[[window_of(self.seed, number, len(self.dataset)) for number in numbers]]
        return [self.parts({name: values[row] for name, values in columns.items()}) for row in range(count)]

    def cursor(self) -> Any:
        return self.given

    def seek(self, cursor: Any) -> None:
        self.given = cursor
