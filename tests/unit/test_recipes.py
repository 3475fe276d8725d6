# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Recipes: every folder is valid, renders for each launcher and type that it names, and reads its framework's throughput line."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.jobs import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as documents
from ansible_collections.muster.fleet.plugins.module_utils.jobs import fleet, launchers, recipe, workload
from ansible_collections.muster.fleet.plugins.module_utils.jobs import target as targets
from ansible_collections.muster.fleet.plugins.modules import workload as module
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from trainer.config import read_train
from trainer.devices import machine_of
from trainer.estimate import command as estimate
from trainer.estimate.search import best
from trainer.models import PUBLISHED, shape_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/recipe.yml"))
STACK = stack_files.load("aws-2026.11")
TRAINER = {"venv": "/opt/muster/venv", "env": {"PYTHONPATH": "/fsx/muster/trainer/1"}}
ASKED = {"image": "registry.example.com/recipe:1", "secrets": {"HF_TOKEN": {"from": "env", "name": "HF_TOKEN"}}}
# What else the inventory says of a launcher.
TARGETS: dict[str, dict[str, Any]] = {
    "batch": {"queue": "gpu", "execution_role": "arn:aws:iam::123456789012:role/run"},
    "sagemaker": {"role": "arn:aws:iam::123456789012:role/run", "output": "s3://bucket/out"},
    "torchrun": {
        "hosts": [{"name": f"n{number}", "address": f"10.0.0.{number}", "ssh": ["ssh"], "become": False} for number in range(1, 17)]
    },
}
SECRETS = {
    **{kind: {"from": "kubernetes", "secret": "hf-token", "key": "token"} for kind in documents.KUBERNETES},
    **{kind: {"from": "secretsmanager", "id": "hf-token"} for kind in ("batch", "sagemaker")},
}


@functools.cache
def text_of(name: str) -> str:
    return (FOLDER / name / "recipe.yml").read_text()


@functools.cache
def loaded(name: str) -> dict[str, Any]:
    return recipe.load(yaml.safe_load(text_of(name)), name)


def read(name: str) -> dict[str, Any]:
    return copy.deepcopy(loaded(name))


def texts(name: str) -> dict[str, str]:
    return {each: (FOLDER / name / each).read_text() for each in read(name)["files"]}


def planned(name: str, model: str = "", kind: str = "", launcher: str = "slurm", **more: Any) -> dict[str, Any]:
    """A plan with all that a user has to give; `more` replaces it."""
    found = read(name)
    asked = dict(ASKED)
    if launcher == "torchrun":
        asked = {"venv": "/opt/venv", "secrets": ASKED["secrets"]}
    elif found["container"]["kind"] == "trainer" and launcher == "slurm":
        asked = {"secrets": ASKED["secrets"]}
    if launcher == "slurm":
        hosts = [f"n{number}" for number in range(1, 65)]
        [part] = fleet.parts(hosts, dict.fromkeys(hosts, kind), rehearsed=more.pop("rehearsed", ()))
        more = {"part": part, **more}
    elif launcher in SECRETS:
        asked["secrets"] = {"HF_TOKEN": SECRETS[launcher]}
    given = {"asked": asked, "model": model, "kind": launcher, "instance_type": kind, "trainer": TRAINER, "texts": texts(name)}
    given |= {"target": {}} | more
    return workload.plan(found, given.pop("asked"), **given)


def sizes_of(name: str) -> list[tuple[str, str]]:
    """(model, instance type) of each size; "" is a type without accelerators."""
    return [(model, "" if kind == recipe.CPU else kind) for model, entry in loaded(name)["models"].items() for kind in entry["sizes"]]


def test_the_recipes_are_there() -> None:
    assert {"fsdp", "ddp", "torchtitan", "megatron-lm", "composer", "jax", "finetune-llama2", "bionemo"} <= set(NAMES)
    assert {"nemo-run", "picotron", "neuronx-distributed", "stable-diffusion", "deepspeed", "trl", "nvrx", "optimum-neuron"} <= set(NAMES)


