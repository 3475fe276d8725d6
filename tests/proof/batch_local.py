# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: job.yml runs multi-node jobs on the local cloud's Batch, whose nodes are containers. cloud.yml makes the queue, torchrun starts
the ranks, and the ranks and their hosts are counted in the logs of the nodes.

Run by `make proofs`, or `pytest --engine tests/proof/batch_local.py`; about eight minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_cloud import ROOT, LocalCloud

from ansible_collections.muster.fleet.plugins.module_utils.aws.template_batch import IMAGE, PLACEHOLDER
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from localkube.images import environment, trainer_archive, trainer_image

pytestmark = pytest.mark.engine

NAME = f"batch{os.getpid()}"
KIND = "p4d.24xlarge"
QUEUE = f"{NAME}-batch-gpu"
CLUSTER = {
    "kind": "batch",
    "name": NAME,
    "region": "us-east-1",
    "zones": ["us-east-1a"],
    "nodes": [{"name": "gpu", "type": KIND, "count": 2, "max": 4}],
}
# A rank without torch; torchrun starts it all the same.
COUNT = ["bash", "-c", 'echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $(hostname)"']
TRAIN = [
    *("python", "-m", "trainer", "train", "--model", "tiny", "--dataset_path", "/checkpoints/data", "--max_steps", "30", "--lr", "0.003"),
    *("--backend", "gloo", "--sharding_strategy", "ddp", "--train_batch_size", "4", "--max_context_width", "64"),
]
DATA = ["bash", "-c", "python -m trainer prepare-data --out /checkpoints/data --tokens 100000"]
ONE_FAILS = (
    "import sys, torch.distributed as d; d.init_process_group('gloo'); "
    "d.get_rank() == 1 and (print('the disk of this node is broken', flush=True), sys.exit(7)); d.barrier()"
)
MEETS = "import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); print('met', flush=True)"


class Site:
    """The cloud with a queue of Batch, and playbooks against it."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud, self.folder = cloud, cloud.folder
        self.batch, self.logs = cloud.client("batch"), cloud.client("logs")
        target = {"region": "us-east-1", "queue": QUEUE, "instance_type": KIND, "image": trainer_image()}
        variables = {"muster_fleet": NAME, "muster_launcher": "batch", "muster_target": target}
        (self.folder / "batch.yml").write_text(yaml.safe_dump({"all": {"vars": variables}}))

    def job(self, name: str, verb: str = "run", **fields: Any) -> tuple[str, int]:
        """job.yml with a document; without fields the document is that of an earlier call."""
        if fields:
            document = {
                "name": name,
                "image": trainer_image(),
                "mounts": [f"{cache_dir(os.environ)}/shared:/var/cache/muster:ro"],
                "time_limit": 5,
                **fields,
            }
            (self.folder / f"{name}.yml").write_text(yaml.safe_dump(document))
        return self.cloud.play("playbooks/job.yml", "-i", str(self.folder / "batch.yml"), job=f"@{name}.yml", verb=verb)

    def kept(self, name: str, file: str = "output.txt") -> str:
        """A file of a job in the newest run folder."""
        return (self.folder / "runs" / NAME / "latest/jobs" / name / file).read_text()

    def result(self, name: str) -> dict[str, Any]:
        return json.loads(self.kept(name, "result.json"))

    def nodes(self, job_id: str) -> list[dict[str, Any]]:
        listed = self.batch.list_jobs(multiNodeJobId=job_id)["jobSummaryList"]
        return self.batch.describe_jobs(jobs=[each["jobId"] for each in listed])["jobs"]

    def printed(self, job_id: str) -> list[str]:
        """What all nodes of a job printed."""
        found = []
        for each in self.nodes(job_id):
            if stream := each["container"].get("logStreamName"):
                page = self.logs.get_log_events(logGroupName="/aws/batch/job", logStreamName=stream, startFromHead=True)
                found += [event["message"] for event in page["events"]]
        return found

    def submitted(self, **wanted: Any) -> dict[str, Any]:
        """A job of the definition that cloud.yml made, as Batch describes it once it is over."""
        environment = [{"name": name, "value": value} for name, value in wanted.pop("environment").items()]
        overrides = {"nodePropertyOverrides": [{"targetNodes": "0:", "containerOverrides": {"environment": environment}}], **wanted}
        names = {"jobName": "mpi", "jobQueue": QUEUE, "jobDefinition": f"{QUEUE}-multi"}
        job_id = self.batch.submit_job(**names, nodeOverrides=overrides, retryStrategy={"attempts": 1})["jobId"]
        return until(lambda: next((each for each in self.batch.describe_jobs(jobs=[job_id])["jobs"] if "stoppedAt" in each), None), 120)


def until(done: Callable[[], Any], seconds: float) -> Any:
    """What `done` returns, as soon as that is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := done():
            return found
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:.0f} s")


