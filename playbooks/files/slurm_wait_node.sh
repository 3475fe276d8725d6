#!/bin/sh
# Waits until slurmctld has the node with the new version and up.
#   slurm_wait_node.sh NODE VERSION
for _ in $(seq 120); do
  found=$(sinfo --noheader --Node --nodes="$1" --format='%v %T' | head -n 1)
  case $found in
    "$2 "*[*] | "$2 down"*) ;;
    "$2 "*) exit 0 ;;
  esac
  sleep 1
done
echo "slurmctld has the node as $found." >&2
exit 1