def test_fsdp_has_every_published_model_of_the_trainer_and_its_twin() -> None:
    models = read("fsdp")["models"]
    assert {models[name]["estimate"] for name in models} - {""} == set(PUBLISHED)
    assert {f"{name}_tiny" for name in models if models[name]["estimate"]} == {name for name in models if name.endswith("_tiny")}


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_has_what_its_recipe_names(name: str) -> None:
    found = read(name)
    container = found["container"]
    for each in [*found["files"], *([container["file"]] if container["file"] else [])]:
        assert (FOLDER / name / each).is_file(), each
    if container["file"]:
        built = (FOLDER / name / container["file"]).read_text()
        assert f"ARG base={container['base']}\n" in built
        for pin in found["requires"]:
            assert re.search(rf'[ "]{re.escape(pin)}["\s]', built), pin
        # Whatever it fetches has a version: no branch, no latest, no bare name.
        joined = re.sub(r"\\\n\s*", "", built)
        for line in re.findall(r"pip install (.*?)(?: &&|$)", joined, re.M):
            assert all("==" in word for word in line.split() if not word.startswith("-")), line
        for branch in re.findall(r"git clone(.*)", joined):
            assert re.search(r"--branch (core_)?v\d", branch), branch
        for fetched in re.findall(r"git fetch(.*)", joined):
            assert re.search(rf"{re.escape(found['framework']['version'])}\b", fetched), fetched
            assert re.search(r" [0-9a-f]{40}\b", fetched), fetched
    left = {path.name for path in (FOLDER / name).iterdir()} - {"recipe.yml", *found["files"], container["file"], "__pycache__"}
    # launch.py is for the user's own machine and does not travel with the job.
    assert left <= ({"launch.py"} if name == "nemo-run" else set())


# What each wheel of torch requires of nvidia-nccl-cu12 or nvidia-nccl-cu13.
NCCL_OF_TORCH = {"2.1.0": "2.18.1", "2.4.1": "2.20.5", "2.7.0": "2.26.2", "2.15.0": "2.30.7"}


@pytest.mark.parametrize("name", [name for name in NAMES if read(name)["container"]["kind"] == "base"])
def test_an_image_has_what_the_command_starts_and_says_what_it_loads(name: str) -> None:
    found = read(name)
    container = found["container"]
    built = (FOLDER / name / container["file"]).read_text() if container["file"] else ""
    given = [*found["command"], *found["env"].values(), *(text for file, text in texts(name).items() if file.endswith(".sh"))]
    for path in set(re.findall(r"/opt/[\w-]+", " ".join(map(str, given)))):
        # Neuron's own images have the folder of its programs.
        assert re.search(rf"(git clone|git init) .*{path}\b", built) or path == "/opt/aws", f"nothing makes {path}"
    loads, pinned = container["loads"], re.findall(r"\btorch==(\S+)", built)
    number = loads["torch"].split()[0]
    if number in NCCL_OF_TORCH:
        assert {number} == set(pinned) or f":{number}-" in container["base"]
        assert loads["nccl"].startswith(f"{NCCL_OF_TORCH[number]} from torch's own wheel")
    else:
        # jax has torch only for torchrun.
        assert "of the base" in loads["torch"] + loads["nccl"] or (name == "jax" and number == "none;")


@pytest.mark.parametrize(("name", "launcher"), [(name, launcher) for name in NAMES for launcher in loaded(name)["launchers"]])
def test_every_launcher_renders_every_size(name: str, launcher: str) -> None:
    for model, kind in sizes_of(name):
        rendered_for(name, model, kind, launcher)


