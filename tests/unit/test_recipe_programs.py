# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What stands beside a recipe: programs, scripts and configurations, and whether the framework knows what they ask for.

tests/fixtures/recipes/options.json has the names of options that each framework's own source defines, with that source.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from test_recipes import FOLDER, NAMES, planned, read, sizes_of, texts

from ansible_collections.muster.fleet.plugins.module_utils.jobs import recipe

OPTIONS = json.loads((Path(__file__).parents[1] / "fixtures/recipes/options.json").read_text())
KINDS = {"int": int, "float": float}
# What the torchrun of a launcher leaves, and another torchrun would take for its own.
LAUNCHED = {"PET_RDZV_BACKEND": "c10d", "TORCHELASTIC_RUN_ID": "c10d"}
STARTERS = {"composer", "torchrun", "deepspeed", "accelerate", "ft_launcher", "mpirun"}


def program(name: str, file: str) -> ModuleType:
    """A program beside a recipe, without its main()."""
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), FOLDER / name / file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parser_of(name: str) -> argparse.ArgumentParser:
    """A parser with the framework's own options."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for option, kind in OPTIONS[name]["options"].items():
        if kind == "flag":
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, type=KINDS.get(kind, str))
    return parser


def commands(name: str) -> Iterator[tuple[str, str, list[str]]]:
    """(model, type, words of the program) of every size."""
    for model, kind in sizes_of(name):
        yield model, kind, planned(name, model, kind, "batch")["document"]["command"]


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_starts_no_ranks(name: str) -> None:
    """Muster starts a process for each GPU. A starter of the framework in each of them would start eight times eight."""
    command = read(name)["command"]
    # Of bash -c SCRIPT NAME WORDS only the words are started.
    starters = STARTERS & set(command[4:] if command[:2] == ["bash", "-c"] else command)
    assert not starters or all(size["procs_per_node"] == 1 for model in read(name)["models"].values() for size in model["sizes"].values())


def test_the_settings_of_picotron_are_those_of_its_own_file() -> None:
    start = program("picotron", "start.py")
    theirs = OPTIONS["picotron"]["settings"]
    for section, values in start.CONFIG.items():
        # picotron takes the model's own number of layers and heads where the file has none.
        assert set(theirs[section]) - {name for name in theirs[section] if name.startswith("num_") and section == "model"} == set(values)
    for model, kind, command in commands("picotron"):
        words = command[command.index("/opt/picotron") + 2 :]
        plan = planned("picotron", model, kind, "batch")
        config = start.read(words, plan["ranks"])
        sizes = config["distributed"]
        assert sizes["tp_size"] * sizes["pp_size"] * sizes["cp_size"] * sizes["dp_size"] == plan["ranks"]
        assert (config["training"]["seq_length"], config["training"]["total_train_steps"]) == (plan["context"], 200)
        assert config["checkpoint"]["save_dir"] == "@checkpoints@"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["training.seq_lenght=8"], r"training.seq_lenght=8 sets nothing that picotron reads"),
        (["--tp", "2"], r"--tp sets nothing"),
        (["distributed.tp_size=3"], r"tp_size, cp_size and pp_size make 3, which does not divide 8 ranks"),
    ],
)
def test_picotron_s_start_refuses_by_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        program("picotron", "start.py").read(words, 8)


def test_picotron_resumes_from_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    start = program("picotron", "start.py")
    sizes = {"tp_size": 2, "pp_size": 1}
    assert start.newest(tmp_path / "none", sizes) == ""
    for step, parts in ((50, 2), (100, 2), (150, 1), (200, 2)):
        (tmp_path / str(step)).mkdir()
        for part in range(parts):
            path = tmp_path / str(step) / f"weights_tp_rank_world_size={part}_2_pp_rank_world_size=0_1.pth"
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("data", "x" * 1000)
            if step == 200:
                path.write_bytes(path.read_bytes()[:500])
    assert start.newest(tmp_path, sizes) == str(tmp_path / "100")


def neuron_run(tmp_path: Path, words: list[str], rank: int = 0) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """(the ended train.sh, the words of each program that it started), with programs that only say what they got."""
    script = tmp_path / "train.sh"
    script.write_text(texts("neuronx-distributed")["train.sh"])
    (tmp_path / "bin").mkdir()
    kept = tmp_path / "kept"
    for name in ("python3", "torchrun", "neuron_parallel_compile"):
        said = f'printf "%s\\t" {name} "$@" $PET_RDZV_BACKEND $TORCHELASTIC_RUN_ID >> {kept}; echo >> {kept}'
        made = f"mkdir -p {tmp_path}/tokens" if name == "python3" else ""
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{said}\n{made}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    env = LAUNCHED | {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "RANK": str(rank), "MASTER_ADDR": "n1", "MASTER_PORT": "20007"}
    ended = subprocess.run(["bash", str(script), *words], env=env, capture_output=True, text=True, check=False)
    return ended, [line.rstrip("\t").split("\t") for line in kept.read_text().splitlines()] if kept.exists() else []


def neuron_words(command: list[str], tmp_path: Path) -> list[str]:
    """The words behind train.sh, with a folder for the tokens."""
    words = command[command.index("@recipe@/train.sh") + 1 :]
    words = [f"tokens={tmp_path}/tokens" if word.startswith("tokens=") else word for word in words]
    return [word.replace("@checkpoints@", "/checkpoints") for word in words]


@pytest.mark.parametrize(("model", "kind"), sizes_of("neuronx-distributed"))
def test_trainium_tokenises_compiles_and_trains(tmp_path: Path, model: str, kind: str) -> None:
    """The real bash runs train.sh; NxD's own options take what it gives to the program."""
    plan = planned("neuronx-distributed", model, kind, "batch")
    ended, said = neuron_run(tmp_path, neuron_words(plan["document"]["command"], tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert [line[0] for line in said] == ["python3", "neuron_parallel_compile", "torchrun"]
    parsed = []
    for line in said[1:]:
        at = next(place for place, word in enumerate(line) if word.endswith("tp_zero1_llama_hf_pretrain.py"))
        started = dict(zip(line[line.index("--nnodes") : at : 2], line[line.index("--nnodes") + 1 : at : 2], strict=False))
        assert [started[f"--{each}"] for each in ("nnodes", "node_rank", "master_addr", "master_port")] == [
            str(plan["nodes"]),
            "0",
            "n1",
            "20008",
        ]
        given = parser_of("neuronx-distributed").parse_args(line[at + 1 :])
        copies = int(started["--nproc_per_node"]) * plan["nodes"] // given.tensor_parallel_size
        assert given.grad_accum_usteps * given.batch_size * copies in (64, 1024)
        parsed.append(given)
    compiled, trained = parsed
    assert (compiled.steps_this_run, compiled.loading_step) == (2, "-1")
    assert (trained.steps_this_run, trained.loading_step, trained.seq_len) == (200, "latest_if_exists", 8192)
    assert compiled.output_dir == trained.output_dir


def test_only_the_first_node_tokenises(tmp_path: Path) -> None:
    command = planned("neuronx-distributed", "", "trn1.32xlarge", "batch")["document"]["command"]
    (tmp_path / "tokens").mkdir()
    ended, said = neuron_run(tmp_path, neuron_words(command, tmp_path), rank=3)
    assert ended.returncode == 0, ended.stderr
    assert [line[0] for line in said] == ["neuron_parallel_compile", "torchrun"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bacth=1"], r"train.sh: the word bacth=1 is unknown; give name=value or an argument of tp_zero1_llama_hf_pretrain.py"),
        (["global_batch=7"], r"global_batch=7 is no multiple of batch=1 times 4 copies of the model; change global_batch or tp"),
    ],
)
def test_trainium_s_script_refuses_by_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    command = planned("neuronx-distributed", "", "trn1.32xlarge", "batch")["document"]["command"]
    ended, started = neuron_run(tmp_path, [*neuron_words(command, tmp_path), *words])
    assert (ended.returncode, started) == (64, [])
    assert re.search(said, ended.stderr), ended.stderr


def test_stable_diffusion_s_configuration_fits_the_signatures() -> None:
    """Every mapping with a _target_ has parameters of it, and every word of a size replaces something that is there."""
    config = yaml.safe_load(texts("stable-diffusion")["sd2.yaml"])
    found = []

    def look(part: Any) -> None:
        if isinstance(part, dict):
            if "_target_" in part:
                found.append(part["_target_"])
                assert set(part) - {"_target_"} <= set(OPTIONS["stable-diffusion"]["targets"][part["_target_"]])
            for value in part.values():
                look(value)

    look(config)
    assert set(found) == set(OPTIONS["stable-diffusion"]["targets"])
    for model, kind, command in commands("stable-diffusion"):
        for word in command[command.index("sd2.yaml") + 1 :]:
            path, equals, _value = word.partition("=")
            place: Any = config
            for name in path.split(".") if not path.startswith("hydra.") else ():
                assert equals and name in place, (model, kind, word)
                place = place[name]


def test_composer_s_programs_get_the_number_of_their_node(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "$NODE_RANK $1"\n')
    python.chmod(0o755)
    (tmp_path / "python").symlink_to(python)
    for name in ("composer", "stable-diffusion"):
        command = planned(name, "", "p5.48xlarge", "batch")["document"]["command"]
        env = os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin", "RANK": "19", "LOCAL_WORLD_SIZE": "8", "MUSTER_JOB_DIR": "/job"}
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
        assert said[0] == "2" and said[1].startswith("/opt/"), (name, said)


def fields_of(name: str) -> set[str]:
    """The arguments that the program's own class Asked adds, as its source declares them."""
    declared = re.search(r"class Asked:\n(.*?)\n\n\n", texts(name)["train.py"], re.S)
    assert declared
    return {f"--{field}" for field in re.findall(r"^    (\w+):", declared.group(1), re.M)}


@pytest.mark.parametrize("name", ["trl", "optimum-neuron"])
def test_the_arguments_of_hugging_face_s_trainers_are_theirs(name: str) -> None:
    """Every flag is one of the framework's configuration or of the program, and has a value."""
    known = fields_of(name) | set(OPTIONS[name]["options"])
    for model, kind, command in commands(name):
        flags = [word for word in command if word.startswith("--")]
        assert flags and set(flags) <= known, (model, kind, set(flags) - known)
        words = command[command.index(flags[0]) :]
        assert words[::2] == flags, (model, kind)
        given = dict(zip(words[::2], words[1::2], strict=True))
        assert given["--max_steps"] == str(read(name)["steps"])
        if name == "trl":
            # GRPO compares the completions of one problem, which are a part of what the ranks write together.
            completions = int(given["--per_device_train_batch_size"]) * planned(name, model, kind, "batch")["ranks"]
            assert completions * int(given["--gradient_accumulation_steps"]) % int(given["--num_generations"]) == 0


def test_optimum_neuron_compiles_and_trains(tmp_path: Path) -> None:
    command = planned("optimum-neuron", "", "trn1.32xlarge", "batch")["document"]["command"]
    (tmp_path / "train.sh").write_text(texts("optimum-neuron")["train.sh"])
    for name in ("torchrun", "neuron_parallel_compile"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" $PET_RDZV_BACKEND $TORCHELASTIC_RUN_ID >> "{tmp_path}/said"\n')
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "20007", "WORLD_SIZE": "1"} | LAUNCHED
    words = command[command.index("@recipe@/train.sh") + 1 :]
    subprocess.run(["bash", str(tmp_path / "train.sh"), *words], env=env, check=True)
    compiled, trained = (tmp_path / "said").read_text().splitlines()
    started = (
        f"torchrun --nnodes 1 --node_rank 0 --nproc_per_node 32 --master_addr n1 --master_port 20008 {tmp_path}/train.py --max_steps 100"
    )
    assert compiled.startswith(f"neuron_parallel_compile {started}") and " --max_steps 10 --save_strategy no" in compiled
    assert trained.startswith(started) and "--save_strategy steps" in trained
    assert "c10d" not in compiled + trained


@pytest.mark.parametrize("name", ["deepspeed", "nvrx"])
def test_the_arguments_of_our_programs_are_theirs(name: str) -> None:
    source = texts(name)["train.py"]
    known = {f"--{each}" for each in re.findall(r'add_argument\("--([\w-]+)"', source)}
    known |= {f"--{each}" for each in re.findall(r'\("([\w-]+)", \d+\)', source)}
    for model, kind, command in commands(name):
        flags = {word for word in command if word.startswith("--")}
        assert {"--steps", "--checkpoints", "--batch"} <= flags <= known, (model, kind, flags - known)


@pytest.mark.parametrize("name", ["deepspeed", "nvrx", "trl", "optimum-neuron"])
def test_the_pattern_reads_the_line_of_the_program(name: str) -> None:
    """The format strings that the program prints, with 7 for each value."""
    source = texts(name)["train.py"]
    strings = re.findall(r'f"((?:Speed: |[^"]*Batch )[^"]*)"', source)
    rates = next((text for text in strings if text.startswith("Speed:")), "")
    [line] = [text.replace("{rates}", rates) for text in strings if "Batch " in text]
    [step] = recipe.steps(read(name), re.sub(r"\{[^{}]*\}", "7", line))
    assert (step["step"], step["loss"], step["samples_per_s"]) == (7, 7, 7)
    assert step["tokens_per_s"] == (None if name == "optimum-neuron" else 7)


def test_deepspeed_is_told_what_is_asked(tmp_path: Path) -> None:
    """The program's settings, read from its source because DeepSpeed is not here: ZeRO's stage, the batch and the dtype."""
    source = texts("deepspeed")["train.py"]
    taken = source[source.index("def settings(") : source.index("def made(")]
    space: dict[str, Any] = {}
    exec(compile(taken, "train.py", "exec"), space)
    asked = argparse.Namespace(stage=3, batch=4, accumulate=2, lr=0.001, warmup=10, steps=60, offload=True)
    gpu, cpu = space["settings"](asked, False), space["settings"](asked, True)
    assert (gpu["zero_optimization"]["stage"], gpu["zero_optimization"]["offload_optimizer"]["device"]) == (3, "cpu")
    assert (gpu["train_micro_batch_size_per_gpu"], gpu["gradient_accumulation_steps"], gpu["bf16"]["enabled"]) == (4, 2, True)
    assert cpu["optimizer"]["params"]["torch_adam"] and not cpu["bf16"]["enabled"] and "torch_adam" not in gpu["optimizer"]["params"]


def test_picotron_gets_its_file_in_the_shared_folder(tmp_path: Path) -> None:
    """The real start.py runs a program that says what it got, where picotron's would be."""
    (tmp_path / "picotron").mkdir()
    said = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1], json.load(open(sys.argv[2]))]))"
    (tmp_path / "picotron/train.py").write_text(said)
    words = [str(FOLDER / "picotron/start.py"), str(tmp_path / "picotron"), str(tmp_path / "shared"), "training.learning_rate=0.001"]
    env = os.environ | {"WORLD_SIZE": "8", "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)
    folder, flag, config = json.loads(ended.stdout)
    assert (folder, flag) == (str(tmp_path / "shared"), "--config")
    assert (config["distributed"]["dp_size"], config["training"]["learning_rate"], config["checkpoint"]["load_path"]) == (8, 0.001, "")


def test_megatron_lm_takes_the_arguments() -> None:
    """Megatron's own options take the words, and its sizes divide as validate_args() of it wants."""
    for model, kind, command in commands("megatron-lm"):
        given = parser_of("megatron-lm").parse_args(command[command.index("/opt/megatron-lm/pretrain_gpt.py") + 1 :])
        tensor, pipeline = given.tensor_model_parallel_size, given.pipeline_model_parallel_size or 1
        together = tensor * pipeline * (given.context_parallel_size or 1)
        copies, rest = divmod(planned("megatron-lm", model, kind, "batch")["ranks"], together)
        assert not rest and given.global_batch_size % (given.micro_batch_size * copies) == 0, (model, kind)
        assert (given.num_query_groups or given.num_attention_heads) % tensor == 0 == given.num_layers % pipeline, (model, kind)
        assert given.seq_length == read("megatron-lm")["models"][model]["context"]


def test_bionemo_takes_the_arguments() -> None:
    for model, kind, command in commands("bionemo"):
        given = parser_of("bionemo").parse_args(command[command.index("train_esm2") + 1 :])
        assert given.num_nodes * given.num_gpus == planned("bionemo", model, kind, "batch")["ranks"]
        assert (given.num_steps, given.max_seq_length) == (200, read("bionemo")["models"][model]["context"])
        assert given.hidden_size % given.num_attention_heads == 0


@pytest.mark.parametrize(("model", "kind"), [each for each in sizes_of("torchtitan") if each[1]])
def test_torchtitan_has_the_options(model: str, kind: str) -> None:
    """Those of its dataclasses, which its parser makes from them. On CPUs the proof of frameworks runs it."""
    command = planned("torchtitan", model, kind, "batch")["document"]["command"]
    words = command[command.index("@recipe@/start.py") + 1 :]
    flags = {word for word in words if word.startswith("--")} - {"--module", "--config"}
    assert flags <= set(OPTIONS["torchtitan"]["options"])
    config = words[words.index("--config") + 1]
    assert config in OPTIONS["torchtitan"]["configurations"] or f"config_registry.{config} = " in texts("torchtitan")["start.py"]


def test_llm_foundry_s_configuration_has_its_fields() -> None:
    """LLM Foundry refuses a field that its TrainConfig does not have, and each part is an argument of what it makes of it."""
    known, config = OPTIONS["composer"], yaml.safe_load(texts("composer")["mpt.yaml"])
    assert set(config) <= set(known["settings"])
    for path, fields in known["parts"].items():
        part = functools.reduce(lambda place, name: place[name], path.split("."), config)
        assert set(part) - {"name", "dataset"} <= set(fields), path
    for model, kind, command in commands("composer"):
        for word in command[command.index("@recipe@/mpt.yaml") + 1 :]:
            path, equals, _value = word.partition("=")
            assert equals and path.split(".")[0] in known["settings"], (model, kind, word)
            if path.startswith("model."):
                assert path.removeprefix("model.") in known["parts"]["model"], (model, kind, word)


def test_composer_resumes_where_nodes_share_the_checkpoints() -> None:
    """With checkpoints in one piece, autoresume of Composer 0.25.0 and 0.32.1 makes a file that each node removes: all but one fail."""
    mpt, pictures = yaml.safe_load(texts("composer")["mpt.yaml"]), yaml.safe_load(texts("stable-diffusion")["sd2.yaml"])
    for resumes, fsdp in (
        ("autoresume=true" in read("composer")["checkpoint"]["args"], mpt["fsdp_config"]),
        (pictures["trainer"]["autoresume"], pictures["trainer"]["fsdp_config"]),
    ):
        assert (resumes, fsdp["state_dict_type"]) == (True, "sharded")


def test_mpt_has_its_attention_and_loss() -> None:
    """LLM Foundry's MPT takes both from flash-attn, and its package does not require that."""
    model = yaml.safe_load(texts("composer")["mpt.yaml"])["model"]
    ours = model.get("loss_fn") == "torch_crossentropy" and model.get("attn_config", {}).get("attn_impl") == "torch"
    assert ours or any(each.startswith("flash-attn==") for each in read("composer")["requires"])


def test_deepspeed_knows_the_settings_of_zero() -> None:
    space: dict[str, Any] = {}
    source = texts("deepspeed")["train.py"]
    exec(compile(source[source.index("def settings(") : source.index("def made(")], "train.py", "exec"), space)
    asked = argparse.Namespace(stage=3, batch=4, accumulate=2, lr=0.001, warmup=10, steps=60, offload=True)
    for zero in (space["settings"](asked, False)["zero_optimization"], json.loads(texts("trl")["zero3.json"])["zero_optimization"]):
        assert set(zero) <= set(OPTIONS["deepspeed"]["zero_optimization"])
        assert set(zero.get("offload_optimizer", {})) <= set(OPTIONS["deepspeed"]["offload_optimizer"])
