# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Trains a small transformer with NVIDIA's resiliency extension: ranks restart inside of their processes.

--fail-at STEP lets rank 1 fail once, as the proof that the others take it back without a new job.
"""

import argparse
import contextlib
import datetime
import os
import re
import time
from pathlib import Path
from typing import Optional

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest

RANDOM = 0.25  # of the tokens nobody can foretell this share
VOCABULARY = 512


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 2), ("hidden", 64), ("heads", 4), ("context", 128), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--checkpoint-freq", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=3, help="how often the ranks may restart before the job fails")
    parser.add_argument("--hang-after", type=int, default=60, help="seconds without progress after which a rank restarts")
    parser.add_argument("--fail-at", type=int, default=0)
    return parser.parse_args()


class Model(torch.nn.Module):
    def __init__(self, asked):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, asked.hidden)
        self.places = torch.nn.Embedding(asked.context, asked.hidden)
        layer = torch.nn.TransformerEncoderLayer(asked.hidden, asked.heads, 4 * asked.hidden, 0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, asked.layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(asked.hidden, VOCABULARY)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def batch_of(step, rank, asked):
    """The tokens of a step: one mostly decides the next."""
    follows = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(2))
    draw = torch.Generator().manual_seed(1_000_003 * rank + step)
    tokens = torch.randint(VOCABULARY, (asked.batch, asked.context + 1), generator=draw)
    free = torch.rand(tokens.shape, generator=draw) < RANDOM
    for place in range(1, asked.context + 1):
        tokens[:, place] = torch.where(free[:, place], tokens[:, place], follows[tokens[:, place - 1]])
    return tokens


def newest(folder):
    """The newest complete checkpoint, None without one."""
    found = [path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d+\.pt", path.name)]
    return max(found, key=lambda path: int(path.stem.split("-")[1]), default=None)


class Saver:
    """Writes checkpoints of rank 0; on a GPU another process writes them while the ranks train on."""

    def __init__(self, folder, aside):
        self.folder, self.queue = folder, AsyncCallsQueue(persistent=True) if aside else None

    def save(self, step, model, optimizer):
        self.folder.mkdir(parents=True, exist_ok=True)
        half, whole = self.folder / f"half-{step}.pt", self.folder / f"step-{step}.pt"
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if self.queue:
            state = torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), state)
            self.queue.schedule_async_request(AsyncRequest(torch.save, (state, str(half)), [lambda: half.rename(whole)]))
        else:
            torch.save(state, half)
            half.rename(whole)

    def finish(self, blocking=False):
        """Give the files that were written meanwhile their names."""
        if self.queue:
            self.queue.maybe_finalize_async_calls(blocking, no_dist=True)

    def close(self):
        self.finish(blocking=True)
        if self.queue:
            self.queue.close()


def train(asked, store, saver, call_wrapper: Optional[inprocess.CallWrapper] = None):  # noqa: UP045, the extension reads this annotation
    gpu = torch.cuda.is_available()
    # After a rank was lost the extension gives new numbers.
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    with torch.cuda.device(device) if gpu else contextlib.nullcontext():
        if dist.is_initialized():
            dist.destroy_process_group()
        own = dist.PrefixStore(f"attempt-{call_wrapper.iteration}", store)
        patience = datetime.timedelta(seconds=600 if gpu else asked.hang_after / 3)
        dist.init_process_group("nccl" if gpu else "gloo", store=own, rank=rank, world_size=ranks, timeout=patience)
        torch.manual_seed(1)
        model = Model(asked).to(device)
        spread = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
        path, begun = newest(asked.checkpoints), 0
        if path:
            state = torch.load(path, map_location=device, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            begun = state["step"]
        if rank == 0:
            print(f"{ranks} ranks, attempt {call_wrapper.iteration}, begins after step {begun}", flush=True)
        for step in range(begun + 1, asked.steps + 1):
            before = time.monotonic()
            if step == asked.fail_at and rank == 1 and call_wrapper.iteration == 0:
                raise RuntimeError(f"rank 1 fails at step {step}, as --fail-at asks")
            tokens = batch_of(step, rank, asked).to(device)
            logits = spread(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            rate = asked.batch * ranks / (time.monotonic() - before)
            call_wrapper.ping()
            if rank == 0:
                rates = f"Speed: {rate:.2f} samples/sec, lr: {asked.lr:.6f}, tokens/s: {rate * asked.context:.0f}"
                print(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')} I [train.py] Batch {step} Loss: {total.item() / ranks:.5f}, {rates}", flush=True
                )
                saver.finish()
                if step % asked.checkpoint_freq == 0 or step == asked.steps:
                    saver.save(step, model, optimizer)
        dist.barrier()
        dist.destroy_process_group()


def main():
    asked = arguments()
    port, rank = int(os.environ["MASTER_PORT"]), int(os.environ["RANK"])
    # The extension has the port itself; the ranks of an attempt meet in a store beside it, which outlives the attempt.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port + 1, int(os.environ["WORLD_SIZE"]), rank == 0, multi_tenant=True)
    saver = Saver(asked.checkpoints, torch.cuda.is_available())
    hang = datetime.timedelta(seconds=asked.hang_after)
    wrapped = inprocess.Wrapper(
        initialize=inprocess.initialize.RetryController(max_iterations=asked.restarts + 1),
        # Nothing wakes a rank that waits in gloo; its own timeout does.
        abort=inprocess.abort.AbortTorchDistributed() if torch.cuda.is_available() else None,
        health_check=inprocess.health_check.CudaHealthCheck() if torch.cuda.is_available() else None,
        soft_timeout=hang,
        hard_timeout=1.5 * hang,
        barrier_timeout=3 * hang,
        completion_timeout=3 * hang,
    )(train)
    wrapped(asked, store, saver)
    saver.close()


if __name__ == "__main__":
    main()
