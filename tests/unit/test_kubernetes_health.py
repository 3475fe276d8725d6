# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The agent of the health checks on Kubernetes, against an API that keeps nodes as Kubernetes does, and its manifest."""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import kubernetes_manifests
import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.health import formats, kubernetes_agent, run, settings
from ansible_collections.muster.fleet.plugins.module_utils.health.kubernetes_agent import TAINT, AgentError, Api, turn

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "kubernetes/health/node-health.yaml"
FULL = ROOT / "kubernetes/health/node-health-full.yaml"
THEIRS = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}


def record(check: str, status: str = "passed", severity: str = "drain", **more: object) -> dict:
    empty = {"expected": "", "found": "", "reason": "", "remedy": "Replace the node.", "seconds": 0.1, "allowed": False}
    return {"component": "node_health", "level": "node", "check": check, "status": status, "severity": severity, **empty, **more}


def found(*records: dict) -> dict:
    """What muster-health prints."""
    return json.loads(formats.as_json(list(records), "periodic", "n1", 1.0))


WELL = found(record("gpu_count"), record("disk_space"))
LOST = found(record("gpu_count", "failed", reason="7 of 8 GPUs"), record("disk_space"))


class Cluster:
    """Nodes, and the requests for them. `change`: before the next change of a node, somebody else changes it."""

    def __init__(self) -> None:
        self.nodes = {f"n{number}": self.node(f"n{number}") for number in range(1, 41)}
        self.asked: list[tuple[str, str]] = []
        self.refuses: int | None = None
        self.change: dict | None = None

    @staticmethod
    def node(name: str) -> dict:
        metadata = {"name": name, "resourceVersion": "1"}
        return {"metadata": metadata, "spec": {"taints": [dict(OTHER)]}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}

    def answer(self, method: str, path: str, body: dict, kind: str) -> tuple[int, dict]:
        self.asked.append((method, path))
        if self.refuses:
            return self.refuses, {}
        name = path.removeprefix("/api/v1/nodes").strip("/").removesuffix("/status")
        if not name:
            return 200, {"items": list(self.nodes.values())}
        if name not in self.nodes:
            return 404, {}
        node = self.nodes[name]
        if method == "PATCH" and path.endswith("/status"):
            assert kind == kubernetes_agent.STRATEGIC
            for fresh in body["status"]["conditions"]:  # merged by type
                node["status"]["conditions"] = [each for each in node["status"]["conditions"] if each["type"] != fresh["type"]] + [fresh]
            self.newer(node)
        elif method == "PATCH":
            assert kind == kubernetes_agent.MERGE
            if self.change:
                self.change = None
                self.newer(node)
            if body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"]:
                return 409, {}
            node["spec"].update(body["spec"])
            self.newer(node)
        return 200, node

    @staticmethod
    def newer(node: dict) -> None:
        """Every change gives an object another version, that of the status too."""
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)


