# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The template of AWS Batch for one instance type: compute environment, queue, multi-node and single-node job definitions."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws.template import (
    allow,
    att,
    equals,
    given,
    imported,
    interfaces,
    launch_interfaces,
    metadata,
    number,
    output,
    ref,
    resource,
    retained,
    role,
    root_disk,
    sub,
    tags,
    template,
    text,
    when,
    yes_no,
)
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

# The reference's image of nccl-tests, by a version instead of latest.
IMAGE = "public.ecr.aws/hpc-cloud/nccl-tests:cuda12.8.1-efa1.42.0-ofiv1.16.0-ncclv2.27.5-1-testsv2.16.4"
TEST = "/opt/nccl-tests/build/all_reduce_perf -b 8 -e 16G -f 2 -g 1 -c 1 -n 100"
# AWS publishes the image for Trainium under a parameter; Batch has no image type for it.
NEURON_IMAGE = "{{resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2023/neuron/recommended/image_id}}"
PLACEHOLDER = "muster: no key yet"
# Runs the command once on all nodes of a multi-node job by Open MPI. Each node has one rank for each of its accelerators. Workers tell
# the main node their address by ssh; nobody waits longer than MUSTER_WAIT seconds. Batch ends the workers with the main node.
START_MPI = r"""
set -euo pipefail
fail() { echo "muster: $*" >&2; exit 69; }
nodes=${AWS_BATCH_JOB_NUM_NODES:-1} node=${AWS_BATCH_JOB_NODE_INDEX:-0} port=${MUSTER_SSH_PORT:-2222}
ranks=$((nodes * MUSTER_PROCS_PER_NODE)) until=$(($(date +%s) + ${MUSTER_WAIT:-900})) hosts=/tmp/muster-hosts
late() { [ "$(date +%s)" -ge "$until" ]; }
own=$(hostname -i) own=${own%% *}
run() { exec mpirun --allow-run-as-root -np "$ranks" "$@" bash -c "$MUSTER_COMMAND"; }
if [ "$nodes" = 1 ]; then run --host "$own:$ranks"; fi
case ${MUSTER_SSH_KEY:-} in
*"PRIVATE KEY"*) ;;
*) fail "the secret of the stack holds no private key; store one by: aws secretsmanager put-secret-value" ;;
esac
home=$(getent passwd "$(id -u)" | cut -d: -f6)
install -d -m 0700 "$home/.ssh"
(umask 077 && printf '%s\n' "$MUSTER_SSH_KEY" >"$home/.ssh/muster")
unset MUSTER_SSH_KEY
ssh-keygen -y -P '' -f "$home/.ssh/muster" >"$home/.ssh/muster.pub" || fail "the key in the secret of the stack has a passphrase"
cat "$home/.ssh/muster.pub" >>"$home/.ssh/authorized_keys"
chmod 0600 "$home/.ssh/authorized_keys"
{
  printf '%s\n' 'Host *' ' StrictHostKeyChecking no' ' UserKnownHostsFile /dev/null' ' LogLevel ERROR' ' ConnectTimeout 5'
  echo " Port $port"
  echo " IdentityFile $home/.ssh/muster"
} >"$home/.ssh/config"
mkdir -p /run/sshd "$hosts"
ssh-keygen -A >/dev/null
"$(command -v sshd)" -p "$port" -o PasswordAuthentication=no -o PermitRootLogin=prohibit-password -o StrictModes=yes
if [ "$node" != "${AWS_BATCH_JOB_MAIN_NODE_INDEX:-0}" ]; then
  main=${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-}
  [ -n "$main" ] || fail "node $node does not know the address of the main node"
  # shellcheck disable=SC2029
  until ssh "$main" "mkdir -p $hosts && echo $own >$hosts/$node"; do
    if late; then fail "node $node could not reach the main node $main on port $port"; fi
    sleep 2
  done
  echo "muster: node $node ($own) waits for the main node"
  exec sleep infinity
fi
echo "$own" >"$hosts/$node"
while [ "$(find "$hosts" -type f -size +0 | wc -l)" -lt "$nodes" ]; do
  if late; then
    for index in $(seq 0 $((nodes - 1))); do [ -s "$hosts/$index" ] || missing="${missing:-} $index"; done
    fail "node${missing:-} did not report within ${MUSTER_WAIT:-900} s"
  fi
  sleep 1
done
for index in $(seq 0 $((nodes - 1))); do echo "$(cat "$hosts/$index") slots=$MUSTER_PROCS_PER_NODE"; done >"$hosts.txt"
exports=$(env | sed -nE 's/^((NCCL|FI|OMPI_MCA|LD_LIBRARY|CUDA|NEURON)_[A-Z0-9_]+)=.*/-x \1/p' | tr '\n' ' ')
# shellcheck disable=SC2086
run --hostfile "$hosts.txt" --mca plm_rsh_agent ssh --mca btl_tcp_if_exclude lo,docker0,ecs-bridge $exports
""".lstrip()


