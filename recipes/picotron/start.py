# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Starts picotron: start.py PICOTRON FOLDER section.name=value ... picotron itself reads nothing but a file of JSON, without defaults."""

import json
import os
import runpy
import sys
import tempfile
import zipfile
from pathlib import Path

# All that picotron's train.py reads. A word of the command replaces a value.
CONFIG = {
    "distributed": {"tp_size": 1, "cp_size": 1, "pp_size": 1, "dp_size": 0, "pp_engine": "1f1b", "backend": "nccl", "use_cpu": False},
    "model": {"name": "", "dtype": "bfloat16", "use_flash_attention": True, "use_fused_adam": True},
    "training": {
        "seed": 42,
        "learning_rate": 3e-4,
        "total_train_steps": 200,
        "seq_length": 2048,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_samples": 400000,
        "max_tokens": None,
    },
    "dataset": {"name": "roneneldan/TinyStories", "subset_name": None, "num_workers": 0, "num_proc": 1},
    "checkpoint": {"save_dir": "", "save_frequency": 50, "load_path": ""},
    "logging": {"use_wandb": False, "project_name": "picotron", "run_name": "muster"},
    "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "1", "HF_TOKEN": None},
}


def read(words, ranks):
    """The configuration that words such as training.seq_length=1024 ask for; what is left of the ranks is data-parallel."""
    config = {section: dict(values) for section, values in CONFIG.items()}
    for word in words:
        path, equals, value = word.partition("=")
        section, _dot, name = path.partition(".")
        if not equals or name not in config.get(section, {}):
            raise SystemExit(
                f"start.py: {word} sets nothing that picotron reads; write section.name=value, such as training.seq_length=1024."
            )
        kind = type(CONFIG[section][name])
        config[section][name] = kind(value) if kind in (int, float) else value == "true" if kind is bool else value
    sizes = config["distributed"]
    together = sizes["tp_size"] * sizes["cp_size"] * sizes["pp_size"]
    if ranks % together:
        raise SystemExit(f"start.py: tp_size, cp_size and pp_size make {together}, which does not divide {ranks} ranks; change them.")
    sizes["dp_size"] = ranks // together
    return config


def newest(folder, sizes):
    """The newest checkpoint in which every part is whole, "" without one. A job that was killed leaves half a file."""
    parts = [
        f"weights_tp_rank_world_size={tp}_{sizes['tp_size']}_pp_rank_world_size={pp}_{sizes['pp_size']}.pth"
        for tp in range(sizes["tp_size"])
        for pp in range(sizes["pp_size"])
    ]
    for path in sorted(Path(folder).glob("[0-9]*"), key=lambda path: int(path.name), reverse=True):
        # torch.save writes a zip file, whose directory comes last.
        if all(zipfile.is_zipfile(path / part) for part in parts):
            return str(path)
    return ""


def main():
    program, folder = Path(sys.argv[1]), Path(sys.argv[2])
    config = read(sys.argv[3:], int(os.environ["WORLD_SIZE"]))
    config["checkpoint"]["load_path"] = newest(config["checkpoint"]["save_dir"], config["distributed"])
    # picotron downloads the weights into the working directory, and every rank reads them there.
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(config, file)
    sys.argv = ["train.py", "--config", file.name]
    sys.path.insert(0, str(program))
    runpy.run_path(str(program / "train.py"), run_name="__main__")


if __name__ == "__main__":
    main()
