#!/usr/bin/env bash
# Written by Muster (role enroot_pyxis). Builds enroot and the C library of its programs, which are linked statically.
# Runs in the unpacked source, which has its parts, with PREFIX, IMAGE and JOBS in its environment.
set -euo pipefail
# Options of the maker's own packages named enroot; those named enroot-hardened have none.
export CPPFLAGS="-DALLOW_SPECULATION -DINHERIT_FDS"
# Its programs look for their settings in /etc/enroot, where link-enroot.sh puts links to those below PREFIX.
make -j"$JOBS" prefix="$PREFIX" sysconfdir=/etc
make prefix="$PREFIX" sysconfdir="$PREFIX/etc" DESTDIR="$IMAGE" install
