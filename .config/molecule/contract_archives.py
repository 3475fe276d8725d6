#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Makes small contract archives in a mirror folder: what only vendor hosts have, as far as a role can tell.

    contract_archives.py FOLDER [STACK]

Each keeps the names, options and exit codes of the vendor's archive and is not the vendor's: the programs in it do nothing but answer. They
are signed by a key made here, so FOLDER/contract.yml is a stack that extends STACK (debian-13) and trusts that key. A
scenario takes it with muster_stack_name=FOLDER/contract.yml and muster_mirror=FOLDER. A folder that is complete is left as it is.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from itertools import chain
from pathlib import Path

LABEL = "contract archive: keeps names, options and exit codes of {}; not the vendor's"
ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
EPOCH = 1_767_225_600  # one time in all archives, so that the same content has the same sum


class Archives:
    """A mirror folder with a key of its own; what is put into it is remembered as components of a stack."""

    def __init__(self, folder: Path, extends: str = "debian-13") -> None:
        self.folder = folder
        self.suite = {"debian-12": "bookworm"}.get(extends, "trixie")
        self.stack: dict[str, dict] = {}
        # gpg's agent wants a short path for its socket.
        self.home = tempfile.TemporaryDirectory(prefix="contract-gpg-")
        self._gpg("--passphrase", "", "--quick-generate-key", "Contract archives <contract@muster.invalid>", "ed25519", "sign", "never")
        listed = self._gpg("--with-colons", "--list-keys").decode()
        self.fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        self.key = self._gpg("--armor", "--export")

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", self.home.name, "--kill", "all"], check=False, capture_output=True)
        self.home.cleanup()

    def _gpg(self, *words: str, data: bytes | None = None) -> bytes:
        command = ["gpg", "--batch", "--quiet", "--homedir", self.home.name, "--pinentry-mode", "loopback", *words]
        return subprocess.run(command, input=data, check=True, capture_output=True).stdout

    def put(self, url: str, content: bytes) -> Path:
        """A file at its place in the mirror, HOST/PATH."""
        path = self.folder / url.split("://", 1)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def put_key(self, url: str) -> dict[str, str]:
        """The key at its place, and what a stack says of it."""
        self.put(url, self.key)
        return {"key": url, "fingerprint": self.fingerprint}

    def sign(self, content: bytes) -> bytes:
        return self._gpg("--detach-sign", "--output", "-", data=content)

    def apt_repository(self, url: str, debs: list[bytes], suite: str = "") -> None:
        """A signed apt repository: flat without a suite, as NVIDIA's, or SUITE with one component, main, as most others."""
        at = url.rstrip("/") + (f"/dists/{suite}" if suite else "")
        entries: dict[str, list[str]] = {arch: [] for arch in ARCHITECTURES.values()}
        for content in debs:
            control = control_of(content)
            fields = dict(line.split(": ", 1) for line in control.splitlines() if ": " in line)
            name = "{Package}_{Version}_{Architecture}.deb".format(**fields)
            self.put(f"{url.rstrip('/')}/{'pool/' if suite else ''}{name}", content)
            entry = f"{control}Filename: {'pool' if suite else '.'}/{name}\nSize: {len(content)}\nSHA256: {sha256(content)}\n"
            for arch in entries if fields["Architecture"] == "all" else [fields["Architecture"]]:
                entries[arch].append(entry)
        indices = {f"main/binary-{arch}/Packages": "\n".join(each) for arch, each in entries.items()}
        if not suite:
            indices = {"Packages": "\n".join(dict.fromkeys(chain.from_iterable(entries.values())))}
        release = f"Origin: {LABEL.format('a package repository')}\nSuite: {suite or 'contract'}\nCodename: {suite or 'contract'}\n"
        release += f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nArchitectures: {' '.join(entries)}\nComponents: main\nSHA256:\n"
        for name, text in indices.items():
            self.put(f"{at}/{name}", text.encode())
            release += f" {sha256(text.encode())} {len(text.encode())} {name}\n"
        self.put(f"{at}/Release", release.encode())
        self.put(f"{at}/Release.gpg", self._gpg("--armor", "--detach-sign", "--output", "-", data=release.encode()))
        self.put(f"{at}/InRelease", self._gpg("--clearsign", "--output", "-", data=release.encode()))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar_gz(files: dict[str, str | bytes], links: dict[str, str] | None = None) -> bytes:
    """An archive of these files; what begins with #! can be executed."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = sorted({str(parent) for name in files for parent in list(Path(name).parents)[:-1]})
        for name in folders:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, EPOCH
            archive.addfile(member)
        for name, text in files.items():
            content = text.encode() if isinstance(text, str) else text
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), EPOCH, 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mtime = tarfile.SYMTYPE, target, EPOCH
            archive.addfile(member)
    return gzip.compress(raw.getvalue(), mtime=0)


def deb(name: str, version: str, files: dict[str, str], arch: str = "all", depends: str = "") -> bytes:
    """A Debian package: an ar archive of two tar archives."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: Muster <contract@muster.invalid>\n"
    control += f"Depends: {depends}\n" if depends else ""
    control += f"Description: {LABEL.format(name)}\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tar_gz({"./control": control}),
        "data.tar.gz": tar_gz({f"./{path.lstrip('/')}": text for path, text in files.items()}),
    }
    out = b"!<arch>\n"
    for member, content in members.items():
        out += f"{member:<16}{EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
    return out


