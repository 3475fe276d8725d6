#!/bin/sh
# Written by Muster (role slurm). Runs as root on each node after a job.
# A killed rank leaves shared memory that would fill the node. Remove what this user owns, unless another job of the user runs here.
[ -n "$SLURM_JOB_UID" ] && [ "$SLURM_JOB_UID" -ge 1000 ] || exit 0
pgrep -u "$SLURM_JOB_UID" >/dev/null || find /dev/shm -xdev -mindepth 1 -user "$SLURM_JOB_UID" -delete
exit 0
