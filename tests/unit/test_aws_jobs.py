# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""batch_job and sagemaker_job against moto, and against recorded answers where moto has none."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from test_ranks import FAILED

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import AwsError
from ansible_collections.muster.fleet.plugins.module_utils.jobs import batch, sagemaker, target
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document as job
from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.modules import batch_job, sagemaker_job, slurm_job

REGION = "us-east-1"
HELLO = {"name": "hello", "command": ["true"], "image": "a/b:1", "nodes": 2}
BATCH = {"queue": "gpu", "instance_type": "c7i.large"}
SAGEMAKER = {"role": "arn:aws:iam::123456789012:role/train", "output": "s3://bucket/jobs", "instance_type": "ml.p4d.24xlarge"}
NOW = datetime.datetime(2026, 11, 25, 4, 0, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws(config={"batch": {"use_docker": False}}):
        yield


@pytest.fixture
def queue(aws: None) -> Any:
    """A job queue `gpu` of moto's Batch."""
    role = boto3.client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    boto3.client("iam").create_instance_profile(InstanceProfileName="nodes")
    profile = boto3.client("iam").get_instance_profile(InstanceProfileName="nodes")["InstanceProfile"]["Arn"]
    subnets = [each["SubnetId"] for each in boto3.client("ec2").describe_subnets()["Subnets"][:1]]
    groups = [each["GroupId"] for each in boto3.client("ec2").describe_security_groups()["SecurityGroups"][:1]]
    client = boto3.client("batch")
    resources = {"type": "EC2", "minvCpus": 0, "maxvCpus": 8, "instanceTypes": ["p5.48xlarge"], "instanceRole": profile}
    resources |= {"subnets": subnets, "securityGroupIds": groups}
    client.create_compute_environment(computeEnvironmentName="nodes", type="MANAGED", serviceRole=role, computeResources=resources)
    order = [{"order": 1, "computeEnvironment": "nodes"}]
    client.create_job_queue(jobQueueName="gpu", state="ENABLED", priority=1, computeEnvironmentOrder=order)
    return client


def test_a_batch_job_runs_once_and_its_result_is_stored(call, queue: Any, tmp_path: Path) -> None:
    options = {"job": HELLO, "target": BATCH, "store": str(tmp_path), "poll": 0}
    would = call(batch_job, check_mode=True, **options)
    assert (would["changed"], would["result"], list(tmp_path.iterdir())) == (True, {}, [])
    assert '"type": "multinode"' in would["diff"]["after"]
    first = call(batch_job, **options)
    assert (first["changed"], first["result"]["state"], first["result"]["exit_code"]) == (True, "COMPLETED", 0), first
    again = call(batch_job, **options)
    assert (again["changed"], again["result"]["stored"], again["job_id"]) == (False, True, first["job_id"])
    assert len(queue.list_jobs(jobQueue="gpu", jobStatus="SUCCEEDED")["jobSummaryList"]) == 1
    assert call(batch_job, rerun=True, **options)["job_id"] != first["job_id"]
    stored = json.loads((Path(first["folder"]) / "result.json").read_text())
    assert stored["schema"] == "muster.job_result/1"


def test_a_failed_batch_job_is_an_error_until_retry(call, queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_SIMPLE_BATCH_FAIL_AFTER", "0")
    options = {"job": HELLO, "target": BATCH, "store": str(tmp_path), "poll": 0}
    failed = call(batch_job, **options)
    assert failed["failed"] and re.match(r"Job hello \(.*\) ended FAILED", failed["msg"]), failed
    assert failed["changed"] is True
    assert "retry was not given" in call(batch_job, **options)["msg"]
    monkeypatch.delenv("MOTO_SIMPLE_BATCH_FAIL_AFTER")
    assert call(batch_job, retry=True, **options)["result"]["state"] == "COMPLETED"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": {**BATCH, "queue": "gpus"}}, "Region us-east-1 has no job queue gpus; correct muster_target.queue."),
        ({"target": {"qeue": "gpu"}}, "muster_target has the unknown field qeue for batch; did you mean queue?"),
        ({"job": {**HELLO, "launcher": {"kind": "jobset"}}}, "is for the launcher jobset (launcher.kind), and this module"),
        ({"job": {**HELLO, "gpus_per_node": 1}}, "Job hello wants 1 GPUs on each node, and c7i.large has 0"),
        ({"state": "awaited"}, "is not known: it was not submitted"),
        ({"region": "nowhere"}, "'nowhere' is not a region"),
    ],
)  # fmt: skip
def test_what_batch_cannot_run_is_refused_by_one_sentence(call, queue: Any, tmp_path: Path, change: dict, sentence: str) -> None:
    answer = call(batch_job, **{"job": HELLO, "target": BATCH, "store": str(tmp_path / "store"), "poll": 0, **change})
    assert answer["failed"] and sentence in answer["msg"], answer
    assert "\n" not in answer["msg"]
    assert not list((tmp_path / "store").glob("*"))
    assert queue.describe_job_definitions()["jobDefinitions"] == []


