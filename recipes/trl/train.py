# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Teaches a language model mathematics with TRL's GRPO. It takes every argument of GRPOConfig, and those of Asked.

The loss of GRPO is near zero from the first step to the last, so it says nothing. What falls is the share of the reward that is missed.
"""

import importlib
import time
from dataclasses import dataclass, field
from pathlib import Path

from datasets import load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, TrlParser


@dataclass
class Asked:
    model: str = field(metadata={"help": "a name of the hub or a folder"})
    dataset: str = field(default="trl-lib/DeepMath-103K", metadata={"help": "a name of the hub or a file .json, with the column prompt"})
    reward: str = field(default="trl.rewards.accuracy_reward", metadata={"help": "module.function; it gives 0 to 1"})


class Lines(TrainerCallback):
    """One line for each step: TRL's own has neither the number of the step nor a rate."""

    def __init__(self):
        self.before, self.tokens = time.monotonic(), 0

    def on_log(self, args, state, control, logs=None, **_more):
        if not logs or "reward" not in logs or not state.is_world_process_zero:
            return
        now, tokens = time.monotonic(), float(logs["num_tokens"])
        seconds, new = now - self.before, tokens - self.tokens
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        rates = f"Speed: {samples / seconds:.2f} samples/sec, tokens/s: {new / seconds:.0f}"
        print(f"Batch {state.global_step} Missed reward: {1 - float(logs['reward']):.5f}, {rates}", flush=True)
        self.before, self.tokens = now, tokens


def main():
    asked, config = TrlParser((Asked, GRPOConfig)).parse_args_and_config()
    config.logging_steps, config.report_to, config.disable_tqdm = 1, [], True
    module, _dot, function = asked.reward.rpartition(".")
    if asked.dataset.endswith(".json"):
        data = load_dataset("json", data_files=asked.dataset, split="train")
    else:
        data = load_dataset(asked.dataset, split="train")
    trainer = GRPOTrainer(
        model=asked.model,
        reward_funcs=getattr(importlib.import_module(module), function),
        args=config,
        train_dataset=data,
        callbacks=[Lines()],
    )
    trainer.train(resume_from_checkpoint=any(Path(config.output_dir).glob("checkpoint-*/trainer_state.json")) or None)


if __name__ == "__main__":
    main()
