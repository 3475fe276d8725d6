# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A small transformer by Composer's Trainer: DDP, its checkpoints, its console log and its speed monitor.

It does not use autoresume. With that, Composer 0.32.1 makes one signal file for all nodes in the folder of the checkpoints, and each node
removes it. Where the nodes share the folder, all but the first fail because it is gone.
"""

import argparse
import os
import random
import sys
from pathlib import Path

# Composer reads the number of the node, which not every launcher gives.
os.environ.setdefault("NODE_RANK", str(int(os.environ.get("RANK", "0")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))

import torch
from composer import Callback, ComposerModel, DataSpec, Trainer
from composer.callbacks import SpeedMonitor
from composer.utils import dist, reproducibility
from torch import nn
from torch.nn import functional

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


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _each in range(2))
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        samples, context, width = x.shape
        query, key, value = self.attention(self.norms[0](x)).view(samples, context, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, context, width))
        return x + self.feed(self.norms[1](x))


class Model(ComposerModel):
    """Composer asks for forward() and loss() of a batch; a batch is (samples, context + 1)."""

    def __init__(self, asked):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, asked.width), nn.Embedding(asked.context, asked.width)
        self.blocks = nn.Sequential(*(Block(asked.width, asked.heads) for _each in range(asked.layers)))
        self.head = nn.Sequential(nn.LayerNorm(asked.width), nn.Linear(asked.width, VOCABULARY))

    def forward(self, batch):
        inputs = batch[:, :-1]
        return self.head(self.blocks(self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))))

    def loss(self, outputs, batch):
        return functional.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())


class Samples(torch.utils.data.Dataset):
    """Sample number `place`, the same on each rank: a token mostly decides the next one."""

    def __init__(self, count, context):
        self.count, self.context = count, context
        self.follows = random.Random(2).sample(range(VOCABULARY), VOCABULARY)

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        draw = random.Random(place)
        tokens = [draw.randrange(VOCABULARY)]
        for _each in range(self.context):
            tokens.append(draw.randrange(VOCABULARY) if draw.random() < RANDOM else self.follows[tokens[-1]])
        return torch.tensor(tokens)


class Begins(Callback):
    """Composer's own line about what it loaded is of a log level that it does not show."""

    def fit_start(self, state, logger):
        del logger
        if dist.get_global_rank() == 0:
            print(f"{dist.get_world_size()} processes, begins after step {int(state.timestamp.batch)}", flush=True)


def main():
    asked = arguments()
    device = "gpu" if torch.cuda.is_available() else "cpu"
    dist.initialize_dist(device)
    reproducibility.seed_all(1)
    model = Model(asked)
    samples = Samples(asked.batch * dist.get_world_size() * asked.steps, asked.context)
    loader = torch.utils.data.DataLoader(samples, asked.batch, sampler=dist.get_sampler(samples, shuffle=True))
    newest = asked.checkpoints / "latest-rank0.pt"
    trainer = Trainer(
        model=model,
        device=device,
        train_dataloader=DataSpec(loader, get_num_tokens_in_batch=lambda batch: batch[:, 1:].numel()),
        optimizers=torch.optim.AdamW(model.parameters(), lr=asked.lr),
        max_duration=f"{asked.steps}ba",
        callbacks=[SpeedMonitor(window_size=10), Begins()],
        load_path=str(newest) if newest.exists() else None,
        save_folder=str(asked.checkpoints),
        save_overwrite=True,
        save_interval=f"{asked.checkpoint_freq}ba",
        progress_bar=False,
        log_to_console=True,
        console_log_interval="1ba",
        console_stream=sys.stdout,
    )
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    main()
