# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Every argument of the AWS reference trainer works, or its error says what replaces it."""

from pathlib import Path

import pytest

from trainer.arguments import REPLACED, REPLACED_TYPES
from trainer.cli import UsageError
from trainer.config import read_train

# All arguments of its model_utils/arguments.py with a value that its launch files, or its defaults, give them.
REFERENCE = {
    "train_batch_size": "2",
    "val_batch_size": "4",
    "max_steps": "5000",
    "max_training_steps": "5000",
    "seed": "12345",
    "same_seed": "0",
    "bf16": "1",
    "grad_clip": "1.0",
    "weight_decay": "0.2",
    "beta1": "0.9",
    "beta2": "0.95",
    "activation_checkpointing": "1",
    "intermediate_size": "11008",
    "num_key_value_heads": "8",
    "logging_freq": "1",
    "tensorboard_dir": "x",
    "peak_tflops_per_gpu": "3000.0",
    "max_context_width": "2048",
    "vocab_size": "50432",
    "hidden_width": "768",
    "num_layers": "12",
    "num_heads": "12",
    "resid_pdrop": "0.1",
    "embd_pdrop": "0.1",
    "attn_pdrop": "0.1",
    "summary_first_pdrop": "0.1",
    "initializer_range": "0.02",
    "model_type": "llama_v2",
    "rotary_pct": "0.25",
    "rotary_emb_base": "10000",
    "offload_activations": "1",
    "activation_loading_horizon": "2",
    "limit_all_gathers": "1",
    "sharding_strategy": "full",
    "cpu_offload": "0",
    "lr": "1e-4",
    "min_lr": "1e-5",
    "lr_decay_style": "cosine",
    "lr_decay_iters": "47683",
    "warmup": "0.0032",
    "plateau": "0.0",
    "dataset": "allenai/c4",
    "dataset_config_name": "en",
    "tokenizer": "EleutherAI/gpt-neox-20b",
    "resume_from_checkpoint": "checkpoints",
    "checkpoint_dir": "checkpoints",
    "epochs": "3",
    "checkpoint_freq": "1000",
    "validation_freq": "500",
    "validation_batches": "10",
}


@pytest.mark.parametrize("name", [name for name in REFERENCE if f"--{name}" not in REPLACED])
def test_it_works(name: str) -> None:
    config = read_train(["--dataset_path", "x", f"--{name}={REFERENCE[name]}"])
    known = getattr(config, "max_steps" if name == "max_training_steps" else name)
    assert known is not None, f"--{name} is taken and forgotten"


@pytest.mark.parametrize("flag", REPLACED)
def test_it_is_accepted_and_the_log_says_what_replaces_it(flag: str) -> None:
    value = REFERENCE[flag.removeprefix("--")]
    for words in ([flag, value], [f"{flag}={value}"]):
        config = read_train(["--dataset_path", "x", *words, "--lr", "0.5"])
        assert config.remarks == (f"{flag} of the AWS reference trainer does nothing here: {REPLACED[flag]}",)
        assert config.lr == 0.5


def test_offloading_of_activations_is_full_recomputation() -> None:
    assert read_train(["--offload_activations=1"]).activation_checkpointing == "full"
    assert read_train(["--offload_activations=0"]).activation_checkpointing == "none"
    assert read_train(["--offload_activations=1", "--activation_checkpointing=1"]).activation_checkpointing == "full"


def test_all_refusals_come_at_once() -> None:
    wrong = ["--cpu_offload", "1", "--offload_activations", "1", "--activation_checkpointing", "none", "--lr", "fast", "--beta1", "2"]
    with pytest.raises(UsageError) as caught:
        read_train([*wrong, "--max_step", "3", "--lr_decay_style=sine", "--bf16=1", "--precision=fp32", "--model_type", "gpt_neox"])
    for part in (
        "--cpu_offload: weights stay",
        "--offload_activations needs",
        "--lr: 'fast'",
        "--beta1: '2'",
        "'--max_step': did you mean",
    ):
        assert part in str(caught.value)
    for part in ("invalid choice: 'sine'", "--bf16 and --precision say the same", "GPT-NeoX is not among the models"):
        assert part in str(caught.value)


def test_the_page_tells_them() -> None:
    page = (Path(__file__).parents[2] / "docs/trainer.md").read_text()
    for name, reason in {**REPLACED, **{f"--model_type {kind}": reason for kind, reason in REPLACED_TYPES.items()}}.items():
        assert f"| `{name}` | {'refused' if name.startswith('--model_type') else 'no effect'}: {reason} |" in page


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "exponential", "plateau"])
def test_its_decay_styles(style: str) -> None:
    assert read_train(["--dataset_path", "x", "--lr_decay_style", style]).lr_decay_style == style


@pytest.mark.parametrize("kind", ["llama_v2", "llama_v3", "mistral", "mixtral"])
def test_its_model_types(kind: str) -> None:
    assert read_train(["--dataset_path", "x", "--model_type", kind]).model_type == kind


def test_the_model_type_that_is_not_here_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="gpt_neox: GPT-NeoX is not among the models: use --model"):
        read_train(["--dataset_path", "x", "--model_type", "gpt_neox"])


def test_the_second_name_of_max_steps() -> None:
    assert read_train(["--dataset_path", "x", "--max_training_steps", "7"]).max_steps == 7


def test_a_flag_of_nobody_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown argument '--max_contxt_width': did you mean --max_context_width\?"):
        read_train(["--max_contxt_width", "2048"])
