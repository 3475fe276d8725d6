# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
name: run_record
type: notification
short_description: Record a run, show what it waits for, and summarise it
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Prints every 15 seconds (O(patience)) for which task and hosts the run waits.
  - Writes C(events.jsonl) and C(failures.log) into the run folder, and at the end the report (C(report.json), C(report.html)) with
    the time that each role took and a summary of ten lines. A failed run has a report as well.
  - A task announces the run folder by returning C(muster_run_dir). Without one the callback writes and prints nothing.
  - Of a task's result it takes C(muster_checks) (a list of check records) and C(muster_message) (a line for the summary); of a failed one
    what the tool said (C(msg), C(rc), C(stdout), C(stderr)), and neither where C(no_log) hides it. Arguments are never written.
options:
  patience:
    description: Seconds between two lines about a task that is still running.
    type: int
    default: 15
    env:
      - name: MUSTER_PATIENCE
    ini:
      - section: muster
        key: patience
requirements:
  - Enabled by C(callbacks_enabled=muster.fleet.run_record).
"""

import atexit
import functools
import os
import signal
import sys
import threading
from pathlib import Path

from ansible import constants as C
from ansible.plugins.callback import CallbackBase

from ansible_collections.muster.fleet.plugins.module_utils.report.document import duration, summary, write_report
from ansible_collections.muster.fleet.plugins.module_utils.report.run_record import Recorder, role_and_phase


def lineage(task):
    """Yield the arguments of role_and_phase for TASK and all that included it."""
    node = task
    while node is not None:
        role = getattr(node, "_role", None)
        yield {"role": role.get_name(include_role_fqcn=False) if role else "", "path": file_of(node), "vars": node.vars or {}}
        node = getattr(node, "_parent", None)


def file_of(node):
    return (node.get_path() or "").rsplit(":", 1)[0]


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "muster.fleet.run_record"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self.recorder = Recorder()
        self._over = threading.Event()
        # What ended a run that has no end of its own: without a signal it is an error in the playbooks, after which Ansible just stops.
        self._ended_by = "An error that Ansible printed"

    def v2_playbook_on_start(self, playbook):
        self.recorder.patience = self.get_option("patience")
        self.recorder.start(os.path.basename(playbook._file_name), sys.argv)
        # Ansible does not end a playbook that a signal ends, so its end is written when Python ends.
        atexit.register(self._interrupted, os.getpid())
        if callable(handler := signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, functools.partial(self._ctrl_c, handler))
        signal.signal(signal.SIGTERM, self._end_as_by_ctrl_c)
        # nohup has it ignored.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self._end_as_by_ctrl_c)
        # Ansible takes the display's lock before it forks, so that a line from this thread leaves no worker with a held lock.
        threading.Thread(target=self._tell, name="run_record", daemon=True).start()

    def _ctrl_c(self, ansibles, number, frame):
        if self._ended_by not in (signal.Signals(each).name for each in (signal.SIGTERM, signal.SIGHUP)):
            self._ended_by = "SIGINT"
        ansibles(number, frame)

    def _end_as_by_ctrl_c(self, number, _frame):
        # Ansible's own handler of SIGTERM ends Python at once, and that of SIGINT in order. A worker has handlers of its own.
        self._ended_by = signal.Signals(number).name
        os.kill(os.getpid(), signal.SIGINT)

    def _interrupted(self, pid):
        if os.getpid() != pid or self._over.is_set():
            return
        self._over.set()
        self.recorder.end({}, self._ended_by)
        self._report()

    def _tell(self):
        while not self._over.wait(1):
            for line in self.recorder.overdue():
                self._display.display(line, color=C.COLOR_VERBOSE)
            # Where standard output is no terminal, Python keeps what Ansible prints until 8 KiB are full.
            sys.stdout.flush()

    def v2_playbook_on_task_start(self, task, is_conditional):
        role, phase = role_and_phase(lineage(task))
        self.recorder.task(task._uuid, role, phase, task.name or task.get_name(), os.path.relpath(file_of(task)), action=task.action)

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_start(self, host, task):
        self.recorder.waiting(task._uuid, task.get_name(), host.get_name())

    def _done(self, result, outcome):
        self.recorder.result(result.task._uuid, result.host.get_name(), result.result, outcome)

    def v2_runner_on_ok(self, result):
        self._done(result, "ok")

    def v2_runner_on_skipped(self, result):
        self._done(result, "skipped")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._done(result, "ignored" if ignore_errors else "failed")

    def v2_runner_on_unreachable(self, result):
        self._done(result, "unreachable")

    def v2_playbook_on_stats(self, stats):
        self._over.set()
        keys = ("ok", "changed", "failures", "unreachable")
        self.recorder.end({host: {key: stats.summarize(host)[key] for key in keys} for host in sorted(stats.processed)})
        self._report()

    def _report(self):
        if self.recorder.folder is None:
            return
        report = write_report(self.recorder.folder)
        self._display.banner("TIME PER ROLE")
        for entry in report["timings"]["roles"][:10]:
            name = " ".join(part for part in (entry["role"] or "playbook", entry["phase"]) if part)
            self._display.display("%-40s %10s" % (name, duration(entry["seconds"])))
        failed = report["run"]["verdict"] != "passed"
        self._display.banner("SUMMARY")
        for line in summary(report, Path(os.path.relpath(self.recorder.folder))):
            self._display.display(line, color=C.COLOR_ERROR if failed else C.COLOR_OK)
