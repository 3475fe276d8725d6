# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The training loop, readable from top to bottom."""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import asdict, fields
from pathlib import Path

import torch
import torch.distributed as dist

from trainer import checkpoint, hf, optim
from trainer.config import TrainConfig, TrainerError, UsageError
from trainer.data import Tokens
from trainer.launch import EXIT_STOPPED, Ranks, StopFlag, join, read_ranks
from trainer.metrics import JsonLines, batch_line, logger
from trainer.models import Shape, shape_of
from trainer.parallel import build


def read_shape(config: TrainConfig) -> Shape:
    """The model's shape; raises UsageError."""
    given = {entry.name: getattr(config, entry.name, None) for entry in fields(Shape)}
    try:
        if config.init_from:
            return hf.shape_from(hf.folder_of(config.init_from), given)
        return shape_of(config.model, config.model_type, given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def run(config: TrainConfig, ranks: Ranks | None = None) -> int:
    """Train as `config` says, as one of the ranks of the job; the exit code. Raises TrainerError."""
    ranks = ranks or read_ranks(os.environ)
    shape = read_shape(config)
    data = Tokens(Path(config.dataset_path or ""), shape.max_context_width)
    if data.index["vocab_size"] > shape.vocab_size:
        raise UsageError(f"--vocab_size {shape.vocab_size} is below the {data.index['vocab_size']} of {config.dataset_path}: raise it")
    stop = StopFlag()
    device, backend = join(ranks, config.backend, config.timeout_s)
    engine = build(shape, config, device, hf.source(hf.folder_of(config.init_from), shape) if config.init_from else None)
    model = engine.model
    optimizer = optim.adamw(model, config)

    log = logger()
    log.disabled = ranks.rank != 0
    folder = Path(config.checkpoint_dir) if config.checkpoint_dir else None
    jsonl = Path(config.jsonl) if config.jsonl else folder / "train.jsonl" if folder else None
    common = {"world_size": ranks.world_size, "restart": ranks.restart, "host": socket.gethostname()}
    lines = JsonLines(jsonl if ranks.rank == 0 else None, **common)
    identity = {**asdict(shape), "seed": config.seed, "data": data.index["sha256"]}

    step = samples = 0
    places = [folder, Path(config.resume_from_checkpoint) if config.resume_from_checkpoint else None]
    found = checkpoint.newest([place for place in places if place])
    if found:
        manifest = checkpoint.load(found, model, optimizer, identity)
        step, samples = manifest["step"], manifest["samples"]
    log.info(
        f"{f'Resumed from step {step} ({found})' if found else 'Started at step 0'}: {shape.parameters()} parameters, "
        f"{ranks.world_size} ranks by {ranks.launcher}, {backend}, {engine.layout}, {engine.precision}, restart {ranks.restart}"
    )
    if engine.remark:
        log.info(engine.remark)
    if step >= config.max_steps:
        log.info(f"All {config.max_steps} steps were trained before: nothing to do")
        return 0
    lines.write(event="resume" if found else "start", step=step, parameters=shape.parameters(), backend=backend)

    def save() -> None:
        assert folder is not None
        began = time.perf_counter()
        facts = {"samples": samples, "world_size": ranks.world_size, "identity": identity}
        path = checkpoint.save(folder, step, model, optimizer, facts=facts, keep=config.keep_checkpoints)
        seconds = time.perf_counter() - began
        log.info(f"Checkpoint {path} written in {seconds:.2f} s")
        lines.write(event="checkpoint", step=step, path=str(path), seconds=round(seconds, 3))

    batch = engine.samples * engine.data_ranks
    logged, since = step, time.perf_counter()
    while step < config.max_steps:
        mine = samples + engine.data_rank * engine.samples
        loss = engine.forward_backward(data.batch(config.seed, mine, engine.samples).to(device))
        norm = engine.clip(config.grad_clip)
        # One reduction a step tells every rank the loss of all tokens and whether any of them was asked to stop.
        status = torch.stack([loss.detach(), loss.new_tensor(float(bool(stop.signal)))])
        dist.all_reduce(status)
        value, stopping = status.tolist()
        grad_norm = norm.item()
        usable = engine.keeps(grad_norm)
        if not math.isfinite(value) or (usable and not math.isfinite(grad_norm)):
            raise TrainerError(
                f"the loss of step {step + 1} is {value} and its gradient norm {grad_norm}: lower --lr or look at the data; "
                f"the checkpoints before it are untouched"
            )
        rate = optim.learning_rate(config, step + 1)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if usable:
            optimizer.step()
        optimizer.zero_grad()
        step += 1
        samples += batch
        last = step == config.max_steps or stopping
        if step % config.logging_freq == 0 or last:
            speed = (step - logged) * batch / (time.perf_counter() - since)
            per_s = speed * shape.max_context_width
            log.info(batch_line(step, value, speed, rate, **{"tokens/s": f"{per_s:.0f}", "grad_norm": f"{grad_norm:.4f}"}))
            lines.write(step=step, loss=value, samples_per_s=speed, tokens_per_s=per_s, lr=rate, grad_norm=grad_norm)
            logged, since = step, time.perf_counter()
        if folder and (step % config.checkpoint_freq == 0 or last):
            paused = time.perf_counter()
            save()
            since += time.perf_counter() - paused
        if stopping:
            log.info(
                f"Stopped by a signal after step {step} of {config.max_steps}{': the same command goes on from there' if folder else ''}"
            )
            break
    lines.write(event="end", step=step, finished=step == config.max_steps)
    dist.barrier()
    return 0 if step == config.max_steps else EXIT_STOPPED
