# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`export`: writes a checkpoint of train as a folder that transformers reads. One process with one tensor in memory at a time."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from trainer.cli import NATURAL, Parser, UsageError

DTYPES = ("bf16", "fp16", "fp32")


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m trainer export", description="Write a checkpoint as a Hugging Face model.")
    parser.add_argument("--checkpoint_dir", required=True, help="folder or s3://BUCKET/PREFIX that train wrote")
    parser.add_argument("--step", type=NATURAL, default=None, help="the checkpoint's step (the newest if not given)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; it must not hold a model")
    parser.add_argument(
        "--like", type=Path, default=None, help="folder of a Hugging Face model whose tokenizer, generation settings and token ids to copy"
    )
    parser.add_argument("--dtype", default="bf16", choices=DTYPES, help="type of the written weights")
    asked = parser.parse(argv)

    import torch
    import torch.distributed.checkpoint as dcp

    from trainer import hf
    from trainer.checkpoint.saver import reading
    from trainer.checkpoint.store import changed, complete_steps, manifest_of, open_store
    from trainer.models import Shape

    store = open_store(asked.checkpoint_dir)
    steps = complete_steps(store)
    step = asked.step if asked.step is not None else (steps[-1] if steps else None)
    if step is None or step not in steps:
        there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise UsageError(
            f"{store} has no complete checkpoint{'' if step is None else f' of step {step}'}, {there}: check --checkpoint_dir and --step"
        )
    if (asked.out / "config.json").exists():
        raise UsageError(f"{asked.out} holds a model already: choose another --out")
    with reading(store.path(step)):
        reason = changed(store, step)
    if reason:
        raise UsageError(f"{store.path(step)} is damaged: {reason}; choose another --step")
    manifest = manifest_of(store, step)
    assert manifest is not None
    shape = Shape(**{entry.name: manifest["identity"][entry.name] for entry in fields(Shape)})
    with reading(store.path(step)):
        metadata = store.reader(step).read_metadata().state_dict_metadata

    def weight(key: str) -> torch.Tensor:
        found = metadata[key]
        state = {key: torch.empty(found.size, dtype=found.properties.dtype)}
        with warnings.catch_warnings(), reading(store.path(step)):
            warnings.simplefilter("ignore")  # dcp warns that there is no process group
            dcp.load(state, storage_reader=store.reader(step), no_dist=True)
        return state[key]

    keys = [key for key in metadata if key.startswith("model.")]
    named = ((key.removeprefix("model."), lambda key=key: weight(key)) for key in keys)
    like = asked.like and hf.folder_of(str(asked.like))
    hf.save(asked.out, shape, named, {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[asked.dtype])
    if like:
        hf.copy_settings(like, asked.out)
    print(f"{asked.out}: {len(keys)} tensors of {store.path(step)} as {asked.dtype}{'' if like else ', without a tokenizer (--like)'}")
    return 0
