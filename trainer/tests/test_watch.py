# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Ranks that hang, die, run out of memory or are slow; validation, profile and trackers of a run; runs over streamed text."""

import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer import __main__
from trainer.tests.hub import TOKEN, Hub, write_c4
from trainer.tests.ranks import NO_TORCH, start
from trainer.tests.runs import SMALL, complete, losses, records, train, wait_for_step

pytest.importorskip("torch", reason=NO_TORCH)

import torch

from trainer import watch
from trainer.data.loader import Loader
from trainer.parallel.engine import Engine
from trainer.train import Run

HOST = socket.gethostname()


def hanging(argv: Sequence[str]) -> int:
    """train, whose rank 1 never gets its third batch."""
    read = Loader.next

    def stuck(self: Loader) -> object:
        if self.rank == 1 and self.first >= 16:
            time.sleep(1000)
        return read(self)

    Loader.next = stuck  # type: ignore[method-assign, assignment]
    return __main__.main(argv)


def test_a_hang_ends_with_the_rank_that_the_others_wait_for(tmp_path: Path, tokens: Path) -> None:
    job = train(2, tmp_path, tokens, 9, "--hang_timeout_s", "10", where=f"{__name__}:hanging")
    assert job.end() == [1, 1]
    said = [line for rank in (0, 1) for line in job.output(rank).splitlines() if line.startswith("trainer: ")]
    assert said == [
        f"trainer: no step was finished for 10 s: rank 1 on {HOST} is in data of step 3; {tmp_path}/hang/hang-rank-*.txt say where each "
        f"rank was"
    ]
    assert "in stuck" in (tmp_path / "hang" / "hang-rank-1.txt").read_text()
    assert f"rank 0 on {HOST}" in (tmp_path / "hang" / "hang-rank-0.txt").read_text()
    recorded = json.loads((tmp_path / "hang" / "hang-rank-0-collectives.json").read_text())
    assert recorded.get("entries"), "the flight recorder has nothing"


@pytest.mark.parametrize("killed", [0, 1])  # rank 0 has the store, which decides who prints the sentence
def test_a_killed_rank_ends_the_others_with_one_sentence(killed: int, tmp_path: Path, tokens: Path) -> None:
    job = train(4, tmp_path, tokens, 100_000)
    wait_for_step(tmp_path, 3)
    os.kill(job.processes[killed].pid, signal.SIGKILL)
    assert job.end() == [-signal.SIGKILL if rank == killed else 1 for rank in range(4)]
    output = "".join(job.output(rank) for rank in range(4))
    (said,) = [line for line in output.splitlines() if line.startswith("trainer: ")]
    assert "because another rank ended or its network failed" in said
    assert said.endswith("look at that rank's last line, then start the job again; it resumes from the newest checkpoint")
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("rank", "env", "speaks"),
    [
        (1, {"LOCAL_RANK": "1"}, True),
        (2, {"LOCAL_RANK": "2"}, False),
        (8, {"LOCAL_RANK": "0"}, True),
        (8, {"SLURM_LOCALID": "0"}, True),
        (9, {"SLURM_LOCALID": "1"}, False),
    ],
)
def test_when_the_first_host_is_gone_each_other_one_speaks(
    rank: int, env: dict[str, str], speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = watch.Watch.__new__(watch.Watch)
    lost.rank, lost.store = rank, torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.HashStore, "add", lambda *_: 1 / 0)
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert lost.claim() is speaks


def test_out_of_memory_on_a_gpu_and_in_a_library_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    told = watch.Watch.__new__(watch.Watch)
    told.rank, told.step = 3, 6
    monkeypatch.setattr(told, "claim", lambda: True)
    for error, wanted in (
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of"),
            " (2.50 GiB more wanted)",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
            " (99 bytes",
        ),
        (MemoryError(), ": do this"),
    ):
        said = told.explain(error, "do this")
        assert str(said).startswith(f"rank 3 on {HOST} ran out of memory in step 7{wanted}")
        assert str(said).endswith(": do this")
    assert told.explain(RuntimeError("something else"), "do this") is None


def test_out_of_memory_says_what_to_change(tmp_path: Path, tokens: Path) -> None:
    job = train(1, tmp_path, tokens, 2, "--train_batch_size", str(10**12), where=f"{__name__}:starved")
    assert job.end() == [1], job.output()
    said = job.output().splitlines()[-1]
    assert said.startswith(f"trainer: rank 0 on {HOST} ran out of memory in step 1")
    assert "; use --activation_checkpointing full --train_batch_size " in said
    assert "Traceback" not in job.output()


