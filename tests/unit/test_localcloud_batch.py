# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Batch of the local cloud over tasks that only record their calls; tests/proof/batch_local.py has real containers."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from local_cloud_api import client, fault, machines, served

import localcloud.cloud  # noqa: F401 - before moto, whose AMIs it replaces
from localcloud import batch, tasks
from localcloud.tasks import Ended, Task

__all__ = ["client", "fault", "machines", "served"]

CONTAINER: dict[str, Any] = {
    "image": "a/b:1",
    "command": ["run", "Ref::what", "Ref::other"],
    "environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
    "resourceRequirements": [{"type": "VCPU", "value": "96"}, {"type": "MEMORY", "value": "1048576"}],
    "volumes": [{"name": "x", "host": {"sourcePath": "/fsx/jobs"}}],
    "mountPoints": [{"sourceVolume": "x", "containerPath": "/jobs", "readOnly": True}],
}


def properties(*ranges: str, count: int = 3, **main: Any) -> dict[str, Any]:
    each = [
        {"targetNodes": nodes, "container": {**CONTAINER, "image": f"image:{number}"}} for number, nodes in enumerate(ranges or ("0:",))
    ]
    return {"numNodes": count, "mainNode": 0, "nodeRangeProperties": each, **main}


@pytest.mark.parametrize(
    ("ranges", "images"),
    [(("0:2",), "000"), ((":1", "2"), "001"), (("0:", "1:1"), "010"), (("1:", "0"), "100")],
)
def test_the_narrower_range_of_nodes_counts(ranges: tuple[str, ...], images: str) -> None:
    assert "".join(each["image"][-1] for each in batch.node_specs(properties(*ranges), {})) == images


