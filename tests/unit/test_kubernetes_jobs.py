# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""kubernetes_job against an API server that is a mapping of addresses. No cluster ran it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from test_ranks import FAILED, MPI_5

from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.module_utils.jobs import kubernetes, target
from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs.kubernetes_run import Kubernetes
from ansible_collections.muster.fleet.plugins.module_utils.kubernetes.api import Unreachable
from ansible_collections.muster.fleet.plugins.modules import kubernetes_job

CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/fsx-claim"
HELLO = {"name": "hello", "command": ["true"], "image": "a/b:1", "nodes": 2}


class Server:
    """Objects by address. A job's pods and conditions are what the test says at each question for the job."""

    def __init__(self, *states: tuple[list[dict], dict | None]) -> None:
        self.objects: dict[str, dict] = {CLAIM: {}, "/api/v1/namespaces/default": {}}
        self.states, self.asked, self.failures = list(states), [], []
        self.pods: list[dict] = []
        self.everywhere: dict | None = None  # the pods of all namespaces
        self.kinds = {"pytorchjobs", "jobsets", "trainjobs", "mpijobs"}
        # Kueue's answers by the version of its API.
        self.workloads: dict[str, tuple[int, dict]] = {}

    def __call__(self, method: str, path: str, query: dict, body: Any, _kind: str) -> tuple[int, Any]:
        self.asked.append((method, path, query))
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        if path.endswith("/log"):
            name = path.split("/")[-2]
            return 200, next(pod["log"] for pod in self.pods if pod["metadata"]["name"] == name)
        if path == "/api/v1/pods":
            return (200, self.everywhere) if self.everywhere else (403, {"message": "pods is forbidden"})
        if path.endswith("/pods"):
            return 200, {"items": self.pods}
        parts = path.split("/")
        if path.endswith("/workloads"):
            return self.workloads.get(parts[3], (404, {"message": "the server could not find the requested resource"}))
        if path.startswith("/apis/") and parts[-2] not in self.kinds:
            return 404, {"message": "the server could not find the requested resource", "details": {}}
        if method == "PATCH":
            self.objects[path] = {"metadata": {"creationTimestamp": "2026-11-25T04:00:00Z", "uid": "u-1"}, "status": {}}
            return 201, self.objects[path]
        if path not in self.objects:
            return 404, {"message": f'{parts[-2]} "{parts[-1]}" not found', "details": {"name": parts[-1]}}
        if method == "DELETE":
            del self.objects[path]
            self.pods = []
            return 200, {}
        if path.startswith("/apis/") and self.states:
            self.pods, condition = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            self.objects[path]["status"] = {"conditions": [condition] if condition else []}
        return 200, self.objects[path]

    def count(self, method: str) -> int:
        return sum(1 for each, _, _ in self.asked if each == method)


def pod(number: int, phase: str = "Running", log: str = "", node: str = "", **status: Any) -> dict:
    spec = {"nodeName": node or f"host-{number}"} if phase != "Pending" else {}
    start = {"startTime": "2026-11-25T04:00:10Z"} if phase != "Pending" else {}
    labels = {"muster/role": "node"}
    return {
        "metadata": {"name": f"hello-worker-{number}", "labels": labels},
        "spec": spec,
        "status": {"phase": phase, **start, **status},
        "log": log,
    }


def condition(kind: str, reason: str = "", message: str = "") -> dict:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-11-25T04:05:00Z"}


RUNNING = [pod(0, log="I elastic master_addr=hello-worker-1\n"), pod(1, log="Batch 7 Loss: 2.5, Speed: 9.0 samples/sec, lr: 0.1\n")]
ENDED = [{**each, "status": {**each["status"], "phase": "Succeeded"}} for each in RUNNING]
DONE = (ENDED, condition("Succeeded"))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def service(server: Server, folder: Path, kind: str, timeout: int = 400, **place: str) -> Kubernetes:
    """The service of a job in a target that has `place`."""
    document = job.load(HELLO, kind)
    identity, clock = job.identity(document), Clock()
    manifest = kubernetes.render(document, identity, target.load(kind, place))
    common = {"name": "hello", "identity": identity, "store": jobs.Store(str(folder / "job")), "timeout": timeout, "poll": 5}
    common |= {"pending_timeout": 60, "sleep": clock.sleep, "clock": clock}
    return Kubernetes(request=server, manifest=manifest, document=document, **common)


