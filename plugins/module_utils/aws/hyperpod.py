# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a cluster of SageMaker HyperPod, with Slurm or EKS: the request create-cluster, and the lifecycle scripts of its nodes."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.aws import eks, plan
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import ClusterError, accelerated
from ansible_collections.muster.fleet.plugins.module_utils.aws.template import allow, att, output, role, sub, template
from ansible_collections.muster.fleet.plugins.module_utils.aws.values import partition

# Types of the catalogue that HyperPod does not offer; a test compares them with the model of its API.
NOT_OFFERED = (
    *("g4dn.metal", "g5g.xlarge", "g5g.2xlarge", "g5g.4xlarge", "g5g.8xlarge", "g5g.16xlarge", "g5g.metal"),
    *("p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p3dn.24xlarge", "trn1.2xlarge", "trn2u.48xlarge"),
)
NODE_TYPES = {"controller": "Controller", "login": "Login", "compute": "Compute"}
MOST_GROUPS, MOST_NODES = 100, 6758
ON_CREATE = r"""#!/bin/bash
# HyperPod runs this as root on each new node, in the folder of its lifecycle scripts. It finds the node's group by its address, runs
# Muster as that group asks, and starts the daemons of Slurm where HyperPod has configured them.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
resources=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}
log=${MUSTER_PROVISIONING_LOG:-/var/log/provision/provisioning.log}
mkdir -p "$(dirname "$log")"
say() { echo "muster: $1" | tee -a "$log"; }
find_group() { # FILE CONTROLLER-GROUP ADDRESS...: the name of the group with the node, and the addresses of the controllers
  python3 - "$@" <<'PYTHON'
import json, sys

path, controller, *own = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    groups = json.load(file)["InstanceGroups"]
addresses = {group["Name"]: [each["CustomerIpAddress"] for each in group["Instances"]] for group in groups}
print(next((name for name, found in addresses.items() if set(found) & set(own)), ""))
print(",".join(addresses.get(controller, [])))
PYTHON
}
read -ra addresses <<<"${MUSTER_ADDRESSES:-$(hostname -I)}"
found=$(find_group "$resources" '@CONTROLLER@' "${addresses[@]}") || {
  say "$resources could not be read"
  exit 1
}
{ read -r group; read -r controllers; } <<<"$found"
if [ -z "${group:-}" ]; then
  say "no group of $resources has one of the addresses ${addresses[*]}"
  exit 1
fi
say "group $group${controllers:+, controller $controllers}"
MUSTER_CONSOLE=/dev/null bash "./boot-$group.sh" >>"$log" 2>&1
code=$?
if [ "$code" != 0 ]; then
  say "boot-$group.sh ended with $code; see $log and /var/log/muster-boot.log"
  exit "$code"
fi
@SLURM@
say ready
"""
SLURM = r"""if [ "$group" = '@CONTROLLER@' ]; then
  systemctl enable --now slurmctld || {
    say "slurmctld could not be started"
    exit 1
  }
else
  # The unit of HyperPod's image has a place for options of slurmd; after a run of this script it has those of an earlier controller.
  unit=${MUSTER_SLURMD_UNIT:-/etc/systemd/system/slurmd.service}
  sed -i -E "s#[$]SLURMD_OPTIONS|--conf-server [^ ]*#--conf-server $controllers#" "$unit"
  if [ -z "$controllers" ] || ! grep -qF -- "--conf-server $controllers" "$unit"; then
    say "$unit does not start slurmd with the controllers '$controllers' of $resources"
    exit 1
  fi
  if ! systemctl daemon-reload || ! systemctl enable --now slurmd; then
    say "slurmd could not be started"
    exit 1
  fi
fi"""


def files(cluster, values):
    """{file name: document or text} for `aws sagemaker create-cluster` and the folder of lifecycle scripts."""
    _check(cluster)
    found: dict[str, Any] = {"create-cluster.json": request(cluster, values), "on_create.sh": on_create(cluster)}
    if cluster["kind"] == "hyperpod-slurm":
        found["provisioning_parameters.json"] = provisioning_parameters(cluster, values)
    else:
        found["eksctl.yaml"] = eks.configuration(cluster, values)
        found.update(eks.claims(cluster, values))
    return found