def control_of(content: bytes) -> str:
    start = content.index(b"control.tar.gz") + 60
    size = int(content[start - 12 : start - 2])
    with tarfile.open(fileobj=io.BytesIO(content[start : start + size])) as archive:
        member = archive.extractfile("./control")
        assert member is not None
        return member.read().decode()


def program(of: str, body: str) -> str:
    return f"#!/bin/sh\n# {LABEL.format(of)}\n{body}"


def answers(of: str, version: str, cases: dict[str, str]) -> str:
    """A program that knows these command lines and refuses all others with 1."""
    body = "".join(f"'{words}') printf '%s\\n' '{answer.format(version=version)}' ;;\n" for words, answer in cases.items())
    return program(of, f'case "$*" in\n{body}*) echo "unknown command: $*" >&2; exit 1 ;;\nesac\n')


# Stands in for efa_installer.sh of 1.48 and later. Which packages it puts down depends on the flags as in the vendor's.
EFA_INSTALLER = r"""
version=VERSION libfabric=LIBFABRIC
usage() { echo "Usage: efa_installer.sh [-y] [-n] [-k] [--skip-limit-conf] [--minimal] [--mpi=openmpi4|openmpi5]"; exit "$1"; }
yes= kmod=1 limits=1 verify=1 minimal= check= mpi="openmpi openmpi5"
for word; do
    case $word in
        -y|--yes) yes=1 ;;
        -n|--no-verify) verify= ;;
        -k|--skip-kmod) kmod= ;;
        --skip-limit-conf) limits= ;;
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
    for package in DEBS/*.deb; do echo "$(basename "$package" .deb)"; done
} >/tmp/efa_installed_packages
mkdir -p /opt/amazon
mv /tmp/efa_installed_packages /opt/amazon/efa_installed_packages
if [ -z "$minimal" ]; then
    mkdir -p /opt/amazon/efa/bin /opt/amazon/efa/$lib /opt/amazon/ofi-nccl/$lib
    cp files/fi_info /opt/amazon/efa/bin/fi_info
    cp files/label "/opt/amazon/efa/$lib/libfabric.so.1"
    cp files/label "/opt/amazon/ofi-nccl/$lib/libnccl-net-ofi.so"
    ln -sf libnccl-net-ofi.so "/opt/amazon/ofi-nccl/$lib/libnccl-net.so"
    echo "/opt/amazon/ofi-nccl/$lib" >/etc/ld.so.conf.d/100_ofinccl.conf
    for each in $mpi; do mkdir -p "/opt/amazon/$each/bin"; cp files/mpirun "/opt/amazon/$each/bin/mpirun"; done
fi
if [ -n "$limits" ]; then
    printf '* soft memlock unlimited\n* hard memlock unlimited\n' >/etc/security/limits.d/01_efa.conf
fi
if [ -n "$verify" ] && ! ls /sys/class/infiniband/* >/dev/null 2>&1; then
    echo "Error: EFA test failed: no EFA device"; exit 1
fi
echo "EFA installation complete."
"""


