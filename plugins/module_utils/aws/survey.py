# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an account says of a cluster while it is there and when it is gone: status, cost, leftovers, and the data that it keeps."""

from __future__ import annotations

import time

from ansible_collections.muster.fleet.plugins.module_utils.aws import plan
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import AwsError
from ansible_collections.muster.fleet.plugins.module_utils.aws.boot import NODE_TAG
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError

UNFINISHED = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
ALIVE = ("pending", "running", "stopping", "stopped")


def stack(region, name):
    try:
        return region.call("cloudformation", "DescribeStacks", StackName=name)["Stacks"][0]
    except AwsError as error:
        if "does not exist" in str(error):
            return None
        raise


def status(region, cluster):
    """[{part, stack, status, missing, outputs, resources}] of the cluster's parts."""
    rows = []
    for part in plan.parts(cluster):
        for name in [each["name"] for each in plan.stacks(cluster, part)]:
            have = stack(region, name)
            row = {
                "part": part,
                "stack": name,
                "status": have["StackStatus"] if have else "missing",
                "reason": "",
                "outputs": {},
                "resources": 0,
            }
            if have:
                row["reason"] = have.get("StackStatusReason") or ""
                row["outputs"] = {each["OutputKey"]: each["OutputValue"] for each in have.get("Outputs", [])}
                resources = region.every("cloudformation", "ListStackResources", "StackResourceSummaries", StackName=name)
                row["resources"] = len(resources)
                row["reason"] = row["reason"] or _drift(region, cluster, resources)
            rows.append(row)
    return rows


def _drift(region, cluster, resources):
    """Instances of a stack that are no more."""
    wanted = {each["PhysicalResourceId"]: each["LogicalResourceId"] for each in resources if each["ResourceType"] == "AWS::EC2::Instance"}
    if not wanted:
        return ""
    alive = {each["InstanceId"] for each in instances(region, cluster)}
    lost = sorted(name for made, name in wanted.items() if made not in alive)
    return lost and "drifted: %s is gone; run verb=up with a lower and then the former count" % ", ".join(lost) or ""


def instances(region, cluster):
    """The live instances of a cluster, by the tag that its stacks gave them."""
    wanted = [{"Name": "tag:%s" % plan.CLUSTER_TAG, "Values": [cluster["name"]]}, {"Name": "instance-state-name", "Values": list(ALIVE)}]
    reservations = region.every("ec2", "DescribeInstances", "Reservations", Filters=wanted)
    return [each for one in reservations for each in one["Instances"]]


def file_systems(region, cluster):
    """The file systems of a cluster, also when their stack is gone."""
    found = region.every("fsx", "DescribeFileSystems", "FileSystems")
    return [
        each for each in found if any(tag["Key"] == plan.CLUSTER_TAG and tag["Value"] == cluster["name"] for tag in each.get("Tags", []))
    ]


def cost(region, cluster, prices):
    """{lines, hourly, unknown}: what is up, with dollars an hour where `prices` ({type: dollars an hour}) knows them."""
    counts: dict[str, int] = {}
    for each in instances(region, cluster):
        if each["State"]["Name"] in ("pending", "running"):
            counts[each["InstanceType"]] = counts.get(each["InstanceType"], 0) + 1
    for each in file_systems(region, cluster):
        kind = "fsx-%s-gib" % each["FileSystemType"].lower()
        counts[kind] = counts.get(kind, 0) + each["StorageCapacity"]
    gateways = len(nat_gateways(region, cluster))
    if gateways:
        counts["nat-gateway"] = gateways
    return priced(counts, prices)


def nat_gateways(region, cluster):
    """The ids of a cluster's NAT gateways."""
    own = [{"Name": "tag:%s" % plan.CLUSTER_TAG, "Values": [cluster["name"]]}, {"Name": "state", "Values": ["available", "pending"]}]
    return [each["NatGatewayId"] for each in region.every("ec2", "DescribeNatGateways", "NatGateways", Filter=own)]


def network_in_use(region, cluster):
    """Why the network of a cluster must stay, as a sentence, or "": a file system has interfaces in it, so that AWS does not delete it."""
    name = plan.stack_name(cluster, "vpc")
    files = [each["FileSystemId"] for each in file_systems(region, cluster)]
    if not files or not stack(region, name):
        return ""
    costs = ["NAT gateway " + each for each in nat_gateways(region, cluster)]
    costs += ["the interface endpoints"] if cluster["vpc"]["endpoints"] else []
    message = "Stack %s stays, because its network has %s; %s cost money, and verb=down with delete_data=%s removes all of it."
    return message % (name, ", ".join("file system " + each for each in files), " and ".join([", ".join(files), *costs]), cluster["name"])


def priced(counts, prices):
    """The lines of a bill by the hour."""
    for name, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or price < 0:
            raise ClusterError("The price of %s is %r; give dollars an hour." % (name, price))
    lines = [
        {"what": name, "count": count, "each": prices.get(name), "hourly": None if name not in prices else round(count * prices[name], 4)}
        for name, count in sorted(counts.items())
    ]
    unknown = [each["what"] for each in lines if each["hourly"] is None]
    return {"lines": lines, "hourly": round(sum(each["hourly"] or 0 for each in lines), 2), "unknown": unknown}


