# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Lesson 1, data parallelism: every rank has the model and its own samples, and all add up their gradients. The text is data_parallel.md.

python -m trainer.labs.data_parallel            two processes on this machine
torchrun --nproc-per-node gpu -m trainer.labs.data_parallel
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainer.labs.start import Rank, start
from trainer.launch import leave

WIDTH, SAMPLES, STEPS = 256, 32, 5  # SAMPLES a rank and step


def new_model(device: torch.device) -> nn.Sequential:
    """The same first weights on every rank, because the seed is the same."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)


def samples(first: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples first to first+count-1 of an endless set, and the right outputs."""
    x = torch.stack([torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)) for number in range(first, first + count)])
    return x.to(device), x.roll(1, dims=1).to(device)


def train(model: nn.Module, me: Rank) -> list[float]:
    """Train a few steps on this rank's samples; the loss over all ranks at each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        x, y = samples((step * me.ranks + me.rank) * SAMPLES, SAMPLES, me.device)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shared = loss.detach() / me.ranks
        dist.all_reduce(shared)
        losses.append(shared.item())
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value) and value.dim()]
    me.say_each(f"{megabytes([*model.parameters(), *kept]):.2f} MB of weights and optimizer")
    return losses


def megabytes(tensors: list[Any]) -> float:
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors) / 1e6


def by_hand(me: Rank) -> None:
    model = new_model(me.device)
    x, y = samples(me.rank * SAMPLES, SAMPLES, me.device)
    nn.functional.mse_loss(model(x), y).backward()
    weight = model[0].weight
    me.say_each(f"samples {me.rank * SAMPLES} to {(me.rank + 1) * SAMPLES - 1}, its gradient's norm is {weight.grad.norm():.6f}")
    dist.all_reduce(weight.grad)
    weight.grad /= me.ranks
    alone = new_model(me.device)
    x, y = samples(0, me.ranks * SAMPLES, me.device)
    nn.functional.mse_loss(alone(x), y).backward()
    difference = (weight.grad - alone[0].weight.grad).abs().max() / alone[0].weight.grad.abs().max()
    assert difference < 1e-5
    me.say(f"  after the all-reduce it is {weight.grad.norm():.6f}, as one process computes (largest difference {difference:.0e})")


def speed(me: Rank) -> None:
    """Samples a second in the device's type, and the time of the all-reduce of the gradients alone."""
    model = DistributedDataParallel(new_model(me.device))
    scaler = torch.amp.GradScaler(me.device.type, enabled=me.compute == torch.float16)  # small gradients would vanish in float16
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = samples(0, SAMPLES, me.device)

    def seconds(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            with torch.autocast(me.device.type, me.compute, enabled=me.compute != torch.float32):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if me.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    seconds(3)
    step = seconds(20)
    gradients = torch.zeros(sum(parameter.numel() for parameter in model.parameters()), device=me.device)
    began = time.perf_counter()
    for _ in range(20):
        dist.all_reduce(gradients)
    if me.device.type == "cuda":
        torch.cuda.synchronize()
    alone = (time.perf_counter() - began) / 20
    me.say(f"  {me.ranks * SAMPLES / step:.0f} samples/s on {me.ranks} ranks: {1e3 * step:.1f} ms a step")
    me.say(f"  the all-reduce of {megabytes([gradients]):.1f} MB of gradients alone takes {1e3 * alone:.1f} ms; DDP hides part of it")


def lesson(me: Rank) -> None:
    me.say("1. By hand: each rank's gradient, then their mean")
    by_hand(me)
    me.say("2. DistributedDataParallel does the same behind backward()")
    whole = train(DistributedDataParallel(new_model(me.device)), me)
    me.say("3. FSDP2: the same losses, but each rank keeps only its part of the weights")
    model = new_model(me.device)
    mesh = init_device_mesh(me.device.type, (me.ranks,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    divided = train(fully_shard(model, mesh=mesh), me)
    for step, (a, b) in enumerate(zip(whole, divided, strict=True), 1):
        me.say(f"  step {step}: loss {a:.5f} with DDP, {b:.5f} with FSDP2")
    assert max(abs(a - b) for a, b in zip(whole, divided, strict=True)) < 1e-5
    me.say("4. Speed")
    speed(me)


if __name__ == "__main__":
    leave(start(lesson, "trainer.labs.data_parallel"))
