# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An EC2 instance as a host of Ansible: its names, its groups in Muster, and its variables."""

from __future__ import annotations

import datetime
import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.instances import Ec2Error
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError, instance_type

ROLE_TAG = "muster:role"
ROLES = ("controller", "login", "compute", "storage", "monitoring")
GONE = ("shutting-down", "terminated")
ALIVE = ("running", "pending", "stopping", "stopped")

# Filters of DescribeInstances that may name a host. Most are the attribute with hyphens.
PLAIN_NAMES = frozenset(
    [
        "architecture",
        "client-token",
        "hypervisor",
        "image-id",
        "instance-id",
        "instance-lifecycle",
        "instance-type",
        "kernel-id",
        "key-name",
        "launch-time",
        "platform",
        "private-dns-name",
        "private-ip-address",
        "ramdisk-id",
        "root-device-name",
        "root-device-type",
        "source-dest-check",
        "spot-instance-request-id",
        "subnet-id",
        "virtualization-type",
        "vpc-id",
        "owner-id",
        "requester-id",
        "reservation-id",
    ]
)
OTHER_NAMES = {
    "affinity": "placement.affinity",
    "availability-zone": "placement.availability_zone",
    "dns-name": "public_dns_name",
    "host-id": "placement.host_id",
    "iam-instance-profile.arn": "iam_instance_profile.arn",
    "instance-state-code": "state.code",
    "instance-state-name": "state.name",
    "instance.group-id": "security_groups.group_id",
    "instance.group-name": "security_groups.group_name",
    "ip-address": "public_ip_address",
    "launch-index": "ami_launch_index",
    "monitoring-state": "monitoring.state",
    "placement-group-name": "placement.group_name",
    "product-code": "product_codes.product_code_id",
    "product-code.type": "product_codes.product_code_type",
    "reason": "state_transition_reason",
    "state-reason-code": "state_reason.code",
    "state-reason-message": "state_reason.message",
    "tenancy": "placement.tenancy",
    "tag": "tags",
    "tag-key": "tags",
    "tag-value": "tags",
    "block-device-mapping.device-name": "block_device_mappings.device_name",
    "block-device-mapping.volume-id": "block_device_mappings.ebs.volume_id",
    "block-device-mapping.status": "block_device_mappings.ebs.status",
    "network-interface.addresses.private-ip-address": "network_interfaces.private_ip_address",
    "network-interface.addresses.association.public-ip": "network_interfaces.private_ip_addresses.association.public_ip",
    "network-interface.association.public-ip": "network_interfaces.association.public_ip",
    "network-interface.attachment.attachment-id": "network_interfaces.attachment.attachment_id",
    "network-interface.attachment.instance-id": "instance_id",
    "network-interface.attachment.instance-owner-id": "owner_id",
    "network-interface.availability-zone": "placement.availability_zone",
    "network-interface.description": "network_interfaces.description",
    "network-interface.group-id": "network_interfaces.groups.group_id",
    "network-interface.group-name": "network_interfaces.groups.group_name",
    "network-interface.ipv6-addresses.ipv6-address": "network_interfaces.ipv6_addresses.ipv6_address",
    "network-interface.mac-address": "network_interfaces.mac_address",
    "network-interface.network-interface-id": "network_interfaces.network_interface_id",
    "network-interface.owner-id": "network_interfaces.owner_id",
    "network-interface.private-dns-name": "network_interfaces.private_dns_name",
    "network-interface.status": "network_interfaces.status",
    "network-interface.subnet-id": "network_interfaces.subnet_id",
    "network-interface.vpc-id": "network_interfaces.vpc_id",
}
DEFAULT_NAMES = ("dns-name", "private-dns-name")


def filter_list(filters):
    """Filters in the form of EC2, with the states of existing instances unless the filters name states."""
    out = []
    for name, values in filters.items():
        each_of = values if isinstance(values, list) else [values]
        if not each_of or any(isinstance(each, (dict, list)) or each is None for each in each_of):
            raise Ec2Error("filter %s must have text or a list of texts, not %r." % (name, values))
        out.append({"Name": str(name), "Values": [str(each).lower() if isinstance(each, bool) else str(each) for each in each_of]})
    if "instance-state-name" not in filters:
        out.append({"Name": "instance-state-name", "Values": list(ALIVE)})
    return out


