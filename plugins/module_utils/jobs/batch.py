# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as multi-node parallel jobs of AWS Batch."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import AwsError
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.target import gpus_of, image_of, mounts_of

PORT = 29500
# Batch does not tell the main node its own address. A worker without the main node's address would wait for nothing.
MEET = (
    'main="${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-}"',
    'if [ -z "$main" ] && [ "$AWS_BATCH_JOB_NODE_INDEX" = "$AWS_BATCH_JOB_MAIN_NODE_INDEX" ]; then',
    '  main="$(hostname -i)"; main="${main%% *}"',
    "fi",
    '[ -n "$main" ] || { echo "muster: node $AWS_BATCH_JOB_NODE_INDEX does not know the address of the main node" >&2; exit 69; }',
)
MEETING = ['--node-rank="$AWS_BATCH_JOB_NODE_INDEX"', '--master-addr="$main"', "--master-port=%d" % PORT]
# Batch replaces Ref::NAME by a parameter, and leaves it as it is when the job has no such parameter.
PLACEHOLDER = re.compile(r"Ref::\w+")
MEMORY_MIB = 2048  # for each CPU of a type without accelerators, unless the target says how much


def job_name(document, identity):
    """The name of the job and of its definition."""
    return "muster-" + start.plain_name(document, identity)


def render(document, identity, target):
    """{definition, submit}: the requests of RegisterJobDefinition and SubmitJob; the latter's definition is known by its name.

    Raises JobError for what Batch cannot express.
    """
    name, nodes = job_name(document, identity), document["nodes"]
    found = PLACEHOLDER.search(" ".join([*document["command"], *document["env"].values()]))
    if found:
        raise JobError("Job %s has the placeholder %s, which Batch would not replace; write its value." % (document["name"], found.group()))
    own = [variable for variable in document["env"] if variable.startswith("AWS_BATCH")]
    if own:
        raise JobError("Job %s: env has %s, and Batch keeps that prefix for itself; rename it." % (document["name"], own[0]))
    secrets = start.secrets_of(document, target)
    from_files = {variable: each for variable, each in secrets.items() if each["from"] == "file"}
    mounts = [(target["checkpoints"], "/checkpoints", False), *mounts_of(document)]
    environment = start.environment(document, target, "/checkpoints/" + name)
    container = {
        "image": image_of(document, target),
        "command": ["bash", "-c", start.node_script(document, from_files, MEETING, MEET), "muster", *document["command"]],
        "environment": [{"name": variable, "value": value} for variable, value in environment.items()],
        "volumes": [
            {"name": "mount-%d" % number, "host": {"sourcePath": source}} for number, (source, _at, _read_only) in enumerate(mounts)
        ],
        "mountPoints": [
            {"sourceVolume": "mount-%d" % number, "containerPath": at, "readOnly": read_only}
            for number, (_source, at, read_only) in enumerate(mounts)
        ],
        **_resources(document, target),
    }
    from_store = [{"name": variable, "valueFrom": each["id"]} for variable, each in secrets.items() if each["from"] == "secretsmanager"]
    if from_store:
        if not target["execution_role"]:
            message = "Job %s has secrets of Secrets Manager, which Batch reads as the execution role; set muster_target.execution_role."
            raise JobError(message % document["name"])
        container["secrets"] = from_store
    for field, key in (("job_role", "jobRoleArn"), ("execution_role", "executionRoleArn")):
        if target[field]:
            container[key] = target[field]
    if target["instance_type"]:
        container["instanceType"] = target["instance_type"]
    attempts = document["retries"] + 1
    if attempts > 10:
        raise JobError("Job %s has %d retries, and Batch takes 9; lower them." % (document["name"], document["retries"]))
    definition = {
        "jobDefinitionName": name,
        "type": "multinode",
        "nodeProperties": {
            "numNodes": nodes,
            "mainNode": 0,
            # One range, so that no node is left out; Batch ends the workers with the main node.
            "nodeRangeProperties": [{"targetNodes": "0:%d" % (nodes - 1), "container": container}],
        },
        "retryStrategy": {"attempts": attempts},
        "timeout": {"attemptDurationSeconds": max(60, 60 * document["time_limit"])},
        "tags": {"muster-job": document["name"], "muster-identity": identity[:12]},
    }
    submit = {"jobName": name, "jobQueue": target["queue"], "jobDefinition": name, "tags": definition["tags"]}
    return {"definition": definition, "submit": submit}