@pytest.fixture
def cluster() -> Iterator[SimpleNamespace]:
    made = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            code, answer = made.answer(self.command, self.path, body, self.headers.get("Content-Type") or "")
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SimpleNamespace(data=made, address=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def looks(cluster: SimpleNamespace, *documents: dict | AgentError, node: str = "n1") -> list[str]:
    """Look so often at the node, and return what the last look said."""
    strikes: dict = {}
    said: list[str] = []
    for number, document in enumerate(documents):

        def probe(document: dict | AgentError = document) -> dict:
            if isinstance(document, AgentError):
                raise document
            return document

        said = turn(Api(cluster.address), node, probe, strikes, share=0.05, now=1e9 + 300 * number)[1]
    return said


def shown(cluster: SimpleNamespace, node: str = "n1") -> tuple[dict, list]:
    """Its condition, and its taints."""
    return state(cluster, node, "MusterHealthy")


def state(cluster: SimpleNamespace, node: str, kind: str) -> tuple[dict, list]:
    data = cluster.data.nodes[node]
    [condition] = [each for each in data["status"]["conditions"] if each["type"] == kind]
    return condition, data["spec"]["taints"]


def test_a_well_node_has_the_condition_and_no_taint(cluster: SimpleNamespace) -> None:
    assert looks(cluster, WELL, WELL) == []
    condition, taints = shown(cluster)
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", "ChecksPassed", "2 checks passed.")
    assert condition["lastHeartbeatTime"] == "2001-09-09T01:51:40Z" and condition["lastTransitionTime"] == "2001-09-09T01:46:40Z"
    assert taints == [OTHER]
    assert {each["type"] for each in cluster.data.nodes["n1"]["status"]["conditions"]} == {"Ready", "MusterHealthy"}


def test_a_node_is_tainted_when_two_looks_agree_and_free_again_when_it_is_well(cluster: SimpleNamespace) -> None:
    assert looks(cluster, LOST) == []
    condition, taints = shown(cluster)
    assert (condition["status"], condition["reason"]) == ("False", "GpuCount")
    assert condition["message"] == "gpu_count: 7 of 8 GPUs. Replace the node."
    assert taints == [OTHER]
    assert looks(cluster, LOST, LOST) == ["Node n1 is tainted for gpu_count."]
    assert shown(cluster)[1] == [OTHER, {"key": TAINT, "value": "muster.gpu_count", "effect": "NoSchedule"}]
    assert looks(cluster, WELL) == ["Node n1 has no taint of a health check any more."]
    assert shown(cluster)[1] == [OTHER]


def test_a_fault_that_ends_or_changes_before_the_second_look_taints_nothing(cluster: SimpleNamespace) -> None:
    looks(cluster, LOST, WELL, LOST, found(record("xid", "failed", reason="XID 79")))
    assert shown(cluster)[1] == [OTHER]


def test_who_does_not_know_neither_taints_nor_frees(cluster: SimpleNamespace) -> None:
    looks(cluster, LOST, LOST)
    said = looks(cluster, AgentError("muster-health did not end."), AgentError("muster-health did not end."))
    condition, taints = shown(cluster)
    assert (said, condition["status"], condition["reason"]) == (["muster-health did not end."], "Unknown", "NoResult")
    assert taints[-1]["value"] == "muster.gpu_count"


def test_a_taint_of_somebody_else_stays(cluster: SimpleNamespace) -> None:
    cluster.data.nodes["n1"]["spec"]["taints"] = [dict(THEIRS)]
    looks(cluster, LOST, LOST, WELL)
    assert shown(cluster)[1] == [THEIRS]


def test_two_nodes_of_forty_may_have_the_taint(cluster: SimpleNamespace) -> None:
    for name in ("n1", "n2"):
        looks(cluster, LOST, LOST, node=name)
    said = looks(cluster, LOST, LOST, node="n3")
    assert said == ["Node n3 is not tainted for gpu_count, because the budget of 5 % of the nodes is used up; look at those first."]
    assert shown(cluster, "n3")[1] == [OTHER] and shown(cluster, "n3")[0]["status"] == "False"
    # One that has it keeps it, and says for what.
    looks(cluster, *[found(record("xid", "failed", reason="XID 79"))] * 2, node="n2")
    assert shown(cluster, "n2")[1][-1]["value"] == "muster.xid"


def test_a_change_of_somebody_else_is_not_lost(cluster: SimpleNamespace) -> None:
    cluster.data.change = {}
    cluster.data.change["by"] = "somebody"
    strikes = {"gpu_count": 1}
    with pytest.raises(AgentError, match="somebody else changed the node meanwhile; the next look tries again"):
        turn(Api(cluster.address), "n1", lambda: LOST, strikes, share=0.05, now=1e9)
    turn(Api(cluster.address), "n1", lambda: LOST, strikes, share=0.05, now=1e9)
    assert shown(cluster)[1][-1]["key"] == TAINT


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([record("gpu_count", "not_run", reason="nvidia-smi hangs")], ("Unknown", "GpuCount", ["gpu_count"])),
        ([record("gpu_count", "not_run", allowed=True)], ("True", "ChecksPassed", [])),
        ([record("gpu_temperature", "failed", severity="warning")], ("True", "ChecksPassed", [])),
        ([record("gpu_count", "not_run", rehearsed="passed")], ("Unknown", "Rehearsal", [])),
        ([record("gpu_count", "not_run", rehearsed="failed")], ("False", "GpuCount", ["gpu_count"])),
        ([], ("Unknown", "NoCheck", [])),
    ],
)
def test_what_a_result_says_of_a_node(records: list[dict], wanted: tuple) -> None:
    status, reason, _message, wrong = kubernetes_agent.judge(found(*records))
    assert (status, reason, wrong) == wanted


