# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints on S3, on a full disk, of other programs, and before the machines are taken away; export, prove-resume and bench."""

import hashlib
import json
import os
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainer import __main__
from trainer.tests.ranks import NO_TORCH, PATIENCE, start
from trainer.tests.runs import complete, losses, records, train

pytest.importorskip("torch", reason=NO_TORCH)

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from trainer import export, hf, prove
from trainer.checkpoint.folder import SCHEMA, Folder
from trainer.checkpoint.s3 import Bucket, Ranged
from trainer.checkpoint.saver import Stage
from trainer.checkpoint.store import changed, complete_steps, foreign
from trainer.cli import UsageError
from trainer.comm import on_cpu
from trainer.launch import EXIT_STOPPED, Ranks, StopFlag, join
from trainer.models import Shape


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The environment of a user of S3, whose endpoint is moto's on loopback."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server.stop()


def test_checkpoints_on_s3(s3: dict[str, str], tmp_path: Path, tokens: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="runs")
    more = [
        "--checkpoint_dir",
        "s3://runs/one",
        "--checkpoint_freq",
        "5",
        "--keep_checkpoints",
        "2",
        "--jsonl",
        str(tmp_path / "train.jsonl"),
    ]
    job = train(2, tmp_path, tokens, 15, *more, **s3)
    assert job.end() == [0, 0], job.output()
    names = {entry["Key"] for entry in client.list_objects_v2(Bucket="runs")["Contents"]}
    assert {name.split("/")[1] for name in names} == {"step-10", "step-15", "goodput.json"}
    # Without its manifest it is half a checkpoint.
    client.delete_object(Bucket="runs", Key="one/step-15/manifest.json")
    job = train(1, tmp_path, tokens, 12, *more, **s3)
    assert job.end() == [0], job.output()
    assert "Resumed from step 10 (s3://runs/one/step-10)" in job.output()
    expected = losses(undisturbed)
    found = losses(tmp_path)
    assert all(found[step] == pytest.approx(expected[step], rel=1e-6) for step in range(1, 13))
    job = train(1, tmp_path, tokens, 12, "--checkpoint_dir", "s3://nothing/there", **s3)
    assert job.end() == [2]
    assert "trainer: s3://nothing/there cannot be used: " in job.output()


def test_an_object_is_read_in_parts_and_a_short_one_is_no_checkpoint(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="parts")
    client.put_object(Bucket="parts", Key="one/step-3/data", Body=b"0123456789")
    store = Bucket("s3://parts/one")
    files = {"data": [10, hashlib.sha256(b"0123456789").hexdigest()]}
    with pytest.raises(OSError, match="other is missing"):
        store.finish(3, {"schema": SCHEMA, "files": files | {"other": [1, ""]}})
    store.finish(3, {"schema": SCHEMA, "files": files})
    assert complete_steps(store) == [3]
    file, part = Ranged(client, "parts", "one/step-3/data"), bytearray(3)
    file.seek(2)
    assert (file.readinto(part), part, file.tell()) == (3, b"234", 5)
    file.seek(-2, os.SEEK_END)
    assert (file.read(), file.read()) == (b"89", b"")
    assert changed(store, 3) == ""
    client.put_object(Bucket="parts", Key="one/step-3/data", Body=b"0123456798")
    assert changed(store, 3) == "the checksum of data differs"
    client.put_object(Bucket="parts", Key="one/step-3/data", Body=b"012345678")
    assert complete_steps(store) == []


