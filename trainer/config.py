# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The flags of `train` in six groups, with the names of the AWS reference trainer where it has them. A flag's name is its field's name."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.arguments import REPLACED, model_type, take_replaced
from trainer.cli import AMOUNT, DECAY, FRACTION, NATURAL, POSITIVE, SWITCH, Parser, flag, number, window
from trainer.models import PRESETS, ROPE_THETA

LAYOUTS = ("full", "hybrid", "ddp")
RECOMPUTE = ("none", "selective", "attention", "full")
ADAMW, MOMENTS, OFFLOAD = ("fused", "foreach"), ("fp32", "bf16"), ("none", "optimizer")
PRECISIONS = ("fp64", "fp32", "fp16", "bf16", "float8")


def recompute(text: str) -> str:
    """A word of RECOMPUTE; the AWS reference trainer writes 0 or 1."""
    return {"0": "none", "1": "full"}.get(text, text)


@dataclass(frozen=True)
class ModelFlags:
    """Model"""

    model: str = flag("reference", str, "preset that fills the shape flags that are not given", sorted(PRESETS))
    model_type: str | None = flag(
        None, model_type, "another rotary base than the model's (llama_v3 for reference and tiny)", sorted(ROPE_THETA)
    )
    init_from: str | None = flag(None, str, "start from the weights of a Hugging Face model, a name or a folder, which decides the shape")
    hidden_width: int | None = flag(None, POSITIVE, "width of the residual stream")
    num_layers: int | None = flag(None, POSITIVE, "decoder blocks")
    num_heads: int | None = flag(None, POSITIVE, "attention heads")
    num_key_value_heads: int | None = flag(None, POSITIVE, "key and value heads (grouped-query attention)")
    intermediate_size: int | None = flag(None, POSITIVE, "width inside the feed-forward layer")
    vocab_size: int | None = flag(None, POSITIVE, "entries of the embedding; at least the data's")
    max_context_width: int | None = flag(None, POSITIVE, "tokens in a sample; at most the model's limit")
    initializer_range: float = flag(0.02, AMOUNT, "standard deviation of the initial weights")


@dataclass(frozen=True)
class DataFlags:
    """Data"""

    dataset: str = flag("allenai/c4", str, "data set of the Hugging Face hub, streamed; `synthetic` needs nothing but the seed")
    dataset_config_name: str | None = flag(None, str, "configuration of --dataset (en for allenai/c4 if not given)")
    dataset_path: str | None = flag(
        None, str, "instead of --dataset: a folder that prepare-data or save_to_disk wrote, or one of json, parquet, csv or text files"
    )
    train_split: str = flag("train", str, "split of the data set to train on")
    val_split: str = flag("validation", str, "split to validate on; `test` serves as validation if there is none")
    tokenizer: str | None = flag(
        None, str, "`bytes`, a folder or file, or a model of the hub (chosen by the size of the vocabulary if not given)"
    )
    data_streams: int = flag(64, POSITIVE, "parts of streamed data; a rank reads only its own if the number of ranks divides this one")
    val_batch_size: int = flag(4, POSITIVE, "samples per rank and validation batch")
    validation_freq: int | None = flag(None, POSITIVE, "steps between two validations (none if not given)")
    validation_batches: int = flag(10, POSITIVE, "batches of a validation")
    train_batch_size: int = flag(2, POSITIVE, "samples per rank and step")
    seed: int = flag(12345, number(int, 0, 2**62), "decides the initial weights and the order of the samples")


@dataclass(frozen=True)
class LayoutFlags:
    """Layout"""

    sharding_strategy: str = flag(
        "full", str, "divide the weights over all ranks, over groups of ranks, or give each rank a whole copy", LAYOUTS
    )
    hybrid_shard_degree: int | None = flag(None, POSITIVE, "ranks that hold one copy of the weights with hybrid (a host's if not given)")
    tensor_parallel_degree: int = flag(1, POSITIVE, "ranks that divide each layer and the tokens between layers")
    pipeline_parallel_degree: int = flag(1, POSITIVE, "stages that the blocks are divided into")
    pipeline_schedule: str = flag(
        "1f1b", str, "order of a pipeline's work; interleaved gives each stage two parts", ("1f1b", "interleaved")
    )
    context_parallel_degree: int = flag(1, POSITIVE, "ranks that divide each sample's tokens")
    expert_parallel_degree: int = flag(1, POSITIVE, "ranks that divide the experts of a mixture")
    gradient_accumulation_steps: int = flag(1, POSITIVE, "batches of --train_batch_size in a step; the micro-batches of a pipeline")
    activation_checkpointing: str = flag(
        "none", recompute, "activations that the backward pass computes again instead of keeping them", RECOMPUTE
    )
    compile: int = flag(0, SWITCH, "1 compiles each block")
    precision: str | None = flag(None, str, "type of the products (bf16 on GPUs that have it, else fp16 or fp32; fp32 on CPUs)", PRECISIONS)
    bf16: int | None = flag(None, SWITCH, "1 is --precision bf16, 0 is fp32")
    deterministic: int = flag(0, SWITCH, "1 takes only kernels that give the same bits in every run, which may be slower")
    backend: str | None = flag(None, str, "nccl on GPUs, gloo on CPUs (by the machine's devices if not given)", ("gloo", "nccl"))
    timeout_s: int = flag(600, POSITIVE, "seconds to wait for the other ranks before giving up")


