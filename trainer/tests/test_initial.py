# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The first weights: any part of a weight is drawn as in the whole one, and the numbers are normal."""

import pytest

from trainer.tests.ranks import NO_TORCH

pytest.importorskip("torch", reason=NO_TORCH)

import torch

from trainer import initial
from trainer.parallel.build import Part

CPU = torch.device("cpu")


def draw(name: str, size: tuple[int, ...], part: list[range] | None = None) -> torch.Tensor:
    return initial.initial_value(name, size, part or [range(length) for length in size], seed=1, std=0.02, device=CPU)


@pytest.mark.parametrize("size", [(37, 24), (8, 6, 10)])
def test_a_part_is_drawn_as_in_the_whole_weight(size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw("weight", size)
    monkeypatch.setattr(initial, "ROWS", 50)
    assert torch.equal(draw("weight", size), whole), "the numbers drawn at a time matter"
    for dim, ranks in ((0, 5), (1, 4), (len(size) - 1, 3)):
        parts = [Part([(dim, rank, ranks), (0, 1, 2)], 1).spans(torch.Size(size)) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            pieces = whole.chunk(ranks, dim)
            if rank < len(pieces):
                expected = pieces[rank].chunk(2, 0)[1:]
                drawn = draw("weight", size, part)
                assert torch.equal(drawn, expected[0]) if expected else drawn.numel() == 0


def test_the_numbers_are_normal() -> None:
    one, other = draw("one", (1000, 1000)).flatten() / 0.02, draw("other", (1000, 1000)).flatten() / 0.02
    assert one.mean().abs() < 0.005
    assert one.var().item() == pytest.approx(1, abs=0.01)
    assert (one**4).mean().item() == pytest.approx(3, abs=0.05)
    assert 4 < one.abs().max() < 6
    neighbours = [(one * other).mean(), (one[1:] * one[:-1]).mean(), (one[1000:] * one[:-1000]).mean()]
    assert all(product.abs() < 0.005 for product in neighbours)
    assert draw("norm", (3,)).tolist() == [1, 1, 1]