def limited(argv: Sequence[str]) -> int:
    """train, with files of at most 60 kB: as on a full disk, but for one process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    return __main__.main(argv)


@pytest.mark.parametrize("asynchronous", ["0", "1"])
def test_no_space_keeps_the_last_good_one(asynchronous: str, tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed / "step-5", tmp_path / "step-5")
    more = ["--checkpoint_freq", "2", "--async_checkpoint", asynchronous]
    job = train(2, tmp_path, tokens, 20, *more, where=f"{__name__}:limited")
    assert job.end() == [1, 1], job.output()
    said = job.output().splitlines()[-1]
    # torch.save does not always report why it could not write.
    reasons = ("the limit of a file's size is reached", "a file could not be written whole")
    rest = f"{tmp_path}/step-5 is whole; make space or lower --keep_checkpoints"
    assert said in [f"trainer: a checkpoint could not be written to {tmp_path}, {reason}: {rest}" for reason in reasons]
    assert "Traceback" not in job.output() + job.output(1)
    assert [path.name for path in complete(tmp_path)] == ["step-5"]
    assert not list(tmp_path.glob("*.tmp"))


def invert(path: Path) -> None:
    """Invert 4 KiB in the middle of a file, which keeps its size: the damage that a disk does."""
    content = bytearray(path.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 4096)
    content[middle] = bytes(255 - byte for byte in content[middle])
    path.write_bytes(content)


def test_a_changed_checkpoint_is_skipped_and_named(tmp_path: Path, tokens: Path, undisturbed: Path) -> None:
    for step in (5, 10, 15):
        shutil.copytree(undisturbed / f"step-{step}", tmp_path / f"step-{step}")
    # Each rank reads its share of the files, so that different ranks find these.
    invert(tmp_path / "step-15" / "__0_0.distcp")
    invert(tmp_path / "step-10" / "__1_0.distcp")
    job = train(2, tmp_path, tokens, 7, "--keep_checkpoints", "1")
    assert job.end() == [0, 0], job.output()
    for step, name in ((15, "__0_0.distcp"), (10, "__1_0.distcp")):
        assert f"Skipped {tmp_path}/step-{step} is damaged: the checksum of {name} differs\n" in job.output()
    assert [record.get("event") for record in records(tmp_path)][:3] == ["resume", "skipped", "skipped"]
    assert {step: losses(undisturbed)[step] for step in (6, 7)} == losses(tmp_path)
    assert [path.name for path in complete(tmp_path)] == ["step-7", "step-10", "step-15"], "a damaged one counts as kept"
    invert(tmp_path / "step-7" / "__0_0.distcp")
    job = train(2, tmp_path, tokens, 8)
    assert job.end() == [2, 2], job.output()
    assert job.output().splitlines()[-1] == (
        f"trainer: {tmp_path}/step-15 is damaged: the checksum of __0_0.distcp differs; no checkpoint before it is whole: "
        "restore it, or remove it to start at step 0"
    )
    assert job.output(1).strip() == ""
    with pytest.raises(UsageError, match=r"step-15 is damaged: the checksum of __0_0\.distcp differs; choose another --step"):
        export.main(["--checkpoint_dir", str(tmp_path), "--out", str(tmp_path / "hf")])


def test_the_checkpoint_of_another_program_is_named(tmp_path: Path, tokens: Path) -> None:
    (tmp_path / "llama_v3-50steps").mkdir()
    (tmp_path / "llama_v3-50steps" / ".metadata").touch()
    assert foreign(Folder(tmp_path)) == "llama_v3-50steps"
    job = train(1, tmp_path, tokens, 6)
    assert job.end() == [2]
    assert job.output().splitlines()[-1] == (
        f"trainer: {tmp_path} holds the checkpoint llama_v3-50steps of another program: choose another folder"
    )


def test_what_is_to_be_resumed_from_has_to_be_there(tmp_path: Path, tokens: Path) -> None:
    job = train(1, tmp_path, tokens, 2, "--resume_from_checkpoint", str(tmp_path / "old"))
    assert job.end() == [2]
    assert "old has no complete checkpoint to resume from: correct --resume_from_checkpoint" in job.output()
    job = train(1, tmp_path, tokens, 2, "--resume_from_checkpoint", str(tmp_path))
    assert job.end() == [0], job.output()


def ending(argv: Sequence[str]) -> int:
    """train, on machines that are taken away in 26 seconds, with a margin of 20: one save may take that long on a busy machine."""
    end = time.time() + 26
    StopFlag.MARGIN = 20.0
    os.environ["MUSTER_STOP_AT"] = str(end)
    code = __main__.main(argv)
    print("in time" if time.time() < end else "too late")
    return code


def test_it_stops_before_the_machines_are_taken_away(tmp_path: Path, tokens: Path) -> None:
    job = train(1, tmp_path, tokens, 10_000_000, "--checkpoint_freq", "1000000", where=f"{__name__}:ending")
    assert job.end() == [EXIT_STOPPED], job.output()
    assert "Stopped by MUSTER_STOP_AT after step" in job.output()
    assert job.output().splitlines()[-1] == "in time"
    assert complete(tmp_path)[-1].name == f"step-{max(losses(tmp_path))}"


def test_staged_tensors_do_not_change_with_their_originals() -> None:
    stage = Stage()
    value = torch.ones(3)
    staged = stage({"a": {"b": value}, "c": [1]})
    value.zero_()
    assert staged["a"]["b"].tolist() == [1, 1, 1]
    assert stage({"a": {"b": value}})["a"]["b"].data_ptr() == staged["a"]["b"].data_ptr(), "its memory is not used again"


def test_what_lies_on_a_gpu_is_staged_in_host_memory() -> None:
    """With a fake GPU. The mesh decides where a DTensor lies, so the staged one has a mesh of the CPU."""
    join(Ranks(), "gloo", PATIENCE)
    mesh = DeviceMesh.from_group([dist.group.WORLD], "cuda", mesh=torch.arange(1), mesh_dim_names=("shard",))
    on_cpu(mesh)  # it reads its ranks, which are no fake
    with FakeTensorMode():
        weight = DTensor.from_local(torch.ones(4, 2, device="cuda"), mesh, [Shard(0)], run_check=False)
        staged = Stage()({"weight": weight})["weight"]
    dist.destroy_process_group()
    assert (weight.to_local().device.type, staged.to_local().device.type) == ("cuda", "cpu")
    assert (staged.shape, staged.placements) == (weight.shape, weight.placements)


def test_goodput_is_kept_across_restarts(tmp_path: Path, tokens: Path) -> None:
    for steps in (2, 4):
        job = train(1, tmp_path, tokens, steps)
        assert job.end() == [0], job.output()
    ledger = json.loads((tmp_path / "goodput.json").read_text())
    assert [start["last"] for start in ledger["starts"]] == [2, 4]
    assert 0 < ledger["summary"]["goodput"] < 1
    assert "over 2 starts" in job.output()


def test_prove_resume_on_another_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert prove.main(["--ranks", "2", "--resume_ranks", "1", "--steps", "6"]) == 0
    facts, sentence = capsys.readouterr().out.splitlines()
    found = json.loads(facts)
    assert found["equal"] and found["deterministic"]
    assert found["resumed_from"] < found["steps"] == 6
    assert sentence.startswith("2 ranks, killed after step 3, resumed from step ")


def inexact(record: dict[str, float], step: int) -> None:
    """A tracker that fails as torch does where a kernel gives other bits in every run."""
    if torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("index_wrong_cuda does not have a deterministic implementation, but you set …")


def test_prove_resume_says_what_cannot_be_exact(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--ranks", "1", "--steps", "4", "--", "--model", "tiny", "--dataset", "synthetic", "--tracker", f"{__name__}:inexact"]
    assert prove.main(argv) == 0
    facts, sentence = capsys.readouterr().out.splitlines()
    assert not json.loads(facts)["deterministic"]
    assert sentence.endswith("1e-05 is allowed, because index_wrong_cuda has no kernel here that gives the same bits in every run")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--ranks", "3"], "--batch 8 cannot be divided among 3 ranks"),
        (["--steps", "5", "--kill_at", "5"], "--kill_at 5 is not before the last of 5 steps"),
        (["--", "--max_step", "3"], "unknown argument '--max_step'"),
    ],
)
def test_prove_resume_refuses(argv: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        prove.main(argv)


def test_an_exported_checkpoint_has_the_trained_weights(tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--checkpoint_dir", str(undisturbed), "--step", "10", "--out", str(tmp_path / "hf"), "--dtype", "fp32"]
    like = tmp_path / "like"
    like.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (like / name).write_text(name)
    (like / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": [2, 3], "vocab_size": 9}')
    assert export.main([*argv, "--like", str(like)]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, [2, 3], 256)
    assert all((tmp_path / "hf" / path.name).read_text() == path.name for path in like.iterdir() if path.name != "config.json")
    identity: dict[str, Any] = json.loads((undisturbed / "step-10" / "manifest.json").read_text())["identity"]
    shape = Shape(**{name: value for name, value in identity.items() if name in Shape.__dataclass_fields__})
    weights = hf.source(tmp_path / "hf", shape)
    embedding = weights("model.embed_tokens.weight", torch.Size([shape.vocab_size, shape.hidden_width]))
    assert embedding.dtype == torch.float32
    assert 0.01 < embedding.std() < 0.1
    count = sum(torch.Size(size).numel() for _, _, size, _ in hf.Tensors(tmp_path / "hf").parts.values())
    assert count == shape.parameters()
    with pytest.raises(UsageError, match="holds a model already"):
        export.main(argv)
    with pytest.raises(UsageError, match="has no complete checkpoint of step 11, there are 5, 10, 15, 20"):
        export.main([*argv, "--step", "11"])


def test_bench_says_the_speed_of_steps_after_the_first(tmp_path: Path) -> None:
    job = start(1, tmp_path, "trainer.__main__:main", ["bench", "--model", "tiny", "--max_steps", "7", "--backend", "gloo"])
    assert job.end() == [0], job.output()
    found = json.loads(job.output().splitlines()[-1])
    assert (found["steps"], found["ranks"], found["mfu"]) == (2, 1, None)
    assert found["tokens_per_s"] == pytest.approx(128 * found["samples_per_s"], rel=0.01)
    assert complete_steps(Folder(tmp_path)) == []
    assert records(tmp_path) == []
