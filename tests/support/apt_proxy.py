# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Stands in for a site's package cache: an HTTP proxy that keeps packages and records what clients asked for and what it fetched."""

from __future__ import annotations

import collections
import hashlib
import http.server
import shutil
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

# linux/in.h: binds an address that does not exist yet.
IP_FREEBIND = 15


class AptProxy(http.server.ThreadingHTTPServer):
    """Serves at an address from `with` to its end; `asked` and `fetched` are URLs, in order."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__((address, 0), Handler)
        self.folder = folder
        folder.mkdir()
        self.url = f"http://{address}:{self.server_port}"
        self.asked: list[str] = []
        self.fetched: list[str] = []
        self.locks: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        super().server_bind()

    def __enter__(self) -> AptProxy:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: AptProxy

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        # A second request for the same URL waits for the first.
        with self.server.locks[self.path]:
            kept = self.server.folder / hashlib.sha256(self.path.encode()).hexdigest()
            try:
                if not kept.exists():
                    self.server.fetched.append(self.path)
                    with urllib.request.urlopen(self.path, timeout=120) as answer, kept.with_suffix(".part").open("wb") as part:
                        shutil.copyfileobj(answer, part)
                    kept.with_suffix(".part").rename(kept)
                body = kept.read_bytes()
                # Package lists change, so do not keep them.
                if not self.path.endswith(".deb"):
                    kept.unlink()
            except urllib.error.HTTPError as error:
                self.send_response(error.code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
