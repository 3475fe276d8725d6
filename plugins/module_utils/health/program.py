# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""muster-health: tells whether this node may train, and why not. It needs Python and nothing else; docs/health.md says how to use it.

Its commands are options, because Slurm calls it without arguments through scripts of role node_health:

    muster-health --level prolog|periodic|full [--check NAME ...] [--format nagios|json|prometheus] [--output FILE]
    muster-health --level periodic --slurm       drains this node in Slurm, or ends its own drain
    muster-health --acknowledge                  the errors in the kernel's log until now are done with
    muster-health --list
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import sys
import tempfile
import time

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_attribute, read_text
from ansible_collections.muster.fleet.plugins.module_utils.health import formats, policy
from ansible_collections.muster.fleet.plugins.module_utils.health.lookat import CannotRun, Node
from ansible_collections.muster.fleet.plugins.module_utils.health.run import confirmed, run_checks, sentence
from ansible_collections.muster.fleet.plugins.module_utils.health.settings import (
    CHECKS,
    LEVELS,
    NAMES,
    PATH,
    SettingsError,
    read,
    with_type,
)
from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal

STATE = "/var/lib/muster/health"
FIRMWARE = "/sys/devices/virtual/dmi/id/product_name"
BOOT = "/proc/sys/kernel/random/boot_id"
# slurmd kills its health check after a minute.
SLURM_SECONDS = 50
PROLOG_SECONDS = 30


def remembered(path):
    """The state of a node; nothing is known when somebody broke the file."""
    try:
        found = json.loads(read_text(path, "") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def replace_file(path, text, mode=0o644):
    """Write a file so that a reader sees the old or the new text.

    The folder may belong to somebody else, such as the user of node_exporter, so the draft has a name that nobody can foresee. Slurm's
    daemons have umasks of their own, so the mode does not come from there.
    """
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder, prefix=os.path.basename(path) + ".")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(handle, mode)
        os.replace(draft, path)
    except OSError:
        os.remove(draft)
        raise


def the_node(settings_path=PATH, state=None, **tools):
    """(Node, notes) of this machine."""
    want, notes = read(read_text(settings_path, ""), datetime.date.today(), settings_path)
    want = with_type(want, read_attribute(FIRMWARE))
    return Node(want, rehearsed=rehearsal.node(), state=state, **tools), notes


def act(node, drains, state, folder, name):
    """Drain the node in Slurm, or end its own drain: (sentences, alarm). Nothing happens when scontrol does not answer."""
    want = node.want
    boot = read_attribute(BOOT)
    todo = ("", False)
    if drains:
        todo = policy.advice(drains[0], policy.boots_with(state, drains[0]["check"], boot, node.now), want["drain"]["reboots"])
    hooks = [hook for hook in ("prolog", "epilog") if os.path.exists(os.path.join(folder, hook + ".failed"))]
    failed = []
    try:
        nodes = policy.nodes_of(node.ask(["scontrol", "-o", "show", "nodes"], 20))
        decision = policy.decide(name, nodes, drains, want["drain"], now=node.now, hooks=hooks, todo=todo, image=want["image"])
        if name in nodes:
            for argv in policy.commands(name, nodes[name], decision, not drains, want["drain"]["features"]):
                rc, out, err = node.answer(argv, 20)
                if rc:
                    failed.append("%s failed: %s; look at scontrol ping." % (" ".join(argv[:2]), " ".join((err or out).split())))
                    if any(word.startswith("State=") for word in argv):
                        return failed, decision["alarm"]
    except (CannotRun, ValueError) as error:
        return ["Slurm did not answer, so nothing was drained or resumed: %s" % error], None
    requeued = requeue(node, name) if decision["requeue"] else []
    if not drains:
        for hook in hooks:
            os.remove(os.path.join(folder, hook + ".failed"))
    said = [decision["note"]] if decision["note"] else []
    if decision["action"] in ("drain", "update"):
        said.append("drained: " + decision["reason"])
    elif decision["action"] == "resume":
        said.append("resumed, because its checks pass again")
    return said + failed + requeued, decision["alarm"]


def requeue(node, name):
    """Requeue the jobs that run on this drained node, so that Slurm starts them elsewhere: sentences."""

    def ask(*argv):
        rc, out, err = node.answer(list(argv), 20)
        if rc:
            raise CannotRun("%s failed: %s" % (" ".join(argv[:2]), " ".join((err or out).split())))
        return out

    said = []
    try:
        for job in policy.job_numbers(ask("squeue", "--noheader", "--states=RUNNING,SUSPENDED", "--nodelist=" + name, "--format=%i")):
            if policy.may_requeue(ask("scontrol", "-o", "show", "job", job)):
                ask("scontrol", "requeue", job)
                said.append("requeued job %s" % job)
            else:
                said.append("job %s goes on, because it may not be requeued" % job)
    except CannotRun as error:
        said.append("not every job was requeued: %s" % error)
    return said


