# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One job in a Kubernetes cluster, through the API's addresses and JSON."""

from __future__ import annotations

import datetime
import json

from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs.kubernetes import IDENTITY_LABEL, KINDS, QUEUE_LABEL, RUN
from ansible_collections.muster.fleet.plugins.module_utils.jobs.ranks import failed_rank, with_rank
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import APPLY, BUSY, Unreachable, said, waits_for

OPERATORS = {"PyTorchJob": "the training operator", "TrainJob": "Kubeflow Trainer", "MPIJob": "the MPI operator", "JobSet": "JobSet"}
DONE, FAILED = ("Succeeded", "Complete", "Completed"), ("Failed",)
# Reasons for which a container does not start -> what to do.
STUCK = {
    "ErrImagePull": "correct the image's name, or let the nodes pull it",
    "ImagePullBackOff": "correct the image's name, or let the nodes pull it",
    "InvalidImageName": "correct the image's name",
    "CreateContainerConfigError": "create the Secret or ConfigMap that it names",
}
# What only the rank that prints writes; its pod's log is the job's output.
PRINTED = ("Loss: ", "Avg bus bandwidth")
# Newest first. An older Kueue knows the second alone.
KUEUE_VERSIONS = ("v1beta2", "v1beta1")
# The API server gives the begin of a log up to a number of bytes, and its end by lines only.
LAST_LINES = 2000


