# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Training on gloo ranks: the same losses on any number of ranks, and after every interruption."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer.data.tokens import Tokens, window_of
from trainer.metrics import LINE
from trainer.tests.ranks import NO_TORCH, PATIENCE, start
from trainer.tests.runs import complete, losses, records, train, wait_for_step

pytest.importorskip("torch", reason=NO_TORCH)

import torch

from trainer.config import TrainConfig
from trainer.data.loader import Loader
from trainer.launch import EXIT_STOPPED, Ranks, join
from trainer.llama import Llama
from trainer.models import shape_of
from trainer.optim import AdamW, learning_rate
from trainer.parallel.build import build


def test_the_loss_falls_and_each_step_is_logged(undisturbed: Path) -> None:
    found = losses(undisturbed)
    assert list(found) == list(range(1, 21))
    # A model that has learned nothing has the loss log(256).
    assert found[1] == pytest.approx(5.545, abs=0.1)
    assert found[20] < 3.8
    matches = [match for line in (undisturbed / "output" / "rank-0.txt").read_text().splitlines() if (match := LINE.match(line))]
    assert {int(match["step"]): float(match["loss"]) for match in matches} == {step: round(loss, 5) for step, loss in found.items()}
    assert [record["event"] for record in records(undisturbed) if "event" in record] == ["start"] + 4 * ["checkpoint"] + ["end"]
    assert (undisturbed / "output" / "rank-1.txt").read_text() == ""


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_number_of_ranks_changes_nothing(ranks: int, tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    job = train(ranks, tmp_path, tokens, 8)
    assert job.end() == [0] * ranks, job.output()
    expected = losses(undisturbed)
    assert losses(tmp_path) == {step: pytest.approx(expected[step], rel=1e-6) for step in range(1, 9)}


def test_a_killed_run_goes_on_with_the_same_losses_bit_by_bit(tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    job = train(2, tmp_path, tokens, 20, "--checkpoint_freq", "5")
    wait_for_step(tmp_path, 12)
    for process in job.processes:
        process.kill()
    job.end()
    assert 20 not in losses(tmp_path), "killed too late to prove anything"
    before = complete(tmp_path)[-1].name.removeprefix("step-")
    job = train(2, tmp_path, tokens, 20, "--checkpoint_freq", "5", SLURM_RESTART_COUNT="1")
    assert job.end() == [0, 0], job.output()
    assert f"Resumed from step {before} (" in job.output()
    assert losses(tmp_path) == losses(undisturbed)
    assert records(tmp_path)[-1]["restart"] == 1


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_goes_on_with_another_number_of_ranks(ranks: int, tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed / "step-10", tmp_path / "old" / "step-10")
    job = train(ranks, tmp_path, tokens, 14, "--resume_from_checkpoint", str(tmp_path / "old"))
    assert job.end() == [0] * ranks, job.output()
    expected = losses(undisturbed)
    assert losses(tmp_path) == {step: pytest.approx(expected[step], rel=1e-6) for step in range(11, 15)}


@pytest.mark.parametrize(
    "layout",
    [
        ["--tensor_parallel_degree", "2", "--train_batch_size", "8"],
        ["--pipeline_parallel_degree", "2", "--gradient_accumulation_steps", "2", "--train_batch_size", "4"],
        ["--context_parallel_degree", "2", "--train_batch_size", "8", "--activation_checkpointing", "1"],
        ["--sharding_strategy", "ddp"],
    ],
)
def test_a_run_goes_on_in_another_layout_and_back(layout: list[str], tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed / "step-10", tmp_path / "step-10")
    expected = losses(undisturbed)
    for steps, more in ((12, layout), (14, [])):
        job = train(2, tmp_path, tokens, steps, *more)
        assert job.end() == [0, 0], job.output()
    assert losses(tmp_path) == {step: pytest.approx(expected[step], rel=1e-6) for step in range(11, 15)}


def test_a_signal_to_one_rank_saves_on_all(tmp_path: Path, tokens: Path) -> None:
    job = train(2, tmp_path, tokens, 100_000)
    wait_for_step(tmp_path, 3)
    os.kill(job.processes[1].pid, signal.SIGTERM)
    assert job.end() == [EXIT_STOPPED, EXIT_STOPPED], job.output()
    last = max(losses(tmp_path))
    assert [path.name for path in complete(tmp_path)] == [f"step-{last}"]
    assert f"Stopped by a signal after step {last} of 100000" in job.output()
    assert records(tmp_path)[-1] | {"event": "end", "step": last, "finished": False} == records(tmp_path)[-1]


def test_half_a_checkpoint_is_never_chosen(tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    for name in ("step-5", "step-10", "step-15", "step-20"):
        shutil.copytree(undisturbed / name, tmp_path / name)
    (tmp_path / "step-20").rename(tmp_path / "step-20.tmp")
    largest = max((tmp_path / "step-15").glob("*.distcp"))
    largest.write_bytes(largest.read_bytes()[:-1])
    (tmp_path / "step-10" / "manifest.json").unlink()
    assert complete(tmp_path) == [tmp_path / "step-5"]
    job = train(2, tmp_path, tokens, 6)
    assert job.end() == [0, 0], job.output()
    assert "Resumed from step 5 (" in job.output()
    size = largest.stat().st_size
    assert f"Skipped {tmp_path}/step-15 is damaged: {largest.name} has {size} bytes and not {size + 1}\n" in job.output()
    assert losses(tmp_path)[6] == losses(undisturbed)[6]
    assert not (tmp_path / "step-20.tmp").exists()


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path, tokens: Path) -> None:
    job = train(1, tmp_path, tokens, 5, "--checkpoint_freq", "1", "--keep_checkpoints", "2")
    assert job.end() == [0], job.output()
    assert [path.name for path in complete(tmp_path)] == ["step-4", "step-5"]
    job = train(1, tmp_path, tokens, 5)
    assert job.end() == [0]
    assert "All 5 steps were trained before: nothing to do" in job.output()


@pytest.mark.parametrize(
    ("flag", "path"),
    [
        ("--jsonl", "file/train.jsonl"),
        ("--jsonl", ""),
        ("--checkpoint_dir", "file"),
        ("--checkpoint_dir", "file/below"),
        ("--checkpoint_dir", "\0"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named_once(flag: str, path: str, tmp_path: Path, tokens: Path) -> None:
    (tmp_path / "file").touch()
    job = train(2, tmp_path / "run", tokens, 1, flag, str(tmp_path / path))
    assert job.end() == [2, 2], job.output() + job.output(1)
    said = job.output().splitlines()[-1]
    assert said.startswith(f"trainer: {flag} {tmp_path / path} cannot be written (")
    assert said.endswith("): change its owner or choose another")
    assert job.output(1) == ""


def test_one_folder_under_two_names_is_one(tmp_path: Path, tokens: Path) -> None:
    job = train(1, tmp_path, tokens, 1, "--resume_from_checkpoint", os.path.relpath(tmp_path))
    assert job.end() == [0], job.output()


def test_the_loss_scale_of_fp16_is_kept(tmp_path: Path, tokens: Path) -> None:
    for steps in (2, 3):
        job = train(1, tmp_path, tokens, steps, "--precision", "fp16")
        assert job.end() == [0], job.output()
        path = tmp_path / f"step-{steps}" / "manifest.json"
        manifest = json.loads(path.read_text())
        assert manifest["loss_scale"]["good"] == steps
        path.write_text(json.dumps(manifest | {"loss_scale": manifest["loss_scale"] | {"value": 1024.0}}))
    assert manifest["loss_scale"]["value"] == 1024.0


def test_a_rank_with_data_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """The second rank reads the second file. The first one names no fault of its own."""
    pytest.importorskip("datasets", reason="datasets is not installed")
    data = tmp_path / "data"
    data.mkdir()
    for name, text in (("a", '"good text "'), ("b", "{[")):
        (data / f"{name}.jsonl").write_text(('{"text": ' + text + "}\n") * 9)
    job = train(2, tmp_path / "run", data, 3, "--tokenizer", "bytes")
    assert job.end() == [1, 1], job.output()
    said = job.output(1).splitlines()[-1]
    assert said.startswith("trainer: rank 1 on ")
    assert f"part 1 of data set {data}, after document 0, cannot be read (" in said
    assert "Traceback" not in job.output() + job.output(1)


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (["--lr", "1e30", "--max_steps", "9"], 1, "and its gradient norm"),
        (["--vocab_size", "100"], 2, "trainer: --vocab_size 100 is below the 256 of"),
        (["--num_heads", "5"], 2, "trainer: hidden_width 64 is not an even multiple of num_heads 5"),
        (["--max_context_width", "100000"], 2, "fewer than one sample of 100000 needs"),
        (["--backend", "nccl"], 1, "there is no GPU for local rank 0"),
        (["--tensor_parallel_degree", "2"], 2, "trainer: 1 ranks cannot be divided by 2"),
        (["--precision", "float8"], 2, "trainer: --precision float8 needs a GPU of compute capability 8.9"),
        (["--model", "mathstral-7b-tiny", "--max_context_width", "256"], 2, "trainer: --max_context_width 256 is above the 128 tokens"),
        (["--init_from", "no/such/folder"], 2, "trainer: --init_from no/such/folder is neither a folder nor a model's name"),
    ],
)
def test_what_cannot_be_trained_ends_with_one_sentence(more: list[str], code: int, sentence: str, tmp_path: Path, tokens: Path) -> None:
    if "nccl" in more and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    job = train(1, tmp_path, tokens, 1, *more)
    assert job.end() == [code]
    assert sentence in job.output().splitlines()[-1]
    assert "Traceback" not in job.output()


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed / "step-5", tmp_path / "step-5")
    job = train(2, tmp_path, tokens, 6, "--num_layers", "3")
    assert job.end() == [2, 2]
    assert "was trained with num_layers 2, this run has 3: choose another --checkpoint_dir" in job.output()


def inspect(argv: Sequence[str]) -> int:
    """Print facts of the first weights as JSON."""
    device, _ = join(Ranks(), "gloo", PATIENCE)
    model = build(shape_of("tiny", "llama_v3", {}), TrainConfig(seed=1), device).model
    values = dict(model.named_parameters())
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert model.rope is not None
    facts = {
        "finite": all(value.isfinite().all() for value in [*values.values(), *model.rope]),
        "norms": all((value == 1).all() for name, value in values.items() if "norm" in name),
        "std": [value.std().item() for name, value in values.items() if "norm" not in name],
        "buffers": [name for name, _ in model.named_buffers()],
    }
    print(json.dumps(facts, default=bool))
    return 0


def test_the_first_weights_are_drawn_as_specified(tmp_path: Path) -> None:
    job = start(1, tmp_path, f"{__name__}:inspect", [])
    assert job.end() == [0], job.output()
    facts = json.loads(job.output())
    assert facts["finite"]
    assert facts["norms"]
    assert facts["std"] == [pytest.approx(0.02, rel=0.05)] * len(facts["std"])
    assert facts["buffers"] == []


def test_the_parameter_count_is_that_of_the_model() -> None:
    shape = shape_of("tiny", "llama_v3", {})
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in Llama(shape).parameters()) == shape.parameters()


def test_ranks_read_disjoint_samples_that_are_the_whole_step(tokens: Path) -> None:
    source = Tokens(tokens, 128, 3)
    whole = source.samples(range(16, 24))
    assert whole.shape == (8, 129)
    parts = [Loader(source, rank, 4, 2, first=16).next()[0] for rank in range(4)]
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)
    assert len({tuple(sample) for sample in whole.tolist()}) == 8
    first = window_of(3, 16, source.windows) * 128
    text = (tokens / "tokens.bin").read_bytes()[::2]
    assert bytes(whole[0].tolist()) == text[first : first + 129]