def build(name, *, count=2, image=IMAGE, command=TEST, environment=None, vpc_stack="aws-batch-vpc", group=None):
    """The template for an instance type of the catalogue.

    count: nodes of a multi-node job unless it says otherwise; environment: variables of the job by name; group: what a cluster document's
    node group says of defaults (disk, placement_group, max), or None. Raises catalogue.CatalogueError.
    """
    have = catalogue.instance_type(name)
    group = group or {}
    parameters = {
        "VPCStackParameter": text("Name of the stack of the VPC, whose subnet and security group are imported", vpc_stack),
        "SubnetId": text("Subnet instead of the VPC stack's", ""),
        "SecurityGroupId": text("Security group instead of the VPC stack's", ""),
        "AMI": text("AMI of the nodes; empty for that of Batch", "", AllowedPattern="|ami-[0-9a-f]{8,17}"),
        "CapacityReservationId": text("On-demand capacity reservation", "", AllowedPattern="|cr-[0-9a-f]+"),
        "CapacityReservationResourceGroup": text("ARN of a resource group of reservations", ""),
        "CapacityBlockId": text("Capacity block, by the id of its reservation", "", AllowedPattern="|cr-[0-9a-f]+"),
        "EC2KeyPair": text("Key pair for ssh to the nodes; empty for none", ""),
        "CreatePlacementGroup": yes_no("Whether nodes are placed near each other; a reservation has a place of its own", "false"),
        "MaxVCpus": number("Most vCPUs at a time; a node has %d" % have["vcpus"], have["vcpus"] * group.get("max", 16), have["vcpus"]),
        "RootVolumeGiB": number("Disk of each node, for images and scratch data", group.get("disk", 200), 30),
        "S3BucketName": text("Bucket that jobs read and write; empty for none", ""),
    }
    conditions = {
        "HasSubnet": given("SubnetId"),
        "HasGroup": given("SecurityGroupId"),
        "HasAMI": given("AMI"),
        "HasKey": given("EC2KeyPair"),
        "HasBucket": given("S3BucketName"),
        "HasReservation": given("CapacityReservationId"),
        "HasReservationGroup": given("CapacityReservationResourceGroup"),
        "HasBlock": given("CapacityBlockId"),
        "HasCapacity": {"Fn::Or": [{"Condition": each} for each in ("HasReservation", "HasReservationGroup", "HasBlock")]},
        "Placed": equals("CreatePlacementGroup", "true"),
    }
    rules = {"OneCapacity": {"Assertions": [{"Assert": _at_most_one(), "AssertDescription": "Give one reservation, group or block"}]}}
    target = when(
        "HasReservationGroup",
        {"CapacityReservationResourceGroupArn": ref("CapacityReservationResourceGroup")},
        {"CapacityReservationId": when("HasBlock", ref("CapacityBlockId"), ref("CapacityReservationId"))},
    )
    groups = [when("HasGroup", ref("SecurityGroupId"), imported("VPCStackParameter", "SecurityGroup"))]
    runs = {"image": image, "command": command, "environment": environment or {}}
    neuron = have["accelerator"] == "neuron"
    launch = {
        "NetworkInterfaces": interfaces(name, groups) if have["efa"] else launch_interfaces(name, groups),
        "KeyName": when("HasKey", ref("EC2KeyPair")),
        "MetadataOptions": metadata(),
        "BlockDeviceMappings": [root_disk("/dev/xvda", ref("RootVolumeGiB"))],
        "CapacityReservationSpecification": when("HasCapacity", {"CapacityReservationTarget": target}),
        "InstanceMarketOptions": when("HasBlock", {"MarketType": "capacity-block"}),
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags(sub("${AWS::StackName}"))} for kind in ("instance", "volume")],
    }
    image_of_nodes = {
        "ImageType": "ECS_AL2023" if neuron else "ECS_AL2023_NVIDIA",
        "ImageIdOverride": when("HasAMI", ref("AMI"), NEURON_IMAGE if neuron else None),
    }
    resources = {
        "PlacementGroup": resource("AWS::EC2::PlacementGroup", {"Strategy": "cluster"}, Condition="Placed"),
        "LaunchTemplate": resource("AWS::EC2::LaunchTemplate", {"LaunchTemplateData": launch}),
        "InstanceRole": role(
            "ec2.amazonaws.com", managed=["service-role/AmazonEC2ContainerServiceforEC2Role", "AmazonSSMManagedInstanceCore"]
        ),
        "InstanceProfile": resource("AWS::IAM::InstanceProfile", {"Roles": [ref("InstanceRole")]}),
        "ComputeEnvironment": resource(
            "AWS::Batch::ComputeEnvironment",
            {
                "Type": "MANAGED",
                "State": "ENABLED",
                "ReplaceComputeEnvironment": False,
                "ComputeResources": {
                    "Type": "EC2",
                    "AllocationStrategy": "BEST_FIT_PROGRESSIVE",
                    "MinvCpus": 0,
                    "MaxvCpus": ref("MaxVCpus"),
                    "InstanceTypes": [name],
                    "InstanceRole": att("InstanceProfile", "Arn"),
                    "Subnets": [when("HasSubnet", ref("SubnetId"), imported("VPCStackParameter", "PrivateSubnet"))],
                    "PlacementGroup": when("Placed", ref("PlacementGroup")),
                    "LaunchTemplate": {
                        "LaunchTemplateId": ref("LaunchTemplate"),
                        "Version": att("LaunchTemplate", "LatestVersionNumber"),
                    },
                    "Ec2Configuration": [image_of_nodes],
                    "UpdateToLatestImageVersion": True,
                    "Tags": {"Name": sub("${AWS::StackName}")},
                },
                "UpdatePolicy": {"TerminateJobsOnUpdate": False, "JobExecutionTimeoutMinutes": 4320},
            },
        ),
        "JobQueue": resource(
            "AWS::Batch::JobQueue",
            {
                "JobQueueName": sub("${AWS::StackName}"),
                "Priority": 1,
                "State": "ENABLED",
                "ComputeEnvironmentOrder": [{"Order": 1, "ComputeEnvironment": ref("ComputeEnvironment")}],
            },
        ),
        **_secret(),
        "JobRole": role(
            "ecs-tasks.amazonaws.com",
            [when("HasBucket", _bucket(), _nothing())],
        ),
        "ExecutionRole": role(
            "ecs-tasks.amazonaws.com",
            [
                allow(["secretsmanager:GetSecretValue"], ref("SSHKeySecret")),
                allow(["kms:Decrypt"], att("SSHKeyEncryption", "Arn")),
            ],
            managed=["service-role/AmazonECSTaskExecutionRolePolicy"],
        ),
        "Images": retained(
            "AWS::ECR::Repository",
            {
                "ImageScanningConfiguration": {"ScanOnPush": True},
                "EncryptionConfiguration": {"EncryptionType": "KMS"},
                "ImageTagMutability": "IMMUTABLE",
            },
        ),
        "MultiInstance": _job("multinode", "multi", have, count=count, **runs),
        "SingleInstance": _job("container", "single", have, count=1, **runs),
    }
    outputs = {
        "ECRRepository": output(ref("Images"), "Repository of the jobs' images"),
        "ECRRepositoryUrl": output(att("Images", "RepositoryUri"), "Its address"),
        "JobDefinitionMultiInstance": output(ref("MultiInstance"), "Definition of jobs on several nodes"),
        "JobDefinitionSingleInstance": output(ref("SingleInstance"), "Definition of jobs on one node"),
        "DistributedDeepLearningJQ": output(ref("JobQueue"), "The queue"),
        "SSHKeySecretArn": output(ref("SSHKeySecret"), "The secret with the key by which nodes of a job reach each other"),
        "JobRoleArn": output(att("JobRole", "Arn"), "The role of jobs"),
        "ExecutionRoleArn": output(att("ExecutionRole", "Arn"), "The role that starts jobs"),
    }
    about = "AWS Batch for multi-node jobs on %s with %d EFA interfaces" % (name, have["efa_cards"])
    return template(about, parameters, resources, outputs, conditions=conditions, rules=rules)