def _resources(document, target):
    """The part of containerProperties that depends on the type."""
    gpus, have = gpus_of(document, target), target["have"]
    cpus = document["procs_per_node"] * document["cpus_per_proc"]
    if have:
        if cpus > have["vcpus"]:
            raise JobError(
                "Job %s wants %d CPUs on each node, and %s has %d; lower procs_per_node or cpus_per_proc."
                % (document["name"], cpus, have["name"], have["vcpus"])
            )
        return catalogue.batch_resources(have["name"], gpus)
    memory = target["memory_mib"] or MEMORY_MIB * cpus
    return {
        "resourceRequirements": [{"type": "VCPU", "value": str(cpus)}, {"type": "MEMORY", "value": str(memory)}],
        "linuxParameters": {"sharedMemorySize": min(catalogue.shared_memory_mib(None, 0), memory // 2)},
    }


WAITING = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING")
LOGS = "/aws/batch/job"
ENDED = "ended by Muster"
# Of a node that failed: the lines of its log that are shown, and what torchrun says of a rank that failed, and when somebody else ended it.
LAST, MOST_ENDS = 8, 16
RANK_FAILED = re.compile(r"elastic/multiprocessing/api\.py:\d+\] failed \(exitcode: (-?\d+)\)")
STOPPED = "got signal: 15"


class Batch(jobs.Service):
    """One job in a queue of AWS Batch. region: an accounts.Region, or what has its call() and every()."""

    title = "Batch"

    def __init__(self, *, region, requests, document, **settings):
        super().__init__(**settings)
        self.region, self.requests, self.document = region, requests, document
        self.job, self.queue = requests["submit"]["jobName"], requests["submit"]["jobQueue"]

    def _jobs(self):
        """[(createdAt, id, status)] of the jobs of this name in the queue, the oldest first. Batch forgets a job a week after its end."""
        named = [{"name": "JOB_NAME", "values": [self.job]}]
        try:
            found = self.region.every("batch", "ListJobs", "jobSummaryList", jobQueue=self.queue, filters=named)
        except AwsError as error:
            if error.code != "ClientException" or "queue" not in str(error):
                raise
            raise jobs.Refused("Region %s has no job queue %s; correct muster_target.queue." % (self.region.name, self.queue)) from error
        return sorted((each["createdAt"], each["jobId"], each["status"]) for each in found if each["jobName"] == self.job)

    def live(self):
        """The id of the job that waits or runs."""
        return next((job_id for _created, job_id, status in self._jobs() if status not in ("SUCCEEDED", "FAILED")), None)

    def submit(self, options):
        """Register the definition and submit the job."""
        [queue] = self.region.call("batch", "DescribeJobQueues", jobQueues=[self.queue])["jobQueues"]
        if queue["state"] != "ENABLED":
            message = "The job queue %s is %s, so job %s was not submitted; enable it."
            raise jobs.Refused(message % (self.queue, queue["state"].lower(), self.name))
        try:
            arn = self.region.call("batch", "RegisterJobDefinition", **self.requests["definition"])["jobDefinitionArn"]
            job_id = self.region.call("batch", "SubmitJob", **{**self.requests["submit"], "jobDefinition": arn})["jobId"]
        except AwsError as error:
            raise (jobs.Refused if error.code else jobs.RunError)(str(error)) from error
        # boto3 repeats a call without an answer, which may have given a job.
        first = self.live() or job_id
        for _created, each, status in self._jobs():
            if each != first and status in WAITING:
                self.region.call("batch", "TerminateJob", jobId=each, reason="submitted twice")
        return first

    def cancel(self, job_id):
        """End the job and wait until it has ended."""
        self.region.call("batch", "TerminateJob", jobId=job_id, reason=ENDED)
        while True:
            found = self.record(job_id)
            if found is None or found["state"] in jobs.FINAL_STATES:
                return
            self.pause("Batch is ending it (%s)" % found["state"])

    def _described(self, ids):
        return self.region.call("batch", "DescribeJobs", jobs=ids)["jobs"]

    def _nodes(self, job_id):
        """The descriptions of the nodes of a job, in their order; those that Batch does not know yet are left out."""
        ids = ["%s#%d" % (job_id, number) for number in range(self.document["nodes"])]
        return [each for at in range(0, len(ids), 100) for each in self._described(ids[at : at + 100])]

    def record(self, job_id):
        """The job as a record of Service."""
        found = self._described([str(job_id)])
        if not found:
            return None
        have, nodes = found[0], self._nodes(job_id)
        state = state_of(have, have.get("statusReason") or "", [each.get("container", {}).get("reason", "") for each in nodes])
        codes = [each.get("container", {}).get("exitCode") for each in [*_failed(nodes), have, *have.get("attempts", [])[-1:]]]
        started, ended = (have.get(key, 0) // 1000 or None for key in ("startedAt", "stoppedAt"))
        return {
            "job_id": have["jobId"],
            "state": state,
            "reason": reason_of(have, nodes, state),
            # Workers of a job that has completed may have been ended with the main node.
            "exit_code": 0 if state == "COMPLETED" else next((code for code in codes if code), 1 if state in jobs.FINAL_STATES else 0),
            "signal": 0,
            "nodes": ["node-%d" % number for number in range(self.document["nodes"])] if started else [],
            "submitted": have["createdAt"] // 1000,
            "started": started,
            "ended": ended,
            "elapsed_s": None,
            "restarts": max(0, len(have.get("attempts", [])) - 1),
            "ready": sum(1 for each in nodes if each["status"] == "RUNNING"),
        }

    def pending(self, record):
        """Why a job stays RUNNABLE: what Batch says itself, else compute environments that take no job."""
        if record["reason"].startswith("MISCONFIGURATION"):
            return "impossible", "lower what the job asks for, or change the compute environment"
        environments = self._environments()
        if environments and all(faults for _name, faults in environments):
            record["reason"] = "; ".join("compute environment %s is %s" % each for each in environments)
            return "unavailable", "enable or mend the compute environment"
        return None, ""

    def _environments(self):
        """[(name, what is wrong or "")] of the queue's compute environments."""
        [queue] = self.region.call("batch", "DescribeJobQueues", jobQueues=[self.queue])["jobQueues"]
        names = [each["computeEnvironment"] for each in queue.get("computeEnvironmentOrder", [])]
        found = self.region.call("batch", "DescribeComputeEnvironments", computeEnvironments=names)["computeEnvironments"] if names else []
        out = []
        for each in found:
            invalid = each["status"] == "INVALID" and "INVALID (%s)" % each.get("statusReason", "no reason given")
            out.append((each["computeEnvironmentName"], invalid or ("DISABLED" if each.get("state") == "DISABLED" else "")))
        return out

    def over(self, job_id, record):
        """The record, or an error when Batch has forgotten the job."""
        if record is None:
            raise jobs.RunError(
                "Batch has forgotten job %s (%s); run it again with rerun." % (self.name, job_id), "run it again with rerun"
            )
        code = self.fetch_output(job_id)
        # torchrun ends with 1 whatever its ranks ended with.
        return {**record, "exit_code": code} if record["state"] == "FAILED" and record["exit_code"] == 1 and code else record

    def fetch_output(self, job_id):
        """Write the log of the main node, whose rank 0 prints, into the store; behind it the last lines of the programs that failed.

        Returns the exit status of the rank that failed, or None.
        """
        nodes = self._nodes(job_id) or self._described([str(job_id)])
        lines, code = log_lines(self.region, LOGS, _stream(nodes[0])) if nodes else [], None
        failed = _failed(nodes)
        ends = [(each, self._end_of_log(each)) for each in failed[:MOST_ENDS]]
        # The others were ended with the main node, so theirs is no cause. That of a worker is the last thing to read.
        ends = sorted((each for each in ends if not any(STOPPED in line for line in each[1])), key=lambda each: each[0] is not nodes[0])
        for node, end in ends[:2]:
            said, of_rank = program_end(end)
            code = of_rank or code
            lines += ["muster: the last lines of the program on node %s:" % _index(node), *said[-LAST:]]
        self.store.prepare({"output.txt": "".join(line + "\n" for line in lines)})
        return code

    def _end_of_log(self, node):
        lines, _whole = _read_log(self.region, LOGS, _stream(node), 4 * jobs.TAIL_BYTES, False)
        return lines


def program_end(lines):
    """(lines up to the one by which torchrun reports a failed rank, the exit status of that rank or None).

    Behind that line are torchrun's own traceback and summary, which are longer than what an error shows.
    """
    for number, line in enumerate(lines):
        found = RANK_FAILED.search(line)
        if found:
            code = int(found.group(1))
            return lines[: number + 1], code if code >= 0 else 128 - code
    return lines, None


def _stream(node):
    return node.get("container", {}).get("logStreamName") or ""


def log_lines(region, group, stream, most=None):
    """The lines of a log stream; none when nothing was written. Of more than `most` characters the begin and the end are kept."""
    most = most or jobs.OUTPUT_BYTES
    lines, whole = _read_log(region, group, stream, most, True)
    if whole:
        return lines
    end, _whole = _read_log(region, group, stream, most // 4 * 3, False)
    return [*_first(lines, most // 4), jobs.LEFT_OUT, *reversed(_first(reversed(end), most // 4 * 3))]


def _read_log(region, group, stream, most, head):
    """(lines, whether these are all) of a log stream, from its head or from its end on, until they have `most` characters."""
    out: list[str] = []
    token, size = "", 0
    while stream:
        try:
            more: dict = {"nextToken": token} if token else {}
            page = region.call("logs", "GetLogEvents", logGroupName=group, logStreamName=stream, startFromHead=head, **more)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            break
        lines = [each["message"] for each in page["events"]]
        at = len(out) if head else 0
        out[at:at] = lines
        size += sum(len(line) + 1 for line in lines)
        following = page.get("nextForwardToken" if head else "nextBackwardToken")
        if following in (None, token or None):
            break
        if size > most:
            return out, False
        token = following
    return out, True


def _first(lines, most):
    """The first lines that have at most `most` characters together."""
    out = []
    for line in lines:
        most -= len(line) + 1
        if most < 0:
            break
        out.append(line)
    return out


def _failed(nodes):
    """The nodes that ended with an exit status other than 0, in the order of their ends: the first is the cause of the others' ends."""
    bad = [each for each in nodes if each.get("container", {}).get("exitCode")]
    return sorted(bad, key=lambda each: each.get("stoppedAt", 0))


def _index(node):
    """The index of a node, which Batch writes behind the id of the job."""
    return node["jobId"].partition("#")[2]


def reason_of(have, nodes, state):
    """Why a job is in its state: what Batch says of it, and which of its nodes never started or failed first."""
    said = [have["statusReason"]] if have.get("statusReason") else []
    if state not in ("PENDING", "RUNNING", "COMPLETED"):
        late = [_index(each) for each in nodes if each["status"] in WAITING or not each.get("startedAt")]
        said += ["node %s never started" % ", ".join(late)] if late else []
        # What kept a container from starting, such as an image that cannot be pulled.
        whys = [each["container"]["reason"] for each in nodes if each.get("container", {}).get("reason")]
        said += whys[:1]
        bad = _failed(nodes) if state == "FAILED" else []
        said += ["node %s ended with exit status %s" % (_index(bad[0]), bad[0]["container"]["exitCode"])] if bad else []
    return "; ".join(said) or "None"


def state_of(have, reason, said):
    """Slurm's word for the state of a job of Batch; said: the reasons of its containers."""
    status = have["status"]
    if status in WAITING:
        return "PENDING"
    if status in ("RUNNING", "SUCCEEDED"):
        return {"RUNNING": "RUNNING", "SUCCEEDED": "COMPLETED"}[status]
    texts = " ".join([reason, have.get("container", {}).get("reason", ""), *said])
    if "exceeded timeout" in texts:
        return "TIMEOUT"
    if "OutOfMemory" in texts:
        return "OUT_OF_MEMORY"
    if texts.startswith("Host EC2"):
        return "NODE_FAIL"
    return "CANCELLED" if have.get("isCancelled") or have.get("isTerminated") or reason == ENDED else "FAILED"
