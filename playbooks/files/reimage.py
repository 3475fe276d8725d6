# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm's RebootProgram on the controller: what `scontrol reboot` is asked for comes back with the AMI that its instance is to have.

It is called with the nodes, by slurmctld with `SlurmctldParameters=reboot_from_controller`. /etc/muster/reimage.json says
{"region": …, "image": AMI or "", "nodes": {NODE: INSTANCE, …}, "told": FOLDER}. An instance that has the AMI already is rebooted, as
without this program. A node with which that fails is drained and its Reason says why; its jobs were over before slurmctld called.
FOLDER/NODE gets the AMI or that reason, for playbooks/reimage.yml.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

SETTINGS = "/etc/muster/reimage.json"
# The instance's tag that says which AMI its root volume is from: EC2's own ImageId is of its launch.
TAG = "muster:root_ami"
PATIENCE = 1800
POLL = 5


class ReimageError(Exception):
    """A node that does not come back; the text is one sentence for the node's Reason."""


def scontrol(*argv):
    """What scontrol says."""
    done = subprocess.run(["scontrol", *argv], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ReimageError(f"scontrol {argv[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def reimage(ec2, instance, image):
    """A new root volume, or a reboot where the instance has that AMI."""
    found = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    has = {each["Key"]: each["Value"] for each in found.get("Tags", ())}.get(TAG, found["ImageId"])
    if not image or has == image:
        ec2.reboot_instances(InstanceIds=[instance])
        return
    wanted = {"InstanceId": instance, "ImageId": image, "DeleteReplacedRootVolume": True, "ClientToken": str(uuid.uuid4())}
    task = ec2.create_replace_root_volume_task(**wanted)["ReplaceRootVolumeTask"]
    deadline = time.monotonic() + PATIENCE
    while task["TaskState"] not in ("succeeded", "failed", "failed-detached"):
        if time.monotonic() > deadline:
            raise ReimageError(f"{image} is not on {instance} after {PATIENCE} s; see {task['ReplaceRootVolumeTaskId']}.")
        time.sleep(POLL)
        asked = [task["ReplaceRootVolumeTaskId"]]
        task = ec2.describe_replace_root_volume_tasks(ReplaceRootVolumeTaskIds=asked)["ReplaceRootVolumeTasks"][0]
    if task["TaskState"] != "succeeded":
        raise ReimageError(f"{image} could not be put on {instance}; see {task['ReplaceRootVolumeTaskId']}.")
    ec2.create_tags(Resources=[instance], Tags=[{"Key": TAG, "Value": image}])


def tell(folder, node, text):
    """Leave word for the playbook, whole at once."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, node)
    with open(path + ".new", "w", encoding="utf-8") as handle:
        handle.write(text + "\n")
    os.replace(path + ".new", path)


def one(ec2, settings, node):
    """Reimage a node; the reason why not, or ""."""
    try:
        if node not in settings["nodes"]:
            raise ReimageError(f"{SETTINGS} names no instance of {node}; run playbooks/reimage.yml.")
        reimage(ec2, settings["nodes"][node], settings["image"])
    # Whatever it is, the playbook must hear of it: it waits for a day.
    except Exception as error:
        what = str(error) if isinstance(error, ReimageError) else f"{type(error).__name__}: {error}"
        reason = f"muster:reimage: {' '.join(what.split())}"
        try:
            # Only RESUME ends Slurm's wait for the boot, whose end would give the node back with the AMI that it has.
            scontrol("update", f"NodeName={node}", "State=RESUME")
            scontrol("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
        except ReimageError as second:
            reason = f"{reason} It may not be drained: {second}"
        tell(settings["told"], node, reason)
        return f"{node}: {reason}"
    tell(settings["told"], node, settings["image"])
    return ""


def main(argv):
    """All nodes side by side."""
    import boto3
    import botocore.config

    with open(SETTINGS, encoding="utf-8") as handle:
        settings = json.load(handle)
    config = botocore.config.Config(retries={"mode": "standard", "total_max_attempts": 10})
    ec2 = boto3.client("ec2", region_name=settings["region"], config=config)
    nodes = scontrol("show", "hostnames", argv[0]).split()
    with ThreadPoolExecutor(16) as pool:
        problems = [each for each in pool.map(lambda node: one(ec2, settings, node), nodes) if each]
    for each in problems:
        print(each, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