def check_names(preferences):
    """Refuse entries of hostnames that can never name a host."""
    for each in preferences:
        if isinstance(each, dict):
            if "name" not in each:
                raise Ec2Error("an entry of hostnames has no name, only %s." % ", ".join(sorted(map(str, each))))
            check_names([each["name"]] + ([each["prefix"]] if each.get("prefix") else []))
        elif not isinstance(each, str):
            raise Ec2Error("hostnames has %r, which is neither text nor a dictionary." % (each,))
        elif each.startswith("tag:"):
            for tag in each[4:].split("|", 1)[0].strip().split(","):
                if not tag or tag.startswith("=") or tag.count("=") > 1:
                    raise Ec2Error("hostnames has %s, which is not a tag; write tag:NAME or tag:NAME=VALUE." % each)


def _dig(value, path):
    for step in path:
        if value is None:
            return None
        if isinstance(value, list):
            value = [found for found in (_dig(each, [step]) for each in value) if found]
            value = value[0] if len(value) == 1 else value
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def _one_name(instance, preference, engine):
    """The name or names that an entry of hostnames gives: text, a list of texts, or nothing."""
    preference, _bar, filters = preference.partition("|")
    if filters:
        preference = preference.rstrip()
    if preference.startswith("tag:"):
        tags, found = instance["tags"], []
        wanted = preference[4:].split(",")
        for each in wanted:
            name, equals, value = each.partition("=")
            if equals and tags.get(name) == value:
                found.append("%s_%s" % (name, value))
            elif not equals and tags.get(each):
                found.append(tags[each])
        name = found[0] if len(wanted) == 1 and found else found
    elif preference in PLAIN_NAMES:
        name = instance.get(preference.replace("-", "_"))
    elif preference in OTHER_NAMES:
        name = _dig(instance, OTHER_NAMES[preference].split("."))
    else:
        name = preference
    return engine(name, filters) if filters and name else name


def _first(name):
    if isinstance(name, list):
        return name[0] if name else None
    return next(iter(name), None) if isinstance(name, dict) else name


def host_names(instance, preferences, engine, everyone=False):
    """The names of an instance by the option hostnames; only the preferred one unless `everyone`.

    engine: evaluates the Jinja filters after a | for a value.
    """
    names: list = []
    for preference in preferences or DEFAULT_NAMES:
        if isinstance(preference, dict):
            inner = host_names(instance, [preference["name"]], engine, everyone)
            before = host_names(instance, [preference["prefix"]], engine, everyone) if preference.get("prefix") else []
            found = [before[0] + preference.get("separator", "_") + inner[0]] if before and inner else inner
        else:
            name = _one_name(instance, preference, engine)
            found = name if everyone and isinstance(name, list) else [_first(name)]
            found = [str(each) for each in found if each]
        names += found
        if names and not everyone:
            break
    return names


def distinct(named):
    """[(name, instance)], with the instance's id appended to names that several instances have; and these names.

    None of them keeps the bare name, because after the next launch it could belong to another instance.
    """
    ids: dict = {}
    for name, instance in named:
        ids.setdefault(name, set()).add(instance["instance_id"])
    twice = {name for name, owners in ids.items() if len(owners) > 1}
    return [("%s_%s" % (name, each["instance_id"]) if name in twice else name, each) for name, each in named], sorted(twice)


def known_type(name):
    """The catalogue's entry of a type, or None."""
    try:
        return instance_type(name)
    except CatalogueError:
        return None


def launch_of(instance):
    """The variable muster_launch: how a live instance was requested. Its interfaces are one text: Ansible visits each value of each host.

    {market, availability_zones, subnets, placement_group, interfaces ("0.0 interface, 0.1 efa-only": CARD.DEVICE TYPE), threads_per_core}
    """
    cards = [({"network_card_index": 0, **each.get("attachment", {})}, each) for each in instance.get("network_interfaces", ())]
    places = sorted((at["network_card_index"], at.get("device_index", 0), each.get("interface_type", "interface")) for at, each in cards)
    out = {
        "market": instance.get("instance_lifecycle", "on-demand"),
        "availability_zones": [instance["placement"]["availability_zone"]],
        "subnets": [instance["subnet_id"]] if instance.get("subnet_id") else [],
        "placement_group": instance["placement"].get("group_name", ""),
        "interfaces": ", ".join("%d.%d %s" % place for place in places),
        "threads_per_core": instance.get("cpu_options", {}).get("threads_per_core"),
    }
    # A stopped or older instance lacks some; without its interfaces nothing is known of them.
    return {key: value for key, value in out.items() if value or key == "placement_group"}


