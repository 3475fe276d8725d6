# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as training jobs of SageMaker."""

from __future__ import annotations

import json
import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import AwsError
from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.batch import log_lines
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.ranks import failed_rank, with_rank
from ansible_collections.muster.fleet.plugins.module_utils.jobs.target import gpus_of, image_of

PORT = 29500
CONFIG = "/opt/ml/input/config/"
# An argument of a container may have 256 characters and a hyperparameter 2500, so the script and the words travel as hyperparameters.
PIECE, VALUE = 2400, 512
BOOT = (
    'import json,os;h=json.load(open("%shyperparameters.json"));w=json.loads("".join(h[k] for k in sorted(h) if k[:6]=="muster"));'
    'os.execvp("bash",["bash","-c",*w])' % CONFIG
)
HOSTS = (
    "import json; c = json.load(open('%sresourceconfig.json')); h = sorted(c['hosts']); print(h.index(c['current_host']), h[0])" % CONFIG
)
MEET = ('where="$(python3 -c "%s")"' % HOSTS, 'node="${where%% *}" first="${where##* }"')
MEETING = ['--node-rank="$node"', '--master-addr="$first"', "--master-port=%d" % PORT]
# From the trainer's log line.
METRICS = {"loss": r"Loss: ([0-9.]+)", "speed": r"Speed: ([0-9.]+) samples/sec", "validation_loss": r"Validation loss: ([0-9.]+)"}
MODES = ("File", "FastFile")
FSX = re.compile(r"fsx://(fs-[0-9a-f]{8,17})(/.*)")


def job_name(document, identity, attempt=1):
    """The name of a training job; SageMaker never gives one twice, so a later attempt has its number behind."""
    return "muster-%s%s" % (start.plain_name(document, identity), "-%d" % attempt if attempt > 1 else "")