def starved(argv: Sequence[str]) -> int:
    """train, with a batch that takes no memory itself but cannot be copied: no address space is large enough."""
    Loader.next = lambda self: (torch.zeros(1, 129, dtype=torch.int64).expand(self.batch, 129), None)  # type: ignore[method-assign]
    Loader._read = lambda self, first: None  # type: ignore[method-assign]
    return __main__.main(argv)


def slow(argv: Sequence[str]) -> int:
    """train, with matrix products that take three times as long on rank 2, and no wait for data, because this machine may be busy."""
    look = watch.Stragglers.look
    watch.Stragglers.probe = lambda self: 1e-3 * (3 if torch.distributed.get_rank() == 2 else 1)  # type: ignore[method-assign]
    watch.Stragglers.look = lambda self, waited: look(self, 0.0)  # type: ignore[method-assign]
    return __main__.main(argv)


def test_a_slow_rank_is_named_by_its_host(tmp_path: Path, tokens: Path) -> None:
    job = train(4, tmp_path, tokens, 8, "--straggler_freq", "2", where=f"{__name__}:slow")
    assert job.end() == [0] * 4, job.output()
    sentence = f"Straggler: rank 2 on {HOST} is 3.00 times slower than the median in matrix products, 3 looks in a row"
    assert [record["text"] for record in records(tmp_path) if record.get("event") == "straggler"] == [sentence]
    assert job.output().count("Straggler") == 1


def test_only_three_looks_in_a_row_make_a_straggler() -> None:
    judge = watch.Stragglers.__new__(watch.Stragglers)
    judge.ratio, judge.slow, judge.hosts = 1.25, [0, 0, 0], ["a", "b", "c"]
    even, uneven, waits = [(1.0, 0.0)] * 3, [(1.0, 0.0), (1.0, 0.0), (2.0, 0.0)], [(1.0, 0.5), (1.0, 0.0), (1.0, 0.01)]
    assert [judge.judge(measured) for measured in (uneven, uneven, even, uneven, uneven)] == [[]] * 5
    assert judge.judge(uneven) == ["Straggler: rank 2 on c is 2.00 times slower than the median in matrix products, 3 looks in a row"]
    assert judge.judge(uneven) == []
    assert [judge.judge(waits) for _ in range(3)][-1] == ["Straggler: rank 0 on a waits 0.50 s a step for its data, 3 looks in a row"]


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({0: (4, "reduce", "a"), 1: (4, "reduce", "b"), 2: (4, "data", "c")}, "rank 2 on c is in data of step 5"),
        ({0: (4, "data", "a"), 1: (4, "reduce", "b")}, "rank 0 on a is in data of step 5"),
        ({0: (4, "data", "a"), 1: (3, "checkpoint", "b")}, "rank 1 on b is in checkpoint of step 4"),
        ({0: (4, "reduce", "a"), 1: (4, "reduce", "b")}, "all ranks are in reduce of step 5"),
    ],
)
def test_who_is_waited_for(told: dict[int, tuple[int, str, str]], named: str) -> None:
    assert watch.hang_sentence(told, 9, Path("x")) == f"no step was finished for 9 s: {named}; x/hang-rank-*.txt say where each rank was"


def note(record: dict[str, float], step: int) -> None:
    """A tracker of the user's own."""
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{step} {'loss' in record} {'validation_loss' in record}\n")


