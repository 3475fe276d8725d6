# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads files on the Ansible controller and checks them by checksum or signature."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.stack.document import mirrored
from ansible_collections.muster.fleet.plugins.module_utils.stack.pins import PinError, parse, pinned, render

TRIES = 4
PART = ".part"
BLOCK = 1 << 20
# A repository's key for which only HTTPS vouches is fetched again after a day, so that a change of it is noticed.
KEY_SECONDS = 86400
FULL = (errno.ENOSPC, errno.EDQUOT)
CANNOT_WRITE = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
# What gpg says of a signature that fits but no longer counts: as a status line, and as the validity of a key.
STALE = {
    "REVKEYSIG": "which its owner has revoked",
    "EXPKEYSIG": "which has expired",
    "EXPSIG": "but the signature has expired",
    "r": "which its owner has revoked",
    "e": "which has expired",
}
NEWER = "do not use it, and name a newer version or the maker's new key in the stack"


class DownloadError(Exception):
    """A file cannot be downloaded, or fails its check; the text is one sentence for the user."""


class NoSpaceError(DownloadError):
    """A folder cannot take a file, because its disk is full or nobody may write there."""


@contextmanager
def writing(folder: Path, what: str):
    """Raise NoSpaceError where files of a download cannot be written; else an OSError would end Ansible's worker without a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        where = Path(error.filename).parent if isinstance(error.filename, str) else folder
        if error.errno in FULL:
            raise NoSpaceError(f"{where} has no space for {what} ({error.strerror}); free some.") from error
        raise NoSpaceError(f"{where} cannot take {what} ({error.strerror}); name a folder that you may write to.") from error


def fetch(url: str, path: Path, mirror: str = "", wait: float = 1.0) -> None:
    """Download to `path`, and resume where an earlier run stopped. Try again when there is no answer, with longer and longer pauses."""
    address = mirrored(url, mirror)
    part = path.with_name(path.name + PART)
    for number in range(TRIES):
        try:
            with writing(path.parent, address):
                path.parent.mkdir(parents=True, exist_ok=True)
                _go_on(address, part)
                os.replace(part, path)
            return
        except NoSpaceError:
            # A full disk gets this much back. The rest of a download that never fits would stay for good.
            with suppress(OSError):
                part.unlink()
            raise
        except urllib.error.HTTPError as error:
            said = f"{error.code} {error.reason}"
            if error.code == 416:  # the download is complete, or the file has changed: begin again
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                raise DownloadError(
                    f"{address} answers {said}; correct its version or address in the stack, or fill the mirror."
                ) from error
        except (OSError, TimeoutError) as error:
            said = str(getattr(error, "reason", error))
            if address.startswith("file:"):
                raise DownloadError(f"{address} cannot be read; fill the folder by make mirror.") from error
        if number < TRIES - 1:
            time.sleep(wait * 2**number)
    raise DownloadError(f"{address} could not be fetched in {TRIES} tries ({said}); try again, it goes on where it stopped.")


def _go_on(address: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have and not address.startswith("file:") else {})
    with urllib.request.build_opener().open(request, timeout=60) as answer:
        if address.startswith("https:") and not answer.geturl().startswith("https:"):
            raise DownloadError(f"{address} redirects to {answer.geturl()}, which is not HTTPS; do not use it.")
        follows = getattr(answer, "status", None) == 206
        expected = answer.headers.get("Content-Length")
        free = shutil.disk_usage(part.parent).free
        if expected is not None and int(expected) > free:
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free of {int(expected) >> 20}")
        with part.open("ab" if follows else "wb") as file:
            got = 0
            while block := answer.read(BLOCK):
                got += file.write(block)
    if expected is not None and got < int(expected):
        raise OSError(f"the connection ended after {got} of {expected} bytes")


def cached_path(source: dict, cache: Path) -> tuple[Path, str]:
    """(path of a source's file in the cache, what to download). Without a checksum its name is made of address and fingerprint."""
    signature = source.get("signature")
    url = signature["key"] if source["kind"] == "repository" else source["url"]
    proof = source.get("sha256") or hashlib.sha256(f"{url} {signature.get('fingerprint', 'https')}".encode()).hexdigest()
    return cache / "downloads" / f"{proof[:16]}-{url.rsplit('/', 1)[-1]}", url


def cached(source: dict, cache: Path, lock_file: Path, wait: float = 1.0) -> Path:
    """The verified file of a source as `stack.source_of` gives it, downloaded when it is not in the cache. For a repository, its key alone.

    lock_file: the site's lock file. Hosts and playbooks that want the same wait for each other, so that it is fetched once.
    """
    signature = source.get("signature")
    path, url = cached_path(source, cache)
    with writing(path.parent, url), _locked(path):
        if path.exists() and not signature and sha256(path) != source["sha256"]:
            path.unlink()  # it was changed after its download
        if not path.exists():
            fetch(url, path, wait=wait)
        elif source["kind"] == "repository" and "https" in signature and time.time() - path.stat().st_mtime > KEY_SECONDS:
            with suppress(DownloadError):  # the lock file vouches for the one that is here
                fetch(url, path, wait=wait)
        if not signature:
            check_sum(path, source["sha256"], url)
            return path
        key, detached = (path.with_name(path.name + end) for end in (".key", ".sig"))
        try:
            if source["kind"] == "repository":
                return _only_key(path, key, fingerprint_of(signature, path, lock_file), source["repository"])
            if not (key.exists() and detached.exists()):
                fetch(signature["key"], key, wait=wait)
                fetch(signature["url"], detached, wait=wait)
            check_signature(path, detached, key, fingerprint_of(signature, key, lock_file), url)
        except DownloadError:
            # The next run must not find a file that failed its check.
            for each in (path, key, detached):
                each.unlink(missing_ok=True)
            raise
    return path


def fingerprint_of(signature: dict, key: Path, lock_file: Path) -> str:
    """The fingerprint that a key must have: the stack's, or the one in the lock file, which gets it when the key is first fetched."""
    if "fingerprint" in signature:
        return signature["fingerprint"]
    if signature["key"].startswith("http://"):
        raise DownloadError(f"Only HTTPS vouches for the key {signature['key']}; name a mirror with https:// or a folder in muster_mirror.")
    url = signature.get("published_at", signature["key"])
    with writing(lock_file.parent, str(lock_file)), _locked(lock_file):
        text = lock_file.read_text(encoding="utf-8") if lock_file.exists() else ""
        try:
            keys = parse(text, lock_file)
            after = pinned(keys, url, _primary_keys(key), time.strftime("%Y-%m-%d", time.gmtime()), lock_file)
        except PinError as error:
            raise DownloadError(str(error)) from error
        if after != keys:
            part = lock_file.with_name(lock_file.name + PART)
            part.write_text(render(after), encoding="utf-8")
            os.replace(part, lock_file)
    return after[url]["fingerprint"]


@contextmanager
def _locked(path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _only_key(path: Path, to: Path, fingerprint: str, url: str) -> Path:
    """The key of this fingerprint alone, from a file that may have others, as text that apt and rpm read."""
    check_key(path, fingerprint, url)
    with tempfile.TemporaryDirectory(prefix="muster-gpg-") as home:
        _gpg(home, "--import", str(path))
        try:
            to.write_text(_gpg(home, "--armor", "--export", fingerprint))
        except OSError:
            to.unlink(missing_ok=True)
            raise
    return to


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sum(path: Path, wanted: str, url: str) -> None:
    found = sha256(path)
    if found != wanted:
        path.unlink()
        # For a mirror folder this removed only the copy: the next run would use the folder's file again until its owner removes it.
        remedy = "remove it there and fill the folder by make mirror" if url.startswith("file:") else "the file was removed"
        raise DownloadError(f"{url} has the sha256 {found} and the stack says {wanted}; {remedy}.")


def check_signature(path: Path, signature: Path, key: Path, fingerprint: str, url: str) -> None:
    """Raise DownloadError unless the key of this fingerprint, and no other, signed the file."""
    check_key(key, fingerprint, url)
    with tempfile.TemporaryDirectory(prefix="muster-gpg-") as home:
        _gpg(home, "--import", str(key))
        said = _gpg(home, "--status-fd", "1", "--verify", str(signature), str(path))
    verdict, ours = "", []
    for words in (line.split() for line in said.splitlines() if line.startswith("[GNUPG:] ")):
        if words[1] == "GOODSIG" or words[1] in STALE:
            verdict = words[1]
        # A signature that fits has this line too when its key is revoked or expired: the line before it tells them apart.
        # The first fingerprint is of the key that signed, the last of its primary key.
        elif words[1] == "VALIDSIG" and fingerprint in (words[2], words[-1]):
            ours.append(verdict)
    if "GOODSIG" in ours:
        return
    if ours:
        raise DownloadError(f"{url} is signed by the key {fingerprint}, {STALE.get(ours[0], 'which gpg calls bad')}; {NEWER}.")
    raise DownloadError(f"{url} has no good signature of the key {fingerprint}; do not use it.")


def check_key(key: Path, fingerprint: str, url: str) -> None:
    """Raise DownloadError unless the file has the key of this fingerprint, and it is neither revoked nor expired."""
    found = {each: validity for each, validity, _primary in _keys(key)}
    if fingerprint not in found:
        raise DownloadError(f"The key of {url} has the fingerprint {next(iter(found), 'of no key')} and the stack says {fingerprint}.")
    if found[fingerprint] in STALE:
        raise DownloadError(f"{url} is signed by the key {fingerprint}, {STALE[found[fingerprint]]}; {NEWER}.")


def _primary_keys(key: Path) -> list[str]:
    return [each for each, _validity, primary in _keys(key) if primary]


def _keys(key: Path) -> list[tuple[str, str, bool]]:
    """(fingerprint, gpg's letter of its validity, whether it is a primary key) of each key in a file."""
    with tempfile.TemporaryDirectory(prefix="muster-gpg-") as home:
        said = _gpg(home, "--with-colons", "--show-keys", str(key))
    found = []
    validity, primary = "", False
    for fields in (line.split(":") for line in said.splitlines()):
        if fields[0] in ("pub", "sub"):  # gpg prints the validity of a key in the line before its fingerprint
            validity, primary = fields[1], fields[0] == "pub"
        elif fields[0] == "fpr":
            found.append((fields[9], validity, primary))
    return found


def _gpg(home: str, *words: str) -> str:
    try:
        return subprocess.run(["gpg", "--batch", "--homedir", home, *words], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError as error:
        raise DownloadError("The program gpg is missing; install the package gnupg.") from error
