# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The page of a proxy that asks for a login is no answer of AWS, and no list without entries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import botocore.model
import pytest

from ansible_collections.muster.fleet.plugins.inventory import hyperpod
from ansible_collections.muster.fleet.plugins.module_utils.aws import survey
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import Accounts, AwsError, Region, is_aws

LOGIN = b"<!DOCTYPE html>\n<html><body>Log in</body></html>"
OPTIONS = {"region": "us-east-1", "profile": "", "access_key": "x", "secret_key": "y", "session_token": ""}
CLUSTER = {"name": "mine", "storage": {"bucket": "mine-data"}}
# A listing of each protocol and service that a playbook reads.
LISTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sagemaker": ("ListClusters", "ClusterSummaries", {}),
    "batch": ("ListJobs", "jobSummaryList", {"jobQueue": "gpu"}),
    "fsx": ("DescribeFileSystems", "FileSystems", {}),
    "ssm": ("DescribeParameters", "Parameters", {}),
    "logs": ("DescribeLogStreams", "logStreams", {"logGroupName": "x"}),
    "service-quotas": ("ListServiceQuotas", "Quotas", {"ServiceCode": "ec2"}),
    "ec2": ("DescribeInstances", "Reservations", {}),
    "iam": ("SimulatePrincipalPolicy", "EvaluationResults", {"PolicySourceArn": "arn:aws:iam::1:role/x", "ActionNames": ["a:b"]}),
    "cloudformation": ("ListExports", "Exports", {}),
    "autoscaling": ("DescribeAutoScalingGroups", "AutoScalingGroups", {}),
}
ANSWER = "returned an answer that is not AWS's in region us-east-1; look at the proxy and at the address of the API."


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Region]]:
    """A region whose every answer is one body."""
    answer = {"type": "text/html", "body": LOGIN}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Type", str(answer["type"]))
            self.send_header("Content-Length", str(len(answer["body"])))
            self.end_headers()
            self.wfile.write(answer["body"])  # type: ignore[arg-type]

        do_GET = do_DELETE = do_POST

        def log_message(self, *_line: object) -> None:
            pass

    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def make(body: bytes = LOGIN, kind: str = "text/html") -> Region:
        answer.update(body=body, type=kind)
        return Region(Accounts({**OPTIONS, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}))

    yield make
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("service", LISTINGS)
def test_the_page_of_a_proxy_is_no_empty_list(region, service: str) -> None:
    action, what, wanted = LISTINGS[service]
    xml = service in ("ec2", "iam", "cloudformation", "autoscaling")
    # A page, a page that is good XML, and an answer of AWS's form without the list.
    own = f"<{action}Response><x/></{action}Response>".encode() if xml else b'{"message": "Log in"}'
    for body, kind in ((LOGIN, "text/html"), (LOGIN.split(b"\n")[1], "application/xml"), (own, "application/json")):
        with pytest.raises(AwsError) as caught:
            region(body, kind).every(service, action, what, **wanted)
        assert str(caught.value) == f"{action} {ANSWER}", body


def test_the_page_of_a_proxy_confirms_nothing(region) -> None:
    for service, action, wanted in (
        ("sagemaker", "StopTrainingJob", {"TrainingJobName": "x"}),
        ("batch", "TerminateJob", {"jobId": "x", "reason": "y"}),
        ("cloudformation", "DeleteStack", {"StackName": "x"}),
        ("s3", "ListBuckets", {}),
        ("s3", "DeleteBucket", {"Bucket": "x"}),
    ):
        with pytest.raises(AwsError, match=f"{action} returned an answer that is not AWS's"):
            region().call(service, action, **wanted)
    assert region(b"").call("sagemaker", "StopTrainingJob", TrainingJobName="x")
    with pytest.raises(AwsError, match="DescribeCluster returned an answer that is not AWS's"):
        region(b"").call("sagemaker", "DescribeCluster", ClusterName="x")


def test_nothing_is_left_only_when_aws_says_so(region) -> None:
    with pytest.raises(AwsError, match="not AWS's"):
        survey.left(region(), CLUSTER)


@pytest.mark.parametrize("clusters", [[], ["training"]])
def test_the_page_of_a_proxy_is_no_hyperpod_without_nodes(region, monkeypatch: pytest.MonkeyPatch, clusters: list[str]) -> None:
    plugin = hyperpod.InventoryModule()
    monkeypatch.setattr(plugin, "get_option", {"clusters": clusters, "details": False}.get)
    made = region()
    with pytest.raises(AwsError, match=r"(ListClusters|DescribeCluster) returned an answer that is not AWS's"):
        plugin._ask(made.accounts.options)


def test_what_aws_answers_is_accepted() -> None:
    full = {"type": "structure", "members": {"Policy": {"shape": "Text"}}, "payload": "Policy"}
    policy = botocore.model.StructureShape("y", full, botocore.model.ShapeResolver({"Text": {"type": "string"}}))
    for protocol, output, body in (
        ("json", None, b""),
        ("json", None, b"{}"),
        ("rest-json", None, b' {"a": 1}'),
        ("query", None, b"<DeleteStackResponse/>"),
        ("ec2", None, b'<?xml version="1.0" encoding="UTF-8"?>\n<DescribeInstancesResponse xmlns="x"></DescribeInstancesResponse>'),
        ("rest-xml", None, b""),
        ("rest-xml", None, b"<ListAllMyBucketsResult/>"),
        ("rest-xml", policy, b'{"Version": "2012-10-17"}'),
        ("smithy-rpc-v2-cbor", None, b"\xa0"),
    ):
        assert is_aws(protocol, output, body), (protocol, body)
    for protocol, body in (("json", b"[]"), ("json", b'{"a": '), ("query", b""), ("ec2", LOGIN), ("rest-xml", b"<HTML/>")):
        assert not is_aws(protocol, None, body), (protocol, body)
