# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A small Hugging Face hub on loopback, with the answers that the real libraries need to stream a set or fetch a tokenizer."""

import gzip
import hashlib
import json
import re
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0" * 39 + "1"
TOKEN = "hf_a-token-that-must-not-be-seen"  # of the sets below gated/


class Hub(ThreadingHTTPServer):
    """Serves `folder`/datasets/OWNER/NAME and `folder`/models/OWNER/NAME. `requests` are the requested paths."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder = folder
        self.requests: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def entry(path: Path, root: Path) -> dict[str, Any]:
    content = path.read_bytes()
    name = path.relative_to(root).as_posix()
    return {"type": "file", "path": name, "rfilename": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: object) -> None: ...

    def reply(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, content: Any, status: int = 200, **headers: str) -> None:
        self.reply(status, json.dumps(content).encode(), Content_Type="application/json", **headers)

    def repository(self, kind: str, name: str) -> Path | None:
        """The repository's folder, or None after an answer that it is gated or does not exist."""
        folder = self.server.folder / kind / name
        if name.startswith("gated/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.json({"error": "Access is restricted"}, 401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
            return None
        if not folder.is_dir():
            self.json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            return None
        return folder

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        match = re.match(r"/api/(datasets|models)/([^/]+/[^/]+)/paths-info/", self.path)
        if not match or not (folder := self.repository(match[1], match[2])):
            return None if match else self.json({"error": "?"}, 404)
        paths = asked["paths"] if isinstance(asked["paths"], list) else [asked["paths"]]
        return self.json([entry(folder / path, folder) for path in paths if (folder / path).is_file()])

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)/tree/[^/]+(?:/(.*))?", path):
            if folder := self.repository(match[1], match[2]):
                below = folder / (match[3] or "")
                if not below.exists():
                    return self.json({"error": "no such entry"}, 404, X_Error_Code="EntryNotFound")
                files: Iterable[Path] = sorted(below.rglob("*") if "recursive=true" in self.path.lower() else below.iterdir())
                self.json(
                    [
                        entry(file, folder)
                        if file.is_file()
                        else {"type": "directory", "path": str(file.relative_to(folder)), "oid": "0" * 40}
                        for file in files
                    ]
                )
        elif match := re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            if folder := self.repository(match[1], match[2]):
                siblings = [entry(file, folder) for file in sorted(folder.rglob("*")) if file.is_file()]
                facts = {"id": match[2], "sha": COMMIT, "private": False, "disabled": False, "gated": False, "downloads": 0, "likes": 0}
                self.json(facts | {"tags": [], "siblings": siblings})
        elif match := re.fullmatch(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/[^/]+/(.*)", path):
            if folder := self.repository(match[1] or "models", match[2]):
                file = folder / match[3]
                if not file.is_file():
                    return self.json({"error": "no such entry"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
                content = file.read_bytes()
                common = {
                    "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
                    "X_Repo_Commit": COMMIT,
                    "Accept_Ranges": "bytes",
                    "X_Linked_Size": str(len(content)),
                }
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if asked:
                    first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
                    part = content[first : last + 1]
                    self.reply(206, part, Content_Range=f"bytes {first}-{last}/{len(content)}", Content_Length=str(len(part)), **common)
                else:
                    self.reply(200, content, Content_Length=str(len(content)), **common)
        else:
            self.json({"error": "not found"}, 404)
        return None


def write_c4(folder: Path, files: int, documents: int) -> None:
    """A set that is laid out as allenai/c4: gzipped JSON lines in en/, and its README's configurations."""
    (folder / "en").mkdir(parents=True)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/c4-train.*.json.gz\n"
        "  - split: validation\n    path: en/c4-validation.*.json.gz\n---\n"
    )
    for number in range(files):
        lines = [json.dumps({"text": text_of(number, index), "timestamp": "", "url": ""}) for index in range(documents)]
        (folder / f"en/c4-train.{number:05}-of-{files:05}.json.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    held = json.dumps({"text": "held out. " * 400, "timestamp": "", "url": ""})
    (folder / "en/c4-validation.00000-of-00001.json.gz").write_bytes(gzip.compress("\n".join([held] * 4).encode(), mtime=0))


def text_of(file: int, index: int) -> str:
    """A document; no two are equal, and their lengths differ."""
    return f"document {index} of file {file}: " + "lorem ipsum " * ((7 * index + file) % 23)
