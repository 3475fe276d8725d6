# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The images of a cluster, made without a registry and without a container engine: archives as `docker save` writes them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.lookup.tree_sha256 import digest
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import locked
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from localkube import LocalKubeError
from localkube.programs import OPERATORS, built, folder

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "trixie"
# The training operator asks for the master's name by nslookup, MPI starts its ranks by SSH.
PACKAGES = (
    "bind9-dnsutils",
    "ca-certificates",
    "iproute2",
    "openmpi-bin",
    "openssh-client",
    "openssh-server",
    "procps",
    "python3",
    "python3-venv",
)
SHARED = "/var/cache/muster"  # where pods see the environment with torch, as the nodes of a local fleet do
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def trainer_image() -> str:
    """The name of the image with the trainer, by what is in it."""
    return f"localhost/muster-trainer:{digest('trainer')[:12]}"


def venv_name() -> str:
    """The environment with torch that the fleets of this machine share."""
    return f"venv-{RELEASE}-{digest('roles/trainer/files')[:12]}"


def sha256(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def write_archive(path: Path, name: str, layers: list[Path], config: dict[str, Any]) -> None:
    """An image of layers (tar files) with the configuration that its containers start with."""
    sums = [sha256(layer) for layer in layers]
    document = {
        "architecture": MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": [f"PATH={PATH}"], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each}" for each in sums]},
        "history": [{"created_by": "localkube"} for _each in layers],
    }
    text = json.dumps(document).encode()
    own = f"{hashlib.sha256(text).hexdigest()}.json"
    files = [f"{each}/layer.tar" for each in sums]
    manifest = json.dumps([{"Config": own, "RepoTags": [name], "Layers": files}]).encode()
    part = path.with_suffix(".part")
    try:
        with tarfile.open(part, "w") as archive:
            for title, content in ((own, text), ("manifest.json", manifest)):
                entry = tarfile.TarInfo(title)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            for title, layer in zip(files, layers, strict=True):
                archive.add(layer, title, recursive=False)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # of a write that ended early, as on a full disk


def layer_of(files: Mapping[str, Path], target: Path) -> Path:
    """A layer of {path in the image: file or folder}, owned by root."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = 0
        entry.mode |= 0o444 | (0o111 if entry.isdir() or entry.mode & 0o100 else 0)
        return entry

    with tarfile.open(target, "w") as layer:
        for inside, source in files.items():
            layer.add(source, inside.lstrip("/"), filter=owned)
    return target


def program_image(name: str, image: str, program: str, user: str, env: Mapping[str, str]) -> Path:
    """The image of one static program, which is its entry point."""
    binary = built(name, env)
    path = folder(env) / "images" / f"{binary.name}.tar"
    if path.exists() and path.stat().st_mtime >= binary.stat().st_mtime:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        layer = layer_of({program: binary}, Path(work) / "layer.tar")
        write_archive(path, image, [layer], {"Entrypoint": [program], **({"User": user} if user else {})})
    return path


def operator_image(name: str) -> str:
    return f"localhost/muster-{name}:{OPERATORS[name].version}"


def root_file_system(env: Mapping[str, str]) -> Path:
    """Debian with what a rank needs, as a tar file in the cache."""
    recipe = hashlib.sha256(json.dumps([RELEASE, PACKAGES]).encode()).hexdigest()[:12]
    path = folder(env) / "images" / f"{RELEASE}-{recipe}.layer"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache_dir(env) / "locks" / path.stem):
        if not path.exists():
            part = path.with_suffix(".part.tar")
            argv = ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(part)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                part.unlink(missing_ok=True)
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise LocalKubeError(f"The image of the pods cannot be made ({last}); see that mmdebstrap is there and its mirror answers.")
            part.replace(path)
    return path


def trainer_archive(env: Mapping[str, str]) -> Path:
    """The image of ranks: Debian and the trainer. The environment with torch (5 GB) is a mount, see environment()."""
    base = root_file_system(env)
    image = trainer_image()
    path = folder(env) / "images" / f"trainer-{image.rpartition(':')[2]}-{base.stem}.tar"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as text:
        work = Path(text)
        argv = [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            text,
            str(ROOT / "trainer"),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        wheels = list(work.glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise LocalKubeError(f"The trainer's wheel cannot be built: {(done.stderr.strip().splitlines() or ['pip said nothing'])[-1]}")
        shutil.unpack_archive(wheels[0], work / "trainer", "zip")
        layer = layer_of({"/opt/muster/trainer": work / "trainer"}, work / "layer.tar")
        paths = f"PATH={SHARED}/{venv_name()}/bin:{PATH}"
        variables = [paths, "PYTHONPATH=/opt/muster/trainer", "PYTHONDONTWRITEBYTECODE=1"]
        write_archive(path, image, [base, layer], {"Cmd": ["/bin/bash"], "Env": variables})
    return path


def environment(env: Mapping[str, str]) -> Path:
    """The folder of the environment with torch, made by the image's Python when it is not there."""
    shared = cache_dir(env) / "shared"
    if (shared / venv_name() / ".muster-made").exists():
        return shared / venv_name()
    shared.mkdir(parents=True, exist_ok=True)
    script = """\
set -e
tar -C "$1" -xf "$2"
mkdir -p "$1$4" "$1/muster"
cp /etc/resolv.conf "$1/etc/"
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount --bind "$3" "$1$4"
mount --bind "$5" "$1/muster"
exec chroot "$1" /muster/make-venv.sh "$4/$6" /muster/requirements.txt
"""
    base = root_file_system(env)
    with tempfile.TemporaryDirectory(dir=folder(env)) as root:
        words = [root, base, shared, SHARED, ROOT / "roles/trainer/files", venv_name()]
        argv = ["unshare", "--mount", "--", "bash", "-c", script, "environment", *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH})
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LocalKubeError(f"The environment with torch cannot be made in {shared} ({last}); correct that and try again.")
    return shared / venv_name()


def archives(env: Mapping[str, str], trainer: bool = True, device_plugin: str = "") -> list[Path]:
    """All images of a cluster, that of the pods' first process first; of the operators those that are built.

    device_plugin: the name of the image with the stand-in of the device plugins, for a cluster that rehearses.
    """
    out = [program_image("pause", "localhost/muster-pause:1", "/pause", "", env)]
    if device_plugin:
        out.append(program_image("device-plugin", device_plugin, "/device-plugin", "", env))
    for name in OPERATORS:
        if built(name, env).exists():
            out.append(program_image(name, operator_image(name), "/manager", "65532:65532", env))
    return out + ([trainer_archive(env)] if trainer else [])