def efa(archives: Archives, version: str = "1.51.0", libfabric: str = "2.7.0amzn2.0") -> None:
    url = "https://efa-installer.amazonaws.com/aws-efa-installer-{version}.tar.gz"
    parts = {"libfabric1-aws": libfabric, "rdma-core": "65.0"}
    packages = {f"DEBS/{name}_{number}_all.deb": deb(name, number, {}) for name, number in parts.items()}
    # Without a device the real one says "No data available" and exits with its number.
    info = f"""
[ "$1" != --version ] || {{ echo "fi_info: {libfabric}"; echo "libfabric: {libfabric}"; echo "libfabric api: 2.4"; exit 0; }}
echo "fi_getinfo: -61 (No data available)" >&2
exit 61
"""
    files: dict[str, str | bytes] = {
        "efa_installer.sh": program("efa_installer.sh", EFA_INSTALLER.replace("VERSION", version, 1).replace("LIBFABRIC", libfabric, 1)),
        "files/label": LABEL.format("libfabric and aws-ofi-nccl") + "\n",
        "files/mpirun": answers("mpirun of Open MPI", "5.0.9", {"--version": "mpirun (Open MPI) {version}"}),
        "files/fi_info": program("fi_info", info),
        **packages,
        **{f"{name}.sig": archives.sign(content) for name, content in packages.items()},
    }
    content = tar_gz({f"aws-efa-installer/{name}": text for name, text in files.items()})
    archives.put(url.format(version=version), content)
    archives.put(url.format(version=version) + ".sig", archives.sign(content))
    signature = archives.put_key("https://efa-installer.amazonaws.com/aws-efa-installer.key")
    archives.stack["efa"] = {
        "version": version,
        "driver": "3.3.1",
        "flags": ["--yes"],
        "container_flags": ["--yes", "--skip-kmod", "--skip-limit-conf", "--no-verify", "--disable-ngc", "--disable-build-ngc"],
        "sources": [{"url": url, "signature": signature}],
    }


# Stands in for `aws/install` of the zip.
AWS_INSTALL = r"""
at=/usr/local/aws-cli bin=/usr/local/bin update=
while [ $# -gt 0 ]; do
    case $1 in
        -i|--install-dir) at=$2; shift 2 ;;
        -b|--bin-dir) bin=$2; shift 2 ;;
        -u|--update) update=1; shift ;;
        *) echo "usage: install [-i DIR] [-b DIR] [-u]" >&2; exit 1 ;;
    esac
done
[ ! -e "$at/v2/current" ] || [ -n "$update" ] ||
    { echo "Found preexisting AWS CLI installation: $at/v2/current. Please rerun install script with --update flag." >&2; exit 1; }
mkdir -p "$at/v2/VERSION/bin" "$bin"
cp "$(dirname "$0")/dist/aws" "$at/v2/VERSION/bin/aws"
chmod 0755 "$at/v2/VERSION/bin/aws"
ln -sfn "$at/v2/VERSION" "$at/v2/current"
ln -sf "$at/v2/current/bin/aws" "$bin/aws"
echo "You can now run: $bin/aws --version"
"""


def aws_cli(archives: Archives, version: str = "2.36.11") -> None:
    url = "https://awscli.amazonaws.com/awscli-exe-linux-{arch}-{version}.zip"
    for arch in ("x86_64", "aarch64"):
        raw = io.BytesIO()
        said = "aws-cli/{version} Python/3.13 Linux contract"
        files = {
            "aws/install": program("aws/install", AWS_INSTALL.replace("VERSION", version)),
            "aws/dist/aws": answers("aws", version, {"--version": said}),
        }
        with zipfile.ZipFile(raw, "w") as archive:
            for name, text in files.items():
                member = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
                member.external_attr = 0o100755 << 16
                archive.writestr(member, text)
        archives.put(url.format(arch=arch, version=version), raw.getvalue())
        archives.put(url.format(arch=arch, version=version) + ".sig", archives.sign(raw.getvalue()))
    signature = archives.put_key("https://keys.openpgp.org/vks/v1/by-fingerprint/FB5DB77FD5C118B80511ADA8A6310ACC4672475C")
    archives.stack["aws_cli"] = {"version": version, "sources": [{"url": url, "names": {"arm64": "aarch64"}, "signature": signature}]}


