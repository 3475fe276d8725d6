#!/bin/sh
# Written by Muster (role slurm). Runs as root on each node before a job; a code other than 0 drains the node and requeues the job.
# It must not call Slurm: the commands would wait for the daemon that waits for this script.
if [ -r /etc/muster/required-mounts ]; then
    while read -r path; do
        [ -z "$path" ] || mountpoint -q "$path" || { echo "muster:mounts: $path is not mounted" >&2; exit 1; }
    done < /etc/muster/required-mounts
fi
# Role node_health installs it.
[ ! -x /usr/bin/muster-health ] || /usr/bin/muster-health --level prolog --hook prolog >&2 || exit 1
# DCGM exporter reads from a file for each GPU which jobs have it. Role monitoring makes the folder.
jobs=/run/muster-dcgm-jobs
if [ -d "$jobs" ]; then
    for gpu in $(echo "$SLURM_JOB_GPUS" | tr ',' ' '); do
        echo "$SLURM_JOB_ID" >>"$jobs/$gpu"
    done
fi
exit 0
