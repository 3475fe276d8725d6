# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of networks: a VPC with one zone or several, and the security groups of EFA and of FSx."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws.template import (
    allow,
    att,
    equals,
    exported,
    number,
    ref,
    resource,
    role,
    sub,
    tags,
    template,
    text,
    when,
    yes_no,
)

MOST_ZONES = 6
# What nodes without a way out need: images, Systems Manager, credentials, logs, secrets.
ENDPOINTS = ("ecr.api", "ecr.dkr", "ssm", "ssmmessages", "ec2messages", "sts", "logs", "secretsmanager", "ec2")
LUSTRE_PORTS = ((988, 988), (1018, 1023))
OPENZFS_PORTS = ((111, 111), (2049, 2049), (20001, 20003))
ANYWHERE = "0.0.0.0/0"


def one_zone():
    """2.vpc-one-az.yaml: the network that Batch imports."""
    parameters = {
        "VPCName": text("Name of the VPC", "ML VPC"),
        "SubnetsAZ": {"Type": "AWS::EC2::AvailabilityZone::Name", "Description": "Availability zone of both subnets"},
        **_parameters("10.0.0.0/16"),
    }
    resources = {
        **_vpc(),
        **_subnet("PublicSubnet", ref("SubnetsAZ"), _block(0, 2, 15), "Public"),
        **_subnet("PrivateSubnet", ref("SubnetsAZ"), _block(1, 2, 15), "Private"),
        **_public_routes(["PublicSubnet"]),
        **_nat("", "PublicSubnet", "Nat"),
        **_private_routes("", ["PrivateSubnet"], [("Nat", "")]),
        **_endpoints(["PrivateRouteTable"], [("PrivateSubnet", None)]),
        **_groups(),
    }
    outputs = {
        "VPC": exported(ref("VPC"), "VPC", "The VPC"),
        "PublicSubnet": exported(ref("PublicSubnet"), "PublicSubnet", "The public subnet"),
        "PrivateSubnet": exported(ref("PrivateSubnet"), "PrivateSubnet", "The private subnet"),
        **_group_outputs(),
    }
    about = "VPC with a public and a private subnet in one zone, and security groups for EFA and FSx"
    return template(about, parameters, resources, outputs, conditions=_conditions())


