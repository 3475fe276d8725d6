# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Reads and writes Hugging Face checkpoints, config.json and safetensors, without transformers.

Our parameters have the same names, so a tensor is read or written as it is. Only Mixtral's experts are separate there and stacked here.
A file is mapped and never read whole, so each rank reads only the pages of its own part.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.cli import UsageError
from trainer.hub import hub_errors
from trainer.models import ROPE_THETA, Shape

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# Our names of counts and of the rotary embedding's scaling → those of config.json, for both directions.
COUNTS = {"hidden_width": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
COUNTS |= {name: name for name in ("num_key_value_heads", "intermediate_size", "vocab_size")}
ROPE = {"rope_factor": "factor", "rope_low": "low_freq_factor", "rope_high": "high_freq_factor"}
ROPE |= {"rope_original": "original_max_position_embeddings"}
MIXTURE = {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok", "aux_loss": "router_aux_loss_coef"}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM"}

# Fields of config.json that this trainer supports with one value only, and those that change neither the logits nor the training.
ONLY = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0, "router_jitter_noise": 0}
ONLY |= {"partial_rotary_factor": 1, "rope_parameters.partial_rotary_factor": 1, "is_encoder_decoder": False, "add_cross_attention": False}
IRRELEVANT = re.compile(
    "model_type|architectures|_name_or_path|transformers_version|(torch_)?dtype|initializer_range|use_cache|pretraining_tp|output_.*|"
    "(bos|eos|pad|unk)_token_id|id2label|label2id|problem_type|return_dict|max_length|chunk_size_feed_forward|tokenizer_class|torchscript|"
    "is_decoder|_attn_implementation_autoset"
)


def folder_of(name: str) -> Path:
    """The folder of a checkpoint: `name` itself, or a copy of the hub's model `name`, which is fetched if missing. Raises TrainerError."""
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder} has no config.json: --init_from needs a Hugging Face checkpoint; to resume use --checkpoint_dir")
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise UsageError(f"--init_from {name} is neither a folder nor a model's name such as meta-llama/Llama-3.2-1B")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UsageError(f"--init_from {name} needs huggingface_hub, which is not installed: pip install huggingface_hub") from None
    with hub_errors(f"model {name}", "give a folder with --init_from"):
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "tokenizer*"]))
    return folder


def shape_from(folder: Path, given: dict[str, Any]) -> Shape:
    """The shape in config.json, with samples of --max_context_width (at most 4096 tokens if not given). Raises UsageError, also for a
    field that is not used here and may change what the model computes."""
    file, other = folder / "config.json", "choose another --init_from"
    try:
        config = json.loads(file.read_text())
        kind = config["model_type"]
        if kind not in ARCHITECTURES:
            raise UsageError(f"{folder} holds a model of type {kind}; known are {', '.join(ARCHITECTURES)}: {other}")
        # Newer files describe the rotary embedding in rope_parameters.
        rope = (config.pop("rope_scaling", None) or {}) | (config.pop("rope_parameters", None) or {})
        parts, left = parts_from(config, rope, mixture=kind == "mixtral")
        for name, value in left.items():
            if value is not None and not IRRELEVANT.fullmatch(name) and (name not in ONLY or value != ONLY[name]):
                raise UsageError(
                    f"{file} has {name} {value}, which this trainer does not support: {other}, or remove a field without effect"
                )
        for name, value in given.items():
            if value is not None and name != "max_context_width" and parts.get(name, value) != value:
                raise UsageError(f"--{name} {value} differs from the {parts[name]} of {folder}: leave it out")
        return Shape(**parts, max_context_width=given.get("max_context_width") or min(parts["context_limit"], 4096))
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} cannot be read as a model's configuration ({type(error).__name__}: {error}): {other}") from None


