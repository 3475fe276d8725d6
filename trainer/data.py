# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Samples by their global number: of a tokenised file, made up, or of text that is streamed; and the loader that a rank reads them with.

A folder of tokens has `tokens.bin` (unsigned 16-bit little-endian tokens) and `index.json` (muster.tokens/1). What the global sample
number n is depends on the seed and n alone, so any number of ranks reads the same data in the same order: data rank r of D takes
the samples n = r mod D.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import json
import os
import queue
import random
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import NATURAL, POSITIVE, LocalError, Parser, TrainConfig, UsageError

SCHEMA = "muster.tokens/1"

# A small language: short-range structure (words, grammar) is learned in a few dozen steps, agreement of the two numbers later.
SUBJECTS = ["the controller", "a compute node", "the login node", "one rank", "every rank", "the scheduler", "the fleet"]
VERBS = ["waits for", "sends", "receives", "checks", "writes", "reads", "counts", "gathers"]
OBJECTS = ["gradients", "tokens", "a checkpoint", "the queue", "all shards", "the batch", "its neighbours"]
PLACES = ["on the fabric", "in the shared folder", "over the network", "at the barrier", "before the step"]


def sentences(seed: int) -> Iterator[str]:
    """An endless text; only random() is drawn from, the one source that Python keeps stable between versions."""
    draw = random.Random(seed).random
    while True:
        subject, verb, thing, place = (words[int(draw() * len(words))] for words in (SUBJECTS, VERBS, OBJECTS, PLACES))
        number = int(draw() * 100)
        yield f"{subject} {verb} {thing} {place} at step {number}, then step {number + 1} begins.\n"


def prepare(out: Path, tokens: int, seed: int, vocab_size: int) -> bool:
    """Write the data set unless it is there; True if it was written. Raises UsageError for another data set in its place."""
    if vocab_size < 256:
        raise UsageError(f"--vocab_size {vocab_size} cannot hold the 256 byte tokens: give 256 or more")
    asked = {"schema": SCHEMA, "tokens": tokens, "seed": seed, "vocab_size": vocab_size}
    path = out / "tokens.bin"
    if (out / "index.json").exists():
        index = read_index(out)
        if {key: index[key] for key in asked} != asked:
            raise UsageError(f"{out} holds another data set ({index['tokens']} tokens, seed {index['seed']}): choose another --out")
        if hashlib.sha256(path.read_bytes()).hexdigest() == index["sha256"]:
            return False
    out.mkdir(parents=True, exist_ok=True)
    text = bytearray()
    for sentence in sentences(seed):
        text += sentence.encode()
        if len(text) >= tokens:
            break
    values = array.array("H", list(text[:tokens]))
    if sys.byteorder == "big":
        values.byteswap()
    content = values.tobytes()
    write(path, content)
    write(out / "index.json", json.dumps(asked | {"dtype": "uint16", "sha256": hashlib.sha256(content).hexdigest()}, indent=1).encode())
    return True


