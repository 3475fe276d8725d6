# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What each type of resource calls, by the API of the same cloud. A type that is not here cannot be in a stack."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from typing import Any

from localcloud.cloudformation.functions import Invalid

Made = tuple[str, dict[str, Any]]


class Scope:
    """Where a resource is made. call(service, action, **wanted) is the API; stack, logical and tags name the resource."""

    def __init__(self, call: Callable, *, stack: str, logical: str, tags: list[dict[str, str]], region: str, account: str) -> None:
        self.call, self.stack, self.logical, self.tags, self.region, self.account = call, stack, logical, tags, region, account

    def name(self, given: Any = None, most: int = 60) -> str:
        """The given name of a resource, or one from its stack and its name there."""
        return given or f"{self.stack}-{self.logical}"[:most]

    def tag(self, kind: str, properties: dict[str, Any]) -> list[dict[str, Any]]:
        """TagSpecifications of EC2."""
        tags = [*self.tags, *properties.get("Tags", [])]
        return [{"ResourceType": kind, "Tags": tags}] if tags else []


class Kind:
    """A type: create gives (Ref, attributes); update changes it in place and returns False for what only a new one can have."""

    def __init__(self, create: Callable, delete: Callable, update: Callable | None = None, there: Callable | None = None) -> None:
        self.create, self.delete, self.update, self.there = create, delete, update, there


def tagged(service: str, action: str, *, kind: str, path: str, drop: tuple[str, ...] = (), **attributes: str) -> Callable:
    """A call of EC2 whose parameters are the properties. path, attributes: where the answer has the Ref and the attributes."""

    def create(scope: Scope, properties: dict[str, Any]) -> Made:
        wanted = {key: value for key, value in properties.items() if key not in ("Tags", *drop)}
        answer = scope.call(service, action, **wanted, TagSpecifications=scope.tag(kind, properties))
        found = {name: at(answer, where) for name, where in attributes.items()}
        return at(answer, path), found

    return create


def at(answer: dict[str, Any], path: str) -> Any:
    value: Any = answer
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else value[part]
    return value


