#!/usr/bin/env bash
# source-build.sh of role phases runs this: build-nccl.sh [ARCHITECTURE ...]
make -j"$JOBS" src.build CUDA_HOME="$CUDA_HOME" NVCC_GENCODE="$(gencode "$@")"
make src.install CUDA_HOME="$CUDA_HOME" PREFIX="$IMAGE$PREFIX" NVCC_GENCODE="$(gencode "$@")"
