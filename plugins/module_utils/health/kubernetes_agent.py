# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent of kubernetes/health/node-health.yaml: runs muster-health on its node and tells Kubernetes.

It sets the node condition MusterHealthy, and the taint of the AWS reference while a check says that the node must not train. It takes away
only taints of its own. A node is tainted when two looks agree, and never when more nodes than the budget have the taint already.

With --full it looks once, at a node whose last full look is long enough ago, and has a condition and a taint of its own, which the looks in
between do not end. One look is enough for this taint, because the diagnostics take hours; a check that could not run sets none.
The manifest contains this file, so it imports nothing but Python's standard library and has no dollar sign (envsubst reads the manifest).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import re
import ssl
import subprocess
import sys
import time
from http import client
from urllib.parse import urlsplit

CONDITION = "MusterHealthy"
FULL_CONDITION = "MusterHealthyFull"
TAINT = "gpu-healthcheck.aws-samples.io/unhealthy"
EFFECT = "NoSchedule"
OWN = "muster."  # how the value of a taint of this agent begins
FULL_OWN = "muster-full."  # and of one of a full look
DRAINING = ("drain", "reset", "reboot", "replace")  # severities of checks
SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"
LOOKS = 2
SECONDS = 120  # for muster-health, whose checks have limits of their own
FULL_SECONDS = 14400
AGAIN = 60  # seconds until the second look at a node that is not well
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class AgentError(Exception):
    """What kept the agent from its work; the text is one sentence."""


def has_failed(record):
    """Whether a check failed, or would have without its stand-in."""
    return "failed" in (record.get("status"), record.get("rehearsed"))


def blocks(record):
    """Whether a record keeps its node from training: a check that could not look does, unless it is allowed to."""
    unseen = record.get("status") == "not_run" and not (record.get("allowed") or record.get("rehearsed") or record.get("stand_in"))
    return record.get("severity") in DRAINING and (has_failed(record) or unseen)


def judge(document):
    """(status of the condition, its reason, its message, names of the checks for which the node must not train)."""
    records = document.get("checks") or []
    wrong = sorted((record for record in records if blocks(record)), key=lambda record: not has_failed(record))
    if wrong:
        said = "; ".join("%s: %s. %s" % (each["check"], str(each["reason"]).rstrip("."), each["remedy"]) for each in wrong)
        status = "False" if any(has_failed(each) for each in wrong) else "Unknown"
        return status, camel(wrong[0]["check"]), said[:1024], [each["check"] for each in wrong]
    if not records:
        return "Unknown", "NoCheck", "No check of muster-health applies to this node.", []
    if any(each.get("rehearsed") or each.get("stand_in") for each in records):
        return "Unknown", "Rehearsal", "This node rehearses an instance type, and stand-ins cannot pass.", []
    return "True", "ChecksPassed", "%d checks passed." % sum(each.get("status") == "passed" for each in records), []


def camel(name):
    """gpu_count -> GpuCount, which the reason of a condition may be."""
    return "".join(part.capitalize() for part in re.findall(r"[A-Za-z0-9]+", name)) or "Unknown"


def condition(old, status, reason, message, now, *, kind=CONDITION):
    """The condition; the time of its last change stays while its status does."""
    stamp = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    former: dict = next((each for each in old or [] if each.get("type") == kind), {})
    changed = former.get("lastTransitionTime") if former.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": changed or stamp,
    }


def age(conditions, kind, now):
    """The seconds since a condition was last set to a result; infinite when it has none."""
    for each in conditions or []:
        if each.get("type") == kind and each.get("status") != "Unknown" and each.get("lastHeartbeatTime"):
            set_at = datetime.datetime.strptime(each["lastHeartbeatTime"], "%Y-%m-%dT%H:%M:%SZ")
            return now - set_at.replace(tzinfo=datetime.timezone.utc).timestamp()
    return math.inf


def is_own(taint, own=OWN):
    return taint.get("key") == TAINT and str(taint.get("value") or "").startswith(own)


def is_muster_s(taint):
    """Whether the taint counts for the budget."""
    return is_own(taint) or is_own(taint, FULL_OWN)


def taints(old, check, own=OWN):
    """The node's taints: with that of the check, or without one of this agent when check is empty. What somebody else set stays."""
    kept = [each for each in old or [] if not is_own(each, own)]
    # Kubernetes allows one taint of a key and an effect.
    if not check or any(each.get("key") == TAINT and each.get("effect") == EFFECT for each in kept):
        return kept
    value = (own + re.sub(r"[^A-Za-z0-9_.-]", "-", check))[:63].rstrip("-_.")
    return [*kept, {"key": TAINT, "value": value, "effect": EFFECT}]


def over_budget(nodes, name, share):
    """Whether so many other nodes have the taint of this agent that this one must not get it; one node may always."""
    other = [node for node in nodes if node["metadata"]["name"] != name and any(map(is_muster_s, node["spec"].get("taints") or []))]
    return len(other) >= max(1, math.floor(len(nodes) * share))


def look(argv, seconds=SECONDS, run=subprocess.run):
    """The JSON of muster-health. AgentError when it gives none."""
    try:
        done = run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise AgentError("muster-health did not end within %d s; look for hung mounts and drivers on the node." % seconds) from None
    except OSError as error:
        raise AgentError("%s cannot be run: %s." % (argv[0], error.strerror)) from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        text = "muster-health gave no result (exit code %d: %s); use a node image with the component node_health."
        raise AgentError(text % (done.returncode, lines[-1][:200])) from None