def single_files(archives: Archives) -> None:
    """kubectl, eksctl and helm: one program each, verified by its sum."""
    kubectl = "Client Version: v{version}\nKustomize Version: v5.8.0"
    tools = {
        "kubectl": ("1.36.4", "https://dl.k8s.io/release/v{version}/bin/linux/{arch}/kubectl", "", {"version --client": kubectl}),
        "eksctl": (
            "0.230.0",
            "https://github.com/eksctl-io/eksctl/releases/download/v{version}/eksctl_Linux_{arch}.tar.gz",
            "eksctl",
            {"version": "{version}"},
        ),
        "helm": (
            "3.18.4",
            "https://get.helm.sh/helm-v{version}-linux-{arch}.tar.gz",
            "linux-{arch}/helm",
            {"version --short": "v{version}+gcontract"},
        ),
    }
    for name, (version, url, inside, cases) in tools.items():
        sums = {}
        for arch, deb_arch in ARCHITECTURES.items():
            content = answers(name, version, cases).encode()
            if inside:
                content = tar_gz({inside.format(arch=deb_arch): content})
            archives.put(url.format(version=version, arch=deb_arch), content)
            sums[arch] = sha256(content)
        archives.stack[name] = {"version": version, "sources": [{"url": url, "names": {"x86_64": "amd64"}, "sha256": sums}]}


def container_toolkit(archives: Archives, version: str = "1.20.1") -> None:
    """The four packages that move together, each demanding the others in its own version."""
    unit = "# {}\n[Unit]\nDescription=Refresh NVIDIA CDI specification file\n{}\n[Install]\nWantedBy=multi-user.target\n"
    service = "ConditionPathExists=|/usr/bin/nvidia-smi\nConditionPathExists=/usr/bin/nvidia-ctk\n[Service]\nType=oneshot\n"
    service += "Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml\n"
    service += "EnvironmentFile=-/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env\n"
    service += "ExecStart=/usr/bin/nvidia-ctk cdi generate"
    ctk = answers("nvidia-ctk", version, {"--version": "NVIDIA Container Toolkit CLI version {version}", "cdi list": "nvidia.com/gpu=all"})
    what = "nvidia-container-toolkit"
    full = f"{version}-1"
    base = {
        "/usr/bin/nvidia-ctk": ctk,
        "/usr/bin/nvidia-container-runtime": program("nvidia-container-runtime", 'exec runc "$@"\n'),
        "/usr/bin/nvidia-cdi-hook": answers("nvidia-cdi-hook", version, {"--version": "{version}"}),
        "/usr/lib/systemd/system/nvidia-cdi-refresh.service": unit.format(LABEL.format(what), service),
        "/usr/lib/systemd/system/nvidia-cdi-refresh.path": unit.format(LABEL.format(what), "[Path]\nPathChanged=/usr/bin/nvidia-ctk"),
        "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": "# NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml\n",
    }
    hook = {"/usr/bin/nvidia-container-runtime-hook": program("nvidia-container-runtime-hook", "exit 1\n")}
    cli = {"/usr/bin/nvidia-container-cli": answers("nvidia-container-cli", version, {"--version": "cli-version: {version}"})}
    for arch in ARCHITECTURES.values():
        url = f"https://nvidia.github.io/libnvidia-container/stable/deb/{arch}"
        archives.apt_repository(
            url,
            [
                deb(what, full, hook, arch, f"{what}-base (= {full}), libnvidia-container-tools (= {full})"),
                deb(f"{what}-base", full, base, arch),
                deb("libnvidia-container-tools", full, cli, arch, f"libnvidia-container1 (>= {full})"),
                deb("libnvidia-container1", full, {}, arch),
                # A later one, as such a repository has: nobody asked for it.
                *[deb(each, "1.99.0-1", {}, arch) for each in (what, f"{what}-base", "libnvidia-container-tools", "libnvidia-container1")],
            ],
        )
    archives.stack["nvidia_container_toolkit"] = {
        "version": version,
        "sources": [
            {
                "repository": "https://nvidia.github.io/libnvidia-container/stable/deb/{arch}",
                "names": {"x86_64": "amd64"},
                "signature": archives.put_key("https://nvidia.github.io/libnvidia-container/gpgkey"),
            }
        ],
    }


