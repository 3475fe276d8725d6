#!/usr/bin/env bash
# Written by Muster (role phases). Builds a component from its source archive into an archive that is unpacked on every node:
#   source-build.sh NAME VERSION ARCHIVE PREFIX ID OUTPUT SCRIPT [OPTION ...]
# SCRIPT is the role's own; it runs in the unpacked source with PREFIX (where it will lie), IMAGE (where to install it now, as DESTDIR), VERSION and
# JOBS and CUDA_HOME in its environment, and the options as its arguments. It ends at the first command that fails.
# PARTS in its environment names folders of the source that get an archive of their own from the folder parts beside OUTPUT, with + for / in its name.
# In OUTPUT: what lies below PREFIX, .muster-build (ID), .muster-files (checksums of all files) and .muster-packages (whose libraries it loads).
set -euo pipefail
name=$1 version=$2 archive=$3 prefix=$4 id=$5 output=$6 script=$7
shift 7
folder=$(dirname "$output")
log=$folder/build.log
work=$(mktemp --directory "$folder/build.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() { echo "$name $version was not built: $1; the whole output is in $log." >&2; exit 1; }

mkdir "$work/source" "$work/image"
tar -xf "$archive" -C "$work/source" --strip-components=1 2>"$log" || fail "its archive cannot be unpacked"
for part in ${PARTS:-}; do
    mkdir -p "$work/source/$part"
    tar -xf "$folder/parts/${part//\//+}" -C "$work/source/$part" --strip-components=1 2>>"$log" || fail "the archive of its part $part cannot be unpacked"
done
cd "$work/source"
# Options of nvcc for GPU architectures: those named, or of AWS's types those that this nvcc knows.
gencode() {
    local known each
    [ -x "$CUDA_HOME/bin/nvcc" ] || return 0
    known=$("$CUDA_HOME/bin/nvcc" --list-gpu-arch)
    [ $# -gt 0 ] || set -- 70 75 80 86 89 90 100 103 120
    for each; do
        if grep -qx "compute_$each" <<<"$known"; then printf -- '-gencode=arch=compute_%s,code=sm_%s ' "$each" "$each"; fi
    done
}
export -f gencode
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
export CUDA_HOME=${nvcc%/bin/nvcc}
VERSION=$version PREFIX=$prefix IMAGE=$work/image JOBS=$(nproc) bash -euo pipefail "$script" "$@" >"$log" 2>&1 ||
    fail "$({ grep -E -m 1 '(error|fatal)[: ]|[Nn]o such file|cannot find|not found' "$log" || tail -n 1 "$log"; } | tr -s '\t ' ' ' | sed 's/[. ]*$//')"
cd "$work/image$prefix" 2>/dev/null || fail "its script installed nothing below $prefix"

find . -name '*.la' -delete
mapfile -t binaries < <(find . -type f \( -perm -u+x -o -name '*.so*' \) -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
[ ${#binaries[@]} -eq 0 ] || strip --strip-unneeded "${binaries[@]}"
# Packages of the libraries that it loads, as they are called in this release of the distribution, for a node that gets the archive needs them too.
# The driver's own come with the driver; what lies below /opt or /usr/local is another component's.
owner() {
    if command -v dpkg-query >/dev/null; then
        dpkg-query --search "*/$(basename "$1")" | sed '/^diversion /d; s/:.*//' | sed -n 1p
    else
        rpm --query --file --queryformat '%{NAME}\n' "$1"
    fi
}
# The exit code of ldd only says that one of them is linked statically.
loads() { [ ${#binaries[@]} -eq 0 ] || ldd "${binaries[@]}" 2>/dev/null || :; }
loads | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sed -E "\\#^($prefix|/opt|/usr/local)/|/lib(cuda|nvidia-[a-z0-9-]+)\\.so#d" | sort -u | while read -r path; do
    package=$(owner "$(readlink -f "$path")" 2>/dev/null) && [ -n "$package" ] || fail "it loads $path, which no package has"
    echo "$package"
done | sort -u >.muster-packages
find . -type f ! -name '.muster-*' -print0 | LC_ALL=C sort -z | xargs -0 --no-run-if-empty sha256sum >.muster-files
echo "$id" >.muster-build
tar -C "$work/image$prefix" --owner=0 --group=0 --sort=name -czf "$output.part" .
mv "$output.part" "$output"
