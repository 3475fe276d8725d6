# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes of a SageMaker HyperPod cluster as hosts of Ansible: {name, variables, groups}."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import known_type, type_groups


def cluster_id(arn):
    """The id at the end of a cluster's ARN."""
    return arn.rpartition("/")[2]


def ssm_target(arn, group, instance):
    """What Session Manager calls a node of HyperPod."""
    return "sagemaker-cluster:%s_%s-%s" % (cluster_id(arn), group, instance)


def orchestrator(cluster):
    """eks or slurm."""
    return "eks" if (cluster.get("Orchestrator") or {}).get("Eks") else "slurm"


def host_of(cluster, node, region, profile=""):
    """One node. node: NodeDetails of DescribeClusterNode, or the summary of ListClusterNodes, which lacks the addresses."""
    group, instance, kind = node["InstanceGroupName"], node["InstanceId"], node.get("InstanceType", "")
    plain = kind[3:] if kind.startswith("ml.") else kind
    have = known_type(plain) or {}
    status = (node.get("InstanceStatus") or {}).get("Status", "")
    target = ssm_target(cluster["ClusterArn"], group, instance)
    proxy = "aws ssm start-session --target %s --document-name AWS-StartSSHSession --parameters portNumber=%%p --region %s%s"
    more = " --profile %s" % profile if profile else ""
    variables = {
        "ansible_host": instance,
        "ansible_ssh_common_args": '-o ProxyCommand="%s"' % (proxy % (target, region, more)),
        "instance_id": instance,
        "instance_type": plain,
        "hyperpod_cluster": cluster["ClusterName"],
        "hyperpod_instance_group": group,
        "hyperpod_status": status,
        "hyperpod_status_message": (node.get("InstanceStatus") or {}).get("Message", ""),
        "hyperpod_orchestrator": orchestrator(cluster),
        "hyperpod_ssm_target": target,
        "private_ip_address": node.get("PrivatePrimaryIp", ""),
        "private_dns_name": node.get("PrivateDnsHostname", ""),
        "muster_ultraserver": (node.get("UltraServerInfo") or {}).get("Id", ""),
        "hyperpod_lifecycle_script": (node.get("LifeCycleConfig") or {}).get("OnCreate", ""),
    }
    groups = ["hyperpod_" + cluster["ClusterName"], "hyperpod_group_" + group, "hyperpod_status_" + status.lower()]
    groups += ["hyperpod_" + orchestrator(cluster)]
    # SageMaker says which nodes share NVLink, and nothing of the network nodes above them.
    groups += ["muster_ultraserver_" + variables["muster_ultraserver"]] if variables["muster_ultraserver"] else []
    zone = (node.get("Placement") or {}).get("AvailabilityZone")
    groups += ["muster_az_" + zone] if zone else []
    groups += type_groups(plain, have.get("accelerator"), bool(have.get("efa"))) if plain else []
    return {
        "name": "%s-%s" % (group, instance),
        "variables": {key: value for key, value in variables.items() if value != ""},
        "groups": groups,
    }
