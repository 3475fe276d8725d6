# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster document `muster.cluster/1`: what a cluster on AWS has, whatever kind it is of. Roles aws_* turn it into stacks."""

from __future__ import annotations

import copy
import ipaddress
import re
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import REGION
from ansible_collections.muster.fleet.plugins.module_utils.basics import nearest
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

SCHEMA = "muster.cluster/1"
# Kind -> the part that makes its nodes; vpc, s3 and fsx come before it. plan.parts() refuses those whose files are rendered only.
KINDS = {
    "ec2": "ec2",
    "batch": "batch",
    "parallelcluster": "parallelcluster",
    "pcs": "pcs",
    "eks": "eks",
    "hyperpod-slurm": "hyperpod",
    "hyperpod-eks": "hyperpod",
}
MARKETS = ("on-demand", "spot", "reservation", "capacity-block")
ROLES = ("compute", "controller", "login")
# Which groups each kind takes beside those of role compute.
OTHER_ROLES = {
    "ec2": ("controller", "login"),
    "parallelcluster": ("controller", "login"),
    "pcs": ("login",),
    "hyperpod-slurm": ("controller", "login"),
}
NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
ZONE = re.compile(r"%s(-[a-z]+-\d)?[a-z]" % REGION.pattern)
ID = r"%s-([0-9a-f]{8}|[0-9a-f]{17})"
RESERVATION = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})")
TRAINING_PLAN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:training-plan/[A-Za-z0-9-]+")
STACK_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# What only some kinds read.
KEY_PAIR_KINDS = ("ec2", "batch", "parallelcluster", "pcs")
BOOT_KINDS = ("ec2", "parallelcluster", "pcs", "hyperpod-slurm", "hyperpod-eks")
REPAIR_KINDS = ("eks", "hyperpod-slurm", "hyperpod-eks")

REQUIRED = object()
# Field -> (type, default).
FIELDS: dict[str, tuple[type, Any]] = {
    "schema": (str, SCHEMA),
    "kind": (str, REQUIRED),
    "name": (str, REQUIRED),
    "region": (str, REQUIRED),
    "zones": (list, REQUIRED),
    "account": (str, ""),
    "versions": (dict, {}),
    "nodes": (list, REQUIRED),
    "image": (str, ""),
    "os": (str, ""),
    "stack": (str, ""),
    "key_pair": (str, ""),
    "vpc": (dict, {}),
    "storage": (dict, {}),
    "accounting": (dict, {}),
    "users": (list, []),
    "setup": (dict, {}),
}
NODES: dict[str, tuple[type, Any]] = {
    "name": (str, REQUIRED),
    "type": (str, REQUIRED),
    "role": (str, "compute"),
    "count": (int, 0),
    "min": (int, None),
    "max": (int, None),
    "market": (str, "on-demand"),
    "reservation": (str, ""),
    "disk": (int, 200),
    "placement_group": (bool, None),
    "managed": (bool, True),
}
VPC: dict[str, tuple[type, Any]] = {
    "stack": (str, ""),
    "id": (str, ""),
    "subnets": (list, []),
    "public_subnet": (str, ""),
    "security_group": (str, ""),
    "storage_security_group": (str, ""),
    "cidr": (str, "10.0.0.0/16"),
    "nat": (str, "one"),
    "endpoints": (bool, False),
}
STORAGE: dict[str, tuple[type, Any]] = {"bucket": (str, ""), "lustre": (dict, {}), "openzfs": (dict, {})}
LUSTRE: dict[str, tuple[type, Any]] = {"gib": (int, 1200), "throughput": (int, 250), "efa": (bool, False), "repository": (str, "")}
OPENZFS: dict[str, tuple[type, Any]] = {"gib": (int, 512), "throughput": (int, 160)}
ACCOUNTING: dict[str, tuple[type, Any]] = {
    "managed": (bool, False),
    "uri": (str, ""),
    "user": (str, ""),
    "secret": (str, ""),
    "database": (str, ""),
}
# The systems of ParallelCluster 3.16.
SYSTEMS = ("alinux2023", "ubuntu2204", "ubuntu2404", "rhel8", "rhel9", "rocky8", "rocky9")
VERSIONS = {"parallelcluster": ("parallelcluster",), "slurm": ("pcs",), "kubernetes": ("eks", "hyperpod-eks")}
SETUP: dict[str, tuple[type, Any]] = {
    "collection": (str, ""),
    "variables": (dict, {}),
    "repair": (bool, True),
}
TYPES = {str: "text", int: "a whole number", list: "a list", dict: "a mapping", bool: "true or false"}
THROUGHPUTS = {"lustre": (125, 250, 500, 1000), "openzfs": (160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240)}
PRIVATE = [ipaddress.IPv4Network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]


