# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The published models: exact counts, twins, errors. Layouts and schedules, without other ranks."""

from typing import Any

import pytest

from trainer.cli import UsageError
from trainer.config import LayoutFlags, read_train
from trainer.layout import Layout, resolve
from trainer.models import PRESETS, PUBLISHED, shape_of
from trainer.tests.ranks import NO_TORCH

TP, PP, CP, EP = (f"{name}_parallel_degree" for name in ("tensor", "pipeline", "context", "expert"))
ACCUMULATE = "gradient_accumulation_steps"

# Parameters of the published checkpoints.
COUNTS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mixtral-8x7b": 46_702_792_704,
    "mathstral-7b": 7_248_023_552,
}


def test_exact_counts() -> None:
    assert {name: shape.parameters() for name, shape in PUBLISHED.items()} == COUNTS
    assert PUBLISHED["mixtral-8x7b"].active_parameters() == 12_879_925_248


def test_operations_of_a_token() -> None:
    assert PUBLISHED["llama-3.1-8b"].flops_per_token(8192) == pytest.approx(57.9e9, rel=1e-3)
    assert PUBLISHED["llama-3.1-8b"].flops_per_token(8192, causal=True) == pytest.approx(51.5e9, rel=1e-3)
    assert PUBLISHED["mixtral-8x7b"].flops_per_token(4096) == pytest.approx(82.9e9, rel=1e-3)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_twin_is_the_same_kind_of_model(name: str) -> None:
    large, small = PUBLISHED[name], PRESETS[f"{name}-tiny"]
    for part in ("tied", "rope_theta", "rope_factor", "num_experts", "experts_per_token", "norm_eps"):
        assert getattr(small, part) == getattr(large, part)
    assert (small.num_heads == small.num_key_value_heads) == (large.num_heads == large.num_key_value_heads)
    assert small.parameters() < 1_000_000


def test_a_sample_longer_than_the_model_is_made_for() -> None:
    with pytest.raises(UsageError, match="--max_context_width 8192 is above the 4096 tokens that the model is made for: lower it"):
        shape_of("llama-2-7b", None, {"max_context_width": 8192})
    assert shape_of("llama-3.1-8b", None, {"max_context_width": 131_072}).max_context_width == 131_072


def test_model_type_is_the_reference_trainers() -> None:
    assert shape_of("reference", "mixtral", {}).num_experts == 8
    assert shape_of("reference", None, {}).rope_theta == 500_000


def test_an_unknown_model() -> None:
    with pytest.raises(UsageError, match=r"argument --model: invalid choice: 'llama-3\.1-9b'"):
        read_train(["--model", "llama-3.1-9b", "--dataset_path", "x"])


def test_activation_checkpointing_takes_the_reference_trainers_numbers() -> None:
    assert read_train(["--activation_checkpointing", "1", "--dataset_path", "x"]).activation_checkpointing == "full"
    with pytest.raises(UsageError, match="--bf16 and --precision say the same"):
        read_train(["--bf16", "1", "--precision", "fp16", "--dataset_path", "x"])


