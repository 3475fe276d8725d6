# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Pre-trains a model of NeMo 2 by NeMo's own recipe, with NeMo-run in the process of this rank."""

import argparse
import importlib


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a module of nemo.collections.llm.recipes")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--procs-per-node", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--context-parallel", type=int, default=1)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--checkpoint-freq", type=int, default=50)
    return parser.parse_args(words)


def adjusted(recipe, asked):
    """NeMo's recipe with what this run asks for."""
    recipe.trainer.max_steps = asked.steps
    recipe.trainer.log_every_n_steps = 1
    # NeMo names a checkpoint by the loss of a validation, so it saves after one.
    recipe.trainer.limit_val_batches = 1
    recipe.trainer.val_check_interval = asked.checkpoint_freq
    recipe.trainer.strategy.tensor_model_parallel_size = asked.tensor
    recipe.trainer.strategy.pipeline_model_parallel_size = asked.pipeline
    # Without pipeline stages there is nothing to interleave.
    recipe.trainer.strategy.virtual_pipeline_model_parallel_size = None
    recipe.trainer.strategy.context_parallel_size = asked.context_parallel
    recipe.trainer.strategy.sequence_parallel = asked.tensor > 1
    recipe.data.micro_batch_size = asked.micro_batch
    recipe.data.global_batch_size = asked.global_batch
    recipe.data.seq_length = asked.context
    recipe.model.config.seq_length = asked.context
    recipe.log.ckpt.every_n_train_steps = asked.checkpoint_freq
    recipe.log.ckpt.train_time_interval = None
    recipe.log.ckpt.save_top_k = 2
    recipe.log.tensorboard = None
    recipe.resume.resume_if_exists = True
    recipe.resume.resume_ignore_no_checkpoint = True
    return recipe


def main():
    asked = arguments()
    import nemo_run

    recipes = importlib.import_module(f"nemo.collections.llm.recipes.{asked.model}")
    made = recipes.pretrain_recipe(dir=asked.checkpoints, name=asked.model, num_nodes=asked.nodes, num_gpus_per_node=asked.procs_per_node)
    nemo_run.run(adjusted(made, asked), direct=True)


if __name__ == "__main__":
    main()
