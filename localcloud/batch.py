# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Batch: moto keeps environments, queues, definitions and jobs; here is the scheduler, which runs each node of a job in a container.

moto's own jobs need docker's Python package and lack most of what a multi-node job has: the variables of its nodes, their own records
and logs, nodeOverrides, retries, and an end with the main node.
"""

from __future__ import annotations

import copy
import fnmatch
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moto.batch.exceptions import ClientException
from moto.batch.models import BatchBackend, Job, JobDefinition
from moto.batch.responses import BatchResponse

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from localcloud.tasks import Ended, Running, Task
from localcloud.wrapping import CLOUD, wrapped

LOOK_SECONDS = 0.3
STOP_SECONDS = 30  # ECS kills a container that long after it asked it to end
# A container gets no more, whatever its definition says, so that definitions for large instances run here.
MOST_MIB, MOST_CPUS = 4096, min(2, os.cpu_count() or 1)
LOG_GROUP = "/aws/batch/job"
EXITED = "Essential container in task exited"
NOT_STARTED = "Task failed to start"
TIMED_OUT = "Job attempt duration exceeded timeout"
TOO_LARGE = (
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement (vCPU/memory/GPU) is higher than that can be met by "
    "the CE(s) attached to the job queue."
)
NO_ROOM = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - This machine has no memory for the nodes of the job."
# What SubmitJob asked for and moto does not keep.
ASKED = threading.local()


def install() -> None:
    """Change moto in place, once for a process, after `ec2.install`."""
    if CLOUD.get("batch"):
        return
    CLOUD["batch"] = True
    Job.run = run  # type: ignore[method-assign]
    for owner, name, wrapper in (
        (Job, "__init__", made),
        (Job, "describe", describe),
        (Job, "describe_short", describe_short),
        (Job, "terminate", terminate),
        (JobDefinition, "describe", describe_definition),
        (BatchBackend, "describe_jobs", describe_jobs),
        (BatchResponse, "submitjob", submitjob),
        (BatchResponse, "listjobs", listjobs),
    ):
        wrapped(owner, name, wrapper)


# What a job is


def indexes(nodes: str, count: int) -> range:
    """The nodes of a range such as 0:3, :3, 2: or 5, of a job with that many nodes."""
    begin, colon, end = nodes.partition(":")
    first = int(begin or 0)
    return range(first, (int(end) if end else count - 1) + 1) if colon else range(first, first + 1)


def node_specs(properties: dict[str, Any], overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """What the container of each node is, from nodeProperties and nodeOverrides. Raises ValueError for what Batch refuses."""
    count, ranges = int(overrides.get("numNodes") or properties["numNodes"]), properties["nodeRangeProperties"]
    if overrides.get("numNodes"):
        open_ended = [each["targetNodes"].partition(":")[0] for each in ranges if each["targetNodes"].endswith(":")]
        if not open_ended:
            raise ValueError("numNodes can be overridden only when the definition has a node range without an upper boundary, such as 0:.")
        if any(int(begin or 0) >= count for begin in open_ended) or properties["mainNode"] >= count:
            raise ValueError(f"The override to {count} nodes leaves out the main node or a node range of the definition.")
    specs: list[dict[str, Any]] = [{} for _each in range(count)]
    # Of ranges that overlap, the narrower one counts.
    for each in sorted(ranges, key=lambda each: -len(indexes(each["targetNodes"], count))):
        for index in indexes(each["targetNodes"], count):
            if index < count:
                specs[index] = copy.deepcopy(each["container"])
    if not all(specs):
        raise ValueError(f"Node {specs.index({})} is in no node range of the definition.")
    for each in overrides.get("nodePropertyOverrides") or ():
        for index in indexes(each["targetNodes"], count):
            if index >= count:
                raise ValueError(f"The override for nodes {each['targetNodes']} names node {index} of a job with {count} nodes.")
            specs[index] = overridden(specs[index], each.get("containerOverrides") or {})
    return specs


def overridden(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Container properties with containerOverrides: variables and resources are replaced by their names, the rest as a whole."""
    out = {**spec, **{key: value for key, value in changes.items() if key not in ("environment", "resourceRequirements")}}
    for field, key in (("environment", "name"), ("resourceRequirements", "type")):
        named = {each[key]: each for each in [*spec.get(field, ()), *changes.get(field, ())]}
        out[field] = list(named.values())
    return out