class ClusterError(ValueError):
    """A cluster document that cannot become a cluster; the text is one sentence with the remedy."""


def filled(data, fields, where):
    """`data` with defaults from `fields`; refuses a field that is unknown, missing or of another type."""
    if not isinstance(data, dict):
        raise ClusterError("%s must be a mapping, not %r." % (where, data))
    for field in data:
        if field not in fields:
            raise ClusterError("%s has the unknown field %s; %s" % (where, field, nearest(field, fields)))
    out = {}
    for field, (kind, default) in fields.items():
        value = data.get(field)
        if value is None:
            if default is REQUIRED:
                raise ClusterError("%s has no %s; add it." % (where, field))
            value = copy.deepcopy(default)
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ClusterError("%s: %s must be %s, not %r." % (where, field, TYPES[kind], value))
        out[field] = value
    return out


def one_of(value, known, where):
    """Refuse a word that is not in `known`."""
    if value not in known:
        raise ClusterError("%s %s is unknown; %s" % (where, value or "''", nearest(value, known)))


def load(data):
    """The complete, checked document of `data`, as read from YAML. Raises ClusterError with one sentence for the first fault."""
    if not isinstance(data, dict):
        raise ClusterError("A cluster document is a mapping with kind, name, region, zones and nodes, not %s." % type(data).__name__)
    where = "Cluster %s" % data.get("name", "without a name")
    found = filled(data, FIELDS, where)
    if found["schema"] != SCHEMA:
        raise ClusterError("%s has the schema %s; this version of Muster reads %s." % (where, found["schema"], SCHEMA))
    one_of(found["kind"], KINDS, "%s: kind" % where)
    if not NAME.fullmatch(found["name"]):
        raise ClusterError("%s: the name must be 1 to 20 lower-case letters, digits or dashes and begin with a letter." % where)
    if not REGION.fullmatch(found["region"]):
        raise ClusterError("%s: %r is not a region; give one such as us-east-1." % (where, found["region"]))
    if found["account"] and not re.fullmatch(r"\d{12}", found["account"]):
        raise ClusterError("%s: account must be the 12 digits of an account as text, not %s." % (where, found["account"]))
    _check_zones(found, where)
    _check_versions(found, where)
    if found["image"] and not re.fullmatch(ID % "ami", found["image"]):
        raise ClusterError("%s: image must be the id of an AMI such as ami-0123456789abcdef0, not %s." % (where, found["image"]))
    found["vpc"] = _vpc(found, where)
    found["storage"] = _storage(found, where)
    found["setup"] = filled(found["setup"], SETUP, "%s: setup" % where)
    if not re.fullmatch(r"|s3://[a-z0-9.-]{3,63}/[\w./-]+\.tar\.gz", found["setup"]["collection"]):
        raise ClusterError("%s: setup.collection must be s3://BUCKET/FILE.tar.gz, not %s." % (where, found["setup"]["collection"]))
    found["accounting"] = _accounting(found, where)
    if found["users"]:
        raise ClusterError(
            "%s: users are not made with a cluster; remove users, and name them in slurm_users or users_servers of the inventory." % where
        )
    if not found["nodes"]:
        raise ClusterError("%s has no node groups; add one to nodes." % where)
    found["nodes"] = [_group(each, found, where) for each in found["nodes"]]
    names = [each["name"] for each in found["nodes"]]
    twice = [each for each in names if names.count(each) > 1]
    if twice:
        raise ClusterError("%s has two node groups %s; rename one." % (where, twice[0]))
    _check_kind(found, where)
    _check_readers(found, where)
    return found


def _check_zones(found, where):
    if not found["zones"]:
        raise ClusterError("%s has no zones; give one such as [%sa]." % (where, found["region"]))
    for zone in found["zones"]:
        if not isinstance(zone, str) or not ZONE.fullmatch(zone) or not zone.startswith(found["region"]):
            raise ClusterError(
                "%s: zone %s is not one of region %s; give its name, such as %sa." % (where, zone, found["region"], found["region"])
            )
    if len(set(found["zones"])) != len(found["zones"]):
        raise ClusterError("%s names a zone twice; remove one." % where)
    if len(found["zones"]) > 6:
        raise ClusterError("%s has %d zones; give at most 6." % (where, len(found["zones"])))