def left(region, cluster):
    """[{what, id}] that exists after the cluster's stacks are gone, and costs money."""
    found = [{"what": "file system", "id": each["FileSystemId"]} for each in file_systems(region, cluster)]
    bucket = cluster["storage"]["bucket"]
    if bucket and bucket in [each["Name"] for each in region.call("s3", "ListBuckets").get("Buckets", [])]:
        found.append({"what": "bucket", "id": bucket})
    found += [{"what": "NAT gateway", "id": each} for each in nat_gateways(region, cluster)]
    found += [{"what": "instance", "id": each["InstanceId"]} for each in instances(region, cluster)]
    if cluster["kind"] == "batch":
        # CloudFormation names a repository after its stack.
        names = tuple("%s-" % each["name"] for each in plan.stacks(cluster, "batch"))
        repositories = region.every("ecr", "DescribeRepositories", "repositories")
        found += [{"what": "images", "id": each["repositoryName"]} for each in repositories if each["repositoryName"].startswith(names)]
    own = [{"Name": "tag:%s" % plan.CLUSTER_TAG, "Values": [cluster["name"]]}]
    found += [{"what": "volume", "id": each["VolumeId"]} for each in region.every("ec2", "DescribeVolumes", "Volumes", Filters=own)]
    return found


def refuse_jobs(region, wanted):
    """Raise ClusterError when a queue of Batch, whose name is that of its stack, has jobs that are not over."""
    for name in [each["name"] for each in wanted if stack(region, each["name"])]:
        jobs: list[str] = []
        for status in UNFINISHED:
            try:
                jobs += [each["jobId"] for each in region.every("batch", "ListJobs", "jobSummaryList", jobQueue=name, jobStatus=status)]
            except AwsError as error:
                if error.code != "ClientException":  # a stack that failed has no queue
                    raise
        if jobs:
            message = (
                "Queue %s has jobs that are not over: %d, first %s; wait, or stop each by aws batch terminate-job, then run verb=down."
            )
            raise ClusterError(message % (name, len(jobs), jobs[0]))


def end_slurm_nodes(region, cluster, check=False):
    """End the instances that Slurm started for the cluster, which no stack knows; their ids."""
    tagged = [(each["InstanceId"], [tag["Key"] for tag in each.get("Tags", [])]) for each in instances(region, cluster)]
    found = [each for each, tags in tagged if NODE_TAG in tags]
    if found and not check:
        region.call("ec2", "TerminateInstances", InstanceIds=found)
    return found


def delete_data(region, cluster, part, timeout=3600):
    """Delete the data of a part whose stack is gone; the ids of what went."""
    gone = []
    if part == "fsx":
        for each in file_systems(region, cluster):
            # A run that was killed may have asked for it.
            if each.get("Lifecycle") != "DELETING":
                region.call("fsx", "DeleteFileSystem", FileSystemId=each["FileSystemId"])
            gone.append(each["FileSystemId"])
        _wait_until_gone(region, cluster, timeout)
    bucket = cluster["storage"]["bucket"]
    if part == "s3" and bucket in [each["Name"] for each in region.call("s3", "ListBuckets").get("Buckets", [])]:
        tags = region.call("s3", "GetBucketTagging", Bucket=bucket)["TagSet"]
        if {"Key": plan.CLUSTER_TAG, "Value": cluster["name"]} not in tags:
            raise ClusterError("Bucket %s is not of cluster %s, so its objects stay; delete it yourself." % (bucket, cluster["name"]))
        for kind in ("Versions", "DeleteMarkers"):
            while True:
                page = region.call("s3", "ListObjectVersions", Bucket=bucket, MaxKeys=1000).get(kind, [])
                if not page:
                    break
                objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in page]
                answer = region.call("s3", "DeleteObjects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
                if answer.get("Errors"):
                    raise ClusterError(
                        "Object %s of bucket %s stays: %s." % (answer["Errors"][0]["Key"], bucket, answer["Errors"][0]["Message"])
                    )
        region.call("s3", "DeleteBucket", Bucket=bucket)
        gone.append(bucket)
    return gone


def _wait_until_gone(region, cluster, timeout):
    """A network can go only when no file system has an interface in it."""
    until, pause = time.monotonic() + timeout, 0.2
    while True:
        there = file_systems(region, cluster)
        if not there:
            return
        stuck = [each for each in there if each.get("Lifecycle") == "FAILED"]
        why = " ".join(str(each.get("FailureDetails", {}).get("Message", "")) for each in stuck).strip().rstrip(".")
        if stuck or time.monotonic() > until:
            message = "File system %s is %s and not deleted%s; run verb=down again."
            each = (stuck or there)[0]
            raise ClusterError(message % (each["FileSystemId"], each["Lifecycle"], " (%s)" % why if why else ""))
        time.sleep(pause)
        pause = min(pause * 1.5, 10)
