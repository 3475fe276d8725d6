# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the checks of role kubernetes read from a cluster, from answers shaped as those of Kubernetes 1.34."""

from __future__ import annotations

import http.server
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.kubernetes import api as api_of
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes import facts
from ansible_collections.muster.fleet.plugins.modules import kubernetes_facts

# The folder of manifests answers to the name alone.
needs_kubernetes = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes") is None or importlib.util.find_spec("kubernetes.config") is None,
    reason="the package kubernetes is not installed; make unit installs it",
)

CLAIM = "/api/v1/namespaces/training/persistentvolumeclaims/fsx-claim"
CLASS = "/apis/storage.k8s.io/v1/storageclasses/"


class Api:
    """The answers of an API server: a list gives one answer after the other, and keeps to the last."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.now = 0.0

    def get(self, path: str) -> Any:
        answer = self.answers.get(path)
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer

    def ask(self, method: str, path: str, query: Any, body: Any) -> tuple[int, Any]:
        assert (method, query, body["metadata"]["name"]) == ("POST", {"dryRun": "All"}, "muster-probe")
        return self.answers[path]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def of(phase: str, kind: str = "") -> dict:
    return {"spec": {"storageClassName": kind}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("answers", "phase", "waited"),
    [
        ({CLAIM: of("Bound")}, "Bound", 0),
        ({CLAIM: [of("Pending"), of("Pending"), of("Bound")]}, "Bound", 1),
        ({CLAIM: of("Pending")}, "Pending", 60),
        ({CLAIM: of("Pending", "fsx-sc")}, "Pending", 60),
        ({CLAIM: of("Pending", "fsx-sc"), CLASS + "fsx-sc": {"volumeBindingMode": "Immediate"}}, "Pending", 60),
        ({CLAIM: of("Pending", "gp3"), CLASS + "gp3": {"volumeBindingMode": "WaitForFirstConsumer"}}, "WaitForFirstConsumer", 0),
        ({CLAIM: of("Lost")}, "Lost", 0),
        ({}, "it is not there", 0),
    ],
)
def test_a_claim_gets_time_to_be_bound(answers: dict, phase: str, waited: float) -> None:
    api = Api(answers)
    assert facts.claim(api, "training", "fsx-claim", 60) == phase
    assert api.now == waited


def node(name: str, kind: str, gpus: int, *, ready: str = "True", cordoned: bool = False) -> dict:
    return {
        "metadata": {"name": name, "labels": {facts.TYPE_LABEL: kind}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.4"}, {"type": "Hostname", "address": name}],
            "allocatable": {"cpu": "191450m", "memory": "2061Gi", "nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": "32"},
        },
    }


def test_nodes_are_read_with_their_devices() -> None:
    [busy, good, lost] = facts.nodes(
        [
            node("good", "p5.48xlarge", 8),
            node("busy", "p5.48xlarge", 7, cordoned=True),
            node("lost", "k3s", 0, ready="Unknown"),
        ]
    )
    assert (busy["ready"], lost["ready"], good["ready"]) == (False, False, True)
    assert (good["type"], lost["type"]) == ("p5.48xlarge", "")
    assert (good["cpus"], good["memory_mib"], good["gpu"], good["efa"], good["address"]) == (191, 2061 << 10, 8, 32, "10.0.0.4")
    assert facts.lacking([busy, lost, good], "gpu") == "busy has 7 of 8"
    assert facts.lacking([good], "efa") == ""
    assert (facts.expects([good], "gpu"), facts.expects([lost], "gpu")) == (True, False)


@pytest.mark.parametrize("text", ["8GiB", "", "eight", "1e3"])
def test_a_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(facts.ApiError, match="which Muster cannot read"):
        facts.quantity(text)


@pytest.mark.parametrize(
    ("status", "message", "says"),
    [
        (400, 'admission webhook "validator.example.org" denied the request: no container is named pytorch', "refused"),
        (403, 'pytorchjobs.kubeflow.org is forbidden: User "muster" cannot create resource', "is forbidden"),
        (201, "", "it took a wrong job"),
    ],
)
def test_only_the_webhook_itself_counts_as_refusal(status: int, message: str, says: str) -> None:
    api = Api({"/apis/kubeflow.org/v1/namespaces/training/pytorchjobs": (status, {"kind": "Status", "message": message})})
    assert says in facts.webhook(api, "training-operator", "training")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A server that gives one answer to everything, and a kubeconfig for it."""
    answer: dict[str, Any] = {"status": 200, "type": "application/json", "text": "{}"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"])
            self.send_header("Content-Type", answer["type"])
            self.send_header("Content-Length", str(len(answer["text"])))
            self.end_headers()
            self.wfile.write(answer["text"].encode())

        def log_message(self, *_args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    answer["server"] = f"http://127.0.0.1:{server.server_port}"
    answer["kubeconfig"] = str(tmp_path / "config")
    document = {
        "clusters": [{"name": "c", "cluster": {"server": answer["server"]}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(json.dumps(document))
    yield answer
    server.shutdown()
    server.server_close()


LOGIN = "<!DOCTYPE html><html>Log in</html>"


@needs_kubernetes
@pytest.mark.parametrize(
    ("path", "status", "kind", "text"),
    [
        ("/version", 200, "text/html; charset=utf-8", LOGIN),
        ("/version", 200, "application/json", '{"message": "Log in"}'),
        ("/api/v1/nodes", 200, "application/json", '{"message": "Log in"}'),
        ("/api/v1/nodes", 200, "application/json", "[]"),
        ("/api/v1/nodes", 200, "text/plain", LOGIN),
        ("/apis/apps/v1", 404, "text/html", LOGIN),
        ("/api/v1/namespaces/x/pods/y/log", 200, "text/html", LOGIN),
        ("/readyz/etcd", 200, "text/html", LOGIN),
    ],
)
def test_the_page_of_a_proxy_is_no_answer_of_kubernetes(served: dict[str, Any], path: str, status: int, kind: str, text: str) -> None:
    served.update(status=status, type=kind, text=text)
    objects = api_of.Objects(api_of.connection(served["kubeconfig"], "here", "a test"), 0)
    with pytest.raises(api_of.ApiError) as caught:
        objects.get(path)
    said = f"GET {served['server']}{path} returned an answer that is not Kubernetes'; look at the proxy and at the server of context here."
    assert str(caught.value) == said


@needs_kubernetes
@pytest.mark.parametrize(
    ("path", "answer", "found"),
    [
        ("/version", (200, "application/json", '{"gitVersion": "v1.34.2"}'), {"gitVersion": "v1.34.2"}),
        ("/readyz/etcd", (200, "text/plain; charset=utf-8", "ok"), {"message": "ok"}),
        ("/api/v1/namespaces/x/pods/y/log", (200, "text/plain", LOGIN), LOGIN),
        ("/apis/none/v1", (404, "text/plain", "404 page not found"), None),
    ],
)
def test_answers_of_kubernetes_are_taken(served: dict[str, Any], path: str, answer: tuple[int, str, str], found: Any) -> None:
    served.update(zip(("status", "type", "text"), answer, strict=True))
    assert api_of.Objects(api_of.connection(served["kubeconfig"], "here", "a test"), 0).get(path) == found


@needs_kubernetes
def test_a_list_without_its_nodes_is_no_cluster_without_nodes(call, served: dict[str, Any]) -> None:
    served["text"] = '{"kind": "Status"}'
    found = call(kubernetes_facts, kubeconfig=served["kubeconfig"], context="here")
    assert found["msg"] == "The API server gives no list of nodes; look at the server of context here."


@needs_kubernetes
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "a: [",
        "clusters: 5",
        "[]",
        "x",
        "contexts: [{}]",
        "contexts: [{name: here, context: {cluster: c, user: u}}]\nclusters:\nusers:",
    ],
)
def test_a_malformed_kubeconfig_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(api_of.ApiError) as caught:
        api_of.connection(str(tmp_path / "config"), "here", "a test")
    assert str(tmp_path / "config") in str(caught.value) and str(caught.value).count("\n") == 0
