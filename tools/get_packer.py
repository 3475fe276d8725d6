#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Installs Packer and the plugins that the templates in packer/ require.

In this order: the packer on PATH if it is new enough, the vendor's release (its sums signed by HashiCorp's key), a build from the Go
modules (checked by Go's checksum database). What is made lies in the cache, by version; .venv/bin/packer leads there.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import (
    DownloadError,
    NoSpaceError,
    check_signature,
    check_sum,
    fetch,
    writing,
)

LEAST = (1, 14)
VERSION = "1.15.4"
PLUGINS = {"amazon": "1.8.2", "ansible": "1.0.3", "docker": "1.1.2"}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class PackerError(Exception):
    """Packer cannot be installed; the text is one sentence for the user."""


class Vendor(NamedTuple):
    """The address of the releases, and the key that signs them."""

    releases: str = "https://releases.hashicorp.com"
    key: str = "https://www.hashicorp.com/.well-known/pgp-key.txt"
    fingerprint: str = "C874011F0AB405110D02105534365D9472D7468F"


HASHICORP = Vendor()


def run(argv: list[str], cwd: Path | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command without input; one that cannot start ends with 127."""
    env = {**os.environ, "CHECKPOINT_DISABLE": "1", "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]} is not there")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def version_of(packer: str) -> str:
    """The version of a packer command, or "" for another program: cracklib has a command of this name."""
    said = run([packer, "version"])
    found = re.match(r"Packer v(\d+\.\d+\.\d+)", said.stdout)
    return found[1] if said.returncode == 0 and found else ""


def new_enough(version: str) -> bool:
    return bool(version) and tuple(map(int, version.split(".")[:2])) >= LEAST


def on_path(path: str, link: Path) -> str:
    """The first packer on a PATH that is new enough and is not the link to ours."""
    for folder in path.split(os.pathsep):
        packer = Path(folder) / "packer"
        if folder and packer.absolute() != link.absolute() and os.access(packer, os.X_OK) and new_enough(version_of(str(packer))):
            return str(packer)
    return ""


def target() -> tuple[str, str]:
    """Operating system and architecture as the vendor names them."""
    machine = platform.machine()
    return sys.platform, MACHINES.get(machine, machine)


def from_release(name: str, version: str, folder: Path, vendor: Vendor) -> Path:
    """The program of a release; checks the signature of its checksums and the checksum of its archive. Raises DownloadError."""
    work = folder / f"{name}-{version}.release"
    base = f"{vendor.releases}/{name}/{version}/{name}_{version}"
    archive = "{}_{}_{}_{}.zip".format(name, version, *target())
    try:
        sums, signature, keys = work / "SHA256SUMS", work / "SHA256SUMS.sig", work / "key"
        for url, path in ((f"{base}_SHA256SUMS", sums), (f"{base}_SHA256SUMS.sig", signature), (vendor.key, keys)):
            fetch(url, path, wait=0.2)
        check_signature(sums, signature, keys, vendor.fingerprint, f"{base}_SHA256SUMS")
        listed = dict(reversed(line.split()) for line in sums.read_text().splitlines())
        if archive not in listed:
            raise DownloadError(f"{base}_SHA256SUMS has no {archive}.")
        fetch(f"{vendor.releases}/{name}/{version}/{archive}", work / archive, wait=0.2)
        check_sum(work / archive, listed[archive], archive)
        with zipfile.ZipFile(work / archive) as content:
            inside = next(each for each in content.namelist() if each.startswith(name))
            with writing(work, f"{name} {version}"):
                (work / name).write_bytes(content.read(inside))
        return move_to(work / name, folder / f"{name}-{version}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def from_source(name: str, version: str, folder: Path, go: str) -> Path:
    """Build Packer inside its own module, because its replacements of other modules hold only there. Raises PackerError."""
    module = f"github.com/hashicorp/{name}"
    had = run([go, "mod", "download", "-json", f"{module}@v{version}"], timeout=900)
    if had.returncode != 0:
        raise PackerError(f"{module} {version} is not to be had as a Go module ({last_line(had)}).")
    print(f"packer: building {name} {version}, some minutes", flush=True)
    new = folder / f"{name}-{version}.new"
    # required_plugins refuses a prerelease name, which the source has.
    flags = f"-s -w -X {module}/version.VersionPrerelease="
    # Modules in Go's cache are read-only.
    built = run(
        [go, "build", "-mod=readonly", "-ldflags", flags, "-o", str(new), "."], cwd=Path(json.loads(had.stdout)["Dir"]), timeout=7200
    )
    if built.returncode != 0:
        raise PackerError(f"{module} {version} does not build ({last_line(built)}).")
    return move_to(new, folder / f"{name}-{version}")


def move_to(new: Path, path: Path) -> Path:
    new.chmod(0o755)
    return new.replace(path)


def find_go() -> str:
    """Go on PATH or at the path of its own installer, or ""."""
    usual = "/usr/local/go/bin/go"
    return shutil.which("go") or (usual if os.access(usual, os.X_OK) else "")


def obtain(name: str, version: str, folder: Path, vendor: Vendor = HASHICORP) -> Path:
    """The program from the cache, the vendor or a build; PackerError says why none is possible."""
    path = folder / f"{name}-{version}"
    if path.exists():
        return path
    try:
        made = from_release(name, version, folder, vendor)
        print(f"packer: {name} {version} is the vendor's release", flush=True)
        return made
    except NoSpaceError as error:  # a build needs more
        raise PackerError(str(error)) from error
    except DownloadError as error:
        why = str(error)
    go = find_go()
    if not go:
        raise PackerError(f"{name} {version} cannot be had: {why.rstrip('.')}, and there is no Go to build it: install packer or Go.")
    print(f"packer: {name} {version} is not had from the vendor ({why.rstrip('.')})", flush=True)
    return from_source(name, version, folder, go)


def installed(packer: str) -> set[str]:
    """Plugins as packer lists them, `amazon 1.8.2`, if they have the version that is pinned here."""
    listed = run([packer, "plugins", "installed"]).stdout
    return {f"{name} {version}" for name, version in PLUGINS.items() if f"packer-plugin-{name}_v{version}_" in listed}


def main(env: Mapping[str, str] = os.environ) -> int:
    folder, link = cache_dir(env) / "packer" / VERSION, ROOT / ".venv/bin/packer"
    try:
        with writing(folder, "Packer"):
            folder.mkdir(parents=True, exist_ok=True)
            lock_path = folder / "lock"
            lock_path.touch()
    except NoSpaceError as error:
        print(f"packer: {error}", file=sys.stderr)
        return 1
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            packer = on_path(env.get("PATH", ""), link) or str(obtain("packer", VERSION, folder))
            for name, version in PLUGINS.items():
                if f"{name} {version}" not in installed(packer):
                    plugin = obtain(f"packer-plugin-{name}", version, folder)
                    done = run([packer, "plugins", "install", "--path", str(plugin), f"github.com/hashicorp/{name}"], timeout=300)
                    if done.returncode != 0:
                        raise PackerError(f"Packer does not take the plugin {name} {version} ({last_line(done)}).")
        except PackerError as error:
            print(f"packer: {error}", file=sys.stderr)
            return 1
        link.unlink(missing_ok=True)
        link.symlink_to(packer)
    plugins = ", ".join(f"{name} {version}" for name, version in PLUGINS.items())
    print(f"packer: .venv/bin/packer is {packer}, {version_of(packer)}; plugins {plugins}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