def bring(
    server: Server, folder: Path, kind: str = "pytorchjob", timeout: int = 400, place: dict[str, str] | None = None, **options: Any
) -> Any:
    made = service(server, folder, kind, timeout, **(place or {}))
    return jobs.bring(made, **{"state": "finished", "files": {"job.json": "{}"}, **options})


@pytest.mark.parametrize(
    ("kind", "word"), [("pytorchjob", "Succeeded"), ("mpijob", "Succeeded"), ("trainjob", "Complete"), ("jobset", "Completed")]
)
def test_a_job_is_applied_once_and_its_result_is_stored(tmp_path: Path, kind: str, word: str) -> None:
    server = Server(([pod(0, "Pending"), pod(1, "Pending")], None), (RUNNING, None), (ENDED, condition(word)))
    changed, found, _files = bring(server, tmp_path, kind)
    assert (changed, found["state"], found["nodes"], found["elapsed_s"]) == (True, "COMPLETED", ["host-0", "host-1"], 290)
    assert bring(server, tmp_path, kind)[1]["stored"] is True
    assert server.count("PATCH") == 1
    [query] = [query for method, _, query in server.asked if method == "PATCH"]
    assert (query["fieldManager"], query["fieldValidation"]) == ("muster", "Strict")
    # The log of the pod that prints is the output, and the lines that name the first host stay.
    assert "Loss: 2.5" in (tmp_path / "job/output.txt").read_text()
    assert "master_addr=" in (tmp_path / "job/output-hello-worker-0.txt").read_text()


def test_a_killed_controller_finds_its_job_again_and_a_rerun_deletes_the_old_one(tmp_path: Path) -> None:
    server = Server((RUNNING, None))
    bring(server, tmp_path, state="submitted")
    server.states = [(RUNNING, None), DONE]
    assert bring(server, tmp_path)[0] is False
    assert (server.count("PATCH"), server.count("DELETE")) == (1, 0)
    server.states = [DONE]
    assert bring(server, tmp_path, rerun=True)[0] is True
    assert (server.count("PATCH"), server.count("DELETE")) == (2, 1)


def test_a_success_on_one_host_is_none(tmp_path: Path) -> None:
    both = [pod(number, "Succeeded", node="host-0") for number in range(2)]
    with pytest.raises(jobs.RunError, match=r"ended FAILED \(its pods ran on 1 nodes instead of 2\)"):
        bring(Server((both, condition("Succeeded"))), tmp_path)


def dead(reason: str, code: int) -> dict:
    return {"containerStatuses": [{"restartCount": 2, "state": {"terminated": {"reason": reason, "exitCode": code}}}]}


@pytest.mark.parametrize(
    ("pods", "end", "state", "code"),
    [
        ([pod(0, "Failed", **dead("OOMKilled", 137)), pod(1)], condition("Failed", "BackoffLimitExceeded"), "OUT_OF_MEMORY", 137),
        ([pod(0, "Failed", **dead("Error", 3)), pod(1)], condition("Failed", "JobFailed", "worker 0 failed"), "FAILED", 3),
        ([], condition("Failed", "DeadlineExceeded"), "TIMEOUT", 1),
    ],
)
def test_a_failure_has_its_state_and_exit_status(tmp_path: Path, pods: list, end: dict, state: str, code: int) -> None:
    with pytest.raises(jobs.RunError) as error:
        bring(Server((pods, end)), tmp_path)
    assert (error.value.facts["state"], error.value.facts["exit_code"]) == (state, code)


def test_an_image_without_the_program_is_named(tmp_path: Path) -> None:
    killed = dead("StartError", 128)
    killed["containerStatuses"][0]["state"]["terminated"]["message"] = (
        'failed to create containerd task: unable to start container process: exec: "bash": executable file not found in $PATH: unknown'
    )
    server = Server(([pod(0, "Failed", **killed), pod(1)], condition("Failed", "JobFailed", "worker 0 failed")))
    with pytest.raises(jobs.RunError) as error:
        bring(server, tmp_path)
    why = 'exec: "bash": executable file not found in $PATH: unknown'
    assert f"a container could not start ({why}), so correct the command or the image" in str(error.value)


