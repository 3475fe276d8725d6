# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A small SPMD program: one jit over all devices of all processes. XLA puts in the collectives that the shardings need.

Weights and moments are divided over the devices, and so is each batch. Checkpoints are whole arrays in one file; a run that starts again
with the same folder goes on from the newest.
"""

import argparse
import os
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

VOCABULARY = 256
RANDOM = 0.1  # share of the tokens that do not follow from the token before


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--checkpoint-freq", type=int, default=20)
    return parser.parse_args()


def meet():
    """Join the processes that the launcher started, by the variables that torchrun gives."""
    ranks, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    # torchrun itself listens on MASTER_PORT.
    address = "%s:%d" % (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)
    jax.distributed.initialize(address, num_processes=ranks, process_id=int(os.environ["RANK"]), local_device_ids=[local])


def initial(asked):
    """{name: array} of the weights, the same on each process."""
    draw = np.random.default_rng(1)
    width = asked.width

    def matrix(*shape):
        return draw.normal(0, 0.02, shape).astype(np.float32)

    weights = {"embedding": matrix(VOCABULARY, width), "position": matrix(asked.context, width), "head": matrix(width, VOCABULARY)}
    for number in range(asked.layers):
        weights |= {f"attention{number}": matrix(width, 3 * width), f"out{number}": matrix(width, width)}
        weights |= {f"up{number}": matrix(width, 4 * width), f"down{number}": matrix(4 * width, width)}
    return weights


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def loss_of(weights, tokens, asked):
    """Mean cross entropy of the next token; tokens: (samples, context + 1)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    samples, context = inputs.shape
    x = weights["embedding"][inputs] + weights["position"]
    mask = jnp.where(jnp.tril(jnp.ones((context, context), bool)), 0.0, -1e9)
    for number in range(asked.layers):
        joined = (norm(x) @ weights[f"attention{number}"]).reshape(samples, context, 3, asked.heads, -1)
        query, key, value = (joined[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        scores = query @ key.transpose(0, 1, 3, 2) / jnp.sqrt(query.shape[-1]) + mask
        mixed = (jax.nn.softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(samples, context, -1)
        x = x + mixed @ weights[f"out{number}"]
        x = x + jax.nn.gelu(norm(x) @ weights[f"up{number}"]) @ weights[f"down{number}"]
    logits = jax.nn.log_softmax(norm(x) @ weights["head"])
    return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], axis=-1))


def update(state, tokens, asked):
    """(state after one step of Adam, loss)."""
    loss, gradients = jax.value_and_grad(loss_of)(state["weights"], tokens, asked)
    step = state["step"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["second"], gradients)

    def moved(weight, m, v):
        return weight - asked.lr * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.95**step)) + 1e-8)

    weights = jax.tree.map(moved, state["weights"], first, second)
    return {"weights": weights, "first": first, "second": second, "step": step}, loss


def batch_of(step, asked):
    """The samples of this process: a token mostly decides the next one."""
    follows = np.random.default_rng(2).permutation(VOCABULARY)
    draw = np.random.default_rng([3, step, jax.process_index()])
    tokens = np.empty((asked.batch, asked.context + 1), np.int32)
    tokens[:, 0] = draw.integers(VOCABULARY, size=asked.batch)
    for place in range(asked.context):
        free = draw.random(asked.batch) < RANDOM
        tokens[:, place + 1] = np.where(free, draw.integers(VOCABULARY, size=asked.batch), follows[tokens[:, place]])
    return tokens


def newest(folder):
    """The newest complete checkpoint, None without one."""
    found = [path for path in folder.glob("step-*.npz") if re.fullmatch(r"step-\d+\.npz", path.name)]
    return max(found, key=lambda path: int(path.stem.split("-")[1]), default=None)


def save(state, step, asked):
    parts = ("weights", "first", "second")
    whole = multihost_utils.process_allgather({part: state[part] for part in parts}, tiled=True)
    if jax.process_index() == 0:
        asked.checkpoints.mkdir(parents=True, exist_ok=True)
        arrays = {f"{part}/{name}": value for part in parts for name, value in whole[part].items()}
        half = asked.checkpoints / f"half-{step}.npz"
        np.savez(half, step=step, **arrays)
        half.rename(asked.checkpoints / f"step-{step}.npz")


def main():
    asked = arguments()
    meet()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def placed(value):
        value = np.asarray(value)
        fits = value.ndim and value.shape[0] % mesh.size == 0
        return jax.make_array_from_callback(value.shape, divided if fits else everywhere, lambda index: value[index])

    weights = initial(asked)
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    whole = {"weights": weights, "first": zeros, "second": zeros, "step": np.int32(0)}
    path = newest(asked.checkpoints)
    if path:
        with np.load(path) as kept:
            whole = {part: {name: kept[f"{part}/{name}"] for name in weights} for part in ("weights", "first", "second")}
            whole["step"] = np.int32(kept["step"])
    state = jax.tree.map(placed, whole)
    begun = int(whole["step"])
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {mesh.size} devices, begins after step {begun}", flush=True)
    advance = jax.jit(lambda state, tokens: update(state, tokens, asked), donate_argnums=0)
    samples = asked.batch * jax.process_count()
    for step in range(begun + 1, asked.steps + 1):
        before = time.monotonic()
        tokens = jax.make_array_from_process_local_data(divided, batch_of(step, asked), (samples, asked.context + 1))
        state, loss = advance(state, tokens)
        loss = float(loss)
        rate = samples / (time.monotonic() - before)
        if jax.process_index() == 0:
            line = f"Batch {step} Loss: {loss:.5f}, Speed: {rate:.2f} samples/sec, lr: {asked.lr:.6f}, tokens/s: {rate * asked.context:.0f}"
            print(time.strftime("%Y-%m-%d %H:%M:%S"), "I [train.py]", line, flush=True)
        if step % asked.checkpoint_freq == 0 or step == asked.steps:
            save(state, step, asked)


if __name__ == "__main__":
    main()