def rendered_for(name: str, model: str, kind: str, launcher: str) -> None:
    found = read(name)
    makes_data = found["models"][model]["data"]["tokens"]
    if launcher == "sagemaker" and makes_data:
        with pytest.raises(
            recipe.RecipeError, match=r"makes its data in a folder that all nodes share, which SageMaker does not have; use another"
        ):
            planned(name, model, kind, launcher)
        return
    if launcher == "sagemaker" and not kind:
        kind = "c7i.8xlarge"
    plan = planned(name, model, kind, launcher)
    document = documents.load(plan["document"])
    assert document["launcher"]["kind"] == launcher
    have = catalogue.instance_type(kind) if kind.startswith(("p", "g", "trn")) else None
    if have and not found["models"][model]["sizes"][kind]["procs_per_node"]:
        assert document["procs_per_node"] == have["gpus"]
    given = {**TARGETS.get(launcher, {}), **({"instance_type": kind, "stack": STACK} if launcher != "slurm" else {})}
    target = targets.load(launcher, given)
    rendered = launchers.files(document, documents.identity(document), target)
    for text in rendered.values():
        assert "HF_TOKEN=hf_" not in text
        assert not re.search(r"@(data|batch|nodes|ranks|steps|folder|procs_per_node)@", text)
    if launcher == "slurm":
        assert f"#SBATCH --nodes={plan['nodes']}\n" in rendered["job.sbatch"]
        checked = subprocess.run(["bash", "-n"], input=rendered["job.sbatch"], text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", [name for name in NAMES if read(name)["container"]["kind"] == "trainer"])
def test_the_trainer_takes_the_arguments(name: str) -> None:
    for model, entry in read(name)["models"].items():
        for kind in entry["sizes"]:
            command = planned(name, model, "" if kind == "cpu" else kind)["document"]["command"]
            words = command[command.index("train") + 1 :]
            config = read_train(words)
            assert config.max_steps == read(name)["steps"]


@pytest.mark.parametrize("name", NAMES)
def test_the_models_fit_their_sizes(name: str) -> None:
    """The trainer's own parser reads the arguments of its estimate."""
    for model, entry in read(name)["models"].items():
        for kind in entry["sizes"]:
            words = planned(name, model, "" if kind == "cpu" else kind)["estimate"][0]
            if not entry["estimate"] or kind == "cpu":
                assert words == []
                continue
            assert words[0] == "estimate"
            asked = estimate.parser().parse(words[1:])
            wanted = {flag: getattr(asked, flag) for flag in (*estimate.DEGREES, *estimate.CHOICES)}
            shape = shape_of(asked.model, None, {"max_context_width": asked.max_context_width})
            assert best(shape, machine_of(kind), asked.nodes, wanted).fits, (model, kind)


@pytest.mark.parametrize("name", NAMES)
def test_the_pattern_reads_its_line(name: str) -> None:
    found = read(name)
    line = found["throughput"]["sample"]
    [step] = recipe.steps(found, f"noise\n{line}\nmore noise\n", ranks=8)
    for key, value in found["throughput"]["reads"].items():
        assert step[key] == pytest.approx(value, rel=1e-4), key
    assert {"step", "loss"} < set(found["throughput"]["reads"])
    assert found["throughput"]["source"]
    # A terminal's colours do not hide it.
    assert recipe.steps(found, f"\x1b[31m{line}\x1b[0m", ranks=8) == [step]


def test_the_pattern_of_jax_reads_the_line_of_its_program() -> None:
    """The program prints by an f-string; its parts stand here as they stand there."""
    source = texts("jax")["train.py"]
    printed = re.search(r'line = f"(.*)"', source)
    assert printed
    values = {
        "{step}": "7",
        "{loss:.5f}": "5.10000",
        "{rate:.2f}": "9.50",
        "{asked.lr:.6f}": "0.003000",
        "{rate * asked.context:.0f}": "1216",
    }
    line = functools.reduce(lambda text, pair: text.replace(*pair), values.items(), printed.group(1))
    assert "{" not in line
    assert recipe.steps(read("jax"), line) == [{"step": 7, "loss": 5.1, "samples_per_s": 9.5, "tokens_per_s": 1216.0, "mfu": None}]
    compile(source, "train.py", "exec")


def test_composer_s_blocks_are_told_apart() -> None:
    block = "[batch={n}/9]:\n  Train time/batch: {n}\n  Train loss/train/total: {loss}\n  Train time/train: 1\n"
    fast = (
        "  Train throughput/samples_per_sec: 2.5\n  Train throughput/device/samples_per_sec: 1\n  Train throughput/tokens_per_sec: 5120\n"
    )
    text = block.format(n=0, loss=10.5) + block.format(n=1, loss=9.5) + fast
    read_back = recipe.steps(read("composer"), text)
    assert [(each["step"], each["loss"], each["samples_per_s"], each["tokens_per_s"]) for each in read_back] == [
        (0, 10.5, None, None),
        (1, 9.5, 2.5, 5120.0),
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("7,084", 7084), ("1.2K", 1200), ("3.5M", 3.5e6), ("1.825991E+00", 1.825991), ("-2", -2), ("41.89", 41.89)]
)
def test_numbers_as_frameworks_print_them(text: str, value: float) -> None:
    assert recipe.number(text) == pytest.approx(value)
    assert math.isnan(recipe.number("nan"))


