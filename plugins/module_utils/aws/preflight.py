# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an account says of a cluster before it is made.

A check is {check, status, said}: passed, failed, or not_run when the account does not let somebody look.
"""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws import permissions, plan, survey
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import DENIED, AwsError
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import accelerated, started_by_slurm

# Family of types -> what EC2's quotas call it; every other letter is a standard family.
FAMILIES = {"p": "P", "g": "G and VT", "gr": "G and VT", "trn": "Trn", "inf": "Inf", "dl": "DL", "hpc": "HPC"}
STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"


def said(check, fault, passed=""):
    return {"check": check, "status": "failed" if fault else "passed", "said": fault or passed}


def not_run(check, why):
    return {"check": check, "status": "not_run", "said": why}


def preflight(region, cluster):
    """The checks before anything is made. Raises AwsError when AWS cannot be asked at all."""
    identity = region.call("sts", "GetCallerIdentity")
    wrong = account_fault(cluster, identity["Account"])
    checks = [said("account", wrong, identity["Account"])]
    if wrong:
        return checks
    if region.name != cluster["region"]:
        fault = "The region is %s, and the cluster is for %s; leave the option region out." % (region.name, cluster["region"])
        return [*checks, said("region", fault)]
    checks += _zones(region, cluster)
    checks += _image(region, cluster)
    checks += [_reservation(region, cluster, each) for each in cluster["nodes"] if each["reservation"].startswith("cr-")]
    checks += _quotas(region, cluster)
    if cluster["key_pair"]:
        checks.append(_key_pair(region, cluster))
    checks += _names(region, cluster)
    if cluster["vpc"]["stack"]:
        checks.append(_exports(region, cluster))
    checks.append(_permissions(region, cluster, identity["Arn"]))
    return checks


def account_fault(cluster, account):
    """Why a cluster is not of an account, or ""."""
    if cluster["account"] in ("", account):
        return ""
    return "The credentials are of account %s, and the cluster is for %s; take another profile." % (account, cluster["account"])


def refuse_account(region, cluster):
    """Raise AwsError when the credentials are of another account than the document says."""
    wrong = cluster["account"] and account_fault(cluster, region.call("sts", "GetCallerIdentity")["Account"])
    if wrong:
        raise AwsError(wrong)


def _allowed(check, look):
    """What `look` returns, or not_run when the identity may not look."""
    try:
        return look()
    except AwsError as error:
        if error.code in DENIED:
            return [not_run(check, str(error))]
        raise


def _zones(region, cluster):
    """Whether each zone exists and offers each type."""

    def look():
        known = [each["ZoneName"] for each in region.call("ec2", "DescribeAvailabilityZones")["AvailabilityZones"]]
        lost = [each for each in cluster["zones"] if each not in known]
        if lost:
            return [said("zones", "Region %s has no zone %s; it has %s." % (region.name, lost[0], ", ".join(known)))]
        found = []
        for kind in sorted({each["type"] for each in cluster["nodes"]}):
            wanted = [{"Name": "instance-type", "Values": [kind]}]
            offers = region.every(
                "ec2", "DescribeInstanceTypeOfferings", "InstanceTypeOfferings", LocationType="availability-zone", Filters=wanted
            )
            zones = sorted(each["Location"] for each in offers)
            without = [each for each in cluster["zones"][:1] if each not in zones]
            where = "its zones there are " + ", ".join(zones) if zones else "take another region"
            fault = without and "Zone %s does not offer %s; %s." % (without[0], kind, where)
            found.append(said("offer %s" % kind, fault, ", ".join(zones)))
        return found

    return _allowed("zones", look)


def _image(region, cluster):
    if not cluster["image"]:
        return []

    def look():
        try:
            image = region.image(cluster["image"])
        except AwsError as error:
            if error.code:
                raise
            return [said("image", str(error))]
        for group in cluster["nodes"]:
            have = accelerated(group["type"])
            if have and image.get("Architecture", have["arch"]) != have["arch"]:
                fault = "AMI %s is for %s, and %s is %s; take another." % (
                    image["ImageId"],
                    image["Architecture"],
                    group["type"],
                    have["arch"],
                )
                return [said("image", fault)]
        return [
            said(
                "image", image["State"] != "available" and "AMI %s is %s; wait until it is available." % (image["ImageId"], image["State"])
            )
        ]

    return _allowed("image", look)


def _reservation(region, cluster, group):
    check = "reservation %s" % group["reservation"]
    try:
        found = region.call("ec2", "DescribeCapacityReservations", CapacityReservationIds=[group["reservation"]])["CapacityReservations"]
    except AwsError as error:
        if error.code in DENIED:
            return not_run(check, str(error))
        if not error.code.startswith("InvalidCapacityReservationId"):
            raise
        found = []
    if not found:
        return said(
            check, "Region %s has no reservation %s; correct it for node group %s." % (region.name, group["reservation"], group["name"])
        )
    return said(check, reservation_fault(found[0], group, cluster["zones"]))


def reservation_fault(have, group, zones):
    """Why a reservation does not serve a node group, or ""."""
    name, block = have["CapacityReservationId"], have.get("ReservationType") == "capacity-block"
    if have["State"] not in ("active", "scheduled", "payment-pending", "assessing"):
        return "Reservation %s is %s; name one that is active." % (name, have["State"])
    if have["State"] != "active":
        return "Reservation %s is %s and begins at %s; run again then." % (name, have["State"], have.get("StartDate", "a later time"))
    if have["InstanceType"] != group["type"]:
        return "Reservation %s is of %s, and node group %s of %s; correct one." % (name, have["InstanceType"], group["name"], group["type"])
    if have.get("AvailabilityZone") and have["AvailabilityZone"] != zones[0]:
        return "Reservation %s is in zone %s, and the cluster in %s; correct zones." % (name, have["AvailabilityZone"], zones[0])
    if block != (group["market"] == "capacity-block"):
        return "Reservation %s is %s; set market to %s." % (
            name,
            "a capacity block" if block else "no capacity block",
            "capacity-block" if block else "reservation",
        )
    total = have.get("TotalInstanceCount", 0)
    if total < group["count"]:
        return "Reservation %s has %d instances, and node group %s wants %d; lower count." % (name, total, group["name"], group["count"])
    return ""


def collection_fault(region, cluster):
    """Why nodes would not find the collection that they install at boot, or "". up asks when the cluster's own bucket is there."""
    where = cluster["setup"]["collection"]
    if not where:
        return ""
    bucket, key = where[len("s3://") :].split("/", 1)
    try:
        region.call("s3", "HeadObject", Bucket=bucket, Key=key)
    except AwsError as error:
        if error.code not in ("404", "NoSuchKey", "NoSuchBucket"):
            raise
        message = "%s is not there, and nodes install it when they boot; run aws s3 cp COLLECTION.tar.gz %s, then verb=up again."
        return message % (where, where)
    return ""