def test_a_stopped_queue_takes_no_job(call, queue: Any, tmp_path: Path) -> None:
    queue.update_job_queue(jobQueue="gpu", state="DISABLED")
    answer = call(batch_job, job=HELLO, target=BATCH, store=str(tmp_path), poll=0)
    assert "The job queue gpu is disabled, so job hello was not submitted; enable it." in answer["msg"]
    assert not list(tmp_path.iterdir())


def test_a_training_job_runs_once_and_a_rerun_has_another_name(call, aws: None, tmp_path: Path) -> None:
    options = {"job": HELLO, "target": SAGEMAKER, "store": str(tmp_path), "poll": 0}
    first = call(sagemaker_job, **options)
    assert (first["changed"], first["result"]["state"], first["gpus_per_node"], first["nodes"]) == (
        True,
        "COMPLETED",
        8,
        ["algo-1", "algo-2"],
    ), first
    again = call(sagemaker_job, **options)
    assert (again["changed"], again["stored"], again["job_id"]) == (False, True, first["job_id"])
    assert call(sagemaker_job, rerun=True, **options)["job_id"] == first["job_id"] + "-2"
    made = boto3.client("sagemaker").describe_training_job(TrainingJobName=first["job_id"])
    assert made["ResourceConfig"]["InstanceCount"] == 2