@pytest.mark.parametrize(
    ("model", "ranks", "asked", "sentence"),
    [
        ("llama-3.1-8b", 6, {TP: 4}, "6 ranks cannot be divided by 4 (--tensor_parallel_degree 4 x"),
        ("llama-3.1-8b", 16, {TP: 16}, "num_key_value_heads 8 cannot be divided by --tensor_parallel_degree 16"),
        ("llama-3.1-8b", 3, {CP: 3}, "the number of heads of a tensor rank 32 cannot be divided by --context_parallel_degree 3"),
        (
            "llama-3.2-3b",
            12,
            {CP: 12},
            "the 8 key heads of a tensor rank and --context_parallel_degree 12 do not divide: change one of them",
        ),
        ("llama-3.1-8b", 8, {EP: 2}, "--expert_parallel_degree needs a model with experts"),
        ("mixtral-8x7b", 6, {EP: 3}, "num_experts 8 cannot be divided by --expert_parallel_degree 3"),
        ("mixtral-8x7b", 2, {EP: 4}, "the number of ranks that share the weights 2 cannot be divided by --expert_parallel_degree 4"),
        ("mixtral-8x7b", 4, {EP: 2, TP: 2}, "--expert_parallel_degree cannot be joined with --tensor_parallel_degree"),
        (
            "llama-3.2-1b",
            2,
            {PP: 2, ACCUMULATE: 2},
            "this model's head is its embedding, which cannot lie on two pipeline stages",
        ),
        ("llama-3.1-8b", 64, {PP: 64, ACCUMULATE: 64}, "num_layers 32 is below the 64 parts of the pipeline"),
        ("llama-3.1-8b", 4, {PP: 4}, "--gradient_accumulation_steps 1 is below --pipeline_parallel_degree 4"),
        (
            "llama-3.1-8b",
            4,
            {PP: 4, "pipeline_schedule": "interleaved", ACCUMULATE: 6},
            "--gradient_accumulation_steps 6 cannot be divided",
        ),
        ("llama-3.1-8b", 1, {"pipeline_schedule": "interleaved"}, "--pipeline_schedule interleaved needs --pipeline_parallel_degree 2"),
        ("llama-3.1-8b", 8, {"sharding_strategy": "hybrid"}, "--sharding_strategy hybrid does not know how many ranks a host has"),
        (
            "llama-3.1-8b",
            8,
            {"sharding_strategy": "hybrid", "hybrid_shard_degree": 3},
            "the number of ranks that share the weights 8 cannot be divided",
        ),
        ("llama-3.1-8b", 8, {"hybrid_shard_degree": 4}, "--hybrid_shard_degree needs --sharding_strategy hybrid"),
        (
            "llama-3.1-8b",
            2,
            {"sharding_strategy": "ddp", TP: 2},
            "--sharding_strategy ddp cannot be joined with tensor, pipeline or expert",
        ),
    ],
)
def test_a_layout_that_does_not_divide(model: str, ranks: int, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(PUBLISHED[model], ranks, LayoutFlags(**asked))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_ranks_of_a_layout() -> None:
    flags = LayoutFlags("hybrid", 4, **{TP: 2, PP: 2, CP: 2, ACCUMULATE: 4})  # type: ignore[arg-type]
    found = resolve(PUBLISHED["llama-3.1-70b"], 64, flags)
    assert found == Layout(shard=4, replicate=4, tensor=2, pipeline=2, context=2)
    assert (found.world_size, found.data_ranks) == (64, 8)
    groups: dict[int, list[int]] = {}
    for rank in range(64):
        groups.setdefault(found.data_rank(rank), []).append(rank)
    assert groups[0] == [0, 1, 2, 3, 32, 33, 34, 35]
    assert [len(members) for members in groups.values()] == [8] * 8
    assert str(found) == "FSDP 2 x HSDP 4 x TP 2 x PP 2 x CP 2"


def test_blocks_of_the_stages() -> None:
    assert Layout(pipeline=4).stages(32) == [range(0, 8), range(8, 16), range(16, 24), range(24, 32)]
    assert Layout(pipeline=2, chunks=2).stages(6) == [range(0, 2), range(2, 4), range(4, 5), range(5, 6)]


@pytest.mark.parametrize(
    ("ranks", "chunks", "micro_batches"),
    [(2, 1, 2), (4, 1, 7), (2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 2, 3), (2, 2, 1), (2, 2, 3), (4, 2, 6)],
)
def test_a_schedule_waits_for_nothing_that_never_comes(ranks: int, chunks: int, micro_batches: int) -> None:
    """Every rank does all its work, no rank waits for ever, and 1F1B keeps at most as many micro-batches as stages follow."""
    pytest.importorskip("torch", reason=NO_TORCH)
    from trainer.parallel.pipeline import Action, schedule

    plans = [list(schedule(rank, ranks, chunks, micro_batches)) for rank in range(ranks)]
    whole = {Action(forward, chunk, number) for forward in (True, False) for chunk in range(chunks) for number in range(micro_batches)}
    assert all(len(plan) == len(whole) and set(plan) == whole for plan in plans)
    done: set[tuple[bool, int, int]] = set()
    at = [0] * ranks
    parts = ranks * chunks
    while any(at[rank] < len(plans[rank]) for rank in range(ranks)):
        moved = False
        for rank in range(ranks):
            if at[rank] < len(plans[rank]):
                action = plans[rank][at[rank]]
                part = action.chunk * ranks + rank
                before = (True, part - 1) if action.forward else (False, part + 1)
                own = action.forward or (True, part, action.micro_batch) in done
                if own and (before[1] in (-1, parts) or (*before, action.micro_batch) in done):
                    done.add((action.forward, part, action.micro_batch))
                    at[rank] += 1
                    moved = True
        assert moved, "every rank waits for another"
    if chunks == 1:
        for rank, plan in enumerate(plans):
            held = [sum(1 if action.forward else -1 for action in plan[: end + 1]) for end in range(len(plan))]
            assert max(held) == min(micro_batches, ranks - rank)


def test_a_pipeline_frees_what_was_sent_before_the_last_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    import torch
    import torch.distributed as dist

    from trainer.parallel.pipeline import Links

    on_the_way: set[int] = set()

    class Sent:
        def __init__(self, number: int) -> None:
            self.number = number
            on_the_way.add(number)

        def wait(self) -> None:
            on_the_way.remove(self.number)

    monkeypatch.setattr(dist, "isend", lambda tensor, *_, **__: Sent(int(tensor)))
    links = Links([0, 1, 2], 0, {(True, False): None, (False, True): None})  # type: ignore[dict-item]
    for number in range(64):
        links.send((torch.tensor(number),), forward=True)
        assert on_the_way == set(range(max(0, number - 2), number + 1))
    links.finish()
    assert not on_the_way


def test_a_layout_has_a_name() -> None:
    assert str(Layout()) == "undivided"
    assert str(Layout(shard=4, ddp=True)) == "DDP 4"
