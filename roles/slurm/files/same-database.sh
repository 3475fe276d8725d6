#!/bin/sh
# Written by Muster (role slurm): refuses an accounting database other than the one that slurmdbd.conf names.
#   sh same-database.sh NAME HOST
conf=/etc/slurm/slurmdbd.conf
[ -e "$conf" ] || exit 0
of() { sed -n "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*//Ip" "$conf" | tail -n 1; }
name=$(of StorageLoc)
host=$(of StorageHost)
[ "${name:=slurm_acct_db} ${host:=localhost}" != "$1 $2" ] || exit 0
echo "slurmdbd has its database $name on $host and would begin an empty $1 on $2, without accounts and history; copy the database there, unless" \
  "both are the same one, then remove $conf and run this again." >&2
exit 1