def test_the_last_line_of_a_step_counts() -> None:
    """A requeued job trains the steps since its checkpoint again, and appends to the same output."""
    line = "Batch %d Loss: %s, Speed: 4.00 samples/sec, lr: 0.1, tokens/s: 512\n"
    text = "".join(line % each for each in ((1, 5.0), (2, 4.0), (3, 3.5), (2, 4.1), (3, 3.0)))
    assert [(each["step"], each["loss"]) for each in recipe.steps(read("ddp"), text)] == [(1, 5.0), (2, 4.1), (3, 3.0)]


def changed(name: str, path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(yaml.safe_load(text_of(name)))
    *folders, last = path.split("/")
    place = data
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("torchtitan", "framework/version", "latest", r"framework.version latest is no version; pin a release"),
        ("torchtitan", "framework/version", "main", r"framework.version main is no version"),
        ("torchtitan", "requires", ["torch>=2.15"], r"requires has torch>=2.15, which is not pinned; write NAME==VERSION\."),
        ("torchtitan", "requires", ["torch"], r"requires has torch, which is not pinned"),
        ("torchtitan", "requires", ["x @ git+https://example.com/x@main"], r"which is not pinned"),
        (
            "torchtitan",
            "container/base",
            "nvcr.io/nvidia/cuda:latest",
            r"container.base .*latest is not pinned; give it a tag with a version",
        ),
        ("torchtitan", "container/base", "mosaicml/llm-foundry:2.7.0-latest", r"is not pinned"),
        ("torchtitan", "container/base", "localhost:5000/image", r"is not pinned"),
        ("torchtitan", "container/base", None, r"container.base \(empty\) is not pinned"),
        ("torchtitan", "container/loads", None, r"container.loads has no torch; add it\."),
        ("torchtitan", "container/kind", "bass", r"container.kind bass is unknown; did you mean base\?"),
        ("torchtitan", "data/tokens", 5, r"data.tokens are made by the trainer, and container.kind is base"),
        ("fsdp", "container/base", "x:1", r"container.base is for the kind base"),
        ("fsdp", "launchers", ["slurms"], r"the launcher slurms is unknown; did you mean slurm\?"),
        ("fsdp", "models/llama2_7b/sizes", {"p5.48xlage": {"nodes": 1}}, r"model llama2_7b: sizes: .*p5\.48xlarge"),
        ("fsdp", "models/llama2_7b/sizes", {}, r"model llama2_7b has no sizes"),
        ("fsdp", "models/llama2_7b/sizes/p5.48xlarge", {"nodes": 0}, r"nodes and batch must be at least 1"),
        ("fsdp", "models/llama2_7b/size", {}, r"unknown field size; did you mean sizes\?"),
        ("fsdp", "models", {}, r"has no models"),
        ("fsdp", "ran", None, r"Recipe fsdp has no ran; add it\."),
        ("fsdp", "checkpoint", None, r"has no checkpoint"),
        ("fsdp", "schema", "muster.recipe/2", r"has the schema muster.recipe/2; this version of Muster reads muster.recipe/1\."),
        ("fsdp", "name", "fdsp", r"calls itself fdsp; give the folder that name\."),
        ("fsdp", "throughput/pattern", "(", r"throughput.pattern is no regular expression"),
        ("fsdp", "throughput/pattern", "(?P<step>1)(?P<loss>2)", r"needs the groups step and loss and a rate"),
        ("fsdp", "throughput/pattern", "(?P<step>1)(?P<loss>2)(?P<samples>3)", r"needs the groups step and loss and a rate"),
        ("fsdp", "throughput/pattern", "(?P<step>1)(?P<loss>2)(?P<mfu>3)(?P<samples_per_s>3)(?P<losss>3)", r"unknown group losss"),
        ("fsdp", "passes/to", 61, r"passes needs 1 <= from < to <= steps \(60\)"),
        ("fsdp", "passes/ratio", "x", r"passes: ratio must be a number"),
    ],
)
def test_a_bad_recipe_is_refused_by_one_sentence(name: str, path: str, value: Any, said: str) -> None:
    with pytest.raises(documents.JobError, match=said):
        recipe.load(changed(name, path, value), name)


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("nvcr.io/nvidia/pytorch:25.12-py3", True),
        ("localhost:5000/a@sha256:" + "0" * 64, True),
        ("localhost:5000/a", False),
        ("a:main", False),
        ("a:nightly-2026", False),
        ("a:latest@sha256:12", False),
    ],
)
def test_pinned_images(image: str, pinned: bool) -> None:
    assert recipe.is_pinned(image) is pinned


