# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Runs proofs side by side, each with its output in a file of its own, a time limit and a record of the files that it executed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from proof_files import Files

RECORDER = Path(__file__).parents[1] / "proof/recorder"
NOT_RUN = 75  # EX_TEMPFAIL of sysexits.h
GRACE = 50  # seconds between SIGINT and SIGKILL; tools/stage.sh kills this program after 60
CHANGED = "changed while it ran"


class Running:
    """A proof whose command was started."""

    def __init__(self, proof: dict[str, Any], root: Path) -> None:
        self.proof, self.root = proof, root
        self.log = root / f".cache/proofs/{proof['name']}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="muster-proof-"))
        self.recorded = self.folder / "executed"
        path = [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        record = {"MUSTER_RECORD_ROOT": str(root), "MUSTER_RECORD_FILE": str(self.recorded), "PYTHONPATH": os.pathsep.join(path)}
        # Hashed before the start, so that an input that changes meanwhile makes the proof stale.
        self.inputs_sha256 = inputs_sha256(proof, Files(root))
        self.started = time.time()
        self.signalled = 0.0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                proof["command"],
                cwd=root,
                env={**os.environ, **record},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that one signal reaches all that it started
            )

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def poll(self) -> int | None:
        """The exit code when it has ended; stops it when its time is over."""
        code = self.process.poll()
        if code is None and not self.signalled and time.time() > self.started + 1.5 * self.proof["budget"]:
            self.signalled = time.time()
            self.signal(signal.SIGINT)
        elif code is None and self.signalled and time.time() > self.signalled + GRACE:
            self.signal(signal.SIGKILL)
        return code

    def wait(self, deadline: float) -> None:
        """Wait for the end of a proof that got SIGINT; kill it at the deadline."""
        try:
            self.process.wait(max(0.0, deadline - time.time()))
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder)

    def result(self) -> dict[str, Any]:
        """The record of a proof that has ended."""
        code = self.process.returncode
        record: dict[str, Any] = {
            "inputs_sha256": self.inputs_sha256,
            "date": time.strftime("%Y-%m-%d", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started),
            "result": {0: "passed", NOT_RUN: "not_run"}.get(code, "failed"),
        }
        if self.signalled:
            record |= {"result": "failed", "reason": f"stopped at 1.5 times its budget of {self.proof['budget']} s"}
        record["executed"] = by_folder(self._executed())
        shutil.rmtree(self.folder)
        return record

    def _executed(self) -> dict[str, str]:
        """Digests of the files that it executed and that are not its own inputs."""
        if not self.recorded.exists():
            return {}
        files = Files(self.root)
        own = {name for glob in self.proof["inputs"] for name in files.matching(glob)}
        prefix = f"{self.root.resolve()}/"
        names = {line.removeprefix(prefix) for line in self.recorded.read_text(errors="surrogateescape").splitlines()}
        found = {}
        for name in sorted(name for name in names - own if files.counts(name)):
            changed = (self.root / name).stat().st_ctime > self.started
            found[name] = CHANGED if changed else files.digest(name)[:12]
        return found


def inputs_sha256(proof: dict[str, Any], files: Files) -> str:
    """Hash of a proof's command and of its own inputs."""
    names = sorted({name for glob in proof["inputs"] for name in files.matching(glob)})
    return files.digest_of([*proof["command"], *(f"{name} {files.digest(name)}" for name in names)])


def by_folder(executed: dict[str, str]) -> dict[str, dict[str, str]]:
    """{folder: {file: digest}}, which is a third of the text that whole paths would be."""
    found: dict[str, dict[str, str]] = {}
    for name, digest in executed.items():
        folder, _, file = name.rpartition("/")
        found.setdefault(folder or ".", {})[file] = digest
    return found


def paths(executed: dict[str, dict[str, str]]) -> dict[str, str]:
    """The opposite of `by_folder`."""
    return {file if folder == "." else f"{folder}/{file}": digest for folder, files in executed.items() for file, digest in files.items()}


def may_start(proof: dict[str, Any], running: list[Running]) -> bool:
    others = [each.proof for each in running]
    lock = proof.get("lock")
    return not others or not (proof.get("alone") or any(each.get("alone") or (lock and each.get("lock") == lock) for each in others))


def run_all(proofs: list[dict[str, Any]], root: Path, jobs: int, ended: Callable[[Running], None]) -> None:
    """Run proofs, up to `jobs` at a time, in the given order as far as their locks allow; those that run alone come last."""
    waiting, running = list(proofs), list[Running]()
    with interruptible():
        try:
            while waiting or running:
                for proof in list(waiting):
                    if len(running) < jobs and may_start(proof, running):
                        waiting.remove(proof)
                        running.append(Running(proof, root))
                        print(f"proof {proof['name']} started", flush=True)
                for each in list(running):
                    if each.poll() is not None:
                        running.remove(each)
                        ended(each)
                time.sleep(0.2)
        except BaseException:
            for each in running:
                each.signal(signal.SIGINT)
            deadline = time.time() + GRACE
            for each in running:
                each.wait(deadline)
            raise


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM end what runs here with KeyboardInterrupt.

    A shell starts a job in the background with SIGINT ignored, and all that the job starts would ignore it too: no proof could be stopped.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
