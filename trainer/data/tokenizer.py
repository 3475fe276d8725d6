# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Tokenizers: bytes, or the `tokenizer.json` of a model."""

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainer.cli import LocalError, UsageError
from trainer.hub import hub_errors

# Size of a vocabulary → the tokenizer of the models with that vocabulary.
TOKENIZERS = {
    256: "bytes",
    32000: "hf-internal-testing/llama-tokenizer",
    32768: "mistralai/Mathstral-7B-v0.1",
    50432: "EleutherAI/gpt-neox-20b",
    128256: "meta-llama/Llama-3.1-8B",
}
ENDS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>")


class Tokenizer(Protocol):
    identity: str
    size: int
    end: int

    def encode(self, texts: list[str]) -> list[Any]: ...


class Bytes:
    """The bytes of the text; zero ends a document. It needs no file."""

    identity, size, end = "bytes", 256, 0

    def encode(self, texts: list[str]) -> list[Any]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]


class Fast:
    """A tokenizer.json. It adds no special tokens, because the packing ends every document itself."""

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


def open_tokenizer(name: str | None, vocab_size: int) -> Tokenizer:
    """The tokenizer `name`, or the one for a vocabulary of `vocab_size`; raises UsageError if it has more tokens than that."""
    name = name or TOKENIZERS.get(vocab_size)
    if name is None:
        raise UsageError(f"no tokenizer is known for a vocabulary of {vocab_size}: name one with --tokenizer")
    tokenizer: Tokenizer
    if name == "bytes":
        tokenizer = Bytes()
    else:
        path = Path(name)
        if path.suffix == ".json" or path.is_dir():
            file = path / "tokenizer.json" if path.is_dir() else path
            settings = file.with_name("tokenizer_config.json")
            if not file.exists():
                raise LocalError(f"{file} does not exist: --tokenizer needs a tokenizer.json or a folder with one")
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
