# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a playbook run writes into its run folder: `events.jsonl` and `failures.log`.

`Recorder` does not know Ansible: the callback plugin run_record calls it. Events (common keys `event` and `time`):
start {playbook, fleet, argv}, task {role, phase, task, action, path, seconds, changed, hosts}, check {host, component, level, check,
status, expected, found, reason, remedy, seconds, rehearsed (only where it looked at a stand-in)}, rehearsal {instance_types}, failure
{host, role, task, message, remedy, log}, unreachable {host, message}, message {host, text}, role {role, phase, seconds, tasks, changed},
end {seconds, ok, interrupted (what ended a run before its end: a signal, or an error in a file; "" otherwise), hosts: {host: {ok, changed,
failures, unreachable}}}.
Only the keys named here are taken from a module's result.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

PHASES = ("install", "configure", "verify_image", "verify_node", "verify_fleet")
CHECK_KEYS = ("component", "level", "check", "status", "expected", "found", "reason", "remedy", "seconds")
# The parts of a failed task's result that go to failures.log: the tool's output, never its arguments.
FAILURE_KEYS = ("msg", "reason", "rc", "stdout", "stderr", "module_stdout", "module_stderr")
FAILURES = "failures.log"
# What Ansible puts before the sentence of a filter, lookup or test of this collection that refused a value. Those sentences end with a full
# stop. What Python says of a fault inside such a plugin does not, and then the name of the plugin must stay.
REFUSED = re.compile(r"(?s).*\bThe (?:filter|lookup|test) plugin 'muster\.fleet\.\w+' failed: (.+[.?])")


def public_argv(argv: Iterable[str]) -> list[str]:
    """Return the command line without the values of extra variables, which may be secrets; their names and @files stay."""
    shown: list[str] = []
    hide = False
    for argument in argv:
        option, equals, value = argument.partition("=")
        if hide:
            shown.append(_names(argument))
        elif option == "--extra-vars" and equals:
            shown.append("%s=%s" % (option, _names(value)))
        elif argument.startswith("-e") and len(argument) > 2:
            shown.append("-e" + _names(argument[2:]))
        else:
            shown.append(argument)
        hide = not hide and argument in ("-e", "--extra-vars")
    return shown


def _names(assignments: str) -> str:
    if assignments.startswith("@"):
        return assignments
    names = re.findall(r"(?:^|\s)([A-Za-z_]\w*)=", assignments)
    return " ".join("%s=…" % name for name in names) or "…"


