# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fixtures for tests of downloads: a server on loopback, which can also cut a transfer, fail or lack the file, and a signing key."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

ARCHIVE = bytes(range(256)) * 40
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    """server.files: path to bytes. server.trouble: path to a list of the first answers: a status, or "cut". server.asked counts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[self.path] += 1
            trouble = made.trouble.get(self.path) or [None]
            now = trouble.pop(0)
            if isinstance(now, int) or self.path not in made.files:
                self.send_error(now or 404)
                return
            body = made.files[self.path]
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
            ranges.append(begin)
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(body) - begin))
            self.end_headers()
            self.wfile.write(body[begin : begin + 100] if now == "cut" else body[begin:])

        def log_message(self, *words: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    asked: Counter[str] = Counter()
    ranges: list[int] = []
    made.files, made.trouble, made.asked, made.ranges = {"/a/x-1.0.tar.gz": ARCHIVE}, {}, asked, ranges  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with serving() as made:
        yield made


@contextmanager
def _keyring() -> Iterator[Callable[..., bytes]]:
    """A function that runs gpg with a keyring of its own."""
    if not shutil.which("gpg"):
        assert not os.environ.get("CI"), "gpg is missing; install gnupg"
        pytest.skip("gpg is missing; install gnupg")
    with tempfile.TemporaryDirectory(prefix="gpg-") as home:

        def gpg(*words: str, data: bytes | None = None) -> bytes:
            command = ["gpg", "--batch", "--homedir", home, "--pinentry-mode", "loopback", "--passphrase", "", *words]
            return subprocess.run(command, input=data, capture_output=True, check=True).stdout

        yield gpg
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)


def _fingerprint(gpg: Callable[..., bytes]) -> str:
    listed = gpg("--with-colons", "--list-keys").decode().splitlines()
    return next(line.split(":")[9] for line in listed if line.startswith("fpr:"))


@pytest.fixture(scope="module")
def signed() -> Iterator[dict]:
    """A key, its fingerprint, its signature of the archive, and a function that signs other data."""
    with _keyring() as gpg:
        gpg("--quick-generate-key", "A test <test@example.org>", "ed25519", "sign", "never")
        fingerprint = _fingerprint(gpg)

        def sign(data: bytes) -> bytes:
            return gpg("--detach-sign", data=data)

        yield {"fingerprint": fingerprint, "key": gpg("--armor", "--export"), "signature": sign(ARCHIVE), "sign": sign}


@pytest.fixture(scope="module", params=["revoked", "expired", "expired signature", "revoked subkey", "expired subkey"])
def stale(request: pytest.FixtureRequest) -> Iterator[dict]:
    """Like `signed`, with a signature that fits but no longer counts, what is said of it, and whether the primary key itself is good."""
    past = ("--faked-system-time", "20200101T000000")
    what, _blank, part = request.param.partition(" ")
    when = past if what == "expired" else ()
    with _keyring() as gpg:
        uses, until = ("cert", "never") if part == "subkey" else ("sign", "never" if part or what == "revoked" else "1d")
        gpg(*when, "--quick-generate-key", "A test <test@example.org>", "ed25519", uses, until)
        fingerprint = _fingerprint(gpg)
        if part == "subkey":
            gpg(*when, "--quick-add-key", fingerprint, "ed25519", "sign", "1d" if what == "expired" else "never")
        signature = gpg(*when, *(("--default-sig-expire", "1d") if part == "signature" else ()), "--detach-sign", data=ARCHIVE)
        if request.param == "revoked subkey":
            answers = b"y\n0\n\ny\n"  # revoke it, no reason, no text, yes
            gpg("--command-fd", "0", "--edit-key", fingerprint, "key 1", "revkey", "save", data=answers)
        elif what == "revoked":
            home = next(line.split(":")[1] for line in gpg("--version").decode().splitlines() if line.startswith("Home:")).strip()
            with open(f"{home}/openpgp-revocs.d/{fingerprint}.rev", encoding="utf-8") as file:
                # gpg puts a colon before the certificate, so that nobody imports it by accident.
                gpg("--import", data=file.read().replace(":-----BEGIN", "-----BEGIN").encode())
        said = (
            "but the signature has expired"
            if part == "signature"
            else "which its owner has revoked"
            if what == "revoked"
            else "which has expired"
        )
        yield {
            "fingerprint": fingerprint,
            "key": gpg("--armor", "--export"),
            "signature": signature,
            "said": said,
            "key_is_good": bool(part),
        }
