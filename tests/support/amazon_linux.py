# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A Debian 13 node that calls itself Amazon Linux 2023: Debian's dnf and rpm, no apt, stub RPMs, and Python 3.9 as its python3.

The stub RPMs have the names, versions, conflicts and module streams of the real ones and only as much content as the roles look at. The
real kernel, SELinux and the content of real packages are not here.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rpm_stubs import REPOSITORY, Stub, modules, spec

from ansible_collections.muster.fleet.plugins.module_utils.stack import document
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
ARCHIVES = ROOT / ".config/molecule/stub_archives"
NAMES = ROOT / "tests/fixtures/packages/amzn2023.txt"
SYSTEM, STACK = "amzn2023", "aws-2026.11"
KERNEL = "6.1.131-143.221.amzn2023"
RELEASE = f"{KERNEL}.x86_64"
DRIVER, NEWER_DRIVER, NEWEST_DRIVER = "595.112.07", "595.120.03", "610.43.02"
# What an AMI of Amazon Linux 2023 has from the beginning, as far as roles meet it.
BASE = [
    "bash",
    "ca-certificates",
    "curl-minimal",
    "gnupg2-minimal",
    "glibc",
    "kernel",
    "libgcc",
    "libstdc++",
    "python3",
    "tar",
    "gzip",
    "util-linux",
]
DEBIAN = ["dnf", "python3-dnf", "dnf-plugins-core", "rpm", "createrepo-c", "file", "python3-systemd", "gnupg"]
# Compilers and tools are Debian's; the stubs only bring their names.
TOOLS = ["gcc", "g++", "libc6-dev", "make", "curl", "jq", "unzip"]

DKMS = r"""#!/bin/sh
# A stub of dkms: it keeps what was asked of it and compiles nothing.
list=/var/lib/dkms/stub
case $1 in
    status) cat "$list" 2>/dev/null ;;
    install)
        module='' kernel=''
        shift
        while [ $# -gt 0 ]; do
            case $1 in -k) kernel=$2; shift ;; --force) ;; *) module=$1 ;; esac
            shift
        done
        [ -e "/usr/src/${module%/*}-${module#*/}/dkms.conf" ] || { echo "Error! Could not find module source directory." >&2; exit 2; }
        mkdir -p /var/lib/dkms
        grep -qs "^$module, $kernel," "$list" || echo "$module, $kernel, x86_64: installed" >>"$list"
        ;;
    *) exit 3 ;;
esac
"""
UNIT = "[Unit]\nDescription={0}\n[Service]\nExecStart=/usr/bin/{0}\n[Install]\nWantedBy=multi-user.target\n"
NCCL = """src.build:
	mkdir -p build/lib build/include
	echo 'int ncclGetVersion(int *v) { *v = 23007; return 0; }' >nccl.c
	$(CC) -shared -fPIC -Wl,-soname,libnccl.so.2 -o build/lib/libnccl.so.2 nccl.c
	echo '/* a stub */' >build/include/nccl.h
src.install: src.build
	mkdir -p $(PREFIX)
	cp -r build/lib build/include $(PREFIX)/
"""


def recorded() -> dict[str, str]:
    """The recorded packages of the distribution: {name: VERSION-RELEASE}."""
    lines = [line.split() for line in NAMES.read_text().splitlines() if line and not line.startswith("#")]
    return {line[0]: line[1] for line in lines}