class Api:
    """Kubernetes' API, as the service account of the pod."""

    def __init__(self, address, secrets=SECRETS):
        self.address = address
        self.secrets = secrets

    def call(self, method, path, body=None, kind=""):
        """The answer as JSON. AgentError says in one sentence why there is none."""
        headers = {"Content-Type": kind} if kind else {}
        # The kubelet replaces the token before it ends.
        token = os.path.join(self.secrets, "token")
        if os.path.exists(token):
            with open(token, encoding="utf-8") as file:
                headers["Authorization"] = "Bearer " + file.read().strip()
        at = urlsplit(self.address)
        try:
            if at.scheme == "https":
                context = ssl.create_default_context(cafile=os.path.join(self.secrets, "ca.crt"))
                # The authority of a cluster may lack extensions of RFC 5280. Python asks for them from 3.13 on, kubectl does not.
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
                link: client.HTTPConnection = client.HTTPSConnection(at.netloc, timeout=30, context=context)
            else:
                link = client.HTTPConnection(at.netloc, timeout=30)
            with contextlib.closing(link):
                link.request(method, path, None if body is None else json.dumps(body).encode(), headers)
                answer = link.getresponse()
                text = answer.read()
                if answer.status < 300:
                    return json.loads(text)
        except (OSError, ValueError, client.HTTPException) as error:
            raise AgentError("Kubernetes' API at %s does not answer: %s." % (self.address, error or type(error).__name__)) from None
        why = {
            401: "the token of the service account is not valid; restart the pod",
            403: "the service account may not; apply the ClusterRole of node-health.yaml again",
            404: "there is no such node; the pod needs NODE_NAME from spec.nodeName",
            409: "somebody else changed the node meanwhile; the next look tries again",
        }.get(answer.status, "it answered %d" % answer.status)
        raise AgentError("Kubernetes refused %s %s: %s." % (method, path, why))


def turn(api, name, probe, strikes, *, share, now, full=False):
    """One look and what follows from it. strikes: {check: looks in a row}, which this changes. Return (well, sentences)."""
    path = "/api/v1/nodes/" + name
    kind, own, looks = (FULL_CONDITION, FULL_OWN, 1) if full else (CONDITION, OWN, LOOKS)
    said, wrong, known = [], [], True
    try:
        status, reason, message, wrong = judge(probe())
    except AgentError as error:
        # Nobody knows whether the node is well, so its taint stays as it is.
        status, reason, message, known = "Unknown", "NoResult", str(error), False
        said.append(message)
    node = api.call("GET", path)
    fresh = condition(node.get("status", {}).get("conditions"), status, reason, message, now, kind=kind)
    # The answer has the node's new version.
    node = api.call("PATCH", path + "/status", {"status": {"conditions": [fresh]}}, STRATEGIC)
    if not known or (full and status == "Unknown"):
        return False, said
    before = dict(strikes)
    strikes.clear()
    strikes.update({check: before.get(check, 0) + 1 for check in wrong})
    sure = [check for check in wrong if strikes[check] >= looks]
    if wrong and not sure:
        return False, said
    old = node["spec"].get("taints") or []
    if sure and not any(is_own(taint, own) for taint in old) and over_budget(api.call("GET", "/api/v1/nodes")["items"], name, share):
        text = "Node %s is not tainted for %s, because the budget of %g %% of the nodes is used up; look at those first."
        return False, [*said, text % (name, sure[0], 100 * share)]
    new = taints(old, sure[0] if sure else "", own)
    if new != old:
        # With the version that was read, so that no taint of somebody else is lost.
        version = node["metadata"].get("resourceVersion")
        api.call("PATCH", path, {"metadata": {"resourceVersion": version}, "spec": {"taints": new}}, MERGE)
        said.append("Node %s %s." % (name, "is tainted for " + sure[0] if sure else "has no taint of a health check any more"))
    return not wrong, said


def full_look(api, given):
    """Look once with diagnostics. The exit code says whether Kubernetes knows the result, because a Job starts a pod that failed again."""
    try:
        conditions = api.call("GET", "/api/v1/nodes/" + given.node).get("status", {}).get("conditions")
        if age(conditions, FULL_CONDITION, time.time()) < given.full:
            said = ["Node %s had a full look less than %g s ago." % (given.node, given.full)]
        else:
            _well, said = turn(
                api, given.node, lambda: look(given.command, FULL_SECONDS), {}, share=given.budget, now=time.time(), full=True
            )
        code = 0
    except AgentError as error:
        said, code = [str(error)], 1
    for line in said:
        sys.stdout.write(line + "\n")
    return code


def main(argv=None):
    """The program: look, tell, wait."""
    parser = argparse.ArgumentParser(description="Tell Kubernetes whether this node may train.")
    host = "https://%s:%s" % (
        os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default"),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    parser.add_argument("--api", default=host)
    parser.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="the node's name in Kubernetes")
    parser.add_argument("--interval", type=float, default=300, help="seconds between two looks")
    parser.add_argument("--budget", type=float, default=0.05, help="the share of all nodes that may have the taint")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument("--full", type=float, metavar="SECONDS", help="look once with diagnostics, unless the last such look is younger")
    parser.add_argument("command", nargs="+", help="muster-health with its arguments")
    given = parser.parse_args(argv)
    api = Api(given.api)
    if given.full is not None:
        return full_look(api, given)
    strikes: dict = {}
    while True:
        well = False
        try:
            well, said = turn(api, given.node, lambda: look(given.command), strikes, share=given.budget, now=time.time())
        except AgentError as error:
            said = [str(error)]
        for line in said:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if given.once:
            return 0 if well else 1
        time.sleep(given.interval if well else min(AGAIN, given.interval))


if __name__ == "__main__":
    raise SystemExit(main())
