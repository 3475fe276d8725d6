# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Stands for the GPU, so that torchtitan 0.3.0 trains its debug model on CPUs. It proves arguments, checkpoints and losses, not speed.

torchtitan asks for a device module, compiles an attention whose backward CPUs lack, and averages gradients with an operation that gloo
lacks. stand_in() answers each of the three, and adds the configuration llama3_cpu with text and a tokenizer that it makes itself.
"""

import json
import os
import random
import types

LABEL = "cpu.py of recipe torchtitan stands for the GPU: CPUs, gloo and plain attention. Memory, speed and MFU say nothing about GPUs."
WORDS = 200
MEMORY = 1 << 30  # what torchtitan divides by for its share of the memory, which means nothing here


def device_module():
    """What torchtitan asks of torch.cuda. Memory is always 0, because PyTorch does not count that of CPUs."""

    def nothing(*_args, **_named):
        return None

    return types.SimpleNamespace(
        set_device=nothing,
        synchronize=nothing,
        empty_cache=nothing,
        reset_peak_memory_stats=nothing,
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda device=None: "CPU in place of a GPU",
        get_device_properties=lambda device=None: types.SimpleNamespace(name="CPU in place of a GPU", total_memory=MEMORY),
        memory_stats=lambda device=None: {},
        memory=types.SimpleNamespace(_record_memory_history=nothing),
    )


def write_assets(folder):
    """Text in which a word mostly decides the next one, and a tokenizer of that text; the same on each node."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 7))) for _each in range(WORDS)]
    follows = draw.sample(words, len(words))
    texts = []
    for _text in range(400):
        place, text = draw.randrange(WORDS), []
        for _word in range(300):
            place = draw.randrange(WORDS) if draw.random() < 0.1 else words.index(follows[place])
            text.append(words[place])
        texts.append(" ".join(text))
    (folder / "text").mkdir(parents=True)
    (folder / "text/data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<begin>", "<end>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    (folder / "tokenizer").mkdir()
    made.save(str(folder / "tokenizer/tokenizer.json"))
    named = {"bos_token": special[0], "eos_token": special[1], "add_bos_token": True, "add_eos_token": True}
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(named))


def stand_in(folder):
    """Prepare torchtitan for CPUs; folder: a new one for text, tokenizer and the cache of Hugging Face's library."""
    # Nodes need no C++ compiler, because torch.compile leaves everything as it is.
    os.environ.update(TORCH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1", HF_HOME=str(folder / "cache"))
    import torch
    from torch import _utils
    from torch.distributed.fsdp import FSDPModule

    # torchtitan asks these two for the device while it is imported.
    module = device_module()
    _utils._get_available_device_type = lambda: "cpu"
    _utils._get_device_module = lambda _kind: module

    from torchtitan.models.common import attention
    from torchtitan.models.llama3 import config_registry, model_registry

    def plain(q, k, v, *, scale=None, enable_gqa=False, **_unused):
        # FlexAttention has no backward on CPUs. This one is causal and ignores the ends of documents in a sample.
        with attention.spmd.no_typecheck():
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
        return mixed, types.SimpleNamespace(lse=None)

    attention.FlexAttention.compiled_flex_attn = staticmethod(plain)

    divide = FSDPModule.set_gradient_divide_factor

    def sum_then_divide(self, factor):
        # FSDP would ask the backend for a sum with a factor in front (PREMUL_SUM), which gloo does not have.
        self.set_force_sum_reduction_for_comms(True)
        return divide(self, factor)

    FSDPModule.set_gradient_divide_factor = sum_then_divide

    def llama3_cpu():
        config = config_registry.llama3_debugmodel()
        config.model_spec = model_registry("debugmodel", attn_backend="flex")
        config.hf_assets_path = str(folder / "tokenizer")
        config.dataloader.dataset_path = str(folder / "text")
        return config

    config_registry.llama3_cpu = llama3_cpu
    write_assets(folder)
    print(LABEL, flush=True)