def without(field: str, *more: str) -> dict[str, Any]:
    return {key: value for key, value in ASKED.items() if key not in (field, *more)}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (("fsdp", "llama3_1_9b", "p5.48xlarge"), r"Recipe fsdp has no model llama3_1_9b; did you mean llama3_1_8b\?"),
        (("fsdp", "llama2_7b", "p5.48xlage"), r"Recipe fsdp: the instance type p5.48xlage is unknown; did you mean p5.48xlarge\?"),
        (
            ("fsdp", "llama2_7b", ""),
            r"no sizes of llama2_7b for CPUs, but for g5.12xlarge, p4d.24xlarge, p5.48xlarge; on CPUs it has tiny,",
        ),
        (("picotron", "", ""), r"Recipe picotron has no sizes for CPUs, but for p4d.24xlarge, p5.48xlarge; choose one of them with w"),
        # Not of its first model, which is the one for CPUs.
        (("fsdp", "", "p6-b200.48xlarge"), r"no sizes for p6-b200.48xlarge, but for cpu, g5.12xlarge, p4d.24xlarge, p5.48xlarge; choose"),
        (
            ("fsdp", "llama2_70b", "g5.12xlarge"),
            r"no sizes of llama2_70b for g5.12xlarge, but for p4d.24xlarge, p5.48xlarge; on g5.12xlarge it has",
        ),
    ],
)
def test_unknown_models_and_types_name_the_nearest(request_: tuple[str, str, str], said: str) -> None:
    with pytest.raises(recipe.RecipeError, match=said):
        planned(*request_, launcher="batch")