def gone(service: str, action: str, parameter: str, many: bool = False) -> Callable:
    def delete(scope: Scope, made: str, _properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
        scope.call(service, action, **{parameter: [made] if many else made})

    return delete


def nothing(*_: Any) -> None:
    """Goes with another resource."""


def vpc(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.call("ec2", "create_vpc", CidrBlock=properties["CidrBlock"], TagSpecifications=scope.tag("vpc", properties))["Vpc"][
        "VpcId"
    ]
    for attribute in ("EnableDnsSupport", "EnableDnsHostnames"):
        if attribute in properties:
            scope.call("ec2", "modify_vpc_attribute", VpcId=made, **{attribute: {"Value": properties[attribute]}})
    return made, {"CidrBlock": properties["CidrBlock"], "VpcId": made}


def gateway_attachment(scope: Scope, properties: dict[str, Any]) -> Made:
    scope.call("ec2", "attach_internet_gateway", **properties)
    return f"IGW|{properties['VpcId']}", {}


def detach_gateway(scope: Scope, _made: str, properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    scope.call("ec2", "detach_internet_gateway", **properties)


def route(scope: Scope, properties: dict[str, Any]) -> Made:
    scope.call("ec2", "create_route", **properties)
    return f"{properties['RouteTableId']}|{properties['DestinationCidrBlock']}", {}


def delete_route(scope: Scope, _made: str, properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    wanted = {key: properties[key] for key in ("RouteTableId", "DestinationCidrBlock")}
    scope.call("ec2", "delete_route", **wanted)


def endpoint(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {key: value for key, value in properties.items() if key != "PolicyDocument"}
    answer = scope.call("ec2", "create_vpc_endpoint", **wanted, PolicyDocument=json.dumps(properties.get("PolicyDocument", {})))
    return answer["VpcEndpoint"]["VpcEndpointId"], {}


def permission(rule: dict[str, Any], other: str) -> dict[str, Any]:
    """A rule of CloudFormation as IpPermissions; other: SourceSecurityGroupId, or DestinationSecurityGroupId of a way out."""
    found = {key: rule[key] for key in ("IpProtocol", "FromPort", "ToPort") if key in rule}
    about = {"Description": rule["Description"]} if "Description" in rule else {}
    if "CidrIp" in rule:
        found["IpRanges"] = [{"CidrIp": rule["CidrIp"], **about}]
    if other in rule:
        found["UserIdGroupPairs"] = [{"GroupId": rule[other], **about}]
    return found


def security_group(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {"GroupName": scope.name(properties.get("GroupName")), "Description": properties["GroupDescription"]}
    answer = scope.call(
        "ec2", "create_security_group", **wanted, VpcId=properties["VpcId"], TagSpecifications=scope.tag("security-group", properties)
    )
    made = answer["GroupId"]
    for each in properties.get("SecurityGroupIngress", []):
        scope.call("ec2", "authorize_security_group_ingress", GroupId=made, IpPermissions=[permission(each, "SourceSecurityGroupId")])
    return made, {"GroupId": made, "VpcId": properties["VpcId"]}


def group_rule(way: str) -> Kind:
    other = "SourceSecurityGroupId" if way == "ingress" else "DestinationSecurityGroupId"

    def create(scope: Scope, properties: dict[str, Any]) -> Made:
        permissions = [permission(properties, other)]
        scope.call("ec2", f"authorize_security_group_{way}", GroupId=properties["GroupId"], IpPermissions=permissions)
        return f"{scope.stack}-{scope.logical}", {}

    def delete(scope: Scope, _made: str, properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
        permissions = [permission(properties, other)]
        scope.call("ec2", f"revoke_security_group_{way}", GroupId=properties["GroupId"], IpPermissions=permissions)

    return Kind(create, delete)


def flow_log(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {key: value for key, value in properties.items() if key not in ("ResourceId", "Tags")}
    answer = scope.call("ec2", "create_flow_logs", **wanted, ResourceIds=[properties["ResourceId"]])
    if answer.get("Unsuccessful"):
        raise Invalid(answer["Unsuccessful"][0]["Error"]["Message"])
    return answer["FlowLogIds"][0], {}


def placement_group(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name()
    scope.call("ec2", "create_placement_group", GroupName=made, Strategy=properties.get("Strategy", "cluster"))
    return made, {"GroupName": made}


def launch_template(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {
        "LaunchTemplateName": scope.name(properties.get("LaunchTemplateName")),
        "LaunchTemplateData": properties["LaunchTemplateData"],
    }
    found = scope.call("ec2", "create_launch_template", **wanted)["LaunchTemplate"]
    return found["LaunchTemplateId"], {
        "LatestVersionNumber": "1",
        "DefaultVersionNumber": "1",
        "LaunchTemplateId": found["LaunchTemplateId"],
    }


def new_version(scope: Scope, made: str, _old: dict[str, Any], new: dict[str, Any], attributes: dict[str, Any]) -> bool:
    answer = scope.call("ec2", "create_launch_template_version", LaunchTemplateId=made, LaunchTemplateData=new["LaunchTemplateData"])
    attributes["LatestVersionNumber"] = str(answer["LaunchTemplateVersion"]["VersionNumber"])
    return True


def instance(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {key: value for key, value in properties.items() if key != "Tags"}
    answer = scope.call("ec2", "run_instances", MinCount=1, MaxCount=1, **wanted, TagSpecifications=scope.tag("instance", properties))
    found = answer["Instances"][0]
    return found["InstanceId"], {"PrivateIp": found.get("PrivateIpAddress", ""), "AvailabilityZone": found["Placement"]["AvailabilityZone"]}


def instance_there(scope: Scope, made: str) -> bool:
    found = scope.call("ec2", "describe_instances", InstanceIds=[made])["Reservations"]
    return any(each["State"]["Name"] not in ("terminated", "shutting-down") for one in found for each in one["Instances"])


def log_group(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("LogGroupName"))
    scope.call("logs", "create_log_group", logGroupName=made)
    if "RetentionInDays" in properties:
        scope.call("logs", "put_retention_policy", logGroupName=made, retentionInDays=properties["RetentionInDays"])
    return made, {"Arn": f"arn:aws:logs:{scope.region}:{scope.account}:log-group:{made}:*"}


def role(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("RoleName"))
    wanted = {"RoleName": made, "AssumeRolePolicyDocument": json.dumps(properties["AssumeRolePolicyDocument"])}
    arn = scope.call("iam", "create_role", **wanted)["Role"]["Arn"]
    for each in properties.get("Policies", []):
        document = json.dumps(each["PolicyDocument"])
        scope.call("iam", "put_role_policy", RoleName=made, PolicyName=each["PolicyName"], PolicyDocument=document)
    return made, {"Arn": arn}


def role_policies(scope: Scope, made: str, old: dict[str, Any], new: dict[str, Any], _attributes: dict[str, Any]) -> bool:
    for each in new.get("Policies", []):
        document = json.dumps(each["PolicyDocument"])
        scope.call("iam", "put_role_policy", RoleName=made, PolicyName=each["PolicyName"], PolicyDocument=document)
    return {**old, "Policies": None, "ManagedPolicyArns": None} == {**new, "Policies": None, "ManagedPolicyArns": None}


def delete_role(scope: Scope, made: str, _properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    for each in scope.call("iam", "list_role_policies", RoleName=made)["PolicyNames"]:
        scope.call("iam", "delete_role_policy", RoleName=made, PolicyName=each)
    scope.call("iam", "delete_role", RoleName=made)


def instance_profile(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("InstanceProfileName"))
    arn = scope.call("iam", "create_instance_profile", InstanceProfileName=made)["InstanceProfile"]["Arn"]
    for each in properties["Roles"]:
        scope.call("iam", "add_role_to_instance_profile", InstanceProfileName=made, RoleName=each)
    return made, {"Arn": arn}


def delete_profile(scope: Scope, made: str, properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    for each in properties["Roles"]:
        scope.call("iam", "remove_role_from_instance_profile", InstanceProfileName=made, RoleName=each)
    scope.call("iam", "delete_instance_profile", InstanceProfileName=made)


def bucket(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("BucketName")).lower()
    where = {} if scope.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": scope.region}}
    if made in [each["Name"] for each in scope.call("s3", "list_buckets")["Buckets"]]:
        raise Invalid(f"{made} already exists")
    scope.call("s3", "create_bucket", Bucket=made, **where)
    if scope.tags:
        scope.call("s3", "put_bucket_tagging", Bucket=made, Tagging={"TagSet": scope.tags})
    bucket_settings(scope, made, {}, properties, {})
    return made, {"Arn": f"arn:aws:s3:::{made}"}


def bucket_settings(scope: Scope, made: str, _old: dict[str, Any], new: dict[str, Any], _attributes: dict[str, Any]) -> bool:
    scope.call("s3", "put_bucket_versioning", Bucket=made, VersioningConfiguration=new["VersioningConfiguration"])
    scope.call("s3", "put_public_access_block", Bucket=made, PublicAccessBlockConfiguration=new["PublicAccessBlockConfiguration"])
    rules = [
        {"ApplyServerSideEncryptionByDefault": each["ServerSideEncryptionByDefault"], "BucketKeyEnabled": each["BucketKeyEnabled"]}
        for each in new["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    ]
    scope.call("s3", "put_bucket_encryption", Bucket=made, ServerSideEncryptionConfiguration={"Rules": rules})
    return True


def bucket_policy(scope: Scope, properties: dict[str, Any]) -> Made:
    document = properties["PolicyDocument"]
    # The local cloud has no TLS, and moto would refuse every call by a statement that asks for it.
    rest = [each for each in document["Statement"] if "aws:SecureTransport" not in json.dumps(each.get("Condition", {}))]
    if rest:
        scope.call("s3", "put_bucket_policy", Bucket=properties["Bucket"], Policy=json.dumps({**document, "Statement": rest}))
    return properties["Bucket"], {}


def key(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {"Description": properties.get("Description", ""), "Policy": json.dumps(properties["KeyPolicy"])}
    found = scope.call("kms", "create_key", **wanted)["KeyMetadata"]
    return found["KeyId"], {"Arn": found["Arn"], "KeyId": found["KeyId"]}


def delete_key(scope: Scope, made: str, _properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    scope.call("kms", "schedule_key_deletion", KeyId=made, PendingWindowInDays=30)


def alias(scope: Scope, properties: dict[str, Any]) -> Made:
    scope.call("kms", "create_alias", **properties)
    return properties["AliasName"], {}


def secret(scope: Scope, properties: dict[str, Any]) -> Made:
    arn = scope.call("secretsmanager", "create_secret", **{**properties, "Name": scope.name(properties.get("Name"))})["ARN"]
    return arn, {"Id": arn}


def delete_secret(scope: Scope, made: str, _properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    scope.call("secretsmanager", "delete_secret", SecretId=made, ForceDeleteWithoutRecovery=True)


def repository(scope: Scope, properties: dict[str, Any]) -> Made:
    # Its name is new each time, because one that a former stack left may be there.
    made = (properties.get("RepositoryName") or f"{scope.name()}-{secrets.token_hex(6)}").lower()
    found = scope.call("ecr", "create_repository", repositoryName=made)["repository"]
    return made, {"Arn": found["repositoryArn"], "RepositoryUri": found["repositoryUri"]}


def lowered(value: Any) -> Any:
    """Keys of CloudFormation as the API of Batch writes them; names of variables and tags stay."""
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: each if name == "Tags" else lowered(each) for name, each in value.items()}
    return [lowered(each) for each in value] if isinstance(value, list) else value


def compute_environment(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("ComputeEnvironmentName"))
    resources = lowered(properties["ComputeResources"])
    resources["minvCpus"], resources["maxvCpus"] = resources.pop("minvCpus"), resources.pop("maxvCpus")
    # moto wants what AWS takes from the launch template and from its service-linked role.
    version = {
        "LaunchTemplateId": resources["launchTemplate"]["launchTemplateId"],
        "Versions": [str(resources["launchTemplate"]["version"])],
    }
    data = scope.call("ec2", "describe_launch_template_versions", **version)["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    resources["securityGroupIds"] = sorted({each for one in data["NetworkInterfaces"] for each in one["Groups"]})
    resources.pop("updateToLatestImageVersion", None)
    # The account has one role for all environments. moto writes its name another way than AWS.
    with contextlib.suppress(Invalid):
        scope.call("iam", "create_service_linked_role", AWSServiceName="batch.amazonaws.com")
    role_arn = scope.call("iam", "list_roles", PathPrefix="/aws-service-role/batch.amazonaws.com/")["Roles"][0]["Arn"]
    wanted = {"type": properties["Type"], "state": properties["State"], "serviceRole": role_arn, "computeResources": resources}
    return scope.call("batch", "create_compute_environment", computeEnvironmentName=made, **wanted)["computeEnvironmentArn"], {}


def end_environment(scope: Scope, made: str, _properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    scope.call("batch", "update_compute_environment", computeEnvironment=made, state="DISABLED")
    scope.call("batch", "delete_compute_environment", computeEnvironment=made)


def queue(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = lowered({**properties, "JobQueueName": scope.name(properties.get("JobQueueName"))})
    return scope.call("batch", "create_job_queue", **wanted)["jobQueueArn"], {}


def end_queue(scope: Scope, made: str, _properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    scope.call("batch", "update_job_queue", jobQueue=made, state="DISABLED")
    scope.call("batch", "delete_job_queue", jobQueue=made)


def definition(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = lowered(properties)
    wanted["jobDefinitionName"] = scope.name(properties.get("JobDefinitionName"))
    return scope.call("batch", "register_job_definition", **wanted)["jobDefinitionArn"], {}


def file_system(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {**properties, "Tags": [*scope.tags, *properties.get("Tags", [])]}
    made = scope.call("fsx", "create_file_system", **wanted)["FileSystem"]["FileSystemId"]
    return made, {"LustreMountName": made[3:11], "RootVolumeId": f"fsvol-{made[3:]}", "DNSName": f"{made}.fsx.{scope.region}.amazonaws.com"}


def managed_policy(scope: Scope, properties: dict[str, Any]) -> Made:
    wanted = {"PolicyName": scope.name(properties.get("ManagedPolicyName")), "PolicyDocument": json.dumps(properties["PolicyDocument"])}
    return scope.call("iam", "create_policy", **wanted, Description=properties.get("Description", ""))["Policy"]["Arn"], {}


def new_policy(scope: Scope, made: str, old: dict[str, Any], new: dict[str, Any], _attributes: dict[str, Any]) -> bool:
    if {**old, "PolicyDocument": None} != {**new, "PolicyDocument": None}:
        return False
    [former] = scope.call("iam", "list_policy_versions", PolicyArn=made)["Versions"]
    scope.call("iam", "create_policy_version", PolicyArn=made, PolicyDocument=json.dumps(new["PolicyDocument"]), SetAsDefault=True)
    scope.call("iam", "delete_policy_version", PolicyArn=made, VersionId=former["VersionId"])
    return True


def topic(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("TopicName"))
    return scope.call("sns", "create_topic", Name=made, Tags=[*scope.tags, *properties.get("Tags", [])])["TopicArn"], {"TopicName": made}


def topic_policy(scope: Scope, properties: dict[str, Any]) -> Made:
    for each in properties["Topics"]:
        document = json.dumps(properties["PolicyDocument"])
        scope.call("sns", "set_topic_attributes", TopicArn=each, AttributeName="Policy", AttributeValue=document)
    return scope.name(), {}


def workspace(scope: Scope, properties: dict[str, Any]) -> Made:
    tags = {each["Key"]: each["Value"] for each in [*scope.tags, *properties.get("Tags", [])]}
    found = scope.call("amp", "create_workspace", alias=properties["Alias"], tags=tags)
    wanted = {"workspaceId": found["workspaceId"]}
    try:
        scope.call("amp", "create_alert_manager_definition", **wanted, data=properties["AlertManagerDefinition"].encode())
        endpoint = scope.call("amp", "describe_workspace", **wanted)["workspace"]["prometheusEndpoint"]
    except Invalid:
        scope.call("amp", "delete_workspace", **wanted)
        raise
    return found["arn"], {"Arn": found["arn"], "WorkspaceId": found["workspaceId"], "PrometheusEndpoint": endpoint}


def new_definition(scope: Scope, _made: str, old: dict[str, Any], new: dict[str, Any], attributes: dict[str, Any]) -> bool:
    wanted = {"workspaceId": attributes["WorkspaceId"]}
    scope.call("amp", "put_alert_manager_definition", **wanted, data=new["AlertManagerDefinition"].encode())
    return {**old, "AlertManagerDefinition": None} == {**new, "AlertManagerDefinition": None}


def delete_workspace(scope: Scope, _made: str, _properties: dict[str, Any], attributes: dict[str, Any]) -> None:
    scope.call("amp", "delete_workspace", workspaceId=attributes["WorkspaceId"])


def namespace(properties: dict[str, Any]) -> dict[str, str]:
    """How the API names a namespace of rules."""
    return {"workspaceId": properties["Workspace"].rpartition("/")[2], "name": properties["Name"]}


def rules(scope: Scope, properties: dict[str, Any]) -> Made:
    found = scope.call("amp", "create_rule_groups_namespace", **namespace(properties), data=properties["Data"].encode())
    return found["arn"], {"Arn": found["arn"]}


def new_rules(scope: Scope, _made: str, old: dict[str, Any], new: dict[str, Any], _attributes: dict[str, Any]) -> bool:
    if namespace(old) != namespace(new):
        return False
    scope.call("amp", "put_rule_groups_namespace", **namespace(new), data=new["Data"].encode())
    return True


def delete_rules(scope: Scope, _made: str, properties: dict[str, Any], _attributes: dict[str, Any]) -> None:
    scope.call("amp", "delete_rule_groups_namespace", **namespace(properties))


def alarm(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("AlarmName"))
    scope.call("cloudwatch", "put_metric_alarm", **{**properties, "AlarmName": made})
    return made, {"Arn": f"arn:aws:cloudwatch:{scope.region}:{scope.account}:alarm:{made}"}


def new_alarm(scope: Scope, made: str, old: dict[str, Any], new: dict[str, Any], _attributes: dict[str, Any]) -> bool:
    if old.get("AlarmName") != new.get("AlarmName"):
        return False
    scope.call("cloudwatch", "put_metric_alarm", **{**new, "AlarmName": made})
    return True


def dashboard(scope: Scope, properties: dict[str, Any]) -> Made:
    made = scope.name(properties.get("DashboardName"))
    scope.call("cloudwatch", "put_dashboard", DashboardName=made, DashboardBody=properties["DashboardBody"])
    return made, {}


def new_dashboard(scope: Scope, made: str, old: dict[str, Any], new: dict[str, Any], _attributes: dict[str, Any]) -> bool:
    if old.get("DashboardName") != new.get("DashboardName"):
        return False
    scope.call("cloudwatch", "put_dashboard", DashboardName=made, DashboardBody=new["DashboardBody"])
    return True


TYPES = {
    "AWS::EC2::VPC": Kind(vpc, gone("ec2", "delete_vpc", "VpcId")),
    "AWS::EC2::InternetGateway": Kind(
        tagged("ec2", "create_internet_gateway", kind="internet-gateway", path="InternetGateway.InternetGatewayId"),
        gone("ec2", "delete_internet_gateway", "InternetGatewayId"),
    ),
    "AWS::EC2::VPCGatewayAttachment": Kind(gateway_attachment, detach_gateway),
    "AWS::EC2::Subnet": Kind(
        tagged("ec2", "create_subnet", kind="subnet", path="Subnet.SubnetId", SubnetId="Subnet.SubnetId"),
        gone("ec2", "delete_subnet", "SubnetId"),
    ),
    "AWS::EC2::RouteTable": Kind(
        tagged("ec2", "create_route_table", kind="route-table", path="RouteTable.RouteTableId"),
        gone("ec2", "delete_route_table", "RouteTableId"),
    ),
    "AWS::EC2::Route": Kind(route, delete_route),
    "AWS::EC2::SubnetRouteTableAssociation": Kind(
        lambda scope, properties: (scope.call("ec2", "associate_route_table", **properties)["AssociationId"], {}),
        gone("ec2", "disassociate_route_table", "AssociationId"),
    ),
    "AWS::EC2::EIP": Kind(
        tagged("ec2", "allocate_address", kind="elastic-ip", path="PublicIp", AllocationId="AllocationId"),
        lambda scope, _made, _properties, attributes: scope.call("ec2", "release_address", AllocationId=attributes["AllocationId"]),
    ),
    "AWS::EC2::NatGateway": Kind(
        tagged("ec2", "create_nat_gateway", kind="natgateway", path="NatGateway.NatGatewayId"),
        gone("ec2", "delete_nat_gateway", "NatGatewayId"),
    ),
    "AWS::EC2::VPCEndpoint": Kind(endpoint, gone("ec2", "delete_vpc_endpoints", "VpcEndpointIds", many=True)),
    "AWS::EC2::SecurityGroup": Kind(security_group, gone("ec2", "delete_security_group", "GroupId")),
    "AWS::EC2::SecurityGroupIngress": group_rule("ingress"),
    "AWS::EC2::SecurityGroupEgress": group_rule("egress"),
    "AWS::EC2::FlowLog": Kind(flow_log, gone("ec2", "delete_flow_logs", "FlowLogIds", many=True)),
    "AWS::EC2::PlacementGroup": Kind(placement_group, gone("ec2", "delete_placement_group", "GroupName")),
    "AWS::EC2::LaunchTemplate": Kind(launch_template, gone("ec2", "delete_launch_template", "LaunchTemplateId"), new_version),
    "AWS::EC2::Instance": Kind(instance, gone("ec2", "terminate_instances", "InstanceIds", many=True), there=instance_there),
    "AWS::Logs::LogGroup": Kind(log_group, gone("logs", "delete_log_group", "logGroupName")),
    "AWS::IAM::Role": Kind(role, delete_role, role_policies),
    "AWS::IAM::ManagedPolicy": Kind(managed_policy, gone("iam", "delete_policy", "PolicyArn"), new_policy),
    "AWS::IAM::InstanceProfile": Kind(instance_profile, delete_profile),
    "AWS::S3::Bucket": Kind(bucket, gone("s3", "delete_bucket", "Bucket"), bucket_settings),
    "AWS::S3::BucketPolicy": Kind(bucket_policy, gone("s3", "delete_bucket_policy", "Bucket")),
    "AWS::KMS::Key": Kind(key, delete_key),
    "AWS::KMS::Alias": Kind(alias, gone("kms", "delete_alias", "AliasName")),
    "AWS::SecretsManager::Secret": Kind(secret, delete_secret),
    "AWS::ECR::Repository": Kind(repository, gone("ecr", "delete_repository", "repositoryName")),
    "AWS::Batch::ComputeEnvironment": Kind(compute_environment, end_environment),
    "AWS::Batch::JobQueue": Kind(queue, end_queue),
    "AWS::Batch::JobDefinition": Kind(definition, gone("batch", "deregister_job_definition", "jobDefinition"), None),
    "AWS::SNS::Topic": Kind(topic, gone("sns", "delete_topic", "TopicArn")),
    "AWS::SNS::TopicPolicy": Kind(topic_policy, nothing),
    "AWS::APS::Workspace": Kind(workspace, delete_workspace, new_definition),
    "AWS::APS::RuleGroupsNamespace": Kind(rules, delete_rules, new_rules),
    "AWS::CloudWatch::Alarm": Kind(alarm, gone("cloudwatch", "delete_alarms", "AlarmNames", many=True), new_alarm),
    "AWS::CloudWatch::Dashboard": Kind(dashboard, gone("cloudwatch", "delete_dashboards", "DashboardNames", many=True), new_dashboard),
    "AWS::FSx::FileSystem": Kind(file_system, gone("fsx", "delete_file_system", "FileSystemId")),
}