def test_the_agent_judges_as_the_program_does() -> None:
    """It is a file of its own, so it repeats what the program knows."""
    assert kubernetes_agent.DRAINING == settings.DRAINING
    for status in ("passed", "failed", "not_run"):
        for allowed in (False, True):
            for more in ({}, {"rehearsed": "passed"}, {"rehearsed": "failed"}, {"stand_in": True}):
                for severity in settings.SEVERITIES:
                    each = record("x", status, severity, allowed=allowed, **more)
                    assert kubernetes_agent.blocks(each) == (run.blocks(each) and severity in settings.DRAINING), each


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (401, "the token of the service account is not valid; restart the pod"),
        (403, "the service account may not; apply the ClusterRole of node-health.yaml again"),
        (500, "it answered 500"),
    ],
)
def test_an_api_that_refuses_is_one_sentence(cluster: SimpleNamespace, code: int, says: str) -> None:
    cluster.data.refuses = code
    with pytest.raises(AgentError, match=re.escape(f"Kubernetes refused GET /api/v1/nodes/n1: {says}.")):
        looks(cluster, WELL)
    with pytest.raises(AgentError, match=r"Kubernetes' API at http://127.0.0.1:1 does not answer: "):
        Api("http://127.0.0.1:1").call("GET", "/api/v1/nodes/n1")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["sh", "-c", "echo not found >&2; exit 127"], "gave no result (exit code 127: not found); use a node image with the component"),
        (["muster-no-such-tool"], "muster-no-such-tool cannot be run: No such file or directory."),
        (["sleep", "60"], "muster-health did not end within 0 s; look for hung mounts"),
    ],
)
def test_a_program_that_says_nothing_is_one_sentence(command: list[str], says: str) -> None:
    with pytest.raises(AgentError, match=re.escape(says)):
        kubernetes_agent.look(command, 0.3)