def write(path: Path, content: bytes) -> None:
    """The whole file or none of it, also when the writer is killed."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def read_index(folder: Path) -> dict[str, Any]:
    """index.json of a data set; raises LocalError where the folder is none or its tokens are cut."""
    try:
        index: dict[str, Any] = json.loads((folder / "index.json").read_text())
        size = (folder / "tokens.bin").stat().st_size
    except (OSError, ValueError):
        raise LocalError(f"{folder} holds no data set: make one with `python -m trainer prepare-data --out {folder} …`") from None
    if index.get("schema") != SCHEMA or size != 2 * index["tokens"]:
        raise LocalError(f"the data set in {folder} is damaged: remove the folder and run prepare-data again")
    return index


def window_of(seed: int, sample: int, windows: int) -> int:
    """Window of the global sample number `sample`: every `windows` samples are a new permutation of all windows.

    A four-round Feistel network over the next even number of bits, walked until the result lies inside: no list is stored, and a
    restart needs nothing but the number.
    """
    epoch, value = divmod(sample, windows)
    half = max(1, ((windows - 1).bit_length() + 1) // 2)
    while True:
        left, right = value >> half, value & ((1 << half) - 1)
        for turn in range(4):
            digest = hashlib.blake2b(f"{seed}/{epoch}/{turn}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & ((1 << half) - 1))
        value = left << half | right
        if value < windows:
            return value


class Tokens:
    """A data set cut into windows of `context` tokens, each with its successor token. The file is mapped, not read.

    With `held_out` the last of a hundred windows (at least one) are left to validation, which sees only them.
    """

    def __init__(self, folder: Path, context: int, seed: int = 0, held_out: bool = False, validation: bool = False) -> None:
        import torch

        self.index = read_index(folder)
        self.context, self.seed, self.first = context, seed, 0
        self.windows = (self.index["tokens"] - 1) // context
        if self.windows < 1 + held_out:
            raise UsageError(f"{folder} has {self.index['tokens']} tokens, fewer than one sample of {context} needs: prepare more")
        if held_out:
            kept = max(1, self.windows // 100)
            self.first, self.windows = (self.windows - kept, kept) if validation else (0, self.windows - kept)
        self.identity = self.index["sha256"] + (" held out" if held_out else "")
        self.tokens = torch.from_file(str(folder / "tokens.bin"), size=self.index["tokens"], dtype=torch.uint16)

    def samples(self, numbers: Iterable[int]) -> Any:
        """The global samples of these numbers as an int64 tensor (samples, context + 1)."""
        import torch

        starts = [(self.first + window_of(self.seed, number, self.windows)) * self.context for number in numbers]
        return torch.stack([self.tokens[start : start + self.context + 1] for start in starts]).to(torch.int64)

    def rows(self, numbers: list[int]) -> tuple[Any, None]:
        return self.samples(numbers), None

    def where(self, number: int) -> str:
        return f"window {self.first + window_of(self.seed, number, self.windows)}"


class Synthetic:
    """Uniform random tokens, for measurements: nothing to read, and nothing to learn."""

    def __init__(self, vocab_size: int, context: int, seed: int) -> None:
        self.vocab_size, self.context, self.seed = vocab_size, context, seed
        self.identity = f"synthetic {vocab_size}"

    def rows(self, numbers: list[int]) -> tuple[Any, None]:
        import numpy as np

        draws = [np.random.Generator(np.random.Philox(key=[self.seed, number])) for number in numbers]
        return np.stack([draw.integers(0, self.vocab_size, self.context + 1) for draw in draws]), None

    def where(self, number: int) -> str:
        return f"drawn for seed {self.seed}"


def open_source(config: TrainConfig, vocab_size: int, context: int, *, validation: bool = False) -> Any:
    """The data that `config` names, or its validation part; raises UsageError or LocalError."""
    folder = Path(config.dataset_path) if config.dataset_path else None
    if folder and ((folder / "index.json").exists() or not folder.exists()):
        tokens = Tokens(folder, context, config.seed, bool(config.validation_freq), validation)
        if tokens.index["vocab_size"] > vocab_size:
            raise UsageError(f"--vocab_size {vocab_size} is below the {tokens.index['vocab_size']} of {folder}: raise it")
        return tokens
    if config.dataset == "synthetic" and not folder:
        return Synthetic(vocab_size, context, config.seed + (1 << 32 if validation else 0))
    try:
        from trainer import streams

        tokenizer = streams.open_tokenizer(config.tokenizer, vocab_size)
        split = "validation" if validation else "train"
        return streams.open_streams(config, split, tokenizer, context)
    except ModuleNotFoundError as error:
        raise LocalError(
            f"{error.name} is not installed: `pip install muster-trainer[hf]` brings it, or use tokens of prepare-data"
        ) from None


class Loader:
    """What one data rank reads, batch by batch. A thread reads ahead, so that a step finds its batch ready."""

    AHEAD = 4

    def __init__(self, source: Any, rank: int, ranks: int, batch: int, *, first: int = 0, states: Mapping[str, str] | None = None) -> None:
        self.source, self.rank, self.ranks, self.batch = source, rank, ranks, batch
        self.first = first  # of the next batch, over all ranks
        if states:
            source.restore(states)
        self.ready: queue.Queue[Any] = queue.Queue(self.AHEAD)
        self.lock = threading.Lock()
        threading.Thread(target=self._read, args=(first,), daemon=True, name="loader").start()

    def numbers(self, first: int) -> list[int]:
        """The global samples of this rank in the batch of all ranks that begins with `first`."""
        return list(range(first + self.rank, first + self.batch * self.ranks, self.ranks))

    def _read(self, first: int) -> None:
        import torch

        try:
            while True:
                with self.lock:
                    if hasattr(self.source, "forget"):
                        self.source.forget(self.first)
                    rows = self.source.rows(self.numbers(first))
                self.ready.put(tuple(part if part is None else torch.as_tensor(part) for part in rows))
                first += self.batch * self.ranks
        except BaseException as error:
            self.ready.put(error)

    def next(self) -> tuple[Any, Any]:
        """Tokens (batch, context + 1) and None, or inputs and labels (batch, context) where the loss leaves some out; int64."""
        found = self.ready.get()
        if isinstance(found, BaseException):
            raise found
        self.first += self.batch * self.ranks
        return found

    def state(self) -> dict[str, str]:
        """What finds the next batch again, on any number of ranks."""
        if not hasattr(self.source, "state"):
            return {}
        with self.lock:
            return self.source.state(self.first)

    def where(self, first: int) -> str:
        """The identity of this rank's batch that begins with the global sample `first`."""
        return ", ".join(f"{number} ({self.source.where(number)})" for number in self.numbers(first))


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m trainer prepare-data", description="Write a tokenised data set with learnable structure.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tokens", type=POSITIVE, default=2_000_000, help="number of tokens")
    parser.add_argument("--seed", type=NATURAL, default=12345, help="decides the text")
    parser.add_argument("--vocab_size", type=POSITIVE, default=256, help="entries of the vocabulary; the text is bytes")
    asked: argparse.Namespace = parser.parse(argv)
    made = prepare(asked.out, asked.tokens, asked.seed, asked.vocab_size)
    print(f"{asked.out}: {asked.tokens} tokens {'written' if made else 'are already there'}")
    return 0