def render(document, identity, target):
    """The request of CreateTrainingJob. Raises JobError for what SageMaker cannot express."""
    where = "Job %s" % document["name"]
    if document["mounts"]:
        raise JobError("%s has mounts, and a training job of SageMaker sees no path of its host; use launcher.channels." % where)
    if document["retries"] > 30:
        raise JobError("%s has %d retries, and SageMaker takes 30; lower them." % (where, document["retries"]))
    gpus_asked = gpus_of(document, target)
    if target["have"] and gpus_asked < target["have"]["gpus"]:
        raise JobError("%s wants %d GPUs, and a training job has all of its instances; set gpus_per_node to all." % (where, gpus_asked))
    cpus = document["procs_per_node"] * document["cpus_per_proc"]
    if target["have"] and cpus > target["have"]["vcpus"]:
        message = "%s wants %d CPUs on each node, and %s has %d; lower procs_per_node or cpus_per_proc."
        raise JobError(message % (where, cpus, target["instance_type"], target["have"]["vcpus"]))
    for field in ("output", "checkpoints"):
        if target[field] and not target[field].startswith("s3://"):
            raise JobError("muster_target.%s must begin with s3://, not be %s." % (field, target[field]))
    name = job_name(document, identity)
    output = target["output"].rstrip("/")
    environment = start.environment(document, target, "/opt/ml/checkpoints")
    for variable, value in environment.items():
        if len(value) > VALUE:
            raise JobError("%s: env %s has %d characters, and SageMaker takes %d; shorten it." % (where, variable, len(value), VALUE))
    secrets = start.secrets_of(document, target)
    script = start.node_script(document, secrets, MEETING, MEET)
    words = json.dumps([script, "muster", *document["command"]])
    pieces = {"muster_%02d" % number: words[at : at + PIECE] for number, at in enumerate(range(0, len(words), PIECE))}
    if len(pieces) > 100:
        raise JobError("%s: the command has more than SageMaker takes; write it to a file of a channel." % where)
    limit = 60 * document["time_limit"]
    spot = document["launcher"]["spot"]
    request = {
        "TrainingJobName": name,
        "RoleArn": target["role"],
        "AlgorithmSpecification": {
            "TrainingImage": image_of(document, target),
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-c"],
            "ContainerArguments": [BOOT],
            "MetricDefinitions": [{"Name": metric, "Regex": regex} for metric, regex in METRICS.items()],
        },
        "HyperParameters": pieces,
        "Environment": environment,
        "OutputDataConfig": {"S3OutputPath": output + "/" + name},
        "CheckpointConfig": {
            "S3Uri": (target["checkpoints"] or output + "/checkpoints").rstrip("/") + "/" + name,
            "LocalPath": "/opt/ml/checkpoints",
        },
        "ResourceConfig": {
            "InstanceType": "ml." + target["instance_type"].replace("ml.", "", 1),
            "InstanceCount": document["nodes"],
            "VolumeSizeInGB": target["volume_gb"],
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": limit, **({"MaxWaitTimeInSeconds": 2 * limit} if spot else {})},
        "EnableManagedSpotTraining": spot,
        "Tags": [{"Key": "muster-job", "Value": document["name"]}, {"Key": "muster-identity", "Value": identity[:12]}],
    }
    if document["retries"]:
        request["RetryStrategy"] = {"MaximumRetryAttempts": document["retries"]}
    channels = [_channel(each, at, where) for each, at in sorted(document["launcher"]["channels"].items())]
    if channels:
        request["InputDataConfig"] = channels
    if target["subnets"] or target["security_groups"]:
        if not target["subnets"] or not target["security_groups"]:
            raise JobError("muster_target needs subnets and security_groups together for SageMaker; set both or none.")
        request["VpcConfig"] = {"Subnets": target["subnets"], "SecurityGroupIds": target["security_groups"]}
    elif any("FileSystemDataSource" in channel["DataSource"] for channel in channels):
        raise JobError("%s reads from FSx, which SageMaker reaches in a VPC only; set muster_target.subnets and security_groups." % where)
    return request


def _channel(name, at, where):
    """An input channel from {uri: s3://... or fsx://fs-.../PATH, mode: File or FastFile}, or from the URI alone."""
    at = {"uri": at} if isinstance(at, str) else at
    if not isinstance(at, dict) or not set(at) <= {"uri", "mode"} or not isinstance(at.get("uri"), str):
        raise JobError("%s: launcher.channels.%s must be {uri: s3://..., mode: File}." % (where, name))
    mode = at.get("mode", "File")
    if mode not in MODES:
        raise JobError("%s: launcher.channels.%s has the mode %s; known are %s." % (where, name, mode, ", ".join(MODES)))
    fsx = FSX.fullmatch(at["uri"])
    if fsx:
        source = {"FileSystemId": fsx.group(1), "FileSystemType": "FSxLustre", "FileSystemAccessMode": "ro", "DirectoryPath": fsx.group(2)}
        return {"ChannelName": name, "DataSource": {"FileSystemDataSource": source}}
    if not at["uri"].startswith("s3://"):
        raise JobError("%s: launcher.channels.%s must begin with s3:// or fsx://, not be %s." % (where, name, at["uri"]))
    source = {"S3DataType": "S3Prefix", "S3Uri": at["uri"], "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "InputMode": mode, "DataSource": {"S3DataSource": source}}


LOGS = "/aws/sagemaker/TrainingJobs"
RUNNING = ("Training", "Uploading", "Stopping")
STATES = {"Completed": "COMPLETED", "Failed": "FAILED", "Stopped": "CANCELLED"}
EXIT_CODE = re.compile(r"[Ee]xit ?[Cc]ode:? ?\"?(\d+)")


class SageMaker(jobs.Service):
    """One training job of SageMaker. region: an accounts.Region, or what has its call() and every()."""

    title = "SageMaker"

    def __init__(self, *, region, request, document, **settings):
        super().__init__(**settings)
        self.region, self.request, self.document = region, request, document

    def _names(self):
        """[(name, status)] of the attempts of this job, the newest first."""
        base = self.request["TrainingJobName"]
        found = self.region.every("sagemaker", "ListTrainingJobs", "TrainingJobSummaries", NameContains=base)
        mine = [each for each in found if re.fullmatch(re.escape(base) + r"(-\d+)?", each["TrainingJobName"])]
        newest = sorted(mine, key=lambda each: (each["CreationTime"], len(each["TrainingJobName"]), each["TrainingJobName"]), reverse=True)
        return [(each["TrainingJobName"], each["TrainingJobStatus"]) for each in newest]

    def live(self):
        """The name of the attempt that waits or runs."""
        return next((name for name, status in self._names() if status in ("InProgress", "Stopping")), None)

    def submit(self, options):
        """Create the training job under a name that was not used before."""
        attempt = len(self._names()) + 1
        name = self.request["TrainingJobName"] + ("-%d" % attempt if attempt > 1 else "")
        try:
            self.region.call("sagemaker", "CreateTrainingJob", **{**self.request, "TrainingJobName": name})
        except AwsError as error:
            # boto3 repeats a call without an answer, which may have made the job.
            if error.code == "ResourceInUse":
                return name
            if error.code == "ResourceLimitExceeded":
                message = "SageMaker refuses job %s: the account's quota is used up (%s); ask for more in Service Quotas."
                raise jobs.Refused(message % (self.name, error)) from error
            raise (jobs.Refused if error.code else jobs.RunError)(str(error)) from error
        return name

    def cancel(self, job_id):
        """Stop the job and wait until it has ended."""
        self.region.call("sagemaker", "StopTrainingJob", TrainingJobName=job_id)
        while True:
            found = self.record(job_id)
            if found is None or found["state"] in jobs.FINAL_STATES:
                return
            self.pause("SageMaker is stopping it (%s)" % found["state"])

    def record(self, job_id):
        """The job as a record of Service; SageMaker never forgets a training job."""
        try:
            have = self.region.call("sagemaker", "DescribeTrainingJob", TrainingJobName=job_id)
        except AwsError as error:
            if error.code in ("ValidationException", "ResourceNotFound", "ValidationError"):
                return None
            raise
        second = have.get("SecondaryStatus", "")
        state = STATES.get(have["TrainingJobStatus"]) or ("RUNNING" if second in RUNNING else "PENDING")
        if second in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded"):
            state = "TIMEOUT"
        elif second == "Interrupted" and state != "COMPLETED":
            state = "PENDING"
        reason = have.get("FailureReason") or second or "None"
        code = EXIT_CODE.search(reason)
        times = {
            key: int(have[key].timestamp()) if have.get(key) else None for key in ("CreationTime", "TrainingStartTime", "TrainingEndTime")
        }
        started = times["TrainingStartTime"]
        changes = [each.get("Status") for each in have.get("SecondaryStatusTransitions", [])]
        return {
            "job_id": job_id,
            "state": state,
            "reason": reason,
            "exit_code": int(code.group(1)) if code else 0 if state not in jobs.FINAL_STATES or state == "COMPLETED" else 1,
            "signal": 0,
            "nodes": ["algo-%d" % number for number in range(1, self.document["nodes"] + 1)] if started else [],
            "submitted": times["CreationTime"],
            "started": started,
            "ended": times["TrainingEndTime"],
            "elapsed_s": have.get("TrainingTimeInSeconds"),
            "restarts": changes.count("Restarting"),
            "ready": self.document["nodes"] if state == "RUNNING" else 0,
        }

    def over(self, job_id, record):
        """The record, after the log of the host with rank 0 was fetched; of a failed job with the rank that failed first."""
        if record is None:
            raise jobs.RunError("SageMaker has no training job %s; run it again with rerun." % job_id, "run it again with rerun")
        self.fetch_output(job_id)
        return with_rank(record, self._failed_ranks(job_id)) if record["state"] == "FAILED" else record

    def fetch_output(self, job_id):
        """Write the log of the first host into the store."""
        streams = self._streams(job_id, "algo-1-")
        # An attempt that was restarted has a stream of its own.
        most = jobs.OUTPUT_BYTES // max(1, len(streams))
        lines = [line for each in streams for line in log_lines(self.region, LOGS, each, most)]
        self.store.prepare({"output.txt": "".join(line + "\n" for line in lines)})

    def _failed_ranks(self, job_id):
        """The failed_rank() of each host's last attempt. The log of a host with one, other than the first host, becomes output-HOST.txt."""
        hosts = {each.rpartition("/")[2].rpartition("-")[0]: each for each in sorted(self._streams(job_id, "algo-"))}
        found = []
        for host, stream in hosts.items():
            text = "".join(line + "\n" for line in log_lines(self.region, LOGS, stream))
            found.append(failed_rank(text))
            if found[-1] and host != "algo-1":
                self.store.prepare({"output-%s.txt" % host: text})
        return found

    def _streams(self, job_id, begin):
        """The names of the log streams of a job's hosts, JOB/HOST-TIME, that begin so; none before the first line."""
        try:
            prefix = "%s/%s" % (job_id, begin)
            found = self.region.every("logs", "DescribeLogStreams", "logStreams", logGroupName=LOGS, logStreamNamePrefix=prefix)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            found = []
        return [each["logStreamName"] for each in found]
