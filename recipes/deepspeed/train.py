# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Pre-trains a Llama with DeepSpeed's ZeRO. Whatever gives a rank torchrun's variables can start it."""

import argparse
import time
from pathlib import Path

import deepspeed
import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator
from transformers import LlamaConfig, LlamaForCausalLM

RANDOM = 0.25  # of the made tokens nobody can foretell this share


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 2), ("hidden", 64), ("heads", 4), ("kv-heads", 4), ("ffn", 192), ("vocabulary", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank at once")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=2, help="ZeRO: 1 divides the optimizer, 2 gradients, 3 weights")
    parser.add_argument("--offload", action="store_true", help="the optimizer works in the host's memory")
    parser.add_argument("--recompute", action="store_true", help="the activations of each layer")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dataset", default="made", help="made, or name:configuration of a data set with a column text")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--checkpoint-freq", type=int, default=50)
    return parser.parse_args()


def settings(asked, cpu):
    """DeepSpeed's configuration."""
    divided = {"stage": asked.stage, "contiguous_gradients": True, "overlap_comm": not cpu}
    if asked.offload:
        divided["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    adam = {"lr": asked.lr, "betas": [0.9, 0.95], "weight_decay": 0.1}
    if cpu:
        # DeepSpeed's own Adam would be compiled first.
        adam["torch_adam"] = True
    return {
        "train_micro_batch_size_per_gpu": asked.batch,
        "gradient_accumulation_steps": asked.accumulate,
        "optimizer": {"type": "AdamW", "params": adam},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_max_lr": asked.lr, "warmup_num_steps": asked.warmup, "total_num_steps": asked.steps},
        },
        "bf16": {"enabled": not cpu},
        "gradient_clipping": 1.0,
        "zero_optimization": divided,
        "steps_per_print": 1 << 30,
    }


def made(asked, rank, first):
    """Batches in which a token mostly decides the next one; the same for the same step."""
    follows = torch.randperm(asked.vocabulary, generator=torch.Generator().manual_seed(2))
    number = first * asked.accumulate
    while True:
        draw = torch.Generator().manual_seed(1_000_003 * rank + number)
        tokens = torch.randint(asked.vocabulary, (asked.batch, asked.context), generator=draw)
        free = torch.rand(asked.batch, asked.context, generator=draw) < RANDOM
        for place in range(1, asked.context):
            tokens[:, place] = torch.where(free[:, place], tokens[:, place], follows[tokens[:, place - 1]])
        yield tokens
        number += 1


def streamed(asked, rank, ranks):
    """Batches of packed windows of a data set that is read from the hub; each rank reads its own share."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    name, _colon, configuration = asked.dataset.partition(":")
    tokenizer = AutoTokenizer.from_pretrained(asked.tokenizer)
    if len(tokenizer) > asked.vocabulary:
        raise SystemExit(f"train.py: {asked.tokenizer} has {len(tokenizer)} tokens; raise --vocabulary {asked.vocabulary} to that.")
    windows, tokens = [], []
    while True:
        for document in load_dataset(name, configuration or None, split="train", streaming=True).shard(ranks, rank):
            tokens += [*tokenizer(document["text"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            while len(tokens) >= asked.context:
                windows.append(tokens[: asked.context])
                tokens = tokens[asked.context :]
            while len(windows) >= asked.batch:
                yield torch.tensor(windows[: asked.batch])
                windows = windows[asked.batch :]


def main():
    asked = arguments()
    cpu = get_accelerator().device_name() == "cpu"
    deepspeed.init_distributed()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = settings(asked, cpu)
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=asked.vocabulary,
        hidden_size=asked.hidden,
        intermediate_size=asked.ffn,
        num_hidden_layers=asked.layers,
        num_attention_heads=asked.heads,
        num_key_value_heads=asked.kv_heads,
        max_position_embeddings=asked.context,
        use_cache=False,
    )
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=asked.stage == 3):
        model = LlamaForCausalLM(shape)
    if asked.recompute:
        model.gradient_checkpointing_enable()
    engine, _optimizer, _loader, _scheduler = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    # DeepSpeed writes the file `latest` after all ranks have written their parts.
    if (asked.checkpoints / "latest").exists():
        engine.load_checkpoint(str(asked.checkpoints))
    begun = engine.global_steps
    if rank == 0:
        print(f"{ranks} ranks, ZeRO stage {asked.stage}, begins after step {begun}", flush=True)
    batches = made(asked, rank, begun) if asked.dataset == "made" else streamed(asked, rank, ranks)
    samples = asked.batch * asked.accumulate * ranks
    for step in range(begun + 1, asked.steps + 1):
        before, total = time.monotonic(), torch.zeros(1, device=engine.device)
        for _part in range(asked.accumulate):
            tokens = next(batches).to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / asked.accumulate
        dist.all_reduce(total)
        rate = samples / (time.monotonic() - before)
        if rank == 0:
            rates = f"Speed: {rate:.2f} samples/sec, lr: {engine.get_lr()[0]:.6f}, tokens/s: {rate * asked.context:.0f}"
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} I [train.py] Batch {step} Loss: {total.item() / ranks:.5f}, {rates}", flush=True)
        if step % asked.checkpoint_freq == 0 or step == asked.steps:
            engine.save_checkpoint(str(asked.checkpoints), tag=f"step-{step}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