def _check_versions(found, where):
    for name, version in found["versions"].items():
        one_of(name, VERSIONS, "%s: versions has the part" % where)
        if found["kind"] not in VERSIONS[name]:
            message = "%s: versions.%s is for %s, and this is %s; remove it."
            raise ClusterError(message % (where, name, " and ".join(VERSIONS[name]), found["kind"]))
        if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
            raise ClusterError("%s: versions.%s must be text such as '1.33', not %r; quote it." % (where, name, version))


def _vpc(found, where):
    vpc = filled(found["vpc"], VPC, "%s: vpc" % where)
    if vpc["stack"] and vpc["id"]:
        raise ClusterError("%s: vpc has both stack and id; keep one." % where)
    if vpc["stack"] and not STACK_NAME.fullmatch(vpc["stack"]):
        raise ClusterError("%s: vpc.stack %s is not the name of a stack." % (where, vpc["stack"]))
    if vpc["id"]:
        for field, kind in (("id", "vpc"), ("security_group", "sg")):
            if not re.fullmatch(ID % kind, vpc[field]):
                raise ClusterError("%s: vpc.%s must be an id such as %s-0123456789abcdef0, not %r." % (where, field, kind, vpc[field]))
        if len(vpc["subnets"]) != len(found["zones"]):
            raise ClusterError("%s: vpc.subnets must have one private subnet for each of the %d zones." % (where, len(found["zones"])))
        for each in vpc["subnets"]:
            if not re.fullmatch(ID % "subnet", str(each)):
                raise ClusterError("%s: vpc.subnets has %s, which is not the id of a subnet." % (where, each))
        vpc["storage_security_group"] = vpc["storage_security_group"] or vpc["security_group"]
    elif vpc["subnets"] or vpc["security_group"]:
        raise ClusterError("%s: vpc.subnets and vpc.security_group are of an existing VPC; add vpc.id, or remove them." % where)
    own = [each for each in ("cidr", "nat", "endpoints") if vpc[each] != VPC[each][1]]
    if own and (vpc["stack"] or vpc["id"]):
        raise ClusterError(
            "%s: vpc.%s is of a new VPC, and vpc.%s names one; remove one." % (where, own[0], "id" if vpc["id"] else "stack")
        )
    one_of(vpc["nat"], ("one", "zone", "none"), "%s: vpc.nat" % where)
    try:
        network = ipaddress.IPv4Network(vpc["cidr"])
    except ValueError as error:
        raise ClusterError("%s: vpc.cidr %s is not a network (%s)." % (where, vpc["cidr"], error)) from error
    if not 16 <= network.prefixlen <= 20 or not any(network.subnet_of(each) for each in PRIVATE):
        raise ClusterError("%s: vpc.cidr %s must be a private IPv4 network of /16 to /20." % (where, vpc["cidr"]))
    if vpc["nat"] == "none" and not vpc["endpoints"] and not (vpc["stack"] or vpc["id"]):
        raise ClusterError("%s: vpc has neither nat nor endpoints, so that nodes would not reach AWS; set one." % where)
    return vpc


def _storage(found, where):
    storage = filled(found["storage"], STORAGE, "%s: storage" % where)
    bucket = storage["bucket"]
    if bucket and (not BUCKET.fullmatch(bucket) or ".." in bucket):
        raise ClusterError(
            "%s: storage.bucket %s is no name of a bucket; use 3 to 63 lower-case letters, digits, dots and dashes." % (where, bucket)
        )
    for name, fields in (("lustre", LUSTRE), ("openzfs", OPENZFS)):
        if not storage[name]:
            continue
        storage[name] = filled(storage[name], fields, "%s: storage.%s" % (where, name))
        if storage[name]["throughput"] not in THROUGHPUTS[name]:
            known = ", ".join(str(each) for each in THROUGHPUTS[name])
            raise ClusterError("%s: storage.%s.throughput must be one of %s, not %d." % (where, name, known, storage[name]["throughput"]))
    lustre = storage["lustre"]
    if lustre and (lustre["gib"] < 1200 or (lustre["gib"] > 1200 and lustre["gib"] % 2400)):
        raise ClusterError("%s: storage.lustre.gib must be 1200 or a multiple of 2400, not %d." % (where, lustre["gib"]))
    if lustre and lustre["repository"] and not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/.*)?", lustre["repository"]):
        raise ClusterError("%s: storage.lustre.repository must be s3://BUCKET/PREFIX, not %s." % (where, lustre["repository"]))
    if storage["openzfs"] and storage["openzfs"]["gib"] < 64:
        raise ClusterError("%s: storage.openzfs.gib must be at least 64, not %d." % (where, storage["openzfs"]["gib"]))
    return storage


