# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm's ResumeProgram and SuspendProgram on the controller: nodes in the state CLOUD are instances of EC2 while jobs need them.

`cloud_nodes.py resume NODES` starts them, `suspend NODES` ends them, `check FILE` says what is wrong with settings. Those in
/etc/muster/cloud_nodes.json are as the file slurm_cloud_nodes.py beside this one describes. Where no zone and no type has room, the
nodes go back to the cloud with the reason, and Slurm queues their jobs again.
"""

import json
import os
import subprocess
import sys

# Python puts the folder of the program on its path.
import slurm_cloud_nodes as logic

SETTINGS = "/etc/muster/cloud_nodes.json"
CLUSTER_TAG, NODE_TAG = "muster:cluster", "muster:slurm_node"
ALIVE = ["pending", "running", "stopping", "stopped"]
TRIES = 3


def scontrol(*argv):
    """What scontrol says."""
    return subprocess.run(["scontrol", *argv], check=True, capture_output=True, text=True).stdout


def hostnames(text):
    return scontrol("show", "hostnames", text).split() if text else []


def jobs_of(path):
    """The nodes of each job that Slurm resumes nodes for; [] of a Slurm that does not say."""
    try:
        with open(path, encoding="utf-8") as handle:
            return [hostnames(each.get("nodes_resume", "")) for each in json.load(handle).get("jobs", [])]
    except (OSError, ValueError):
        return []


def there(ec2, settings, nodes):
    """{node: instance} of nodes that have one. Only instances that this program started have the tag."""
    wanted = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [settings["cluster"]]},
        {"Name": "tag-key", "Values": [NODE_TAG]},
        {"Name": "instance-state-name", "Values": ALIVE},
    ]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=wanted)
    every = [each for page in pages for one in page["Reservations"] for each in one["Instances"]]
    tagged = [({tag["Key"]: tag["Value"] for tag in each["Tags"]}[NODE_TAG], each) for each in every]
    return {node: each for node, each in tagged if node in nodes}


def launcher(ec2, settings):
    """The launch of an attempt, for all nodes or none."""
    import botocore.exceptions

    def launch(attempt, nodes):
        where = {"LaunchTemplateId" if attempt["template"].startswith("lt-") else "LaunchTemplateName": attempt["template"]}
        try:
            more = {}
            if attempt.get("subnet"):
                version = ec2.describe_launch_template_versions(Versions=["$Latest"], **where)["LaunchTemplateVersions"][0]
                given = version["LaunchTemplateData"].get("NetworkInterfaces", [])
                more = {"NetworkInterfaces": logic.interfaces(given, attempt["subnet"])} if given else {"SubnetId": attempt["subnet"]}
            marks = [{"Key": CLUSTER_TAG, "Value": settings["cluster"]}]
            made = ec2.run_instances(
                LaunchTemplate={**where, "Version": "$Latest"},
                MinCount=len(nodes),
                MaxCount=len(nodes),
                TagSpecifications=[{"ResourceType": "instance", "Tags": marks}],
                **more,
            )["Instances"]
        except botocore.exceptions.ClientError as error:
            found = error.response["Error"]
            raise logic.LaunchError(f"{found['Code']}: {found.get('Message', '')}", found["Code"]) from error
        except botocore.exceptions.BotoCoreError as error:
            raise logic.LaunchError(str(error)) from error
        named = {node: made[index] for index, node in enumerate(nodes)}
        try:
            for node, each in named.items():
                ec2.create_tags(Resources=[each["InstanceId"]], Tags=[{"Key": "Name", "Value": node}, {"Key": NODE_TAG, "Value": node}])
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            # An instance without its node's name would run, and cost, for ever.
            ec2.terminate_instances(InstanceIds=[each["InstanceId"] for each in made])
            raise logic.LaunchError(f"its instances could not be named, and were ended: {error}") from error
        return named

    return launch


def resume(ec2, settings, nodes, jobs):
    """Start instances; {node: reason} of those that stay in the cloud."""
    have = there(ec2, settings, nodes)
    failed = {}
    launch = launcher(ec2, settings)
    for group, batch in logic.batches(settings, [each for each in nodes if each not in have], jobs):
        if not group:
            failed.update(dict.fromkeys(batch, logic.reason("no group of muster_cloud_nodes has this node; add it")))
            continue
        made, why = logic.start(settings["groups"][group]["attempts"], batch, launch)
        have.update(made)
        failed.update(dict.fromkeys(batch if why else [], why))
    for node, each in have.items():
        address = each["PrivateIpAddress"]
        scontrol("update", f"NodeName={node}", f"NodeAddr={address}")
    give_back(failed)
    return failed


def give_back(failed):
    """Tell Slurm of nodes that do not start: {node: reason}."""
    for node, why in failed.items():
        # Queues its jobs again, and leaves the node idle in the cloud. After State=DOWN it would stay down for good.
        scontrol("update", f"NodeName={node}", "State=POWER_DOWN_FORCE", f"Reason={why}")


def suspend(ec2, settings, nodes):
    """End the instances of nodes; a node without one is done."""
    have = there(ec2, settings, nodes)
    if have:
        ec2.terminate_instances(InstanceIds=[each["InstanceId"] for each in have.values()])
    return {}


def main(argv):
    if len(argv) != 2 or argv[0] not in ("resume", "suspend", "check"):
        print("usage: cloud_nodes.py resume|suspend NODES, or check FILE", file=sys.stderr)
        return 2
    with open(argv[1] if argv[0] == "check" else SETTINGS, encoding="utf-8") as handle:
        settings = json.load(handle)
    try:
        logic.checked(settings)
    except logic.CloudNodesError as error:
        print(error, file=sys.stderr)
        return 1
    if argv[0] == "check":
        return 0
    import boto3
    import botocore.config
    import botocore.exceptions

    # boto3 tries again after EC2's answer that it has no room, which is one of the server's errors, too.
    config = botocore.config.Config(retries={"mode": "standard", "total_max_attempts": TRIES})
    ec2 = boto3.client("ec2", region_name=settings["region"], config=config)
    nodes = hostnames(argv[1])
    try:
        if argv[0] == "suspend":
            failed = suspend(ec2, settings, nodes)
        else:
            failed = resume(ec2, settings, nodes, jobs_of(os.environ.get("SLURM_RESUME_FILE", "")))
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
        failed = dict.fromkeys(nodes, logic.reason(f"EC2 cannot be asked: {error}"))
        if argv[0] == "resume":
            give_back(failed)
    for node, why in failed.items():
        print(f"{node}: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
