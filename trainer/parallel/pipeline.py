# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Pipeline parallelism: micro-batches pass through the parts of a model that lie on different ranks, 1F1B or interleaved.

Each direction between neighbours has a process group of its own. So a link carries tensors one way and in one order, no rank waits to
send, and only the order of the work decides which rank waits for which.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Action:
    """One micro-batch through one of this rank's parts, forward or backward."""

    forward: bool
    chunk: int
    micro_batch: int


def schedule(rank: int, ranks: int, chunks: int, micro_batches: int) -> Iterator[Action]:
    """A rank's actions in order: 1F1B with one chunk, interleaved with more, whose micro-batches go in groups of `ranks`.

    A last group that is not full is scheduled as a full one without the work on its missing micro-batches.
    """

    def action(forward: bool, number: int) -> Action:
        turn, place = divmod(number, ranks)
        round_, chunk = divmod(turn, chunks)
        return Action(forward, chunk if forward else chunks - 1 - chunk, round_ * ranks + place)

    total = -(-micro_batches // ranks) * ranks * chunks
    ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
    ahead = min(total, ahead)
    order = [(True, number) for number in range(ahead)]
    for number in range(ahead, total):
        order += [(True, number), (False, number - ahead)]
    order += [(False, number) for number in range(total - ahead, total)]
    yield from (made for way, number in order if (made := action(way, number)).micro_batch < micro_batches)


@dataclass
class Links:
    """This rank's neighbours in its pipeline, and a group for each direction: forward, backward, and both around the end."""

    ranks: list[int]
    rank: int
    groups: dict[tuple[bool, bool], dist.ProcessGroup]
    pending: dict[tuple[bool, bool], deque[list[tuple[dist.Work, Tensor]]]] = field(default_factory=dict)

    def _way(self, forward: bool, sending: bool) -> tuple[int, tuple[bool, bool]]:
        step = 1 if forward == sending else -1
        other = self.rank + step
        return self.ranks[other % len(self.ranks)], (forward, not 0 <= other < len(self.ranks))

    def send(self, tensors: tuple[Tensor, ...], forward: bool) -> None:
        """Start to send. The order of the work lets no neighbour be more micro-batches behind than there are ranks, so the oldest of that
        many has arrived, and waiting for it takes no time but frees its memory."""
        to, way = self._way(forward, True)
        pending = self.pending.setdefault(way, deque())
        if len(pending) == len(self.ranks):
            self._wait(pending.popleft())
        started = []
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            work = dist.isend(sent, to, group=self.groups[way])
            assert work is not None
            started.append((work, sent))
        pending.append(started)

    def receive(self, like: tuple[Tensor, ...], forward: bool) -> tuple[Tensor, ...]:
        source, way = self._way(forward, False)
        tensors = tuple(torch.empty_like(tensor) for tensor in like)
        for tensor in tensors:
            dist.recv(tensor, source, group=self.groups[way])
        return tensors

    @staticmethod
    def _wait(sent: list[tuple[dist.Work, Tensor]]) -> None:
        for work, _ in sent:
            work.wait()

    def finish(self) -> None:
        for pending in self.pending.values():
            while pending:
                self._wait(pending.popleft())


def link(columns: list[list[int]], chunks: int) -> Links:
    """The links of this rank. All ranks of the job call this with the ranks of all pipelines."""
    found = None
    for ranks in columns:
        ways = [(forward, wraps) for wraps in ((False, True) if chunks > 1 else (False,)) for forward in (True, False)]
        groups = {way: dist.new_group(ranks) for way in ways}
        if dist.get_rank() in ranks:
            found = Links(ranks, ranks.index(dist.get_rank()), groups)
    assert found is not None
    return found


@dataclass
class Pipeline:
    """This rank's parts of the model in order, and its links. `carried` makes empty tensors like those that go from part to part."""

    parts: list[nn.Module]
    links: Links
    carried: Callable[[int], tuple[Tensor, ...]]
    sync: Callable[[nn.Module, bool], None]

    def is_first(self, chunk: int) -> bool:
        return chunk == 0 and self.links.rank == 0

    def is_last(self, chunk: int) -> bool:
        return chunk == len(self.parts) - 1 and self.links.rank == len(self.links.ranks) - 1

    def run(self, tokens: list[Tensor], labels: list[Tensor], scale: Tensor | None) -> list[Tensor]:
        """Run all micro-batches forward, and with `scale` backward from the scaled sum of the last part. Only the last part has results."""
        count = len(tokens)
        inputs: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        outputs: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        results = []
        left = [count] * len(self.parts)
        for action in schedule(self.links.rank, len(self.links.ranks), len(self.parts), count):
            chunk, number = action.chunk, action.micro_batch
            part, key = self.parts[chunk], (chunk, number)
            first, last = self.is_first(chunk), self.is_last(chunk)
            if action.forward:
                got = (tokens[number],) if first else self.links.receive(self.carried(len(tokens[number])), forward=True)
                if scale is not None and not first:
                    got = tuple(tensor.requires_grad_() for tensor in got)
                made = part(*got, labels=labels[number] if last else None)
                made = made if isinstance(made, tuple) else (made,)
                if last:
                    results.append(made[0].detach())
                else:
                    self.links.send(made, forward=True)
                if scale is not None:
                    inputs[key], outputs[key] = got, made
            elif scale is not None:
                got, made = inputs.pop(key), outputs.pop(key)
                left[chunk] -= 1
                self.sync(part, left[chunk] == 0)
                if last:
                    (made[0].sum() * scale.to(made[0].dtype)).backward()
                else:
                    gradients = self.links.receive(tuple(tensor.detach() for tensor in made), forward=False)
                    torch.autograd.backward(made, gradients)
                if not first:
                    self.links.send(tuple(tensor.grad for tensor in got if tensor.grad is not None), forward=False)
        self.links.finish()
        return results