def stack(cluster):
    """{name, template, parameters} of the role of the nodes."""
    statements = [
        allow(["ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"], "*"),
        allow(["ec2:DescribeNetworkInterfaces", "ec2:DescribeVpcs", "ec2:DescribeDhcpOptions", "ec2:DescribeSubnets"], "*"),
        allow(["ec2:DescribeSecurityGroups", "ec2:DetachNetworkInterface"], "*"),
    ]
    if cluster["kind"] == "hyperpod-eks":
        statements.append(allow(["ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses", "ec2:AttachNetworkInterface"], "*"))
        statements.append(allow(["ecr:BatchGetImage", "ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer"], "*"))
        statements.append(allow(["eks-auth:AssumeRoleForPodIdentity"], "*"))
    bucket = "arn:${AWS::Partition}:s3:::%s" % cluster["storage"]["bucket"]
    statements.append(allow(["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"], [sub(bucket), sub(bucket + "/*")]))
    made = role("sagemaker.amazonaws.com", statements, managed=["AmazonSageMakerClusterInstanceRolePolicy"])
    outputs = {"ExecutionRoleArn": output(att("ExecutionRole", "Arn"), "The role of the nodes")}
    about = "Role of the nodes of Muster cluster %s on HyperPod" % cluster["name"]
    found = template(about, {}, {"ExecutionRole": made}, outputs)
    return {"name": plan.stack_name(cluster, "hyperpod"), "template": found, "parameters": {}}


def request(cluster, values):
    """The request create-cluster."""
    subnets, group = values.subnets(), values.security_group()
    found: dict[str, Any] = {
        "ClusterName": cluster["name"],
        "InstanceGroups": [_group(cluster, each, values) for each in cluster["nodes"]],
        "VpcConfig": {"SecurityGroupIds": [group], "Subnets": subnets},
        "NodeRecovery": "Automatic" if cluster["setup"]["repair"] else "None",
        "Tags": [{"Key": "muster:cluster", "Value": cluster["name"]}],
    }
    if cluster["kind"] == "hyperpod-eks":
        where = (partition(cluster["region"]), cluster["region"], values.account(), cluster["name"])
        found["Orchestrator"] = {"Eks": {"ClusterArn": "arn:%s:eks:%s:%s:cluster/%s" % where}}
        if any(each["market"] == "spot" or each["min"] != each["count"] for each in cluster["nodes"]):
            found["NodeProvisioningMode"] = "Continuous"
    return found


def provisioning_parameters(cluster, values):
    """provisioning_parameters.json, by which HyperPod configures Slurm; its Lustre is for lifecycle scripts of the AWS reference too."""
    by_role = {role: [each["name"] for each in cluster["nodes"] if each["role"] == role] for role in NODE_TYPES}
    found: dict[str, Any] = {"version": "1.0.0", "workload_manager": "slurm", "controller_group": by_role["controller"][0]}
    if by_role["login"]:
        found["login_group"] = by_role["login"][0]
    found["worker_groups"] = [{"instance_group_name": each, "partition_name": each} for each in by_role["compute"]]
    if cluster["storage"]["lustre"]:
        found.update({"fsx_dns_name": values.lustre("DNSname"), "fsx_mountname": values.lustre("Mountname")})
    if cluster["storage"]["openzfs"]:
        found["fsx_openzfs_dns_name"] = values.openzfs("FSxOpenZFSFilesystemDNSname")
    return found


def on_create(cluster):
    """The script that HyperPod runs on each new node."""
    slurm = cluster["kind"] == "hyperpod-slurm"
    controller = next((each["name"] for each in cluster["nodes"] if each["role"] == "controller"), "")
    return ON_CREATE.replace("@SLURM@\n", SLURM + "\n" if slurm else "").replace("@CONTROLLER@", controller)


def folder(cluster):
    """Where create.sh copies the lifecycle scripts."""
    return "s3://%s/muster/%s/lifecycle" % (cluster["storage"]["bucket"], cluster["name"])


