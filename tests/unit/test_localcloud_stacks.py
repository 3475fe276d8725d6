# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What the local cloud's CloudFormation refuses, its change sets, and observability.yaml; tests/proof/architectures.py makes the others."""

from __future__ import annotations

import json

import pytest
import yaml
from cloud_parts import BUCKET, FOLDER, IAM, create, gone, node, outputs, said, settled, stacks

from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms

__all__ = ["create", "stacks"]


@pytest.mark.parametrize(
    ("template", "parameters", "expected"),
    [
        ({"Resources": {"A": {"Type": "AWS::EKS::Cluster"}}}, {}, "The local cloud makes no AWS::EKS::Cluster"),
        ({"Resources": {}, "Parameters": {"A": {"Type": "String"}}}, {}, "Parameters: [A] must have values"),
        ({"Resources": {}}, {"B": "1"}, "Parameters: [B] do not exist in the template"),
        ("fsx.yaml", {"VPCStackParameter": "none"}, "No export named none-PrivateSubnet found"),
        ("0.aws-batch-distributed-training.yaml", {"CapacityReservationId": "cr-1", "CapacityBlockId": "cr-2"}, "Give one reservation"),
        ("2.vpc-one-az.yaml", {"SubnetsAZ": "a", "CreateS3Endpoint": "yes"}, "must be one of AllowedValues"),
        ({"Resources": {"A": {**BUCKET, "Properties": {"BucketName": {"Ref": "X"}}}}}, {}, "Unresolved resource dependencies [X]"),
    ],
)
def test_what_cloudformation_refuses(stacks, template, parameters: dict[str, str], expected: str) -> None:
    body = json.dumps(template) if isinstance(template, dict) else (FOLDER / template).read_text()
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
    assert expected in said(stacks.create_stack, StackName="x", TemplateBody=body, Parameters=given, **IAM)


def test_names_of_roles_need_a_capability(stacks) -> None:
    body, given = (FOLDER / "2.vpc-one-az.yaml").read_text(), [{"ParameterKey": "SubnetsAZ", "ParameterValue": "us-east-1a"}]
    assert "Requires capabilities" in said(stacks.create_stack, StackName="x", TemplateBody=body, Parameters=given)


def test_a_change_set_says_what_an_update_does(create, stacks, ec2) -> None:
    before = {"Resources": {"A": node(), "B": node()}}
    create("nodes", before)
    after = {"Resources": {"A": node("c6i.xlarge"), "C": node()}, "Outputs": {"Id": {"Value": {"Ref": "C"}}}}
    wanted = {"StackName": "nodes", "TemplateBody": json.dumps(after)}
    stacks.create_change_set(ChangeSetName="try", **wanted)
    told = stacks.describe_change_set(StackName="nodes", ChangeSetName="try")
    changes = {each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in told["Changes"]}
    assert {name: each["Action"] for name, each in changes.items()} == {"A": "Modify", "C": "Add", "B": "Remove"}
    assert changes["A"]["Replacement"] == "True"
    stacks.execute_change_set(StackName="nodes", ChangeSetName="try")
    done = settled(stacks, "nodes")
    assert done["StackStatus"] == "UPDATE_COMPLETE"
    running = {
        each["InstanceId"]: each["InstanceType"]
        for one in ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["running"]}])["Reservations"]
        for each in one["Instances"]
    }
    assert sorted(running.values()) == ["c6i.large", "c6i.xlarge"] and outputs(done)["Id"] in running
    assert said(stacks.update_stack, **wanted) == "No updates are to be performed."
    stacks.create_change_set(ChangeSetName="again", **wanted)
    assert stacks.describe_change_set(StackName="nodes", ChangeSetName="again")["Status"] == "FAILED"