def enroot(archives: Archives, version: str = "4.1.2") -> None:
    url = "https://github.com/NVIDIA/enroot/releases/download/v{version}/enroot_{version}-1_{arch}.deb"
    sums = {}
    for arch, deb_arch in ARCHITECTURES.items():
        files = {
            "/usr/bin/enroot": answers("enroot", version, {"version": "{version}"}),
            "/usr/bin/enroot-aufs2ovlfs": program("enroot-aufs2ovlfs", "exit 1\n"),
            "/usr/bin/enroot-mksquashovlfs": program("enroot-mksquashovlfs", "exit 1\n"),
            "/etc/enroot/enroot.conf": "#ENROOT_CACHE_PATH ${XDG_CACHE_HOME}/enroot\n",
        }
        content = deb("enroot", f"{version}-1", files, deb_arch)
        archives.put(url.format(version=version, arch=deb_arch), content)
        sums[arch] = sha256(content)
    archives.stack["enroot"] = {"version": version, "sources": [{"url": url, "names": {"x86_64": "amd64"}, "sha256": sums}]}


# A plugin of our own with the two options by which people know pyxis. Slurm loads it as it loads pyxis: when it is built for its version.
PYXIS_C = r"""
#include <stddef.h>
#include <slurm/spank.h>
SPANK_PLUGIN(pyxis, 1)
static int wanted(int val, const char *optarg, int remote)
{
    slurm_error("LABEL");
    return -1;
}
struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "[pyxis] the image to use for the container filesystem", 1, 0, wanted},
    {"container-mounts", "SRC:DST", "[pyxis] bind mounts inside the container", 1, 0, wanted},
    SPANK_OPTIONS_TABLE_END
};
/* Slurm refuses a plugin without a single callback. */
int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    return 0;
}
"""
PYXIS_MAKEFILE = """
prefix ?= /usr/local
libdir ?= $(prefix)/lib
override CFLAGS += -shared -fPIC
install:
\tinstall -d $(DESTDIR)$(libdir)/slurm
\t$(CC) $(CPPFLAGS) $(CFLAGS) -o $(DESTDIR)$(libdir)/slurm/spank_pyxis.so pyxis.c
"""


def pyxis(archives: Archives, version: str = "0.24.0") -> None:
    url = "https://github.com/NVIDIA/pyxis/archive/refs/tags/v{version}.tar.gz"
    files: dict[str, str | bytes] = {"pyxis.c": PYXIS_C.replace("LABEL", LABEL.format("pyxis")), "Makefile": PYXIS_MAKEFILE}
    content = tar_gz({f"pyxis-{version}/{name}": text for name, text in files.items()})
    archives.put(url.format(version=version), content)
    archives.stack["pyxis"] = {"version": version, "sources": [{"url": url, "sha256": sha256(content)}]}


# Whatever is asked of the GPU, the answer is that there is none, with the words and the code of the real programs.
GDRCOPY_MAKEFILE = """
lib:
\t$(CC) -shared -fPIC -Wl,-soname,libgdrapi.so.2 -o libgdrapi.so.2 gdrapi.c
exes: lib
\t$(CC) -o gdrcopy_sanity sanity.c
lib_install: lib
\tinstall -D -m 755 libgdrapi.so.2 $(DESTDIR)$(prefix)/lib/libgdrapi.so.2
exes_install: exes
\tinstall -D -m 755 gdrcopy_sanity $(DESTDIR)$(prefix)/bin/gdrcopy_sanity
"""
NO_GPU_C = '#include <stdio.h>\nint main(void) { fprintf(stderr, "%s\\n", "no CUDA-capable device is detected"); return 1; }\n'