def several_zones():
    """1.vpc-multi-az.yaml: two to six zones."""
    parameters = {
        "VPCName": text("Name of the VPC", "ML VPC"),
        "AvailabilityZones": {"Type": "List<AWS::EC2::AvailabilityZone::Name>", "Description": "As many zones as NumberOfAZs says"},
        "NumberOfAZs": text("Number of zones", "2", AllowedValues=[str(each) for each in range(2, MOST_ZONES + 1)]),
        "CreatePublicSubnets": yes_no("Whether there are public subnets; without them there is no NAT", "true"),
        "NatGatewayPerAZ": yes_no("A NAT gateway in each zone, so that a lost zone does not cut off the others", "false"),
        **_parameters("10.0.0.0/16"),
    }
    public = [_named("PublicSubnet", each) for each in range(MOST_ZONES)]
    private = [_named("PrivateSubnet", each) for each in range(MOST_ZONES)]
    conditions = {
        **_conditions(),
        "Public": equals("CreatePublicSubnets", "true"),
        "Nat": {"Fn::And": [{"Condition": "Public"}, equals("CreateNatGateway", "true")]},
        "PerZone": {"Fn::And": [{"Condition": "Nat"}, equals("NatGatewayPerAZ", "true")]},
    }
    # Zone3 is true from three zones on.
    for each in range(3, MOST_ZONES + 1):
        more = [equals("NumberOfAZs", str(number_)) for number_ in range(each, MOST_ZONES + 1)]
        conditions["Zone%d" % each] = more[0] if len(more) == 1 else {"Fn::Or": more}
        for what in ("Public", "PerZone", "Nat"):
            conditions["%s%d" % (what, each)] = {"Fn::And": [{"Condition": "Zone%d" % each}, {"Condition": what}]}
    resources = _vpc("Public")
    for index in range(MOST_ZONES):
        zone = {"Fn::Select": [index, ref("AvailabilityZones")]}
        there = "Zone%d" % (index + 1) if index > 1 else None
        for_public = "Public%d" % (index + 1) if index > 1 else "Public"
        resources.update(_subnet(private[index], zone, _block(index, 16, 12), "Private", there))
        resources.update(_subnet(public[index], zone, _block(8 + index, 16, 12), "Public", for_public))
    resources.update(_public_routes(public, "Public"))
    resources.update(_nat("", public[0], "Nat"))
    for index in range(1, MOST_ZONES):
        resources.update(_nat(str(index + 1), public[index], "PerZone%d" % (index + 1) if index > 1 else "PerZone"))
    tables = []
    for index in range(MOST_ZONES):
        there = "Zone%d" % (index + 1) if index > 1 else None
        suffix = str(index + 1) if index else ""
        if index:
            own = "PerZone%d" % (index + 1) if index > 1 else "PerZone"
            resources.update(_private_routes(suffix, [private[index]], [("Nat", {"own": own, "nat": suffix})], there))
        else:
            resources.update(_private_routes("", [private[0]], [("Nat", "")]))
        tables.append(("PrivateRouteTable" + suffix, there))
    resources.update(_endpoints(tables, [(name, "Zone%d" % (index + 1) if index > 1 else None) for index, name in enumerate(private)]))
    resources.update(_groups())
    outputs = {
        "VPC": exported(ref("VPC"), "VPC", "The VPC"),
        "PublicSubnet": {**exported(ref(public[0]), "PublicSubnet", "The public subnet of the first zone"), "Condition": "Public"},
        "PrivateSubnet": exported(ref(private[0]), "PrivateSubnet", "The private subnet of the first zone"),
        "PrivateSubnets": exported(
            {
                "Fn::Join": [
                    ",",
                    [ref(name) if index < 2 else when("Zone%d" % (index + 1), ref(name)) for index, name in enumerate(private)],
                ]
            },
            "PrivateSubnets",
            "All private subnets, with commas",
        ),
        **_group_outputs(),
    }
    about = "VPC with public and private subnets in two to six zones, and security groups for EFA and FSx"
    return template(about, parameters, resources, outputs, conditions=conditions)


def _named(what, index):
    return what + (str(index + 1) if index else "")


def _parameters(cidr):
    return {
        "VPCCidr": text("Network of the VPC", cidr, AllowedPattern=r"(\d{1,3}\.){3}\d{1,3}/(1[6-9]|20)"),
        "CreateNatGateway": yes_no("Whether private subnets reach the internet through a NAT gateway", "true"),
        "CreateS3Endpoint": yes_no("Whether S3 is reached without the NAT", "true"),
        "CreateDynamoDBEndpoint": yes_no("Whether DynamoDB is reached without the NAT", "true"),
        "CreateInterfaceEndpoints": yes_no("Endpoints of the services that nodes need in a network without a way out", "false"),
        "FlowLogDays": number("Days that flow logs are kept", 30, 1),
    }


def _conditions():
    return {
        "Nat": equals("CreateNatGateway", "true"),
        "S3Endpoint": equals("CreateS3Endpoint", "true"),
        "DynamoDBEndpoint": equals("CreateDynamoDBEndpoint", "true"),
        "InterfaceEndpoints": equals("CreateInterfaceEndpoints", "true"),
    }


def _if(condition):
    return {"Condition": condition} if condition else {}


def _block(index, count, bits):
    return {"Fn::Select": [index, {"Fn::Cidr": [ref("VPCCidr"), count, bits]}]}


