# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a health check may do with its node: run a program with a time limit, and read files. Tests give it answers and a folder instead."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_attribute, read_text
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal

KMSG = "/dev/kmsg"


class CannotRun(Exception):
    """The check could not look; the text is the reason."""


class NotHere(CannotRun):
    """The node's software cannot have what the check looks at, which is no fault."""


class Found:
    """What a check found. faults: one sentence each; none means that the node is as expected."""

    def __init__(self, found, expected, faults=(), severity="", remedy=""):
        self.found, self.expected, self.faults = found, expected, list(faults)
        self.severity, self.remedy = severity, remedy


def run_program(argv, limit):
    """(exit code, stdout, stderr). Raises FileNotFoundError, and TimeoutExpired also where the kernel does not let the program die."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"},
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        # It may hang in the kernel, for example on a dead file system.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0.5)
        raise
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


class Node:
    """The node that checks look at."""

    def __init__(self, want, *, run=run_program, root="/", rehearsed=None, state=None, now=None):
        self.want = want
        self.state = {} if state is None else state
        self.now = time.time() if now is None else now
        self.looked: list = []  # stand-ins that the running check looked at
        self._run, self._root, self._answers = run, root, {}
        self.rehearsed = rehearsed or {}

    def answer(self, argv, limit=10):
        """(exit code, stdout, stderr) of a program; the same command runs once. CannotRun when it is missing or does not end."""
        key = tuple(argv)
        if key not in self._answers:
            try:
                self._answers[key] = self._run(list(argv), limit)
            except FileNotFoundError:
                self._answers[key] = CannotRun("%s is not installed" % argv[0])
            except PermissionError:
                self._answers[key] = CannotRun("%s may not be run" % argv[0])
            except subprocess.TimeoutExpired:
                self._answers[key] = CannotRun("%s did not end within %g s" % (argv[0], limit))
        done = self._answers[key]
        if isinstance(done, CannotRun):
            raise done
        self.saw(rehearsal.named(done[2]))
        return done

    def ask(self, argv, limit=10):
        """The stdout of a program that succeeds and says something; CannotRun otherwise."""
        rc, out, err = self.answer(argv, limit)
        if rc:
            raise CannotRun(
                "%s ended with code %d: %s" % (" ".join(argv[:2]), rc, " ".join((err or out).split())[:200] or "no reason given")
            )
        if not out.strip():
            raise CannotRun("%s printed nothing" % " ".join(argv[:2]))
        return out

    def saw(self, names):
        self.looked += [name for name in names if name not in self.looked]

    def path(self, path):
        """Where a file of the node lies for this process."""
        if self.rehearsed and rehearsal.is_device(path, self.rehearsed):
            self.saw(["devices of " + self.rehearsed["instance_type"]])
        return os.path.join(self._root, path.lstrip("/"))

    def value(self, path):
        """A file of the kernel's, "" where it is missing."""
        return read_attribute(self.path(path))

    def text(self, path):
        """A file, CannotRun where it is missing."""
        try:
            return read_text(self.path(path))
        except OSError as error:
            raise CannotRun("%s cannot be read: %s" % (path, error.strerror)) from error

    def names(self, path):
        """The entries of a folder, none where it is missing."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def exists(self, path):
        return os.path.exists(self.path(path))

    def space(self, path):
        """os.statvfs of a file system; CannotRun where it is missing."""
        try:
            return os.statvfs(self.path(path))
        except OSError as error:
            raise CannotRun("%s cannot be read: %s" % (path, error.strerror)) from error

    def kernel_log(self):
        """The lines of the kernel's log since boot, or since somebody acknowledged them."""
        if "kernel_log" not in self._answers:
            self._answers["kernel_log"] = self._read_log()
        if self.rehearsed:
            self.saw(["kernel log of " + self.rehearsed["instance_type"]])
        since = int(self.state.get("acknowledged", {}).get(self.value("/proc/sys/kernel/random/boot_id"), -1))
        return [text for micros, text in self._answers["kernel_log"] if micros > since]

    def _read_log(self):
        """[(microseconds since boot, text)] of /dev/kmsg: each record is `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`."""
        out = []
        try:
            handle = os.open(self.path(KMSG), os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise CannotRun("%s cannot be read: %s" % (KMSG, error.strerror)) from error
        rest = ""
        try:
            while True:
                try:
                    part = os.read(handle, 16384).decode(errors="replace")
                except OSError as error:
                    if error.errno == errno.EAGAIN:
                        break
                    if error.errno in (errno.EPIPE, errno.EINTR):  # the kernel overwrote records while this read them
                        continue
                    raise CannotRun("%s cannot be read: %s" % (KMSG, error.strerror)) from error
                if not part:
                    break
                rest += part
                lines = rest.split("\n")
                rest = lines.pop()
                out += [line for line in lines if line and not line.startswith(" ")]
        finally:
            os.close(handle)
        records = []
        for line in out + ([rest] if rest else []):
            head, _semicolon, text = line.partition(";")
            fields = head.split(",")
            records.append((int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else 0, text))
        if not records:
            raise CannotRun("%s has no line" % KMSG)
        return records
