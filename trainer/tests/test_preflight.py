# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""preflight on gloo ranks: ready, or one sentence for every fault."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer import __main__
from trainer.cli import LocalError, TrainerError, UsageError
from trainer.config import TrainConfig
from trainer.data.tokens import prepare
from trainer.layout import Layout
from trainer.models import shape_of
from trainer.tests.ranks import NO_TORCH, start

pytest.importorskip("torch", reason=NO_TORCH)

import torch
import torch.distributed as dist

from trainer import preflight
from trainer.data.loader import Synthetic
from trainer.preflight import compare_hosts, read_hosts, tell

MAIN = "trainer.__main__:main"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(folder, 20_000, 1, 256)
    return folder


def test_ready(tmp_path: Path, tokens: Path) -> None:
    argv = ["preflight", "--model", "tiny", "--dataset_path", str(tokens), "--checkpoint_dir", str(tmp_path / "checkpoints")]
    job = start(2, tmp_path, MAIN, [*argv, "--expected_hosts", socket.gethostname()])
    assert job.end() == [0, 0], job.output()
    lines = job.output().splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [
        f"ok    {name}" for name in ("layout", "hosts", "torch", "precision", "memory", "data", "checkpoints", "space", "collectives")
    ]
    assert lines[-1] == "preflight: ready to train"
    assert list((tmp_path / "checkpoints").iterdir()) == [], "what was tried has to go again"


def test_every_fault_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    argv = ["preflight", "--model", "llama-3.1-70b", "--dataset_path", str(tmp_path / "none"), "--expected_hosts", "gpu-1"]
    job = start(2, tmp_path, MAIN, [*argv, "--checkpoint_dir", str(tmp_path / "file" / "checkpoints")])
    assert job.end() == [1, 1], job.output()
    lines = job.output().splitlines()
    faults = {line.split()[1]: line for line in lines if line.startswith("FAULT")}
    assert list(faults) == ["hosts:", "memory:", "data:", "checkpoints:", "space:"]
    me = socket.gethostname()
    assert f"no rank runs on gpu-1 and ranks run on {me}, which --expected_hosts does not name" in faults["hosts:"]
    assert "the model does not fit: the estimate is" in faults["memory:"]
    assert f"{tmp_path}/none holds no data set" in faults["data:"]
    assert "cannot be written: Not a directory" in faults["checkpoints:"]
    assert "GiB free, " in faults["space:"] and "make room or lower --keep_checkpoints" in faults["space:"]
    assert lines[-1] == "preflight: 5 faults"
    assert (tmp_path / "rank-1.txt").read_text() == "", "one rank tells it"


def apart(argv: Sequence[str]) -> int:
    """preflight, whose rank 1 has another torch and another folder, and adds up wrongly."""
    if os.environ["RANK"] == "1":
        add_up = dist.all_reduce

        def wrong(tensor: torch.Tensor, *operator: object) -> None:
            add_up(tensor, *operator)
            tensor += 1

        torch.__version__, dist.all_reduce = "2.11.0 of another", wrong
    return __main__.main([part.replace("RANK", os.environ["RANK"]) for part in argv])


def test_ranks_that_differ(tmp_path: Path, tokens: Path) -> None:
    argv = ["preflight", "--model", "tiny", "--dataset_path", str(tokens), "--checkpoint_dir", str(tmp_path / "checkpoints-RANK")]
    job = start(2, tmp_path, f"{__name__}:apart", argv)
    assert job.end() == [1, 1], job.output()
    faults = {line.split()[1]: line for line in job.output().splitlines() if line.startswith("FAULT")}
    assert list(faults) == ["torch:", "checkpoints:", "collectives:"]
    assert "ranks have different versions of torch (2.11.0 of another, " in faults["torch:"]
    assert f"rank 1 on {socket.gethostname()}: --checkpoint_dir {tmp_path}/checkpoints-1 is not the one of rank 0" in faults["checkpoints:"]
    assert f"rank 1 on {socket.gethostname()}: all_reduce gave a wrong result: run " in faults["collectives:"]


def test_a_token_that_the_model_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "open_source", lambda *_: Synthetic(2000, 32, 1))
    shape = shape_of("tiny", None, {"max_context_width": 32})
    with pytest.raises(LocalError, match=r"the data has the token 1\d\d\d, --vocab_size is 256: raise it, or use the model's tokenizer"):
        preflight.check_data(TrainConfig(model="tiny", train_batch_size=8), shape, Layout(), 0)


def test_a_layout_that_does_not_divide(tmp_path: Path, tokens: Path) -> None:
    argv = ["preflight", "--model", "tiny", "--dataset_path", str(tokens), "--tensor_parallel_degree", "3"]
    job = start(2, tmp_path, MAIN, argv)
    assert job.end() == [2, 2]
    assert job.output().startswith("trainer: 2 ranks cannot be divided by 3 (--tensor_parallel_degree 3 x ")


def test_a_misspelt_flag_is_refused(tmp_path: Path) -> None:
    job = start(1, tmp_path, MAIN, ["preflight", "--train_batchsize", "3"])
    assert job.end() == [2]
    assert "unknown argument '--train_batchsize': did you mean --train_batch_size?" in job.output()


def test_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\nb\n")
    assert read_hosts(str(tmp_path / "hosts")) == read_hosts("a, b") == {"a", "b"}
    assert compare_hosts({"a", "b"}, ["a", "a", "b", "b"]) == "2 x 2 ranks"
    with pytest.raises(TrainerError, match="no rank runs on b: check"):
        compare_hosts({"a", "b"}, ["a", "a"])
    with pytest.raises(TrainerError, match=r"different numbers of ranks \(a 2, b 1\): start as many on each"):
        compare_hosts(set(), ["a", "a", "b"])
    with pytest.raises(UsageError, match="names no host"):
        read_hosts(", ")


def test_a_fault_names_the_ranks_that_have_it() -> None:
    fine = [("data", False, "read")]
    assert tell([fine, fine], ["a", "b"]) == ["ok    data: read"]
    assert tell([fine, [("data", True, "cut: mend it")]], ["a", "b"]) == ["FAULT data: rank 1 on b: cut: mend it"]