def said(ended: tuple[str, int]) -> str:
    """The sentence that ended a playbook."""
    assert ended[1] != 0, ended[0][-3000:]
    return re.findall(r"^FAILED (.*)$", ended[0], re.MULTILINE)[-1]


def passed(ended: tuple[str, int]) -> str:
    """What a playbook printed, without the line breaks of its callback."""
    assert ended[1] == 0, ended[0][-5000:]
    return " ".join(ended[0].split())


def load_image(engine: Engine) -> None:
    engine.change("load", "--input", str(trainer_archive(os.environ)))
    # The definition of cloud.yml names an image of AWS, which has the same programs.
    engine.change("tag", trainer_image(), IMAGE)


def forget_images(engine: Engine) -> None:
    for each in (IMAGE, trainer_image()):
        engine.run(engine.argv("rmi", "--force", each))


@pytest.fixture(scope="module")
def site(artifacts) -> Iterator[Site]:
    environment(os.environ)
    engine = find_engine()
    artifacts.leave("images of ranks in the engine", lambda: forget_images(engine))
    load_image(engine)
    cloud = LocalCloud(NAME, artifacts.folder(NAME))
    artifacts.leave(f"local cloud {NAME}", cloud.clean)
    cloud.start()
    (cloud.folder / "mine.yml").write_text(yaml.safe_dump(CLUSTER))
    passed(cloud.play("playbooks/cloud.yml", cluster="@mine.yml", verb="up"))
    yield Site(cloud)
    cloud.end()
    assert cloud.left() == []
    assert not (cloud.folder / "state/muster" / NAME / "fsx").exists()


@pytest.fixture(scope="module")
def fault(site: Site) -> Callable[..., None]:
    def order(**fault: Any) -> None:
        ended = site.cloud.run(str(ROOT / ".venv/bin/python"), "-m", "localcloud", "--fault", json.dumps(fault))
        assert ended[1] == 0, ended[0]

    return order


def test_four_nodes_of_eight_ranks_are_32_ranks(site: Site) -> None:
    passed(site.job("count", command=COUNT, nodes=4, procs_per_node=8))
    result = site.result("count")
    assert (result["state"], result["exit_code"], result["nodes"]) == ("COMPLETED", 0, [f"node-{number}" for number in range(4)])
    found = [re.fullmatch(r"rank (\d+) of 32, \d of 8 on (\S+)", line) for line in site.printed(result["job_id"])]
    ranks = {int(each[1]): each[2] for each in found if each}
    assert sorted(ranks) == list(range(32))
    hosts = [ranks[rank] for rank in range(32)]
    assert len(set(hosts)) == 4
    assert all(len(set(hosts[at : at + 8])) == 1 for at in range(0, 32, 8)), "the ranks of a node are beside each other"


def test_two_nodes_train_and_the_result_is_stored(site: Site) -> None:
    # Both nodes see one folder of checkpoints, as nodes of a cluster with FSx do.
    passed(site.job("data", command=DATA))
    passed(site.job("train", command=TRAIN, nodes=2))
    losses = [float(each) for each in re.findall(r"Loss: ([\d.]+)", site.kept("train"))]
    assert len(losses) == 30 and losses[-1] < 0.8 * losses[0]
    assert "2 ranks by torchrun, gloo, DDP 2" in site.kept("train")
    first = site.result("train")
    assert len({each["container"]["logStreamName"] for each in site.nodes(first["job_id"])}) == 2
    passed(site.job("train"))
    assert (site.result("train")["stored"], site.result("train")["job_id"]) == (True, first["job_id"])
    [listed] = site.batch.list_jobs(jobQueue=QUEUE, filters=[{"name": "JOB_NAME", "values": ["muster-train*"]}])["jobSummaryList"]
    assert (listed["jobId"], listed["status"]) == (first["job_id"], "SUCCEEDED")
    assert re.search(r"train \(.*\): COMPLETED, .*loss", passed(site.job("train", "result")))


