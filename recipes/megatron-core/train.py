# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A GPT of megatron-core with tensor parallelism over all ranks or some of them. Options and log line are those of Megatron-LM.

Without a GPU, stand_in() answers what megatron-core asks of CUDA. It proves layout, checkpoints and losses, and no speed.
"""

import argparse
import contextlib
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import random as tensor_random
from megatron.core.transformer import TransformerConfig

VOCABULARY = 256
RANDOM = 0.1  # share of the tokens that do not follow from the token before
LABEL = "train.py stands for the GPU: megatron-core on CPUs and gloo. Its speed says nothing about GPUs."
TRACKER = "latest_checkpointed_iteration.txt"  # Megatron-LM's name for the file with the newest complete checkpoint


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-iters", type=int, default=60)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--seq-length", type=int, default=128)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--num-attention-heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--tensor-model-parallel-size", type=int, default=2)
    parser.add_argument("--save", type=Path, required=True, help="folder of the checkpoints, from whose newest it resumes")
    parser.add_argument("--save-interval", type=int, default=20)
    return parser.parse_args()


def stand_in():
    """Answer what megatron-core asks of CUDA on the way of this program."""
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    torch.cuda.synchronize = lambda *_args: None
    # The tracker keeps a state of CUDA's generator for each region. CPUs have one generator, and dropout is off.
    tensor_random.CudaRNGStatesTracker.fork = lambda self, *_args, **_named: contextlib.nullcontext()


def batch_of(step, part, asked):
    """(tokens, labels) of a data-parallel part: a token mostly decides the next one."""
    follows = random.Random(2).sample(range(VOCABULARY), VOCABULARY)
    draw, rows = random.Random(step * 1000 + part), []
    for _sample in range(asked.micro_batch_size):
        row = [draw.randrange(VOCABULARY)]
        for _token in range(asked.seq_length):
            row.append(draw.randrange(VOCABULARY) if draw.random() < RANDOM else follows[row[-1]])
        rows.append(row)
    tokens = torch.tensor(rows, device=torch.cuda.current_device())
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def states(model, optimizer, loading):
    """Weights and moments with the shards' places in the whole, as dist_checkpointing wants them."""
    weights = model.sharded_state_dict()
    if loading:
        # The moments exist after the first step only; a step with gradients of 0 makes them, and loading replaces them.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    moments = optimizer.state_dict()
    shards = get_param_id_to_sharded_param_map(weights, (parameter for group in optimizer.param_groups for parameter in group["params"]))
    optim_state_to_sharding_state(moments, shards, exclude_keys=("step",))
    return {"weights": weights, "moments": moments}


def save(model, optimizer, step, asked):
    folder = asked.save / f"iter_{step:07d}"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(states(model, optimizer, loading=False), str(folder))
    dist.barrier()
    if dist.get_rank() == 0:
        half = asked.save / f"{TRACKER}.half"
        half.write_text(str(step))
        half.rename(asked.save / TRACKER)


def resume(model, optimizer, asked):
    """The step of the newest complete checkpoint after loading it, 0 without one."""
    tracker = asked.save / TRACKER
    if not tracker.exists():
        return 0
    step = int(tracker.read_text())
    loaded = dist_checkpointing.load(states(model, optimizer, loading=True), str(asked.save / f"iter_{step:07d}"))
    model.load_state_dict(loaded["weights"])
    # Adam's own count of steps is no tensor with a place in the whole, so states() leaves it out.
    for kept in loaded["moments"]["state"].values():
        kept["step"] = torch.tensor(float(step))
    optimizer.load_state_dict(loaded["moments"])
    return step


def main():
    asked = arguments()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        stand_in()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=asked.tensor_model_parallel_size)
    tensor_random.model_parallel_cuda_manual_seed(1) if on_gpu else torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=asked.num_layers,
        hidden_size=asked.hidden_size,
        num_attention_heads=asked.num_attention_heads,
        tensor_model_parallel_size=asked.tensor_model_parallel_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=not on_gpu,
        # These kernels are CUDA's.
        bias_dropout_fusion=on_gpu,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=on_gpu,
    )
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=VOCABULARY, max_sequence_length=asked.seq_length
    ).to(torch.cuda.current_device())
    optimizer = torch.optim.Adam(model.parameters(), lr=asked.lr)
    begun = resume(model, optimizer, asked)
    part, parts = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    first = dist.get_rank() == 0
    if first:
        if not on_gpu:
            print(LABEL, flush=True)
        shard = tuple(model.output_layer.weight.shape)
        layout = f"tensor parallel {asked.tensor_model_parallel_size}, data parallel {parts}, {shard} of the output layer on a rank"
        print(f"{dist.get_world_size()} processes, {layout}, begins after step {begun}", flush=True)
    samples = asked.micro_batch_size * parts
    # Without one, megatron-core would make the mask on device "cuda". True is a place that is not seen.
    mask = torch.ones(1, 1, asked.seq_length, asked.seq_length, dtype=torch.bool, device=torch.cuda.current_device()).triu(1)
    places = torch.arange(asked.seq_length, device=torch.cuda.current_device()).expand(asked.micro_batch_size, -1)
    for step in range(begun + 1, asked.train_iters + 1):
        before = time.monotonic()
        tokens, labels = batch_of(step, part, asked)
        loss = model(tokens, places, attention_mask=mask, labels=labels).mean()
        loss.backward()
        if parts > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
                parameter.grad /= parts
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, group=parallel_state.get_data_parallel_group())
        milliseconds = 1000 * (time.monotonic() - before)
        if first:
            line = f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {step:8d}/{asked.train_iters:8d}"
            line += f" | consumed samples: {step * samples:12d}"
            line += (
                f" | elapsed time per iteration (ms): {milliseconds:.1f} | learning rate: {asked.lr:.6E} | global batch size: {samples:5d}"
            )
            print(f"{line} | lm loss: {mean.item() / parts:.6E} |", flush=True)
        if step % asked.save_interval == 0 or step == asked.train_iters:
            save(model, optimizer, step, asked)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