def role_and_phase(lineage: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """Return (role, phase) of a task from LINEAGE: the task and all that included it, innermost first.

    Each member is {"role", "path", "vars"}. The role `phases` runs the phases of others, whose name and phase are its variables
    phases_component and phases_phase; a task in a sub-file has the phase of the file that included it.
    """
    role = phase = ""
    for member in lineage:
        variables = member["vars"]
        phase = phase or _plain(variables.get("phases_phase"))
        stem = os.path.splitext(os.path.basename(member["path"]))[0]
        if not phase and stem in PHASES and member["role"]:
            phase = stem
        if not role or role == "phases":
            role = member["role"] or _plain(variables.get("phases_component")) or role
    return role, phase


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and "{{" not in value else ""


def named_hosts(hosts: Iterable[str], most: int = 4) -> str:
    """Return HOSTS as text: the names of the first MOST, and the number of the others."""
    names = list(hosts)
    return ", ".join(names[:most]) + (" and %d more" % (len(names) - most) if len(names) > most else "")


class Recorder:
    """Keeps events until the run folder is known, then appends each event at once.

    Two threads call it: Ansible's, and the one that calls `overdue`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self.folder: Optional[Path] = None
        self.patience = 15
        self._clock, self._now = clock, now
        self._lock = threading.Lock()
        self._begun = clock()
        self._unwritten: list[dict[str, Any]] = []
        self._failures: list[str] = []
        self._task: Optional[dict[str, Any]] = None
        self._tasks: dict[str, dict[str, Any]] = {}
        self._roles: dict[tuple[str, str], dict[str, Any]] = {}
        self._running: dict[str, dict[str, Any]] = {}

    def start(self, playbook: str, argv: Iterable[str]) -> None:
        self._begun = self._clock()
        self._event("start", playbook=playbook, fleet="", argv=public_argv(argv))

    def task(self, key: str, role: str, phase: str, name: str, path: str, *, action: str = "") -> None:
        """The task KEY begins and the one before it ends, so that the times of all tasks add up to the time of the run."""
        self._end_task()
        shown = {"role": role, "phase": phase, "task": name, "action": action, "path": path}
        self._task = {**shown, "begun": self._clock(), "changed": 0, "hosts": set()}
        # With the strategy `free` several tasks run at a time, so a result may belong to an earlier one.
        self._tasks[key] = self._task

    def waiting(self, key: str, name: str, host: str) -> None:
        """HOST begins the task KEY."""
        with self._lock:
            entry = self._running.setdefault(key, {"name": name, "hosts": {}, "begun": self._clock(), "told": 0})
            entry["hosts"][host] = True

    def overdue(self) -> list[str]:
        """Return a line for each task that has run for `patience` seconds since its last line."""
        lines = []
        with self._lock:
            for entry in self._running.values():
                seconds = int(self._clock() - entry["begun"])
                if seconds // self.patience > entry["told"]:
                    entry["told"] = seconds // self.patience
                    lines.append("… still %s on %s: %d s" % (entry["name"], named_hosts(entry["hosts"]), entry["told"] * self.patience))
        return lines

    def result(self, key: str, host: str, result: dict[str, Any], outcome: str = "ok") -> None:
        """HOST has finished the task KEY with RESULT; OUTCOME is ok, skipped, ignored, failed or unreachable."""
        with self._lock:
            entry = self._running.get(key)
            if entry:
                entry["hosts"].pop(host, None)
                if not entry["hosts"]:
                    del self._running[key]
        task = self._tasks[key]
        if outcome != "skipped":
            task["hosts"].add(host)
            task["changed"] += bool(result.get("changed"))
        for part in _parts(result):
            for check in part.get("muster_checks") or []:
                rehearsed = {"rehearsed": check["rehearsed"]} if check.get("rehearsed") else {}
                self._event("check", host=host, **{name: check.get(name, "") for name in CHECK_KEYS}, **rehearsed)
            if part.get("muster_message"):
                self._event("message", host=host, text=str(part["muster_message"]))
            if part.get("muster_rehearses"):
                self._event("rehearsal", instance_types=part["muster_rehearses"])
            if part.get("muster_run_dir"):
                self._announce(Path(part["muster_run_dir"]))
        if outcome == "unreachable":
            self._event("unreachable", host=host, message=_message(result))
        elif outcome == "failed":
            self._failure(host, task, result)

    def end(self, hosts: dict[str, dict[str, int]], interrupted: str = "") -> None:
        """The playbook has ended; HOSTS has for each host the numbers ok, changed, failures, unreachable. INTERRUPTED names a signal."""
        self._end_task()
        for (role, phase), totals in sorted(self._roles.items(), key=lambda item: -item[1]["seconds"]):
            self._event("role", role=role, phase=phase, **{**totals, "seconds": round(totals["seconds"], 3)})
        ok = not interrupted and not any(host["failures"] or host["unreachable"] for host in hosts.values())
        self._event("end", seconds=round(self._clock() - self._begun, 3), ok=ok, interrupted=interrupted, hosts=hosts)

    def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        seconds = self._clock() - task["begun"]
        # A task outside of roles counts for its playbook or task file, such as train.yml.
        totals = self._roles.setdefault(
            (task["role"] or os.path.basename(task["path"]), task["phase"]), {"seconds": 0.0, "tasks": 0, "changed": 0}
        )
        totals["seconds"] += seconds
        totals["tasks"] += 1
        totals["changed"] += task["changed"]
        shown = {name: task[name] for name in ("role", "phase", "task", "action", "path", "changed")}
        self._event("task", **shown, seconds=round(seconds, 3), hosts=len(task["hosts"]))

    def _failure(self, host: str, task: dict[str, Any], result: dict[str, Any]) -> None:
        self._event(
            "failure",
            host=host,
            role=task["role"],
            task=task["task"],
            message=_message(result),
            remedy=str(result.get("remedy") or ""),
            log=FAILURES,
        )
        lines = ["%s  %s  %s: %s (%s)" % (self._stamp(), host, task["role"] or "-", task["task"], task["path"])]
        for part in [result, *[item for item in _parts(result)[1:] if item.get("failed")]]:
            for name in FAILURE_KEYS:
                if part.get(name) not in (None, ""):
                    lines.append("%s: %s" % (name, part[name]))
        self._failures.append("\n".join(lines) + "\n\n")
        self._flush()

    def _event(self, kind: str, **fields: Any) -> None:
        self._unwritten.append({"event": kind, "time": self._stamp(), **fields})
        self._flush()

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._now(), timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _announce(self, folder: Path) -> None:
        if self.folder is None:
            folder.mkdir(parents=True, exist_ok=True)
            self.folder = folder.resolve()
            self._flush()

    def _flush(self) -> None:
        if self.folder is None:
            return
        for event in self._unwritten:
            if event["event"] == "start":
                event["fleet"] = self.folder.parent.name
        lines = "".join(json.dumps(event, ensure_ascii=False, default=str) + "\n" for event in self._unwritten)
        _append(self.folder / "events.jsonl", lines, 0o644)
        _append(self.folder / FAILURES, "".join(self._failures), 0o600)
        self._unwritten, self._failures = [], []


def _append(path: Path, text: str, mode: int) -> None:
    if text:
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


def _parts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts that may have the recorder's keys: the result, its facts, and the results of a loop."""
    items = result.get("results")
    loop = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    facts = result.get("ansible_facts")
    return [result, *loop, *([facts] if isinstance(facts, dict) else [])]


def _message(result: dict[str, Any]) -> str:
    """Return why a task failed: the module's sentence, and for a command also its last line."""
    if "censored" in result:
        return "the result is hidden (no_log)"
    failed = next((item for item in _parts(result)[1:] if item.get("failed") and item.get("msg")), result)
    text = str(failed.get("msg") or failed.get("reason") or "no reason given").strip()
    refused = REFUSED.fullmatch(text)
    text = refused[1] if refused else text
    last = (str(failed.get("stderr") or "").strip() or str(failed.get("stdout") or "").strip()).rsplit("\n", maxsplit=1)[-1]
    if "rc" in failed and last and last not in text:
        text = "%s (rc %s): %s" % (text.rstrip("."), failed["rc"], last)
    return text[:2000]
