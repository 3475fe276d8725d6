# Copyright: the Muster developers
# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium over its debugging pipe: JSON messages that end in a zero byte, on file descriptors 3 and 4."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "chromium"


def find() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


# CI installs a browser, so a missing one is an error there; elsewhere the test is skipped.
needed = pytest.mark.skipif(find() is None and "CI" not in os.environ, reason=f"needs a browser: install the package {PACKAGE}")


class Chromium:
    """One browser with one page. `events` holds what the page reported; every wait ends after `patience` seconds."""

    def __init__(self, program: str, profile: Path, patience: float = 60) -> None:
        self.patience = patience
        self.events: list[dict[str, Any]] = []
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._buffer = b""
        read_there, self._write = os.pipe()
        self._read, write_there = os.pipe()
        options = ["--headless=new", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        redirected = f'exec "$@" 3<&{read_there} 4>&{write_there}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", program, *options, "about:blank"],
            pass_fds=(read_there, write_there),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda: self._answers.pop(self._number, None), method)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _until(self, found, what: str) -> Any:
        ends = time.monotonic() + self.patience
        while (value := found()) is None:
            ready, _, _ = select.select([self._read], [], [], max(0, ends - time.monotonic()))
            data = os.read(self._read, 1 << 16) if ready else b""
            assert data, f"Chromium did not answer {what} (exit status {self._process.poll()})"
            *messages, self._buffer = (self._buffer + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append(message)
        return value

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light") -> None:
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda: next((e for e in self.events if e["method"] == "Page.loadEventFired"), None), "Page.navigate")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def errors(self) -> list[str]:
        """What a user's console shows in red, and every request to anything but the page itself."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
            elif event["method"] == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                found.append(f"request to {params['request']['url']}")
        return found

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (AssertionError, subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._read)
            os.close(self._write)
