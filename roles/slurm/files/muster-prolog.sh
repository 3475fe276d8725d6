#!/bin/sh
# Written by Muster (role slurm). Runs as root on each node before a job; a code other than 0 drains the node and requeues the job.
# It must not call Slurm: the commands would wait for the daemon that waits for this script.
[ -r /etc/muster/required-mounts ] || exit 0
while read -r path; do
    [ -z "$path" ] || mountpoint -q "$path" || { echo "muster:mounts: $path is not mounted" >&2; exit 1; }
done < /etc/muster/required-mounts
exit 0