def test_a_failure_has_the_status_of_the_rank_that_failed(tmp_path: Path) -> None:
    """torchrun ends with 1 on every node, and a job needs the status with which the program ended."""
    ends = [FAILED.replace("14:12:26", "14:12:27").replace("exitcode  : 7", "exitcode  : 1").replace("rank      : 1", "rank      : 3")]
    ends.append(FAILED)
    pods = [pod(number, "Failed", log=ends[number], **dead("Error", 1)) for number in range(2)]
    server = Server((pods, condition("Failed", "JobFailed", "worker 0 failed")))
    for again in (False, True):  # the stored result has it, too
        with pytest.raises(jobs.RunError, match=r"with exit status 7 of rank 1 on host-\[0-1\]") as error:
            bring(server, tmp_path)
        facts = error.value.facts
        assert (facts["exit_code"], facts["failed_rank"], facts["stored"]) == (7, 1, again)


def test_pods_that_the_operator_deleted_are_remembered(tmp_path: Path) -> None:
    killed = [pod(0, **dead("OOMKilled", 137)), pod(1)]
    server = Server((RUNNING, None), (killed, None), ([], condition("Failed", "PyTorchJobFailed", "it has reached the backoff limit")))
    with pytest.raises(jobs.RunError, match="the operator deleted its pods, and their logs with them") as error:
        bring(server, tmp_path)
    found = error.value.facts
    assert (found["state"], found["exit_code"], found["nodes"], found["restarts"]) == ("OUT_OF_MEMORY", 137, ["host-0", "host-1"], 2)


def test_the_nodes_of_a_failed_mpijob_are_remembered(tmp_path: Path) -> None:
    """The MPI operator deletes the workers, and the launcher stays, which has no rank."""
    launcher = pod(9, "Failed", log=MPI_5, node="host-9", **dead("Error", 9))
    launcher["metadata"]["labels"]["muster/role"] = "launcher"
    server = Server((RUNNING, None), ([launcher], condition("Failed", "MPIJobFailed", "launcher failed")))
    with pytest.raises(jobs.RunError, match=r"with exit status 9 of rank 3 on host-\[0-1\] after") as error:
        bring(server, tmp_path, "mpijob")
    assert error.value.facts["nodes"] == ["host-0", "host-1"]
    made = service(Server((RUNNING, None), ([launcher], None)), tmp_path / "again", "mpijob")
    made.submit(())
    records = [made.record("hello") for _look in range(2)]
    assert [(each["state"], each["ready"], each["nodes"]) for each in records] == [
        ("RUNNING", 2, ["host-0", "host-1"]),
        ("PENDING", 0, ["host-0", "host-1"]),  # a deleted pod does not run
    ]


def queued(kind: str, status: str, reason: str, message: str) -> dict:
    """A workload of Kueue with one condition, in the words of Kueue 0.17.0."""
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}}


# pkg/scheduler/flavorassigner/flavorassigner.go, pkg/controller/core/workload_controller.go and pkg/workload/admissionchecks.go.
QUOTA = "couldn't assign flavors to pod set node: insufficient unused quota for cpu in flavor default, 1 more needed"
CHECKS = "The workload has not all checks ready"
WAITS = [
    (queued("QuotaReserved", "False", "Pending", QUOTA), f"Kueue: {QUOTA}"),
    (queued("QuotaReserved", "False", "Inadmissible", "LocalQueue team doesn't exist"), "Kueue: LocalQueue team doesn't exist"),
    (queued("Admitted", "False", "UnsatisfiedChecks", CHECKS), f"Kueue: {CHECKS}"),
    (queued("Admitted", "True", "Admitted", "The workload is admitted"), "None"),
    ({}, "None"),
]


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
@pytest.mark.parametrize(("workload", "said"), WAITS)
def test_a_job_in_a_queue_of_kueue_says_what_kueue_says(tmp_path: Path, workload: dict, said: str, version: str) -> None:
    server = Server(([], None))
    server.workloads = {version: (200, {"items": [workload]})}
    bring(server, tmp_path, "jobset", state="submitted", place={"queue": "team"})
    assert bring(server, tmp_path, "jobset", state="queried", place={"queue": "team"})[1]["reason"] == said
    asked = [query for _method, path, query in server.asked if path.endswith("/workloads")]
    assert asked[-1] == {"labelSelector": "kueue.x-k8s.io/job-uid=u-1"}


