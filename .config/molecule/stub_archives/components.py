# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""One function a component: it puts the component's archives into the mirror and its entry into the stack."""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Callable
from pathlib import Path

from archives import ARCHITECTURES, LABEL, REHEARSES, Archives, answers, deb, labelled, program, sha256, tar_gz

SOURCES = Path(__file__).parent / "sources"
# Now the driver is there, the node's /sys and tools have its version.
LOADED = "[ ! -x /usr/local/bin/muster-rehearsal ] || /usr/local/bin/muster-rehearsal apply >/dev/null;"
# What the node that rehearses has itself, because it knows the node's type.
FROM_NODE = '[ "$1" = --version ] || [ ! -x /usr/local/bin/{0} ] || exec /usr/local/bin/{0} "$@"\n'
# The version, and the tag's archive, of what a role builds from source.
BUILT = {
    "pyxis": ("0.24.0", "https://github.com/NVIDIA/pyxis/archive/refs/tags/v{version}.tar.gz"),
    "gdrcopy": ("2.6", "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v{version}.tar.gz"),
    "nccl_tests": ("2.19.6", "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v{version}.tar.gz"),
    "aws_ofi_nccl": ("1.21.1", "https://github.com/aws/aws-ofi-nccl/archive/refs/tags/v{version}.tar.gz"),
    "enroot": ("4.1.2", "https://github.com/NVIDIA/enroot/archive/refs/tags/v{version}.tar.gz"),
}
# What their archives lack: component -> folder -> archive.
PARTS = {
    "enroot": {
        "deps/musl": "https://musl.libc.org/releases/musl-1.2.5.tar.gz",
        "deps/makeself": "https://github.com/megastep/makeself/archive/refs/tags/release-2.4.5.tar.gz",
        "deps/linux-headers": "https://github.com/sabotage-linux/kernel-headers/archive/refs/tags/v4.19.88-1.tar.gz",
    }
}

# The versions of the stack that a rehearsal extends. The plugin is in EFA's installer there, which would need a compiler.
BUILT_REHEARSAL = {
    "nccl": ("2.30.7", "https://github.com/NVIDIA/nccl/archive/refs/tags/v{version}-1.tar.gz"),
    "aws_ofi_nccl": ("1.22.0", BUILT["aws_ofi_nccl"][1]),
}


def speaks(component: str) -> str:
    """C code that names the stand-in as soon as a program loads it."""
    text = LABEL.format(component)
    return f'#include <stdio.h>\n__attribute__((constructor)) static void says(void) {{ fputs("{text}\\n", stderr); }}\n'


def service(name: str, description: str, command: str) -> dict[str, str]:
    """The unit of a daemon, and the daemon, which does nothing."""
    unit = f"# {LABEL.format(name)}\n[Unit]\nDescription={description}\n[Service]\nExecStart={command}\n"
    return {f"/usr/lib/systemd/system/{name}.service": f"{unit}[Install]\nWantedBy=multi-user.target\n"}


def built_from_source(archives: Archives) -> None:
    """Each archive has the top folder of a GitHub tag and the stub's label in it."""
    for component, (version, url) in {**BUILT, **(BUILT_REHEARSAL if REHEARSES else {})}.items():
        paths = [path for path in (SOURCES / component).rglob("*") if path.is_file()]
        files = {str(path.relative_to(SOURCES / component)): labelled(path.read_text()) for path in paths}
        own = {name: files.pop(name) for name in list(files) if name.endswith(".rehearsal")}
        if REHEARSES:
            files |= {name.removesuffix(".rehearsal"): text for name, text in own.items()}
            files |= {name: text + speaks(component) for name, text in files.items() if name.endswith(".c") and component != "pyxis"}
            if component == "pyxis":
                files["pyxis.c"] = files["pyxis.c"].replace('SAYS ""', f'SAYS ", {LABEL.format(component)}"')
        top = f"{url.split('/')[4]}-{version}"
        content = tar_gz({f"{top}/{name}": text for name, text in {"STUB": LABEL.format(component) + "\n", **files}.items()})
        archives.put(url.format(version=version), content)
        source: dict = {"url": url, "sha256": sha256(content)}
        for folder, address in PARTS.get(component, {}).items():
            part = tar_gz({"part/STUB": LABEL.format(f"a part of {component}") + "\n"})
            archives.put(address, part)
            source.setdefault("parts", []).append({"folder": folder, "url": address, "sha256": sha256(part)})
        archives.stack[component] = {"version": version, "sources": [source]}