def launch_from(variable):
    """What launch_of() says, as the stack rules take it (rules_launch.py): interfaces [{card, device, type}]."""
    if "interfaces" not in variable:
        return dict(variable)
    interfaces = []
    for text in variable["interfaces"].split(","):
        found = re.fullmatch(r"(\d+)\.(\d+) (\S+)", text.strip())
        if not found:
            message = "muster_launch has the interfaces %r; write them as 0.0 interface, 0.1 efa-only: CARD.DEVICE TYPE."
            raise Ec2Error(message % (variable["interfaces"],))
        interfaces.append({"card": int(found[1]), "device": int(found[2]), "type": found[3]})
    return {**variable, "interfaces": interfaces}


def type_groups(kind, accelerator, efa):
    """The groups, not yet made safe, that a host has by its type. accelerator: nvidia, neuron or None; efa: whether it has EFA."""
    names = ["muster_type_" + kind]
    if accelerator:
        names.append("muster_gpu" if accelerator == "nvidia" else "muster_neuron")
    if efa:
        names.append("muster_efa")
    return names


def stop_at(end, kind):
    """When EC2 begins to terminate the instances of a type in a capacity block that ends at `end` (a datetime with a zone); text in UTC.

    That is 30 minutes before the end, and an hour for the types of UltraServers, which are sold only in capacity blocks.
    """
    minutes = 60 if (known_type(kind) or {}).get("markets") == ["capacity-block"] else 30
    return (end - datetime.timedelta(minutes=minutes)).astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def roles_of(instance):
    """The roles in the tag muster:role of an instance."""
    text = instance["tags"].get(ROLE_TAG, "")
    roles = [each for each in re.split(r"[\s,]+", text) if each]
    wrong = [each for each in roles if each not in ROLES]
    if wrong:
        raise Ec2Error(
            "instance %s has the tag %s=%s; %s is none of %s." % (instance["instance_id"], ROLE_TAG, text, wrong[0], ", ".join(ROLES))
        )
    return roles


# Tags of AWS ParallelCluster and PCS, and the beginning of the group names that their values give.
CLUSTER_TAGS = {
    "parallelcluster:cluster-name": "muster_pcluster_",
    "parallelcluster:node-type": "muster_pcluster_node_",
    "parallelcluster:queue-name": "muster_queue_",
    "parallelcluster:compute-resource-name": "muster_resource_",
    "aws:pcs:cluster-id": "muster_pcs_",
    "aws:pcs:compute-node-group-id": "muster_pcs_group_",
}


def has_efa(instance):
    """Whether the instance has an EFA interface; its type may have more."""
    return any(card.get("interface_type") in ("efa", "efa-only") for card in instance.get("network_interfaces", ()))


def fleet_groups(instance, accelerators):
    """The names, not yet made safe, of an instance's groups in Muster. accelerators: {type: nvidia, neuron or None}."""
    tags, placement, kind = instance["tags"], instance["placement"], instance["instance_type"]
    names = type_groups(kind, accelerators.get(kind), has_efa(instance))
    names.append("muster_az_" + placement["availability_zone"])
    names.append("muster_capacity_" + instance.get("instance_lifecycle", "on-demand"))
    if placement.get("group_name"):
        names.append("muster_placement_" + placement["group_name"])
    if ROLE_TAG in tags:
        names += ["muster_" + role for role in roles_of(instance)]
    for tag, prefix in CLUSTER_TAGS.items():
        if tags.get(tag):
            names.append(prefix + tags[tag])
    names += ["muster_layer%d_%s" % item for item in enumerate(instance.get("muster_network_nodes", ()), 1)]
    if instance.get("muster_ultraserver"):
        names.append("muster_ultraserver_" + instance["muster_ultraserver"])
    return names


def connection_variables(kind, instance, profile=""):
    """How Ansible reaches an instance: `ssh` by its private address, `ssm` by ssh through Session Manager, which needs no open port."""
    if kind == "ssh" and instance.get("private_ip_address"):
        return {"ansible_host": instance["private_ip_address"]}
    if kind == "ssm":
        proxy = "aws ssm start-session --target %%h --document-name AWS-StartSSHSession --parameters portNumber=%%p --region %s%s"
        region = instance["placement"]["region"]
        more = " --profile %s" % profile if profile else ""
        return {"ansible_host": instance["instance_id"], "ansible_ssh_common_args": '-o ProxyCommand="%s"' % (proxy % (region, more))}
    return {}
