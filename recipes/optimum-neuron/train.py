# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fine-tunes a language model on Trainium with LoRA and optimum-neuron. It takes every argument of NeuronSFTConfig, and those of Asked."""

import time
from dataclasses import dataclass, field

import torch
from datasets import load_dataset
from optimum.neuron import NeuronHfArgumentParser, NeuronSFTConfig, NeuronSFTTrainer
from optimum.neuron.models.training import NeuronModelForCausalLM
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback


@dataclass
class Asked:
    model: str = field(metadata={"help": "a name of the hub or a folder"})
    dataset: str = field(default="databricks/databricks-dolly-15k", metadata={"help": "with the columns instruction, context and response"})
    rank: int = field(default=16, metadata={"help": "of LoRA"})


class Lines(TrainerCallback):
    """One line for each step: the Trainer's own has neither the number of the step nor a rate."""

    def __init__(self, samples):
        self.before, self.samples, self.step = time.monotonic(), samples, 0

    def on_log(self, args, state, control, logs=None, **_more):
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        now, steps = time.monotonic(), state.global_step - self.step
        rate = self.samples * steps / (now - self.before)
        print(f"Batch {state.global_step} Loss: {float(logs['loss']):.5f}, Speed: {rate:.2f} samples/sec", flush=True)
        self.before, self.step = now, state.global_step


def text_of(sample):
    """One example as text; the tokenizer's own format of a conversation is not needed for a base model."""
    context = f"\n\n### Context\n{sample['context']}" if sample["context"] else ""
    return f"### Instruction\n{sample['instruction']}{context}\n\n### Answer\n{sample['response']}"


def main():
    asked, config = NeuronHfArgumentParser((Asked, NeuronSFTConfig)).parse_args_into_dataclasses()
    config.logging_steps, config.report_to, config.disable_tqdm = 1, [], True
    # Its world size counts the copies of the model.
    samples = config.per_device_train_batch_size * config.gradient_accumulation_steps * config.world_size
    model = NeuronModelForCausalLM.from_pretrained(asked.model, config.trn_config, torch_dtype=torch.bfloat16)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    trainer = NeuronSFTTrainer(
        model=model,
        args=config,
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        train_dataset=load_dataset(asked.dataset, split="train"),
        formatting_func=text_of,
        peft_config=LoraConfig(r=asked.rank, lora_alpha=2 * asked.rank, lora_dropout=0.05, target_modules=targets, task_type="CAUSAL_LM"),
        callbacks=[Lines(samples)],
    )
    # Its trainer refuses to resume.
    trainer.train()


if __name__ == "__main__":
    main()
