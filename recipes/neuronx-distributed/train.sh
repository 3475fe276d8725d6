#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# train.sh name=value ... ARGUMENTS: tokenises, compiles and trains. It runs once on each node; torchrun starts a rank for each core.
set -euo pipefail
here=$(dirname "$0")
example=/opt/neuronx-distributed/examples/training/llama
arguments=()
for word in "$@"; do
  case $word in
    cores=* | nodes=* | batch=* | global_batch=* | tp=* | context=* | config=* | dataset=* | tokenizer=* | tokens=* | cache=*) declare "$word" ;;
    -* | [0-9]* | /* | latest_if_exists) arguments+=("$word") ;;
    *) echo "train.sh: the word $word is unknown; give name=value or an argument of tp_zero1_llama_hf_pretrain.py" >&2 && exit 64 ;;
  esac
done
: "${cores:?}" "${nodes:?}" "${batch:?}" "${global_batch:?}" "${tp:?}" "${context:?}" "${config:?}" "${dataset:?}" "${tokenizer:?}" "${tokens:?}" "${cache:?}"
copies=$((cores * nodes / tp))
if ((copies < 1 || cores * nodes % tp || global_batch % (batch * copies))); then
  echo "train.sh: global_batch=$global_batch is no multiple of batch=$batch times $copies copies of the model; change global_batch or tp" >&2
  exit 64
fi

# 1. The first node tokenises; the folder has its name once it is complete.
if ((RANK == 0)); then
  python3 "$here/tokens.py" --dataset "$dataset" --tokenizer "$tokenizer" --context "$context" --into "$tokens"
fi
until [ -d "$tokens" ]; do sleep 10; done

export NEURON_COMPILE_CACHE_URL=$cache NEURON_CC_FLAGS="--model-type transformer" NEURON_FUSE_SOFTMAX=1
export NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS=3 NEURON_RT_NUM_CORES=$cores MALLOC_ARENA_MAX=64
export PYTHONPATH="$example/tp_zero1_llama_hf_pretrain:$example${PYTHONPATH:+:$PYTHONPATH}"
train=(torchrun --nnodes "$nodes" --node_rank "$RANK" --nproc_per_node "$cores" --master_addr "$MASTER_ADDR" --master_port $((MASTER_PORT + 1))
  "$example/tp_zero1_llama_hf_pretrain/tp_zero1_llama_hf_pretrain.py" --model_path "$example/tp_zero1_llama_hf_pretrain/$config"
  --data_dir "$tokens" --tensor_parallel_size "$tp" --batch_size "$batch" --grad_accum_usteps $((global_batch / batch / copies))
  --seq_len "$context" "${arguments[@]}")
scratch=$(mktemp -d)
# The ranks of this node get their own from torchrun. A torchrun that started this script has the port itself, and left its own settings.
unset LOCAL_RANK LOCAL_WORLD_SIZE WORLD_SIZE "${!TORCHELASTIC_@}" "${!PET_@}"

# 2. Two steps that only collect the graphs, then the compiler. What the cache has is not compiled again.
neuron_parallel_compile "${train[@]}" --steps_this_run 2 --loading_step -1 --output_dir "$scratch" --metrics_file "$scratch/compile.json"

# 3. The training itself.
exec "${train[@]}" --output_dir "$scratch" --metrics_file "$scratch/results.json"
