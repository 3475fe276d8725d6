#!/usr/bin/env bash
# Written by Muster (role efa). Unpacks the EFA installer and runs it: run-efa-installer.sh FOLDER LOG FLAG...
# FOLDER has installer.tar.gz, and key.asc when the installer is to check the signatures of its packages.
set -uo pipefail
folder=$1 log=$2
shift 2
fail() { echo "$1; the whole output is in $log."; exit 1; }

tar -xzf "$folder/installer.tar.gz" -C "$folder" >"$log" 2>&1 || fail "its archive cannot be unpacked"
cd "$folder/aws-efa-installer" || fail "its archive has no folder aws-efa-installer"
[ ! -e "$folder/key.asc" ] || export EFA_INSTALLER_KEY=$folder/key.asc
./efa_installer.sh "$@" >>"$log" 2>&1 || fail "it ended with code $? and says: $(grep -i error "$log" | tail -n 1)"
