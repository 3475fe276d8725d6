# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads instances of several regions and accounts from EC2 in parallel, by boto3."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.common.dict_transformations import _camel_to_snake

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import DENIED, AwsError, not_aws, sentence, unreadable
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import Accounts as AwsAccounts
from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import stop_at
from ansible_collections.muster.fleet.plugins.module_utils.aws.instances import Ec2Error, instance_reader, read_page
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import instance_type, names

# Answers of a region or partition of AWS, or of an endpoint, that does not have a call or what it is asked for.
UNSUPPORTED = ("UnsupportedOperation", "Unsupported", "InvalidAction", "InvalidParameterValue", "UnknownOperationException")


class Accounts(AwsAccounts):
    """The accounts and regions of an inventory."""

    def regions(self, role):
        """The regions that the options name, or all that the account has enabled."""
        named = self.options["regions"]
        if named:
            if not all(named):
                raise Ec2Error("No region: option regions has an empty entry; name a region such as us-east-1.")
            return list(dict.fromkeys(named))
        ec2 = self.client("ec2", self.home, role)
        try:
            found = self.ask("DescribeRegions", f"region {self.home}", lambda: ec2.describe_regions()["Regions"])
        except AwsError as error:
            raise Ec2Error(f"No region: option regions is empty, and the account was asked in vain. {error}") from error
        return sorted(each["RegionName"] for each in found)


def _instances(client, filters, read, lock):
    bodies = []

    def take(response_dict, **_more):
        # botocore gets an empty answer to parse, because read_page takes a fifth of its time. botocore still handles errors and retries.
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
    """{instance id: muster_network_nodes, from the top layer down, and muster_ultraserver of the instances of UltraServers}."""
    types = [each for each in names() if instance_type(each)["topology_layers"]]
    filters = [{"Name": "instance-type", "Values": types}]
    pages = client.get_paginator("describe_instance_topology").paginate(Filters=filters, PaginationConfig={"PageSize": 100})
    keys = {"muster_network_nodes": "NetworkNodes", "muster_ultraserver": "CapacityBlockId"}
    return {
        each["InstanceId"]: {ours: each[theirs] for ours, theirs in keys.items() if each.get(theirs)}
        for page in pages
        for each in page["Instances"]
    }


def _stop_times(client, instances):
    """Set muster_stop_at of the instances of capacity blocks. Calls EC2 only when there are some."""
    blocks = {each.get("capacity_reservation_id") for each in instances if each.get("instance_lifecycle") == "capacity-block"} - {None}
    if blocks:
        pages = client.get_paginator("describe_capacity_reservations").paginate(CapacityReservationIds=sorted(blocks))
        ends = {
            each["CapacityReservationId"]: each["EndDate"] for page in pages for each in page["CapacityReservations"] if "EndDate" in each
        }
        for each in instances:
            if each.get("capacity_reservation_id") in ends:
                each["muster_stop_at"] = stop_at(ends[each["capacity_reservation_id"]], each["instance_type"])


def query(options, include, exclude, warn):
    """All instances sorted by id with the names of variables they may have, and whether nothing was left out.

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
    unknown = []  # regions whose stop times or network nodes are not known

    def stop_times(client, where, instances):
        try:
            _stop_times(client, instances)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, *unreadable()) as error:
            # Hosts without a stop time are better than no hosts.
            action = "DescribeCapacityReservations"
            said = not_aws(action, where) if isinstance(error, unreadable()) else sentence(error, action, where)
            warn(f"No muster_stop_at, jobs will not end before their capacity block does: {said}")
            unknown.append(where)

    def topology(client, where):
        try:
            return _topology(client)
        except botocore.exceptions.ClientError as error:
            if error.response["Error"].get("Code") not in (*DENIED, *UNSUPPORTED):
                raise  # a call that may work the next time must not make Slurm's network flat until then
            # Hosts without their place in the network are better than no hosts.
            said = sentence(error, "DescribeInstanceTopology", where)
            warn(f"No muster_network_nodes, so Slurm will see a flat network: {said} Or set topology: false.")
            unknown.append(where)
            return {}

    def run(job):
        kind, where, client, filters = job
        try:
            if kind == "topology":
                return topology(client, where)
            instances = _instances(client, filters, read, lock)
            if kind == "include":
                stop_times(client, where, instances)
            return instances
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, Ec2Error, *unreadable()) as error:
            action = "DescribeInstanceTopology" if kind == "topology" else "DescribeInstances"
            foreign = isinstance(error, unreadable())
            said = not_aws(action, where) if foreign else str(error) if isinstance(error, Ec2Error) else sentence(error, action, where)
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
                instance.update(nodes.get(instance["instance_id"], {}))
                found.append(instance)
    return (sorted(found, key=lambda each: each["instance_id"]), sorted(known)), not (failed or unknown)


def cache_key(options, include, exclude, environ=None):
    """The cache key of these options. The access key, profile or role stands for the account, so that AWS need not be asked."""
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
