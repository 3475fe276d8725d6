#!/bin/sh
# Slurm's prolog: tells DCGM exporter which job has which GPU, a file for each GPU.
folder=/run/muster-dcgm-jobs
[ -d "$folder" ] || exit 0
for gpu in $(echo "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
  printf '%s\n' "$SLURM_JOB_ID" >>"$folder/$gpu" || exit 0
done
exit 0
