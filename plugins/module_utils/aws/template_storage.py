# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of storage: a bucket, and FSx for Lustre and OpenZFS. All data outlives its stack."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws.template import (
    att,
    equals,
    exported,
    given,
    imported,
    number,
    ref,
    resource,
    retained,
    sub,
    tags,
    template,
    text,
    when,
    yes_no,
)

# User data of Batch's nodes, around the host of Lustre and its name for mounts. ECS starts jobs when this has ended.
MOUNT_LUSTRE = (
    """MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="==muster=="

--==muster==
Content-Type: text/x-shellscript; charset="us-ascii"
MIME-Version: 1.0

#!/bin/bash
mkdir -p /fsx
for _ in {1..10}; do
  dnf install -y lustre-client && mount -t lustre -o noatime,flock '""",
    "@tcp:/",
    """' /fsx && exit 0
  sleep 10
done
echo "muster: Lustre could not be mounted at /fsx, so this instance takes no jobs and ends" | tee /dev/console
shutdown -h now

--==muster==--
""",
)


def mount_lustre(stack):
    """User data that mounts the Lustre of a stack at /fsx, on an image of Amazon Linux 2023 for Batch."""
    begin, middle, end = MOUNT_LUSTRE
    host, name = ({"Fn::ImportValue": "%s-FSxLustreFilesystem%s" % (stack, each)} for each in ("DNSname", "Mountname"))
    return {"Fn::Base64": {"Fn::Join": ["", [begin, host, middle, name, end]]}}


def bucket():
    """0.private-bucket.yaml"""
    parameters = {
        "S3BucketName": text("Name of the bucket", AllowedPattern="[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
        "KmsKeyArn": text("KMS key of the bucket; empty for S3's own keys", ""),
        "NoncurrentDays": number("Days that replaced and deleted objects are kept", 30, 1),
    }
    encryption = when("HasKey", {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": ref("KmsKeyArn")}, {"SSEAlgorithm": "AES256"})
    properties = {
        "BucketName": ref("S3BucketName"),
        "BucketEncryption": {
            "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": encryption, "BucketKeyEnabled": True}]
        },
        "VersioningConfiguration": {"Status": "Enabled"},
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        "LifecycleConfiguration": {
            "Rules": [
                {
                    "Id": "unfinished-and-replaced",
                    "Status": "Enabled",
                    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
                    "NoncurrentVersionExpiration": {"NoncurrentDays": ref("NoncurrentDays")},
                }
            ]
        },
    }
    tls_only = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [att("Bucket", "Arn"), sub("${Bucket.Arn}/*")],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }
    resources = {
        "Bucket": retained("AWS::S3::Bucket", properties),
        "BucketPolicy": resource("AWS::S3::BucketPolicy", {"Bucket": ref("Bucket"), "PolicyDocument": tls_only}),
    }
    outputs = {
        "S3BucketName": exported(ref("Bucket"), "S3BucketName", "The bucket"),
        "S3BucketArn": exported(att("Bucket", "Arn"), "S3BucketArn", "Its ARN"),
    }
    about = "Private bucket: encrypted, versioned, by TLS only; it stays when the stack goes"
    return template(about, parameters, resources, outputs, conditions={"HasKey": given("KmsKeyArn")})


