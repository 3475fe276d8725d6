# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node with failed health checks leaves Slurm's service: `decide` is a pure function over what scontrol says of all nodes.

Only drains of these checks are undone. A drain budget keeps a broken check from emptying a partition. Many nodes of one image that fail
alike are a fault of the image: they raise an alarm and stay.
"""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.health.settings import NAMES, SEVERITIES
from ansible_collections.muster.fleet.plugins.module_utils.node.check import has_failed

PREFIX = re.compile(r"muster:(%s): " % "|".join(NAMES))
IMAGE = re.compile(r"\[image ([^\]]+)\]")
# What slurmctld writes when our prolog or epilog ended with another code than 0.
HOOKS = {"prolog error": "prolog", "epilog error": "epilog"}
OUT = ("DRAIN", "DOWN", "FAIL")
IMAGE_PART = 0.10
WEEK = 7 * 86400
FEATURES = ("HealthCheck:Passed", "HealthCheck:Failed")


def nodes_of(text):
    """`scontrol -o show nodes` -> {name: {state, reason, since, comment, features, partitions}}. ValueError when it has none."""
    out = {}
    for line in text.splitlines():
        name = re.match(r"NodeName=(\S+)", line)
        if not name:
            continue
        fields = dict(re.findall(r"(?:^|\s)(State|Partitions|AvailableFeatures)=(\S*)", line))
        # These two are free text, and a key of scontrol follows.
        comment = re.search(r"\sComment=(.*?)(?=\s(?:Reason|Extra|ResumeAfterTime|InstanceId|\w+Time)=|$)", line)
        reason = re.search(r"\sReason=(.*?)(?: \[([^\]@]+)@([^\]]+)\])?(?=\s(?:Comment|Extra|InstanceId)=|\s*$)", line)
        since = reason[3] if reason and reason[3] else ""
        out[name[1]] = {
            "state": fields.get("State", ""),
            "reason": reason[1].strip() if reason else "",
            "since": int(since) if since.isdigit() else 0,
            "comment": comment[1].strip() if comment else "",
            "features": [each for each in fields.get("AvailableFeatures", "").split(",") if each not in ("", "(null)")],
            "partitions": [each for each in fields.get("Partitions", "").split(",") if each],
        }
    if not out:
        raise ValueError("scontrol show nodes printed no node")
    return out


def is_out(node):
    return any(word in node["state"] for word in OUT)


def boots_with(state, check, boot, now):
    """In how many boots of the last week the check was wrong, this one included. Remembers this one."""
    seen = {key: at for key, at in state.setdefault("boots", {}).get(check, {}).items() if now - at < WEEK}
    seen[boot] = now
    state["boots"][check] = seen
    return len(seen)


def advice(record, boots, most):
    """(what to do, whether that is a restart) for a record that drains."""
    if record["severity"] in ("reset", "reboot"):
        if boots <= most:
            return "restart it (%d of %d)" % (boots, most), True
        return "replace it, %d restarts did not help" % most, False
    return (
        "replace it" if record["severity"] == "replace" else record["remedy"].rstrip(".").lower() if record["remedy"] else "look at it"
    ), False


def ends_jobs(drains, least):
    """Whether a fault of this severity was found. A check that could not look ends no job."""
    if least == "never":
        return False
    return any(has_failed(record) and SEVERITIES.index(record["severity"]) >= SEVERITIES.index(least) for record in drains)


def job_numbers(text):
    """The numbers in `squeue --format=%i` that scontrol requeue takes: a task of an array by itself, a heterogeneous job as a whole."""
    return list(dict.fromkeys(word.split("+")[0] for word in text.split()))


def may_requeue(text):
    """Whether a job that `scontrol -o show job` describes is a batch job that may be requeued."""
    flags = dict(re.findall(r"\b(Requeue|BatchFlag)=(\d+)", text.splitlines()[0] if text else ""))
    return flags.get("Requeue", "0") != "0" and flags.get("BatchFlag", "0") != "0"


def one_line(text, most=200):
    text = " ".join(text.replace("[", "(").replace("]", ")").split())
    return text if len(text) <= most else text[: most - 1] + "…"


def decide(me, nodes, drains, settings, *, now, hooks=(), todo=("", False), image=""):
    """{action: none | drain | update | resume | hold, reason, comment, note, alarm, reboot, requeue} for the node `me`.

    nodes: nodes_of(). drains: the confirmed records, the worst first. hooks: those of prolog and epilog that failed here since the last
    periodic run that found nothing. todo: what `advice` says. image: the node's image. requeue: whether its jobs start
    again elsewhere.
    """
    out = {"action": "none", "reason": "", "comment": None, "note": "", "alarm": None, "reboot": False, "requeue": False}
    if me not in nodes:
        return {**out, "note": "Slurm has no node %s; compare the node's name with slurm.conf." % me}
    mine = nodes[me]
    own = bool(PREFIX.match(mine["reason"])) or HOOKS.get(mine["reason"].lower()) in hooks
    gone = is_out(mine)
    marked = bool(PREFIX.match(mine["comment"]))
    if not drains:
        if gone and own:
            return {**out, "action": "resume", "comment": "" if marked else None}
        if gone:
            return {
                **out,
                "note": "%s stays %s: %s" % (me, mine["state"], mine["reason"] or "no reason given"),
                "comment": "" if marked else None,
            }
        return {**out, "comment": "" if marked else None}
    first = drains[0]
    cause = first["check"]
    tail = " [image %s]" % image if image else ""
    reason = "muster:%s: %s; %s%s" % (cause, one_line(first["reason"]), todo[0], tail)
    near = {name: node for name, node in nodes.items() if set(node["partitions"]) & set(mine["partitions"])} or {me: mine}
    said = {name: node["reason"] if is_out(node) else node["comment"] for name, node in near.items() if name != me}
    alike = [name for name, text in said.items() if text.startswith("muster:%s: " % cause)]
    of_image = [name for name in alike if image and (IMAGE.search(said[name]) or [None, ""])[1] == image]
    blamed = bool(image) and len(of_image) + 1 >= max(settings["image_nodes"], IMAGE_PART * len(near))
    recent = [name for name in alike if is_out(near[name]) and now - near[name]["since"] < settings["seconds"]]
    spent = settings["part"] <= 0 or len(recent) >= max(1, int(settings["part"] * len(near)))
    # A drain of prolog or epilog is outside of the budget, so the budget counts here too.
    requeue = ends_jobs(drains, settings["requeue"]) and not (blamed or spent)
    if gone:
        if not own:
            return {**out, "note": "%s stays %s: %s" % (me, mine["state"], mine["reason"] or "no reason given")}
        idle = "ALLOC" not in mine["state"] and "MIX" not in mine["state"] and "COMPLETING" not in mine["state"]
        reboot = bool(todo[1] and settings["reboot"] and idle and "REBOOT" not in mine["state"])
        # A reason that says the same keeps its time.
        same = mine["reason"].partition("; ")[2] == reason.partition("; ")[2] and mine["reason"].split(": ")[0] == "muster:" + cause
        return {**out, "action": "none" if same else "update", "reason": reason, "reboot": reboot, "requeue": requeue}
    if blamed:
        alarm = {"check": cause, "image": image, "nodes": len(of_image) + 1}
        note = "%d nodes of image %s fail %s: this is a fault of the image, so %s is not drained; go back to the image before it."
        note %= (alarm["nodes"], image, cause, me)
        return {**out, "action": "hold", "comment": reason, "note": note, "alarm": alarm}
    if spent:
        note = "%s is not drained for %s: %d of %d nodes were within %d s, which is the budget; drain it yourself if need be."
        note %= (me, cause, len(recent), len(near), settings["seconds"])
        return {**out, "action": "hold", "comment": reason, "note": note}
    return {**out, "action": "drain", "reason": reason, "comment": "" if marked else None, "requeue": requeue}


def with_health(features, well):
    """The node's features with what health says."""
    return [each for each in features if each not in FEATURES] + [FEATURES[0] if well else FEATURES[1]]


def commands(me, mine, decision, well, features=True):
    """The argvs of scontrol that make a decision true."""
    out, update = [], ["scontrol", "update", "NodeName=" + me]
    if decision["action"] in ("drain", "update"):
        out.append([*update, "State=DRAIN", "Reason=" + decision["reason"]])
    elif decision["action"] == "resume":
        out.append([*update, "State=RESUME"])
    if decision["comment"] is not None and decision["comment"] != mine["comment"]:
        out.append([*update, "Comment=" + decision["comment"]])
    wanted = with_health(mine["features"], well)
    if features and sorted(wanted) != sorted(mine["features"]):
        # While a job runs, Slurm refuses available features that lack an active one.
        out.append([*update, "AvailableFeatures=" + ",".join(wanted), "ActiveFeatures=" + ",".join(wanted)])
    if decision["reboot"]:
        out.append(["scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=" + decision["reason"], me])
    return out
