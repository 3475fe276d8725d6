# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Tokenises text on all ranks of a job into a folder of tokens. Each rank writes its own parts, and only the folder joins them."""

import hashlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.cli import LocalError, UsageError
from trainer.config import DataFlags
from trainer.data.documents import Parts
from trainer.data.streams import DOCUMENTS, open_streams
from trainer.data.tokenizer import Tokenizer, open_tokenizer
from trainer.data.tokens import SCHEMA, read_index, write
from trainer.hub import hub_errors
from trainer.launch import Ranks

UNKNOWN = 1 << 32  # a vocabulary that every tokenizer fits


def tokenise(out: Path, config: DataFlags, ranks: Ranks, *, vocab_size: int | None, most: int | None, timeout: float) -> dict[str, Any]:
    """Write this rank's part of `config`'s text, at most `most` tokens over all ranks; rank 0 waits for the others and returns the index.

    A part that is whole is not written again, so a job that was killed continues. Raises UsageError or LocalError.
    """
    if not (config.tokenizer or vocab_size):
        raise UsageError("no tokenizer is named: give --tokenizer, or --vocab_size of the model")
    tokenizer = open_tokenizer(config.tokenizer, vocab_size or UNKNOWN)
    text = open_streams(config, config.train_split, tokenizer, context=1)
    if text.masked:
        raise UsageError(f"data set {text.name} has questions and answers, and tokens do not say which count: train from it directly")
    parts, kind = text.count, np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
    asked = {"source": text.identity, "parts": parts, "most": most, "vocab_size": tokenizer.size}
    out.mkdir(parents=True, exist_ok=True)
    for number in range(ranks.rank, parts, ranks.world_size):
        if not (found := read_part(out, number, asked)):
            groups = tokens_of(text.make(number).once(), tokenizer, f"part {number} of data set {text.name}", text.offline)
            found = write_part(path_of(out, number), asked, groups, kind, -(-most // parts) if most else None)
        print(f"{out}: part {number} of {parts} has {found['tokens']} tokens", flush=True)
    return join(out, asked, np.dtype(kind).name, timeout) if ranks.rank == 0 else {}


def tokens_of(documents: Iterator[Parts], tokenizer: Tokenizer, name: str, offline: str) -> Iterator[Any]:
    """The tokens of some documents at a time, each document with the end token."""
    while True:
        with hub_errors(name, offline):
            encoded = tokenizer.encode([text for parts in itertools.islice(documents, DOCUMENTS) for text, _ in parts])
        if not encoded:
            return
        yield np.concatenate([np.append(np.asarray(ids, dtype=np.uint32), np.uint32(tokenizer.end)) for ids in encoded])


def write_part(path: Path, asked: dict[str, Any], groups: Iterator[Any], kind: Any, most: int | None) -> dict[str, Any]:
    """Write a part and its description, both whole or not at all; returns the description."""
    digest, count = hashlib.sha256(), 0
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            for ids in groups:
                content = ids[: None if most is None else most - count].astype(np.dtype(kind).newbyteorder("<")).tobytes()
                file.write(content)
                digest.update(content)
                count += len(content) // np.dtype(kind).itemsize
                if count == most:
                    break
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    found = {"asked": asked, "file": path.name, "tokens": count, "sha256": digest.hexdigest()}
    write(path.with_suffix(".json"), json.dumps(found).encode())
    return found


def path_of(out: Path, number: int) -> Path:
    return out / f"part-{number:05}.bin"


def read_part(out: Path, number: int, asked: dict[str, Any]) -> dict[str, Any]:
    """The description of a part that is whole, {} if there is none. Raises UsageError for a part of another data set."""
    try:
        found: dict[str, Any] = json.loads(path_of(out, number).with_suffix(".json").read_text())
    except (OSError, ValueError):
        return {}
    if found["asked"] != asked:
        raise UsageError(f"{out} holds another data set ({found['asked']['source']}): choose another --out")
    return found


def join(out: Path, asked: dict[str, Any], dtype: str, timeout: float) -> dict[str, Any]:
    """Wait until all parts are there and write index.json, which makes them a data set; returns it. Raises LocalError if one is missing."""
    until = time.monotonic() + timeout
    while missing := [number for number in range(asked["parts"]) if not read_part(out, number, asked)]:
        if time.monotonic() > until:
            raise LocalError(f"{out} lacks {len(missing)} parts after {timeout:.0f} s, part {missing[0]} first: look at the other ranks")
        time.sleep(1)
    whole_parts = [read_part(out, number, asked) for number in range(asked["parts"])]
    parts = [{name: each[name] for name in ("file", "tokens", "sha256")} for each in whole_parts]
    whole = hashlib.sha256("".join(each["sha256"] for each in parts).encode()).hexdigest()
    index = {"schema": SCHEMA, "tokens": sum(each["tokens"] for each in parts), "vocab_size": asked["vocab_size"], "dtype": dtype}
    write(out / "index.json", json.dumps(index | {"sha256": whole, "source": asked["source"], "parts": parts}, indent=1).encode())
    return read_index(out)
