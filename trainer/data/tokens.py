# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A folder of tokens, which `prepare-data` writes: little-endian unsigned tokens of 16 or 32 bits, and `index.json` (muster.tokens/1).

The tokens are in `tokens.bin`, or in the parts that the index names.
"""

import array
import bisect
import hashlib
import itertools
import json
import os
import random
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainer.cli import LocalError, UsageError

SCHEMA = "muster.tokens/1"

# A small language: short-range structure (words, grammar) is learned in a few dozen steps, agreement of the two numbers later.
SUBJECTS = ["the controller", "a compute node", "the login node", "one rank", "every rank", "the scheduler", "the fleet"]
VERBS = ["waits for", "sends", "receives", "checks", "writes", "reads", "counts", "gathers"]
OBJECTS = ["gradients", "tokens", "a checkpoint", "the queue", "all shards", "the batch", "its neighbours"]
PLACES = ["on the fabric", "in the shared folder", "over the network", "at the barrier", "before the step"]


def sentences(seed: int) -> Iterator[str]:
    """An endless text. It uses only random(), whose numbers Python keeps the same between versions."""
    draw = random.Random(seed).random
    while True:
        subject, verb, thing, place = (words[int(draw() * len(words))] for words in (SUBJECTS, VERBS, OBJECTS, PLACES))
        number = int(draw() * 100)
        yield f"{subject} {verb} {thing} {place} at step {number}, then step {number + 1} begins.\n"


def prepare(out: Path, tokens: int, seed: int, vocab_size: int) -> bool:
    """Write the data set unless it is there; True if it was written. Raises UsageError if `out` holds another data set."""
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
    """Write the whole file or nothing, even if this process is killed, or another writes the same file (jobs of a sweep do)."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def read_index(folder: Path) -> dict[str, Any]:
    """index.json of a data set; raises LocalError if the folder holds none or its tokens are cut short."""
    try:
        index: dict[str, Any] = json.loads((folder / "index.json").read_text())
        sizes = [(folder / each["file"]).stat().st_size for each in parts_of(index)]
    except (OSError, ValueError):
        raise LocalError(f"{folder} holds no data set: make one with `python -m trainer prepare-data --out {folder} …`") from None
    width = 4 if index.get("dtype") == "uint32" else 2
    if index.get("schema") != SCHEMA or sizes != [width * each["tokens"] for each in parts_of(index)]:
        raise LocalError(f"the data set in {folder} is damaged: remove the folder and run prepare-data again")
    return index


def parts_of(index: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of a data set in order, each with the number of its tokens."""
    return index.get("parts") or [{"file": "tokens.bin", "tokens": index["tokens"]}]


def window_of(seed: int, sample: int, windows: int) -> int:
    """The window of global sample `sample`: every `windows` samples are a new permutation of all windows.

    It is a four-round Feistel network over the next even number of bits, repeated until the result is a window. So nothing stores a list,
    and a restart needs only the number.
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
    """A data set cut into windows of `context` tokens, each with the token that follows it; none has tokens of two files. Files are mapped.

    With `held_out` the last hundredth of the windows (at least one) is for validation only.
    """

    def __init__(self, folder: Path, context: int, seed: int = 0, held_out: bool = False, validation: bool = False) -> None:
        import torch

        self.index = read_index(folder)
        self.context, self.seed, self.first = context, seed, 0
        parts = [each for each in parts_of(self.index) if each["tokens"] > context]
        self.ends = list(itertools.accumulate((each["tokens"] - 1) // context for each in parts))
        self.windows = self.ends[-1] if parts else 0
        if self.windows < 1 + held_out:
            raise UsageError(f"{folder} has {self.index['tokens']} tokens, fewer than one sample of {context} needs: prepare more")
        if held_out:
            kept = max(1, self.windows // 100)
            self.first, self.windows = (self.windows - kept, kept) if validation else (0, self.windows - kept)
        self.identity = self.index["sha256"] + (" held out" if held_out else "")
        kind = torch.uint32 if self.index.get("dtype") == "uint32" else torch.uint16
        self.files = [torch.from_file(str(folder / each["file"]), size=each["tokens"], dtype=kind) for each in parts]

    def window(self, number: int) -> Any:
        """The tokens of a window and the one that follows, as int64."""
        part = bisect.bisect_right(self.ends, number)
        start = (number - (self.ends[part - 1] if part else 0)) * self.context
        return self.files[part][start : start + self.context + 1].long()

    def samples(self, numbers: Iterable[int]) -> Any:
        """The global samples `numbers` as an int64 tensor (samples, context + 1)."""
        import torch

        return torch.stack([self.window(self.first + window_of(self.seed, number, self.windows)) for number in numbers])

    def rows(self, numbers: list[int]) -> tuple[Any, None]:
        return self.samples(numbers), None

    def where(self, number: int) -> str:
        return f"window {self.first + window_of(self.seed, number, self.windows)}"