def documents() -> dict[str, dict]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def test_the_manifest_has_all_that_the_agent_needs() -> None:
    made = documents()
    assert [*made] == ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"]
    assert MANIFEST.read_text() == kubernetes_manifests.health()
    assert set(re.findall(r"\$\{?\w*\}?", MANIFEST.read_text())) == {"${IMAGE_URI}"}, "envsubst would replace anything else"
    pod = made["DaemonSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][-2:] == ["chroot", "/host"]
    assert container["args"] == ["/usr/bin/muster-health", "--level", "periodic", "--format", "json"]
    assert pod["tolerations"] == [{"operator": "Exists"}], "a tainted node needs its agent to be free again"
    assert pod["hostPID"] and container["securityContext"]["privileged"]
    rules = {(resource, verb) for rule in made["ClusterRole"]["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert rules == {("nodes", "get"), ("nodes", "list"), ("nodes", "patch"), ("nodes/status", "patch")}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert pod["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"]


def test_the_agent_of_the_manifest_runs_alone(cluster: SimpleNamespace, tmp_path: Path) -> None:
    """As in its pod: one file, Python's standard library, and a command that prints JSON."""
    done = agent(cluster, tmp_path, "--interval=300", "--once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert shown(cluster, "n7")[0]["status"] == "True"
    assert ("GET", "/api/v1/nodes") not in cluster.data.asked, "a well node lists no others"


DCGM = found(record("gpu_count"), record("dcgm", "failed", reason="memory failed on GPU 3"))
UNSEEN = found(record("dcgm", "not_run", reason="nvidia-smi hangs"))


def full(cluster: SimpleNamespace, document: dict | AgentError, node: str = "n1") -> list[str]:
    def probe() -> dict:
        if isinstance(document, AgentError):
            raise document
        return document

    return turn(Api(cluster.address), node, probe, {}, share=0.05, now=2e9, full=True)[1]


def test_a_full_look_has_a_condition_and_a_taint_of_its_own(cluster: SimpleNamespace) -> None:
    assert full(cluster, DCGM) == ["Node n1 is tainted for dcgm."], "one look is enough"
    condition, taints = state(cluster, "n1", "MusterHealthyFull")
    assert (condition["status"], condition["reason"]) == ("False", "Dcgm")
    theirs = {"key": TAINT, "value": "muster-full.dcgm", "effect": "NoSchedule"}
    assert taints == [OTHER, theirs]
    looks(cluster, WELL, WELL)
    assert shown(cluster)[1] == [OTHER, theirs], "a periodic look has not run the diagnostics"
    assert shown(cluster)[0]["status"] == "True"
    assert full(cluster, WELL) == ["Node n1 has no taint of a health check any more."]
    looks(cluster, LOST, LOST)
    full(cluster, WELL)
    assert shown(cluster)[1][-1]["value"] == "muster.gpu_count", "each ends its own"


@pytest.mark.parametrize("document", [UNSEEN, AgentError("muster-health did not end.")])
def test_a_full_look_that_saw_nothing_changes_no_taint(cluster: SimpleNamespace, document: dict | AgentError) -> None:
    full(cluster, document)
    assert state(cluster, "n1", "MusterHealthyFull")[0]["status"] == "Unknown"
    assert shown_taints(cluster) == [OTHER]
    full(cluster, DCGM)
    full(cluster, document)
    assert shown_taints(cluster)[-1]["value"] == "muster-full.dcgm"


def shown_taints(cluster: SimpleNamespace) -> list[dict]:
    return cluster.data.nodes["n1"]["spec"]["taints"]


def test_a_full_look_taints_for_what_failed(cluster: SimpleNamespace) -> None:
    both = found(record("gdrcopy", "not_run", reason="no tool"), record("dcgm", "failed", reason="memory"))
    assert full(cluster, both) == ["Node n1 is tainted for dcgm."]


def test_both_taints_count_for_the_budget(cluster: SimpleNamespace) -> None:
    full(cluster, DCGM)
    looks(cluster, LOST, LOST, node="n2")
    assert "budget" in full(cluster, DCGM, node="n3")[0]
    assert "budget" in looks(cluster, LOST, LOST, node="n4")[0]


def agent(cluster: SimpleNamespace, tmp_path: Path, *options: str, document: dict | str = WELL) -> subprocess.CompletedProcess[str]:
    (tmp_path / "agent.py").write_text(documents()["ConfigMap"]["data"]["agent.py"])
    (tmp_path / "result.json").write_text(document if isinstance(document, str) else json.dumps(document))
    command = [sys.executable, "-I", str(tmp_path / "agent.py"), "--node=n7", f"--api={cluster.address}", *options, "--"]
    return subprocess.run([*command, "cat", str(tmp_path / "result.json")], capture_output=True, text=True, check=False, timeout=60)


def test_a_node_is_looked_at_once_in_so_many_days(cluster: SimpleNamespace, tmp_path: Path) -> None:
    assert agent(cluster, tmp_path, "--full=3600", document="{torn").returncode == 0, "Kubernetes knows that there is no result"
    assert state(cluster, "n7", "MusterHealthyFull")[0]["status"] == "Unknown"
    done = agent(cluster, tmp_path, "--full=3600", document=DCGM)
    assert (done.returncode, done.stdout) == (0, "Node n7 is tainted for dcgm.\n"), "a look without a result does not count"
    assert agent(cluster, tmp_path, "--full=3600").stdout == "Node n7 had a full look less than 3600 s ago.\n"
    assert agent(cluster, tmp_path, "--full=0").stdout == "Node n7 has no taint of a health check any more.\n"
    cluster.data.refuses = 403
    assert agent(cluster, tmp_path, "--full=0").returncode == 1, "the job starts another pod"


def test_the_job_of_full_looks_takes_idle_nodes_alone() -> None:
    assert FULL.read_text() == kubernetes_manifests.health_full()
    names = {"IMAGE_URI", "INSTANCE_TYPE", "NUM_NODES", "GPU_PER_NODE"}
    assert set(re.findall(r"\$\{?\w*\}?", FULL.read_text())) == {"${%s}" % name for name in names}
    values = {"IMAGE_URI": "python:3.13", "INSTANCE_TYPE": "p5.48xlarge", "NUM_NODES": "4", "GPU_PER_NODE": "8"}
    priority, cron = yaml.safe_load_all(string.Template(FULL.read_text()).substitute(values))
    assert (priority["value"] < 0, priority["preemptionPolicy"]) == (True, "Never")
    job = cron["spec"]["jobTemplate"]["spec"]
    assert (cron["spec"]["concurrencyPolicy"], job["parallelism"], job["completions"]) == ("Forbid", 4, 4)
    pod = job["template"]["spec"]
    assert pod["priorityClassName"] == priority["metadata"]["name"]
    assert (pod["restartPolicy"], pod["nodeSelector"]) == ("Never", {"node.kubernetes.io/instance-type": "p5.48xlarge"})
    assert {toleration["key"] for toleration in pod["tolerations"]} == {"nvidia.com/gpu", TAINT}, "a cordoned node stays out"
    [container] = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert container["args"] == ["/usr/bin/muster-health", "--level", "full", "--format", "json"]
    [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"].items() <= job["template"]["metadata"]["labels"].items()
    longest = max(settings.DCGM_SECONDS.values()) + sum(
        check.limit for check in settings.CHECKS if "full" in check.levels and check.name != "dcgm"
    )
    assert longest < kubernetes_agent.FULL_SECONDS < job["activeDeadlineSeconds"]
    made = documents()
    assert pod["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"]
    assert pod["volumes"][0]["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
