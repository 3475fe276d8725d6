#!/bin/sh
# Installs on one node what the roles of stack debian-13 do, as a person would type it: no checks, no manifest, no second run, nothing kept for other nodes.
# stack.sh FOLDER PACKAGE...  (run on the node; FOLDER has the sources NAME.tar.gz, their sums in FOLDER/sums, and the scripts that build them)
set -eu
folder=$1
shift
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
mkdir -p /etc/apt/apt.conf.d
echo 'APT::Install-Recommends "false";' > /etc/apt/apt.conf.d/90bare
apt-get update -q > /dev/null
apt-get install -y -q "$@" > /dev/null
apt-mark hold linux-headers-amd64 > /dev/null

cd "$folder"
sha256sum --check --quiet sums
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
export CUDA_HOME="${nvcc%/bin/nvcc}"
# The roles' build scripts call this helper: nvcc's flags for the architectures that this compiler knows.
gencode() {
    [ -x "$CUDA_HOME/bin/nvcc" ] || return 0
    for each in 70 75 80 86 89 90 100 103 120; do
        if "$CUDA_HOME/bin/nvcc" --list-gpu-arch | grep -qx "compute_$each"; then printf -- '-gencode=arch=compute_%s,code=sm_%s ' "$each" "$each"; fi
    done
}
NVCC_GENCODE=$(gencode)
export NVCC_GENCODE
build() { # NAME VERSION PREFIX [ARGUMENT...]
    name=$1 version=$2 prefix=$3
    shift 3
    mkdir -p "$name" "$prefix"
    tar -xzf "$name.tar.gz" -C "$name" --strip-components=1
    # shellcheck disable=SC2016 # expanded by the inner shell
    (cd "$name" && VERSION=$version PREFIX=$prefix IMAGE=/ JOBS=$(nproc) bash -euc 'gencode() { echo "$NVCC_GENCODE"; }; . "$0"' "../build-$name.sh" "$@") \
        > "$name.log" 2>&1
}
build gdrcopy 2.6 /opt/gdrcopy
build aws_ofi_nccl 1.21.1 /opt/aws-ofi-nccl
build nccl_tests 2.19.6 /opt/nccl-tests
build pyxis 0.24.0 /usr/lib/muster/pyxis "$(dpkg-query --show --showformat '${source:Upstream-Version}' slurm-client)" /usr/include
printf '/opt/gdrcopy/lib\n/opt/aws-ofi-nccl/lib\n' > /etc/ld.so.conf.d/bare.conf
ldconfig
rm /usr/sbin/policy-rc.d
