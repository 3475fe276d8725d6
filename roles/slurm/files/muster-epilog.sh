#!/bin/sh
# Written by Muster (role slurm). Runs as root on each node after a job.
# A killed rank leaves shared memory that would fill the node. Remove what this user owns, unless another job of the user runs here.
if [ -n "$SLURM_JOB_UID" ] && [ "$SLURM_JOB_UID" -ge 1000 ] && ! pgrep -u "$SLURM_JOB_UID" >/dev/null; then
    find /dev/shm -xdev -mindepth 1 -user "$SLURM_JOB_UID" -delete
fi
# The job no longer has its GPUs, see muster-prolog.sh.
jobs=/run/muster-dcgm-jobs
for gpu in $(echo "$SLURM_JOB_GPUS" | tr ',' ' '); do
    [ ! -f "$jobs/$gpu" ] || sed -i "/^${SLURM_JOB_ID:-}\$/d" "$jobs/$gpu"
done
# Role node_health installs it. A code other than 0 drains the node.
[ ! -x /usr/bin/muster-health ] || /usr/bin/muster-health --level prolog --hook epilog --check gpu_count --check efa_count --check xid >&2 || exit 1
exit 0
