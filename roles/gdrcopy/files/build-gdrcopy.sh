#!/usr/bin/env bash
# The library and its tools, without the kernel module, which belongs to a kernel. Run by source-build.sh of role phases.
make -j"$JOBS" CUDA="$CUDA_HOME" prefix="$PREFIX" lib exes
make CUDA="$CUDA_HOME" prefix="$PREFIX" DESTDIR="$IMAGE" lib_install exes_install