def _check(cluster):
    where = "Cluster %s" % cluster["name"]
    if not cluster["storage"]["bucket"]:
        raise ClusterError("%s has no storage.bucket, from which HyperPod's nodes take their scripts; add one." % where)
    if len(cluster["nodes"]) > MOST_GROUPS:
        raise ClusterError("%s has %d node groups, and HyperPod takes %d." % (where, len(cluster["nodes"]), MOST_GROUPS))
    logins = [each["name"] for each in cluster["nodes"] if each["role"] == "login"]
    if len(logins) > 1:
        raise ClusterError("%s has the login groups %s, and HyperPod takes one; remove the others." % (where, " and ".join(logins)))
    if cluster["kind"] == "hyperpod-eks":
        eks.check(cluster)
    for group in cluster["nodes"]:
        _check_group(cluster, group, "%s: node group %s" % (where, group["name"]))


def _check_group(cluster, group, what):
    slurm = cluster["kind"] == "hyperpod-slurm"
    if group["type"] in NOT_OFFERED:
        raise ClusterError("%s: HyperPod does not offer %s; take another type." % (what, group["type"]))
    if group["count"] > MOST_NODES:
        raise ClusterError("%s has %d nodes, and a group of HyperPod takes %d; make two groups." % (what, group["count"], MOST_NODES))
    if group["max"] != group["count"]:
        raise ClusterError("%s has max %d, and HyperPod has count nodes; remove max." % (what, group["max"]))
    if slurm and group["min"] != group["count"]:
        raise ClusterError("%s has min %d, and HyperPod with Slurm has count nodes; remove min." % (what, group["min"]))
    if slurm and group["market"] == "spot":
        raise ClusterError("%s: HyperPod has spot nodes with EKS only; change its market, or take hyperpod-eks." % what)
    if group["role"] == "controller" and group["count"] != 1:
        raise ClusterError("%s has %d nodes, and HyperPod takes one controller; set count to 1." % (what, group["count"]))


def _group(cluster, group, values):
    have = accelerated(group["type"])
    storage: list[dict[str, Any]] = [{"EbsVolumeConfig": {"VolumeSizeInGB": group["disk"]}}]
    if cluster["kind"] == "hyperpod-slurm" and cluster["storage"]["lustre"]:
        names = {"DnsName": values.lustre("DNSname"), "MountName": values.lustre("Mountname"), "MountPath": "/fsx"}
        storage.append({"FsxLustreConfig": names})
    if cluster["kind"] == "hyperpod-slurm" and cluster["storage"]["openzfs"]:
        storage.append({"FsxOpenZfsConfig": {"DnsName": values.openzfs("FSxOpenZFSFilesystemDNSname"), "MountPath": "/home"}})
    found: dict[str, Any] = {
        "InstanceGroupName": group["name"],
        "InstanceType": "ml." + group["type"],
        "InstanceCount": group["count"],
        "LifeCycleConfig": {"SourceS3Uri": folder(cluster), "OnCreate": "on_create.sh"},
        "ExecutionRole": values.output("EXECUTION_ROLE", plan.stack_name(cluster, "hyperpod"), "ExecutionRoleArn"),
        "InstanceStorageConfigs": storage,
    }
    if have:
        found["ThreadsPerCore"] = have["threads_per_core"]
    if cluster["image"] and (have or cluster["kind"] == "hyperpod-slurm"):
        found["ImageId"] = cluster["image"]
    if group["reservation"]:
        found["TrainingPlanArn"] = group["reservation"]
    if group["market"] == "spot":
        found["CapacityRequirements"] = {"Spot": {}}
    # Nodes with EFA are in one zone, and so are those of a training plan.
    if len(cluster["zones"]) > 1 and ((have and have["efa"]) or group["reservation"]):
        found["OverrideVpcConfig"] = {"SecurityGroupIds": [values.security_group()], "Subnets": values.subnets()[:1]}
    if cluster["kind"] == "hyperpod-eks":
        _kubernetes(group, have, found)
    return found


def _kubernetes(group, have, found):
    """What Kubernetes and HyperPod's checks say of a group."""
    if group["min"] != group["count"]:
        found["MinInstanceCount"] = group["min"]
    kubernetes: dict[str, Any] = {"Labels": {"muster.fleet/group": group["name"]}}
    if have:
        kubernetes["Taints"] = [{"Key": eks.RESOURCE[have["accelerator"]], "Value": "true", "Effect": "NoSchedule"}]
    if have and have["efa"]:
        found["OnStartDeepHealthChecks"] = ["InstanceStress", "InstanceConnectivity"]
    found["KubernetesConfig"] = kubernetes
