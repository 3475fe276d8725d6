#!/bin/sh
# Written by Muster (role slurm). Runs as root on each node after a job.
# Shared memory that a killed rank left behind would fill the node: take away what this user owns, unless another of the user's jobs still runs here.
[ -n "$SLURM_JOB_UID" ] && [ "$SLURM_JOB_UID" -ge 1000 ] || exit 0
pgrep -u "$SLURM_JOB_UID" >/dev/null || find /dev/shm -xdev -mindepth 1 -user "$SLURM_JOB_UID" -delete
exit 0
