#!/usr/bin/env bash
# Starts the daemons of an upgrade's step with the new software and waits until they answer.
#   slurm_start.sh database|controller|compute|login VERSION SECONDS LOG     seconds for the database's conversion, log of slurmctld
step=$1 version=$2 seconds=$3 log=$4

start() {
  systemctl daemon-reload
  systemctl reset-failed "$1" || true # systemd may not know a unit that never failed; the start below is what counts
  systemctl start ${2:+"$2"} "$1"
}

case $step in
  database)
    # A start time-out or a restart would interrupt the conversion of a large database. The conversion continues when this run is interrupted.
    drop_in=/run/systemd/system/slurmdbd.service.d/zz-muster-upgrade.conf
    mkdir -p "${drop_in%/*}"
    printf '[Service]\nTimeoutStartSec=infinity\nRestart=no\n' >"$drop_in"
    start slurmdbd --no-block
    end=$((SECONDS + seconds))
    until sacctmgr --noheader show cluster >/dev/null 2>&1; do
      case $(systemctl show --property=ActiveState --value slurmdbd) in
        failed | inactive) echo "slurmdbd did not start: $(journalctl -u slurmdbd -n 3 --no-pager -o cat | tail -n 3 | tr '\n' ' ')" >&2; exit 1 ;;
      esac
      [ $SECONDS -lt $end ] || { echo 'slurmdbd still converts the database and continues; raise muster_upgrade.wait and run again.' >&2; exit 1; }
      sleep 1
    done
    rm "$drop_in"
    systemctl daemon-reload
    ;;
  controller)
    start slurmctld
    systemctl try-restart slurmrestd || true # most fleets have none, and its own check reports one that does not start
    end=$((SECONDS + 120))
    until scontrol ping | grep -q 'is UP' && scontrol show config | grep -q "^SLURM_VERSION *= $version\$"; do
      [ $SECONDS -lt $end ] || { echo "slurmctld does not answer: $(tail -n 3 "$log" | tr '\n' ' ')" >&2; exit 1; }
      sleep 1
    done
    ;;
  compute) systemctl daemon-reload; systemctl restart slurmd ;;
  login) systemctl daemon-reload; systemctl restart sackd ;;
esac