def test_a_job_for_another_launcher_is_not_given_to_slurm(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    answer = call(slurm_job, job={**HELLO, "launcher": {"kind": "batch"}}, user="root", store=str(tmp_path))
    assert "is for the launcher batch (launcher.kind), and this module serves slurm" in answer["msg"]


class Recorded:
    """A region that answers each action from its list; the last answer is repeated. An exception is raised."""

    name = REGION

    def __init__(self, **answers: list) -> None:
        self.answers, self.asked = answers, []

    def call(self, _service: str, action: str, **wanted: Any) -> Any:
        self.asked.append((action, wanted))
        answers = self.answers[action]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found(wanted) if callable(found) else found

    def every(self, service: str, action: str, what: str, **wanted: Any) -> Any:
        return self.call(service, action, **wanted)[what]

    def count(self, action: str) -> int:
        return sum(1 for each, _ in self.asked if each == action)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def service(kind: str, region: Recorded, folder: Path, timeout: int = 1000, **change: Any) -> Any:
    document = job.load({**HELLO, **change}, kind)
    identity, clock = job.identity(document), Clock()
    common = {"name": "hello", "identity": identity, "store": jobs.Store(str(folder / "job")), "timeout": timeout, "poll": 5}
    common |= {"pending_timeout": 60, "sleep": clock.sleep, "clock": clock, "region": region, "document": document}
    if kind == "batch":
        return batch.Batch(requests=batch.render(document, identity, target.load(kind, BATCH)), **common)
    return sagemaker.SageMaker(request=sagemaker.render(document, identity, target.load(kind, SAGEMAKER)), **common)


def bring(made: Any, **change: Any) -> Any:
    return jobs.bring(made, **{"state": "finished", "files": {"job.json": "{}"}, **change})


ENABLED = {"jobQueues": [{"state": "ENABLED", "computeEnvironmentOrder": [{"computeEnvironment": "nodes"}]}]}
HEALTHY = {"computeEnvironments": [{"computeEnvironmentName": "nodes", "status": "VALID", "state": "ENABLED"}]}


def described(status: str, nodes: list[dict] | None = None, **more: Any) -> Any:
    """DescribeJobs' answers for a job `7` and its nodes."""
    main = {"jobId": "7", "status": status, "createdAt": 1795260615000, "attempts": [], **more}
    children = {
        f"7#{number}": {"jobId": f"7#{number}", "status": status, "container": {}, "startedAt": 1795260630000, **node}
        for number, node in enumerate(nodes or [])
    }
    return lambda wanted: {"jobs": [{"7": main, **children}[each] for each in wanted["jobs"] if each in {"7", *children}]}


def listed(status: str = "RUNNING", *ids: str) -> Any:
    summaries = [{"createdAt": number, "jobId": each, "status": status} for number, each in enumerate(ids or ("7",))]

    def answer(wanted: dict) -> dict:
        return {"jobSummaryList": [{**each, "jobName": wanted["filters"][0]["values"][0]} for each in summaries]}

    return answer


def none(_wanted: dict) -> dict:
    return {"jobSummaryList": []}


def batch_region(**answers: list) -> Recorded:
    usual: dict[str, list] = {
        "DescribeJobQueues": [ENABLED],
        "DescribeComputeEnvironments": [HEALTHY],
        "RegisterJobDefinition": [{"jobDefinitionArn": "arn:definition:1"}],
        "SubmitJob": [{"jobId": "7"}],
        "TerminateJob": [{}],
        "ListJobs": [none, listed()],
        "GetLogEvents": [{"events": [{"message": "Batch 1 Loss: 2.5, Speed: 9.0 samples/sec, lr: 0.1"}], "nextForwardToken": "t"}],
    }
    return Recorded(**{**usual, **answers})


STARTED = {"startedAt": 1795260625000, "stoppedAt": 1795260685000}


def test_a_killed_controller_finds_its_batch_job_again(tmp_path: Path) -> None:
    nodes = [{"container": {"exitCode": 0, "logStreamName": "main"}}, {}]
    region = batch_region(ListJobs=[listed()], DescribeJobs=[described("RUNNING"), described("SUCCEEDED", nodes, **STARTED)])
    changed, found, _files = bring(service("batch", region, tmp_path))
    assert (changed, found["state"], found["job_id"], found["elapsed_s"], region.count("SubmitJob")) == (False, "COMPLETED", "7", 60, 0)
    assert "Loss: 2.5" in (tmp_path / "job/output.txt").read_text()


def test_a_call_that_boto3_repeated_leaves_one_job(tmp_path: Path) -> None:
    region = batch_region(ListJobs=[none, listed("RUNNABLE", "7", "8")], DescribeJobs=[described("SUCCEEDED", **STARTED)])
    assert bring(service("batch", region, tmp_path))[1]["job_id"] == "7"
    assert [wanted["jobId"] for action, wanted in region.asked if action == "TerminateJob"] == ["8"]


@pytest.mark.parametrize(
    ("more", "nodes", "state", "said"),
    [
        ({}, [{"container": {"exitCode": 0}}, {"container": {"exitCode": 3}}], "FAILED", "node 1 ended with exit status 3"),
        ({"statusReason": "Job attempt duration exceeded timeout"}, [{}, {}], "TIMEOUT", "raise time_limit"),
        ({}, [{"container": {"exitCode": 137, "reason": "OutOfMemoryError: Container killed"}}, {}], "OUT_OF_MEMORY", "more"),
        ({"statusReason": "Host EC2 (instance i-1) terminated."}, [{}, {}], "NODE_FAIL", "look at the node"),
        ({"isTerminated": True, "statusReason": "by ann"}, [{}, {}], "CANCELLED", "by ann"),
        ({"statusReason": "Essential container in task exited"}, [{}, {"status": "RUNNABLE"}], "FAILED", "node 1 never started"),
        ({"statusReason": "Job attempt duration exceeded timeout"}, [{}, {"startedAt": 0}], "TIMEOUT", "timeout; node 1 never started"),
        (
            {"statusReason": "Task failed to start"},
            [{"startedAt": 0, "container": {"reason": "CannotPullContainerError: a/b:1"}}, {"startedAt": 0}],
            "FAILED",
            "Task failed to start; node 0, 1 never started; CannotPullContainerError: a/b:1",
        ),
        # The first end is the cause of the others.
        (
            {},
            [{"container": {"exitCode": 1}, "stoppedAt": 1795260640009}, {"container": {"exitCode": 3}, "stoppedAt": 1795260640002}],
            "FAILED",
            "(node 1 ended with exit status 3) with exit status 3",
        ),
    ],
)  # fmt: skip
def test_a_batch_job_that_failed_says_why_and_where(tmp_path: Path, more: dict, nodes: list, state: str, said: str) -> None:
    region = batch_region(DescribeJobs=[described("FAILED", nodes, **{**STARTED, **more})])
    with pytest.raises(jobs.RunError) as error:
        bring(service("batch", region, tmp_path))
    assert error.value.facts["state"] == state
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("reason", "environment", "said"),
    [
        ("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too large", {}, "Batch says MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too large"),
        (None, {"status": "INVALID", "statusReason": "no launch template"}, "compute environment nodes is INVALID (no launch template)"),
        (None, {"state": "DISABLED"}, "compute environment nodes is DISABLED"),
    ],
)  # fmt: skip
def test_a_batch_job_that_cannot_start_is_ended_and_says_why(tmp_path: Path, reason: str | None, environment: dict, said: str) -> None:
    environments = {"computeEnvironments": [{**HEALTHY["computeEnvironments"][0], **environment}]}
    more = {"statusReason": reason} if reason else {}
    waiting, ended = described("RUNNABLE", **more), described("FAILED", isTerminated=True)
    region = batch_region(DescribeComputeEnvironments=[environments])

    def answer(wanted: dict) -> dict:
        return ended(wanted) if region.count("TerminateJob") else waiting(wanted)

    region.answers["DescribeJobs"] = [answer]
    with pytest.raises(jobs.RunError, match=re.escape(said)) as error:
        bring(service("batch", region, tmp_path))
    assert "cannot start and was cancelled" in str(error.value)
    assert region.count("TerminateJob") == 1