class Kubernetes(jobs.Service):
    """One job of a namespace.

    request(method, path, query, body, content type) -> (HTTP status, the answer as a mapping, or as text for a log); raises Unreachable.
    """

    title = "Kubernetes"

    def __init__(self, *, request, manifest, document, **settings):
        super().__init__(**settings)
        self.request, self.manifest, self.document = request, manifest, document
        self.kind, metadata = manifest["kind"], manifest["metadata"]
        self.namespace, self.object = metadata["namespace"], metadata["name"]
        plural = KINDS[document["launcher"]["kind"]][2]
        self.folder = "/apis/%s/namespaces/%s/%s" % (manifest["apiVersion"], self.namespace, plural)
        self.core = "/api/v1/namespaces/%s/" % self.namespace
        # The pods as they were last seen: an operator deletes those of a job that takes too long or fails more often than `retries` allows.
        self.seen: list = []

    def ask(self, method, path, query=None, body=None, kind="application/json"):
        """(status, answer); tries again until the deadline while the API server gives no answer or is too busy."""
        while True:
            try:
                status, answer = self.request(method, path, query or {}, body, kind)
            except Unreachable as error:
                self.pause("the API server does not answer (%s)" % error)
                continue
            if status not in BUSY:
                break
            self.pause("the API server says %s" % said(status, answer))
        if status == 401:
            raise jobs.RunError("The API server does not accept the credentials (%s); log in again." % said(status, answer), "log in again")
        if status == 403 and "quota" not in said(status, answer):
            raise jobs.Refused("%s; give this user a role that allows it." % said(status, answer), "change the role")
        return status, answer

    def _get(self):
        """The job's object, or None. Raises RunError when the cluster does not know the kind."""
        status, answer = self.ask("GET", "%s/%s" % (self.folder, self.object))
        if status == 404 and not (answer.get("details") or {}).get("name"):
            message = "The cluster knows no %s; install %s."
            raise jobs.Refused(message % (self.kind, OPERATORS[self.kind]))
        if status == 404:
            return None
        if status >= 300:
            raise jobs.RunError("The API server refuses to show job %s: %s." % (self.name, said(status, answer)))
        return answer

    def live(self):
        """The job's name while its object has not ended."""
        found = self._get()
        return self.object if found and not ended(found) else None

    def submit(self, options):
        """Apply the manifest; the object of an ended run goes first."""
        volumes = [each["persistentVolumeClaim"] for each in _mappings(self.manifest) if "persistentVolumeClaim" in each]
        claims = {volume["claimName"] for volume in volumes}
        for claim in sorted(claims):
            status, answer = self.ask("GET", self.core + "persistentvolumeclaims/" + claim)
            if status == 404 and not self._has_namespace():
                message = "The cluster has no namespace %s for job %s; create it, or set muster_target.namespace."
                raise jobs.Refused(message % (self.namespace, self.name))
            if status == 404:
                message = "Namespace %s has no claim %s for the checkpoints of job %s; create it, or set muster_target.claim."
                raise jobs.Refused(message % (self.namespace, claim, self.name))
        if self._get():
            self._delete()
        query = {"fieldManager": "muster", "fieldValidation": "Strict", "force": "true"}
        status, answer = self.ask("PATCH", "%s/%s" % (self.folder, self.object), query, self.manifest, APPLY)
        if status >= 300:
            raise jobs.Refused("The API server refuses job %s: %s." % (self.name, said(status, answer)))
        return self.object

    def _has_namespace(self):
        """Whether the namespace is there, as far as this user may know."""
        try:
            return self.request("GET", self.core.rstrip("/"), {}, None, "application/json")[0] != 404
        except Unreachable:
            return True

    def _delete(self):
        self.ask("DELETE", "%s/%s" % (self.folder, self.object), {"propagationPolicy": "Foreground"})
        while self._get():
            self.pause("Kubernetes is deleting the earlier run")

    def cancel(self, job_id):
        """Delete the object, after its output was fetched; Kubernetes ends its pods."""
        self.fetch_output(job_id)
        self.cancelled = self.record(job_id)
        self._delete()

    cancelled = None

    def _pods(self):
        _code, answer = self.ask("GET", self.core + "pods", {"labelSelector": "%s=%s" % (IDENTITY_LABEL, self.identity[:12])})
        return sorted(answer.get("items", []), key=lambda pod: pod["metadata"]["name"])

    def record(self, job_id):
        """The object and its pods as a record of Service."""
        found = self._get()
        if found is None:
            return None
        present = self._pods()
        # The MPI operator deletes the workers of a failed job, and leaves the launcher.
        ranks = _ranks(present) or _ranks(self.seen)
        self.seen = pods = ranks + [pod for pod in present or self.seen if pod not in ranks]
        containers = [each for pod in pods for each in pod.get("status", {}).get("containerStatuses", [])]
        dead = [each["state"]["terminated"] for each in containers if each.get("state", {}).get("terminated")]
        dead += [each["lastState"]["terminated"] for each in containers if each.get("lastState", {}).get("terminated")]
        failed = [each for each in dead if each.get("exitCode")]
        running = [pod for pod in _ranks(present) if pod.get("status", {}).get("phase") == "Running"]
        state, reason = "RUNNING" if running else "PENDING", "None"
        condition = ended(found)
        if condition:
            reason = " ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            state = "COMPLETED" if condition["type"] in DONE else "TIMEOUT" if "DeadlineExceeded" in reason else "FAILED"
            if state == "FAILED" and any(each.get("reason") == "OOMKilled" for each in failed):
                state = "OUT_OF_MEMORY"
            if state != "COMPLETED" and cannot_start(dead):
                reason += "; a container could not start (%s), so correct the command or the image" % cannot_start(dead)
            if state != "COMPLETED" and not present:
                reason += "; the operator deleted its pods, and their logs with them"
        elif len(running) < self.document["nodes"]:
            reason = next(filter(None, map(waits_for, present)), "None")
            if "nodes are available" in reason:
                reason = "; ".join(filter(None, (reason, self._nodes_have())))
            if reason == "None" and not running:
                reason = self._queue_says(found) or reason
        times = {key: _seconds(text) for key, text in self._times(found, pods, condition).items()}
        return {
            "job_id": self.object,
            "state": state,
            "reason": reason,
            "exit_code": failed[0]["exitCode"] if failed and state != "COMPLETED" else 1 if condition and state != "COMPLETED" else 0,
            "signal": 0,
            "nodes": sorted({pod["spec"]["nodeName"] for pod in ranks if pod["spec"].get("nodeName")}),
            # A rank prints the name of its host, which for a pod of a JobSet is not that of the pod.
            "pods": {
                pod["spec"].get("hostname") or pod["metadata"]["name"]: pod["spec"]["nodeName"]
                for pod in ranks
                if pod["spec"].get("nodeName")
            },
            **times,
            "elapsed_s": None,
            "restarts": sum(each.get("restartCount", 0) for each in containers),
            "ready": len(running),
        }

    def _nodes_have(self):
        """What each node has of the devices that the job asks for, and what is free where this user may see all pods; "" without nodes."""
        limits: dict = next((each["limits"] for each in _mappings(self.manifest) if "limits" in each), {})
        devices = {name: count for name, count in limits.items() if "/" in name}
        alive = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        asked: tuple = (("/api/v1/nodes", {}), ("/api/v1/pods", alive))
        try:
            nodes, pods = (self.request("GET", path, query, None, "application/json") for path, query in asked)
        except Unreachable:
            return ""
        if nodes[0] >= 300 or not devices:
            return ""
        said = ["the job asks each node for " + ", ".join("%s %s" % (count, name) for name, count in devices.items())]
        for node in sorted(nodes[1].get("items", []), key=lambda each: each["metadata"]["name"]):
            title, allocatable = node["metadata"]["name"], node.get("status", {}).get("allocatable", {})
            own = [each for pod in pods[1].get("items", []) if pod["spec"].get("nodeName") == title for each in pod["spec"]["containers"]]
            for name in devices:
                have = int(allocatable.get(name, 0))
                free = have - sum(int(each.get("resources", {}).get("limits", {}).get(name, 0)) for each in own)
                said.append("%s has %s %s" % (title, "%d of %d free" % (free, have) if pods[0] < 300 else have, name))
        return ", ".join(said)

    def _queue_says(self, found):
        """Why Kueue does not admit the job; "" for a job without a queue, and where this user may not see the workloads."""
        if QUEUE_LABEL not in self.manifest["metadata"]["labels"]:
            return ""
        for version in KUEUE_VERSIONS:
            path = "/apis/kueue.x-k8s.io/%s/namespaces/%s/workloads" % (version, self.namespace)
            query = {"labelSelector": "kueue.x-k8s.io/job-uid=%s" % found["metadata"].get("uid", "")}
            try:
                status, answer = self.request("GET", path, query, None, "application/json")
            except Unreachable:
                return ""
            if status < 300:
                return waits_in_queue(answer.get("items", []))
            if status != 404:
                break
        return ""

    def _times(self, found, pods, condition):
        starts = [pod["status"]["startTime"] for pod in pods if pod.get("status", {}).get("startTime")]
        return {
            "submitted": found["metadata"].get("creationTimestamp"),
            "started": min(starts, default=None),
            "ended": condition and condition.get("lastTransitionTime"),
        }

    def pending(self, record):
        """A container that cannot start ends the job; a pod that waits for nodes does not, because a cluster may grow."""
        word = record["reason"].split(":")[0].split(" ")[-1]
        return ("unavailable", STUCK[word]) if word in STUCK else (None, "")

    def over(self, job_id, record):
        """The record with the output fetched. A job that was deleted by somebody else is an error."""
        if record is None and self.cancelled:
            return {**self.cancelled, "state": "CANCELLED", "reason": "deleted by Muster"}
        if record is None:
            message = "The %s %s was deleted in namespace %s while it ran; run it again with rerun."
            raise jobs.RunError(message % (self.kind, self.object, self.namespace), "run it again with rerun")
        record = with_rank(record, self.fetch_output(job_id))
        if record["state"] == "COMPLETED" and len(record["nodes"]) < self.document["nodes"]:
            reason = "its pods ran on %d nodes instead of %d" % (len(record["nodes"]), self.document["nodes"])
            return {**record, "state": "FAILED", "reason": reason, "exit_code": 1}
        return record

    def fetch_output(self, job_id):
        """The log of the pod with the rank that prints, else of the first pod, becomes output.txt; that of another pod output-POD.txt.

        Returns the failed_rank() of each log.
        """
        first, printing, found = None, False, []
        for pod in self._pods():
            name = pod["metadata"]["name"]
            text = self._log(name)
            if text is None:
                continue
            found.append(failed_rank(text))
            if not printing and any(word in text for word in PRINTED):
                printing = True
                self.store.prepare({"output.txt": text})
            elif first is None:
                first = name, text
            else:
                self.store.prepare({"output-%s.txt" % name: text})
        if first:
            self.store.prepare({"output-%s.txt" % first[0] if printing else "output.txt": first[1]})
        return found

    def _log(self, name):
        """The log of a pod, of a long one its begin and its last lines; None when there is none."""
        path, limit = self.core + "pods/%s/log" % name, {"limitBytes": jobs.OUTPUT_BYTES}
        status, text = self.ask("GET", path, limit)
        if status >= 300:
            return None
        text = text if isinstance(text, str) else ""
        if len(text.encode()) < jobs.OUTPUT_BYTES:
            return text
        status, end = self.ask("GET", path, {**limit, "tailLines": LAST_LINES})
        return "\n".join([text, jobs.LEFT_OUT, end if status < 300 and isinstance(end, str) else ""])


