#!/usr/bin/env bash
# source-build.sh of role phases runs this: build-nccl.sh [inspector] [ARCHITECTURE ...]
inspector=
if [ "${1:-}" = inspector ]; then
    inspector=plugins/profiler/inspector
    shift
fi
make -j"$JOBS" src.build CUDA_HOME="$CUDA_HOME" NVCC_GENCODE="$(gencode "$@")"
make src.install CUDA_HOME="$CUDA_HOME" PREFIX="$IMAGE$PREFIX" NVCC_GENCODE="$(gencode "$@")"
[ -n "$inspector" ] || exit 0
# Where NCCL 2.28 has it.
[ -e "$inspector/Makefile" ] || inspector=ext-profiler/inspector
# The node may have an older CPU than the builder of its image.
sed -i 's/ -march=native//' "$inspector/Makefile"
make -j"$JOBS" -C "$inspector" CUDA_HOME="$CUDA_HOME"
install -D -m 755 "$inspector/libnccl-profiler-inspector.so" "$IMAGE$PREFIX/lib/libnccl-profiler-inspector.so"
mkdir -p "$IMAGE$PREFIX/bin"
cat >"$IMAGE$PREFIX/bin/nccl-inspector" <<END
#!/bin/sh
# Written by Muster (role nccl). Runs a command with NCCL's inspector: nccl-inspector COMMAND [ARGUMENT ...]. Each process writes a file of its own
# below NCCL_INSPECTOR_DUMP_DIR, by default in the folder of the job.
export NCCL_PROFILER_PLUGIN=$PREFIX/lib/libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1
export NCCL_INSPECTOR_DUMP_DIR="\${NCCL_INSPECTOR_DUMP_DIR:-\${MUSTER_JOB_DIR:-\$PWD}/nccl-inspector-\${MUSTER_RESTART:-0}}"
# When ranks start together, only one plugin can create the folder, and the other ranks would write nothing.
mkdir -p "\$NCCL_INSPECTOR_DUMP_DIR"
# Without an interval NCCL from 2.30 on writes nothing. This one is that of NVIDIA's README.
export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="\${NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS:-500}"
exec "\$@"
END
chmod 755 "$IMAGE$PREFIX/bin/nccl-inspector"
