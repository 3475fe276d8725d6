# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`prepare-data`: writes a folder of tokens, of made sentences or of text. The former needs Python's standard library only."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import NATURAL, POSITIVE, LocalError, Parser
from trainer.config import DataFlags
from trainer.data.tokens import prepare
from trainer.launch import read_ranks

MADE = 2_000_000


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m trainer prepare-data", description="Write a tokenised data set, of made sentences or of text.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tokens", type=POSITIVE, help=f"number of tokens ({MADE} if not given), or most tokens of text (all)")
    parser.add_argument("--seed", type=NATURAL, default=12345, help="decides the made sentences")
    parser.add_argument("--vocab_size", type=POSITIVE, help="entries of the vocabulary (256 if not given; of a tokenizer: its own)")
    parser.add_argument("--dataset", help="data set of the Hugging Face hub whose text all ranks of the job tokenise")
    parser.add_argument("--dataset_config_name", help="configuration of --dataset (en for allenai/c4 if not given)")
    parser.add_argument("--dataset_path", help="instead of --dataset: a folder of save_to_disk, or one of json, parquet, csv or text files")
    parser.add_argument("--train_split", default="train", help="split of the data set")
    parser.add_argument("--tokenizer", help="as that of train (chosen by --vocab_size if not given)")
    parser.add_argument("--parts", type=POSITIVE, default=64, help="files of text at most, one for a rank at a time")
    parser.add_argument("--timeout", type=POSITIVE, default=86400, help="seconds that rank 0 waits for the other ranks")
    asked = parser.parse(argv)
    try:
        return write_asked(asked)
    except OSError as error:
        raise LocalError(f"--out {asked.out} cannot be written ({error.strerror}): choose a folder that this user may write") from None


def write_asked(asked: argparse.Namespace) -> int:
    """The data set that the command line asks for."""
    if not (asked.dataset or asked.dataset_path):
        made = prepare(asked.out, asked.tokens or MADE, asked.seed, asked.vocab_size or 256)
        print(f"{asked.out}: {asked.tokens or MADE} tokens {'written' if made else 'are already there'}")
        return 0
    from trainer.data.tokenise import tokenise

    names = {"dataset_config_name", "dataset_path", "train_split", "tokenizer"}
    config = DataFlags(**{name: getattr(asked, name) for name in names}, dataset=asked.dataset or "", data_streams=asked.parts)
    index = tokenise(
        asked.out, config, read_ranks(os.environ), vocab_size=asked.vocab_size, most=asked.tokens, timeout=float(asked.timeout)
    )
    if index:
        print(f"{asked.out}: {index['tokens']} tokens of {index['source']} in {len(index['parts'])} parts")
    return 0
