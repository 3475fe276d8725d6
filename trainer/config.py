# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The flags: names as in the AWS reference trainer where it has them, every one of them used, an unknown one refused."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trainer.arguments import ALIASES, model_type, replaced
from trainer.models import PRESETS, ROPE_THETA


class TrainerError(Exception):
    """The run failed for a reason that one sentence can name. Every rank meets it, so rank 0 alone says it."""

    exit_code = 1


class LocalError(TrainerError):
    """The same, met on this rank alone: it says so itself."""


class UsageError(TrainerError):
    """What was asked for cannot be done; the sentence has the remedy."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean X?` with the entry of `known` that is closest to `name`, or nothing where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""


def choose(what: str, name: str, known: Sequence[str]) -> str:
    """`name` if it is one of `known`; raises UsageError with the nearest one and the list."""
    if name in known:
        return name
    raise UsageError(" ".join(filter(None, [f"unknown {what} '{name}':", nearest(name, known), f"known are {', '.join(known)}"])))


class Parser(argparse.ArgumentParser):
    """argparse that answers in one sentence, never guesses an abbreviation and names the flag nearest to an unknown one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)

    def error(self, message: str) -> Any:
        raise UsageError(f"{message} (--help lists all flags)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        known, unknown = self.parse_known_args(argv)
        if unknown:
            flag = unknown[0].split("=")[0]
            if gone := replaced(flag):
                self.error(gone)
            flags = [option for action in self._actions for option in action.option_strings]
            self.error(": ".join(filter(None, [f"unknown argument '{flag}'", nearest(flag, flags)])))
        return known


def number(kind: type, low: float, high: float = float("inf")) -> Callable[[str], Any]:
    """A reader of numbers of `kind` from `low` to `high`, both included; argparse turns its error into a sentence."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
            if low <= value <= high:
                return value
        except ValueError:
            pass
        name = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(
            f"'{text}' is not {name} {f'of {low:g} or more' if high == float('inf') else f'from {low:g} to {high:g}'}"
        )

    return read


POSITIVE = number(int, 1)
NATURAL = number(int, 0)
AMOUNT = number(float, 0)
FRACTION = number(float, 0, 1)


def window(text: str) -> str:
    """`FIRST-LAST` as it is; argparse turns the error into a sentence."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"'{text}' is not FIRST-LAST, two steps such as 10-12")
    return text


def flag(default: Any, kind: Callable[[str], Any], text: str, choices: Sequence[Any] | None = None) -> Any:
    """A dataclass field that is a command line flag as well."""
    return field(default=default, metadata={"type": kind, "help": text, "choices": choices})


LAYOUTS = ("full", "hybrid", "ddp")
RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("fp64", "fp32", "fp16", "bf16", "float8")


def recompute(text: str) -> str:
    """A word of RECOMPUTE, or 0 or 1 as in the AWS reference trainer."""
    return {"0": "none", "1": "full"}.get(text, text)


@dataclass(frozen=True)
class TrainConfig:
    """One training run, as typed. Shapes left at None come from --model."""

    model: str = flag("reference", str, "preset that fills the shape flags that are not given", sorted(PRESETS))
    model_type: str | None = flag(
        None, model_type, "another rotary base than the model's (llama_v3 for reference and tiny)", sorted(ROPE_THETA)
    )
    init_from: str | None = flag(None, str, "start from the weights of a Hugging Face model: its name or a folder; it decides the shape")
    hidden_width: int | None = flag(None, POSITIVE, "width of the residual stream")
    num_layers: int | None = flag(None, POSITIVE, "decoder blocks")
    num_heads: int | None = flag(None, POSITIVE, "attention heads")
    num_key_value_heads: int | None = flag(None, POSITIVE, "key and value heads (grouped-query attention)")
    intermediate_size: int | None = flag(None, POSITIVE, "width inside the feed-forward layer")
    vocab_size: int | None = flag(None, POSITIVE, "entries of the embedding; at least the data's")
    max_context_width: int | None = flag(None, POSITIVE, "tokens in a sample; at most what the model is made for")
    initializer_range: float = flag(0.02, AMOUNT, "standard deviation of the initial weights")
    dataset: str = flag("allenai/c4", str, "data set of the Hugging Face hub, streamed; `synthetic` needs nothing but the seed")
    dataset_config_name: str | None = flag(None, str, "configuration of --dataset (en for allenai/c4 if not given)")
    dataset_path: str | None = flag(
        None, str, "instead: a folder that prepare-data or save_to_disk wrote, or one of json, parquet, csv or text files"
    )
    tokenizer: str | None = flag(None, str, "`bytes`, a folder or file, or a model of the hub (by the vocabulary's size if not given)")
    data_streams: int = flag(
        64, POSITIVE, "parts that the streamed data is read in; every rank reads its own where their number divides this one"
    )
    val_batch_size: int = flag(4, POSITIVE, "samples per rank and validation batch")
    validation_freq: int | None = flag(None, POSITIVE, "steps between two validations (none if not given)")
    validation_batches: int = flag(10, POSITIVE, "batches of a validation")
    train_batch_size: int = flag(2, POSITIVE, "samples per rank and step")
    max_steps: int = flag(5000, POSITIVE, "optimizer steps in all, restarts included")
    seed: int = flag(12345, NATURAL, "decides the initial weights and the order of the samples")
    lr: float = flag(1e-4, AMOUNT, "highest learning rate")
    min_lr: float = flag(1e-5, AMOUNT, "learning rate at the end of the decay")
    lr_decay_style: str = flag("cosine", str, "shape of the decay", ("constant", "cosine", "exponential", "linear", "plateau"))
    lr_decay_iters: int | None = flag(None, POSITIVE, "steps until --min_lr (--max_steps if not given)")
    warmup: float = flag(0.0032, FRACTION, "share of the decay steps in which the rate rises")
    plateau: float = flag(0.0, FRACTION, "share of the decay steps after that in which it stays")
    grad_clip: float = flag(1.0, AMOUNT, "highest norm of the gradient")
    weight_decay: float = flag(0.2, AMOUNT, "AdamW's, on matrices only")
    beta1: float = flag(0.9, FRACTION, "AdamW's")
    beta2: float = flag(0.95, FRACTION, "AdamW's")
    sharding_strategy: str = flag("full", str, "weights divided over all ranks, or over groups of them, or whole on each", LAYOUTS)
    hybrid_shard_degree: int | None = flag(None, POSITIVE, "ranks that one copy of the weights lies on with hybrid (a host's if not given)")
    tensor_parallel_degree: int = flag(1, POSITIVE, "ranks that divide each layer; the tokens between layers too")
    pipeline_parallel_degree: int = flag(1, POSITIVE, "stages that the blocks are divided into")
    pipeline_schedule: str = flag(
        "1f1b", str, "order of a pipeline's work; interleaved gives each stage two parts", ("1f1b", "interleaved")
    )
    context_parallel_degree: int = flag(1, POSITIVE, "ranks that divide each sample's tokens")
    expert_parallel_degree: int = flag(1, POSITIVE, "ranks that divide the experts of a mixture")
    gradient_accumulation_steps: int = flag(1, POSITIVE, "batches of --train_batch_size in a step; the micro-batches of a pipeline")
    activation_checkpointing: str = flag("none", recompute, "what the backward pass computes again instead of keeping it", RECOMPUTE)
    compile: int = flag(0, number(int, 0, 1), "1 compiles each block")
    precision: str | None = flag(None, str, "what is computed in (bf16 on GPUs that have it, else fp16 or fp32; fp32 on CPUs)", PRECISIONS)
    bf16: int | None = flag(None, number(int, 0, 1), "1 is --precision bf16, 0 is fp32")
    logging_freq: int = flag(1, POSITIVE, "steps between two log lines")
    jsonl: str | None = flag(None, str, "file of the log as JSON lines (CHECKPOINT_DIR/train.jsonl if not given)")
    tensorboard_dir: str | None = flag(None, str, "folder of TensorBoard files")
    tracker: str | None = flag(None, str, "`wandb`, `mlflow` or MODULE:FUNCTION, which is called with each record and its step")
    profile: str | None = flag(None, window, "steps FIRST-LAST that a profile is made of, and that Nsight Systems captures")
    profile_dir: str = flag("profile", str, "folder of the profile's trace, a file a rank")
    straggler_freq: int = flag(100, NATURAL, "steps between two looks for slow ranks; 0 never looks")
    straggler_ratio: float = flag(
        1.25, number(float, 1), "how much slower than the median a rank is, three looks in a row, when it is named"
    )
    checkpoint_dir: str | None = flag(None, str, "folder or s3://BUCKET/PREFIX of the checkpoints; the newest complete one is resumed from")
    async_checkpoint: int = flag(1, number(int, 0, 1), "1 writes checkpoints while the training goes on")
    checkpoint_freq: int = flag(1000, POSITIVE, "steps between two checkpoints")
    keep_checkpoints: int = flag(2, NATURAL, "complete checkpoints to keep; 0 keeps all")
    resume_from_checkpoint: str | None = flag(None, str, "folder to resume from while --checkpoint_dir has no complete checkpoint")
    backend: str | None = flag(None, str, "nccl on GPUs, gloo on CPUs (what the machine has if not given)", ("gloo", "nccl"))
    timeout_s: int = flag(600, POSITIVE, "seconds to wait for the other ranks before giving up")
    hang_timeout_s: int = flag(
        1800, NATURAL, "seconds without a finished step after which a rank writes what it was doing and ends; 0 waits for ever"
    )


def train_parser() -> Parser:
    """The parser of `train`, one flag for each field of TrainConfig."""
    parser = Parser(prog="python -m trainer train", description="Train on all ranks of the job.")
    for entry in fields(TrainConfig):
        assert entry.default is not MISSING
        parser.add_argument(f"--{entry.name}", *ALIASES.get(entry.name, ()), default=entry.default, **entry.metadata)
    return parser


def read_train(argv: Sequence[str]) -> TrainConfig:
    """The run that `argv` asks for; raises UsageError."""
    config = TrainConfig(**vars(train_parser().parse(argv)))
    if config.bf16 is not None and config.precision is not None:
        raise UsageError("--bf16 and --precision say the same: give one of them")
    if config.min_lr > config.lr:
        raise UsageError(f"--min_lr {config.min_lr:g} is above --lr {config.lr:g}: lower it")
    return config


def flags_table(parser: Parser) -> str:
    """The parser's flags as the Markdown table of README.md."""
    rows = ["| Flag | Default | Meaning |", "|---|---|---|"]
    for action in parser._actions:
        if action.dest != "help":
            choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
            default = "" if action.default is None else f" `{action.default}`"
            rows.append(f"| `{', '.join(action.option_strings)}` |{default} | {action.help}{choices} |")
    return "\n".join(rows) + "\n"
