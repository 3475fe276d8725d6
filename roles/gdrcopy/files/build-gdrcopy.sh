#!/usr/bin/env bash
# Builds the library and its tools, without the kernel module, which fits one kernel only. source-build.sh of role phases runs this.
make -j"$JOBS" CUDA="$CUDA_HOME" prefix="$PREFIX" lib exes
make CUDA="$CUDA_HOME" prefix="$PREFIX" DESTDIR="$IMAGE" lib_install exes_install