def _at_most_one():
    empty = [{"Fn::Equals": [ref(each), ""]} for each in ("CapacityReservationId", "CapacityReservationResourceGroup", "CapacityBlockId")]
    return {"Fn::Or": [{"Fn::And": [empty[0], empty[1]]}, {"Fn::And": [empty[0], empty[2]]}, {"Fn::And": [empty[1], empty[2]]}]}


def _bucket():
    name = "arn:${AWS::Partition}:s3:::${S3BucketName}"
    return allow(["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"], [sub(name), sub(name + "/*")])


def _nothing():
    """A statement that allows nothing, because a policy must have one."""
    return {"Effect": "Deny", "Action": "s3:*", "Resource": sub("arn:${AWS::Partition}:s3:::${AWS::StackName}-none")}


def _secret():
    key_policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": sub("arn:${AWS::Partition}:iam::${AWS::AccountId}:root")},
                "Action": "kms:*",
                "Resource": "*",
            }
        ],
    }
    return {
        "SSHKeyEncryption": resource(
            "AWS::KMS::Key",
            {"Description": sub("Key pair of jobs of ${AWS::StackName}"), "EnableKeyRotation": True, "KeyPolicy": key_policy},
        ),
        "SSHKeyEncryptionAlias": resource(
            "AWS::KMS::Alias", {"AliasName": sub("alias/${AWS::StackName}-ssh-key"), "TargetKeyId": ref("SSHKeyEncryption")}
        ),
        "SSHKeySecret": resource(
            "AWS::SecretsManager::Secret",
            {
                "Name": sub("${AWS::StackName}-ssh-key"),
                "Description": "Private key by which nodes of a multi-node job reach each other",
                "KmsKeyId": ref("SSHKeyEncryption"),
                "SecretString": PLACEHOLDER,
            },
        ),
    }