def family(kind):
    letters = ""
    for letter in kind.split(".")[0]:
        if letter.isdigit():
            break
        letters += letter
    return FAMILIES.get(letters, STANDARD)


def quota_name(kind, market, hyperpod=False):
    """What Service Quotas calls the limit of a type; None for capacity that no limit counts."""
    if hyperpod:
        return "ml.%s for cluster usage" % kind
    if market == "capacity-block":
        return None
    if market == "spot":
        return "All %s Spot Instance Requests" % family(kind)
    return "Running On-Demand %s instances" % family(kind)


def quotas_needed(cluster, vcpus):
    """{quota: needed} of a cluster: vCPUs for EC2, instances for SageMaker. vcpus: {type: vCPUs}."""
    needed: dict[str, int] = {}
    hyperpod = cluster["kind"].startswith("hyperpod")
    for group in cluster["nodes"]:
        name = quota_name(group["type"], group["market"], hyperpod)
        if name:
            needed[name] = needed.get(name, 0) + group["max"] * (1 if hyperpod else vcpus[group["type"]])
    return needed


def _quotas(region, cluster):
    def look():
        kinds = sorted({each["type"] for each in cluster["nodes"]})
        try:
            types = region.call("ec2", "DescribeInstanceTypes", InstanceTypes=kinds)["InstanceTypes"]
        except AwsError as error:
            if error.code != "InvalidInstanceType":
                raise
            return [said("types", "EC2 does not know one of the types %s in region %s; correct it." % (", ".join(kinds), region.name))]
        vcpus = {each["InstanceType"]: each["VCpuInfo"]["DefaultVCpus"] for each in types}
        needed = quotas_needed(cluster, vcpus)
        service = "sagemaker" if cluster["kind"].startswith("hyperpod") else "ec2"
        if not needed:
            return []
        try:
            quotas = region.every("service-quotas", "ListServiceQuotas", "Quotas", ServiceCode=service)
        except AwsError as error:
            return [not_run("quota", "The quotas could not be read: %s" % error)]
        have = {each["QuotaName"]: each for each in quotas}
        return [_quota(name, count, have.get(name), service) for name, count in sorted(needed.items())]

    return _allowed("quota", look)