def test_monitoring_of_managed_services(create, stacks, client) -> None:
    """observability.yaml is made, changed and removed. The local cloud has no Managed Grafana, and says so."""
    body = (FOLDER / "observability.yaml").read_text()
    assert "makes no AWS::Grafana::Workspace" in said(stacks.create_stack, StackName="watch", TemplateBody=body, **IAM)
    amp, watch, sns = (client(each) for each in ("amp", "cloudwatch", "sns"))
    given = {"CreateGrafana": "false", "FSxLustreFilesystemId": "fs-0123456789abcdef0"}
    made = create("watch", "observability.yaml", **given)
    assert made["StackStatus"] == "CREATE_COMPLETE", made
    found = outputs(made)

    [workspace] = amp.list_workspaces(alias="watch")["workspaces"]
    assert found["RemoteWriteUrl"].endswith(f"/workspaces/{workspace['workspaceId']}/api/v1/remote_write")
    [namespace] = amp.list_rule_groups_namespaces(workspaceId=workspace["workspaceId"])["ruleGroupsNamespaces"]
    rules = amp.describe_rule_groups_namespace(workspaceId=workspace["workspaceId"], name=namespace["name"])
    assert json.loads(rules["ruleGroupsNamespace"]["data"])["groups"] == alarms.groups()
    told = amp.describe_alert_manager_definition(workspaceId=workspace["workspaceId"])["alertManagerDefinition"]["data"]
    [receiver] = yaml.safe_load(yaml.safe_load(told)["alertmanager_config"])["receivers"]
    assert receiver["sns_configs"][0]["topic_arn"] == found["AlarmTopic"]
    assert receiver["sns_configs"][0]["sigv4"] == {"region": "us-east-1"}
    [statement] = json.loads(sns.get_topic_attributes(TopicArn=found["AlarmTopic"])["Attributes"]["Policy"])["Statement"]
    assert statement["Resource"] == found["AlarmTopic"] and "aps.amazonaws.com" in statement["Principal"]["Service"]
    written = client("iam").get_policy_version(PolicyArn=found["RemoteWritePolicy"], VersionId="v1")["PolicyVersion"]["Document"]
    assert written["Statement"] == [{"Effect": "Allow", "Action": ["aps:RemoteWrite"], "Resource": workspace["arn"]}]
    shown = {each["MetricName"]: each for each in watch.describe_alarms()["MetricAlarms"]}
    # FSx reports its free space every minute; the sum over a longer period counts it more than once.
    assert {name: (each["Threshold"], each["Period"], each["EvaluationPeriods"]) for name, each in shown.items()} == {
        "FreeDataStorageCapacity": (1e12, 60, 15),
        "DataReadBytes": (3e11, 300, 3),
        "DataWriteBytes": (3e11, 300, 3),
    }
    assert {tuple(each["AlarmActions"]) for each in shown.values()} == {(found["AlarmTopic"],)}

    template = yaml.safe_load(body)
    template["Resources"]["Prometheus"]["Properties"]["AlertManagerDefinition"]["Fn::Sub"] = tells("group_by: [fleet]")
    template["Resources"]["Alarms"]["Properties"]["Data"] = '{"groups": []}'
    template["Resources"]["RemoteWrite"]["Properties"]["PolicyDocument"]["Statement"][0]["Action"].append("aps:GetLabels")
    [widgets] = json.loads(watch.get_dashboard(DashboardName="watch-fsx")["DashboardBody"]).values()
    assert {each["properties"]["region"] for each in widgets} == {"us-east-1"}
    metrics = [line for each in widgets for line in each["properties"]["metrics"] if line[0] == "AWS/FSx"]
    assert {line[3] for line in metrics} == {given["FSxLustreFilesystemId"]} and set(shown) <= {line[1] for line in metrics}

    less = [{"ParameterKey": key, "ParameterValue": value} for key, value in {**given, "FreeSpace": "5"}.items()]
    stacks.update_stack(StackName="watch", TemplateBody=json.dumps(template), Parameters=less, **IAM)
    done = settled(stacks, "watch")
    assert (done["StackStatus"], outputs(done)) == ("UPDATE_COMPLETE", found), "changed in place"
    told = amp.describe_alert_manager_definition(workspaceId=workspace["workspaceId"])["alertManagerDefinition"]["data"]
    assert told.decode() == tells("group_by: [fleet]")
    rules = amp.describe_rule_groups_namespace(workspaceId=workspace["workspaceId"], name=namespace["name"])
    assert rules["ruleGroupsNamespace"]["data"] == b'{"groups": []}'
    written = client("iam").get_policy_version(PolicyArn=found["RemoteWritePolicy"], VersionId="v2")["PolicyVersion"]["Document"]
    assert written["Statement"][0]["Action"] == ["aps:RemoteWrite", "aps:GetLabels"]
    assert watch.describe_alarms(AlarmNames=["watch-FreeSpaceAlarm"])["MetricAlarms"][0]["Threshold"] == 5
    without = [{"ParameterKey": "CreateGrafana", "ParameterValue": "false"}]
    stacks.update_stack(StackName="watch", UsePreviousTemplate=True, Parameters=without, **IAM)
    assert settled(stacks, "watch")["StackStatus"] == "UPDATE_COMPLETE"
    assert watch.describe_alarms()["MetricAlarms"] == watch.list_dashboards()["DashboardEntries"] == []

    stacks.delete_stack(StackName="watch")
    gone(stacks, "watch")
    assert amp.list_workspaces()["workspaces"] == [] and sns.list_topics()["Topics"] == []
    assert client("iam").list_policies(Scope="Local")["Policies"] == []


def tells(route: str, name: str = "topic") -> str:
    """A definition of an Alertmanager."""
    return f'alertmanager_config: "{{route: {{receiver: topic, {route}}}, receivers: [{{name: {name}}}]}}"'


@pytest.mark.parametrize(
    ("definition", "expected"),
    [("route: {receiver: topic}", "cannot be read: 'alertmanager_config'"), (tells("", "other"), "has no receiver topic")],
)
def test_a_definition_that_managed_prometheus_cannot_read_rolls_back(create, client, definition: str, expected: str) -> None:
    properties = {"Alias": "watch", "AlertManagerDefinition": definition}
    failed = create("watch", {"Resources": {"A": {"Type": "AWS::APS::Workspace", "Properties": properties}}})
    assert failed["StackStatus"] == "ROLLBACK_COMPLETE" and expected in failed["StackStatusReason"], failed
    assert client("amp").list_workspaces()["workspaces"] == []