def test_a_compute_environment_need_not_say_that_it_is_enabled(tmp_path: Path) -> None:
    environment = {"computeEnvironmentName": "nodes", "status": "VALID"}
    jobs_of = [described("RUNNABLE"), described("RUNNABLE"), described("SUCCEEDED", **STARTED)]
    region = batch_region(DescribeComputeEnvironments=[{"computeEnvironments": [environment]}], DescribeJobs=jobs_of)
    assert bring(service("batch", region, tmp_path))[1]["state"] == "COMPLETED"


def test_a_batch_job_that_waits_for_capacity_is_left_in_the_queue(tmp_path: Path) -> None:
    region = batch_region(DescribeJobs=[described("RUNNABLE", statusReason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - none")])
    with pytest.raises(jobs.RunError, match=r"not over after 200 s: Batch says PENDING \(CAPACITY:INSUFFICIENT.*it goes on"):
        bring(service("batch", region, tmp_path, timeout=200))
    assert region.count("TerminateJob") == 0


def test_a_query_says_how_many_nodes_of_a_batch_job_run(tmp_path: Path) -> None:
    region = batch_region(ListJobs=[listed()], DescribeJobs=[described("RUNNING", [{}, {"status": "STARTING"}], startedAt=1795260625000)])
    _changed, found, _files = bring(service("batch", region, tmp_path), state="queried")
    assert (found["state"], found["ready"], len(found["nodes"])) == ("RUNNING", 1, 2)


@pytest.mark.parametrize("code", ["ThrottlingException", "ExpiredTokenException", ""])
def test_an_error_of_aws_is_passed_on_as_its_sentence(tmp_path: Path, code: str) -> None:
    region = batch_region(ListJobs=[none], SubmitJob=[AwsError("SubmitJob failed.", code)])
    with pytest.raises(jobs.RunError, match="SubmitJob failed"):
        bring(service("batch", region, tmp_path))
    # Without an answer Batch may have the job, so that its folder stays.
    assert (tmp_path / "job").exists() == (code == "")


def trained(status: str, second: str, **more: Any) -> dict:
    return {"TrainingJobStatus": status, "SecondaryStatus": second, "CreationTime": NOW, "TrainingStartTime": NOW, **more}


@pytest.mark.parametrize(
    ("answer", "state", "code", "said"),
    [
        (trained("Failed", "Failed", FailureReason="AlgorithmError: , exit code: 75"), "FAILED", 75, "AlgorithmError"),
        (trained("Stopped", "MaxRuntimeExceeded"), "TIMEOUT", 1, "raise time_limit"),
        (trained("Stopped", "Stopped"), "CANCELLED", 1, "retry"),
        (trained("Failed", "Failed", FailureReason="CapacityError: Unable to provision"), "FAILED", 1, "CapacityError"),
    ],
)
def test_a_training_job_that_failed_says_why(tmp_path: Path, answer: dict, state: str, code: int, said: str) -> None:
    region = Recorded(
        ListTrainingJobs=[{"TrainingJobSummaries": []}],
        CreateTrainingJob=[{}],
        DescribeTrainingJob=[trained("InProgress", "Starting"), answer],
        DescribeLogStreams=[AwsError("no group", "ResourceNotFoundException")],
    )
    with pytest.raises(jobs.RunError) as error:
        bring(service("sagemaker", region, tmp_path))
    assert (error.value.facts["state"], error.value.facts["exit_code"]) == (state, code)
    assert said in str(error.value)


def test_a_failed_training_job_has_the_status_of_the_rank_that_failed(tmp_path: Path) -> None:
    """torchrun ends with 1 on every host; the second host's log has the rank, and its first attempt does not count."""
    first = FAILED.replace("14:12:26", "14:12:27").replace("exitcode  : 7", "exitcode  : 1").replace("rank      : 1", "rank      : 0")
    earlier = FAILED.replace("14:12:26", "14:02:26").replace("exitcode  : 7", "exitcode  : 9")
    logs = {"algo-1-1795000000": first, "algo-2-1795000000": earlier, "algo-2-1795000600": FAILED}
    region = Recorded(
        ListTrainingJobs=[{"TrainingJobSummaries": []}],
        CreateTrainingJob=[{}],
        DescribeTrainingJob=[trained("Failed", "Failed", FailureReason="AlgorithmError: , exit code: 1")],
        DescribeLogStreams=[
            lambda wanted: {
                "logStreams": [
                    {"logStreamName": f"{wanted['logStreamNamePrefix'].split('/')[0]}/{name}"}
                    for name in logs
                    if name.startswith(wanted["logStreamNamePrefix"].split("/")[1])
                ]
            }
        ],
        GetLogEvents=[lambda wanted: {"events": [{"message": each} for each in logs[wanted["logStreamName"].split("/")[1]].splitlines()]}],
    )
    with pytest.raises(jobs.RunError, match="with exit status 7 of rank 1 on algo-") as error:
        bring(service("sagemaker", region, tmp_path))
    assert (error.value.facts["exit_code"], error.value.facts["failed_rank"]) == (7, 1)
    assert (tmp_path / "job/output.txt").read_text() == first
    assert (tmp_path / "job/output-algo-2.txt").read_text() == FAILED


def test_a_training_job_that_runs_is_found_by_its_name_and_stopped(tmp_path: Path) -> None:
    name = service("sagemaker", Recorded(), tmp_path).request["TrainingJobName"]
    others = [name + "-2", name + "x", name]
    found = [
        {"TrainingJobName": each, "TrainingJobStatus": "InProgress" if each.endswith("2") else "Failed", "CreationTime": NOW}
        for each in others
    ]
    region = Recorded(
        ListTrainingJobs=[{"TrainingJobSummaries": found}], StopTrainingJob=[{}],
        DescribeTrainingJob=[trained("Stopping", "Stopping"), trained("Stopped", "Stopped")], DescribeLogStreams=[{"logStreams": []}],
    )  # fmt: skip
    changed, ended, _files = bring(service("sagemaker", region, tmp_path), state="cancelled")
    assert (changed, ended["state"], ended["job_id"]) == (True, "CANCELLED", name + "-2")


def test_a_used_up_quota_names_service_quotas(tmp_path: Path) -> None:
    region = Recorded(ListTrainingJobs=[{"TrainingJobSummaries": []}], CreateTrainingJob=[AwsError("limit is 0", "ResourceLimitExceeded")])
    with pytest.raises(jobs.Refused, match=r"quota is used up \(limit is 0\); ask for more in Service Quotas"):
        bring(service("sagemaker", region, tmp_path))
    assert not (tmp_path / "job").exists()


def test_a_worker_that_was_ended_with_the_main_node_does_not_spoil_a_job_that_has_completed(tmp_path: Path) -> None:
    nodes = [{"container": {"exitCode": 0}}, {"container": {"exitCode": 143}}]
    region = batch_region(DescribeJobs=[described("SUCCEEDED", nodes, **STARTED)])
    _changed, found, _files = bring(service("batch", region, tmp_path))
    assert (found["state"], found["exit_code"]) == ("COMPLETED", 0)


TORCHRUN = (
    "E1126 06:23:47 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: %s) local_rank: 0 (pid: 1) of binary: x"
)


@pytest.mark.parametrize(
    ("lines", "end", "code"),
    [
        (["a", TORCHRUN % 7, "Traceback", "box"], ["a", TORCHRUN % 7], 7),
        (["a", TORCHRUN % -9, "Traceback"], ["a", TORCHRUN % -9], 137),
        (["a", "failed (exitcode: 7)"], ["a", "failed (exitcode: 7)"], None),
        ([], [], None),
    ],
)
def test_the_end_of_a_program_is_before_the_report_of_torchrun(lines: list[str], end: list[str], code: int | None) -> None:
    assert batch.program_end(lines) == (end, code)


def test_the_error_of_a_batch_job_has_the_last_lines_of_the_worker_that_failed(tmp_path: Path) -> None:
    """Node 2 was ended with the main node: torchrun says so and ends with 1 as well."""
    logs = {
        "main": ["step 1", "connection reset", TORCHRUN % 1, "Traceback"],
        "one": ["no disk", TORCHRUN % 7, "Traceback"],
        "two": ["SignalException: Process 1 got signal: 15"],
    }
    nodes = [{"container": {"exitCode": 1, "logStreamName": name}, "stoppedAt": at} for name, at in (("main", 1), ("one", 3), ("two", 2))]
    region = batch_region(DescribeJobs=[described("FAILED", nodes, **STARTED)])
    region.answers["GetLogEvents"] = [lambda wanted: {"events": [{"message": each} for each in logs[wanted["logStreamName"]]]}]
    with pytest.raises(jobs.RunError, match="with exit status 7 on node-"):
        bring(service("batch", region, tmp_path, nodes=3))
    assert (tmp_path / "job/output.txt").read_text().splitlines() == [
        *logs["main"],
        "muster: the last lines of the program on node 0:",
        *logs["main"][:3],
        "muster: the last lines of the program on node 1:",
        *logs["one"][:2],
    ]


def stream(pages: int) -> Any:
    """GetLogEvents of a stream whose page N has two lines of nine characters; the token is the next page to read."""

    def answer(wanted: dict) -> dict:
        number = int(wanted.get("nextToken", 0 if wanted["startFromHead"] else pages - 1))
        events = [{"message": f"line {number:02d} {letter}"} for letter in "ab"]
        return {"events": events, "nextForwardToken": str(min(number + 1, pages - 1)), "nextBackwardToken": str(max(number - 1, 0))}

    return answer


@pytest.mark.parametrize("kind", ["batch", "sagemaker"])
def test_the_middle_of_a_long_log_is_left_out_and_not_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "OUTPUT_BYTES", 80)
    region = Recorded(
        GetLogEvents=[stream(50)],
        DescribeLogStreams=[{"logStreams": [{"logStreamName": "algo-1-a"}]}],
        DescribeJobs=[described("RUNNING", [{"container": {"logStreamName": "main"}}])],
    )
    service(kind, region, tmp_path).fetch_output("7")
    ends = ["line 00 a", "line 00 b", jobs.LEFT_OUT, *(f"line {number} {letter}" for number in (47, 48, 49) for letter in "ab")]
    assert (tmp_path / "job/output.txt").read_text().splitlines() == ends
    assert region.count("GetLogEvents") < 15


def test_a_log_below_the_limit_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "OUTPUT_BYTES", 80)
    assert len(batch.log_lines(Recorded(GetLogEvents=[stream(4)]), "group", "main")) == 8