def test_a_cluster_or_user_without_kueue_says_nothing_of_it(tmp_path: Path) -> None:
    for queue, workloads in (("", {}), ("team", {}), ("team", {"v1beta2": (403, {"message": "forbidden"})})):
        server = Server(([], None))
        server.workloads = workloads
        folder = tmp_path / f"{queue}{len(workloads)}"
        bring(server, folder, "jobset", state="submitted", place={"queue": queue})
        assert bring(server, folder, "jobset", state="queried", place={"queue": queue})[1]["reason"] == "None"
        assert any(path.endswith("/workloads") for _method, path, _query in server.asked) == bool(queue)


def test_the_operator_may_delete_pods_only_of_a_job_with_retries(tmp_path: Path) -> None:
    for retries, limit in ((0, None), (2, 2)):
        document = job.load({**HELLO, "retries": retries}, "pytorchjob")
        policy = kubernetes.render(document, job.identity(document), target.load("pytorchjob", {}))["spec"]["runPolicy"]
        assert policy.get("backoffLimit") == limit


def waiting(reason: str) -> dict:
    return {"containerStatuses": [{"restartCount": 0, "state": {"waiting": {"reason": reason, "message": "said so"}}}]}


@pytest.mark.parametrize(
    ("reason", "remedy"), [("ImagePullBackOff", "correct the image's name"), ("CreateContainerConfigError", "create the Secret")]
)
def test_a_container_that_cannot_start_ends_the_job_after_a_while(tmp_path: Path, reason: str, remedy: str) -> None:
    server = Server(([pod(0, "Pending", **waiting(reason)), pod(1, "Pending")], None))
    with pytest.raises(jobs.RunError, match=rf"cannot start and was cancelled: Kubernetes says hello-worker-0 {reason}: said so; {remedy}"):
        bring(server, tmp_path)
    assert server.count("DELETE") == 1


def test_a_pod_that_waits_for_gpus_is_left_and_says_why(tmp_path: Path) -> None:
    says = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    unscheduled = {"conditions": [{"type": "PodScheduled", "status": "False", "message": says}]}
    server = Server(([pod(0, "Pending", **unscheduled), pod(1, "Pending")], None))
    with pytest.raises(jobs.RunError, match=r"not over after 200 s: Kubernetes says PENDING \(0/2 nodes are available: 2 Insufficient"):
        bring(server, tmp_path, timeout=200)
    found = bring(server, tmp_path, state="queried")[1]
    assert (found["ready"], found["reason"], server.count("DELETE")) == (0, says, 0)


def test_a_pod_that_waits_for_gpus_says_what_each_node_has_free(tmp_path: Path) -> None:
    says = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    unscheduled = {"conditions": [{"type": "PodScheduled", "status": "False", "message": says}]}
    server = Server(([pod(0, "Pending", **unscheduled), pod(1, "Pending")], None))
    allocatable = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}
    nodes = [("node2", {}), ("node1", allocatable)]
    server.objects["/api/v1/nodes"] = {"items": [{"metadata": {"name": name}, "status": {"allocatable": have}} for name, have in nodes]}
    busy = pod(0, node="node1")
    busy["spec"]["containers"] = [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}, {"resources": {"limits": {"nvidia.com/gpu": 2}}}, {}]
    asked = bring(server, tmp_path, state="submitted", place={"instance_type": "p5.48xlarge"})
    server.everywhere = {"items": [busy]}
    said = bring(server, tmp_path, state="queried", place={"instance_type": "p5.48xlarge"})[1]["reason"]
    assert said == says + (
        "; the job asks each node for 8 nvidia.com/gpu, 32 vpc.amazonaws.com/efa, node1 has 2 of 8 free nvidia.com/gpu, "
        "node1 has 32 of 32 free vpc.amazonaws.com/efa, node2 has 0 of 0 free nvidia.com/gpu, node2 has 0 of 0 free vpc.amazonaws.com/efa"
    )
    # This user may not see the pods of others.
    server.everywhere = None
    assert "node1 has 8 nvidia.com/gpu, " in bring(server, tmp_path, state="queried", place={"instance_type": "p5.48xlarge"})[1]["reason"]
    assert asked[0] is True


def test_a_job_that_somebody_deleted_is_said_so(tmp_path: Path) -> None:
    server = Server((RUNNING, None))
    bring(server, tmp_path, state="submitted")
    server.objects.clear()
    with pytest.raises(
        jobs.RunError, match=r"The PyTorchJob hello-\w{12} was deleted in namespace default while it ran; run it again with rerun"
    ):
        bring(server, tmp_path, state="awaited")


