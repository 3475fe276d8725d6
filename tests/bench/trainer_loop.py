# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the trainer adds to the work itself: in the loop, in a checkpoint, in the data. Prints one JSON object.

python tests/bench/trainer_loop.py   (in an environment with torch; about two minutes on one quiet core)
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from trainer import metrics, optim
from trainer.checkpoint.saver import Saver, state_of
from trainer.checkpoint.store import open_store
from trainer.config import TrainConfig
from trainer.data.loader import Loader, open_source
from trainer.data.tokens import Tokens, prepare, sentences
from trainer.initial import initial_value
from trainer.launch import Ranks, StopFlag, join
from trainer.llama import Llama
from trainer.parallel.build import build
from trainer.train import Run, read_shape
from trainer.watch import Watch

ROUNDS = 5  # of a save; the best of each side counts, because other work on the machine only slows a round down
WARM = 3  # steps before the clock starts
PAIRS = 40  # steps of each side; the median of their ratios counts
BATCH = 4


class Bare:
    """The shortest loop that trains the same model on the same samples: no ranks, no log, no schedule. Neither loop wraps the
    model, because there is one rank."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        shape = read_shape(config)
        self.model, self.config, self.tokens = Llama(shape), config, BATCH * shape.max_context_width
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                spans = [range(length) for length in parameter.shape]
                seed, std = config.seed, config.initializer_range
                parameter.copy_(initial_value(name, parameter.shape, spans, seed=seed, std=std, device=parameter.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, fused=True)
        source = Tokens(folder, shape.max_context_width, config.seed)
        self.batches = iter([source.samples(range(step * BATCH, (step + 1) * BATCH)) for step in range(WARM + PAIRS)])

    def step(self) -> None:
        samples = next(self.batches)
        (self.model(samples[:, :-1], labels=samples[:, 1:]).sum() / self.tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Pairs:
    """A tracker that makes a bare step after each step of the trainer and times both, so that other work on the machine disturbs both."""

    def __init__(self, bare: Bare) -> None:
        self.bare, self.since = bare, 0.0
        self.seconds: list[tuple[float, float]] = []

    def __call__(self, record: dict[str, float], step: int) -> None:
        ended = time.perf_counter()
        self.bare.step()
        began, self.since = self.since, time.perf_counter()
        if step > WARM:
            self.seconds.append((ended - began, self.since - ended))


def loop(folder: Path) -> dict:
    """The ratio of a trainer's step to a bare one, in turns, for a model whose step takes a few tenths of a second."""
    config = TrainConfig(
        model="tiny",
        max_context_width=256,
        hidden_width=384,
        intermediate_size=1024,
        dataset_path=str(folder),
        train_batch_size=BATCH,
        max_steps=WARM + PAIRS,
        backend="gloo",
        jsonl=str(folder / "train.jsonl"),
    )
    device, backend = join(Ranks(), "gloo", 60)
    watch = Watch(folder / "hang", config.hang_timeout_s)
    training = Run(config, Ranks(), read_shape(config), device=device, backend=backend, stop=StopFlag(None), watch=watch)
    pairs = Pairs(Bare(folder, config))
    training.observer.trackers.append(pairs)
    training.train()
    dist.destroy_process_group()
    trainer, bare = (statistics.median(column) for column in zip(*pairs.seconds, strict=True))
    ratio = statistics.median(one / other for one, other in pairs.seconds)
    return {"trainer_step_s": round(trainer, 4), "bare_step_s": round(bare, 4), "loop_overhead": round(ratio, 4)}


def stall(folder: Path) -> dict:
    """How long an asynchronous and a synchronous save stop the training: about 350 MB of weights and optimizer state."""
    device, _ = join(Ranks(), "gloo", 60)
    config = TrainConfig(model="tiny", hidden_width=768, intermediate_size=3072, num_heads=12, num_key_value_heads=4)
    model = build(read_shape(config), config, device).model
    optimizer = optim.AdamW(model, config)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    store = open_store(str(folder / "checkpoints"))
    savers = {kind: Saver(store, 1, kind) for kind in (False, True)}
    for step in range(2 * ROUNDS + 2):
        kind = step % 2 == 1
        began = time.perf_counter()
        savers[kind].save(step, state_of(model, optimizer), {"identity": {}})
        seconds[kind].append(time.perf_counter() - began)
        savers[kind].wait()
    dist.destroy_process_group()
    # The first asynchronous save allocates the memory that the later ones reuse.
    synchronous, asynchronous = min(seconds[False]), min(seconds[True][1:])
    return {"save_s": round(synchronous, 4), "stall_s": round(asynchronous, 4), "stall_to_save": round(asynchronous / synchronous, 4)}


def tokens_per_s(loader: Loader, batches: int) -> float:
    loader.next()
    began = time.perf_counter()
    tokens = sum(loader.next()[0].numel() for _ in range(batches))
    return tokens / (time.perf_counter() - began)


def texts(count: int) -> Iterator[str]:
    words = sentences(1)
    for _ in range(count):
        yield "".join(next(words) for _ in range(20))


def loader(folder: Path) -> dict:
    """Tokens a second on one core: of the pre-tokenised loader, of streamed text, and of the tokenizer alone."""
    ready = Loader(Tokens(folder, 4096, 1), 0, 1, 8)
    found = {"loader_tokens_per_s": round(max(tokens_per_s(ready, 100) for _ in range(3)))}
    try:
        import datasets  # noqa: F401
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ModuleNotFoundError:
        return found
    from trainer.data.streams import DOCUMENTS
    from trainer.data.tokenizer import Fast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(texts(200), trainers.BpeTrainer(vocab_size=4000, special_tokens=["</s>"], show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text").mkdir()
    documents = list(texts(8000))
    (folder / "text" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    bare, streamed = [], []
    for _ in range(3):
        fast = Fast(folder / "tokenizer.json", None)
        began = time.perf_counter()
        ids = sum(
            len(document) for start in range(0, len(documents), DOCUMENTS) for document in fast.encode(documents[start : start + DOCUMENTS])
        )
        bare.append(ids / (time.perf_counter() - began))
        config = TrainConfig(dataset_path=str(folder / "text"), tokenizer=str(folder / "tokenizer.json"))
        streamed.append(tokens_per_s(Loader(open_source(config, 4000, 2048), 0, 1, 8), ids // (2048 * 8) - 6))
    return found | {
        "tokenizer_tokens_per_s": round(max(bare)),
        "streamed_tokens_per_s": round(max(streamed)),
        "streamed_to_tokenizer": round(max(streamed) / max(bare), 3),
    }


def main() -> None:
    torch.set_num_threads(1)
    metrics.logger().handlers[0].setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, 5_000_000, 1, 256)
        parts = sys.argv[1:] or ["loop", "stall", "loader"]
        measured: dict = {}
        for part in parts:
            measured |= {"loop": loop, "stall": stall, "loader": loader}[part](folder)
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    import os

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one core for both sides
    main()
    os._exit(0)  # as the trainer leaves: gloo's threads may abort an interpreter that ends