def test_norms_are_not_decayed() -> None:
    model = Llama(shape_of("tiny", "llama_v3", {}))
    decay = {
        id(value): group["weight_decay"] for group in AdamW(model, TrainConfig(weight_decay=0.3)).param_groups for value in group["params"]
    }
    assert {name: decay[id(value)] for name, value in model.named_parameters()} == {
        name: 0 if "norm" in name else 0.3 for name, _ in model.named_parameters()
    }


def test_the_learning_rate() -> None:
    config = TrainConfig(lr=1.0, min_lr=0.1, max_steps=100, warmup=0.1)
    assert [learning_rate(config, step) for step in (1, 10, 55, 100, 200)] == [pytest.approx(value) for value in (0.1, 1.0, 0.55, 0.1, 0.1)]
    assert learning_rate(TrainConfig(lr=1.0, min_lr=0.0, max_steps=100, warmup=0.0, lr_decay_style="linear"), 25) == pytest.approx(0.75)
    held = TrainConfig(lr=1.0, min_lr=0.01, max_steps=100, warmup=0.1, plateau=0.4, lr_decay_style="exponential")
    assert [learning_rate(held, step) for step in (10, 50, 75, 100)] == [pytest.approx(value) for value in (1.0, 1.0, 0.1, 0.01)]
    constant = TrainConfig(lr=1.0, min_lr=0.1, max_steps=100, warmup=0.0, lr_decay_style="constant")
    assert {learning_rate(constant, step) for step in (1, 50, 100)} == {1.0}
