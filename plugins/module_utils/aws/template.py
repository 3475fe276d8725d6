# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all templates of CloudFormation share: functions, parameters, roles, and the interfaces of a launch."""

from __future__ import annotations

from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

VERSION = "2010-09-09"
NO_VALUE = {"Ref": "AWS::NoValue"}
BOOLEAN = {"Type": "String", "AllowedValues": ["true", "false"]}


def ref(name):
    return {"Ref": name}


def att(name, attribute):
    return {"Fn::GetAtt": [name, attribute]}


def sub(text):
    return {"Fn::Sub": text}


def when(condition, value, other=None):
    return {"Fn::If": [condition, value, NO_VALUE if other is None else other]}


def equals(parameter, value):
    return {"Fn::Equals": [ref(parameter), value]}


def given(parameter):
    return {"Fn::Not": [equals(parameter, "")]}


def imported(parameter, export):
    """The export of the stack that a parameter names."""
    return {"Fn::ImportValue": sub("${%s}-%s" % (parameter, export))}


def exported(value, name, about):
    return {"Description": about, "Value": value, "Export": {"Name": sub("${AWS::StackName}-%s" % name)}}


def output(value, about):
    return {"Description": about, "Value": value}


def resource(kind, properties=None, **more):
    return {"Type": kind, **more, **({"Properties": properties} if properties else {})}


def retained(kind, properties, **more):
    """A resource with data, which outlives its stack."""
    return resource(kind, properties, DeletionPolicy="Retain", UpdateReplacePolicy="Retain", **more)


def text(about, default=None, **more):
    """A parameter; without a default it must be given."""
    return {"Type": "String", "Description": about, **({} if default is None else {"Default": default}), **more}


def number(about, default, least=0):
    return {"Type": "Number", "Description": about, "Default": default, "MinValue": least}


def yes_no(about, default):
    return {**BOOLEAN, "Description": about, "Default": default}


def tags(name, **more):
    """Tags with the name of a thing; the tags of the stack come to them by CloudFormation."""
    found = {"Name": name, **more}
    return [{"Key": key, "Value": value} for key, value in found.items()]


def role(service, statements=(), managed=(), name="access"):
    """A role for a service of AWS, with inline statements and managed policies."""
    properties: dict[str, Any] = {
        "AssumeRolePolicyDocument": {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
        }
    }
    if managed:
        properties["ManagedPolicyArns"] = [sub("arn:${AWS::Partition}:iam::aws:policy/%s" % each) for each in managed]
    if statements:
        document = {"Version": "2012-10-17", "Statement": list(statements)}
        properties["Policies"] = [{"PolicyName": name, "PolicyDocument": document}]
    return resource("AWS::IAM::Role", properties)


def allow(actions, resources, **condition):
    statement = {"Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def interfaces(name, groups, subnet=None, layout="efa-only"):
    """NetworkInterfaces of a launch template; without a subnet the service that launches gives one. groups: a list of expressions."""
    found = []
    for each in catalogue.ec2_interfaces(name, subnet, groups, layout):
        found.append({key: value for key, value in each.items() if key != "SubnetId" or subnet})
    return found


def plain_interface(groups, subnet=None):
    """The one interface of a type without EFA."""
    one = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface", "Groups": groups, "DeleteOnTermination": True}
    return [{**one, **({"SubnetId": subnet} if subnet else {})}]


def launch_interfaces(name, groups, subnet=None, layout="efa-only"):
    """Interfaces for any type: those of the catalogue, or one."""
    if catalogue.described(name):
        return interfaces(name, groups, subnet, layout)
    return plain_interface(groups, subnet)


def metadata(hops=2):
    """Instance metadata by tokens alone, readable from containers; tags are in it for the boot script."""
    return {"HttpTokens": "required", "HttpPutResponseHopLimit": hops, "HttpEndpoint": "enabled", "InstanceMetadataTags": "enabled"}


def root_disk(device, gib):
    return {"DeviceName": device, "Ebs": {"VolumeSize": gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}}


def template(about, parameters, resources, outputs, *, conditions=None, rules=None):
    found = {"AWSTemplateFormatVersion": VERSION, "Description": about}
    for key, value in (
        ("Parameters", parameters),
        ("Rules", rules),
        ("Conditions", conditions),
        ("Resources", resources),
        ("Outputs", outputs),
    ):
        if value:
            found[key] = value
    return found