def test_an_api_server_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    server = Server(DONE)
    server.failures = [Unreachable("connection refused"), (503, {"message": "starting"}), Unreachable("reset")]
    assert bring(server, tmp_path)[1]["state"] == "COMPLETED"
    server.failures = [Unreachable("connection refused")] * 99
    with pytest.raises(jobs.RunError, match=r"the API server does not answer \(connection refused\)"):
        bring(server, tmp_path, rerun=True)


ABSENT = (404, {"details": {"name": "x"}})


def answers(*failures: Any) -> Any:
    """A change of a server that gives these answers first."""
    return lambda server: server.failures.extend(failures)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda server: server.kinds.clear(), "The cluster knows no PyTorchJob; install the training operator."),
        (lambda server: server.objects.clear(), "The cluster has no namespace default for job hello; create it, or set muster_target"),
        (lambda server: server.objects.pop(CLAIM), "Namespace default has no claim fsx-claim for the checkpoints of job hello; create it"),
        (answers((401, {"message": "Unauthorized"})), "The API server does not accept the credentials (Unauthorized)"),
        (answers((403, {"message": 'pytorchjobs is forbidden: User "ann" cannot get'})), 'User "ann" cannot get; give'),
        (answers(ABSENT, (200, {}), ABSENT, (422, {"message": 'unknown field "spec.x"'})), 'refuses job hello: unknown field "spec.x".'),
    ],
)  # fmt: skip
def test_what_the_cluster_does_not_take_is_one_sentence_and_leaves_nothing(tmp_path: Path, change: Any, sentence: str) -> None:
    server = Server(DONE)
    change(server)
    with pytest.raises(jobs.RunError, match=re.escape(sentence)) as error:
        bring(server, tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "job").exists()
    assert server.count("DELETE") == 0


def test_a_stopped_job_keeps_its_output(tmp_path: Path) -> None:
    server = Server((RUNNING, None))
    bring(server, tmp_path, state="submitted")
    changed, found, _files = bring(server, tmp_path, state="cancelled")
    assert (changed, found["state"], server.count("DELETE")) == (True, "CANCELLED", 1)
    assert "Loss: 2.5" in (tmp_path / "job/output.txt").read_text()


def test_a_missing_client_and_a_missing_context_are_named(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    options = {"job": HELLO, "store": str(tmp_path)}
    said = call(kubernetes_job, **options, target={"context": "here"})["msg"]
    assert "install the package kubernetes in Ansible's Python" in said
    assert "muster_target has no context; name the one of ~/.kube/config or KUBECONFIG" in call(kubernetes_job, **options)["msg"]


def test_the_middle_of_a_long_log_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "OUTPUT_BYTES", 12)

    class Limited(Server):
        def __call__(self, method: str, path: str, query: dict, *more: Any) -> tuple[int, Any]:
            status, answer = super().__call__(method, path, query, *more)
            if path.endswith("/log"):
                lines = answer.splitlines(keepends=True)
                answer = "".join(lines[-1:] if "tailLines" in query else lines)[: query["limitBytes"]]
            return status, answer

    pods = [pod(0, log="short\n"), pod(1, log="begin here\n" + "middle\n" * 20 + "Loss: 2.5\n")]
    ended = [{**each, "status": {**each["status"], "phase": "Succeeded"}} for each in pods]
    bring(Limited((ended, condition("Succeeded"))), tmp_path)
    assert (tmp_path / "job/output-hello-worker-0.txt").read_text() == "short\n"
    assert (tmp_path / "job/output.txt").read_text() == f"begin here\nm\n{jobs.LEFT_OUT}\nLoss: 2.5\n"


def test_the_node_of_a_rank_is_found_by_the_host_that_it_prints(tmp_path: Path) -> None:
    """A pod of a JobSet has a random end in its name, and none in its host's."""
    pods = [{**each, "spec": {**each["spec"], "hostname": f"hello-node-0-{number}"}} for number, each in enumerate(ENDED)]
    _changed, result = bring(Server((pods, condition("Completed"))), tmp_path, "jobset")[:2]
    assert result["pods"] == {"hello-node-0-0": "host-0", "hello-node-0-1": "host-1"}
