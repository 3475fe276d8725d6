# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Lesson 2, model parallelism: a model that is divided inside its layers and between them. The text is model_parallel.md.

python -m trainer.labs.model_parallel           two processes on this machine
torchrun --nproc-per-node gpu -m trainer.labs.model_parallel
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainer.labs.start import Rank, start
from trainer.launch import leave
from trainer.parallel.pipeline import Action, schedule

WIDTH, SAMPLES, LAYERS, MICRO_BATCHES = 256, 32, 4, 4


class Block(nn.Module):
    """A transformer's feed-forward layer: widen, activate, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def new_model(device: torch.device) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(LAYERS))).to(device)


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(2))
    return x.to(device), x.roll(1, dims=1).to(device)


def mean_loss(made: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.mse_loss(made, wanted)


def local_weights(model: nn.Module) -> int:
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())


def same(name: str, found: Tensor, expected: Tensor, me: Rank) -> None:
    """Print that two results are the same up to rounding; stop the lesson if they are not."""
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    assert difference < 1e-4, f"{name}: {difference}"
    me.say(f"  {name}: {expected.norm().item():.4f} whole, {found.norm().item():.4f} divided (largest difference {difference:.0e})")


def tensor_by_hand(me: Rank) -> None:
    """Columns of the first product, rows of the second: one all-reduce a block."""
    block = new_model(me.device)[0]
    x, _ = batch(me.device)
    with torch.no_grad():
        up = block.up.weight.chunk(me.ranks, dim=0)[me.rank]
        down = block.down.weight.chunk(me.ranks, dim=1)[me.rank]
        part = nn.functional.gelu(x @ up.t()) @ down.t()
        me.say_each(f"{up.shape[0]} of {4 * WIDTH} columns, its part of the sum has norm {part.norm():.4f}")
        dist.all_reduce(part)
        same("the block's output", x + part, block(x), me)


def tensor_by_torch(me: Rank) -> None:
    """The same by a plan: torch divides the weights and adds the all-reduce, in both directions."""
    x, y = batch(me.device)
    whole = new_model(me.device)
    mean_loss(whole(x), y).backward()
    divided = new_model(me.device)
    mesh = init_device_mesh(me.device.type, (me.ranks,))
    for block in divided:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    mean_loss(divided(x), y).backward()
    gradient = divided[0].up.weight.grad
    assert isinstance(gradient, DTensor)
    same("a gradient", gradient.full_tensor(), whole[0].up.weight.grad, me)
    me.say_each(f"{local_weights(divided)} of {local_weights(whole)} weights")


FORWARD = "0123456789ABCDEFGHIJKLMNOP"


def timetable(stages: int, micro_batches: int) -> list[str]:
    """1F1B as text, one column for each time slot: 0, 1, … are forward passes and a, b, … the backward passes of the micro-batches. A stage
    does its actions in the trainer's order, each as soon as its neighbour has done it in an earlier slot."""
    rows, done = [""] * stages, set[tuple[int, Action]]()
    left = [list(schedule(stage, stages, 1, micro_batches)) for stage in range(stages)]
    while any(left):
        earlier = frozenset(done)
        for stage, actions in enumerate(left):
            neighbour = stage - 1 if actions and actions[0].forward else stage + 1
            if actions and (not 0 <= neighbour < stages or (neighbour, actions[0]) in earlier):
                action = actions.pop(0)
                done.add((stage, action))
                rows[stage] += FORWARD[action.micro_batch] if action.forward else chr(ord("a") + action.micro_batch)
            else:
                rows[stage] += "."
    return rows


def pipeline(me: Rank) -> None:
    """The stages divide the blocks, and the batch passes through in micro-batches, so that all stages have work."""
    x, y = batch(me.device)
    whole = new_model(me.device)
    expected = mean_loss(whole(x), y)
    expected.backward()
    blocks = list(new_model(me.device).children())
    mine = range(LAYERS * me.rank // me.ranks, LAYERS * (me.rank + 1) // me.ranks)
    stage = PipelineStage(nn.Sequential(*(blocks[index] for index in mine)), me.rank, me.ranks, me.device)
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=mean_loss)
    losses: list[Tensor] = []
    last = me.rank == me.ranks - 1
    arguments = (x,) if me.rank == 0 else ()
    if last:
        schedule.step(*arguments, target=y, losses=losses)
    else:
        schedule.step(*arguments)
    loss = torch.stack(losses).mean() if last else torch.zeros((), device=me.device)
    dist.broadcast(loss, me.ranks - 1)
    same("the loss", loss.detach(), expected.detach(), me)
    same("a gradient", blocks[mine[0]].up.weight.grad, whole[mine[0]].up.weight.grad, me)
    me.say_each(f"blocks {mine[0]} to {mine[-1]}")
    rows = timetable(me.ranks, MICRO_BATCHES)
    for number, row in enumerate(rows):
        me.say(f"  stage {number} |{row}|")
    idle = sum(row.count(".") for row in rows) / sum(map(len, rows))
    share = (me.ranks - 1) / (MICRO_BATCHES + me.ranks - 1)
    me.say(f"  idle {100 * idle:.0f} % of the time: (stages - 1) / (micro-batches + stages - 1) = {100 * share:.0f} %")


def lesson(me: Rank) -> None:
    if LAYERS % me.ranks or 4 * WIDTH % me.ranks:
        me.say(f"this lesson has {LAYERS} blocks: start it on 1, 2 or {LAYERS} ranks, not on {me.ranks}")
        return
    me.say("1. Tensor parallelism by hand: columns, then rows, then one all-reduce")
    tensor_by_hand(me)
    me.say("2. Tensor parallelism by torch, with its gradients")
    tensor_by_torch(me)
    me.say("3. Pipeline parallelism: 1F1B")
    pipeline(me)


if __name__ == "__main__":
    leave(start(lesson, "trainer.labs.model_parallel"))
