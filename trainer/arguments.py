# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The arguments of the AWS reference trainer (3.test_cases/pytorch/FSDP) without effect here, each with what replaces it."""

import argparse
from collections.abc import Sequence

NO_DROPOUT = "these models have no dropout: leave it out"
RECOMPUTE = "nothing is moved to the host's memory: --activation_checkpointing full replaces it, which needs about as little"

# Every other name of the reference is a flag of `train`. These are accepted, with a line in the log, except --cpu_offload 1.
REPLACED = {
    "--epochs": "a run is as long as --max_steps says, over as many passes of the data as that takes",
    "--same_seed": "weights and data depend on --seed alone, on any number of ranks: leave it out",
    "--resid_pdrop": NO_DROPOUT,
    "--embd_pdrop": NO_DROPOUT,
    "--attn_pdrop": NO_DROPOUT,
    "--summary_first_pdrop": NO_DROPOUT,
    "--rotary_pct": "the rotary embedding turns the whole head: leave it out",
    "--rotary_emb_base": "--model and --model_type decide the rotary base",
    "--offload_activations": RECOMPUTE,
    "--activation_loading_horizon": RECOMPUTE,
    "--cpu_offload": "weights stay on the device; --offload optimizer moves AdamW's moments to the host's memory",
    "--limit_all_gathers": "FSDP2 limits them itself: leave it out",
    "--peak_tflops_per_gpu": "MFU takes the peak from devices.json, and is n/a where that has none: leave it out",
}

# Values of the reference's --model_type that are refused.
REPLACED_TYPES = {"gpt_neox": "GPT-NeoX is not among the models: use --model with one of the published ones, or shape flags"}


def model_type(text: str) -> str:
    """Check --model_type; argparse turns the error into a sentence."""
    if text in REPLACED_TYPES:
        raise argparse.ArgumentTypeError(f"{text}: {REPLACED_TYPES[text]}")
    return text


def take_replaced(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """`argv` without the flags of REPLACED, and the value of each of those."""
    rest: list[str] = []
    taken: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name in REPLACED:
            taken[name] = value if equals else next(words, "")
        else:
            rest.append(word)
    return rest, taken
