# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as training jobs of SageMaker."""

from __future__ import annotations

import json
import re

from ansible_collections.muster.fleet.plugins.module_utils.jobs import start
from ansible_collections.muster.fleet.plugins.module_utils.jobs.document import JobError
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
