# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Packs a data set of the Hugging Face hub, or a file of JSON lines, into windows of tokens, as NxD's example reads them."""

import argparse
import os
import shutil
from itertools import chain
from pathlib import Path

import datasets
from transformers import AutoTokenizer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True, help="name, name:configuration, or a file .json")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--into", type=Path, required=True)
    return parser.parse_args()


def windows(batch, context):
    """Whole windows of the batch's tokens; what is left at its end is dropped."""
    tokens = list(chain.from_iterable(batch["input_ids"]))
    parts = [tokens[at : at + context] for at in range(0, len(tokens) - context + 1, context)]
    return {"input_ids": parts, "attention_mask": [[1] * context for _part in parts], "labels": parts}


def main():
    asked = arguments()
    if asked.into.is_dir():
        return
    name, _colon, configuration = asked.dataset.partition(":")
    if name.endswith(".json"):
        text = datasets.load_dataset("json", data_files=name, split="train")
    else:
        text = datasets.load_dataset(name, configuration or None, split="train")
    tokenizer = AutoTokenizer.from_pretrained(asked.tokenizer)
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []

    def tokenised(batch):
        return {"input_ids": [ids + end for ids in tokenizer(batch["text"], add_special_tokens=False)["input_ids"]]}

    workers = min(os.cpu_count() or 1, 64)
    tokens = text.map(tokenised, batched=True, remove_columns=text.column_names, num_proc=workers)
    packed = tokens.map(windows, batched=True, remove_columns=["input_ids"], num_proc=workers, fn_kwargs={"context": asked.context})
    if not len(packed):
        raise SystemExit(f"tokens.py: {asked.dataset} has less than one window of {asked.context} tokens; give more text.")
    # Other nodes take the folder's name for the sign that it is complete.
    half = asked.into.with_name(asked.into.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    packed.save_to_disk(str(half))
    half.rename(asked.into)
    print(f"{len(packed)} windows of {asked.context} tokens in {asked.into}", flush=True)


if __name__ == "__main__":
    main()
