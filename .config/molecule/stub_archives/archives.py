# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A mirror folder with a signing key, and the formats in it: tar archives, Debian packages, apt repositories, programs."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from itertools import chain
from pathlib import Path

STUB = "stub archive: keeps names, options and exit codes of {}; not the vendor's"
# The words by which plugins/module_utils/node/rehearsal.py recognises a stand-in.
STAND_IN = "muster rehearsal: {} is a stand-in for the vendor's; it looked at no hardware"
REHEARSES = "--rehearsal" in sys.argv
LABEL = STAND_IN if REHEARSES else STUB
ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
EPOCH = 1_767_225_600  # one time in all archives, so that the same content has the same checksum


class Archives:
    """A mirror folder with its own signing key. `stack` collects the entries of the components that were put into it."""

    def __init__(self, folder: Path, extends: str = "debian-13") -> None:
        self.folder = folder
        self.suite = {"debian-12": "bookworm"}.get(extends, "trixie")
        self.stack: dict[str, dict] = {}
        # The socket of gpg's agent needs a short path.
        self.home = tempfile.TemporaryDirectory(prefix="stub-gpg-")
        self._gpg("--passphrase", "", "--quick-generate-key", "Stub archives <stub@muster.invalid>", "ed25519", "sign", "never")
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
        """Write a file to its path in the mirror, HOST/PATH."""
        path = self.folder / url.split("://", 1)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def put_key(self, url: str) -> dict[str, str]:
        """Write the key into the mirror; return the `signature` of a stack's source."""
        self.put(url, self.key)
        return {"key": url, "fingerprint": self.fingerprint}

    def sign(self, content: bytes) -> bytes:
        return self._gpg("--detach-sign", "--output", "-", data=content)

    def apt_repository(self, url: str, debs: list[bytes], suite: str = "", section: str = "main") -> None:
        """Write a signed apt repository: flat without a suite, as NVIDIA's is, otherwise with one section."""
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
        indices = {f"{section}/binary-{arch}/Packages": "\n".join(each) for arch, each in entries.items()}
        if not suite:
            indices = {"Packages": "\n".join(dict.fromkeys(chain.from_iterable(entries.values())))}
        release = f"Origin: {LABEL.format('a package repository')}\nSuite: {suite or 'stub'}\nCodename: {suite or 'stub'}\n"
        release += f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nArchitectures: {' '.join(entries)}\nComponents: {section}\nSHA256:\n"
        for name, text in indices.items():
            self.put(f"{at}/{name}", text.encode())
            release += f" {sha256(text.encode())} {len(text.encode())} {name}\n"
        self.put(f"{at}/Release", release.encode())
        self.put(f"{at}/Release.gpg", self._gpg("--armor", "--detach-sign", "--output", "-", data=release.encode()))
        self.put(f"{at}/InRelease", self._gpg("--clearsign", "--output", "-", data=release.encode()))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar_gz(files: dict[str, str | bytes], links: dict[str, str] | None = None) -> bytes:
    """Pack these files; one that begins with #! is executable."""
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
    control = f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: Muster <stub@muster.invalid>\n"
    control += f"Depends: {depends}\n" if depends else ""
    control += f"Description: {LABEL.format(name)}\n"
    if REHEARSES:
        files = {**files, f"/usr/share/muster/rehearsal/{name}": LABEL.format(name) + "\n"}
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
    says = f"echo '{LABEL.format(of)}' >&2\n".replace("vendor's", "vendor") if REHEARSES else ""
    return f"#!/bin/sh\n# {LABEL.format(of)}\n{says}{body}"


def labelled(text: str) -> str:
    """The text of a source file; its label is that of the archives."""
    return re.sub(STUB.format("(.*?)"), lambda found: LABEL.format(found[1]), text)


def answers(of: str, version: str, cases: dict[str, str]) -> str:
    """A program that answers these command lines and ends with code 1 for all others."""
    body = "".join(f"'{words}') printf '%s\\n' '{answer.format(version=version)}' ;;\n" for words, answer in cases.items())
    return program(of, f'case "$*" in\n{body}*) echo "unknown command: $*" >&2; exit 1 ;;\nesac\n')
