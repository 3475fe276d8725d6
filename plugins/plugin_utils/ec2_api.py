# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances of several regions and accounts from EC2, side by side, by boto3."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.common.dict_transformations import _camel_to_snake

from ansible_collections.muster.fleet.plugins.module_utils.catalogue import instance_type, names
from ansible_collections.muster.fleet.plugins.module_utils.ec2_instances import Ec2Error, instance_reader, read_page

EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
UNKNOWN = ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidToken")
DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
THROTTLED = ("RequestLimitExceeded", "Throttling", "ThrottlingException")


def sentence(error, action, where):
    """What boto3 raised as one sentence with a remedy. where: such as `region us-east-1`, empty for the account as a whole."""
    place = f" in {where}" if where else ""
    code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    said = " ".join(str(getattr(error, "response", {}).get("Error", {}).get("Message") or error).split()).rstrip(".")
    kind = type(error).__name__
    if code in EXPIRED or kind in ("UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError"):
        return f"The AWS credentials have expired ({code or kind}{place}); log in again."
    if code in UNKNOWN:
        # EC2 says the same in a region that the account has not enabled.
        return f"AWS does not know the credentials ({code}{place}); check the profile or the access key, or enable the region."
    if code in DENIED:
        return f"{action} is denied{place} ({code}: {said}); allow the action to this identity or leave the region or account out."
    if code in THROTTLED:
        return f"EC2 still throttled {action}{place} after all retries ({code}); try again later or use the cache."
    if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return f"There are no usable AWS credentials ({said}); set a profile, log in, or give this machine a role."
    if kind == "ProfileNotFound":
        return f"{said}; see ~/.aws/config or AWS_PROFILE."
    if kind in ("EndpointConnectionError", "ConnectTimeoutError", "InvalidRegionError", "ConnectionClosedError", "ReadTimeoutError"):
        return f"EC2 cannot be reached{place} ({said}); is the region's name right?"
    return f"{action} failed{place} ({code + ': ' if code else ''}{said})."


class Accounts:
    """One boto3 session, and a client for each account and region. Everything here runs in the main thread: boto3's sessions want that."""

    def __init__(self, options, environ=None):
        environ = os.environ if environ is None else environ
        try:
            import boto3
            import botocore.config
        except ImportError as error:
            raise Ec2Error("Python has no boto3, which aws_fleet needs; install it beside Ansible.") from error
        self.options = options
        self.config = botocore.config.Config(
            # Back-off with jitter, up to 20 s between two tries.
            retries={"mode": "standard", "total_max_attempts": 10},
            connect_timeout=10,
            read_timeout=60,
        )
        self.home = options["region"] or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        self.keys = {}
        if options["access_key"]:
            self.keys = {
                "aws_access_key_id": options["access_key"],
                "aws_secret_access_key": options["secret_key"],
                "aws_session_token": options["session_token"] or None,
            }
        profile = None if self.keys else options["profile"] or None
        self.session = self._ask("The profile", "", lambda: boto3.session.Session(profile_name=profile))
        self.roles = {}

    def _ask(self, action, where, call):
        import botocore.exceptions

        try:
            return call()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, ValueError) as error:
            raise Ec2Error(sentence(error, action, where)) from error

    def client(self, service, region, role=""):
        """A client with the keys of a role, or those that the options give."""
        keys = self.keys
        if role:
            if role not in self.roles:
                self.roles[role] = self._assume(role)
            keys = self.roles[role]
        return self._ask(
            "The connection",
            f"region {region}",
            lambda: self.session.client(
                service, region_name=region, endpoint_url=self.options["endpoint_url"] or None, config=self.config, **keys
            ),
        )

    def _assume(self, role):
        sts = self.client("sts", self.home)
        answer = self._ask(
            f"AssumeRole of {role}", "", lambda: sts.assume_role(RoleArn=role, RoleSessionName="ansible_muster_aws_fleet")["Credentials"]
        )
        return {
            "aws_access_key_id": answer["AccessKeyId"],
            "aws_secret_access_key": answer["SecretAccessKey"],
            "aws_session_token": answer["SessionToken"],
        }

    def regions(self, role):
        """The regions that the options name, or all that the account has enabled."""
        named = self.options["regions"]
        if named:
            if not all(named):
                raise Ec2Error("No region: option regions has an empty entry; name a region such as us-east-1.")
            return list(dict.fromkeys(named))
        ec2 = self.client("ec2", self.home, role)
        try:
            found = self._ask("DescribeRegions", f"region {self.home}", ec2.describe_regions)["Regions"]
        except Ec2Error as error:
            raise Ec2Error(f"No region: option regions is empty, and the account was asked in vain. {error}") from error
        return sorted(each["RegionName"] for each in found)