def _quota(name, count, have, service):
    if have is None:
        return not_run("quota %s" % name, "Service Quotas does not list %s." % name)
    message = "The quota %s (%s) is %d, and the cluster needs %d; ask for an increase of %s to %d."
    short = have["Value"] < count and message % (name, have["QuotaCode"], have["Value"], count, service, count)
    return said("quota %s" % name, short, "%d of %d" % (count, have["Value"]))


def _key_pair(region, cluster):
    try:
        found = region.call("ec2", "DescribeKeyPairs", KeyNames=[cluster["key_pair"]]).get("KeyPairs", [])
    except AwsError as error:
        if error.code != "InvalidKeyPair.NotFound":
            return not_run("key pair", str(error))
        found = []
    missing = cluster["key_pair"] not in [each["KeyName"] for each in found]
    message = "Region %s has no key pair %s; correct key_pair, or leave it out."
    return said("key pair", missing and message % (region.name, cluster["key_pair"]), cluster["key_pair"])


def _names(region, cluster):
    """Whether names of stacks and of the bucket are free, or this cluster's own."""
    found = []
    for part in plan.parts(cluster):
        for stack in plan.stacks(cluster, part):
            have = survey.stack(region, stack["name"])
            tags = {each["Key"]: each["Value"] for each in (have or {}).get("Tags", [])}
            taken = have and have["StackStatus"] != "REVIEW_IN_PROGRESS" and tags.get(plan.CLUSTER_TAG) != cluster["name"]
            message = "Region %s has a stack %s that is not of this cluster; give the cluster another name."
            found.append(
                said("stack %s" % stack["name"], taken and message % (region.name, stack["name"]), have["StackStatus"] if have else "free")
            )
    return found


def _exports(region, cluster):
    name = cluster["vpc"]["stack"]
    if not survey.stack(region, name):
        return said(
            "vpc", "Region %s has no stack %s; correct vpc.stack, or make it from cloudformation/2.vpc-one-az.yaml." % (region.name, name)
        )
    known = {each["Name"] for each in region.every("cloudformation", "ListExports", "Exports")}
    wanted = [
        "%s-%s" % (name, each)
        for each in ("PrivateSubnet", "SecurityGroup", *(["FSXSecurityGroup"] if "fsx" in plan.parts(cluster) else []))
    ]
    lost = [each for each in wanted if each not in known]
    return said("vpc", lost and "Stack %s has no export %s; make the VPC from a template in cloudformation/." % (name, lost[0]), name)


def _permissions(region, cluster, arn):
    joining = ["secret"] if any(started_by_slurm(cluster, group) for group in cluster["nodes"]) else []
    wanted = permissions.actions([*plan.parts(cluster), *joining])
    if ":assumed-role/" in arn:
        head, rest = arn.split(":assumed-role/", 1)
        arn = "%s:role/%s" % (head.replace(":sts:", ":iam:"), rest.split("/")[0])
    if arn.endswith(":root"):
        return said("permissions", "", "the account's root may do everything")
    try:
        told = region.every("iam", "SimulatePrincipalPolicy", "EvaluationResults", PolicySourceArn=arn, ActionNames=wanted)
    except AwsError as error:
        return not_run("permissions", "The policies of %s could not be simulated: %s" % (arn, error))
    denied = sorted(each["EvalActionName"] for each in told if each["EvalDecision"] != "allowed")
    message = "%s may not %s; allow it (docs/architectures.md has the policy)."
    silent = sorted(set(wanted) - {each["EvalActionName"] for each in told})
    if silent and not denied:
        return not_run("permissions", "IAM did not say whether %s may %s; run preflight again." % (arn, ", ".join(silent)))
    return said("permissions", denied and message % (arn, ", ".join(denied)), "%d actions" % len(wanted))
