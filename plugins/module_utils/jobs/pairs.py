# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of pairs of nodes as Slurm jobs, all pairs of a round side by side, each with a hard time limit. diagnose.py plans the rounds."""

from __future__ import annotations

import copy
import time

from ansible_collections.muster.fleet.plugins.module_utils.health import diagnose, nccl_judge
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_results import ONCE, TWICE, ResultsError, human_size, parse
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

POLL = 0.5
# Slurm rounds time limits up to minutes; a pair that hangs is ended here, after its own seconds.
JOB_NAME = "muster:diagnose:%s"
BUSY = "another job took a node"


def idle(text, names):
    """({node: why it is left alone}, idle nodes in the order of `names`) from sinfo's lines."""
    known = slurm.node_records(text)
    left, free = {}, []
    for name in names:
        if name not in known:
            left[name] = "Slurm does not know it"
        elif known[name]["state"] != "idle":
            left[name] = "it is %s" % known[name]["state"]
        else:
            free.append(name)
    return left, free


def document_of(template, pair, limit_s):
    """The job document of one pair."""
    document = copy.deepcopy(template)
    launcher = document["launcher"]
    options = {key: value for key, value in (launcher.get("options") or {}).items() if key != "exclude"}
    launcher["options"] = {**options, "nodelist": ",".join(pair), "exclusive": True}
    document.update(name="diagnose", nodes=len(pair), time_limit=max(1, -(-limit_s // 60) + 1))
    return document


def value_of(text, pair, ranks, collective):
    """(busbw at the largest size, error) of an output of nccl-tests or its twin.

    It is the better of out-of-place and in-place: what is wrong with a node slows both, and what else happens on it often only one.
    """
    try:
        document = nccl_judge.judge(parse(text, collective), {"hosts": list(pair), "ranks": ranks, "listed": True})
    except ResultsError as error:
        return None, str(error)
    if document["verdict"] != "passed":
        return None, document["reasons"][0]
    rows = [(row, table["collective"]) for table in document["tables"] for row in table["rows"]]
    if not rows:
        return None, "the output has no row"
    most = max(row["size"] for row, _name in rows)
    return max(exact(row, name, ranks) for row, name in rows if row["size"] == most), ""


def exact(row, collective, ranks):
    """The busbw of a row by its time. The printed one has two decimals: 0.05 on a slow network is anything from 0.045 to 0.055."""
    if row["time_us"] <= 0:
        return row["busbw"]
    share = (ranks - 1) / ranks
    value = row["size"] / row["time_us"] / 1000 * (2 * share if collective in TWICE else share if collective in ONCE else 1)
    # Old programs print other bandwidths than these.
    return value if abs(value - row["busbw"]) < 0.01 else row["busbw"]


def sizes_of(text, collective):
    """The largest size that an output has, as words, for the report."""
    try:
        sizes = [row["size"] for table in parse(text, collective) for row in table["rows"]]
    except ResultsError:
        return ""
    return human_size(max(sizes)) if sizes else ""


class Rounds:
    """Runs the rounds of a diagnosis.

    submit(pair, number) -> job id, queue(ids) -> {id: state} of those that Slurm still has, output(pair, number) -> text, cancel(ids),
    held(ids) -> the nodes that Slurm has not got back from these jobs.
    """

    def __init__(
        self, *, submit, queue, output, cancel, held, ranks, collective, limit_s, start_s, budget_s, clock=time.monotonic, sleep=time.sleep
    ):
        self.submit, self.queue, self.output, self.cancel, self.held = submit, queue, output, cancel, held
        self.ranks, self.collective = ranks, collective
        self.limit_s, self.start_s = limit_s, start_s
        self.clock, self.sleep = clock, sleep
        self.end = clock() + budget_s
        self.stand_ins: list = []
        self.largest = ""
        self.between: list = []  # seconds from the end of a round's last job to the start of the next round's first
        self.ended = None
        self.ending: list = []  # jobs that hung and were cancelled; a node that hangs may hold them long

    def run(self, state):
        """Run all rounds; the sentence that says why it stopped early, or ""."""
        while True:
            pairs = diagnose.plan(state)
            if not pairs:
                return ""
            if self.clock() >= self.end:
                return "its time was over in round %d" % len(state["rounds"])
            diagnose.record(state, self.measure(pairs, len(state["rounds"]) + 1))

    def measure(self, pairs, number):
        """The results of the pairs of a round."""
        waiting = {self.submit(pair, number): pair for pair in pairs}
        began: dict = {}
        kept: dict = {}  # {job: when a node of its pair was last held by a test before}
        submitted, results = self.clock(), []
        while waiting:
            states = self.queue(list(waiting))
            now = self.clock()
            for job in [job for job, state in states.items() if state == "RUNNING"]:
                began.setdefault(job, now)
            if self.ended is not None and (began or len(states) < len(waiting)):
                self.between.append(round(now - self.ended, 2))
                self.ended = None
            over = [job for job in waiting if job not in states]
            late = [job for job in waiting if job in began and job in states and now - began[job] >= self.limit_s]
            pending = [job for job in waiting if job not in began and job in states]
            held = self.held(self.ending) if pending and self.ending else set()
            kept.update({job: now for job in pending if held & set(waiting[job])})
            unended = [job for job in pending if kept.get(job) == now and now - submitted >= self.limit_s]
            stuck = [job for job in pending if job not in unended and now - kept.get(job, submitted) >= self.start_s]
            # What would have come of them is unknown.
            cut = [job for job in waiting if job in states and job not in late + unended + stuck] if now >= self.end else []
            self.ending += late
            if late or unended or stuck or cut:
                self.cancel(late + unended + stuck + cut)
            for job in over + late + unended + stuck + cut:
                pair = waiting.pop(job)
                if job in cut:
                    results.append({"nodes": list(pair), "unfinished": True})
                    continue
                if job in stuck:
                    results.append({"nodes": list(pair), "value": None, "error": BUSY, "skipped": True})
                    continue
                if job in unended:
                    error = "%s %d s, because Slurm cannot end the test before" % (diagnose.NO_END, self.limit_s)
                    results.append({"nodes": list(pair), "value": None, "error": error})
                    continue
                text = self.output(pair, number)
                self.stand_ins += [name for name in rehearsal.named(text) if name not in self.stand_ins]
                value, error = value_of(text, pair, self.ranks, self.collective)
                if job in late:
                    value, error = None, "%s %d s" % (diagnose.NO_END, self.limit_s)
                elif not self.largest:
                    self.largest = sizes_of(text, self.collective)
                results.append({"nodes": list(pair), "value": value, "error": error})
            if waiting:
                self.sleep(POLL)
        self.ended = self.clock()
        return results