def _job(kind, name, have, *, count, image, command, environment):
    """A job definition; the container runs START_MPI, which runs the command on each accelerator of each node."""
    needs = catalogue.batch_resources(have["name"])
    variables = {"MUSTER_PROCS_PER_NODE": str(have["gpus"]), "MUSTER_COMMAND": command, **environment}
    container = {
        "Image": image,
        "Command": ["bash", "-c", START_MPI],
        "Environment": [{"Name": key, "Value": value} for key, value in sorted(variables.items())],
        "Secrets": [{"Name": "MUSTER_SSH_KEY", "ValueFrom": ref("SSHKeySecret")}],
        "ExecutionRoleArn": att("ExecutionRole", "Arn"),
        "JobRoleArn": att("JobRole", "Arn"),
        "LogConfiguration": {"LogDriver": "awslogs"},
        "ResourceRequirements": _capital(needs["resourceRequirements"]),
        "LinuxParameters": _capital(needs["linuxParameters"]),
        "Ulimits": _capital(needs["ulimits"]),
    }
    properties = {
        "Type": kind,
        "JobDefinitionName": sub("${AWS::StackName}-%s" % name),
        "PlatformCapabilities": ["EC2"],
        "RetryStrategy": {
            "Attempts": 3,
            # A lost host is worth another try, a failed command is not.
            "EvaluateOnExit": [{"OnStatusReason": "Host EC2*", "Action": "RETRY"}, {"OnReason": "*", "Action": "EXIT"}],
        },
        "Timeout": {"AttemptDurationSeconds": 86400},
        "PropagateTags": True,
    }
    if kind == "multinode":
        del properties["RetryStrategy"]["EvaluateOnExit"], properties["PlatformCapabilities"], properties["PropagateTags"]
        properties["RetryStrategy"]["Attempts"] = 1
        ranges = [{"TargetNodes": "0:", "Container": {**container, "InstanceType": have["name"]}}]
        properties["NodeProperties"] = {"MainNode": 0, "NumNodes": count, "NodeRangeProperties": ranges}
    else:
        properties["ContainerProperties"] = container
    return resource("AWS::Batch::JobDefinition", properties)


def _capital(value):
    """Keys of Batch's API as CloudFormation writes them."""
    if isinstance(value, dict):
        return {key[0].upper() + key[1:]: _capital(each) for key, each in value.items()}
    return [_capital(each) for each in value] if isinstance(value, list) else value