def distribution() -> list[Stub]:
    """A stub for every recorded package."""
    more: dict[str, dict] = {
        "bash": {"provides": ["/bin/sh"]},
        "ca-certificates": {"files": {"/usr/bin/update-ca-trust": "#!/bin/sh\n"}},
        "curl-minimal": {"provides": ["curl"], "conflicts": ["curl"]},
        "curl": {"provides": ["curl-full"]},
        "gnupg2-minimal": {"conflicts": ["gnupg2"]},
        "gnupg2": {"provides": ["gnupg2-full"], "conflicts": ["gnupg2-minimal"]},
        "gcc-c++": {"provides": ["g++"]},
        "kernel": {"files": {f"/lib/modules/{RELEASE}/vmlinuz": "a stub\n"}},
        "kernel-devel": {"files": {f"/lib/modules/{RELEASE}/build/Makefile": "all:\n"}},
        "dkms": {"files": {"/usr/sbin/dkms": DKMS}},
        "glibc": {"ghosts": ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libm.so.6"]},
        "libgcc": {"ghosts": ["/usr/lib/x86_64-linux-gnu/libgcc_s.so.1"]},
        "chrony": {"files": {"/usr/lib/systemd/system/chronyd.service": UNIT.format("chronyd")}},
        "containerd": {"files": {"/usr/bin/containerd": "#!/bin/sh\n"}},
        "docker": {
            "files": {"/usr/bin/docker": "#!/bin/sh\n", "/usr/lib/systemd/system/docker.service": UNIT.format("dockerd")},
            "requires": ["containerd"],
        },
        "lustre-client": {"files": {"/usr/bin/lfs": "#!/bin/sh\necho lfs 2.15.6\n"}},
        "dnf-automatic": {
            "files": {
                "/usr/lib/systemd/system/dnf-automatic.timer": "[Timer]\nOnCalendar=6:00\n[Install]\nWantedBy=timers.target\n",
                "/usr/lib/systemd/system/dnf-automatic.service": "[Service]\nType=oneshot\nExecStart=/bin/true\n",
            }
        },
        "nfs-utils": {
            "files": {"/usr/sbin/exportfs": "#!/bin/sh\n", "/usr/sbin/mount.nfs": "#!/bin/sh\n", "/usr/sbin/rpc.nfsd": "#!/bin/sh\n"}
        },
    }
    stubs = []
    for name, full in recorded().items():
        version, _dash, release = full.rpartition("-")
        stubs.append(Stub(name, version or "1", release or "1", **more.get(name, {})))
    return stubs


def driver(version: str) -> list[Stub]:
    """NVIDIA's packages of one version. The module's package asks DKMS as the real one does; a failure there is no failure of rpm."""
    register = f"""for each in /lib/modules/*/build/Makefile; do
    [ -e "$each" ] || continue
    kernel=${{each#/lib/modules/}}
    dkms install nvidia/{version} -k "${{kernel%%/*}}" || :
done
"""
    conf = {f"/usr/src/nvidia-{version}/dkms.conf": f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\n'}
    unit = "/usr/lib/systemd/system/{}.service"
    return [
        Stub("kmod-nvidia-open-dkms", version, "1.amzn2023", 3, files=conf, requires=["dkms"], post=register),
        Stub("nvidia-driver-cuda", version, "1.amzn2023", 3),
        Stub(
            "nvidia-persistenced", version, "1.amzn2023", 3, files={unit.format("nvidia-persistenced"): UNIT.format("nvidia-persistenced")}
        ),
        Stub("nvidia-fabricmanager", version, "1", files={unit.format("nvidia-fabricmanager"): UNIT.format("nv-fabricmanager")}),
        Stub("nvidia-imex", version, "1", files={unit.format("nvidia-imex"): UNIT.format("nvidia-imex")}),
    ]


def cuda() -> list[Stub]:
    nvcc = "#!/bin/sh\necho 'Cuda compilation tools, release 13.2, V13.2.78'\n"
    link = "ln -sfn cuda-13.2 /usr/local/cuda\n"
    files = {"/usr/local/cuda-13.2/bin/nvcc": nvcc, "/usr/local/cuda-13.2/version.json": '{"cuda": {"version": "13.2.2"}}\n'}
    return [
        Stub("cuda-toolkit-13-2", "13.2.2", "1", files=files, post=link),
        Stub("nvlsm", "2026.10.1", "1"),
        Stub("datacenter-gpu-manager-4-cuda13", "4.7.0", "1", 1, files={"/usr/bin/dcgmi": "#!/bin/sh\n"}),
    ]


def toolkit(version: str) -> list[Stub]:
    name, unit = "nvidia-container-toolkit", "/usr/lib/systemd/system/nvidia-cdi-refresh.service"
    programs = {f"/usr/bin/nvidia-{each}": "#!/bin/sh\n" for each in ("ctk", "container-runtime", "cdi-hook")}
    return [
        Stub(name, version, "1", requires=[f"{name}-base = {version}-1", f"libnvidia-container-tools = {version}-1"]),
        Stub(f"{name}-base", version, "1", files={unit: UNIT.format("true"), **programs}),
        Stub("libnvidia-container-tools", version, "1", requires=[f"libnvidia-container1 >= {version}-1"]),
        Stub("libnvidia-container1", version, "1"),
    ]


def neuron() -> list[list[Stub]]:
    """The packages of the stack's versions, and later ones."""
    source = document.source_of(stack_files.load(STACK), "neuron", SYSTEM, "x86_64")
    assert source is not None
    pinned = [each.partition("=")[::2] for each in source["packages"]]
    register = f"dkms install aws-neuronx/stub -k {RELEASE} || :\n"
    extra = {"aws-neuronx-dkms": {"files": {"/usr/src/aws-neuronx-stub/dkms.conf": "stub\n"}, "requires": ["dkms"], "post": register}}
    now = [Stub(name, version.rstrip("*") or "1", "1", **extra.get(name, {})) for name, version in pinned]
    return [now, [Stub(name, "9.9", "1", **extra.get(name, {})) for name, _version in pinned]]


def repositories() -> dict[str, tuple[list[list[Stub]], str]]:
    """{HOST/PATH: (batches of packages, modules.yaml)} of the vendors."""
    now, newer, newest = (driver(version) for version in (DRIVER, NEWER_DRIVER, NEWEST_DRIVER))
    # NVIDIA's list of a stream names all versions of the programs and the latest of the kernel module (yum-packaging-precompiled-kmod,
    # genmodules.py). The earlier ones are in the repository and in no stream.
    programs = [each for each in now if not each.name.startswith("kmod-")]
    streams = modules("nvidia-driver", {"595-open": [*programs, *newer], "open-dkms": newest}, "open-dkms")
    later = [Stub("datacenter-gpu-manager-4-cuda13", "4.99.0", "1", 1)]
    return {
        "developer.download.nvidia.com/compute/cuda/repos/amzn2023/x86_64": ([now, newer, newest, cuda(), later], streams),
        "nvidia.github.io/libnvidia-container/stable/rpm/x86_64": ([toolkit("1.20.1"), toolkit("1.99.0")], ""),
        "yum.repos.neuron.amazonaws.com": (neuron(), ""),
    }


def mirror(folder: Path, run: Callable[[str], str], put: Callable[[Path, str], None]) -> Path:
    """Fill `folder`, here and on the node, with stubs of all downloads of the stack; return the path of a stack that trusts them.

    run: runs a script on the node and returns its output; put: copies a folder to the same path on the node.
    """
    subprocess.run([sys.executable, str(ARCHIVES), str(folder), STACK], check=True, stdout=subprocess.DEVNULL)
    key = run(
        "gpg --batch --quiet --passphrase '' --quick-generate-key 'Stub RPMs <rpm@muster.invalid>' rsa3072 sign never; gpg --armor --export"
    )
    fingerprint = run("gpg --with-colons --list-keys | sed -n 's/^fpr:*\\([0-9A-F]*\\):/\\1/p' | head -n 1")
    for place, (batches, streams) in repositories().items():
        where = folder / place
        where.mkdir(parents=True, exist_ok=True)
        for number, stubs in enumerate(batches):
            (where / f"{number}.spec").write_text(spec(stubs))
        if streams:
            (where / "modules.yaml").write_text(streams)
    stubs = folder / "distribution"
    stubs.mkdir()
    (stubs / "0.spec").write_text(spec(distribution()))
    nccl = nccl_archive(folder)
    whole = stack_files.load(STACK)
    made = json.loads((folder / "stub.yml").read_text().split("\n", 1)[1])
    entries: dict[str, dict] = {"nccl": nccl}
    for name in document.components(whole):
        source = document.source_of(whole, name, SYSTEM, "x86_64")
        if source is None or name in entries:
            continue
        if source["kind"] == "repository" and "signature" in source:
            keyed = whole[name]["sources"]
            [mine] = [each for each in keyed if "repository" in each and SYSTEM in each["systems"]]
            path = folder / source["signature"]["key"].split("://", 1)[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(key)
            entries[name] = {"sources": [{**mine, "signature": {**mine["signature"], "fingerprint": fingerprint}}]}
        elif source["kind"] == "url" and name in made:
            entries[name] = made[name]
    stack = folder / "amazon.yml"
    stack.write_text(json.dumps({"schema": "muster.stack/1", "name": "amazon-stubs", "extends": STACK, **entries}))
    put(folder, str(folder))
    for place in [*repositories(), "distribution"]:
        run(f"bash -c {shlex.quote(REPOSITORY)} repository {folder / place} {fingerprint}")
    # The real EFA installer brings NCCL's plugin, too.
    plugin = f"NET/OFI Initializing aws-ofi-nccl {whole['aws_ofi_nccl']['version']}"
    run(f"mkdir -p /opt/amazon/ofi-nccl/lib; printf '\\0%s\\0' '{plugin}' >/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so")
    run("mkdir -p /etc/pki/rpm-gpg; gpg --armor --export >/etc/pki/rpm-gpg/RPM-GPG-KEY-amazon-linux-2023")
    run(f"rm -rf /srv/amazon-linux; mv {stubs} /srv/amazon-linux")
    return stack


def nccl_archive(folder: Path) -> dict:
    """A stub of NCCL's source archive; its entry in a stack."""
    sys.path.insert(0, str(ARCHIVES))
    from archives import sha256, tar_gz

    whole = stack_files.load(STACK)["nccl"]
    url = whole["sources"][0]["url"]
    content = tar_gz({"nccl-stub/Makefile": NCCL})
    path = folder / url.format(version=whole["version"]).split("://", 1)[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"version": whole["version"], "sources": [{"url": url, "sha256": sha256(content)}]}


def python39() -> Path | None:
    """The prefix of a Python 3.9 of this machine: that of $PYTHON39, of python3.9 on the search path, or pyenv's."""
    pyenv = subprocess.run(["sh", "-c", "pyenv root"], capture_output=True, text=True, check=False).stdout.strip()
    found = sorted(Path(pyenv, "versions").glob("3.9*/bin/python3.9")) if pyenv else []
    for candidate in [os.environ.get("PYTHON39", ""), "python3.9", *map(str, found)]:
        argv = [candidate, "-c", "import sys; print(sys.version_info[:2] == (3, 9), sys.base_prefix)"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False) if candidate and _there(candidate) else None
        if done and done.returncode == 0 and done.stdout.startswith("True "):
            return Path(done.stdout.split(" ", 1)[1].strip())
    return None


def _there(program: str) -> bool:
    return subprocess.run(["sh", "-c", f"command -v {shlex.quote(program)}"], capture_output=True, check=False).returncode == 0


# Run when everything that only apt can bring is there.
BECOME = r"""
mkdir -p /etc/dnf/vars /opt/debian /etc/yum.repos.d
echo 2023 >/etc/dnf/vars/releasever
printf '[main]\nenabled=0\n' >/etc/dnf/plugins/local.conf
cat >/etc/yum.repos.d/amazonlinux.repo <<'END'
[amazonlinux]
name=Amazon Linux 2023 repository
baseurl=file:///srv/amazon-linux
gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-amazon-linux-2023
END
rm -f /etc/os-release /etc/debian_version
cat >/etc/os-release <<'END'
NAME="Amazon Linux"
VERSION="2023"
ID="amzn"
ID_LIKE="fedora"
VERSION_ID="2023"
PLATFORM_ID="platform:al2023"
PRETTY_NAME="Amazon Linux 2023.7.20250331"
END
echo 'Amazon Linux release 2023.7.20250331 (Amazon Linux)' >/etc/system-release
for each in /usr/bin/apt* /usr/bin/dpkg*; do mv "$each" /opt/debian/; done
# The real EFA installer brings an Open MPI that programs can be built with.
mkdir -p /opt/amazon/openmpi5/include /opt/amazon/openmpi5/lib
echo 'int MPI_Initialized(int *);' >/opt/amazon/openmpi5/include/mpi.h
echo 'int MPI_Initialized(int *there) { *there = 0; return 0; }' | gcc -x c -shared -fPIC -o /opt/amazon/openmpi5/lib/libmpi.so -
"""
