# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drain and resume nodes, without touching nodes that others drained."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

CHECK = re.compile(r"[a-z][a-z0-9_.-]*")


class SlurmNodeError(Exception):
    """A node that cannot be brought to its state; the text is one sentence."""


def prefix(check):
    """The beginning of the Reason of every drain of this check."""
    return "muster:%s:" % check


def full_reason(check, text):
    """The Reason of a drain, in one line. SlurmNodeError when the check's name would not mark it as this check's."""
    if not CHECK.fullmatch(check):
        raise SlurmNodeError("The check %s has no usable name; take a-z, 0-9, '_', '.' and '-', and a letter first." % check)
    return "%s %s" % (prefix(check), " ".join(text.split()))


def word(state):
    """Slurm's state without the marks behind it: `drained*` (does not respond) -> `drained`."""
    return re.sub(r"[^a-z_].*", "", state)


def plan(nodes, names, state, check, text, *, update_reason=False):
    """(changes, notes): {node: its new reason} of the nodes to change, and a sentence for each that differs and is left alone.

    nodes: slurm.node_records(); names: host names or host lists; state: drained or resumed. A node that is out of service already
    keeps its reason, except for a drain of the same check with update_reason. Only a drain of the same check is undone.
    Raises SlurmNodeError for a name that Slurm does not know.
    """
    changes, notes = {}, []
    reason = full_reason(check, text)
    for name in sorted({host for names_ in names for host in slurm.expand(names_)}):
        if name not in nodes:
            raise SlurmNodeError("Slurm has no node %s; %s" % (name, nearest(name, nodes)))
        node = nodes[name]
        out = word(node["state"]) in ("drained", "draining", "down")
        own = node["reason"].startswith(prefix(check))
        # A node that only lost its daemon would return by itself; one that somebody set down has another reason.
        lost = word(node["state"]) == "down" and node["reason"] in ("", "Not responding")
        newer = update_reason and out and own and node["reason"] != reason
        if state == "drained" and (lost or not out or newer):
            changes[name] = reason
        elif state == "resumed" and out and own:
            changes[name] = ""
        elif out and not own:
            notes.append("%s stays %s: %s" % (name, node["state"], node["reason"] or "no reason given"))
    return changes, notes


def leaving(text, staying):
    """Nodes that Slurm's configuration has and `staying` does not, from `scontrol -o show nodes`.

    A dynamic node is in no configuration and stays.
    """
    rows = [dict(re.findall(r"(?:^|\s)(NodeName|State)=(\S+)", line)) for line in text.splitlines()]
    return sorted(row["NodeName"] for row in rows if "NodeName" in row and "DYNAMIC" not in row["State"] and row["NodeName"] not in staying)


def configured(text):
    """The nodes that slurm.conf names, for a slurmctld that does not answer."""
    names = re.findall(r"(?im)^[ \t]*NodeName[ \t]*=[ \t]*([^\s#]+)", text)
    return [host for each in names if each.upper() != "DEFAULT" for host in slurm.expand(each)]


def command(changes, state):
    """The argv that makes the changes of plan(); all of them have one reason."""
    argv = ["scontrol", "update", "NodeName=" + slurm.compress(changes)]
    if state == "drained":
        return [*argv, "State=DRAIN", "Reason=" + next(iter(changes.values()))]
    return [*argv, "State=RESUME"]


def busy(nodes, names):
    """Those of `names` on which jobs still run."""
    return sorted(name for name in names if word(nodes[name]["state"]) not in ("drained", "down"))