def replaced(command: list[str], parameters: dict[str, str]) -> tuple[str, ...]:
    """The words of a command with Ref::NAME replaced by the parameter; one without a parameter stays as it is."""
    return tuple(re.sub(r"Ref::(\w+)", lambda found: str(parameters.get(found[1], found[0])), word) for word in command)


def variables(job: dict[str, str], index: int | None, count: int, main: int, address: str) -> dict[str, str]:
    """What AWS tells a container. job: what it tells each of them, as JOB_ID; index: that of the node, or None for a job of one container;
    address: that of the main node."""
    out = {f"AWS_BATCH_{name}": value for name, value in job.items()}
    if index is None:
        return out
    out |= {"AWS_BATCH_JOB_ID": f"{job['JOB_ID']}#{index}", "AWS_BATCH_JOB_NODE_INDEX": str(index), "AWS_BATCH_JOB_NUM_NODES": str(count)}
    out["AWS_BATCH_JOB_MAIN_NODE_INDEX"] = str(main)
    # The main node does not get its own address.
    return out | ({"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": address} if index != main else {})


def resource(spec: dict[str, Any], kind: str, default: float) -> float:
    """How much of a resource (VCPU, MEMORY) a container asks for."""
    asked = [each["value"] for each in spec.get("resourceRequirements", ()) if each["type"] == kind]
    return float(asked[0] if asked else spec.get({"VCPU": "vcpus", "MEMORY": "memory"}[kind]) or default)


def tried_again(strategy: dict[str, Any] | None, attempt: int, ended: dict[str, str]) -> bool:
    """Whether a failed attempt is followed by another one. ended: its onStatusReason, onReason and onExitCode."""
    if attempt >= int((strategy or {}).get("attempts") or 1):
        return False
    for rule in (strategy or {}).get("evaluateOnExit") or ():
        if all(fnmatch.fnmatchcase(ended[each], rule[each]) for each in ended if each in rule):
            return str(rule["action"]).upper() == "RETRY"
    return True


# How a job runs


