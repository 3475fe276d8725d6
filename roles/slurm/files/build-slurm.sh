#!/usr/bin/env bash
# Written by Muster (role slurm). Builds Slurm from its tarball into an archive that is unpacked below /opt/slurm on every node:
#   build-slurm.sh TARBALL VERSION ID OUTPUT [OPTION OF CONFIGURE ...]
# In the archive: VERSION/ with .muster-build (ID), .muster-files (checksums of all files) and .muster-packages (whose libraries it loads).
set -euo pipefail
tarball=$1 version=$2 id=$3 output=$4
shift 4
prefix=/opt/slurm/$version
work=$(mktemp --directory "$(dirname "$output")/build.XXXXXX")
log=$(dirname "$output")/build.log
trap 'rm -rf "$work"' EXIT

fail() { echo "Slurm $version was not built: $1; the whole output is in $log." >&2; exit 1; }

mkdir "$work/source" "$work/image"
tar -xf "$tarball" -C "$work/source" --strip-components=1 || fail "its tarball cannot be unpacked"
cd "$work/source"
library=/usr/lib/$(gcc -print-multiarch)
./configure --prefix="$prefix" --sysconfdir=/etc/slurm --with-pmix="$library/pmix2" --enable-pam \
    --with-munge --with-hwloc --with-jwt --with-json --with-yaml --with-http-parser --enable-slurmrestd --disable-debug "$@" >"$log" 2>&1 ||
    fail "configure says $(grep -i 'error:' "$log" | tail -n 1)"
make -j"$(nproc)" >>"$log" 2>&1 || fail "make says $(grep -i 'error' "$log" | tail -n 1)"
make -j"$(nproc)" DESTDIR="$work/image" install >>"$log" 2>&1 || fail "make install failed"
make -C contribs/pam_slurm_adopt DESTDIR="$work/image" PAM_DIR="$prefix/lib/security" install >>"$log" 2>&1 || fail "pam_slurm_adopt was not built"

cd "$work/image$prefix"
# What configure leaves out without a word when a library is missing.
for file in bin/srun sbin/slurmctld sbin/slurmdbd sbin/slurmd sbin/slurmrestd lib/slurm/mpi_pmix.so lib/slurm/auth_munge.so lib/slurm/auth_jwt.so \
    lib/slurm/cgroup_v1.so lib/slurm/cgroup_v2.so lib/slurm/accounting_storage_mysql.so lib/security/pam_slurm_adopt.so; do
    [ -e "$file" ] || fail "$file is missing, so a library was not found; look for it in the output of configure"
done
find . -name '*.la' -delete
find . -name '*.a' -delete
mapfile -t binaries < <(find . -type f \( -path './*bin/*' -o -name '*.so' -o -name '*.so.*' \) -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
strip --strip-unneeded "${binaries[@]}"
# Packages of the libraries that it loads, as they are called in this release of the distribution. Beside an active version the loader finds that
# one's libraries for this one's, which no package has.
ldd "${binaries[@]}" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -v '^/opt/slurm/' | sort -u | while read -r path; do
    dpkg-query --search "*/$(basename "$(readlink -f "$path")")" 2>/dev/null | sed -n '1s/:.*//p' || fail "no package has $path, which it loads"
done | sort -u >.muster-packages
find . -type f ! -name '.muster-*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum >.muster-files
echo "$id" >.muster-build
tar -C "$work/image/opt/slurm" --owner=0 --group=0 --sort=name -czf "$output.part" "$version"
mv "$output.part" "$output"