@dataclass(frozen=True)
class OptimiserFlags:
    """Optimiser"""

    max_steps: int = flag(5000, POSITIVE, "optimizer steps in all, restarts included", aliases=["--max_training_steps"])
    lr: float = flag(1e-4, AMOUNT, "highest learning rate")
    min_lr: float = flag(1e-5, AMOUNT, "learning rate at the end of the decay")
    lr_decay_style: str = flag("cosine", str, "shape of the decay", ("constant", "cosine", "exponential", "linear", "plateau"))
    lr_decay_iters: int | None = flag(None, POSITIVE, "steps until --min_lr (--max_steps if not given)")
    warmup: float = flag(0.0032, FRACTION, "share of the decay steps in which the rate rises")
    plateau: float = flag(0.0, FRACTION, "share of the decay steps after the warm-up in which the rate stays")
    grad_clip: float = flag(1.0, AMOUNT, "highest norm of the gradient; 0 is no limit")
    weight_decay: float = flag(0.2, AMOUNT, "AdamW's weight decay, on matrices only")
    beta1: float = flag(0.9, DECAY, "AdamW's decay of the first moment")
    beta2: float = flag(0.95, DECAY, "AdamW's decay of the second moment")
    adamw: str = flag("fused", str, "the kernel that updates the weights; foreach needs the space of another moment", ADAMW)
    moments: str = flag("fp32", str, "type of AdamW's moments; bf16 halves them", MOMENTS)
    offload: str = flag("none", str, "optimizer keeps AdamW's moments in the host's memory, and each step moves them twice", OFFLOAD)


@dataclass(frozen=True)
class CheckpointFlags:
    """Checkpoint"""

    checkpoint_dir: str | None = flag(
        None, str, "folder or s3://BUCKET/PREFIX of the checkpoints; the run resumes from the newest complete one"
    )
    async_checkpoint: int = flag(1, SWITCH, "1 writes checkpoints while the training goes on")
    checkpoint_freq: int = flag(1000, POSITIVE, "steps between two checkpoints")
    keep_checkpoints: int = flag(2, NATURAL, "complete checkpoints to keep; 0 keeps all")
    resume_from_checkpoint: str | None = flag(None, str, "folder to resume from while --checkpoint_dir has no complete checkpoint")


@dataclass(frozen=True)
class OutputFlags:
    """Output"""

    logging_freq: int = flag(1, POSITIVE, "steps between two log lines")
    jsonl: str | None = flag(None, str, "file of the log as JSON lines (CHECKPOINT_DIR/train.jsonl if not given)")
    tensorboard_dir: str | None = flag(None, str, "folder of TensorBoard files")
    tracker: str | None = flag(None, str, "`wandb`, `mlflow` or MODULE:FUNCTION, which is called with each record and its step")
    profile: str | None = flag(None, window, "steps FIRST-LAST to profile, and to capture with Nsight Systems")
    profile_dir: str = flag("profile", str, "folder of the profile's traces, one file a rank")
    straggler_freq: int = flag(100, NATURAL, "steps between two searches for slow ranks; 0 never searches")
    straggler_ratio: float = flag(
        1.25, number(float, 1), "times the median from which a rank counts as slow; the log names it after three searches in a row"
    )
    hang_timeout_s: int = flag(
        1800, NATURAL, "seconds without a finished step after which a rank writes what it was doing and ends; 0 waits for ever"
    )


@dataclass(frozen=True)
class TrainConfig(OutputFlags, CheckpointFlags, OptimiserFlags, LayoutFlags, DataFlags, ModelFlags):
    """One training run, as typed. Shape flags left at None come from --model. `remarks` are for the log."""

    remarks: tuple[str, ...] = ()


def train_parser() -> Parser:
    """The parser of `train`."""
    parser = Parser(prog="python -m trainer train", description="Train on all ranks of the job.")
    for group in reversed(TrainConfig.__bases__):
        parser.add_flags(group)
    return parser


def read_train(argv: Sequence[str]) -> TrainConfig:
    """The run that `argv` asks for; raises UsageError."""
    rest, theirs = take_replaced(argv)
    offload = theirs.get("--offload_activations", "0") != "0"
    if offload and not any(word.partition("=")[0] == "--activation_checkpointing" for word in rest):
        rest = [*rest, "--activation_checkpointing=full"]

    def check(asked: Namespace) -> Iterator[str]:
        if asked.bf16 is not None and asked.precision is not None:
            yield "--bf16 and --precision say the same: give one of them"
        if asked.min_lr > asked.lr:
            yield f"--min_lr {asked.min_lr:g} is above --lr {asked.lr:g}: lower it"
        if offload and asked.activation_checkpointing != "full":
            yield f"--offload_activations needs --activation_checkpointing full: {REPLACED['--offload_activations']}"
        if theirs.get("--cpu_offload", "0") != "0":
            yield f"--cpu_offload: {REPLACED['--cpu_offload']}"

    asked = vars(train_parser().parse(rest, check))
    return TrainConfig(
        **asked, remarks=tuple(f"{name} of the AWS reference trainer does nothing here: {REPLACED[name]}" for name in theirs)
    )
