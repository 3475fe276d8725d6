#!/bin/bash
# Writes fsdp.yaml from fsdp.yaml-template and fsdp.conf, and stores the token of fsdp.conf in the cluster.
set -euo pipefail
cd "$(dirname "$0")"
set -a
# shellcheck source=/dev/null
. ./fsdp.conf
set +a
if [ -n "${HF_TOKEN:-}" ]; then
  # Through a pipe: every user of the machine reads command lines.
  printf '%s' "$HF_TOKEN" | kubectl create secret generic hf-token --from-file=token=/dev/stdin --dry-run=client -o yaml |
    kubectl apply -f -
fi
unset HF_TOKEN
envsubst <fsdp.yaml-template >fsdp.yaml
echo "fsdp.yaml is written; kubectl apply -f ./fsdp.yaml"