def test_an_interleaved_pipeline_validates_as_one_rank_does(tmp_path: Path, tokens: Path) -> None:
    """The 3 samples of a validation batch are 3 micro-batches there, which 2 stages do not divide."""
    found = []
    pipeline = ["--pipeline_parallel_degree", "2", "--gradient_accumulation_steps", "8", "--pipeline_schedule", "interleaved"]
    asked = ["--num_layers", "4", "--validation_freq", "1", "--validation_batches", "2", "--val_batch_size", "3", "--train_batch_size"]
    for ranks, more in ((1, ["8"]), (2, ["1", *pipeline])):
        job = train(ranks, tmp_path / str(ranks), tokens, 2, *asked, *more)
        assert job.end() == [0] * ranks, job.output() + job.output(ranks - 1)
        found.append([record["validation_loss"] for record in records(tmp_path / str(ranks)) if "validation_loss" in record])
    assert len(found[0]) == 2
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_validation_profile_and_trackers(tmp_path: Path, tokens: Path) -> None:
    pytest.importorskip("tensorboard")
    more = ["--validation_freq", "4", "--validation_batches", "2", "--profile", "2-3", "--profile_dir", str(tmp_path / "profile")]
    more += ["--tensorboard_dir", str(tmp_path / "board"), "--tracker", f"{__name__}:note"]
    job = train(2, tmp_path, tokens, 10, *more, NOTES=str(tmp_path / "notes"))
    assert job.end() == [0, 0], job.output()
    found = {record["step"]: record["validation_loss"] for record in records(tmp_path) if record.get("event") == "validation"}
    assert list(found) == [4, 8, 10]
    assert found[10] < found[4] < 5.6
    assert f"Batch 4 Validation loss: {found[4]:.5f}" in job.output()
    names = {event.get("name") for event in json.loads((tmp_path / "profile" / "steps-2-3-rank-1.json").read_text())["traceEvents"]}
    assert {"data", "forward_backward", "clip", "reduce", "optimizer"} <= names
    assert (tmp_path / "notes").read_text().splitlines()[3:5] == ["4 True False", "4 False True"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [round(event.value, 4) for event in board.Scalars("loss")] == [round(loss, 4) for loss in losses(tmp_path).values()]
    assert [event.step for event in board.Scalars("validation_loss")] == [4, 8, 10]


def late(argv: Sequence[str]) -> int:
    """train as on a GPU: each step's values are read when the next one has begun."""
    Run.late = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment, attr-defined]
    return __main__.main(argv)


def test_reading_a_step_late_changes_nothing(tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    job = train(2, tmp_path, tokens, 20, "--checkpoint_freq", "5", where=f"{__name__}:late")
    assert job.end() == [0, 0], job.output()
    assert losses(tmp_path) == losses(undisturbed)
    job = train(1, tmp_path / "bad", tokens, 9, "--lr", "1e30", where=f"{__name__}:late")
    assert job.end() == [1]
    assert "in the batch of" in job.output().splitlines()[-1]
    assert complete(tmp_path / "bad") == []


def poisoned(argv: Sequence[str]) -> int:
    """train, with a loss of nan for the second batch of rank 1."""
    step, count = Engine.forward_backward, itertools.count(1)

    def bad(self: Engine, *batch: torch.Tensor) -> torch.Tensor:
        share = step(self, *batch)
        return share * float("nan") if next(count) == 2 and torch.distributed.get_rank() == 1 else share

    Engine.forward_backward = bad  # type: ignore[method-assign, assignment]
    return __main__.main(argv)


def test_a_loss_that_is_no_number_names_its_batch(tmp_path: Path, tokens: Path) -> None:
    job = train(2, tmp_path, tokens, 9, where=f"{__name__}:poisoned")
    assert job.end() == [1, 1], job.output()
    said = job.output().splitlines()[-1]
    assert "the loss of step 2 is nan and its gradient norm " in said
    assert f"in the batch of rank 1 on {HOST}, samples 9 (window " in said
    assert "rank 0" not in said
    assert [record["step"] for record in records(tmp_path) if record.get("event") == "not_finite"] == [2]


def test_streamed_text_goes_on_on_other_ranks_and_the_token_stays_secret(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    write_c4(tmp_path / "hub/datasets/gated/c4", 4, 60)
    hub = Hub(tmp_path / "hub")
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    common = ["train", *SMALL, "--dataset", "gated/c4", "--dataset_config_name", "en", "--tokenizer", "bytes", "--data_streams", "4"]
    common += ["--backend", "gloo", "--checkpoint_freq", "3", "--lr_decay_iters", "20", "--max_context_width", "64"]

    def go(ranks: int, name: str, steps: int, **changed: str) -> tuple[list[int], str]:
        argv = [
            *common,
            "--train_batch_size",
            str(8 // ranks),
            "--max_steps",
            str(steps),
            "--checkpoint_dir",
            str(tmp_path / "runs" / name),
        ]
        job = start(ranks, tmp_path / "runs" / name / "output", "trainer.__main__:main", argv, **env | changed)
        return job.end(), job.output()

    assert go(1, "whole", 9)[0] == [0]
    assert go(2, "parts", 6)[0] == [0, 0]
    codes, output = go(4, "parts", 9)
    assert codes == [0] * 4, output
    assert "Resumed from step 6" in output
    expected = losses(tmp_path / "runs" / "whole")
    assert losses(tmp_path / "runs" / "parts") == {step: pytest.approx(expected[step], rel=1e-6) for step in range(1, 10)}
    assert expected[9] < expected[1]
    codes, output = go(2, "refused", 1, HF_TOKEN="")
    assert codes == [2, 2]
    assert "data set gated/c4 is gated, private or not there for this user, and HF_TOKEN is not set" in output.splitlines()[-1]
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    hub.shutdown()
