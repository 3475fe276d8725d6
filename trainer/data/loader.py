# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Opens the data of a run, and reads one rank's batches of it ahead."""

import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.cli import LocalError, TrainerError, UsageError
from trainer.config import DataFlags
from trainer.data.streams import open_streams
from trainer.data.tokenizer import open_tokenizer
from trainer.data.tokens import Tokens


class Synthetic:
    """Uniform random tokens, for measurements: nothing to read, and nothing to learn."""

    def __init__(self, vocab_size: int, context: int, seed: int) -> None:
        self.vocab_size, self.context, self.seed = vocab_size, context, seed
        self.identity = f"synthetic {vocab_size}"

    def rows(self, numbers: list[int]) -> tuple[Any, None]:
        draws = [np.random.Generator(np.random.Philox(key=[self.seed, number])) for number in numbers]
        return np.stack([draw.integers(0, self.vocab_size, self.context + 1) for draw in draws]), None

    def where(self, number: int) -> str:
        return f"drawn for seed {self.seed}"


def open_source(config: DataFlags, vocab_size: int, context: int, *, validation: bool = False) -> Any:
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
        tokenizer = open_tokenizer(config.tokenizer, vocab_size)
        return open_streams(config, config.val_split if validation else config.train_split, tokenizer, context)
    except ModuleNotFoundError as error:
        raise LocalError(
            f"{error.name} is not installed: install it with `pip install muster-trainer[hf]`, or use tokens of prepare-data"
        ) from None


class Loader:
    """The batches of one data rank. A thread reads ahead, so that a step finds its batch ready."""

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
        try:
            while True:
                with self.lock:
                    if hasattr(self.source, "forget"):
                        self.source.forget(self.first)
                    rows = self.source.rows(self.numbers(first))
                self.ready.put(tuple(part if part is None else torch.as_tensor(part) for part in rows))
                first += self.batch * self.ranks
        except TrainerError as error:
            self.ready.put(LocalError(str(error)))  # other ranks read other data, so this one has to say it
        except BaseException as error:
            self.ready.put(error)

    def next(self) -> tuple[Any, Any]:
        """Tokens (batch, context + 1) and None; or inputs and labels (batch, context) if the loss leaves some out. All are int64."""
        found = self.ready.get()
        if isinstance(found, BaseException):
            raise found
        self.first += self.batch * self.ranks
        return found

    def state(self) -> dict[str, str]:
        """The state from which any number of ranks can read the next batch."""
        if not hasattr(self.source, "state"):
            return {}
        with self.lock:
            return self.source.state(self.first)

    def where(self, first: int) -> str:
        """The samples of this rank in the batch of all ranks that begins with the global sample `first`, for an error."""
        return ", ".join(f"{number} ({self.source.where(number)})" for number in self.numbers(first))
