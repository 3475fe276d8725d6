#!/bin/sh
# Slurm's epilog: the job no longer has its GPUs.
folder=/run/muster-dcgm-jobs
[ -d "$folder" ] || exit 0
for gpu in $(echo "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
  [ -f "$folder/$gpu" ] || continue
  grep -vx "$SLURM_JOB_ID" "$folder/$gpu" >"$folder/.$gpu.$SLURM_JOB_ID" || :
  mv "$folder/.$gpu.$SLURM_JOB_ID" "$folder/$gpu"
done
exit 0
