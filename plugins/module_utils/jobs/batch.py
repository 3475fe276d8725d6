# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as multi-node parallel jobs of AWS Batch."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
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
        "volumes": [{"name": "mount-%d" % number, "host": {"sourcePath": source}} for number, (source, _, _) in enumerate(mounts)],
        "mountPoints": [
            {"sourceVolume": "mount-%d" % number, "containerPath": at, "readOnly": read_only}
            for number, (_, at, read_only) in enumerate(mounts)
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