def _vpc(public=None):
    logs = {"Effect": "Allow", "Action": ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]}
    return {
        "VPC": resource(
            "AWS::EC2::VPC",
            {"CidrBlock": ref("VPCCidr"), "EnableDnsSupport": True, "EnableDnsHostnames": True, "Tags": tags(ref("VPCName"))},
        ),
        "InternetGateway": resource("AWS::EC2::InternetGateway", {"Tags": tags(ref("VPCName"))}, **_if(public)),
        "InternetGatewayAttachment": resource(
            "AWS::EC2::VPCGatewayAttachment", {"VpcId": ref("VPC"), "InternetGatewayId": ref("InternetGateway")}, **_if(public)
        ),
        "FlowLogsGroup": resource("AWS::Logs::LogGroup", {"RetentionInDays": ref("FlowLogDays")}),
        "FlowLogsRole": role("vpc-flow-logs.amazonaws.com", [{**logs, "Resource": att("FlowLogsGroup", "Arn")}]),
        "FlowLogs": resource(
            "AWS::EC2::FlowLog",
            {
                "ResourceId": ref("VPC"),
                "ResourceType": "VPC",
                "TrafficType": "ALL",
                "LogGroupName": ref("FlowLogsGroup"),
                "DeliverLogsPermissionArn": att("FlowLogsRole", "Arn"),
            },
        ),
    }


def _subnet(name, zone, block, kind, condition=None):
    # No public addresses by themselves: EC2 refuses them for instances with several interfaces.
    properties = {
        "VpcId": ref("VPC"),
        "AvailabilityZone": zone,
        "CidrBlock": block,
        "Tags": tags({"Fn::Join": [" ", [ref("VPCName"), kind, "subnet"]]}),
    }
    return {name: resource("AWS::EC2::Subnet", properties, **_if(condition))}


def _public_routes(subnets, condition=None):
    found = {
        "PublicRouteTable": resource("AWS::EC2::RouteTable", {"VpcId": ref("VPC")}, **_if(condition)),
        "PublicRoute": resource(
            "AWS::EC2::Route",
            {"RouteTableId": ref("PublicRouteTable"), "DestinationCidrBlock": ANYWHERE, "GatewayId": ref("InternetGateway")},
            DependsOn="InternetGatewayAttachment",
            **_if(condition),
        ),
    }
    for index, subnet in enumerate(subnets):
        there = "Public%d" % (index + 1) if condition and index > 1 else condition
        properties = {"SubnetId": ref(subnet), "RouteTableId": ref("PublicRouteTable")}
        found["%sRoutes" % subnet] = resource("AWS::EC2::SubnetRouteTableAssociation", properties, **_if(there))
    return found


def _nat(suffix, subnet, condition):
    address, gateway = "NatAddress" + suffix, "NatGateway" + suffix
    return {
        address: resource("AWS::EC2::EIP", {"Domain": "vpc"}, DependsOn="InternetGatewayAttachment", Condition=condition),
        gateway: resource(
            "AWS::EC2::NatGateway", {"AllocationId": att(address, "AllocationId"), "SubnetId": ref(subnet)}, Condition=condition
        ),
    }


def _private_routes(suffix, subnets, nats, condition=None):
    table = "PrivateRouteTable" + suffix
    found = {table: resource("AWS::EC2::RouteTable", {"VpcId": ref("VPC")}, **_if(condition))}
    for _condition, nat in nats:
        gateway = ref("NatGateway")
        if isinstance(nat, dict):
            gateway = when(nat["own"], ref("NatGateway" + nat["nat"]), gateway)
        # The first zones always exist; a later one's route needs its zone and the NAT.
        there = condition.replace("Zone", "Nat") if condition else "Nat"
        found["PrivateRoute" + suffix] = resource(
            "AWS::EC2::Route",
            {"RouteTableId": ref(table), "DestinationCidrBlock": ANYWHERE, "NatGatewayId": gateway},
            Condition=there,
        )
    for subnet in subnets:
        properties = {"SubnetId": ref(subnet), "RouteTableId": ref(table)}
        found["%sRoutes" % subnet] = resource("AWS::EC2::SubnetRouteTableAssociation", properties, **_if(condition))
    return found


