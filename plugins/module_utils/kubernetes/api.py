# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Kubernetes API through its addresses and JSON: the connection by the official client, and objects by server-side apply."""

from __future__ import annotations

import json
import time
from urllib.parse import urlencode

APPLY = "application/apply-patch+yaml"
BUSY = (429, 500, 502, 503, 504)
# Kinds that others need, in the order in which they must be there.
FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ConfigMap", "Secret")


class ApiError(Exception):
    """The API cannot be used, or refuses something; the text is one sentence with the remedy."""


class Unreachable(Exception):
    """The API server gave no answer."""


def said(status, answer):
    """What the API server says about an error."""
    message = answer.get("message") if isinstance(answer, dict) else str(answer)
    return " ".join(str(message or "HTTP status %s" % status).split()).rstrip(".")


def is_kubernetes(path, status, kind, text):
    """Whether an answer is one of an API server, and not the page of a proxy or of a portal.

    kind: its content type. Objects have a kind; the answers of /version, /readyz and of a log have none.
    """
    if "html" in kind.lower():
        return False
    if status >= 300 or path.endswith("/log") or not path.startswith(("/api/", "/apis/", "/version")):
        return True
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return isinstance(answer, dict) and ("gitVersion" if path == "/version" else "kind") in answer


def connection(kubeconfig, context, who):
    """request(method, path, query, body, content type) -> (HTTP status, the answer as a mapping, or as text for a log).

    kubeconfig: a path, or "" for the user's; context: the one to use, and no other; who: the module that asks.
    request() raises Unreachable. Raises ApiError without the client or the context.
    """
    where = kubeconfig or "~/.kube/config or KUBECONFIG"
    if not context:
        raise ApiError("muster_target has no context; name the one of %s whose cluster is meant." % where)
    try:
        # Without the package, Python may take a folder of this name for it; that has no such parts.
        import urllib3
        from kubernetes import config as official_config  # type: ignore[attr-defined]
    except ImportError:
        raise ApiError("Python has no kubernetes, which %s needs; install the package kubernetes in Ansible's Python." % who) from None
    try:
        client = official_config.new_client_from_config(config_file=kubeconfig or None, context=context)
    except official_config.ConfigException as error:
        text = " ".join(str(error).split()).rstrip(".")
        if "No configuration found" in text:
            message = "The kubeconfig %s is missing or empty; bring the cluster up, or set muster_target.kubeconfig."
            raise ApiError(message % where) from error
        raise ApiError("The context %s of %s cannot be used (%s); name one that it has." % (context, where, text)) from error
    except Exception as error:  # the client takes the parts of a kubeconfig without looking whether they are there
        text = "%s: %s" % (type(error).__name__, " ".join(str(error).split()).rstrip("."))
        raise ApiError("The kubeconfig %s cannot be read (%s); correct it." % (where, text)) from error

    # Of the client's own request functions each release has other arguments; what is below them has not changed for years.
    pool, host = client.rest_client.pool_manager, client.configuration.host

    def request(method, path, query, body, kind):
        headers, more = {"Accept": "application/json, */*", "Content-Type": kind}, list(query.items())
        client.update_params_for_auth(headers, more, ["BearerToken"])
        url = host + path + ("?" + urlencode(more) if more else "")
        content = None if body is None else json.dumps(body)
        try:
            answer = pool.request(method, url, body=content, headers=headers, timeout=30, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(" ".join(str(error).split())) from error
        status, text = answer.status, answer.data
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        # While the API server is away, a load balancer answers with its own page; such a request is repeated.
        if status not in BUSY and not is_kubernetes(path, status, answer.headers.get("Content-Type", ""), text):
            message = "%s %s returned an answer that is not Kubernetes'; look at the proxy and at the server of context %s."
            raise ApiError(message % (method, host + path, context))
        if path.endswith("/log") and status < 300:
            return status, text
        try:
            return status, json.loads(text)
        except ValueError:
            return status, {"message": text}

    return request


class Objects:
    """Objects of a cluster.

    request: from connection(); seconds: how long to try again while the API server or a webhook of an operator does not answer.
    """

    def __init__(self, request, seconds=120, sleep=time.sleep, clock=time.monotonic):
        self.request, self.seconds, self.sleep, self.clock = request, seconds, sleep, clock
        self.plurals = {}

    def ask(self, method, path, query=None, body=None, kind="application/json"):
        """(status, answer); tries again while there is no answer. Raises ApiError for one that will not change."""
        until = self.clock() + self.seconds
        while True:
            try:
                status, answer = self.request(method, path, query or {}, body, kind)
            except Unreachable as error:
                status, answer = 503, {"message": "the API server does not answer (%s)" % error}
            if status not in BUSY or path.endswith("/log"):
                break
            if self.clock() >= until:
                message = "After %d s, %s %s still ends with: %s; see the API server and the operators' pods."
                raise ApiError(message % (self.seconds, method, path, said(status, answer)))
            self.sleep(1)
        if status == 401:
            raise ApiError("The API server does not accept the credentials (%s); log in again." % said(status, answer))
        # A webhook that refuses an object has the same status.
        if status == 403 and "admission webhook" not in said(status, answer):
            raise ApiError("%s; give this user a role that allows it." % said(status, answer))
        return status, answer

    def get(self, path, query=None):
        """The answer, or None for what is not there."""
        status, answer = self.ask("GET", path, query)
        if status == 404:
            return None
        if status >= 300:
            raise ApiError("The API server refuses to show %s: %s; correct the request." % (path, said(status, answer)))
        return answer

    def path(self, each):
        """The address of an object. Raises ApiError when the cluster does not know its kind."""
        version, kind = each["apiVersion"], each["kind"]
        base = "/apis/" + version if "/" in version else "/api/" + version
        until = self.clock() + self.seconds
        while (version, kind) not in self.plurals:
            found = self.get(base) or {}
            for resource in found.get("resources", []):
                if "/" not in resource["name"]:
                    self.plurals[version, resource["kind"]] = (resource["name"], resource["namespaced"])
            if (version, kind) not in self.plurals:
                # A definition that was just applied takes a moment.
                if self.clock() >= until or not self.defines(kind):
                    raise ApiError("The cluster knows no %s of %s; install what brings it." % (kind, version))
                self.sleep(1)
        plural, namespaced = self.plurals[version, kind]
        space = "/namespaces/%s" % each["metadata"].get("namespace", "default") if namespaced else ""
        return "%s%s/%s/%s" % (base, space, plural, each["metadata"]["name"])

    def defines(self, kind):
        definitions = self.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions") or {}
        return any(each["spec"]["names"]["kind"] == kind for each in definitions.get("items", []))

    def apply(self, objects, dry=False):
        """Apply objects, those that others need first; returns the names of those that changed. Raises ApiError."""
        changed = []
        defined = {each["spec"]["names"]["kind"] for each in objects if each["kind"] == "CustomResourceDefinition"}
        for each in sorted(objects, key=lambda each: FIRST.index(each["kind"]) if each["kind"] in FIRST else len(FIRST)):
            title = "%s %s" % (each["kind"], each["metadata"]["name"])
            if dry and each["kind"] in defined and not self.defines(each["kind"]):
                changed.append(title)
                continue
            path = self.path(each)
            before = self.get(path)
            query = {"fieldManager": "muster", "fieldValidation": "Strict", "force": "true"}
            if dry:
                query["dryRun"] = "All"
            status, answer = self.ask("PATCH", path, query, each, APPLY)
            namespace = each["metadata"].get("namespace")
            if dry and status == 404 and any(other["kind"] == "Namespace" and other["metadata"]["name"] == namespace for other in objects):
                changed.append(title)
                continue
            if status >= 300:
                raise ApiError("The API server refuses %s: %s; correct it." % (title, said(status, answer)))
            if not before or _content(before) != _content(answer):
                changed.append(title)
        return changed

    def remove(self, objects, dry=False):
        """Delete objects, the last applied first; returns the names of those that were there."""
        changed = []
        for each in reversed(objects):
            try:
                path = self.path(each)
            except ApiError:
                continue  # its kind is gone, and so is it
            if self.get(path):
                changed.append("%s %s" % (each["kind"], each["metadata"]["name"]))
                if not dry:
                    self.ask("DELETE", path, {"propagationPolicy": "Background"})
        return changed

    def wait_available(self, objects):
        """Wait until the Deployments among the objects are available. Raises ApiError with what their pods say."""
        until = self.clock() + self.seconds
        for each in objects:
            while each["kind"] == "Deployment":
                found = self.get(self.path(each)) or {}
                status = found.get("status", {})
                if status.get("observedGeneration", 0) >= found.get("metadata", {}).get("generation", 1) and any(
                    condition["type"] == "Available" and condition["status"] == "True" for condition in status.get("conditions", [])
                ):
                    break
                if self.clock() >= until:
                    space, name = each["metadata"].get("namespace", "default"), each["metadata"]["name"]
                    message = "Deployment %s of namespace %s is not available after %d s (%s); correct that."
                    raise ApiError(message % (name, space, self.seconds, self.why(each) or "its pods say nothing"))
                self.sleep(1)

    def why(self, deployment):
        """Why the pods of a Deployment do not run, in the words of scheduler or kubelet."""
        labels = deployment["spec"]["selector"]["matchLabels"]
        query = {"labelSelector": ",".join("%s=%s" % pair for pair in sorted(labels.items()))}
        pods = self.get("/api/v1/namespaces/%s/pods" % deployment["metadata"].get("namespace", "default"), query) or {}
        return "; ".join(filter(None, map(waits_for, pods.get("items", []))))


def _content(found):
    """What of an object is not bookkeeping."""
    metadata = {key: value for key, value in found["metadata"].items() if key not in ("managedFields", "resourceVersion", "generation")}
    return {**{key: value for key, value in found.items() if key != "status"}, "metadata": metadata}


def waits_for(pod):
    """Why a pod does not run, in the scheduler's or kubelet's own words; "" when it runs."""
    status = pod.get("status", {})
    for each in status.get("containerStatuses", []):
        waiting = each.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") != "ContainerCreating":
            return "%s %s: %s" % (pod["metadata"]["name"], waiting.get("reason"), " ".join(waiting.get("message", "").split()))
    for each in status.get("conditions", []):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return each.get("message", "")
    return ""