def _accounting(found, where):
    """Slurm's accounting: `managed` on PCS, a database with its user and the ARN of its secret on ParallelCluster."""
    kind, accounting = found["kind"], found["accounting"]
    if found["os"]:
        one_of(found["os"], SYSTEMS, "%s: os" % where)
        if kind != "parallelcluster":
            raise ClusterError("%s: os is for parallelcluster, and this is %s; remove it." % (where, kind))
    if not accounting:
        return {}
    if kind not in ("parallelcluster", "pcs"):
        raise ClusterError("%s: accounting is for parallelcluster and pcs, and this is %s; remove it." % (where, kind))
    accounting = filled(accounting, ACCOUNTING, "%s: accounting" % where)
    database = ("uri", "user", "secret")
    if kind == "pcs" and (not accounting["managed"] or any(accounting[each] for each in (*database, "database"))):
        raise ClusterError("%s: PCS keeps the accounting database itself; write accounting: {managed: true}." % where)
    if kind == "parallelcluster":
        missing = [each for each in database if not accounting[each]]
        if accounting["managed"] or missing:
            message = "%s: ParallelCluster needs uri, user and secret of a MySQL database in accounting; %s."
            raise ClusterError(message % (where, "add %s" % missing[0] if missing else "remove managed"))
        if not re.fullmatch(r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:.+", accounting["secret"]):
            raise ClusterError("%s: accounting.secret must be the ARN of a secret, not %s." % (where, accounting["secret"]))
    return accounting


def _group(group, found, where):
    name = group.get("name", "without a name") if isinstance(group, dict) else "without a name"
    what = "%s: node group %s" % (where, name)
    group = filled(group, NODES, what)
    if not NAME.fullmatch(group["name"]):
        raise ClusterError("%s: the name must be 1 to 20 lower-case letters, digits or dashes and begin with a letter." % what)
    one_of(group["role"], ROLES, "%s: role" % what)
    one_of(group["market"], MARKETS, "%s: market" % what)
    # The catalogue has types with accelerators; EC2 itself knows whether another one exists, and preflight asks it.
    if group["type"].startswith("ml."):
        raise ClusterError("%s: type %s is SageMaker's name; write %s." % (what, group["type"], group["type"][3:]))
    if not re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", group["type"]):
        raise ClusterError("%s: type %r is not an instance type such as p5.48xlarge." % (what, group["type"]))
    have = accelerated(group["type"])
    group["min"] = group["count"] if group["min"] is None else group["min"]
    group["max"] = max(group["count"], group["min"]) if group["max"] is None else group["max"]
    if not 0 <= group["min"] <= group["max"] or not group["min"] <= group["count"] <= group["max"]:
        raise ClusterError("%s: min %d, count %d and max %d must be in this order." % (what, group["min"], group["count"], group["max"]))
    if not group["max"]:
        raise ClusterError("%s has no nodes; set count or max." % what)
    if not 8 <= group["disk"] <= 16384:
        raise ClusterError("%s: disk must be 8 to 16384 GiB, not %d." % (what, group["disk"]))
    _check_market(group, have, found, what)
    if group["placement_group"] is None:
        group["placement_group"] = _placed(have, group)
    return group


def accelerated(name):
    """The catalogue's entry of a type, None for a type without accelerators. Raises ClusterError for one that it misses or refuses."""
    if catalogue.described(name) or re.match(r"(p|g|trn|gr|inf|dl)\d", name):
        try:
            return catalogue.instance_type(name)
        except catalogue.CatalogueError as error:
            raise ClusterError(str(error)) from error
    return None


def started_by_slurm(cluster, group):
    """Whether Slurm starts and ends the nodes of a group, by the programs of cloud_nodes.yml."""
    return cluster["kind"] == "ec2" and group["max"] > group["count"]


def slurm_secret(name):
    """The secret from which those nodes of a cluster take what they need to join Slurm."""
    return "%s-slurm" % name


def _check_market(group, have, found, what):
    market, reservation = group["market"], group["reservation"]
    bought = market in ("reservation", "capacity-block")
    hyperpod = found["kind"].startswith("hyperpod")
    if have and market != "reservation" and market not in have["markets"]:
        raise ClusterError("%s: %s is not sold as %s; its markets are %s." % (what, group["type"], market, ", ".join(have["markets"])))
    if hyperpod:
        if market in ("reservation", "capacity-block") and not TRAINING_PLAN.fullmatch(reservation):
            message = "%s: HyperPod takes no reservation and no block of EC2; give the ARN of a training plan as its reservation, not %r."
            raise ClusterError(message % (what, reservation))
    elif bought and not RESERVATION.fullmatch(reservation):
        raise ClusterError(
            "%s: market %s needs the id of its reservation such as cr-0123456789abcdef0, not %r." % (what, market, reservation)
        )
    if reservation and not bought:
        raise ClusterError("%s has a reservation and the market %s; set market to reservation or capacity-block." % (what, market))


def _check_readers(found, where):
    """Refuse a value that nobody would read."""
    kind, setup = found["kind"], found["setup"]
    for field, given, kinds in (
        ("key_pair", found["key_pair"], KEY_PAIR_KINDS),
        ("setup.collection", setup["collection"], BOOT_KINDS),
        ("setup.variables", setup["variables"], BOOT_KINDS),
        ("setup.repair: false", not setup["repair"], REPAIR_KINDS),
    ):
        if given and kind not in kinds:
            raise ClusterError("%s: %s is for %s, and this is %s; remove it." % (where, field, ", ".join(kinds), kind))
    if kind == "batch" and found["storage"]["openzfs"]:
        raise ClusterError("%s: storage.openzfs is for home folders, which jobs of Batch have not; remove it, or take lustre." % where)
    for group in found["nodes"]:
        if kind == "batch" and group["min"] != group["count"]:
            raise ClusterError(
                "%s: node group %s has min %d, and Batch begins with none; remove min." % (where, group["name"], group["min"])
            )
        if kind in REPAIR_KINDS and group["placement_group"] != _placed(accelerated(group["type"]), group):
            message = "%s: node group %s has placement_group, which %s decides itself; remove it."
            raise ClusterError(message % (where, group["name"], kind))


def _placed(have, group):
    """Whether a group has a placement group unless it says otherwise. A reservation or a block has a place of its own; a placement group
    beside it would find no capacity."""
    return bool(have and have["efa"]) and group["market"] in ("on-demand", "spot")


def _check_kind(found, where):
    """Refuse what one kind cannot do."""
    kind = found["kind"]
    for group in found["nodes"]:
        if group["role"] != "compute" and group["role"] not in OTHER_ROLES.get(kind, ()):
            raise ClusterError(
                "%s: node group %s has the role %s, which %s does not take; remove it." % (where, group["name"], group["role"], kind)
            )
        if not group["managed"] and kind != "eks":
            raise ClusterError("%s: node group %s has managed, which only eks takes; remove it." % (where, group["name"]))
        if kind == "batch" and group["market"] == "spot":
            message = "%s: node group %s is spot, and Batch runs multi-node jobs on other markets only; change its market."
            raise ClusterError(message % (where, group["name"]))
        if kind == "ec2" and group["min"] != group["count"]:
            raise ClusterError(
                "%s: node group %s has min %d, and plain EC2 has count nodes; remove min." % (where, group["name"], group["min"])
            )
    controllers = [each["name"] for each in found["nodes"] if each["role"] == "controller"]
    for group in found["nodes"]:
        if started_by_slurm(found, group) and (group["count"] or group["role"] != "compute" or not controllers):
            message = (
                "%s: node group %s has max %d, with which Slurm starts its nodes; that takes count 0, the role compute and a group of the "
                "role controller."
            )
            raise ClusterError(message % (where, group["name"], group["max"]))
    if kind in ("parallelcluster", "hyperpod-slurm") and len(controllers) != 1:
        raise ClusterError("%s needs one node group of the role controller and has %d." % (where, len(controllers)))
    if not any(each["role"] == "compute" for each in found["nodes"]):
        raise ClusterError("%s has no node group of the role compute; add one." % where)
    if kind == "ec2" and not found["image"]:
        raise ClusterError("%s has no image; give the AMI that packer build made." % where)
    if kind in ("eks", "hyperpod-eks") and len(found["zones"]) < 2:
        raise ClusterError("%s: the control plane of EKS needs subnets in two zones; add a zone." % where)
    if kind == "hyperpod-slurm" and not found["storage"]["bucket"]:
        raise ClusterError("%s has no storage.bucket, from which HyperPod's nodes take their scripts; add one." % where)