def test_an_override_changes_what_it_names() -> None:
    changes = {"environment": [{"name": "B", "value": "2"}], "command": ["x"], "resourceRequirements": [{"type": "VCPU", "value": "1"}]}
    some = [{"targetNodes": "1:2", "containerOverrides": changes}]
    specs = batch.node_specs(properties(), {"numNodes": 4, "nodePropertyOverrides": some})
    assert [each["command"] == ["x"] for each in specs] == [False, True, True, False]
    assert specs[1]["environment"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    asked = [batch.resource(specs[node], kind, 1) for node, kind in ((1, "VCPU"), (1, "MEMORY"), (0, "VCPU"))]
    assert asked == [1, 1048576, 96]
    assert specs[0]["environment"] == CONTAINER["environment"]


@pytest.mark.parametrize(
    ("given", "overrides", "said"),
    [
        (properties("0:2"), {"numNodes": 4}, "a node range without an upper boundary"),
        (properties("0:", "2:"), {"numNodes": 2}, "leaves out the main node or a node range"),
        (properties(mainNode=2), {"numNodes": 2}, "leaves out the main node or a node range"),
        (properties("0:1"), {}, "Node 2 is in no node range"),
        (properties(), {"nodePropertyOverrides": [{"targetNodes": "2:3", "containerOverrides": {}}]}, "names node 3 of a job with 3 nodes"),
    ],
)
def test_what_batch_refuses_is_refused(given: dict[str, Any], overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        batch.node_specs(given, overrides)


def test_a_worker_knows_the_main_node_and_the_main_node_does_not() -> None:
    main, worker = (batch.variables({"JOB_ID": "j", "JOB_ATTEMPT": "2"}, index, 3, 0, "10.0.0.9") for index in (0, 1))
    assert main == {
        "AWS_BATCH_JOB_ID": "j#0", "AWS_BATCH_JOB_ATTEMPT": "2",
        "AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "3", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    }  # fmt: skip
    assert {**main, "AWS_BATCH_JOB_ID": "j#1", "AWS_BATCH_JOB_NODE_INDEX": "1"} | {
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.9"
    } == worker
    assert "AWS_BATCH_JOB_NUM_NODES" not in batch.variables({"JOB_ID": "j"}, None, 1, 0, "")


RULES = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]


@pytest.mark.parametrize(
    ("strategy", "attempt", "status", "again"),
    [
        (None, 1, "x", False),
        ({"attempts": 2}, 1, "x", True),
        ({"attempts": 2}, 2, "x", False),
        ({"attempts": 3, "evaluateOnExit": RULES}, 1, "Host EC2 (instance i-1) terminated.", True),
        ({"attempts": 3, "evaluateOnExit": RULES}, 1, "Essential container in task exited", False),
        ({"attempts": 3, "evaluateOnExit": [{"onExitCode": "9", "action": "exit"}]}, 1, "x", True),
    ],
)
def test_an_attempt_is_repeated_when_the_strategy_says_so(strategy: dict | None, attempt: int, status: str, again: bool) -> None:
    assert batch.tried_again(strategy, attempt, {"onStatusReason": status, "onReason": "", "onExitCode": "1"}) is again


def test_values_of_variables_are_not_in_the_command_line() -> None:
    task = Task("n", "a/b:1", ("run",), {"KEY": "secret\nof two lines", "TOKEN": "hidden"}, (("/a", "/b", True),))
    argv = tasks.arguments(task, tasks.Place("c", "net", "10.0.0.9", "x", Path("/env")), {"nofile": 9})
    assert "hidden" not in " ".join(argv) and "secret" not in " ".join(argv)
    assert {"--env=KEY", "--env-file=/env", "--volume=/a:/b:ro", "--pull=never", "--ulimit=nofile=9:9", "--label=muster.fleet=x"} <= set(
        argv
    )
    assert argv[-2:] == ["a/b:1", "run"]
    assert tasks.env_text(task.env) == "TOKEN=hidden\n"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("Error: a/b:1: image not known\n", "CannotPullContainerError: a/b:1: image not known"),
        ("docker: Error response from daemon: No such image: a/b:1.\n", "CannotPullContainerError: docker: Error response"),
        ('Error: OCI runtime error: exec: "rn": not found in $PATH\n', "CannotStartContainerError: OCI runtime error"),
        ("", "CannotStartContainerError: the engine said nothing"),
    ],
)
def test_a_container_that_does_not_start_says_why(said: str, sentence: str) -> None:
    assert tasks.failure(said).startswith(sentence)


class FakeRunning:
    """A task that runs until somebody sets how it ended, and ends with 143 when it is stopped. `ends`: how the next ones end at once."""

    ends: list[Ended] = []  # noqa: RUF012 - a test empties it again

    def __init__(self, task: Task, address: str) -> None:
        self.task, self.address, self.now = task, address, self.ends.pop(0) if self.ends else None
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def running(self) -> bool:
        return self.now is None or self.now.code is not None

    def ended(self) -> Ended | None:
        return self.now

    def stop(self, _patience: int) -> None:
        self.now = self.now or Ended(143)


@pytest.fixture
def started(machines, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeRunning]:
    """The tasks by the index of their node, or by attempt and index; the machines can run them."""
    found: dict[str, FakeRunning] = {}

    def run_task(task: Task) -> FakeRunning:
        made = FakeRunning(task, f"10.0.0.{len(found) + 1}")
        found["-".join(task.name.split("-")[-2:])] = made
        return made

    for name, what in {
        "run_task": run_task,
        "end_task": lambda task: None,
        "room_mib": lambda: 64000,
        "shared": lambda path: f"/cloud{path}",
    }.items():
        monkeypatch.setattr(machines, name, what, raising=False)
    monkeypatch.setattr(batch, "LOOK_SECONDS", 0.01)
    return found


@pytest.fixture
def api(client, started) -> Any:
    made = client("batch")
    role = client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    made.create_compute_environment(computeEnvironmentName="nodes", type="UNMANAGED", state="ENABLED", serviceRole=role)
    made.create_job_queue(
        jobQueueName="gpu", state="ENABLED", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "nodes"}]
    )
    return made