class Node:
    """One node of one attempt, and its container."""

    def __init__(self, job: Job, attempt: int, index: int | None, spec: dict[str, Any]) -> None:
        self.job, self.attempt, self.index, self.spec = job, attempt, index, spec
        self.status, self.code, self.reason = "RUNNABLE", None, ""
        self.created = time.time()
        self.started: float | None = None
        self.stopped: float | None = None
        self.stream = ""
        self.task: Running | None = None

    @property
    def main(self) -> int:
        return 0 if self.index is None else int(self.job.job_definition.node_properties["mainNode"])

    def start(self, address: str) -> None:
        """Start the container; address: that of the main node."""
        self.status = "STARTING"
        job, spec, machines = self.job, self.spec, CLOUD["machines"]
        environments = [each.name for each in job.job_queue.environments] or [""]
        about = {"JOB_ID": job.job_id, "JOB_ATTEMPT": str(self.attempt), "JQ_NAME": job.job_queue.name, "CE_NAME": environments[0]}
        where = variables(about, self.index, len(job.specs), self.main, address)  # type: ignore[attr-defined]
        sources = {each["name"]: each.get("host", {}).get("sourcePath", "") for each in spec.get("volumes", ())}
        memory = min(MOST_MIB, int(resource(spec, "MEMORY", 512)))
        try:
            task = Task(
                name=f"batch-{job.job_id[:13]}-{self.attempt}-{self.index or 0}",
                image=spec["image"],
                command=replaced(spec.get("command") or [], job.parameters),
                env={**{each["name"]: each["value"] for each in spec.get("environment", ())}, **self.secrets(), **where},
                mounts=tuple(
                    (machines.shared(sources[each["sourceVolume"]]), each["containerPath"], bool(each.get("readOnly")))
                    for each in spec.get("mountPoints", ())
                ),
                cpus=min(MOST_CPUS, resource(spec, "VCPU", 1)),
                memory_mib=memory,
                shm_mib=min(int(spec.get("linuxParameters", {}).get("sharedMemorySize") or 64), memory // 2),
            )
            self.task = machines.run_task(task)
        except (NodeContainerError, LookupError) as error:
            self.end(Ended(None, f"ResourceInitializationError: {error}"))

    def secrets(self) -> dict[str, str]:
        """The container's secrets from Secrets Manager, whose names or ARNs the definition has. Raises LookupError."""
        from moto.secretsmanager.models import secretsmanager_backends

        backend = secretsmanager_backends[self.job.backend.account_id][self.job.backend.region_name]
        out = {}
        for each in self.spec.get("secrets", ()):
            try:
                out[each["name"]] = backend.get_secret_value(each["valueFrom"], "", "")["SecretString"]
            except Exception as error:
                raise LookupError(f"unable to pull secrets: {each['valueFrom']} is not in Secrets Manager") from error
        return out

    def look(self) -> None:
        """Follow the container: its start, its output and its end."""
        if self.task is None or self.stopped:
            return
        if not self.started and self.task.running():
            self.status, self.started = "RUNNING", time.time()
            self.stream = f"{self.job.job_definition.name}/default/{secrets.token_hex(16)}"
            logs = self.job._log_backend
            logs.ensure_log_group(LOG_GROUP)
            logs.ensure_log_stream(LOG_GROUP, self.stream)
        ended = self.task.ended()
        if self.started:
            self.write_log()
        # A container that was short-lived is seen to have started only once it has ended.
        if ended and (self.started or ended.code is None):
            self.end(ended)

    def write_log(self) -> None:
        """Give CloudWatch what the container printed since the last look."""
        events = []
        while self.task and not self.task.lines.empty():
            # CloudWatch takes no empty event, and Docker's driver leaves empty lines out.
            if line := self.task.lines.get():
                events.append({"timestamp": int(time.time() * 1000), "message": line})
        if events:
            self.job._log_backend.put_log_events(LOG_GROUP, self.stream, events)

    def end(self, ended: Ended) -> None:
        self.code, self.reason, self.stopped = ended.code, ended.reason, time.time()
        self.status = "SUCCEEDED" if ended.code == 0 else "FAILED"

    def stop(self) -> None:
        """End the container, if it runs, and remove it."""
        if self.task and not self.stopped:
            self.task.stop(STOP_SECONDS)
            self.look()
        if not self.stopped:
            # Its container never ran, or the engine has lost it.
            self.end(Ended(None, ""))
        if self.task:
            CLOUD["machines"].end_task(self.task)

    def container(self) -> dict[str, Any]:
        out = {"image": self.spec.get("image"), "command": self.spec.get("command", []), "environment": self.spec.get("environment", [])}
        more = {"exitCode": self.code, "reason": self.reason or None, "logStreamName": self.stream or None}
        return {**out, **{key: value for key, value in more.items() if value is not None}}

    def times(self) -> dict[str, int]:
        return {key: int(at * 1000) for key, at in (("startedAt", self.started), ("stoppedAt", self.stopped)) if at}

    def describe(self) -> dict[str, Any]:
        """DescribeJobs' answer for the node, whose id is that of the job with its index behind."""
        job = self.job
        return {
            "jobId": f"{job.job_id}#{self.index}",
            "jobArn": f"{job.arn}#{self.index}",
            "jobName": job.job_name,
            "jobQueue": job.job_queue.arn,
            "jobDefinition": job.job_definition.arn,
            "status": self.status,
            "createdAt": int(self.created * 1000),
            "container": self.container(),
            "nodeDetails": {"nodeIndex": self.index, "isMainNode": self.index == self.main},
            **self.times(),
        }


def run(job: Job) -> None:
    """Run a job to its end."""
    try:
        job.status = "PENDING"
        if job.depends_on and not job._wait_for_dependencies():
            return
        job.status = "RUNNABLE"
        if wait_for_room(job):
            run_attempts(job)
    except Exception as error:
        # A job that this scheduler cannot run must not stay in the queue for ever.
        job.job_stopped_reason = f"The scheduler of the local cloud failed: {type(error).__name__}: {error}"
        raise
    finally:
        job._mark_stopped(success=False)


def wait_for_room(job: Job) -> bool:
    """Wait until this machine has room for the job; False when it was ended meanwhile."""
    specs = job.specs  # type: ignore[attr-defined]
    while not job.stop:
        most = sum(int((each.compute_resources or {}).get("maxvCpus") or 0) for each in job.job_queue.environments)
        if most and sum(resource(each, "VCPU", 1) for each in specs) > most:
            job.job_stopped_reason = TOO_LARGE
        elif sum(min(MOST_MIB, int(resource(each, "MEMORY", 512))) for each in specs) > CLOUD["machines"].room_mib():
            job.job_stopped_reason = NO_ROOM
        else:
            job.job_stopped_reason = None
            return True
        time.sleep(LOOK_SECONDS)
    return False


def run_attempts(job: Job) -> None:
    """Run attempts until one succeeds or none is left."""
    strategy = job.retry_strategy or job.job_definition.retry_strategy  # type: ignore[attr-defined]
    attempt = 1
    while True:
        main, said = run_attempt(job, attempt)
        job.attempts[-1].update(statusReason=said, container=main.container(), **main.times())
        job.exit_code = main.code
        if not job.stop:
            job.job_stopped_reason = said
        if main.code == 0 and said == EXITED:
            job._mark_stopped(success=True)
            return
        ended = {"onStatusReason": said, "onReason": main.reason, "onExitCode": "" if main.code is None else str(main.code)}
        # Batch does not repeat an attempt that took too long.
        if job.stop or said == TIMED_OUT or not tried_again(strategy, attempt, ended):
            return
        attempt += 1
        job.status, job.job_stopped_reason = "RUNNABLE", None


def run_attempt(job: Job, attempt: int) -> tuple[Node, str]:
    """Run all nodes of an attempt until its main node ends: (the main node, statusReason)."""
    single = job.job_definition.node_properties is None
    nodes = [Node(job, attempt, None if single else index, spec) for index, spec in enumerate(job.specs)]  # type: ignore[attr-defined]
    job.nodes = nodes  # type: ignore[attr-defined]
    job.attempts.append({"container": {}})
    main = nodes[nodes[0].main]
    job.status, began, said = "STARTING", None, EXITED
    limit = job._get_attempt_duration()
    try:
        main.start("")
        while True:
            for each in nodes:
                each.look()
            if main.started and began is None:
                # The other nodes start once the main node runs, and learn its address.
                began = time.monotonic()
                job.job_started_at = type(job.job_started_at).fromtimestamp(main.started)
                job.status = "RUNNING"
                for each in nodes:
                    if each is not main and CLOUD["faults"].take(boots=False) is None:
                        each.start(main.task.address if main.task else "")
            if main.stopped:
                said = EXITED if main.started else NOT_STARTED
                break
            if job.stop:
                break
            if limit and began is not None and time.monotonic() > began + limit:
                said = TIMED_OUT
                break
            time.sleep(LOOK_SECONDS)
    finally:
        # The end of the main node is the end of the job. That of a worker is not: Batch leaves the other nodes alone.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Node.stop, nodes))
    return main, said


# What the API says


def submitjob(former: Callable, response: BatchResponse) -> str:
    ASKED.overrides, ASKED.strategy = response._get_param("nodeOverrides"), response._get_param("retryStrategy")
    try:
        return former(response)
    finally:
        del ASKED.overrides, ASKED.strategy


def made(former: Callable, job: Job, name: str, definition: JobDefinition, *args: Any, **kwargs: Any) -> None:
    overrides = getattr(ASKED, "overrides", None) or {}
    changes = kwargs.get("container_overrides") or {}
    try:
        if definition.node_properties:
            if changes:
                raise ValueError("A multi-node job takes no containerOverrides; use nodeOverrides.")
            job.specs = node_specs(definition.node_properties, overrides)  # type: ignore[attr-defined]
        else:
            if overrides:
                raise ValueError("Only a multi-node job takes nodeOverrides; use containerOverrides.")
            job.specs = [overridden(definition.container_properties or {}, changes)]  # type: ignore[attr-defined]
    except ValueError as error:
        raise ClientException(str(error)) from error
    job.nodes, job.retry_strategy, job.ended_by_user = [], getattr(ASKED, "strategy", None), False  # type: ignore[attr-defined]
    former(job, name, definition, *args, **kwargs)


def terminate(former: Callable, job: Job, reason: str) -> None:
    """A job that has ended keeps its reason."""
    if not job.job_stopped:
        job.ended_by_user = True  # type: ignore[attr-defined]
        former(job, reason)


def describe_short(former: Callable, job: Job) -> dict[str, Any]:
    out = former(job)
    if job.job_definition.node_properties:
        out.pop("container", None)
        out["nodeProperties"] = {"numNodes": len(job.specs), "isMainNode": False}  # type: ignore[attr-defined]
    return out


def describe(former: Callable, job: Job) -> dict[str, Any]:
    out = former(job)
    if job.ended_by_user:  # type: ignore[attr-defined]
        out["isTerminated"] = True
    properties, nodes = job.job_definition.node_properties, job.nodes  # type: ignore[attr-defined]
    if properties:
        # Its nodes have containers, it has none.
        out.pop("container", None)
        out["nodeProperties"] = {**properties, "numNodes": len(job.specs)}  # type: ignore[attr-defined]
    elif nodes:
        out["container"] = {**out.get("container", {}), **nodes[0].container()}
    return out


def describe_definition(former: Callable, definition: JobDefinition) -> dict[str, Any]:
    return {**former(definition), **({"nodeProperties": definition.node_properties} if definition.node_properties else {})}


def describe_jobs(former: Callable, backend: BatchBackend, jobs: list[str] | None) -> list[dict[str, Any]]:
    """The jobs, and nodes of jobs, whose ids have the index of the node behind."""
    of_nodes = [each for each in jobs or () if "#" in each]
    plain = [each for each in jobs or () if "#" not in each]
    # moto returns all jobs when none is named.
    out = former(backend, plain) if plain or not of_nodes else []
    for each in of_nodes:
        job_id, _hash, index = each.partition("#")
        nodes = getattr(backend.get_job_by_id(job_id), "nodes", [])
        out += [node.describe() for node in nodes if str(node.index) == index]
    return out


def listjobs(former: Callable, response: BatchResponse) -> str:
    """moto lists no nodes of a job."""
    parent = response._get_param("multiNodeJobId")
    if not parent:
        return former(response)
    nodes = getattr(response.batch_backend.get_job_by_id(parent), "nodes", [])
    wanted = response._get_param("jobStatus")
    keys = ("jobId", "jobArn", "jobName", "createdAt", "status", "startedAt", "stoppedAt", "jobDefinition")
    listed = []
    for said in (each.describe() for each in nodes):
        if wanted in (None, said["status"]):
            about = {"numNodes": len(nodes), "nodeIndex": said["nodeDetails"]["nodeIndex"], "isMainNode": said["nodeDetails"]["isMainNode"]}
            listed.append({**{key: said[key] for key in keys if key in said}, "nodeProperties": about})
    return json.dumps({"jobSummaryList": listed})