def test_the_exit_status_of_a_rank_is_that_of_the_job(site: Site) -> None:
    sentence = said(site.job("broken", command=["python", "-c", ONE_FAILS], nodes=2))
    assert re.search(r"ended FAILED \(.*node [01] ended with exit status 1\) with exit status 7 on node-\[0-1\]", sentence), sentence
    end = site.kept("broken").splitlines()[-9:]
    assert "muster: the last lines of the program on node 1:" in end and "the disk of this node is broken" in end, end


def test_a_worker_that_never_comes_ends_the_job_within_its_limit(site: Site, fault) -> None:
    fault(boots=False)
    began = time.monotonic()
    sentence = said(site.job("lost", command=["python", "-c", MEETS], nodes=3, time_limit=1))
    assert re.search(r"ended TIMEOUT \(Job attempt duration exceeded timeout; node 1 never started\)", sentence), sentence
    assert 60 <= time.monotonic() - began < 150
    assert [each["status"] for each in site.nodes(site.result("lost")["job_id"])] == ["FAILED"] * 3


def test_a_job_is_stopped_with_all_its_nodes(site: Site) -> None:
    passed(site.job("long", "submit", command=["sleep", "600"], nodes=2))
    until(lambda: "2 of 2 nodes run" in passed(site.job("long", "status")), 60)
    passed(site.job("long", "stop"))
    assert site.result("long")["state"] == "CANCELLED"
    assert "CANCELLED" in passed(site.job("long", "status"))
    assert site.cloud.left() == []


def test_a_failed_attempt_is_repeated(site: Site) -> None:
    once = 'mkdir "$MUSTER_JOB_DIR" 2>/dev/null && exit 3; echo attempt "$AWS_BATCH_JOB_ATTEMPT"'
    passed(site.job("again", command=["bash", "-c", once], retries=1))
    assert (site.result("again")["state"], site.result("again")["restarts"]) == ("COMPLETED", 1)
    assert site.kept("again").strip() == "attempt 2"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"command": ["ssh-add", "Ref::key"]}, "has the placeholder Ref::key, which Batch would not replace; write its value."),
        (
            {"command": ["true"], "image": "localhost/muster-none:1"},
            "node 0, 1 never started; CannotPullContainerError: localhost/muster-none:1",
        ),
        ({"command": ["true"], "nodes": 17}, "cannot start and was cancelled: Batch says MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"),
    ],
)
def test_what_cannot_run_is_refused_or_ended_by_one_sentence(site: Site, fields: dict[str, Any], sentence: str) -> None:
    said, code = site.job("wrong", **{"nodes": 2, **fields})
    assert code != 0 and sentence in " ".join(said.split()), said[-3000:]


def test_the_definition_of_the_stack_runs_mpi_on_as_many_nodes_as_the_job_says(site: Site, fault) -> None:
    secret = next(each for each in site.cloud.client("secretsmanager").list_secrets()["SecretList"] if QUEUE in each["Name"])["ARN"]
    key = site.cloud.client("secretsmanager").get_secret_value(SecretId=secret)["SecretString"]
    seen: list[str] = []

    def watched() -> None:
        seen.extend(path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())

    mpi = {"MUSTER_PROCS_PER_NODE": "2", "MUSTER_COMMAND": 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)"'}
    watched()
    ended = site.submitted(numNodes=3, environment=mpi)
    printed = site.printed(ended["jobId"])
    assert ended["status"] == "SUCCEEDED", printed
    found = [re.fullmatch(r"rank (\d) of 6 on (\S+)", line) for line in printed]
    assert sorted(int(each[1]) for each in found if each) == list(range(6))
    assert len({each[2] for each in found if each}) == 3
    assert key.splitlines()[1] not in "".join([*printed, *seen])

    fault(boots=False)
    ended = site.submitted(numNodes=3, environment={**mpi, "MUSTER_WAIT": "6"})
    assert (ended["status"], "muster: node 1 did not report within 6 s" in site.printed(ended["jobId"])) == ("FAILED", True)

    site.cloud.client("secretsmanager").put_secret_value(SecretId=secret, SecretString=PLACEHOLDER)
    ended = site.submitted(numNodes=2, environment=mpi)
    assert site.nodes(ended["jobId"])[0]["container"]["exitCode"] == 69
    assert any("the secret of the stack holds no private key" in line for line in site.printed(ended["jobId"]))