@pytest.mark.parametrize(
    ("name", "launcher", "more", "said"),
    [
        ("finetune-llama2", "torchrun", {}, r"Recipe finetune-llama2 does not run with the launcher torchrun; it has slurm, pytorchjob,"),
        ("finetune-llama2", "pytorchjbo", {}, r"does not run with the launcher pytorchjbo; did you mean pytorchjob\?"),
        ("torchtitan", "slurm", {"asked": without("image")}, r"Recipe torchtitan has no container; build recipes/torchtitan/Containerfile"),
        (
            "fsdp",
            "jobset",
            {"asked": without("image")},
            r"Recipe fsdp has no container, and jobset runs containers; build that of the trainer",
        ),
        (
            "finetune-llama2",
            "slurm",
            {"asked": {}},
            r"llama2_7b needs weights or a tokenizer that its maker gates, and no HF_TOKEN is given; set ",
        ),
        ("torchtitan", "slurm", {"asked": without("secrets")}, r"llama3_8b needs data that its maker gates, and no HF_TOKEN is given"),
        (
            "finetune-llama2",
            "slurm",
            {"asked": {"secrets": {"HF_TOKEN": "hf_abc"}}},
            r"muster_workload: the secret HF_TOKEN must be a reference",
        ),
        ("fsdp", "slurm", {"asked": {"setps": 3}}, r"muster_workload has the unknown field setps; did you mean steps\?"),
        ("fsdp", "slurm", {"nodes": 65}, r"wants 65 nodes of p5.48xlarge for llama3_1_8b, and 64 may run jobs; set workload_nodes"),
        ("fsdp", "slurm", {"nodes": -1}, r"workload_nodes must be at least 1, not -1\."),
        ("fsdp", "slurm", {"nodes": 0}, r"workload_nodes must be at least 1, not 0\."),
    ],
)
def test_a_request_that_cannot_run_is_refused_by_one_sentence(name: str, launcher: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(documents.JobError, match=said) as error:
        planned(name, "", "p5.48xlarge", launcher, **more)
    assert "hf_abc" not in str(error.value)


def test_jax_on_plain_hosts_needs_an_environment() -> None:
    with pytest.raises(recipe.RecipeError, match=r"runs in a container, and the launcher torchrun has none; set muster_workload.venv\."):
        planned("jax", "", "", "torchrun", asked={})
    assert planned("jax", "", "", "torchrun")["document"]["venv"] == "/opt/venv"


def test_a_word_with_an_unknown_placeholder_is_refused() -> None:
    with pytest.raises(recipe.RecipeError, match=r"The word @bacth@ has the unknown placeholder @bacth@; did you mean batch\?"):
        planned("ddp", asked={"args": ["@bacth@"]})


def test_a_rehearsal_trains_the_small_model_and_keeps_the_job_of_the_type() -> None:
    hosts = [f"n{number}" for number in range(1, 65)]
    plan = planned("fsdp", "llama3_1_8b", "p5.48xlarge", rehearsed=hosts)
    assert (plan["model"], plan["document"]["nodes"], plan["document"]["procs_per_node"], plan["estimate"][0]) == ("tiny", 2, 1, [])
    assert (plan["real"]["procs_per_node"], plan["real"]["gpus_per_node"], plan["real"]["name"]) == (8, "all", "fsdp-llama3_1_8b")
    documents.load(plan["real"])


def test_images_of_a_registry_are_named_as_enroot_reads_them() -> None:
    assert planned("jax", "small", "p5.48xlarge")["document"]["image"] == "registry.example.com#recipe:1"
    assert workload.pyxis("/fsx/image.sqsh") == "/fsx/image.sqsh"
    assert planned("jax", "small", "p5.48xlarge", "batch")["document"]["image"] == "registry.example.com/recipe:1"


def test_the_command_brings_the_files_and_names_the_checkpoints(tmp_path: Path) -> None:
    """The real bash runs it, with a program that says what it got."""
    plan = planned("jax", "tiny", "", "torchrun")
    command = plan["document"]["command"]
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nhead -n 1 "$1"\n')
    python.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MUSTER_JOB_DIR": "/var/lib/muster/jobs/jax-1", "TMPDIR": str(tmp_path)}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith(str(tmp_path)) and said[0].endswith("/train.py")
    assert said[said.index("--checkpoints") + 1] == "/fsx/home/muster/workloads/checkpoints-jax-1"
    assert said[said.index("--steps") + 1] == "60"
    assert said[-1] == texts("jax")["train.py"].splitlines()[0]


def test_the_same_files_give_the_same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every day."""
    packed = []
    for day, text in ((1, "x = 1\n"), (2, "x = 1\n"), (2, "x = 2\n")):
        monkeypatch.setattr("time.time", lambda day=day: day * 86400.0)
        packed.append(workload.archive({"a.py": text, "b.py": ""}))
    monkeypatch.undo()
    assert packed[0] == packed[1] != packed[2]


LINE = "2026-11-21 11:27:58 I [train.py:110] Batch %d Loss: %.5f, Speed: 41.89 samples/sec, lr: 0.000010, tokens/s: 5362, mfu: 40.5%%\n"


def judged(text: str, name: str = "fsdp", **more: Any) -> dict[str, Any]:
    return workload.judge(read(name), text, model="tiny", ranks=2, context=128, **more)


def test_a_training_whose_loss_falls_passes() -> None:
    found = judged("".join(LINE % (step, 5 - step / 20) for step in range(1, 61)))
    assert (found["verdict"], found["reason"], found["samples_per_s"], found["tokens_per_s"], found["mfu"]) == (
        "passed",
        "",
        41.89,
        5362,
        40.5,
    )
    assert (found["first"], found["last"], len(found["steps"])) == ({"step": 1, "loss": 4.95}, {"step": 60, "loss": 2.0}, 60)
    assert workload.summary(found) == ("fsdp tiny: passed, loss 4.95 at step 1, 2 at step 60, 41.9 samples/s, 5362.0 tokens/s, 40.5 % MFU")
    lines = [json.loads(line) for line in workload.log_lines(found, 2).splitlines()]
    assert (lines[0]["event"], lines[0]["world_size"]) == ("start", 2)
    assert lines[-1] == {"step": 60, "loss": 2.0, "samples_per_s": 41.89, "tokens_per_s": 5362.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "".join(LINE % (step, 5) for step in range(1, 61)),
            r"the loss did not fall enough, it was 5 at step 1 and 5 at step 60, and must be",
        ),
        (
            "".join(LINE % (step, 5 - step / 20) for step in range(1, 31)),
            r"the output ends at step 30, and the loss is judged from step 1 to step 60",
        ),
        (LINE % (1, 5), r"the output ends at step 1, and"),
        (
            "starting\nno GPU here\n",
            r"no line of the output has the throughput of muster-trainer .*its last lines are: starting / no GPU here",
        ),
        ("", r"no line of the output has the throughput of muster-trainer .*it is empty"),
    ],
)
def test_a_run_that_is_no_training_fails_with_one_sentence(text: str, said: str) -> None:
    found = judged(text)
    assert found["verdict"] == "failed"
    assert re.search(said, found["reason"]), found["reason"]
    assert workload.summary(found)


def test_a_loss_that_is_no_number_does_not_pass() -> None:
    bad = read("megatron-lm")
    line = " iteration {n}/ 100 | elapsed time per iteration (ms): 5.0 | global batch size: 128 | lm loss: {loss} |\n"
    bad["throughput"]["pattern"] = bad["throughput"]["pattern"].replace("[\\d.E+-]+", "\\S+")
    text = "".join(line.format(n=n, loss="nan" if n > 50 else "3.0") for n in range(1, 101))
    assert workload.judge(bad, text, model="x")["verdict"] == "failed"


def test_fewer_steps_are_judged_at_their_end() -> None:
    text = "".join(LINE % (step, 5 - step / 10) for step in range(1, 11))
    assert judged(text, asked_steps=10)["verdict"] == "passed"
    assert judged(text)["verdict"] == "failed"


@pytest.fixture
def ask(call):
    def asked(**options: Any) -> dict[str, Any]:
        return call(module, folder=str(FOLDER), python=sys.executable, trainer_source=str(ROOT), **options)

    return asked


@pytest.mark.parametrize("check_mode", [False, True])
def test_the_module_chooses_the_job_and_says_that_it_fits(ask, check_mode: bool) -> None:
    target = {"queue": "gpu", "image": "registry.example.com/trainer:1"}
    found = ask(recipe="fsdp", model="llama2_7b", instance_type="p4d.24xlarge", launcher="batch", target=target, check_mode=check_mode)
    assert (found["changed"], found["document"]["nodes"], found["document"]["image"]) == (False, 4, "registry.example.com/trainer:1")
    assert (found["memory"]["fits"], found["memory"]["ranks"], found["recipe"]["name"], found["real"]) == (True, 32, "fsdp", {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recipe": "fsdb"}, r"The recipe fsdb is unknown in .*recipes; did you mean fsdp\?"),
        (
            {
                "recipe": "fsdp",
                "model": "llama2_70b",
                "instance_type": "p4d.24xlarge",
                "nodes": 4,
                "target": {"image": "a:1"},
                "launcher": "batch",
            },
            r"llama2_70b needs [\d.]+ GiB on each A100 of 4 x p4d.24xlarge, and 36\.6 GiB can be used; 8 nodes would do: set workload_n",
        ),
        (
            {"recipe": "fsdp", "fleet": [{"type": "p5.48xlarge"}], "instance_type": "p4d.24xlarge"},
            r"the fleet has no nodes of p4d.24xlarge, but p5.48xlarge; change workload_type\.",
        ),
        (
            {"recipe": "fsdp", "fleet": [{"type": "p5.48xlarge"}, {"type": ""}]},
            r"the fleet has the types p5.48xlarge, one without a type; choose one with workload_type\.",
        ),
    ],
)
def test_the_module_refuses_by_one_sentence(ask, options: dict[str, Any], said: str) -> None:
    found = ask(**options)
    assert found["failed"]
    assert re.search(said, found["msg"]), found["msg"]


def test_what_would_fit_is_named_or_another_type() -> None:
    answer = {"fits": False, "nodes": 1, "memory_gib": {"total": 99.0}, "usable_gib": 36.6, "device": "A100"}
    with pytest.raises(recipe.RecipeError, match=r"not even 64 nodes would do: choose a type with more memory, or a smaller model\."):
        workload.check_fits(read("fsdp"), "x", "p4d.24xlarge", [answer, {**answer, "nodes": 64}])


def test_the_filter_answers_for_what_the_module_chose(ask) -> None:
    chosen = ask(
        recipe="ddp", fleet=[{"type": "", "hosts": ["a", "b"], "partition": "", "options": {}, "rehearsed": False}], trainer=TRAINER
    )
    assert (chosen["model"], chosen["type"], chosen["data"]) == ("tiny", "cpu", "/fsx/home/muster/workloads/data-2000000")
    result = FilterModule().filters()["workload_result"]
    found = result("".join(LINE % (step, 5 - step / 20) for step in range(1, 61)), chosen)
    assert (found["verdict"], len(found["log"].splitlines())) == ("passed", 61)
    assert found["summary"].startswith("ddp tiny: passed")
    chosen["recipe"]["throughput"]["pattern"] = "("
    with pytest.raises(AnsibleFilterError, match="is no regular expression"):
        result("", chosen)


def test_the_page_has_every_recipe() -> None:
    """docs/recipes.md says of each recipe what its folder says."""
    page = (ROOT / "docs/recipes.md").read_text()
    rows = []
    for name in NAMES:
        found = read(name)
        types = sorted({kind for model in found["models"].values() for kind in model["sizes"]})
        every = set(found["launchers"]) == set(documents.LAUNCHERS)
        cells = [
            f"[{name}](../recipes/{name}/recipe.yml)",
            "%(name)s %(version)s" % found["framework"],
            ", ".join(f"`{kind}`" for kind in types),
            "all" if every else ", ".join(f"`{launcher}`" for launcher in found["launchers"]),
            found["ran"],
        ]
        rows.append("| " + " | ".join(cells) + " |")
    assert re.findall(r"^\| \[.*recipe\.yml\).*$", page, re.M) == rows
    fields = set(re.findall(r"`(\w+)`", page))
    assert set(recipe.FIELDS) - {"schema", "name", "about"} <= fields


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"recipe": "fsdb"}, f"The recipe fsdb is unknown in {FOLDER}; did you mean fsdp?"),
        ({"recipe": "fsdp", "workload_node": 4}, "workload_node is unknown; known are workload_type and workload_nodes."),
        ({}, "No recipe is named; give -e recipe=fsdp or another folder of recipes/."),
    ],
)
def test_the_playbook_refuses_before_it_asks_a_service(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    wanted = json.dumps({"muster_launcher": "batch", "muster_target": {"queue": "gpu"}, **asked})
    (tmp_path / "hosts.yml").write_text("all: {hosts: {}}\n")
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", str(tmp_path / "hosts.yml"), "playbooks/workload.yml", "-e", wanted]
    env = os.environ | {"PWD": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert said in " ".join(ended.stdout.split()), ended.stdout[-2000:]