def run_of(store, rerun, now):
    """Which run of a job the next one is: that of its last manifest, or `now` (text) when it is to run again after it had completed."""
    kept = store.stored()
    if rerun and kept and kept["state"] == "COMPLETED":
        return now
    try:
        return json.loads(store.read("manifest.json"))["metadata"].get("annotations", {}).get(RUN, "")
    except (ValueError, KeyError):
        return ""


def ended(found):
    """The condition that ends a job, or None."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] in (*DONE, *FAILED) and each.get("status") == "True"), None)


def cannot_start(dead):
    """Why a container never ran, in the words of its runtime; "" when all did. dead: the ends of containers."""
    said_no = next((each.get("message", "") for each in dead if each.get("reason") == "StartError"), "")
    return " ".join(said_no.split()).rpartition("container process: ")[2]


def waits_in_queue(workloads):
    """Kueue's own words on the first workload that it does not admit, as `Kueue: ...`; "" when it says none."""
    for each in workloads:
        have = {condition["type"]: condition for condition in each.get("status", {}).get("conditions", [])}
        for kind in ("QuotaReserved", "Admitted"):
            said_no = have.get(kind, {})
            if said_no.get("status") == "False":
                return "Kueue: %s" % (said_no.get("message") or said_no.get("reason"))
    return ""


def _ranks(pods):
    """The pods that have ranks, of an MPIJob all but its launcher."""
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get("muster/role") != "launcher"]


def _mappings(value):
    """All mappings in a manifest, each before those in it."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _mappings(each)


def _seconds(text):
    """Seconds since 1970 of a time such as 2026-11-25T04:00:00Z, or None."""
    if not text:
        return None
    return int(datetime.datetime.strptime(text[:19] + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp())
