#!/bin/sh
# stub archive: keeps names, options and exit codes of efa_installer.sh; not the vendor's
version=VERSION
usage() { echo "Usage: efa_installer.sh [-y] [-n] [-k] [--skip-limit-conf] [--minimal] [--mpi=openmpi4|openmpi5]"; exit "$1"; }
yes='' kmod=1 limits=1 verify=1 minimal='' check='' mpi="openmpi openmpi5"
for word; do
    case $word in
        -y|--yes) yes=1 ;;
        -n|--no-verify) verify='' ;;
        -k|--skip-kmod) kmod='' ;;
        --skip-limit-conf) limits='' ;;
        --minimal) minimal=1 ;;
        --mpi=openmpi4) mpi=openmpi ;;
        --mpi=openmpi5) mpi=openmpi5 ;;
        --check-signatures) check=1 ;;
        -d|-g|--disable-ngc|--disable-build-ngc) ;;
        -h|--help) usage 0 ;;
        *) echo "Error: unknown option $word"; usage 1 ;;
    esac
done
[ "$(id -u)" = 0 ] || { echo "Error: must be run as root"; exit 1; }
cd "$(dirname "$0")" || exit 1
if [ -n "$check" ]; then
    [ -f "${EFA_INSTALLER_KEY:-}" ] || { echo "Error: EFA_INSTALLER_KEY names no key"; exit 1; }
    home=$(mktemp --directory) && gpg --batch --quiet --homedir "$home" --import "$EFA_INSTALLER_KEY" 2>/dev/null
    for package in DEBS/*.deb; do
        gpg --batch --quiet --homedir "$home" --verify "$package.sig" "$package" 2>/dev/null ||
            { echo "Error: signature of $package is bad"; exit 1; }
    done
    rm -rf "$home"
    echo "= Signatures of all packages are good ="
fi
[ -n "$yes" ] || { echo "Do you want to continue? [y/N]"; exit 1; }
if [ -n "$kmod" ] && ! [ -e "/lib/modules/$(uname -r)/build" ]; then
    echo "Error: the headers of kernel $(uname -r) are not installed"; exit 1
fi
lib=lib; [ -e /etc/debian_version ] || lib=lib64
echo "= Installing EFA $version ="
{
    echo "# EFA installer version: $version"
    echo "# Debug packages installed: no"
    echo "# Packages installed:"
    for package in DEBS/*.deb; do basename "$package" .deb; done
    echo "# $(sed -n 's/^# \(.*efa_installer.sh.*\)/\1/p' efa_installer.sh | head -n 1)"
} >/tmp/efa_installed_packages
mkdir -p /opt/amazon
mv /tmp/efa_installed_packages /opt/amazon/efa_installed_packages
if [ -z "$minimal" ]; then
    mkdir -p /opt/amazon/efa/bin /opt/amazon/efa/$lib /opt/amazon/ofi-nccl/$lib
    cp files/fi_info /opt/amazon/efa/bin/fi_info
    cp files/label "/opt/amazon/efa/$lib/libfabric.so.1"
    cp files/label "/opt/amazon/ofi-nccl/$lib/libnccl-net-ofi.so"
    ln -sf libnccl-net-ofi.so "/opt/amazon/ofi-nccl/$lib/libnccl-net.so"
    { sed -n 's/^# \(.*efa_installer.sh.*\)/# \1/p' efa_installer.sh | head -n 1; echo "/opt/amazon/ofi-nccl/$lib"; } >/etc/ld.so.conf.d/100_ofinccl.conf
    for each in $mpi; do
        mkdir -p "/opt/amazon/$each/bin" "/opt/amazon/$each/include"
        cp files/mpirun "/opt/amazon/$each/bin/mpirun"
        cp files/mpi.h "/opt/amazon/$each/include/mpi.h"
    done
fi
if [ -n "$limits" ]; then
    printf '* soft memlock unlimited\n* hard memlock unlimited\n' >/etc/security/limits.d/01_efa.conf
fi
if [ -n "$verify" ] && ! ls /sys/class/infiniband/* >/dev/null 2>&1; then
    echo "Error: EFA test failed: no EFA device"; exit 1
fi
echo "EFA installation complete."
