#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# train.sh CORES NODES CACHE ARGUMENTS: compiles and trains. It runs once on each node; torchrun starts a rank for each core.
set -euo pipefail
cores=$1 nodes=$2 cache=$3
shift 3
export NEURON_COMPILE_CACHE_URL=$cache NEURON_CC_FLAGS="--model-type transformer" NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS=3
export NEURON_RT_NUM_CORES=$cores MALLOC_ARENA_MAX=64
train=(torchrun --nnodes "$nodes" --node_rank "$RANK" --nproc_per_node "$cores" --master_addr "$MASTER_ADDR" --master_port $((MASTER_PORT + 1))
  "$(dirname "$0")/train.py" "$@")
# The ranks of this node get their own from torchrun. A torchrun that started this script has the port itself, and left its own settings.
unset LOCAL_RANK LOCAL_WORLD_SIZE WORLD_SIZE "${!TORCHELASTIC_@}" "${!PET_@}"
# Ten steps that only collect the graphs, then the compiler. What the cache has is not compiled again.
neuron_parallel_compile "${train[@]}" --max_steps 10 --save_strategy no --output_dir "$(mktemp -d)"
exec "${train[@]}"