def _endpoints(tables, subnets):
    """Gateway endpoints, and those of services with an address in each subnet. tables, subnets: names, or (name, condition)."""
    tables = [each if isinstance(each, tuple) else (each, None) for each in tables]
    routes = [ref(name) if not there else when(there, ref(name)) for name, there in tables]
    everyone = {"Principal": "*"}
    # Own identities may do what their policies allow; everybody else may only read, as layers of images and packages are.
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {**allow("*", "*", StringEquals={"aws:PrincipalAccount": ref("AWS::AccountId")}), **everyone},
            {**allow(["s3:GetObject", "s3:ListBucket"], "*"), **everyone},
        ],
    }
    own = {"Version": "2012-10-17", "Statement": policy["Statement"][:1]}
    found = {}
    for name, service, document in (("S3Endpoint", "s3", policy), ("DynamoDBEndpoint", "dynamodb", own)):
        properties = {
            "VpcId": ref("VPC"),
            "ServiceName": sub("com.amazonaws.${AWS::Region}.%s" % service),
            "VpcEndpointType": "Gateway",
            "RouteTableIds": routes,
            "PolicyDocument": document,
        }
        found[name] = resource("AWS::EC2::VPCEndpoint", properties, Condition=name)
    found["EndpointSecurityGroup"] = resource(
        "AWS::EC2::SecurityGroup",
        {
            "GroupDescription": "HTTPS from the VPC to endpoints",
            "VpcId": ref("VPC"),
            "SecurityGroupIngress": [
                {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": ref("VPCCidr"), "Description": "HTTPS"}
            ],
        },
        Condition="InterfaceEndpoints",
    )
    places = [ref(name) if not there else when(there, ref(name)) for name, there in subnets]
    for service in ENDPOINTS:
        name = "Endpoint" + "".join(part.capitalize() for part in service.split("."))
        found[name] = resource(
            "AWS::EC2::VPCEndpoint",
            {
                "VpcId": ref("VPC"),
                "ServiceName": sub("com.amazonaws.${AWS::Region}.%s" % service),
                "VpcEndpointType": "Interface",
                "PrivateDnsEnabled": True,
                "SubnetIds": places,
                "SecurityGroupIds": [ref("EndpointSecurityGroup")],
                "PolicyDocument": own,
            },
            Condition="InterfaceEndpoints",
        )
    return found


def _groups():
    """The group of EFA, whose members send all to each other, and that of file systems."""
    efa = {"GroupId": ref("SecurityGroup"), "IpProtocol": "-1"}
    clients = [
        {"IpProtocol": protocol, "FromPort": first, "ToPort": last, "SourceSecurityGroupId": ref("SecurityGroup"), "Description": about}
        for about, ports, protocols in (("Lustre", LUSTRE_PORTS, ("tcp",)), ("OpenZFS", OPENZFS_PORTS, ("tcp", "udp")))
        for first, last in ports
        for protocol in protocols
    ]
    return {
        "SecurityGroup": resource(
            "AWS::EC2::SecurityGroup",
            {
                "GroupDescription": "EFA between members, and everything outwards",
                "VpcId": ref("VPC"),
                "SecurityGroupEgress": [{"IpProtocol": "-1", "CidrIp": ANYWHERE, "Description": "Outwards"}],
            },
        ),
        "EFAIngress": resource(
            "AWS::EC2::SecurityGroupIngress", {**efa, "SourceSecurityGroupId": ref("SecurityGroup"), "Description": "EFA"}
        ),
        "EFAEgress": resource(
            "AWS::EC2::SecurityGroupEgress", {**efa, "DestinationSecurityGroupId": ref("SecurityGroup"), "Description": "EFA"}
        ),
        "FSXSecurityGroup": resource(
            "AWS::EC2::SecurityGroup",
            {"GroupDescription": "FSx for Lustre and OpenZFS, for the nodes", "VpcId": ref("VPC"), "SecurityGroupIngress": clients},
        ),
        **{
            "FSXLustre%d" % first: resource(
                "AWS::EC2::SecurityGroupIngress",
                {
                    "GroupId": ref("FSXSecurityGroup"),
                    "IpProtocol": "tcp",
                    "FromPort": first,
                    "ToPort": last,
                    "SourceSecurityGroupId": ref("FSXSecurityGroup"),
                    "Description": "Between the servers of Lustre",
                },
            )
            for first, last in LUSTRE_PORTS
        },
    }


def _group_outputs():
    return {
        "SecurityGroup": exported(ref("SecurityGroup"), "SecurityGroup", "Security group of nodes, through which EFA passes"),
        "FSXSecurityGroup": exported(ref("FSXSecurityGroup"), "FSXSecurityGroup", "Security group of file systems"),
    }