def until(done: Any) -> Any:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if found := done():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come")


class Submitted:
    """A job of two nodes."""

    def __init__(self, api: Any, definition: dict[str, Any] | None = None, **more: Any) -> None:
        self.api = api
        wanted = {"jobDefinitionName": "d", "type": "multinode", "nodeProperties": properties(count=2), **(definition or {})}
        api.register_job_definition(**wanted)
        self.id = api.submit_job(jobName="job", jobQueue="gpu", jobDefinition="d", **more)["jobId"]

    def look(self, node: int | None = None) -> dict[str, Any]:
        found = self.api.describe_jobs(jobs=[self.id if node is None else f"{self.id}#{node}"])["jobs"]
        return found[0] if found else {}

    def ended(self) -> dict[str, Any]:
        return until(lambda: self.look() if "stoppedAt" in self.look() else None)


def test_a_job_ends_with_its_main_node(api, started, client) -> None:
    job = Submitted(api, parameters={"what": "this"})
    until(lambda: "1-1" in started)
    task = started["1-1"].task
    assert (task.command, task.mounts) == (("run", "this", "Ref::other"), (("/cloud/fsx/jobs", "/jobs", True),))
    assert (task.memory_mib, task.cpus) == (batch.MOST_MIB, batch.MOST_CPUS)
    assert task.env["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] == started["1-0"].address
    started["1-0"].lines.put("hello")
    started["1-0"].lines.put("")
    started["1-0"].now = Ended(0)
    assert job.ended()["status"] == "SUCCEEDED"
    api.terminate_job(jobId=job.id, reason="too late")
    assert job.look()["statusReason"] == batch.EXITED and not {"container", "isTerminated"} & set(job.look())
    assert [job.look(node)["container"]["exitCode"] for node in (0, 1)] == [0, 143]
    listed = api.list_jobs(multiNodeJobId=job.id)["jobSummaryList"]
    assert [(each["jobId"], each["nodeProperties"]["isMainNode"]) for each in listed] == [(f"{job.id}#0", True), (f"{job.id}#1", False)]
    stream = job.look(0)["container"]["logStreamName"]
    page = client("logs").get_log_events(logGroupName="/aws/batch/job", logStreamName=stream)
    assert [each["message"] for each in page["events"]] == ["hello"]
    assert api.describe_job_definitions(jobDefinitionName="d")["jobDefinitions"][0]["nodeProperties"]["numNodes"] == 2


def test_a_worker_that_fails_leaves_the_job_alone(api, started) -> None:
    job = Submitted(api)
    until(lambda: "1-1" in started)
    started["1-1"].now = Ended(7)
    until(lambda: job.look(1).get("status") == "FAILED")
    assert job.look()["status"] == "RUNNING"
    started["1-0"].now = Ended(1)
    done = job.ended()
    assert (done["status"], done["statusReason"], done["attempts"][0]["container"]["exitCode"]) == ("FAILED", batch.EXITED, 1)
    assert job.look(1)["stoppedAt"] < job.look(0)["stoppedAt"]


def test_a_worker_that_never_comes_and_a_job_that_is_ended(api, started, fault) -> None:
    fault(boots=False)
    job = Submitted(api)
    until(lambda: job.look(0).get("status") == "RUNNING")
    time.sleep(0.1)
    assert (list(started), job.look(1)["status"]) == (["1-0"], "RUNNABLE")
    api.terminate_job(jobId=job.id, reason="enough")
    done = job.ended()
    assert (done["status"], done["statusReason"], done["isTerminated"]) == ("FAILED", "enough", True)
    assert "startedAt" not in job.look(1)
    api.terminate_job(jobId=job.id, reason="again")
    assert job.look()["statusReason"] == "enough"


def test_attempts_are_repeated_and_a_container_that_does_not_start_fails(api, started) -> None:
    FakeRunning.ends.append(Ended(None, "CannotPullContainerError: a/b:1: image not known"))
    job = Submitted(api, {"retryStrategy": {"attempts": 2}})
    until(lambda: "2-1" in started)
    assert "1-1" not in started
    started["2-0"].now = Ended(0)
    done = job.ended()
    assert (done["status"], [each["statusReason"] for each in done["attempts"]]) == ("SUCCEEDED", [batch.NOT_STARTED, batch.EXITED])
    assert started["2-0"].task.env["AWS_BATCH_JOB_ATTEMPT"] == "2"


def test_an_attempt_that_takes_too_long_is_the_last(api, started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moto.batch.models.Job._get_attempt_duration", lambda job: 0.1)
    done = Submitted(api, {"retryStrategy": {"attempts": 2}}).ended()
    assert (done["status"], done["statusReason"], len(done["attempts"])) == ("FAILED", batch.TIMED_OUT, 1)


def test_a_job_that_no_environment_can_hold_waits_and_says_so(api, started, machines, monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.batch.models import batch_backends

    monkeypatch.setattr(machines, "room_mib", lambda: 10, raising=False)
    job = Submitted(api)
    until(lambda: job.look().get("statusReason") == batch.NO_ROOM)
    [environment] = batch_backends["123456789012"]["us-east-1"]._compute_environments.values()
    environment.compute_resources = {"maxvCpus": 100}
    until(lambda: job.look().get("statusReason") == batch.TOO_LARGE)
    assert job.look()["status"] == "RUNNABLE"
    api.terminate_job(jobId=job.id, reason="enough")
    assert (job.ended()["statusReason"], started) == ("enough", {})


def test_secrets_are_variables_and_a_lost_one_fails_the_node(api, started, client) -> None:
    arn = client("secretsmanager").create_secret(Name="token", SecretString="hidden")["ARN"]
    with_secret = {"image": "a/b:1", "command": ["x"], "memory": 10, "vcpus": 1, "secrets": [{"name": "TOKEN", "valueFrom": arn}]}
    one = {"nodeProperties": {"numNodes": 1, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0", "container": with_secret}]}}
    job = Submitted(api, one)
    until(lambda: "1-0" in started)
    assert started["1-0"].task.env["TOKEN"] == "hidden"
    assert "hidden" not in str(job.look(0))
    started["1-0"].now = Ended(0)
    job.ended()
    client("secretsmanager").delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    lost = Submitted(api, one)
    assert (lost.ended()["status"], "is not in Secrets Manager" in lost.look(0)["container"]["reason"]) == ("FAILED", True)


def test_a_job_of_one_container_runs_too(api, started) -> None:
    api.register_job_definition(jobDefinitionName="one", type="container", containerProperties={**CONTAINER, "memory": 10, "vcpus": 1})
    job_id = api.submit_job(jobName="one", jobQueue="gpu", jobDefinition="one", containerOverrides={"command": ["y"]})["jobId"]
    until(lambda: "1-0" in started)
    assert started["1-0"].task.command == ("y",)
    assert "AWS_BATCH_JOB_NODE_INDEX" not in started["1-0"].task.env
    started["1-0"].now = Ended(4)
    done = until(lambda: next((each for each in api.describe_jobs(jobs=[job_id])["jobs"] if "stoppedAt" in each), None))
    assert (done["status"], done["container"]["exitCode"]) == ("FAILED", 4)


def test_overrides_of_the_wrong_kind_are_refused(api, started) -> None:
    with pytest.raises(ClientError, match="A multi-node job takes no containerOverrides; use nodeOverrides"):
        Submitted(api, containerOverrides={"command": ["x"]})
    with pytest.raises(ClientError, match="without an upper boundary"):
        Submitted(api, {"nodeProperties": properties("0:1", count=2)}, nodeOverrides={"numNodes": 5})
    assert api.list_jobs(jobQueue="gpu")["jobSummaryList"] == []
