# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A template of monitoring: Managed Prometheus with Muster's alarms, a topic, Managed Grafana, and alarms and panels of FSx."""

from __future__ import annotations

import json

from ansible_collections.muster.fleet.plugins.module_utils.aws.template import (
    att,
    exported,
    given,
    number,
    ref,
    resource,
    role,
    sub,
    tags,
    template,
    text,
    yes_no,
)
from ansible_collections.muster.fleet.plugins.module_utils.observe import alarms


def rules():
    """The alarms as the service takes them."""
    return json.dumps({"groups": alarms.groups()}, separators=(",", ":"))


def alertmanager():
    """The service's Alertmanager, which tells only topics of SNS. Its own templates stand in double braces, which Fn::Sub leaves alone."""
    sns = {"topic_arn": "${Topic}", "sigv4": {"region": "${AWS::Region}"}, "send_resolved": True}
    route = {"receiver": "topic", "group_by": ["fleet", "alertname"]}
    document = {"route": route, "receivers": [{"name": "topic", "sns_configs": [sns]}]}
    return sub("alertmanager_config: |\n  " + json.dumps(document))


def metric(name, about, comparison, threshold, period=300):
    """An alarm of CloudWatch about the file system that holds for a quarter of an hour."""
    return resource(
        "AWS::CloudWatch::Alarm",
        {
            "AlarmDescription": about,
            "Namespace": "AWS/FSx",
            "MetricName": name,
            "Dimensions": [{"Name": "FileSystemId", "Value": ref("FSxLustreFilesystemId")}],
            "Statistic": "Sum",
            "Period": period,
            "EvaluationPeriods": 900 // period,
            "ComparisonOperator": comparison,
            "Threshold": threshold,
            "AlarmActions": [ref("Topic")],
            "OKActions": [ref("Topic")],
        },
        Condition="HasFileSystem",
    )


def panel(title, unit, stacked=False, **metrics):
    """A panel of CloudWatch: {label: metric of the file system}. unit: "/s" divides what was counted by the seconds."""
    lines: list = []
    for count, (label, name) in enumerate(metrics.items(), 1):
        rate = unit.endswith("/s")
        if rate:
            lines.append([{"expression": "m%d/PERIOD(m%d)" % (count, count), "label": label, "id": "e%d" % count}])
        shown = {"visible": False} if rate else {"label": label}
        lines.append(["AWS/FSx", name, "FileSystemId", "${FSxLustreFilesystemId}", {"id": "m%d" % count, "stat": "Sum", **shown}])
    axis = {"left": {"label": unit, "min": 0, "showUnits": False}}
    properties = {"title": title, "region": "${AWS::Region}", "view": "timeSeries", "stacked": stacked, "period": 60, "yAxis": axis}
    return {"type": "metric", "width": 12, "height": 6, "properties": {**properties, "metrics": lines}}


def panels():
    """What a file system does, for CloudWatch and for Grafana's data source of CloudWatch."""
    widgets = [
        panel("Throughput", "bytes/s", stacked=True, read="DataReadBytes", written="DataWriteBytes"),
        panel(
            "Operations",
            "operations/s",
            stacked=True,
            read="DataReadOperations",
            written="DataWriteOperations",
            metadata="MetadataOperations",
        ),
        panel("Free space", "bytes", free="FreeDataStorageCapacity"),
        panel("Clients", "connections", clients="ClientConnections"),
    ]
    return sub(json.dumps({"widgets": widgets}, separators=(",", ":")))