def _instances(client, filters, read, lock):
    bodies = []

    def take(response_dict, **_more):
        # botocore is left an empty answer to parse: read_page does it in a fifth of the time. Errors stay botocore's, with its retries.
        if response_dict["status_code"] == 200:
            bodies.append(response_dict["body"])
            response_dict["body"] = b"<DescribeInstancesResponse/>"

    client.meta.events.register("before-parse.ec2.DescribeInstances", take)
    found, token = [], ""
    while True:
        client.describe_instances(Filters=filters, MaxResults=1000, **({"NextToken": token} if token else {}))
        with lock:  # one page's tree at a time in memory
            instances, token = read_page(bodies.pop(), read, client.meta.region_name)
        found += instances
        if not token:
            return found


def _topology(client):
    """Instance id to its network nodes, from the top layer down."""
    types = [each for each in names() if instance_type(each)["topology_layers"]]
    filters = [{"Name": "instance-type", "Values": types}]
    pages = client.get_paginator("describe_instance_topology").paginate(Filters=filters, PaginationConfig={"PageSize": 100})
    return {each["InstanceId"]: each["NetworkNodes"] for page in pages for each in page["Instances"]}


def query(options, include, exclude, warn):
    """All instances sorted by id, the names of variables they may have, and whether nothing was left out.

    include, exclude: lists of EC2's filter lists.

    The calls of all accounts, regions and filters run side by side.
    """
    import botocore.exceptions

    accounts = Accounts(options)
    jobs = []
    for role in options["roles"] or [""]:
        for region in accounts.regions(role):
            where = f"region {region}" + (f" as {role}" if role else "")
            asked = [("exclude", each) for each in exclude] + [("include", each) for each in include]
            jobs += [(kind, where, accounts.client("ec2", region, role), each) for kind, each in asked]
            if options["topology"]:
                jobs.append(("topology", where, accounts.client("ec2", region, role), None))
    read, known = instance_reader(jobs[0][2].meta.service_model.operation_model("DescribeInstances").output_shape, _camel_to_snake)
    lock = threading.Lock()

    def run(job):
        kind, where, client, filters = job
        try:
            return _topology(client) if kind == "topology" else _instances(client, filters, read, lock)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, Ec2Error) as error:
            action = "DescribeInstanceTopology" if kind == "topology" else "DescribeInstances"
            said = str(error) if isinstance(error, Ec2Error) else sentence(error, action, where)
            denied = getattr(error, "response", {}).get("Error", {}).get("Code") in DENIED
            if options["skip_failed_regions"] or (denied and not options["strict_permissions"]):
                return Ec2Error(said)
            raise Ec2Error(said) from error

    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = list(pool.map(run, jobs))
    failed = [each for each in answers if isinstance(each, Ec2Error)]
    for each in failed:
        warn(f"Left out: {each}")
    done = [(job[0], answer) for job, answer in zip(jobs, answers, strict=True) if not isinstance(answer, Ec2Error)]
    seen = {each["instance_id"] for kind, answer in done if kind == "exclude" for each in answer}
    nodes = {name: value for kind, answer in done if kind == "topology" for name, value in answer.items()}
    found = []
    for _kind, answer in (each for each in done if each[0] == "include"):
        for instance in answer:
            if instance["instance_id"] not in seen:
                seen.add(instance["instance_id"])
                if instance["instance_id"] in nodes:
                    instance["muster_network_nodes"] = nodes[instance["instance_id"]]
                found.append(instance)
    return sorted(found, key=lambda each: each["instance_id"]), known, not failed


def cache_key(options, include, exclude, environ=None):
    """A name for what these options would fetch. The account is told by the key, the profile or the role, without asking AWS who it is."""
    environ = os.environ if environ is None else environ
    files = [environ.get(each, "") for each in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN")]
    home = options["region"] or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    what = [
        options["access_key"],
        options["profile"],
        files,
        home,
        options["endpoint_url"],
        sorted(options["roles"]),
        sorted(options["regions"]),
        include,
        exclude,
        options["topology"],
    ]
    return "muster_aws_fleet_" + hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]
