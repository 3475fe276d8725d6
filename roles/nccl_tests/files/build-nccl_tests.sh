#!/usr/bin/env bash
# source-build.sh of role phases runs this: build-nccl_tests.sh [ARCHITECTURE ...]
mpi=
for each in /opt/amazon/openmpi5 /opt/amazon/openmpi "/usr/lib/$(gcc -print-multiarch)/openmpi" /usr/lib64/openmpi; do
    if [ -e "$each/include/mpi.h" ]; then mpi=$each; break; fi
done
[ -n "$mpi" ] || { echo "error: no MPI on this node has mpi.h; install Open MPI or run role efa first"; exit 1; }
nccl=/usr
if [ -e /opt/nccl/include/nccl.h ]; then nccl=/opt/nccl; fi
make -j"$JOBS" MPI=1 MPI_HOME="$mpi" CUDA_HOME="$CUDA_HOME" NCCL_HOME="$nccl" NVCC_GENCODE="$(gencode "$@")"
mkdir -p "$IMAGE$PREFIX/bin"
cp build/*_perf "$IMAGE$PREFIX/bin/"