def observability():
    """observability.yaml"""
    parameters = {
        "FSxLustreFilesystemId": text("File system of FSx for Lustre to watch; empty for none", ""),
        "FreeSpace": number("Bytes below which its free space alarms", 1_000_000_000_000),
        "Throughput": number("Bytes in five minutes above which its throughput alarms", 300_000_000_000),
        "CreateGrafana": yes_no("Whether there is a workspace of Managed Grafana, which needs IAM Identity Center", "true"),
    }
    workspace = {"Fn::GetAtt": ["Prometheus", "Arn"]}
    reads = ["aps:ListWorkspaces", "aps:DescribeWorkspace", "aps:QueryMetrics", "aps:GetLabels", "aps:GetSeries", "aps:GetMetricMetadata"]
    looks = ["cloudwatch:DescribeAlarms", "cloudwatch:ListMetrics", "cloudwatch:GetMetricData", "cloudwatch:GetMetricStatistics"]
    may = [
        {"Effect": "Allow", "Action": [each for each in reads if each != "aps:ListWorkspaces"], "Resource": workspace},
        {"Effect": "Allow", "Action": ["aps:ListWorkspaces", *looks], "Resource": "*"},
    ]
    publishes = {
        "Effect": "Allow",
        "Principal": {"Service": ["aps.amazonaws.com", "cloudwatch.amazonaws.com"]},
        "Action": ["sns:Publish", "sns:GetTopicAttributes"],
        "Resource": ref("Topic"),
        "Condition": {"StringEquals": {"aws:SourceAccount": ref("AWS::AccountId")}},
    }
    writes = {"Effect": "Allow", "Action": ["aps:RemoteWrite"], "Resource": workspace}
    resources = {
        "Topic": resource("AWS::SNS::Topic", {"Tags": tags("muster-alarms")}),
        "TopicPolicy": resource(
            "AWS::SNS::TopicPolicy", {"Topics": [ref("Topic")], "PolicyDocument": {"Version": "2012-10-17", "Statement": [publishes]}}
        ),
        "Prometheus": resource(
            "AWS::APS::Workspace",
            {"Alias": ref("AWS::StackName"), "AlertManagerDefinition": alertmanager(), "Tags": tags("muster")},
            DependsOn="TopicPolicy",
        ),
        "Alarms": resource("AWS::APS::RuleGroupsNamespace", {"Workspace": workspace, "Name": "muster", "Data": rules()}),
        "RemoteWrite": resource(
            "AWS::IAM::ManagedPolicy",
            {
                "Description": "Lets a monitoring host write its metrics into the workspace",
                "PolicyDocument": {"Version": "2012-10-17", "Statement": [writes]},
            },
        ),
        "GrafanaRole": {**role("grafana.amazonaws.com", may), "Condition": "HasGrafana"},
        "Grafana": resource(
            "AWS::Grafana::Workspace",
            {
                "Name": ref("AWS::StackName"),
                "AccountAccessType": "CURRENT_ACCOUNT",
                "AuthenticationProviders": ["AWS_SSO"],
                "PermissionType": "CUSTOMER_MANAGED",
                "DataSources": ["PROMETHEUS", "CLOUDWATCH"],
                "RoleArn": att("GrafanaRole", "Arn"),
            },
            Condition="HasGrafana",
        ),
        "FreeSpaceAlarm": metric(
            "FreeDataStorageCapacity",
            "The file system is nearly full; remove old checkpoints and data or make it larger",
            "LessThanThreshold",
            ref("FreeSpace"),
            period=60,  # FSx reports every minute, and Sum over a longer period would add the same space again
        ),
        "ReadAlarm": metric(
            "DataReadBytes",
            "Reads are near the file system's throughput; jobs wait for data",
            "GreaterThanThreshold",
            ref("Throughput"),
        ),
        "WriteAlarm": metric(
            "DataWriteBytes",
            "Writes are near the file system's throughput; checkpoints take longer",
            "GreaterThanThreshold",
            ref("Throughput"),
        ),
    }
    name = sub("${AWS::StackName}-fsx")
    resources["FileSystem"] = resource(
        "AWS::CloudWatch::Dashboard", {"DashboardName": name, "DashboardBody": panels()}, Condition="HasFileSystem"
    )
    outputs = {
        "RemoteWriteUrl": exported(
            sub("${Prometheus.PrometheusEndpoint}api/v1/remote_write"), "RemoteWriteUrl", "Address for monitoring_remote_write"
        ),
        "RemoteWritePolicy": exported(ref("RemoteWrite"), "RemoteWritePolicy", "Policy for the role of the monitoring host"),
        "AlarmTopic": exported(ref("Topic"), "AlarmTopic", "Topic to subscribe to"),
        "GrafanaEndpoint": {
            **exported(att("Grafana", "Endpoint"), "GrafanaEndpoint", "Address of Managed Grafana"),
            "Condition": "HasGrafana",
        },
    }
    conditions = {"HasFileSystem": given("FSxLustreFilesystemId"), "HasGrafana": {"Fn::Equals": [ref("CreateGrafana"), "true"]}}
    return template(
        "Metrics, dashboards and alarms of a fleet with managed services", parameters, resources, outputs, conditions=conditions
    )