def gdrcopy(archives: Archives, version: str = "2.6") -> None:
    source_archive(
        archives,
        "gdrcopy",
        "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v{version}.tar.gz",
        version,
        {"Makefile": GDRCOPY_MAKEFILE, "gdrapi.c": "void *gdr_open(void) { return 0; }\n", "sanity.c": NO_GPU_C},
    )


# The real one needs nvcc; this one links MPI as that does.
NCCL_TESTS_MAKEFILE = """
default:
\ttest "$(MPI)" = 1 && mkdir -p build
\t$(CC) -I$(MPI_HOME)/include -o build/all_reduce_perf all_reduce.c -L$(MPI_HOME)/lib -lmpi
"""
NCCL_TESTS_C = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int there;
    MPI_Initialized(&there);
    puts("# nThread 1 nGpus 1 minBytes 8 maxBytes 8");
    puts("Test CUDA failure common.cu:1279 'no CUDA-capable device is detected'");
    return 3;
}
"""


def nccl_tests(archives: Archives, version: str = "2.19.6") -> None:
    url = "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v{version}.tar.gz"
    source_archive(archives, "nccl_tests", url, version, {"Makefile": NCCL_TESTS_MAKEFILE, "all_reduce.c": NCCL_TESTS_C})


# The build of the plugin's archive stops where the real one does: without a version, and with a path that is /usr.
OFI_AUTOGEN = """
[ -s .release_version ] || { echo "configure.ac:14: error: No version found"; exit 1; }
cp configure.contract configure
chmod 755 configure
"""
OFI_CONFIGURE = """
prefix=/usr/local
for word; do
    case $word in
        --prefix=*) prefix=${word#--prefix=} ;;
        --with-cuda=/usr|--with-libfabric=/usr) echo "fatal error: stdlib.h: No such file or directory"; exit 1 ;;
        --with-*|--disable-*|--enable-*) ;;
        *) echo "error: unrecognized option: $word"; exit 1 ;;
    esac
done
sed "s|@prefix@|$prefix|" Makefile.in >Makefile
"""
OFI_MAKEFILE = """
all:
\t$(CC) -shared -fPIC -o libnccl-net-ofi.so plugin.c
install: all
\tinstall -D -m 755 libnccl-net-ofi.so $(DESTDIR)@prefix@/lib/libnccl-net-ofi.so
\tln -s libnccl-net-ofi.so $(DESTDIR)@prefix@/lib/libnccl-net.so
"""
OFI_C = """
struct interface { const char *name; void *calls[32]; };
struct interface ncclNetPlugin_v6 = {"Libfabric"}, ncclNetPlugin_v8 = {"Libfabric"}, ncclNetPlugin_v10 = {"Libfabric"};
"""


def aws_ofi_nccl(archives: Archives, version: str = "1.21.1") -> None:
    source_archive(
        archives,
        "aws_ofi_nccl",
        "https://github.com/aws/aws-ofi-nccl/archive/refs/tags/v{version}.tar.gz",
        version,
        {
            "autogen.sh": program("autogen.sh", OFI_AUTOGEN),
            "configure.contract": program("configure", OFI_CONFIGURE),
            "Makefile.in": OFI_MAKEFILE,
            "plugin.c": OFI_C,
        },
    )


def source_archive(archives: Archives, component: str, url: str, version: str, files: dict[str, str | bytes]) -> None:
    """A tag's archive, with the folder that such an archive has and the label in it."""
    inside = f"{url.split('/')[4]}-{version}"
    content = tar_gz({f"{inside}/{name}": text for name, text in {"CONTRACT": LABEL.format(component) + "\n", **files}.items()})
    archives.put(url.format(version=version), content)
    archives.stack[component] = {"version": version, "sources": [{"url": url, "sha256": sha256(content)}]}