def efa(archives: Archives, version: str = "1.51.0", libfabric: str = "2.7.0amzn2.0") -> None:
    url = "https://efa-installer.amazonaws.com/aws-efa-installer-{version}.tar.gz"
    parts = {"libfabric1-aws": libfabric, "rdma-core": "65.0"}
    packages = {f"DEBS/{name}_{number}_all.deb": deb(name, number, {}) for name, number in parts.items()}
    # Without a device the vendor's fi_info says "No data available" and exits with that error's number.
    info = f"""
[ "$1" != --version ] || {{ echo "fi_info: {libfabric}"; echo "libfabric: {libfabric}"; echo "libfabric api: 2.4"; exit 0; }}
echo "fi_getinfo: -61 (No data available)" >&2
exit 61
"""
    files: dict[str, str | bytes] = {
        "efa_installer.sh": labelled((SOURCES / "efa/efa_installer.sh").read_text()).replace("VERSION", version, 1),
        "files/label": LABEL.format("libfabric and aws-ofi-nccl") + "\n",
        "files/mpirun": answers("mpirun of Open MPI", "5.0.9", {"--version": "mpirun (Open MPI) {version}"}),
        "files/fi_info": program("fi_info", FROM_NODE.format("fi_info") + info if REHEARSES else info),
        "files/mpi.h": f"/* {LABEL.format('Open MPI')} */\nint MPI_Initialized(int *there);\n",
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


def aws_cli(archives: Archives, version: str = "2.36.11") -> None:
    url = "https://awscli.amazonaws.com/awscli-exe-linux-{arch}-{version}.zip"
    files = {
        "aws/install": labelled((SOURCES / "aws_cli/install").read_text()).replace("VERSION", version),
        "aws/dist/aws": answers("aws", version, {"--version": "aws-cli/{version} Python/3.13 Linux stub"}),
    }
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, text in files.items():
            member = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            member.external_attr = 0o100755 << 16
            archive.writestr(member, text)
    for arch in ("x86_64", "aarch64"):
        archives.put(url.format(arch=arch, version=version), raw.getvalue())
        archives.put(url.format(arch=arch, version=version) + ".sig", archives.sign(raw.getvalue()))
    signature = archives.put_key("https://keys.openpgp.org/vks/v1/by-fingerprint/FB5DB77FD5C118B80511ADA8A6310ACC4672475C")
    archives.stack["aws_cli"] = {"version": version, "sources": [{"url": url, "names": {"arm64": "aarch64"}, "signature": signature}]}


def with_checksums(archives: Archives, name: str, version: str, url: str, content: Callable[[str], bytes]) -> None:
    """A component of one file for each architecture, which the stack verifies by its checksum."""
    sums = {}
    for arch, deb_arch in ARCHITECTURES.items():
        archives.put(url.format(version=version, arch=deb_arch), content(deb_arch))
        sums[arch] = sha256(content(deb_arch))
    archives.stack[name] = {"version": version, "sources": [{"url": url, "names": {"x86_64": "amd64"}, "sha256": sums}]}


def command_line_tools(archives: Archives) -> None:
    tool = answers("kubectl", "1.36.4", {"version --client": "Client Version: v{version}\nKustomize Version: v5.8.0"}).encode()
    with_checksums(archives, "kubectl", "1.36.4", "https://dl.k8s.io/release/v{version}/bin/linux/{arch}/kubectl", lambda _arch: tool)
    url = "https://github.com/eksctl-io/eksctl/releases/download/v{version}/eksctl_Linux_{arch}.tar.gz"
    eksctl = tar_gz({"eksctl": answers("eksctl", "0.230.0", {"version": "{version}"})})
    with_checksums(archives, "eksctl", "0.230.0", url, lambda _arch: eksctl)
    helm = answers("helm", "3.18.4", {"version --short": "v{version}+gstub"})
    url = "https://get.helm.sh/helm-v{version}-linux-{arch}.tar.gz"
    with_checksums(archives, "helm", "3.18.4", url, lambda arch: tar_gz({f"linux-{arch}/helm": helm}))


def container_toolkit(archives: Archives, version: str = "1.20.1") -> None:
    """Four packages, each of which demands the others in its own version."""
    unit = "# {}\n[Unit]\nDescription=Refresh NVIDIA CDI specification file\n{}\n[Install]\nWantedBy=multi-user.target\n"
    service = "ConditionPathExists=|/usr/bin/nvidia-smi\nConditionPathExists=/usr/bin/nvidia-ctk\n[Service]\nType=oneshot\n"
    service += "Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml\n"
    service += "EnvironmentFile=-/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env\n"
    service += "ExecStart=/usr/bin/nvidia-ctk cdi generate"
    ctk = answers("nvidia-ctk", version, {"--version": "NVIDIA Container Toolkit CLI version {version}", "cdi list": "nvidia.com/gpu=0"})
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
    url = "https://nvidia.github.io/libnvidia-container/stable/deb/{arch}"
    for arch in ARCHITECTURES.values():
        debs = [
            deb(what, full, hook, arch, f"{what}-base (= {full}), libnvidia-container-tools (= {full})"),
            deb(f"{what}-base", full, base, arch),
            deb("libnvidia-container-tools", full, cli, arch, f"libnvidia-container1 (>= {full})"),
            deb("libnvidia-container1", full, {}, arch),
        ]
        # The vendor's repository has later versions too, which the role must not install.
        later = [deb(each, "1.99.0-1", {}, arch) for each in (what, f"{what}-base", "libnvidia-container-tools", "libnvidia-container1")]
        archives.apt_repository(url.format(arch=arch), debs + later)
    source = {"repository": url, "names": {"x86_64": "amd64"}, "signature": archives.put_key(f"{url.split('/stable', 1)[0]}/gpgkey")}
    archives.stack["nvidia_container_toolkit"] = {"version": version, "sources": [source]}


def lustre_client(archives: Archives) -> None:
    """Modules for the kernel that runs here, which the nodes share, and for a kernel that nobody has."""
    url = "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu"
    module = f"# {LABEL.format('the Lustre client')}\n"
    debs = [
        deb(f"lustre-client-modules-{kernel}", "2.15.6-1", {f"/lib/modules/{kernel}/updates/lustre.ko": module})
        for kernel in (platform.release(), "6.8.0-9999-stub")
    ]
    files = {
        "/usr/bin/lfs": answers("lfs", "2.15.6", {"--version": "lfs {version}"}),
        "/usr/sbin/mount.lustre": program("mount.lustre", 'echo "mount.lustre: mount $1 at $2 failed: No such device" >&2\nexit 19\n'),
    }
    archives.apt_repository(url, [*debs, deb("lustre-client-utils", "2.15.6-1", files)], suite=archives.suite)
    # As in the real stack nobody publishes the key's fingerprint.
    key = archives.put_key("https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc")["key"]
    signature = {"key": key, "https": "AWS publishes no fingerprint of it"}
    archives.stack["lustre_client"] = {"version": "*", "sources": [{"repository": url, "signature": signature}]}


# Roles enable these units when they install them.
ENABLED = ("nvidia-fabricmanager", "nvidia-imex")

# It runs the program that it should profile, and its report says what it is.
NSYS = """\
[ "$1" != --version ] || { echo "NVIDIA Nsight Systems version 13.2.2"; exit; }
[ "$1" = profile ] || exit 1
shift
while case $1 in --output=*) echo "a rehearsal: nothing was profiled" >"${1#*=}.nsys-rep" ;; --*) ;; *) false ;; esac; do shift; done
exec "$@"
"""


def cuda_repository(archives: Archives, version: str = "595.112.07") -> None:
    """The driver, the daemons of NVSwitch and DCGM. The driver's package has no module source that DKMS could build."""
    url = "https://developer.download.nvidia.com/compute/cuda/repos/{system}/{arch}/"

    def tool(name: str, said: str, number: str = version) -> dict[str, str]:
        text = answers(name, number, {"--version": said})
        loads = LOADED if name == "nvidia-persistenced" else ""
        # Without --version it is a daemon.
        return {f"/usr/bin/{name}": text.replace("*) echo", f"*) {loads} exec sleep infinity ;; *) echo", 1) if REHEARSES else text}

    daemons = {
        name: service(name, f"{name} that does nothing", f"/usr/bin/{program}") if REHEARSES or name in ENABLED else {}
        for name, program in (
            ("nvidia-persistenced", "nvidia-persistenced"), ("nvidia-fabricmanager", "nv-fabricmanager"), ("nvidia-imex", "nvidia-imex"),
            ("nvidia-dcgm", "nv-hostengine"),
        )
    }  # fmt: skip
    fabric = {**tool("nv-fabricmanager", "Fabric Manager version is : {version}"), **daemons["nvidia-fabricmanager"]}
    dcgm = {**tool("dcgmi", "dcgmi  version: {version}", "4.7.0"), **daemons["nvidia-dcgm"]}
    if REHEARSES:
        dcgm["/usr/bin/nv-hostengine"] = program("nv-hostengine", "exec sleep infinity\n")
    debs = [
        deb(f"nvidia-driver-pinning-{version}", f"{version}-1", {}),
        deb(
            "nvidia-open",
            f"{version}-1",
            {**tool("nvidia-persistenced", "nvidia-persistenced:  version {version}"), **daemons["nvidia-persistenced"]},
        ),
        deb("nvidia-fabricmanager", f"{version}-1", fabric),
        # The repository gets newer versions as soon as NVIDIA publishes them.
        deb("nvidia-fabricmanager", "610.1.1-1", fabric),
        deb("nvidia-imex", f"{version}-1", {**tool("nvidia-imex", "IMEX version is: {version}"), **daemons["nvidia-imex"]}),
        deb("nvlsm", "2026.10.1-1", {"/usr/share/doc/nvlsm/README": LABEL.format("nvlsm") + "\n"}),
        deb("datacenter-gpu-manager-4-cuda13", "1:4.7.0-1", dcgm),
        deb("datacenter-gpu-manager-4-cuda13", "1:4.99.0-1", dcgm),
        # Before version 4 another package had the same program, and neither package conflicts with the other.
        deb("datacenter-gpu-manager", "1:3.3.9", dcgm),
    ]
    if REHEARSES:
        debs.append(deb("cuda-toolkit-13-2", "13.2.2-1", {
            "/usr/local/cuda/bin/nvcc": (labelled((SOURCES / "cuda/nvcc").read_text())),
            "/usr/local/cuda/version.json": json.dumps({"cuda": {"name": LABEL.format("CUDA SDK"), "version": "13.2.2"}}) + "\n",
        }))  # fmt: skip
        debs.append(deb("cuda-nsight-systems-13-2", "13.2.2-1", {"/usr/bin/nsys": program("nsys", NSYS)}))
    for arch in ("x86_64", "sbsa"):
        archives.apt_repository(url.format(system="debian13", arch=arch), debs)
    signature = archives.put_key("https://developer.download.nvidia.com/cuda.pub")
    source = {"repository": url, "names": {"arm64": "sbsa"}, "signature": signature}
    archives.stack |= {name: {"version": version, "sources": [source]} for name in ("nvidia_driver", "imex")}
    archives.stack["fabricmanager"] = {"version": version, "sources": [{**source, "packages": ["nvidia-fabricmanager"]}]}
    archives.stack["nvlsm"] = {"version": "*", "sources": [source]}
    if REHEARSES:
        archives.stack["cuda"] = {"version": "13.2.2", "sources": [{**source, "packages": ["cuda-toolkit-13-2"]}]}
        archives.stack["nsight"] = {"version": "13.2.2", "sources": [{**source, "packages": ["cuda-nsight-systems-13-2"]}]}
    archives.stack["dcgm"] = {"version": "4.7.0", "sources": [{**source, "packages": ["datacenter-gpu-manager-4-cuda13"]}]}


def neuron(archives: Archives) -> None:
    """A flat repository, because AWS has no suite for Debian. The driver's package has no module source that DKMS could build."""
    url, tools = "https://apt.repos.neuron.amazonaws.com", "/opt/aws/neuron/bin"
    packages = {
        "aws-neuronx-dkms": ("2.30.2.0", {"/usr/src/aws-neuronx-2.30.2.0/README": LABEL.format("aws-neuronx-dkms") + "\n"}),
        "aws-neuronx-tools": ("2.32.28.0", {f"{tools}/neuron-ls": answers("neuron-ls", "2.32.28.0", {"--version": "neuron-ls {version}"})}),
        "aws-neuronx-collectives": ("2.34.10.0", {"/opt/aws/neuron/lib/libnccom.so.2": LABEL.format("aws-neuronx-collectives") + "\n"}),
        "aws-neuronx-runtime-lib": ("2.34.10.0", {"/opt/aws/neuron/lib/libnrt.so.1": LABEL.format("aws-neuronx-runtime-lib") + "\n"}),
    }
    # Later versions, which the stack does not name, are in the repository too.
    later = [deb(name, "9.9.0.0", {}) for name in packages]
    # A real version ends with the hash of a commit.
    archives.apt_repository(url, [deb(name, version + "-1a2b3c4d", files) for name, (version, files) in packages.items()] + later)
    signature = archives.put_key(f"{url}/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB")
    named = [f"{name}={version}*" for name, (version, _files) in packages.items()]
    archives.stack["neuron"] = {"version": "2.32.0", "sources": [{"repository": url, "packages": named, "signature": signature}]}


def docker(archives: Archives, version: str = "29.1.4") -> None:
    url = "https://download.docker.com/linux/debian"
    full = f"5:{version}-1~debian.13~trixie"
    client = {"/usr/bin/docker": labelled((SOURCES / "docker/docker").read_text()).replace("VERSION", version)}
    daemon = {"/usr/bin/dockerd": labelled((SOURCES / "docker/dockerd").read_text()), **service("docker", "Docker", "/usr/bin/dockerd")}
    containerd = {"/usr/bin/containerd": program("containerd", "exec sleep infinity\n")}
    debs = [deb("docker-ce", full, daemon), deb("docker-ce-cli", full, client), deb("containerd.io", "2.2.1-1", containerd)]
    archives.apt_repository(url, debs, suite=archives.suite, section="stable")
    packages = ["docker-ce", "docker-ce-cli", "containerd.io"]
    signature = archives.put_key(f"{url}/gpg")
    archives.stack["docker"] = {"version": version, "sources": [{"repository": url, "packages": packages, "signature": signature}]}


def without_gnupg(archives: Archives) -> None:
    """EFA's installer by its checksum: the check of its packages' signatures would install gpg on every node."""
    entry = archives.stack["efa"]
    path = archives.folder / entry["sources"][0]["url"].format(version=entry["version"]).split("://", 1)[1]
    entry["sources"] = [{"url": entry["sources"][0]["url"], "sha256": sha256(path.read_bytes())}]


ALL = (
    built_from_source,
    efa,
    aws_cli,
    command_line_tools,
    container_toolkit,
    lustre_client,
    cuda_repository,
    neuron,
)
# Scenarios of roles take Debian's Docker. FSx's client has no packages for Debian, so that the real stack refuses it as well.
REHEARSED = (*(each for each in ALL if each is not lustre_client), docker, without_gnupg)