def arguments(argv):
    parser = argparse.ArgumentParser(prog="muster-health", description="Tell whether this node may train, and why not.")
    parser.add_argument(
        "--level", choices=LEVELS, default="periodic", help="prolog: below a second; periodic: below a minute; full: with diagnostics"
    )
    parser.add_argument(
        "--check", action="append", default=[], choices=NAMES, metavar="NAME", help="only this check, whatever its level; repeat for more"
    )
    parser.add_argument("--format", choices=("nagios", "json", "prometheus"), default="nagios")
    parser.add_argument("--output", metavar="FILE", help="write the output there, in one step, instead of printing it")
    parser.add_argument("--textfile", metavar="FILE", help="also write the result for Prometheus there")
    parser.add_argument("--slurm", action="store_true", help="drain this node in Slurm when it must not train, and end such a drain")
    parser.add_argument("--hook", choices=("prolog", "epilog"), help="called by this script of Slurm: a failure is remembered as its own")
    parser.add_argument(
        "--name", default=os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0], help="the node's name in Slurm"
    )
    parser.add_argument("--acknowledge", action="store_true", help="the errors that the kernel's log has until now are done with")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--settings", default=PATH, metavar="FILE")
    parser.add_argument("--state", default=STATE, metavar="FOLDER")
    return parser.parse_args(argv)


def listing():
    rows = ["%-18s %-22s %-9s %s" % (check.name, ",".join(check.levels), check.severity, check.remedy) for check in CHECKS]
    return "\n".join(["%-18s %-22s %-9s %s" % ("CHECK", "LEVELS", "SEVERITY", "REMEDY"), *rows]) + "\n"


def run(given, out, err):
    """Do what the arguments ask; the exit code."""
    if given.list:
        out.write(listing())
        return 0
    if (given.slurm or given.hook) and not os.path.exists(given.settings):
        # An image has the program before the node is configured, and nobody has said yet what the node must have.
        out.write("MUSTER UNKNOWN - %s does not exist yet, so nothing is drained\n" % given.settings)
        return 0
    path = os.path.join(given.state, "state.json")
    state = remembered(path)
    try:
        node, notes = the_node(given.settings, state)
    except (SettingsError, OSError) as error:
        err.write("muster-health: %s\n" % error)
        return 3
    if given.acknowledge:
        # /dev/kmsg counts microseconds since boot.
        state["acknowledged"] = {read_attribute(BOOT): int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)}
        replace_file(path, json.dumps(state, indent=1) + "\n")
        return 0

    def again():
        return the_node(given.settings, state)[0]

    seconds = PROLOG_SECONDS if given.level == "prolog" else SLURM_SECONDS if given.slurm else None
    records = run_checks(given.level, node, only=given.check, seconds=seconds, again=None if given.level == "prolog" else again)
    alarm = None
    if given.level != "prolog" and not given.check:
        # Who looks by hand counts no strikes.
        drains = confirmed(records, state if given.slurm else dict(state))
        if given.slurm:
            said, alarm = act(node, drains, state, given.state, given.name)
            notes += said
        state["verdict"] = {"at": node.now, "level": given.level, "drains": [sentence(record) for record in drains]}
    code = formats.code(records, given.level)
    if given.hook and code:
        keep(os.path.join(given.state, given.hook + ".failed"), "".join(sentence(record) + "\n" for record in records), err)
    if given.level != "prolog" or not os.path.exists(path):
        keep(path, json.dumps(state, indent=1) + "\n", err)
    text = {
        "nagios": lambda: formats.nagios(records, given.level, notes),
        "json": lambda: formats.as_json(records, given.level, given.name, node.now, notes),
        "prometheus": lambda: formats.prometheus(records, given.level, node.now, alarm),
    }[given.format]()
    textfile = given.textfile or (node.want["textfile"] if given.slurm else "")
    if textfile:
        keep(textfile, formats.prometheus(records, given.level, node.now, alarm), err)
    if given.output:
        keep(given.output, text, err)
    else:
        out.write(text)
    return code


def keep(path, text, err):
    """Write a file. A full disk must not drain the node; the disk check reports it."""
    try:
        # A link in another folder than /dev may be somebody else's, and is replaced.
        own = os.path.dirname(path) == "/dev" or not os.path.islink(path)
        if own and os.path.exists(path) and not os.path.isfile(path):
            # A device such as /dev/null, or a pipe, must stay what it is.
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            replace_file(path, text)
    except OSError as error:
        err.write("muster-health: %s cannot be written: %s.\n" % (path, error.strerror))


def main(argv=None, out=None, err=None):
    """The program."""
    return run(arguments(argv), out or sys.stdout, err or sys.stderr)