def lustre_client(archives: Archives) -> None:
    """Modules for the kernel that runs here, which the nodes share, and for one that nobody has."""
    url = "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu"
    module = f"# {LABEL.format('the Lustre client')}\n"
    debs = [
        deb(f"lustre-client-modules-{kernel}", "2.15.6-1", {f"/lib/modules/{kernel}/updates/lustre.ko": module})
        for kernel in (platform.release(), "6.8.0-9999-contract")
    ]
    files = {
        "/usr/bin/lfs": answers("lfs", "2.15.6", {"--version": "lfs {version}"}),
        "/usr/sbin/mount.lustre": program("mount.lustre", 'echo "mount.lustre: mount $1 at $2 failed: No such device" >&2\nexit 19\n'),
    }
    archives.apt_repository(url, [*debs, deb("lustre-client-utils", "2.15.6-1", files)], suite=archives.suite)
    key = archives.put_key("https://fsx-lustre-client-ubuntu-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc")
    archives.stack["lustre_client"] = {"version": "*", "sources": [{"repository": url, "signature": key}]}


def cuda_repository(archives: Archives, version: str = "595.112.07") -> None:
    """NVIDIA's repository: the driver, what NVSwitch needs and DCGM. The driver's module has no source that DKMS could build."""
    url = "https://developer.download.nvidia.com/compute/cuda/repos/{system}/{arch}/"
    persistenced = {
        "/usr/bin/nvidia-persistenced": answers("nvidia-persistenced", version, {"--version": "nvidia-persistenced:  version {version}"})
    }
    fabric = {"/usr/bin/nv-fabricmanager": answers("nv-fabricmanager", version, {"--version": "Fabric Manager version is : {version}"})}
    imex = {"/usr/bin/nvidia-imex": answers("nvidia-imex", version, {"--version": "IMEX version is: {version}"})}
    dcgm = {"/usr/bin/dcgmi": answers("dcgmi", "4.7.0", {"--version": "dcgmi  version: {version}"})}
    debs = [
        deb(f"nvidia-driver-pinning-{version}", f"{version}-1", {}),
        deb("nvidia-open", f"{version}-1", persistenced),
        deb("nvidia-fabricmanager", f"{version}-1", fabric),
        # A newer one in the same repository, as soon as NVIDIA publishes it.
        deb("nvidia-fabricmanager", "610.1.1-1", fabric),
        deb("nvidia-imex", f"{version}-1", imex),
        deb("nvlsm", "2026.10.1-1", {"/usr/share/doc/nvlsm/README": LABEL.format("nvlsm") + "\n"}),
        deb("datacenter-gpu-manager-4-cuda13", "1:4.7.0-1", dcgm),
        deb("datacenter-gpu-manager-4-cuda13", "1:4.99.0-1", dcgm),
        # Before version 4 the same program was another package's, and neither names the other.
        deb("datacenter-gpu-manager", "1:3.3.9", dcgm),
    ]
    for arch in ("x86_64", "sbsa"):
        archives.apt_repository(url.format(system="debian13", arch=arch), debs)
    source = {
        "repository": url,
        "names": {"arm64": "sbsa"},
        "signature": archives.put_key("https://developer.download.nvidia.com/cuda.pub"),
    }
    archives.stack["nvidia_driver"] = {"version": version, "sources": [source]}
    archives.stack["fabricmanager"] = {"version": version, "sources": [{**source, "packages": ["nvidia-fabricmanager"]}]}
    archives.stack["imex"] = {"version": version, "sources": [source]}
    archives.stack["nvlsm"] = {"version": "*", "sources": [source]}
    archives.stack["dcgm"] = {"version": "4.7.0", "sources": [{**source, "packages": ["datacenter-gpu-manager-4-cuda13"]}]}


def make(folder: Path, extends: str = "debian-13") -> Path:
    """Fill the folder, once; the path of its stack."""
    stack = folder / "contract.yml"
    if not stack.exists():
        archives = Archives(folder, extends)
        try:
            for component in (
                efa,
                aws_cli,
                single_files,
                container_toolkit,
                enroot,
                pyxis,
                gdrcopy,
                nccl_tests,
                aws_ofi_nccl,
                lustre_client,
                cuda_repository,
            ):
                component(archives)
        finally:
            archives.close()
        about = LABEL.format("what vendors have")
        text = json.dumps({"schema": "muster.stack/1", "name": "contract", "extends": extends, "about": about, **archives.stack}, indent=1)
        stack.write_text(f"# {about}. JSON is YAML.\n{text}\n")
    return stack


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: contract_archives.py FOLDER [STACK]")
    print(make(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