def parts_from(config: dict[str, Any], rope: dict[str, Any], mixture: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a Shape, and what is left of `config` and of its part `rope`."""
    left = config | {f"rope_parameters.{name}": value for name, value in rope.items()}

    def count(name: str, default: int | None = None) -> int:
        value = left.pop(name, None)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} is {value}")
        return value

    def amount(*names: str, default: float | None = None) -> float:
        values = [value for name in names if (value := left.pop(name, None)) is not None]
        return float(values[0] if values else default)  # type: ignore[arg-type]

    if left.get("num_key_value_heads") is None:
        left["num_key_value_heads"] = left.get("num_attention_heads")
    parts: dict[str, Any] = {ours: count(theirs) for ours, theirs in COUNTS.items()}
    parts |= {
        "rope_theta": amount("rope_theta", "rope_parameters.rope_theta", default=ROPE_THETA["llama_v2"]),
        # We have no sliding window, so a sample must fit into the model's.
        "context_limit": min(count("max_position_embeddings", 4096), count("sliding_window", 2**31)),
        "tied": left.pop("tie_word_embeddings", False) is True,
        "norm_eps": amount("rms_norm_eps", default=1e-6),
    }
    if left.get("head_dim") == parts["hidden_width"] // parts["num_heads"]:
        del left["head_dim"]
    kind = left.pop("rope_parameters.rope_type", "default")
    old = left.pop("rope_parameters.type", kind)
    if "llama3" in (kind, old):
        for name, theirs in ROPE.items():
            parts[name] = (count if name == "rope_original" else amount)(f"rope_parameters.{theirs}")
    elif (kind, old) != ("default", "default"):
        left = {"rope_parameters.rope_type": old if kind == "default" else kind} | left
    if mixture:
        parts |= {"num_experts": count("num_local_experts"), "experts_per_token": count("num_experts_per_tok")}
        parts["aux_loss"] = amount("router_aux_loss_coef", default=0.02)
    return parts, left


def config_of(shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json of a shape."""
    kind = "mixtral" if shape.num_experts else "llama"
    rope: dict[str, Any] = {"rope_type": "default"}
    if shape.rope_factor != 1:
        rope = {"rope_type": "llama3"} | {theirs: getattr(shape, name) for name, theirs in ROPE.items()}
    config = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **{theirs: getattr(shape, name) for name, theirs in COUNTS.items()},
        "max_position_embeddings": shape.context_limit or shape.max_context_width,
        "rope_theta": shape.rope_theta,
        # Both spellings: readers before transformers 5 know only the first.
        "rope_scaling": rope if shape.rope_factor != 1 else None,
        "rope_parameters": rope | {"rope_theta": shape.rope_theta},
        "tie_word_embeddings": shape.tied,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if shape.num_experts:
        config |= {theirs: getattr(shape, name) for name, theirs in MIXTURE.items()} | {"sliding_window": None}
    return config


def their_names(name: str, shape: Shape) -> list[str]:
    """The tensors of a checkpoint that make one of our parameters; several for stacked experts."""
    if ".mlp.experts." in name:
        prefix, kind = name.split(".mlp.experts.")
        return [f"{prefix}.block_sparse_moe.experts.{expert}.{EXPERT[kind]}.weight" for expert in range(shape.num_experts)]
    return [name.replace(".mlp.gate.", ".block_sparse_moe.gate.")]


class Tensors:
    """All tensors of a folder's safetensors files by name. Raises UsageError for a missing or damaged file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: dict[str, tuple[Path, torch.dtype, list[int], int]] = {}  # file, type, size, offset
        try:
            index = folder / INDEX
            files = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {SINGLE}
            for name in sorted(files):
                self._read(folder / name)
        except FileNotFoundError as missing:
            raise UsageError(f"{missing.filename} is missing: a whole checkpoint has {SINGLE}, or {INDEX} and the files it names") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"the safetensors of {folder} are damaged: fetch them again") from None

    def _read(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size:
                raise ValueError("no header")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                if 8 + length + last > size:
                    raise ValueError("cut")
                self.parts[name] = (path, DTYPES[entry["dtype"]], entry["shape"], 8 + length + first)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.parts:
            raise UsageError(f"{self.folder} has no {name}: it is the checkpoint of another kind of model")
        path, dtype, size, start = self.parts[name]
        count = torch.Size(size).numel()
        storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
        # An offset may not be a multiple of the element's size, so cut bytes first.
        flat = torch.tensor([], dtype=torch.uint8).set_(storage, start, [count * dtype.itemsize])  # type: ignore[call-overload]
        if start % dtype.itemsize:
            flat = flat.clone()
        result: Tensor = flat.view(dtype).view(size)
        return result


def source(folder: Path, shape: Shape) -> Callable[[str, torch.Size], Tensor]:
    """A source of first weights from a checkpoint. It raises UsageError if a tensor is missing or has another size."""
    tensors = Tensors(folder)

    def value(name: str, size: torch.Size) -> Tensor:
        parts = [tensors[part] for part in their_names(name, shape)]
        found = torch.stack(parts) if len(parts) > 1 else parts[0]
        if found.shape != size:
            raise UsageError(
                f"{name} of {folder} has the size {list(found.shape)} and not {list(size)}: its config.json is another model's"
            )
        return found

    return value


def save(folder: Path, shape: Shape, named: Iterable[tuple[str, Callable[[], Tensor]]], dtype: torch.dtype, limit: int = 5 * 2**30) -> None:
    """Write a checkpoint that transformers reads. `named` gives each parameter's name and a function that returns it whole."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[list[tuple[str, Tensor]]] = [[]]
    held = total = 0
    weight_map: dict[str, str] = {}

    def flush() -> None:
        path = folder / f"model-{len(files):05d}.safetensors"
        write(path, files[-1])
        weight_map.update({name: path.name for name, _ in files[-1]})
        files[-1] = []

    for name, make in named:
        value = make().detach().to("cpu", dtype)
        theirs = their_names(name, shape)
        for part, piece in zip(theirs, value if len(theirs) > 1 else [value], strict=True):
            if held and held + piece.nbytes > limit:
                flush()
                files.append([])
                held = 0
            files[-1].append((part, piece.contiguous()))
            held += piece.nbytes
            total += piece.nbytes
    flush()
    if len(files) == 1:
        (folder / "model-00001.safetensors").replace(folder / SINGLE)
    else:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config_of(shape, dtype), indent=1) + "\n")


def copy_settings(like: Path, folder: Path) -> None:
    """Give the model in `folder` the tokenizer, generation settings and special tokens of the model in `like`."""
    tokenizer = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template*")
    for pattern in (*tokenizer, "generation_config.json"):
        for file in filter(Path.is_file, like.glob(pattern)):
            shutil.copyfile(file, folder / file.name)
    theirs, ours = (json.loads((place / "config.json").read_text()) for place in (like, folder))
    ids = {name: value for name, value in theirs.items() if name.endswith("_token_id")}
    (folder / "config.json").write_text(json.dumps(ours | ids, indent=1) + "\n")


def write(path: Path, tensors: list[tuple[str, Tensor]]) -> None:
    """One safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors:
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in tensors:
            file.write(tensor.view(-1).view(torch.uint8).numpy().tobytes())
