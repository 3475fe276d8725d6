# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Precision, the scaled loss of fp16, float8, chunked cross entropy and masked labels, each on one rank."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.tests.ranks import NO_TORCH, PATIENCE

pytest.importorskip("torch", reason=NO_TORCH)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule

from trainer import fp8, layers, loss
from trainer.cli import UsageError
from trainer.comm import local
from trainer.config import TrainConfig
from trainer.launch import Ranks, StopFlag, join
from trainer.layout import Layout, layout_of
from trainer.metrics import logger
from trainer.models import shape_of
from trainer.observer import Spent
from trainer.optim import AdamW
from trainer.parallel import build
from trainer.parallel.engine import Engine
from trainer.parallel.precision import precision_of
from trainer.train import Run
from trainer.watch import Watch

SAMPLES = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    join(Ranks(), "gloo", PATIENCE)
    yield
    dist.destroy_process_group()


def engine(model: str = "llama-3.1-8b-tiny", **more: Any) -> Engine:
    config = TrainConfig(**{"model": model, "train_batch_size": 4, "initializer_range": 0.1, **more})
    return build.build(shape_of(model, None, {"max_context_width": 32}), config, torch.device("cpu"))


@pytest.mark.parametrize(
    ("capability", "precision", "remark"),
    [
        ((9, 0), "bf16", ""),
        ((7, 5), "fp16", "Tesla T4 has no bf16, so fp16 with loss scaling is used"),
        ((6, 1), "fp32", "Tesla T4 has no bf16, so fp32 is used"),
    ],
)
def test_what_a_gpu_computes_in(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str, remark: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    gpu = torch.device("cuda", 0)
    assert precision_of(TrainConfig(), gpu) == (precision, remark)
    assert precision_of(TrainConfig(bf16=0), gpu) == ("fp32", "")
    if capability < (8, 0):
        with pytest.raises(UsageError, match="Tesla T4 has no bf16: use --precision fp16 or leave it out"):
            precision_of(TrainConfig(bf16=1), gpu)
    if capability < (8, 9):
        with pytest.raises(UsageError, match=r"--precision float8 needs a GPU of compute capability 8\.9 or later"):
            precision_of(TrainConfig(precision="float8"), gpu)


def test_a_cpu_computes_in_float32_and_never_in_float8() -> None:
    assert precision_of(TrainConfig(), torch.device("cpu")) == ("fp32", "")
    with pytest.raises(UsageError, match="--precision float8 needs a GPU"):
        precision_of(TrainConfig(precision="float8"), torch.device("cpu"))


def test_one_rank_has_no_wrapper_and_its_layers_cast(alone: None) -> None:
    half = engine(precision="bf16")
    assert not isinstance(half.model, FSDPModule)
    seen: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    for name, module in half.model.named_modules():
        if not list(module.children()) and "embed" not in name and name != "lm_head":
            module.register_forward_hook(lambda _, given, made, name=name: seen.update({name: (given[0].dtype, made.dtype)}))  # type: ignore[misc]
    half.forward_backward(SAMPLES)
    assert len(seen) > 30
    assert set(seen.values()) == {(torch.bfloat16, torch.bfloat16)}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_as_float32_does(alone: None, precision: str) -> None:
    half, whole = engine(precision=precision), engine()
    assert half.forward_backward(SAMPLES).item() == pytest.approx(whole.forward_backward(SAMPLES).item(), rel=5e-3)
    assert half.clip(1.0).item() == pytest.approx(whole.clip(1.0).item(), rel=2e-2)
    for (name, one), (_, other) in zip(half.model.named_parameters(), whole.model.named_parameters(), strict=True):
        assert one.dtype == one.grad.dtype == torch.float32
        assert (local(one.grad) - other.grad).norm() / other.grad.norm() < 0.1, name


def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale(alone: None) -> None:
    half = engine(precision="fp16")
    assert half.scale is not None
    half.scale.value = 2.0**40
    half.forward_backward(SAMPLES)
    assert not half.keeps(half.clip(1.0).item())
    assert half.scale.value == 2.0**39
    half.scale.value, half.scale.good = 1024.0, 1999
    for parameter in half.model.parameters():
        parameter.grad = None
    half.forward_backward(SAMPLES)
    assert half.keeps(half.clip(1.0).item())
    assert half.scale.value == 2048.0


def test_a_limit_of_zero_leaves_the_gradients(alone: None) -> None:
    free, bound = engine(), engine()
    for one in (free, bound):
        one.forward_backward(SAMPLES)
    assert free.clip(0.0) == bound.clip(1e9) > 0
    for one, other in zip(free.model.parameters(), bound.model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
        assert one.grad.any()  # type: ignore[union-attr]


def test_labels_that_do_not_count_are_left_out(alone: None) -> None:
    """As in an instruction set: the loss and its gradients are those of the counted tokens, whatever the accumulation."""
    tokens, labels = SAMPLES[:, :-1], SAMPLES[:, 1:].clone()
    labels[0, :20] = labels[2:] = loss.IGNORED
    whole, parts = engine(), engine(train_batch_size=2, gradient_accumulation_steps=2)
    with torch.no_grad():
        logits = whole.model(tokens)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert whole.forward_backward(tokens, labels).item() == pytest.approx(expected, rel=1e-5)
    assert parts.forward_backward(tokens, labels).item() == pytest.approx(expected, rel=1e-5)
    assert parts.clip(1.0).item() == pytest.approx(whole.clip(1.0).item(), rel=1e-5)
    assert whole.evaluate(tokens, labels).item() == pytest.approx(expected, rel=1e-5)


def test_no_counted_label_gives_no_loss(alone: None) -> None:
    one = engine()
    assert one.forward_backward(SAMPLES[:, :-1], torch.full_like(SAMPLES[:, 1:], loss.IGNORED)).item() == 0
    assert one.clip(1.0).item() == 0


def test_the_loss_in_chunks_is_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", 3)
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(size, generator=draw, dtype=torch.float64, requires_grad=True) for size in ((8, 4), (11, 4)))
    labels = torch.tensor([0, 10, 3, loss.IGNORED, 5, 5, loss.IGNORED, 1])
    ours, theirs = loss.summed_cross_entropy(x, weight, labels), F.cross_entropy(x @ weight.t(), labels, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(torch.autograd.grad(ours, (x, weight)), torch.autograd.grad(theirs, (x, weight)), strict=True):
        torch.testing.assert_close(one, other)


def test_the_loss_for_a_compiler_is_the_same() -> None:
    draw = torch.Generator().manual_seed(3)
    logits, labels = torch.randn(40, 96, generator=draw, dtype=torch.float64), torch.randint(0, 96, (40,), generator=draw)
    labels[3:9] = loss.IGNORED
    for one, other in zip(loss.plain_loss(logits, labels), loss.chunk_loss(logits.clone(), labels, None), strict=True):
        torch.testing.assert_close(one, other)
    assert not loss.plain_loss(logits, labels)[1][3:9].any()


@pytest.mark.parametrize("recompute", ["selective", "attention", "full"])
def test_what_is_computed_again_changes_nothing(alone: None, recompute: str) -> None:
    plain, again = engine(), engine(activation_checkpointing=recompute)
    assert plain.forward_backward(SAMPLES).item() == again.forward_backward(SAMPLES).item()
    for one, other in zip(plain.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_gradients_of_own_layers_are_the_numeric_ones() -> None:
    torch.manual_seed(1)
    x, weight, angles = (torch.randn(size, dtype=torch.float64) for size in ((2, 3, 5, 8), (8,), (5, 4)))
    cos, sin = (table.repeat(1, 2) for table in (angles.cos(), angles.sin()))
    torch.testing.assert_close(norm(x, weight), F.rms_norm(x, (8,), weight, 1e-5))
    x.requires_grad_()
    weight.requires_grad_()
    assert torch.autograd.gradcheck(norm, (x, weight))
    assert torch.autograd.gradcheck(lambda x: layers.rotate(x, cos, sin), x)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return layers._Normed.apply(x, weight, 1e-5)


def test_float8_is_near_the_exact_product() -> None:
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(size, generator=draw, requires_grad=True) for size in ((2, 16, 64), (32, 64)))
    ours, theirs = fp8.float8_linear(x, weight), F.linear(x, weight)
    assert (ours - theirs).norm() / theirs.norm() < 0.05
    gradient = torch.randn(ours.shape, generator=draw)
    for one, other in zip(
        torch.autograd.grad(ours, (x, weight), gradient), torch.autograd.grad(theirs, (x, weight), gradient), strict=True
    ):
        assert (one - other).norm() / other.norm() < 0.1
    # Sizes that the tensor cores do not accept are not computed in float8.
    torch.testing.assert_close(fp8.float8_linear(x[:, :3], weight), F.linear(x[:, :3], weight))


def test_float8_trains_as_bf16_does(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU computes the products of the tensor cores."""
    monkeypatch.setattr(build, "precision_of", lambda config, _: (config.precision, ""))
    losses = {}
    for precision in ("bf16", "float8"):
        one = engine(precision=precision, initializer_range=0.02, lr=3e-3)
        optimizer = AdamW(one.model, one.config)
        found = []
        for _ in range(10):  # later steps magnify any difference
            found.append(one.forward_backward(SAMPLES).item())
            one.clip(1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses[precision] = found
    assert losses["bf16"][-1] < losses["bf16"][0] - 0.5, "nothing was learned, so nothing is compared"
    apart = [abs(one - other) / other for one, other in zip(losses["float8"], losses["bf16"], strict=True)]
    assert sum(apart) / len(apart) < 0.02
    assert losses["float8"] != losses["bf16"], "nothing was computed in float8"


def test_float8_is_for_the_linear_layers_of_a_block() -> None:
    from trainer.llama import Llama

    model = Llama(shape_of("mixtral-8x7b-tiny", None, {}))
    block = model.model.layers["0"]
    fp8.use_float8(block)
    changed = {name for name, module in block.named_modules() if getattr(module, "product", None) is fp8.float8_linear}
    assert changed == {f"self_attn.{name}_proj" for name in "qkvo"}


def test_attention_over_context_ranks_keeps_memory_in_proportion_to_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mask lies in memory, so that a fused kernel works and a long context fits."""
    monkeypatch.setattr(layers, "rank_and_size", lambda group: (0, 4))
    monkeypatch.setattr(layers, "exchange", lambda x, group: x)
    kept: dict[int, int] = {}
    for tokens in (64, 256):
        sizes: list[int] = []

        def keep(x: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            assert x.dtype != torch.bool
            sizes.append(x.nbytes)
            return x

        q, k, v = (torch.randn(1, heads, tokens, 8, requires_grad=True) for heads in (8, 2, 2))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            assert layers.attend(q, k, v, None).shape == q.shape
        kept[tokens] = sum(sizes)
    assert kept[256] == pytest.approx(4 * kept[64], rel=0.05)


def test_the_layout_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of("llama-3.1-8b", None, {})
    config = TrainConfig(sharding_strategy="hybrid", tensor_parallel_degree=2)
    assert layout_of(config, shape, 32, {"LOCAL_WORLD_SIZE": "8"}) == Layout(shard=4, replicate=4, tensor=2)
    with pytest.raises(UsageError, match="give --hybrid_shard_degree"):
        layout_of(config, shape, 32, {})


@pytest.fixture
def on_a_t4(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    """A run on this CPU that takes its device for a T4."""
    monkeypatch.setattr(build, "precision_of", lambda *_: ("fp32", "Tesla T4 has no bf16, so fp32 is used"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    logger().addHandler(caplog.handler)
    yield a_run(tmp_path, profile="2-3", profile_dir=str(tmp_path))
    logger().removeHandler(caplog.handler)


def a_run(folder: Path, **more: Any) -> Run:
    config = TrainConfig(model="tiny", dataset="synthetic", max_context_width=32, jsonl=str(folder / "run.jsonl"), **more)
    shape = shape_of("tiny", None, {"max_context_width": 32})
    watch = Watch(folder, 0)
    return Run(config, Ranks(), shape, device=torch.device("cpu"), backend="gloo", stop=StopFlag(None), watch=watch)


def test_a_resume_draws_no_weights(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the checkpoint. For 70 billion of them drawing takes minutes."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert a_run(tmp_path, max_steps=1, checkpoint_dir=str(tmp_path / "checkpoints"), async_checkpoint=0).train() == 0
    monkeypatch.setattr(build, "initial_value", lambda *_, **__: pytest.fail("a weight was drawn"))
    assert a_run(tmp_path, max_steps=2, checkpoint_dir=str(tmp_path / "checkpoints"), async_checkpoint=0).train() == 0


def test_the_log_says_what_was_chosen_for_a_gpu(on_a_t4: Run, caplog: pytest.LogCaptureFixture) -> None:
    assert "Tesla T4 has no bf16, so fp32 is used" in [record.getMessage() for record in caplog.get_records("setup")]


def test_nsight_gets_the_ranges_and_the_window(on_a_t4: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    window = SimpleNamespace(cudaProfilerStart=lambda: said.append("start"), cudaProfilerStop=lambda: said.append("stop"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: window)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    on_a_t4.observer.device = torch.device("cuda")
    for step in (1, 2, 3, 4):
        on_a_t4.observer.profile_window(step)
        with on_a_t4.observer.range(str(step)):
            pass
    assert said == ["1", "end", "start", "2", "end", "3", "end", "stop", "4", "end"]


class Moment:
    """An event of a GPU that reached it after `at` seconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, other: "Moment") -> float:
        return (other.at - self.at) * 1000


def test_the_speed_is_that_of_the_gpu_whenever_the_host_reads(alone: None, tmp_path: Path) -> None:
    """The host reads the results of the last two steps at the same time, and once gave the last one millions of samples a second."""
    run = a_run(tmp_path)
    run.observer.since = Moment(0.0)
    for step, at, idle in ((1, 0.5, 0.0), (2, 1.0, 0.0), (3, 3.5, 2.0)):
        event, spent = Moment(at), Spent(idle, data=0.05 * step)
        run.observer.report(SimpleNamespace(step=step, event=event, spent=spent, lr=0.1, loss=1.0, norm=1.0))  # type: ignore[arg-type]
    found = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines() if "loss" in line]
    assert [record["samples_per_s"] for record in found] == pytest.approx([4.0, 4.0, 4.0])  # two samples in half a second
    assert [record["data_share"] for record in found] == pytest.approx([0.1, 0.1, 0.1])


def test_no_step_makes_a_tensor_of_numbers_of_the_host(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that would wait for all the work before it."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    run, made, step = a_run(tmp_path, max_steps=3), [], torch.tensor

    def noted(*given: Any, **options: Any) -> torch.Tensor:
        made.append(run.step)
        return step(*given, **options)

    monkeypatch.setattr(torch, "tensor", noted)
    monkeypatch.setattr(torch.Tensor, "new_tensor", lambda _self, *given, **options: noted(*given, **options))
    assert run.train() == 0
    assert set(made) <= {0}, "the first step may prepare; every other one would wait"
