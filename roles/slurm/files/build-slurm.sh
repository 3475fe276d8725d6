#!/usr/bin/env bash
# Builds Slurm with its PAM module; the arguments are further options of configure. Run by source-build.sh of role phases.
# configure is quiet because what it only looks for and does not find would be taken for the error.
./configure --quiet --prefix="$PREFIX" --sysconfdir=/etc/slurm --with-pmix="/usr/lib/$(gcc -print-multiarch)/pmix2" --enable-pam \
    --with-munge --with-hwloc --with-jwt --with-json --with-yaml --with-http-parser --enable-slurmrestd --disable-debug "$@"
make --silent -j"$JOBS"
make --silent -j"$JOBS" DESTDIR="$IMAGE" install
make --silent -C contribs/pam_slurm_adopt DESTDIR="$IMAGE" PAM_DIR="$PREFIX/lib/security" install
# configure leaves these out without a word when a library is missing.
cd "$IMAGE$PREFIX" || exit
for file in bin/srun sbin/slurmctld sbin/slurmdbd sbin/slurmd sbin/slurmrestd lib/slurm/mpi_pmix.so lib/slurm/auth_munge.so lib/slurm/auth_jwt.so \
    lib/slurm/cgroup_v1.so lib/slurm/cgroup_v2.so lib/slurm/accounting_storage_mysql.so lib/security/pam_slurm_adopt.so; do
    [ -e "$file" ] || { echo "error: $file is missing, so configure did not find a library; look for it in the log"; exit 1; }
done
find . -name '*.a' -delete