def file_systems():
    """fsx.yaml: FSx for Lustre and, on request, for OpenZFS, in the network of another stack."""
    parameters = {
        "VPCStackParameter": text("Name of the stack of the VPC, whose subnet and security groups are imported"),
        "SubnetId": text("Subnet instead of the VPC stack's", ""),
        "SecurityGroupId": text("Security group of file systems instead of the VPC stack's", ""),
        "ClientSecurityGroupId": text("Security group of the nodes instead of the VPC stack's", ""),
        "CreateLustre": yes_no("Whether there is a file system of Lustre", "true"),
        "Capacity": number("Its size in GiB: 1200 or a multiple of 2400", 1200, 1200),
        "PerUnitStorageThroughput": {**number("MB/s for each TiB", 250), "AllowedValues": [125, 250, 500, 1000]},
        "Compression": text("Compression of data", "LZ4", AllowedValues=["LZ4", "NONE"]),
        "LustreVersion": text("Version of Lustre", "2.15", AllowedValues=["2.15", "2.12"]),
        "EfaEnabled": yes_no("Whether clients reach it through EFA; it then has metadata of its own", "false"),
        "DataRepository": text("s3://BUCKET/PREFIX whose objects appear below /data; empty for none", ""),
        "CreateOpenZFS": yes_no("Whether there is a file system of OpenZFS for home folders", "false"),
        "HomeCapacity": number("Its size in GiB", 512, 64),
        "HomeThroughput": {**number("Its MB/s", 160), "AllowedValues": [160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240]},
    }
    conditions = {
        "Lustre": equals("CreateLustre", "true"),
        "OpenZFS": equals("CreateOpenZFS", "true"),
        "Efa": equals("EfaEnabled", "true"),
        "Repository": {"Fn::And": [{"Condition": "Lustre"}, given("DataRepository")]},
        "OwnSubnet": given("SubnetId"),
        "OwnGroup": given("SecurityGroupId"),
        "OwnClients": given("ClientSecurityGroupId"),
    }
    subnet = when("OwnSubnet", ref("SubnetId"), imported("VPCStackParameter", "PrivateSubnet"))
    group = when("OwnGroup", ref("SecurityGroupId"), imported("VPCStackParameter", "FSXSecurityGroup"))
    clients = when("OwnClients", ref("ClientSecurityGroupId"), imported("VPCStackParameter", "SecurityGroup"))
    resources = {
        "LustreFileSystem": retained(
            "AWS::FSx::FileSystem",
            {
                "FileSystemType": "LUSTRE",
                "FileSystemTypeVersion": ref("LustreVersion"),
                "StorageType": "SSD",
                "StorageCapacity": ref("Capacity"),
                "SubnetIds": [subnet],
                # EFA between clients and servers needs a group that lets all pass between its members.
                "SecurityGroupIds": [group, when("Efa", clients)],
                "LustreConfiguration": {
                    "DeploymentType": "PERSISTENT_2",
                    "PerUnitStorageThroughput": ref("PerUnitStorageThroughput"),
                    "DataCompressionType": ref("Compression"),
                    "EfaEnabled": when("Efa", True),
                    "MetadataConfiguration": when("Efa", {"Mode": "AUTOMATIC"}),
                },
                "Tags": tags(sub("${AWS::StackName} lustre")),
            },
            Condition="Lustre",
        ),
        "LustreRepository": resource(
            "AWS::FSx::DataRepositoryAssociation",
            {
                "FileSystemId": ref("LustreFileSystem"),
                "FileSystemPath": "/data",
                "DataRepositoryPath": ref("DataRepository"),
                "BatchImportMetaDataOnCreate": True,
                "S3": {
                    "AutoImportPolicy": {"Events": ["NEW", "CHANGED", "DELETED"]},
                    "AutoExportPolicy": {"Events": ["NEW", "CHANGED", "DELETED"]},
                },
            },
            Condition="Repository",
        ),
        "OpenZFSFileSystem": retained(
            "AWS::FSx::FileSystem",
            {
                "FileSystemType": "OPENZFS",
                "StorageType": "SSD",
                "StorageCapacity": ref("HomeCapacity"),
                "SubnetIds": [subnet],
                "SecurityGroupIds": [group],
                "OpenZFSConfiguration": {
                    "DeploymentType": "SINGLE_AZ_HA_2",
                    "ThroughputCapacity": ref("HomeThroughput"),
                    "AutomaticBackupRetentionDays": 7,
                    "RootVolumeConfiguration": {
                        "DataCompressionType": "LZ4",
                        "NfsExports": [{"ClientConfigurations": [{"Clients": "*", "Options": ["rw", "crossmnt", "no_root_squash"]}]}],
                    },
                },
                "Tags": tags(sub("${AWS::StackName} home")),
            },
            Condition="OpenZFS",
        ),
    }
    lustre, home = "LustreFileSystem", "OpenZFSFileSystem"
    outputs = {
        "FSxLustreFilesystemId": exported(ref(lustre), "FSxLustreFilesystemId", "The file system of Lustre"),
        "FSxLustreFilesystemMountname": exported(att(lustre, "LustreMountName"), "FSxLustreFilesystemMountname", "Its name for mounts"),
        "FSxLustreFilesystemDNSname": exported(
            sub("${LustreFileSystem}.fsx.${AWS::Region}.${AWS::URLSuffix}"), "FSxLustreFilesystemDNSname", "Its host for mounts"
        ),
        "FSxOpenZFSFilesystemId": exported(ref(home), "FSxOpenZFSFilesystemId", "The file system of OpenZFS"),
        "FSxOpenZFSFilesystemDNSname": exported(
            sub("${OpenZFSFileSystem}.fsx.${AWS::Region}.${AWS::URLSuffix}"), "FSxOpenZFSFilesystemDNSname", "Its host for mounts"
        ),
        "FSxOpenZFSRootVolumeId": exported(att(home, "RootVolumeId"), "FSxOpenZFSRootVolumeId", "Its root volume"),
    }
    for name, each in outputs.items():
        each["Condition"] = "Lustre" if "Lustre" in name else "OpenZFS"
    return template("FSx for Lustre and OpenZFS in the network of a VPC stack", parameters, resources, outputs, conditions=conditions)
