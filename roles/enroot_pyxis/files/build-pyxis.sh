#!/usr/bin/env bash
# Written by Muster (role enroot_pyxis). Builds pyxis against the Slurm of the node: build-pyxis.sh VERSION-OF-SLURM INCLUDE
# Runs in the unpacked source with PREFIX, IMAGE and JOBS in its environment.
set -euo pipefail
slurm=$1 include=$2
# Slurm refuses a plugin of another version, and reports it only to the first job.
number=$(printf '#include <slurm/slurm.h>\nSLURM_VERSION_NUMBER\n' | gcc -E -I"$include" - | tail -n 1)
headers=$(printf '%d.%02d.%d' $((number >> 16)) $((number >> 8 & 255)) $((number & 255)))
[ "${slurm%%-*}" = "$headers" ] || { echo "error: the node has Slurm $slurm, but the headers in $include are those of $headers"; exit 1; }
CPPFLAGS="-I$include" make -j"$JOBS" prefix="$PREFIX" DESTDIR="$IMAGE" install
echo "$slurm" >"$IMAGE$PREFIX/built-for"
